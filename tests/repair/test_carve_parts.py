"""The parts of a carving: checksums, what was seen, places kept on disk, sources that fail."""

from __future__ import annotations

import errno
import os
import random
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rmqctl.errors import StoreIOError
from rmqctl.formats.local.message import CRC_MASK
from rmqctl.repair.carve import sources
from rmqctl.repair.carve.carve import DOUBTFUL, IN_PLACE, CarveOptions
from rmqctl.repair.carve.scan import Scan
from rmqctl.repair.carve.spool import PLACE, Majority, RecordSet, Spool
from rmqctl.repair.carve.window import Checksums, Window
from rmqctl.scan.source import BytesSource
from tests.repair.carving import carve, log, places, record, saved

NAME = f"{0:020d}"


class Counting(BytesSource):
    """Counts the bytes that are read."""

    taken = 0

    def read(self, position: int, length: int) -> bytes:
        content = super().read(position, length)
        self.taken += len(content)
        return content

    def read_into(self, buffer: memoryview, position: int) -> int:
        content = super().read_into(buffer, position)
        self.taken += content
        return content


# -- checksums --------------------------------------------------------------------------------


def test_checksums_of_any_stretch(seed: int) -> None:
    dice = random.Random(seed)
    data = dice.randbytes(1 << 20)
    sums = Checksums(Window(BytesSource(data), 5000))
    for start in sorted(dice.randrange(len(data)) for _ in range(300)):
        end = dice.randrange(start, len(data) + 1)
        assert sums.crc(start, end) == zlib.crc32(data[start:end]) & CRC_MASK
    assert sums.crc(len(data) - 5000, len(data) + 1) is None
    assert sums.crc(0, 10) == zlib.crc32(data[:10]) & CRC_MASK


def test_overlapping_stretches_are_read_once() -> None:
    source = Counting(os.urandom(8 << 20))
    sums = Checksums(Window(source, 4096))
    for start in range(0, 40_000, 100):
        sums.crc(start, source.size - start)
    assert source.taken < 2 * source.size


def hostile(size: int) -> bytes:
    """Heads one behind the other; the lengths of each add up to a record that reaches far."""
    head = bytearray(record(0, b"", topic=b"", properties=b""))
    data = bytearray()
    while len(data) < size // 2:
        total = size - len(data) - 1000
        head[:4], head[84:88] = total.to_bytes(4), (total - len(head)).to_bytes(4)
        data += head
    return bytes(data) + bytes(size - len(data))


@pytest.mark.parametrize("size", [1 << 19, 1 << 21])
def test_endless_heads_are_not_quadratic(size: int) -> None:
    source = Counting(hostile(size))
    undecided, embedded, damaged, doubtful = Spool(), Spool(), Spool(), Spool()
    scan = Scan(source, 0, None, undecided=undecided, embedded=embedded, damaged=damaged,
                doubtful=doubtful)
    assert not list(scan.batches())
    # Each head costs a few small reads; none goes through all it claims.
    assert source.taken < size * 200
    assert len(damaged) <= 2


# -- what was met before ----------------------------------------------------------------------


@pytest.mark.parametrize("held", [1, 50, 1 << 20])
def test_seen(held: int, seed: int) -> None:
    dice = random.Random(seed)
    seen, entries = RecordSet(held), set()
    for _ in range(200):
        rows = [(dice.randrange(300), dice.randrange(5)) for _ in range(dice.randrange(1, 20))]
        expected = []
        for row in rows:
            expected.append(row in entries)
            entries.add(row)
        physical, rest = (np.array(column) for column in zip(*rows, strict=True))
        assert seen.take(physical, rest.astype(np.uint64)).tolist() == expected
    assert seen.count == len(entries)


def test_many_records_that_claim_one_place() -> None:
    seen = RecordSet()
    rest = np.arange(5000, dtype=np.uint64)
    assert not seen.take(np.zeros(5000, np.int64), rest).any()
    assert seen.take(np.zeros(5000, np.int64), rest + np.uint64(10)).sum() == 4990


# -- places on disk ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5000, 40_000])
def test_spool(count: int) -> None:
    spool = Spool()
    rows = np.zeros(count, PLACE)
    rows["position"] = np.arange(count)
    for part in np.array_split(rows, 7):
        spool.add(3, part["position"], part["position"] * 2, 100)
    assert len(spool) == count
    for _ in range(2):
        array = np.concatenate([rows[:0], *spool.chunks(999)])
        assert array["position"].tolist() == list(range(count))
        assert (array["physical"] == 2 * array["position"]).all()
    spool.add(0, 77, 78, 79)
    assert [*spool.chunks()][-1]["position"][-1] == 77
    spool.close()
    assert not len(spool)
    assert not [*spool.chunks()]


def test_spool_says_where_there_is_no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_given: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    spool = Spool()
    rows = np.zeros(1 << 15, PLACE)
    with pytest.raises(StoreIOError, match="no space left"):
        spool.append(rows)


