"""Check that the steps of a plan can be carried out, in order, on the present store."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rmqctl.errors import InternalError, RefusedError
from rmqctl.files.bounds import WritableFolders
from rmqctl.files.durable import failed
from rmqctl.files.sparse import same_content
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Create, FileContent, MakeFolder, MoveAside, Patch, Replace, Step
from rmqctl.repair.targets import (
    checked,
    is_alias,
    real_path,
    refuse_foreign_links,
    up,
)
from rmqctl.scan.overlay import OverlayPiece


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A step with the real path of its target.

    * ``folders``: the folders that it creates (real paths, outermost first).
    * ``again``: whether a later step creates something at the target or below it.
    """

    step: Step
    path: str
    folders: tuple[str, ...] = ()
    again: bool = False


def check(root: str, steps: Sequence[Step], named: Iterable[str] = ()) -> list[CheckedStep]:
    """Return the steps that are left to do, in order; patches of one file are joined.

    Raises: RefusedError if the store differs from what the plan assumes, or if a step would write
    outside the root and the folders ``named``; InternalError if the plan contradicts itself.
    """
    picture = _Picture(WritableFolders(root, named))
    in_order = [item for step in _merged(root, steps)
                if (item := picture.add(root, step)) is not None]
    created: set[str] = set()
    out = []
    for item in reversed(in_order):
        if isinstance(item.step, MoveAside):
            out.append(replace(item, again=item.path in created))
        else:
            out.append(item)
            created.update(up(item.path))
    return out[::-1]


class _Picture:
    """The files and folders as they will be after the steps that were added."""

    def __init__(self, bounds: WritableFolders) -> None:
        self._bounds = bounds
        self._created: dict[str, str] = {}
        self._above: set[str] = set()
        self._gone: set[str] = set()

    def add(self, root: str, step: Step) -> CheckedStep | None:
        target, follow = step.target, isinstance(step, Replace | Patch)
        refuse_foreign_links(root, target if follow else os.path.dirname(target))
        if follow and is_alias(root, os.path.join(root, target)):
            raise RefusedError(f"{target}: is a link to another file of the store")
        if follow and os.path.islink(os.path.join(root, target)):
            # It may point anywhere, outside of the store.
            raise RefusedError(f"{target}: is a link to {real_path(root, target, follow=True)}, "
                               "and rmqctl does not write through links: replace it with the file "
                               "itself")
        path = real_path(root, target, follow=follow)
        self._bounds.require(target, path)
        kind = self._kind(path)
        if isinstance(step, MakeFolder) and kind == "folder":
            self._make(path, "folder")  # a later step must not remove it
            return None
        if isinstance(step, MoveAside):
            if kind is None:
                raise RefusedError(f"{target}: no longer exists")
            if path in self._above or path in self._created:
                raise InternalError(f"{target}: the plan both creates and removes it")
            if os.path.islink(path) and os.path.isdir(path):
                raise RefusedError(f"{target}: is a link to a folder and is not moved")
            self._bounds.refuse_links(path)
            self._gone.add(path)
            return CheckedStep(step, path)
        if isinstance(step, Create | MakeFolder):
            if kind is not None:
                raise RefusedError(f"{target}: exists already")
            folders = self._missing(path, target)
            for folder in folders:
                self._make(folder, "folder")
            self._make(path, "folder" if isinstance(step, MakeFolder) else "file")
            return CheckedStep(step, path, folders)
        if path in self._created:
            raise InternalError(f"{target}: the plan changes it twice")
        if kind != "file":
            raise RefusedError(f"{target}: " + ("no longer exists" if kind is None
                                                else "is not a regular file"))
        self._make(path, "file")
        return CheckedStep(step, path)

    def _make(self, path: str, kind: str) -> None:
        self._created[path] = kind
        self._above.update(up(path)[1:])

    def _missing(self, path: str, target: str) -> tuple[str, ...]:
        missing = []
        while (kind := self._kind(path := os.path.dirname(path))) is None:
            missing.append(path)
        if kind != "folder":
            raise RefusedError(f"{target}: {path} is not a folder")
        return tuple(reversed(missing))

    def _kind(self, path: str) -> str | None:
        if path in self._created:
            return self._created[path]
        if not self._gone.isdisjoint(up(path)):
            return None
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failed(error, path, "look at") from None
        return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _merged(root: str, steps: Sequence[Step]) -> list[Step]:
    out: list[Step] = []
    # Join the patches of one file.
    patches: dict[str, int] = {}
    for given in steps:
        step = replace(given, target=checked(root, given.target))
        if isinstance(step, Create | Replace) and isinstance(step.content, OverlayPiece):
            if step.content.at:
                raise InternalError(f"{step.target}: the content of a file must start at 0")
            _fits(step.target, [step.content])
        # Patches may not overlap, whatever names they use for the file.
        if isinstance(step, Patch):
            path = real_path(root, step.target, follow=True)
            if is_alias(root, os.path.join(root, step.target)):
                raise RefusedError(f"{step.target}: is a link to another file of the store")
            position = patches.get(path)
            earlier = out[position] if position is not None else None
            pieces = list(step.pieces)
            if isinstance(earlier, Patch):
                pieces += earlier.pieces
            pieces = sorted((piece for piece in pieces if piece.size), key=lambda piece: piece.at)
            _fits(step.target, pieces)
            step = replace(step, pieces=tuple(pieces))
            if position is not None:
                out[position] = step
                continue
            if not pieces:
                continue
            patches[path] = len(out)
        out.append(step)
    return out


