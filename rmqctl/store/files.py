"""The files of a store directory: names, sizes and oddities.

An unreadable entry never ends a listing: it is added as a `Trouble`.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import pairwise
from operator import attrgetter

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats import dledger, layout
from rmqctl.formats.local import names
from rmqctl.formats.local.message import START_SIZE, Message, Record, decode, total_size_at
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource, Witness

NODE, DATA, INDEX = "dledger-", "data", "index"
"""The names of DLedger's folders: ``dledger-<selfId>/data`` and ``dledger-<selfId>/index`` below
the root."""
_MAX_ASKED = 8
"""Maximum number of log files whose first bytes are read to determine whether the log has DLedger
entries.
"""
_ASKED_RECORDS = 4
"""Maximum number of records that are read to determine which log file a file is."""
_MAX_FIRST = 8 << 20
_CLOCK_SLACK = 3_600_000
"""Milliseconds by which the store times of a log may be out of order."""
_SAMPLES, _SAMPLE = 64, 64 << 10
"""Number, and size in bytes, of the samples that show whether any record of a log file is at the
place that the file's name gives it.
"""
_MAX_NESTED = 256
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd",
           b"\x04\x22\x4d\x18": "lz4", b"PK\3\4": "zip"}
_OFFSET = layout.reader(Message, "physical_offset")
_LEAST_SIZE = 4096
"""Minimum size in bytes of a log file that shows the size of the others; truncated files may be
smaller.
"""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of a structure.

    ``base``: the offset (or time) in its name; -1 if the name contains none.
    ``limit``: size of the file in the snapshot (`rmqctl.store.live`), after which bytes read as
    zeros. None: all bytes count.
    """

    path: str
    name: str
    base: int
    size: int
    limit: int | None = None
    witness: Witness | None = field(default=None, compare=False, repr=False)
    """Additional evidence of the positions of a log file's records."""
    head: int = 0
    """For a file of the log: number of bytes before each record. In a DLedger log, these bytes are
    the entry header.
    """
    surplus: int = 0
    """For a file of the log: number of bytes after ``size``, where the next file begins."""

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def length(self) -> int:
        """Return the length of the file on the disk in bytes."""
        return self.size + self.surplus

    def open(self) -> FileSource:
        """Open the file for reading, up to its limit.

        Raises: StoreIOError.
        """
        return FileSource(self.path, self.base, self.limit, self.witness, self.head,
                          most=self.size if self.surplus else None)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A directory entry that is unreadable, misnamed, or should not be there."""

    path: str
    reason: str
    unreadable: bool = False
    misnamed: bool = False
    stray: bool = False
    """A file among those of the log that is not one of them, although its name could be."""
    nested: bool = False
    """A file in a folder inside the log's folder, which no broker reads."""
    exchanged: bool = False
    """A file of the log that has the name of another one."""
    packed: str = ""
    """The format of a compressed file (``gzip``) with a wrong name; else empty."""


@dataclass(slots=True)
class Listing:
    """The files of one folder sorted by name, and its other entries."""

    files: list[StoreFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)


def listing(folder: str, digits: int = names.OFFSET_DIGITS, most: int | None = None) -> Listing:
    """Return up to ``most`` files of ``folder`` whose names have ``digits`` decimal digits.

    For a missing folder the listing is empty; an unreadable folder is a `Trouble`.
    """
    try:
        return listing_of(vfs.scandir(folder), digits, most)
    except FileNotFoundError:
        return Listing()
    except OSError as error:
        return Listing(troubles=[Trouble(folder, str(StoreIOError.from_oserror(error, "")), True)])