def test_majority(seed: int) -> None:
    dice = random.Random(seed)
    keys = [7] * 500 + [dice.randrange(1 << 40) for _ in range(3000)]
    dice.shuffle(keys)
    most = Majority()
    for key in keys:
        most.add(key, 1)
    assert most.most(1) == 7
    assert Majority().most(1) is None
    few = Majority()
    few.add(5, 1)
    assert (few.most(1), few.most(2)) == (5, None)


# -- sources ----------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, start: int, end: int) -> None:
    """Makes every read that touches ``[start, end)`` fail, as a worn-out disk does."""
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        if position < end and start < position + sum(map(len, buffers)):
            raise OSError(errno.EIO, "worn out")
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)


def test_what_the_disk_cannot_deliver_is_skipped(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    data = log(400)
    path = saved(tmp_path, data, NAME)
    failing(monkeypatch, 20_480, 20_992)
    carved = carve(path)
    expected = [at for at, size in places(data) if at + size <= 20_480 or at >= 24_576]
    # What is behind may lie in the body of the one that cannot be read: the log is that short.
    assert carved.offsets(IN_PLACE) + carved.offsets(DOUBTFUL) == expected
    assert carved.tally.unreadable_bytes == sources.SECTOR
    assert carved.notes == [f"{path}: 4096 bytes at 20480 cannot be read; the rest was read"]


def test_other_errors_end_the_source_not_the_run(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = saved(tmp_path, log(100), "one"), saved(tmp_path, log(50, base=1 << 20), "two")
    real = os.preadv
    bad = os.stat(first).st_ino

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.ESTALE, "gone")
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    carved = carve(first, other)
    assert (carved.tally.in_place, carved.tally.unreadable_sources) == (50, 1)
    with pytest.raises(StoreIOError, match="stale"):
        carve(first)


def test_folders_links_and_names_for_the_same_file(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    path = saved(below, log(5))
    os.link(path, tmp_path / "a" / "again")
    (tmp_path / "a" / "link").symlink_to(path)
    os.mkfifo(tmp_path / "a" / "pipe")
    carved = carve(tmp_path / "a", path)
    assert (carved.tally.sources, carved.tally.in_place, carved.tally.duplicates) == (1, 5, 0)
    assert sorted(line.rpartition("/")[2] for line in carved.notes) == [
        "link: not a regular file", "pipe: not a regular file"]
    with pytest.raises(StoreIOError, match="not a regular file or block device"):
        carve(tmp_path / "a" / "pipe")
    with pytest.raises(StoreIOError, match="no such file"):
        carve(tmp_path / "missing")


def test_holes_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    data = log(30)
    with path.open("wb") as file:
        file.seek(1 << 40)
        file.write(data)
        file.truncate(3 << 40)
    carved = carve(path)
    assert carved.offsets(IN_PLACE) == [(1 << 40) + at for at, _ in places(data)]


def test_the_same_log_twice(tmp_path: Path) -> None:
    first, other = saved(tmp_path, log(80), "one"), saved(tmp_path, b"x" * 9 + log(80), "two")
    carved = carve(first, other)
    assert (carved.tally.messages, carved.tally.duplicates, carved.tally.given) == (80, 80, 80)
    shown = carve(first, other, wanted=CarveOptions(duplicates=True))
    assert Counter((Path(message.source).name, message.duplicate)
                   for message in shown.messages) == {
                       ("one", False): 80, ("two", True): 80}


def test_a_message_in_place_counts_before_its_misplaced_copy(tmp_path: Path) -> None:
    data = log(300)
    at, size = places(data)[100]
    strayed = saved(tmp_path, log(200, base=1 << 30, seed=b"o") + data[at:at + size], "a")
    carved = carve(strayed, saved(tmp_path, data, "b"))
    assert (carved.tally.in_place, carved.tally.misplaced, carved.tally.duplicates) == (500, 0, 1)


@pytest.mark.parametrize("other", [record(5, b"body", store=2), record(5, b"body", time=7),
                                   record(5, b"body", queue_offset=9)])
def test_what_differs_is_no_duplicate(other: bytes, tmp_path: Path) -> None:
    carved = carve(saved(tmp_path, record(5, b"body") + other + record(5, b"body")))
    assert (carved.tally.messages, carved.tally.duplicates) == (2, 1)


def test_hosts_are_compared_whatever_page_they_come_from(tmp_path: Path) -> None:
    """In place (columns) and kept for later (single records), IPv4 and IPv6."""
    data = log(300)
    alone = b"".join(b"noise" + data[at:at + size] for at, size in places(data)[:8])
    carved = carve(saved(tmp_path, data, NAME), saved(tmp_path, alone, "z"))
    assert (carved.tally.messages, carved.tally.duplicates) == (300, 8)
