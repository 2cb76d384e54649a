"""What a tree is at a moment, so that a test can say nothing was touched.

sha256, size, modification time and mode of every file, target of every link, kind of everything
else; inodes too, unless they are not to be compared. Access times are left out: reading sets them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in the tree. ``content`` is a sha256, a link's target, or "" otherwise."""

    kind: str
    mode: int
    mtime_ns: int
    size: int
    content: str
    inode: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Every entry of a tree by its relative path; "." is the root."""

    entries: dict[str, Entry]

    def differences(self, other: Snapshot) -> list[str]:
        """One line for each entry that is not the same in ``other`` (the later one)."""
        lines = [f"gone: {path}" for path in self.entries.keys() - other.entries.keys()]
        lines += [f"new: {path}" for path in other.entries.keys() - self.entries.keys()]
        for path, mine in self.entries.items():
            theirs = other.entries.get(path)
            if theirs is None or mine == theirs:
                continue
            changed = [name for name, value in asdict(mine).items()
                       if getattr(theirs, name) != value]
            lines.append(f"changed: {path} ({', '.join(changed)})")
        return sorted(lines)

    def to_json(self) -> dict[str, Any]:
        return {path: asdict(entry) for path, entry in self.entries.items()}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Snapshot:
        return cls({path: Entry(**entry) for path, entry in raw.items()})


def take(root: Path, *, inodes: bool = True) -> Snapshot:
    """The state of ``root`` and everything below; links are not followed, FIFOs not opened."""
    return Snapshot({os.path.relpath(path, root): _entry(path, inodes)
                     for path in (root, *_below(root))})


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)


def _entry(path: Path, inodes: bool) -> Entry:
    about = path.lstat()
    kind = stat.filemode(about.st_mode)[0]
    size = about.st_size
    if stat.S_ISREG(about.st_mode):
        content = _sha256(path)
    elif stat.S_ISLNK(about.st_mode):
        content = str(path.readlink())
    else:
        content, size = "", 0
    return Entry(kind, stat.S_IMODE(about.st_mode), about.st_mtime_ns, size, content,
                 about.st_ino if inodes else 0)


def _sha256(path: Path) -> str:
    """A hash of a file's bytes: of its chunks that are not zero, and where they lie.

    So holes need not be read. A file nobody may read is known by its size and time alone.
    """
    try:
        with path.open("rb", buffering=0) as file:
            digest = hashlib.sha256()
            for position, piece in chunks(file.fileno()):
                digest.update(b"%d:%d:" % (position, len(piece)))
                digest.update(piece)
            return digest.hexdigest()
    except PermissionError:
        return "unreadable"


def chunks(fd: int) -> Iterator[tuple[int, bytes]]:
    """(position, bytes) of every chunk of a file that is not all zeros; holes are passed over."""
    position = 0
    while True:
        try:
            position = os.lseek(fd, position, os.SEEK_DATA) // CHUNK * CHUNK
        except OSError:  # ENXIO: only a hole is left
            return
        piece = os.pread(fd, CHUNK, position)
        if not piece:
            return
        if piece.count(0) != len(piece):
            yield position, piece
        position += CHUNK


@contextmanager
def assert_unchanged(*roots: Path) -> Iterator[None]:
    """Fail if anything in the trees is different afterwards."""
    before = [take(root) for root in roots]
    yield
    lines = [f"{root}: {line}" for root, state in zip(roots, before, strict=True)
             for line in state.differences(take(root))]
    assert not lines, "\n".join(["the input was changed:", *lines])


def copy_sparse(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy a stream, leaving holes where it is zero."""
    size = 0
    while piece := source.read(CHUNK):
        if piece.count(0) == len(piece):
            target.seek(len(piece), os.SEEK_CUR)
        else:
            target.write(piece)
        size += len(piece)
    target.truncate(size)


def _copy_file(source: str, target: str) -> str:
    with open(source, "rb", buffering=0) as read, open(target, "wb", buffering=0) as write:
        os.truncate(write.fileno(), os.fstat(read.fileno()).st_size)
        for position, piece in chunks(read.fileno()):
            os.pwrite(write.fileno(), piece, position)
    shutil.copystat(source, target)
    return target


def copy_tree(source: Path, target: Path) -> Path:
    """A copy with modes and times, holes kept as holes; links stay links."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)
    return target
