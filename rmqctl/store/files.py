"""The files of a store directory: names, sizes and oddities.

Listing never fails as a whole: unreadable entries become a `Trouble` and the rest continues.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.formats import dledger
from rmqctl.formats.local import names
from rmqctl.scan.source import FileSource, Witness

NODE, DATA, INDEX = "dledger-", "data", "index"
"""The folders of DLedger's files: ``dledger-<selfId>/data`` and ``/index`` below the root."""
_MAX_ASKED = 8
"""Maximum number of log files whose first bytes are read to determine whether the log has DLedger
entries.
"""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a structure. ``base`` is the offset (or time) in its name; -1 without one.

    ``limit``: bytes after it were written after the snapshot and read as zeros
    (`rmqctl.store.live`); None: the entire file counts.
    """

    path: str
    name: str
    base: int
    size: int
    limit: int | None = None
    witness: Witness | None = field(default=None, compare=False, repr=False)
    """For a file of the log: further evidence of the positions of its records."""
    head: int = 0
    """For a file of the log: bytes before each record, that is, the header of a DLedger entry."""

    @property
    def end(self) -> int:
        return self.base + self.size

    def open(self) -> FileSource:
        """Return the file for reading, up to its limit; positions count from ``base``.

        Raises: StoreIOError.
        """
        return FileSource(self.path, self.base, self.limit, self.witness, self.head)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A part of the directory that cannot be read, does not belong there, or is misnamed."""

    path: str
    reason: str
    unreadable: bool = False
    misnamed: bool = False


@dataclass(slots=True)
class Listing:
    """The files of one folder sorted by name, and its other entries."""

    files: list[StoreFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)


def listing(folder: str, digits: int = names.OFFSET_DIGITS, most: int | None = None) -> Listing:
    """Return up to ``most`` files of ``folder`` whose names have ``digits`` decimal digits.

    A folder that does not exist is an empty listing; an unreadable folder is a trouble.
    """
    try:
        return listing_of(vfs.scandir(folder), digits, most)
    except FileNotFoundError:
        return Listing()
    except OSError as error:
        return Listing(troubles=[Trouble(folder, str(StoreIOError.from_oserror(error, "")), True)])


def listing_of(entries: Iterable[os.DirEntry[str]], digits: int = names.OFFSET_DIGITS,
               most: int | None = None) -> Listing:
    """Return the listing for the entries of a folder.

    Raises: OSError if it cannot be listed.
    """
    contents = Listing()
    for entry in sorted(entries, key=lambda entry: entry.name):
        if len(contents.files) == most:
            break
        try:
            if entry.is_dir():  # the directory entry already has the type
                contents.folders.append(entry.name)
                continue
            info = entry.stat()
        except OSError as error:
            reason = str(StoreIOError.from_oserror(error, ""))
            contents.troubles.append(Trouble(entry.path, reason, True))
            continue
        if not stat.S_ISREG(info.st_mode):
            contents.troubles.append(Trouble(entry.path, "not a regular file"))
        elif not _is_name(entry.name, digits):
            contents.troubles.append(Trouble(entry.path, f"the name does not have {digits} digits"))
        else:
            contents.files.append(StoreFile(entry.path, entry.name, int(entry.name), info.st_size))
    return contents


def log_listing(folder: str, *, first_only: bool = False) -> Listing:
    """Return the files of a folder of the log, each with the ``head`` of its records; with
    ``first_only``, only the first files, which are enough to determine ``head``.
    """
    contents = listing(folder, most=_MAX_ASKED if first_only else None)
    head = _head_in(folder, contents.files)
    if head:
        contents.files = [replace(file, head=head) for file in contents.files]
    return contents


def node_of(folder: str) -> str | None:
    """Return the folder of the DLedger node that has its data in ``folder``, if the name identifies
    one. The node's folder also contains the index and the checkpoint.
    """
    above, name = os.path.split(vfs.normpath(folder))
    return above if name == DATA and os.path.basename(above).startswith(NODE) else None


def _head_in(folder: str, files: list[StoreFile]) -> int:
    """Return `dledger.HEAD_SIZE` if the files contain DLedger entries, by the folder's name or by
    the first file that shows it; else 0 (spec: dledger.md §6).
    """
    if node_of(folder) is not None:
        return dledger.HEAD_SIZE
    for file in files[:_MAX_ASKED]:
        try:
            with file.open() as source:
                raw = source.read(0, dledger.HEAD_SIZE + dledger.END.size)
        except StoreIOError:
            continue
        if dledger.detect(raw) == dledger.PLAIN:
            return 0
        if dledger.head_at(raw, file.base) is not None and dledger.detect(
                raw, dledger.HEAD_SIZE) == dledger.PLAIN:
            return dledger.HEAD_SIZE
    return 0


def _is_name(name: str, digits: int) -> bool:
    return (names.parse_offset(name) is not None if digits == names.OFFSET_DIGITS
            else names.is_index_name(name))


def common_size(files: list[StoreFile]) -> int | None:
    """Return the file size of a structure, determined from its files; None without files.

    The difference of adjacent names has priority (it is right even if a file has the wrong length),
    then the most frequent length.
    """
    if len(files) < 2:
        return files[0].size or None if files else None
    steps = Counter(b.base - a.base for a, b in pairwise(files))
    if steps:
        # A missing file makes a step a multiple of the real one, never smaller.
        smallest = min(steps)
        if smallest > 0 and all(step % smallest == 0 for step in steps):
            sizes = Counter(file.size for file in files)
            best = sizes.most_common(1)[0][0]
            return best if best > 0 and all(s % best == 0 for s in steps) else smallest
    sizes = Counter(file.size for file in files if file.size)
    return sizes.most_common(1)[0][0] if sizes else None


def queue_size(queues: Iterable[list[StoreFile]], unit: int) -> int | None:
    """Return the file size of most queues. Queues of several files prove it and have priority."""
    sure: Counter[int] = Counter()
    likely: Counter[int] = Counter()
    for files in queues:
        size = common_size(files)
        if size and size % unit == 0:
            (sure if len(files) > 1 else likely)[size] += 1
    best = (sure or likely).most_common(1)
    return best[0][0] if best else None
