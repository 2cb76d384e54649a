"""Write the commitlog files of a plan in chunks, and yield their index entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from benchmarks.index import IndexEntries
from benchmarks.layout import (
    BLANK,
    CRC_MASK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_HEADER,
    MIB,
    file_name,
)
from benchmarks.plan import DONORS, EMBEDDED_RECORDS, PADDING, Plan, Trick
from benchmarks.tails import make_tails, numbered_keys, unique_keys

U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

CHUNK = 32 * MIB
PRODUCER_IPS = (0x0A000007, 0x0A000008, 0x0A010009)
PRODUCER_PORT = 52011
STORE_IP = 0x0A000001
STORE_PORT = 10911
MAX_NETWORK_MS = 40
USERS = 100_000
BINARY_EVERY = 4  # every fourth topic carries any byte, the others printable ASCII
MAGICS = [
    np.array(magic, dtype=BLANK["magic"]).tobytes() for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
]


def windows(buffer: U8, width: int) -> NDArray[np.void]:
    """Return a writable view of every run of `width` bytes; element n starts at byte n."""
    count = len(buffer) - width + 1
    return np.ndarray((count,), dtype=f"V{width}", buffer=buffer.data, strides=(1,))


def rows_as_void(rows: NDArray[Any]) -> NDArray[np.void]:
    """Return n rows of bytes, or n structured values, as n opaque values to assign to `windows`."""
    flat = np.ascontiguousarray(rows)
    return flat.view(f"V{flat.nbytes // len(flat)}").reshape(len(flat))


class LogWriter:
    """Builder of the bytes of a plan's records, chunk by chunk. A body may contain a copy of an
    earlier record.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = np.random.Generator(np.random.PCG64([plan.options.seed, 1]))
        self.donors: list[bytes] = []

    def write(self, directory: Path) -> Iterator[IndexEntries]:
        """Write all files to a directory; yield the index entries of each chunk."""
        plan, file_size = self.plan, self.plan.options.commitlog_file_size
        directory.mkdir(parents=True)
        file_of = plan.file_of
        for number in range(int(file_of[-1]) + 1):
            base = number * file_size
            first, stop = np.searchsorted(file_of, [number, number + 1]).tolist()
            with (directory / file_name(base)).open("wb") as out:
                out.truncate(file_size)
                for start, end in self.chunks(first, stop):
                    chunk, entries = self.make_chunk(start, end)
                    out.seek(int(plan.phy[start]) - base)
                    out.write(chunk.data)
                    yield entries
                if stop < len(plan):
                    end_of_file = int(plan.phy[stop - 1] + plan.size[stop - 1]) - base
                    blank = np.array((file_size - end_of_file, MAGIC_BLANK), dtype=BLANK)
                    out.seek(end_of_file)
                    out.write(blank.tobytes())

    def chunks(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Divide records first..stop of a file into runs of about CHUNK bytes. Donors (the records
        that bodies copy) are never in the same run as a body that copies them.
        """
        phy = self.plan.phy
        while first < stop:
            end = int(np.searchsorted(phy[:stop], phy[first] + CHUNK))
            if first < DONORS:
                end = min(end, DONORS)
            yield first, end
            first = end

    def make_chunk(self, first: int, stop: int) -> tuple[U8, IndexEntries]:
        """Return (bytes of records first..stop of a file, their index entries)."""
        plan, rng, count = self.plan, self.rng, stop - first
        part = slice(first, stop)
        size, body_length = plan.size[part], plan.body_length[part]
        start = plan.phy[part] - plan.phy[first]
        body = start + MESSAGE_HEADER.itemsize
        buffer = self.random_bytes(size, plan.topic[part])
        for index in np.flatnonzero(plan.trick[part]).tolist():
            place = slice(int(body[index]), int(body[index] + body_length[index]))
            self.embed(buffer[place], first + index)

        delay = rng.integers(0, MAX_NETWORK_MS, count, dtype=np.int64)
        header = np.zeros(count, dtype=MESSAGE_HEADER)
        header["total_size"] = size
        header["magic"] = MAGIC_V1
        header["body_crc"] = body_crcs(buffer, body, body_length)
        header["queue_id"] = plan.queue[part]
        header["queue_offset"] = plan.queue_offset[part]
        header["physical_offset"] = plan.phy[part]
        header["born_timestamp"] = plan.store_timestamp[part] - delay
        header["born_ip"] = np.array(PRODUCER_IPS)[rng.integers(0, len(PRODUCER_IPS), count)]
        header["born_port"] = PRODUCER_PORT
        header["store_timestamp"] = plan.store_timestamp[part]
        header["store_ip"] = STORE_IP
        header["store_port"] = STORE_PORT
        header["body_length"] = body_length
        windows(buffer, header.itemsize)[start] = rows_as_void(header)

        entries = self.put_tails(buffer, part, body + body_length, header)
        for index in range(first, min(stop, DONORS)):
            at = int(start[index - first])
            self.donors.append(buffer[at : at + int(size[index - first])].tobytes())
        return buffer, entries

    def put_tails(self, buffer: U8, part: slice, tail: I64,
                  header: NDArray[np.void]) -> IndexEntries:
        """Write topics and properties at the positions ``tail`` (n,)."""
        plan, count = self.plan, len(tail)
        number = np.arange(part.start, part.stop)
        unique = unique_keys(
            header["born_ip"].astype(np.uint32), header["born_timestamp"].astype(np.int64), number
        )
        orders = self.rng.integers(0, max(1, len(plan) // 3), count)  # about three messages each
        users = self.rng.integers(0, USERS, count)
        keys = plan.keys[part]
        per_record = 1 + keys.astype(np.int64)
        entry = np.cumsum(per_record) - per_record
        hashes = np.empty(int(per_record.sum()), dtype=np.int32)
        for group in make_tails(
            plan.topics,
            plan.topic[part],
            plan.tag[part],
            keys,
            unique,
            [numbered_keys(0, orders), numbered_keys(1, users)],
        ):
            rows = rows_as_void(group.tails)
            windows(buffer, rows.itemsize)[tail[group.members]] = rows
            columns = np.arange(group.hashes.shape[1])
            hashes[entry[group.members][:, np.newaxis] + columns] = group.hashes
        return IndexEntries(
            hashes,
            np.repeat(plan.phy[part], per_record),
            np.repeat(plan.store_timestamp[part], per_record),
        )

    def random_bytes(self, size: NDArray[np.int32], topic: U8) -> U8:
        """Return random bytes for the chunk, printable in the records of most topics."""
        total = int(size.sum(dtype=np.int64))
        words = self.rng.bit_generator.random_raw(-(-total // np.dtype(np.uint64).itemsize))
        buffer = words.view(np.uint8)[:total]
        binary = topic % BINARY_EVERY == BINARY_EVERY - 1
        buffer &= np.repeat(np.where(binary, 0xFF, 0x3F).astype(np.uint8), size)
        buffer += np.repeat(np.where(binary, 0, ord("0")).astype(np.uint8), size)
        return buffer

    def embed(self, body: U8, index: int) -> None:
        """Write the data of the record's `Trick` to its body (a view of the chunk)."""
        plan = self.plan
        trick, donor = Trick(plan.trick[index]), self.donors[plan.donor[index]]
        phy = int(plan.phy[index]) + MESSAGE_HEADER.itemsize
        at = PADDING
        for _ in range(EMBEDDED_RECORDS.get(trick, 0)):
            copy = donor if trick == Trick.COPY else moved(donor, phy + at)
            put(body, at, copy)
            at += len(donor)
        if trick == Trick.CUT:
            put(body, 0, donor[: min(len(body), len(donor) - 1)])
        elif trick == Trick.MAGICS:
            for _ in range(4):
                magic = MAGICS[self.rng.integers(0, len(MAGICS))]
                put(body, int(self.rng.integers(0, len(body) - len(magic))), magic)
        elif trick == Trick.BLANK:
            blank = np.array((len(body) - PADDING, MAGIC_BLANK), dtype=BLANK)
            put(body, PADDING, blank.tobytes())


def put(body: U8, at: int, data: bytes) -> None:
    """Overwrite a part of a body."""
    body[at : at + len(data)] = np.frombuffer(data, dtype=np.uint8)


def moved(record: bytes, phy: int) -> bytes:
    """Return the record with another physicalOffset."""
    header = np.frombuffer(record, dtype=MESSAGE_HEADER, count=1).copy()
    header["physical_offset"] = phy
    return header.tobytes() + record[header.nbytes :]


def body_crcs(buffer: U8, body: I64, length: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Return the CRC of every body, as a record stores it (n,)."""
    view, crc32 = buffer.data, isal_zlib.crc32
    ends = (body + length).tolist()
    values = [crc32(view[a:b]) for a, b in zip(body.tolist(), ends, strict=True)]
    return np.array(values, dtype=np.uint32) & np.uint32(CRC_MASK)
