"""An evidence folder: files with known names, a marker file while it is unfinished, and checksums.

Files are written in place. The marker file `UNFINISHED` is deleted last; after a killed run the
folder still contains it. The file `SUMS` lists the checksums of all other files; `sha256sum -c`
reads this list.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from typing import Any

from rmqctl.checks.digests import sum_line
from rmqctl.errors import NotAStoreError, StoreIOError
from rmqctl.files.durable import new_whole_file, sync, sync_folder
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import open_regular

SUMS = "SHA256SUMS"
UNFINISHED = "UNFINISHED.txt"
README = "README.txt"
_UNFINISHED_TEXT = b"""This evidence folder is unfinished.

rmqctl case was interrupted, or is still running. What is here may be incomplete, and no sums prove
it. Delete the folder and run the command again.
"""
_BLOCK = 1 << 20
_MAX_SUMS = 64 << 20
_FOLDER_MODE = 0o700


class _NamedFile(io.FileIO):
    """A file whose write errors (StoreIOError) contain its name."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise StoreIOError.from_oserror(error, str(self.name), "write") from None


class Folder:
    """A new evidence folder. ``path`` does not exist yet, or is an empty folder. Raises:
    StoreIOError.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.makedirs(path, _FOLDER_MODE, exist_ok=True)
            new_whole_file(self.at(UNFINISHED), _UNFINISHED_TEXT)
            sync_folder(os.path.dirname(os.path.abspath(path)))
        except OSError as error:
            raise StoreIOError.from_oserror(error, path, "make") from None

    def at(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return os.path.join(self.path, name)

    def new(self, name: str) -> io.BufferedWriter:
        """Create a file, and its folder if it does not exist; return the file, open for writing.
        Raises: StoreIOError.
        """
        path = self.at(name)
        try:
            os.makedirs(os.path.dirname(path), _FOLDER_MODE, exist_ok=True)
            return io.BufferedWriter(_NamedFile(path, "xb"))
        except OSError as error:
            raise StoreIOError.from_oserror(error, path, "make") from None

    def write(self, name: str, data: bytes) -> None:
        """Create a file with these bytes. Raises: StoreIOError."""
        with self.new(name) as file:
            file.write(data)

    def finish(self) -> str:
        """Fsync all files, write the file of checksums and delete the marker file. Return the
        SHA-256 of the file of checksums.
        """
        lines = []
        folders = [self.path]
        for name in names(self.path):
            if name in (UNFINISHED, SUMS):
                continue
            digest, fd = hashlib.sha256(), open_regular(self.at(name))
            try:
                _hash(fd, digest, self.at(name))
                sync(fd, self.at(name), whole=True)
            finally:
                os.close(fd)
            folders.append(os.path.dirname(self.at(name)))
            lines.append(sum_line(digest.hexdigest(), name) + b"\n")
        data = b"".join(lines)
        new_whole_file(self.at(SUMS), data)
        for folder in dict.fromkeys(folders):
            sync_folder(folder)
        try:
            os.unlink(self.at(UNFINISHED))
        except OSError as error:
            raise StoreIOError.from_oserror(error, self.at(UNFINISHED), "delete") from None
        sync_folder(self.path)
        return hashlib.sha256(data).hexdigest()


def _hash(fd: int, digest: Any, path: str) -> None:
    try:
        position = 0
        while block := os.pread(fd, _BLOCK, position):
            digest.update(block)
            position += len(block)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None


def names(root: str) -> Iterator[str]:
    """Yield the relative path of each file below a folder, sorted within each folder."""
    def failed(error: OSError) -> None:
        raise StoreIOError.from_oserror(error, os.fsdecode(error.filename or root), "list")

    for below, folders, files in os.walk(root, onerror=failed):
        links = [name for name in folders if os.path.islink(os.path.join(below, name))]
        folders[:] = sorted(set(folders) - set(links))
        for name in sorted([*files, *links]):
            yield os.path.relpath(os.path.join(below, name), root)


# -- checking -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Check:
    """Result of checking an evidence folder against its checksums."""

    folder: str
    finished: bool
    files: int = 0
    sums: str | None = None
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.finished and not (self.changed or self.missing or self.extra)

    def as_dict(self) -> dict[str, Any]:
        return {"case": self.folder, "unchanged": self.ok, "finished": self.finished,
                "files": self.files, "sha256_of_sums": self.sums, "changed": self.changed,
                "missing": self.missing, "extra": self.extra}


def check(path: str) -> Check:
    """Compare every file of an evidence folder with its checksum.
    Raises: NotAStoreError, StoreIOError.
    """
    is_marked = os.path.lexists(os.path.join(path, UNFINISHED))
    try:
        fd = open_regular(os.path.join(path, SUMS))
    except StoreIOError:
        if not is_marked:
            raise NotAStoreError(f"{path}: not an evidence folder: {SUMS} is missing") from None
        return Check(path, finished=False)
    with open(fd, "rb") as file:
        data = file.read(_MAX_SUMS + 1)
    result = Check(path, finished=not is_marked, sums=hashlib.sha256(data).hexdigest())
    if len(data) > _MAX_SUMS:
        raise StoreIOError(f"{os.path.join(path, SUMS)}: too large for an evidence folder")
    wanted = dict(filter(None, map(_parsed, data.split(b"\n"))))
    present = set(names(path)) - {SUMS, UNFINISHED}
    result.extra = sorted(present - set(wanted))
    for name, sum_wanted in wanted.items():
        result.files += 1
        if name not in present:
            result.missing.append(name)
            continue
        digest, place = hashlib.sha256(), os.path.join(path, name)
        with suppress(StoreIOError):
            opened = open_regular(place)
            try:
                _hash(opened, digest, name)
            finally:
                os.close(opened)
        if digest.hexdigest() != sum_wanted or os.path.islink(place):
            result.changed.append(name)
    return result


def _parsed(line: bytes) -> tuple[str, str] | None:
    """Return (name, checksum) from a line of the checksum file; None for an empty line.

    For an invalid line, the name describes the line, and the checksum is empty. As a result, the
    line is reported as missing.
    """
    is_escaped, line = line.startswith(b"\\"), line.removeprefix(b"\\")
    digest, gap, name = line.partition(b"  ")
    if not gap or len(digest) != 64:
        return None if not line else (f"{SUMS}: {os.fsdecode(line[:80])}", "")
    if is_escaped:
        for escape, plain in ((b"\\\\", b"\0"), (b"\\n", b"\n"), (b"\\r", b"\r"), (b"\0", b"\\")):
            name = name.replace(escape, plain)
    return os.fsdecode(name), digest.decode("ascii", "replace")


def json_line(value: Any) -> bytes:
    """Return a value as one line of JSON in ASCII; bytes that are not text become escapes."""
    return json.dumps(value, ensure_ascii=True).encode() + b"\n"