def _fits(target: str, pieces: Sequence[OverlayPiece]) -> None:
    """Raise InternalError if pieces overlap, or if the parts of a piece overlap or reach beyond
    it.
    """
    if any(first.end > two.at for first, two in pairwise(pieces)) or any(
            piece.at < 0 or piece.size < 0 for piece in pieces):
        raise InternalError(f"{target}: pieces of a patch overlap")
    for piece in pieces:
        end = 0
        for start, data in piece.parts:
            if start < end:
                raise InternalError(f"{target}: parts of a piece overlap")
            end = start + len(data)
        if end > piece.size:
            raise InternalError(f"{target}: a part reaches beyond its piece")


def shared(root: str, steps: Iterable[Step]) -> list[str]:
    """Return the targets that are changed in place and have further hard links (possibly a
    backup).
    """
    targets = []
    for step in steps:
        if isinstance(step, Patch):
            with contextlib.suppress(OSError):
                if os.stat(os.path.join(root, step.target)).st_nlink > 1:
                    targets.append(step.target)
    return targets


def moved_aside(root: str, steps: Iterable[Step]) -> list[str]:
    """Return every file that the steps move aside, each once.

    If a step moves a folder, these are all files in it, or the folder itself if it is empty.
    """
    paths: dict[str, None] = {}
    for step in steps:
        if isinstance(step, MoveAside):
            target = checked(root, step.target)
            paths.update(dict.fromkeys(_files_below(os.path.join(root, target), target)))
    return list(paths)


def _files_below(path: str, target: str) -> Iterator[str]:
    if os.path.islink(path) or not os.path.isdir(path):
        yield target
        return
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise failed(error, path, "list") from None
    for name in names:
        yield from _files_below(os.path.join(path, name), os.path.join(target, name))
    if not names:
        yield os.path.join(target, "")


# -- is it done already? --------------------------------------------------------------------------


def is_fulfilled(root: str, steps: Sequence[Step]) -> bool:
    """Return whether the plan was already applied: the store is in the state in which the steps
    would leave it.
    """
    created: set[str] = set()
    for step in reversed(_merged(root, steps)):
        path = real_path(root, step.target, follow=isinstance(step, Replace | Patch))
        if isinstance(step, MakeFolder):
            done = os.path.isdir(path)
        elif isinstance(step, MoveAside):
            done = _only(path, created)
        elif isinstance(step, Patch):
            done = all(_has(path, piece, exactly=False) for piece in step.pieces)
        else:
            done = _is_content(path, step.content) and (
                step.mtime_ns in (None, os.stat(path).st_mtime_ns))
        if not done:
            return False
        if not isinstance(step, MoveAside):
            created.update(up(path))
    return True


def _only(path: str, created: set[str]) -> bool:
    """Return whether ``path`` does not exist, or whether ``created`` contains it and all paths
    below it.
    """
    if not os.path.lexists(path):
        return True
    if path not in created:
        return False
    if not os.path.isdir(path) or os.path.islink(path):
        return True
    try:
        return all(_only(os.path.join(path, name), created) for name in os.listdir(path))
    except OSError as error:
        raise failed(error, path, "list") from None


def _is_content(path: str, content: bytes | FileContent | OverlayPiece) -> bool:
    if isinstance(content, FileContent):
        return (os.path.isfile(content.path) and os.path.isfile(path)
                and same_content(content.path, path))
    piece = OverlayPiece.of(0, content) if isinstance(content, bytes) else content
    return _has(path, piece, exactly=True)


def _has(path: str, piece: OverlayPiece, *, exactly: bool) -> bool:
    """Return whether a file contains the bytes of a piece at the piece's position.

    ``exactly``: whether the file must also end with the piece.
    """
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size < piece.end or (exactly and size != piece.end):
                return False
            step = 1 << 20
            for start in range(0, piece.size, step):
                wanted = bytearray(min(step, piece.size - start))
                piece.read_into(memoryview(wanted), start)
                if os.pread(file.fileno(), len(wanted), piece.at + start) != wanted:
                    return False
    except OSError as error:
        raise failed(error, path, "read") from None
    return True
