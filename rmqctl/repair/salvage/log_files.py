"""Plan the files of a repaired log: their parts, the pieces to write into them, and the steps."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import gcd

from rmqctl.damage.survey.survey import Region
from rmqctl.errors import RefusedError
from rmqctl.files.durable import failed, make_folders, open_file, write_all
from rmqctl.files.sparse import copy_sparse
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import build, decode
from rmqctl.repair.plan import Action, Create, FileContent, MoveAside, Patch, Replace, Step
from rmqctl.repair.salvage.bulk import Bulk
from rmqctl.repair.salvage.filler import Style
from rmqctl.repair.salvage.layout import Filling
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import part_target
from rmqctl.repair.targets import target as relative_target
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.scan.resync import used_windows
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.store import Store

_MAX_PROPERTIES = 32767
_MIN_FILE = 4096
"""Minimum size in bytes of a broker's commitlog file; truncated files may be smaller."""
_COPIED = "copied"
_BLOCK = 1 << 20
FAR = 64
"""Maximum number of missing files between two files of a log. A larger gap means that one of the
two belongs to another log.
"""


def padded(part: LogPart, region: Region, short: int, style: Style) -> OverlayPiece:
    """Return the message before a region that is too small for any record, extended over that
    region.

    Each added byte is an empty property (0x02), which brokers ignore. ``short``: length of the
    region in bytes. Raises: RefusedError if no message precedes the region, or if the properties of
    that message would become too long.
    """
    if region.previous is not None:
        with part.open() as source:
            position = region.previous - part.base
            record = decode(source.read(position, region.start - region.previous))
        room = append_crc.SIZE if style.sealed else 0
        text = record.properties
        text = text[:len(text) - room] + b"\2" * short + text[len(text) - room:]
        if len(text) <= _MAX_PROPERTIES and (not style.sealed or len(record.properties) >= room):
            raw = build(replace(record, total_size=record.total_size + short, properties=text))
            return OverlayPiece.of(position, append_crc.seal(raw) if style.sealed else raw)
    raise RefusedError(f"{part.path}: {short} damaged bytes at physical offset {region.start} are "
                       "too few for a record, and no message before them can be extended over them")


def log_parts(store: Store, size: int | None = None) -> list[LogPart]:
    """Return the files that a complete log would have, without gaps, each of ``size`` bytes.

    The default size is derived from the files. Raises: RefusedError if the names or sizes of the
    files do not fit together.
    """
    log = store.log
    size = size or file_size(store)
    parts: list[LogPart] = []
    for file in log.files:
        if file.size > size and not _is_zero(file, size):
            raise RefusedError(f"{file.path}: has {file.size} bytes, but the other files of this "
                               f"log have at most {size}, and the bytes after these are not zeros. "
                               "It may be a file of another broker, or several files joined: "
                               "`rmqctl carve` extracts its messages")
        base = parts[-1].end if parts else file.base
        if file.base < base or (file.base - base) % size:
            raise RefusedError(f"{file.path}: no file of {size} bytes starts at the offset in its "
                               f"name (the next files start at {base} plus multiples of {size})")
        if (file.base - base) // size > max(FAR, 4 * len(log.files)):
            raise RefusedError(f"{file.path}: {(file.base - base) // size} files would be missing "
                               "before it, so it is probably not part of this log: move it "
                               "elsewhere")
        while base < file.base:
            parts.append(LogPart(base, size, None, witness=file.witness, head=file.head))
            base += size
        parts.append(LogPart(file.base, size, file.path, witness=file.witness, limit=file.limit,
                             head=file.head))
    return parts


def _is_zero(file: StoreFile, position: int) -> bool:
    """Return whether all bytes of a file from ``position`` on are zeros. Raises: StoreIOError."""
    with FileSource(file.path) as source:
        return all(not any(data) for _, data in used_windows(source, position, file.size))


