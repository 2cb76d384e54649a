"""SHA-256 digests of all files of a store, so that the files can be checked later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.info import Item
from rmqctl.store.log.ranges import Threads

_BLOCK = 1 << 20
MAX_HOLES = 4 << 30
"""Maximum total size in bytes of the holes of a file that are read as zeros.

The holes of a broker's file are never larger. A file without allocated blocks could claim any size.
"""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Digest of a file.

    * ``path``: relative to the store's root (absolute for a file outside it)
    * ``size``: in bytes
    * ``sha256``: None if the file cannot be read
    * ``problem``: the reason why the file cannot be read
    * ``changed``: whether the size of the file has changed since the report began
    """

    path: str
    size: int
    sha256: str | None
    problem: str = ""
    changed: bool = False

    def line(self) -> str:
        """Return a line in the format of `sha256sum`; "" if the file has no digest."""
        if self.sha256 is None:
            return ""
        return sum_line(self.sha256, self.path).decode("utf-8", "backslashreplace")


def sum_line(sha256: str, path: str) -> bytes:
    """Return a `sha256sum` line without its newline. Unusual names are escaped as in
    `sha256sum`.
    """
    name = os.fsencode(path)
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return b"%s%s  %s" % (b"" if escaped == name else b"\\", sha256.encode(), escaped)


def digests(root: str, items: Sequence[Item], jobs: int = 1,
            progress: Callable[[int], None] | None = None) -> list[FileDigest]:
    """Return the digests of files in a store, read in blocks. ``progress`` receives the number of
    bytes read.
    """
    file_digests = []
    for item, digest in Threads(jobs).run(partial(_of_item, root), items):
        file_digests.append(digest)
        if progress is not None:
            progress(item.size)
    return file_digests


def of_all(lines: Iterable[str]) -> str:
    """Return the digest of a whole store: the SHA-256 of all lines, each with its newline."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _of_item(root: str, item: Item) -> FileDigest:
    return file_digest(root, item.path, item.size)


def file_digest(root: str, name: str, size: int, most_holes: int | None = None, *,
                device: bool = False) -> FileDigest:
    """Return the digest of the first ``size`` bytes of a file; with ``device`` it may be a block
    device.
    """
    path, most = os.path.join(root, name), MAX_HOLES if most_holes is None else most_holes
    digest = hashlib.sha256()
    position = data_at = holes = 0
    try:
        with FileSource(path, device=device) as source:
            while block := source.read(position, _BLOCK):
                if position >= data_at:
                    data_at = source.next_data(position)
                    holes += max(data_at - position, 0)
                if holes > most:
                    return FileDigest(name, size, None, (
                        f"{path}: not hashed, because more than {most >> 30} GiB of it are holes"))
                digest.update(block)
                position += len(block)
    except StoreIOError as error:
        return FileDigest(name, size, None, str(error))
    return FileDigest(name, position, digest.hexdigest(), changed=position != size)
