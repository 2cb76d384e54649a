"""Build index files from a stream of keys as a broker does, without a loop over keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_SLOT

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
MS = 1000


@dataclass(frozen=True)
class IndexEntries:
    """Keys in the order in which they are added, as columns: non-negative hash, physical offset of
    the record, time (ms).
    """

    key_hash: I32
    phy: I64
    store_timestamp: I64

    def __len__(self) -> int:
        return len(self.key_hash)

    def __getitem__(self, part: slice) -> IndexEntries:
        return IndexEntries(self.key_hash[part], self.phy[part], self.store_timestamp[part])

    @staticmethod
    def concatenate(parts: Iterable[IndexEntries]) -> IndexEntries:
        parts = list(parts)
        return IndexEntries(
            np.concatenate([part.key_hash for part in parts]),
            np.concatenate([part.phy for part in parts]),
            np.concatenate([part.store_timestamp for part in parts]),
        )


@dataclass(frozen=True)
class IndexFile:
    """The content of an index file as arrays: header, slots, and the entries from number 1."""

    header: NDArray[np.void]
    slots: NDArray[np.signedinteger]
    entries: NDArray[np.void]

    @property
    def entries_start(self) -> int:
        """Byte position of entry number 1; the space of entry 0 is unused."""
        return self.header.nbytes + self.slots.nbytes + self.entries.itemsize

    def size(self, maximum: int) -> int:
        """Return the size in bytes of a file with space for `maximum` entries."""
        return self.header.nbytes + self.slots.nbytes + maximum * self.entries.itemsize


def index_files(entries: IndexEntries, slots: int, maximum: int) -> Iterator[IndexFile]:
    """Yield the files with these keys, at most maximum - 1 per file.

    A file is created for a key that does not fit into the previous one, so no file is empty.
    """
    begin_timestamp = 0  # the value in the engine's header at the first key
    for first in range(0, len(entries), maximum - 1):
        part = entries[first : first + maximum - 1]
        yield make_file(part, slots, begin_timestamp)
        begin_timestamp = int(part.store_timestamp[-1])


def make_file(entries: IndexEntries, slots: int, begin_before: int) -> IndexFile:
    """Return an index file. The time of its first entry is relative to ``begin_before`` (ms), the
    end of the previous file (0 without a previous file); later entries are relative to the begin
    time of this file.
    """
    count = len(entries)
    number = np.arange(1, count + 1, dtype=np.int64)
    slot = entries.key_hash.astype(np.int64) % slots
    bits = count.bit_length()
    ranked = np.sort(slot << bits | number)  # by slot, then by entry number
    ranked_slot, ranked_number = ranked >> bits, ranked & ((1 << bits) - 1)
    same = ranked_slot[1:] == ranked_slot[:-1]
    previous = np.zeros(count, dtype=np.int64)
    previous[ranked_number[1:][same] - 1] = ranked_number[:-1][same]
    newest = np.append(~same, True)

    table = np.zeros(slots, dtype=INDEX_SLOT)
    table[ranked_slot[newest]] = ranked_number[newest]
    body = np.empty(count, dtype=INDEX_ENTRY)
    begin = int(entries.store_timestamp[0])
    seconds = (entries.store_timestamp - begin) // MS
    if begin_before > 0:
        seconds[0] = (begin - begin_before) // MS
    body["key_hash"] = entries.key_hash
    body["phy"] = entries.phy
    body["seconds"] = np.clip(seconds, 0, np.iinfo(np.int32).max)
    body["previous"] = previous
    header = np.array(
        (
            begin,
            entries.store_timestamp[-1],
            entries.phy[0],
            entries.phy[-1],
            newest.sum(),
            count + 1,
        ),
        dtype=INDEX_HEADER,
    )
    return IndexFile(header, table, body)


def write_index(entries: IndexEntries, slots: int, maximum: int, directory: Path) -> int:
    """Write the index files; return the end time (ms) of the newest full file, or 0."""
    directory.mkdir(parents=True)
    full_until = created = 0
    for file in index_files(entries, slots, maximum):
        created = max(created + 1, int(file.header["begin_timestamp"]))  # names must differ
        with (directory / time_name(created)).open("wb") as out:
            out.truncate(file.size(maximum))
            out.write(file.header.tobytes() + file.slots.tobytes())
            out.seek(file.entries_start)
            out.write(file.entries.tobytes())
        if len(file.entries) == maximum - 1:
            full_until = int(file.header["end_timestamp"])
    return full_until


def time_name(epoch_ms: int) -> str:
    """Return the name of an index file created at this time: yyyyMMddHHmmssSSS, in UTC."""
    moment = datetime.fromtimestamp(epoch_ms // MS, UTC)
    return f"{moment:%Y%m%d%H%M%S}{epoch_ms % MS:03d}"