def without_empty_end(parts: Sequence[LogPart]) -> tuple[list[LogPart], list[LogPart]]:
    """Return (the parts of a log except the empty files at its end, these empty files).

    Such files exist if a broker was killed between creating the next file and extending it.
    """
    end = last = len(parts)
    while last and not parts[last - 1].pieces:
        path = parts[last - 1].path
        if path is not None and os.stat(path).st_size:
            break
        last -= 1
        if path is not None:
            end = last
    while end and end < len(parts) and parts[end - 1].path is None and not parts[end - 1].pieces:
        end -= 1  # no gap before a file that is moved aside
    return list(parts[:end]), list(parts[end:])


def file_size(store: Store) -> int:
    """Return the size in bytes of the log's files.

    The result is the size of the longest file, if the offsets in all file names are multiples of
    it. The most frequent size may be that of truncated files, and the distance between two names is
    too large if a file is missing. If all files are truncated, their size is the greatest common
    divisor of the offsets in their names.
    """
    log = store.log
    size, bases = log.file_size, [file.base for file in log.files]
    steps = [base for base in bases if base]
    if store.sizes.commitlog_file is not None or not steps:
        return size
    longest = max(file.size for file in log.files)
    if longest >= _MIN_FILE and all(base % longest == 0 for base in steps):
        return longest
    if size >= _MIN_FILE and longest <= size and all(base % size == 0 for base in steps):
        return size
    common = gcd(*steps)
    return common if longest <= common else size


# -- pieces ----------------------------------------------------------------------------------------


def laid_over(parts: Sequence[LogPart],
              pieces: Mapping[int, Sequence[OverlayPiece]]) -> list[LogPart]:
    """Return the parts with ``pieces`` (by part number) added. The added pieces replace overlapping
    existing pieces.
    """
    return [replace(part, pieces=over(part.pieces, pieces[number])) if number in pieces else part
            for number, part in enumerate(parts)]


def over(below: Sequence[OverlayPiece], above: Sequence[OverlayPiece]) -> tuple[OverlayPiece, ...]:
    """Merge pieces into one ascending list without overlaps; where they overlap, ``above`` wins."""
    pieces, uppers = list(above), sorted(above, key=lambda piece: piece.at)
    reached = [*accumulate((upper.end for upper in uppers), max)]
    for piece in below:
        position = piece.at
        for number in range(bisect_right(reached, position), len(uppers)):
            upper = uppers[number]
            if upper.at >= piece.end:
                break
            if upper.end <= position:
                continue
            if upper.at > position:
                pieces.append(cut(piece, position, upper.at))
            position = max(position, upper.end)
        if position < piece.end:
            pieces.append(cut(piece, position, piece.end))
    return tuple(sorted(pieces, key=lambda piece: piece.at))


def cut(piece: OverlayPiece, start: int, end: int) -> OverlayPiece:
    """Return the part of a piece in ``[start, end)`` (positions in the file)."""
    if start == piece.at and end == piece.end:
        return piece
    parts = []
    for position, data in piece.parts:
        low, high = max(piece.at + position, start), min(piece.at + position + len(data), end)
        if low < high:
            parts.append((low - start, data[low - piece.at - position:high - piece.at - position]))
    return OverlayPiece(start, end - start, tuple(parts))


def lay(fd: int, path: str, pieces: Sequence[OverlayPiece]) -> None:
    """Write pieces into a file. Raises: StoreIOError."""
    for piece in pieces:
        position = 0
        for at, data in piece.parts:
            zero(fd, path, piece.at + position, at - position)
            write_all(fd, data, piece.at + at, path)
            position = at + len(data)
        zero(fd, path, piece.at + position, piece.size - position)


def zero(fd: int, path: str, position: int, length: int) -> None:
    """Zero a range of a file without filling its holes. Raises: StoreIOError."""
    for start in range(position, position + length, _BLOCK):
        count = min(_BLOCK, position + length - start)
        if any(os.pread(fd, count, start)):
            write_all(fd, bytes(count), start, path)


def copy_path(scratch: Scratch, part: LogPart) -> str:
    """Return the scratch path for the complete content of a log file. Raises: StoreIOError."""
    path = scratch.path(_COPIED, f"{part.base:020d}")
    make_folders(os.path.dirname(path), durable=False)
    return path