def listing_of(entries: Iterable[os.DirEntry[str]], digits: int = names.OFFSET_DIGITS,
               most: int | None = None) -> Listing:
    """Return a listing of the given entries of a folder.

    Raises: OSError if the folder cannot be listed.
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
            contents.troubles.append(Trouble(entry.path, f"the name does not have {digits} digits",
                                             misnamed=True))
        else:
            contents.files.append(StoreFile(entry.path, entry.name, int(entry.name), info.st_size))
    return contents


def log_listing(folder: str, *, first_only: bool = False) -> Listing:
    """Return the files of one log folder, each with its ``head``.

    ``first_only``: return only the first files, which are enough to determine ``head``.
    """
    contents = listing(folder, most=_MAX_ASKED if first_only else None)
    head = _head_in(folder, contents.files)
    if head:
        contents.files = [replace(file, head=head) for file in contents.files]
    return contents


def log_listings(folders: Iterable[str], *, root: str | None = None, by_name: bool = False,
                 checked: set[str] | None = None) -> list[Listing]:
    """Return the listings of all folders of a log: its files, whatever their names say.

    If most files have the usual size and a name that is a multiple of it, then

    * a file with another name, inside one of them, is not a file of the log, but a `Trouble`
    * a longer file ends where the next one begins; the rest is its ``surplus``
    * a missing file whose records are in a file with another name, in a folder inside the log's
      folder, or in ``root``, is this file; it is also a `Trouble`
    * a file that has the name of another one is the file that its records show; it is also a
      `Trouble`. A second copy of a file under such a name is not a file of the log

    ``by_name``: the names of files are right, as for a broker.
    ``checked``: the paths of files whose names are known to be right; others are added to it.
    Files at a URL are not read for this check.
    """
    folders = list(folders)
    listings = [log_listing(folder) for folder in folders]
    for contents in listings:
        contents.troubles = [*map(_with_packing, contents.troubles)]
    files = sorted((file for contents in listings for file in contents.files),
                   key=lambda file: (file.name, file.path))
    owners: dict[str, Listing] = {}
    renamed: list[Trouble] = []
    for folder, contents in zip([] if by_name else folders, listings, strict=not by_name):
        some = [*(trouble for trouble in contents.troubles if trouble.misnamed),
                *_nested(folder, contents)]
        if root is not None and folder == os.path.join(root, "commitlog") and contents.files:
            some += [Trouble(file.path, "a log file beside the log's folder", nested=True)
                     for file in listing(root, most=_MAX_NESTED).files]
        renamed += some
        owners |= dict.fromkeys((trouble.path for trouble in some), contents)
        owners |= dict.fromkeys((file.path for file in contents.files), contents)
    checked = set() if checked is None else checked
    exchanged = [] if by_name else [file for file in files if file.path not in checked
                                    and not vfs.is_mounted(file.path) and _has_other_name(file)]
    checked.update({file.path for file in files} - {file.path for file in exchanged})
    if not (renamed or exchanged) and all(a.end <= b.base for a, b in pairwise(files)):
        return listings
    # The usual size: that of most files, and the one which most names are multiples of.
    voters = [file for file in files if file.size >= _LEAST_SIZE]
    sizes = Counter(file.size for file in voters)
    size = max(sizes, key=lambda size: (sizes[size], sum(
        not file.base % size for file in voters), size), default=0)
    usual = {file.base: file for file in files if size and not file.base % size}
    if 2 * min(sizes[size], len(usual)) > len(voters):
        for contents in listings:
            _drop_overlaps(contents, usual, size)
    elif len(usual) < len(files):
        return listings
    exchanged = [file for file in exchanged if usual.get(file.base) is file]
    for trouble, base, length in _belonging(renamed, exchanged, usual, size):
        name = names.build_offset(base)
        about = replace(trouble, misnamed=False, reason=f"{trouble.reason}; its messages are "
                        f"those of {name}")
        contents = owners[trouble.path]
        contents.troubles = [*(other for other in contents.troubles if other != trouble), about]
        contents.files = [file for file in contents.files if file.path != trouble.path]
        if length:
            contents.files = sorted([*contents.files, StoreFile(trouble.path, name, base, length)],
                                    key=attrgetter("name"))
    return listings


def _drop_overlaps(contents: Listing, usual: Mapping[int, StoreFile], size: int) -> None:
    """Remove from a listing what overlaps the files of a log that have the ``usual`` names."""
    own = []
    for file in contents.files:
        around = usual.get(file.base - file.base % size)
        if file.base in usual:
            longer = file.size > size and file.base + size in usual
            own.append(replace(file, size=size, surplus=file.size - size) if longer else file)
        elif around is None or around.end <= file.base:
            own.append(file)
        else:
            contents.troubles.append(Trouble(
                file.path, f"a name inside {around.name}: no file of this log starts there",
                stray=True))
    contents.files = own


def _with_packing(trouble: Trouble) -> Trouble:
    """Return a trouble, with the format of the file if it is compressed."""
    if not trouble.misnamed:
        return trouble
    try:
        with FileSource(trouble.path) as source:
            head = source.read(0, max(map(len, _PACKED)))
    except StoreIOError:
        return trouble
    packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), "")
    return replace(trouble, packed=packed, reason=f"{trouble.reason}; compressed with {packed}"
                   ) if packed else trouble


def _nested(folder: str, contents: Listing) -> Iterator[Trouble]:
    """Yield the files in the folders inside a folder of the log, up to `_MAX_NESTED` of each."""
    for name in contents.folders[:_MAX_ASKED]:
        inner = os.path.join(folder, name)
        for file in listing(inner, most=_MAX_NESTED).files:
            yield Trouble(file.path, "a file in a folder inside the log's folder", nested=True)


def _belonging(renamed: list[Trouble], exchanged: list[StoreFile],
               usual: dict[int, StoreFile], size: int) -> Iterator[tuple[Trouble, int, int]]:
    """Yield (file with a wrong name, physical offset that it has, length) for the files of a log.
    The length is 0 for a second copy of a file.

    ``exchanged``: the files that have the name of another one. ``usual``: the files of ``size``
    bytes, by their physical offset. A file that belongs to no free place keeps its name.
    """
    own = dict(usual)
    while True:
        for file in exchanged:
            own.pop(file.base, None)
        some = [Trouble(file.path, "the name of another file of the log", exchanged=True)
                for file in exchanged]
        placed = [*_renamed([*renamed, *some], own, size, {file.base for file in exchanged})]
        paths = {trouble.path for trouble, _ in placed}
        # Of the others, only those whose messages are in their right place as well are no loss.
        copies = {file.path: base for file in exchanged if file.path not in paths
                  and (base := _recorded_base(file.path)[0]) in own
                  and _recorded_base(own[base].path)[0] == base}
        kept = [file for file in exchanged if file.path not in paths and file.path not in copies]
        if not kept:
            break
        exchanged = [file for file in exchanged if file not in kept]
        own.update((file.base, file) for file in kept)
    yield from ((trouble, file.base, file.size) for trouble, file in placed)
    yield from ((trouble, copies[trouble.path], 0) for trouble in some if trouble.path in copies)


def _renamed(troubles: list[Trouble], usual: Mapping[int, StoreFile], size: int,
             left: set[int]) -> Iterator[tuple[Trouble, StoreFile]]:
    """Yield (file with a wrong name, file of the log) for each missing file of a log whose records
    are in a file with another name.

    ``usual``: the files of ``size`` bytes, by their physical offset. The missing file must be next
    to one of them, or between two, and not of another broker. If several files have its records,
    none is chosen. ``left``: the names of files whose records show other ones; what shows such a
    name was exchanged with them.
    """
    files: dict[int, list[tuple[Trouble, StoreFile]]] = {}
    for trouble in troubles:
        base, length = _recorded_base(trouble.path)
        step = size or length
        if base is None or not 0 < length <= step or base % step or base in usual:
            continue
        file = StoreFile(trouble.path, names.build_offset(base), base, length)
        files.setdefault(base, []).append((trouble, file))
    present = {*usual, *files}
    for base in sorted(files):
        beside = len(present) == 1 or base - size in present or base + size in present or (
            bool(usual) and min(usual) < base < max(usual))
        if len(files[base]) == 1 and beside and (
                base in left or _is_of_this_log(files[base][0][1], usual)):
            yield files[base][0]


def _is_of_this_log(file: StoreFile, usual: Mapping[int, StoreFile]) -> bool:
    """Return whether a file fits between the ``usual`` files before and after it: by store time or,
    at the end of a log, by the broker's address. Many brokers have files of the same names.
    """
    around = (max((base for base in usual if base < file.base), default=None),
              min((base for base in usual if base > file.base), default=None))
    own = _first_record(file.path)
    before, after = (None if base is None else _first_record(usual[base].path) for base in around)
    if own is None or (before is None and after is None):
        return own is not None
    if before is not None and after is not None:
        return (before.store_timestamp - _CLOCK_SLACK <= own.store_timestamp
                <= after.store_timestamp + _CLOCK_SLACK)
    return own.store_host in {record.store_host for record in (before, after)
                              if record is not None}


def _has_other_name(file: StoreFile) -> bool:
    """Return whether a file of a log begins with messages of another physical offset than the one
    in its name, and no message of that offset was found in it.

    A file in which only some pages were exchanged keeps its name.
    """
    if file.head:
        return False
    try:
        with file.open() as source:
            head = source.read(0, START_SIZE)
            if len(head) < START_SIZE or not any(head) or _OFFSET.unpack_from(head)[0] == file.base:
                return False
            if _recorded_base(file.path)[0] in (None, file.base):
                return False
            from rmqctl.scan.resync import is_blank, next_provable  # hardly ever

            for start in range(0, file.size, max(file.size // _SAMPLES, _SAMPLE)):
                candidate: int | None
                candidate, end = start - 1, min(start + _SAMPLE, file.size)
                while (candidate := next_provable(source, candidate + 1, end)) is not None:
                    if not is_blank(source, candidate):
                        return False
            return True
    except StoreIOError:
        return False


def _recorded_base(path: str) -> tuple[int | None, int]:
    """Return (physical offset of a log file by its first records, its length).

    The offset is None unless the file begins with intact messages, one after another.
    """
    try:
        with FileSource(path) as source:
            position, base = 0, None
            for _ in range(_ASKED_RECORDS):
                record = _record_at(source, position)
                if record is None:
                    break
                if not record.crc_ok or (base is not None
                                         and record.physical_offset != base + position):
                    return None, source.size
                base = record.physical_offset - position
                position += record.total_size
            return base, source.size
    except (FormatError, StoreIOError):
        return None, 0


def _first_record(path: str) -> Record | None:
    """Return the first record of a log file; None if it is not intact."""
    try:
        with FileSource(path) as source:
            record = _record_at(source, 0)
    except (FormatError, StoreIOError):
        return None
    return record if record is not None and record.crc_ok else None


def _record_at(source: FileSource, position: int) -> Record | None:
    """Return the record at a position; None if no record of a possible size begins there.

    Raises: FormatError, StoreIOError.
    """
    head = source.read(position, START_SIZE)
    total = total_size_at(head) if len(head) == START_SIZE else 0
    if not START_SIZE <= total <= min(_MAX_FIRST, source.size - position):
        return None
    return decode(source.read(position, total))


def node_of(folder: str) -> str | None:
    """Return the folder of the DLedger node whose data is in ``folder``; None if ``folder`` is not
    named like a node's data folder.

    The node's folder also contains the index and the checkpoint.
    """
    above, name = os.path.split(vfs.normpath(folder))
    return above if name == DATA and os.path.basename(above).startswith(NODE) else None


def _head_in(folder: str, files: list[StoreFile]) -> int:
    """Return `dledger.HEAD_SIZE` if the files contain DLedger entries, else 0 (spec: dledger.md
    §6).

    The folder's name decides. If it does not, the first file with a recognizable start decides.
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
    """Return the file size of a structure, determined from its files; None if it has no files.

    The size is the difference between adjacent file names, which is right even if a file has the
    wrong length. If the names do not determine the size, the most frequent length is used.
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
    """Return the most frequent file size of the queues; queues with several files take precedence,
    because their file names prove the size.
    """
    sure: Counter[int] = Counter()
    likely: Counter[int] = Counter()
    for files in queues:
        size = common_size(files)
        if size and size % unit == 0:
            (sure if len(files) > 1 else likely)[size] += 1
    best = (sure or likely).most_common(1)
    return best[0][0] if best else None