def _with_pieces(scratch: Scratch, part: LogPart) -> str:
    """Copy a log file to the scratch folder and apply its pieces; return the path of the copy.

    Raises: StoreIOError.
    """
    path = copy_path(scratch, part)
    assert part.path is not None
    try:
        if part.path != path:
            copy_sparse(part.path, path)
        fd = open_file(path, os.O_RDWR)
        try:
            lay(fd, path, part.pieces)
        finally:
            os.close(fd)
    except OSError as error:
        raise failed(error, path, "write") from None
    return path


# -- the steps ------------------------------------------------------------------------------------


_LOST = "lost message"


class Files:
    """Builder of the steps that change the log's files.

    A description of each step is added to ``actions``. ``copied``: complete contents of files, by
    the file's first physical offset.
    """

    def __init__(self, store: Store, scratch: Scratch | None, actions: list[Action],
                 copied: Mapping[int, FileContent]) -> None:
        self._store, self._scratch, self._actions = store, scratch, actions
        self._copied = copied
        nested = {trouble.path for trouble in store.log_troubles if trouble.nested}
        self._renamed = {file.base: file.path for file in store.log.files
                         if os.path.basename(file.path) != file.name or file.path in nested}
        self._own = {file.base for file in store.log.files} - {*self._renamed}
        self._copies = [trouble.path for trouble in store.log_troubles if trouble.exchanged
                        and trouble.path not in self._renamed.values()]

    def filled(self, part: LogPart, region: Region, filling: Filling) -> None:
        """Add the description of a filled region to the actions."""
        self._actions.append(_action(self._target(part), region, filling))

    def by_column(self, parts: Sequence[LogPart], bulks: Mapping[int, Bulk],
                  counts: Mapping[int, int], style: Style) -> dict[int, str]:
        """Write the missing files that are handled by column; return their paths by part number."""
        written = {}
        for start, bulk in bulks.items():
            assert self._scratch is not None
            number = bulk.region.file
            written[number] = bulk.write(self._scratch.root, style, self._time(parts, number))
            size = bulk.region.end - bulk.region.start
            self._actions.append(Action(
                "fill", self._target(parts[number]), None, counts[start],
                "damaged, followed by intact messages", _LOST, start, size,
                {"known_by": {"consumequeue": counts[start]}}))
        return written

    def emptied(self, parts: Sequence[LogPart]) -> Iterator[Step]:
        """Yield steps that move aside empty files at the end of the log."""
        for part in parts:
            if part.path is not None:
                target = self._target(part)
                self._actions.append(Action("move aside", target, 0, None,
                                            "a 4.x broker does not start on it", "byte"))
                yield MoveAside(target)

    def steps(self, parts: Sequence[LogPart], written: Mapping[int, str]) -> list[Step]:
        """Return the steps that turn the files into ``parts``. ``written``: paths of finished
        files, by part number.
        """
        steps = [*self._files(parts, written)]
        # Files under wrong names, except those in whose place another one was put.
        targets = {step.target for step in steps}
        for path in (*self._renamed.values(), *self._copies):
            here = relative_target(self._store, path)
            if here not in targets:
                steps.append(MoveAside(here))
                if path in self._copies:
                    self._actions.append(Action("move aside", here, os.stat(path).st_size, None,
                                                "a second copy of another file", "byte"))
        return steps

    def _files(self, parts: Sequence[LogPart], written: Mapping[int, str]) -> Iterator[Step]:
        for number, part in enumerate(parts):
            target = self._target(part)
            # Files that are already complete in the scratch folder.
            if part.base in self._copied:
                yield self._whole(target, part)
                continue
            if number in written:
                yield self._put(target, FileContent(written[number]),
                                os.stat(written[number]).st_mtime_ns)
                continue
            # A missing file, of which only the pieces are known.
            if part.path is None:
                content = OverlayPiece(0, part.size, tuple(
                    (piece.at + inner, data) for piece in part.pieces
                    for inner, data in piece.parts))
                yield self._put(target, content, self._time(parts, number))
                if not part.pieces:
                    self._actions.append(Action("create", target, None, part.size,
                                               "missing; nothing intact follows", "byte"))
                continue
            if part.base in self._renamed:
                yield self._with_its_name(target, part)
                continue
            # An existing file gets its pieces, and the size of the other files.
            size = os.stat(part.path).st_size
            if size > part.size:
                yield self._shortened(target, part, size)
                continue
            some = list(part.pieces)
            if size < part.size and (not some or some[-1].end < part.size):
                some.append(OverlayPiece(max(size, some[-1].end if some else 0), 0))
                some[-1] = OverlayPiece(some[-1].at, part.size - some[-1].at)
                self._actions.append(Action("extend", target, size, part.size,
                                           "shorter than the other files", "byte"))
            if some:
                yield Patch(target, tuple(some))

    def _with_its_name(self, target: str, part: LogPart) -> Step:
        """Return the step for a file that has another name: a copy with its pieces, and with the
        size of the other files.
        """
        assert self._scratch is not None
        assert part.path is not None
        about = os.stat(part.path)
        self._renaming(target, part.path)
        if about.st_size == part.size and not part.pieces:
            return self._put(target, FileContent(part.path, movable=False), about.st_mtime_ns)
        path = _with_pieces(self._scratch, part)
        if about.st_size < part.size:
            os.truncate(path, part.size)
            self._actions.append(Action("extend", target, about.st_size, part.size,
                                        "shorter than the other files", "byte"))
        return self._put(target, FileContent(path), about.st_mtime_ns)

    def _renaming(self, target: str, path: str) -> None:
        """Add the description of a renamed file to the actions."""
        self._actions.append(Action("rename", target, relative_target(self._store, path), None,
                                    "its messages show where it belongs"))

    def _put(self, target: str, content: FileContent | OverlayPiece,
             time: int | None) -> Create | Replace:
        """Return the step that creates a file, or replaces one that has this name."""
        exists = os.path.lexists(os.path.join(self._store.root, target))
        return (Replace if exists else Create)(target, content, time)

    def _shortened(self, target: str, part: LogPart, size: int) -> Step:
        """Return the step for a file that is longer than the other files."""
        assert self._scratch is not None
        assert part.path is not None
        time = os.stat(part.path).st_mtime_ns
        path = _with_pieces(self._scratch, part)
        try:
            os.truncate(path, part.size)
        except OSError as error:
            raise failed(error, path, "write") from None
        self._actions.append(Action("truncate", target, size, part.size,
                                    "longer than the other files", "byte"))
        return Replace(target, FileContent(path), time)

    def _whole(self, target: str, part: LogPart) -> Step:
        """Return the step for a file whose complete content was copied, with its pieces applied."""
        content = self._copied[part.base]
        if part.base in self._renamed:
            self._renaming(target, self._renamed[part.base])
        time = os.stat(content.path).st_mtime_ns if part.base not in self._own else (
            os.stat(os.path.join(self._store.root, target)).st_mtime_ns)
        if part.pieces:
            assert self._scratch is not None
            content = FileContent(_with_pieces(self._scratch, part))
        return self._put(target, content, time)

    def _time(self, parts: Sequence[LogPart], number: int) -> int | None:
        """Return the modification time (ns) of a neighbouring file for a new file; None if no file
        exists.

        A broker expires files by this time.
        """
        for part in [*reversed(parts[:number]), *parts[number + 1:]]:
            if part.path is not None:  # files written by column get this time, too
                return os.stat(part.path).st_mtime_ns
        return None

    def _target(self, part: LogPart) -> str:
        return part_target(self._store, part)


def _action(target: str, region: Region, filling: Filling) -> Action:
    size = region.end - region.start
    count = len(filling.span.items)
    if filling.span.mode in ("zero", "tail") and not count:
        return Action("zero", target, None, None, "not a record, and no known message; nothing "
                      "proven follows", "", region.start, size)
    return Action("fill", target, None, count, "damaged, followed by intact messages"
                  if filling.span.mode != "tail" else "consume queue entries point here",
                  _LOST, region.start, size,
                  {"known_by": dict(Counter(item.by for item in filling.span.items))})
