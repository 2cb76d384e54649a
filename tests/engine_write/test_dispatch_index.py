"""Index files against the put rules in their simplest words, and what crashes leave of them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.engine.dispatch import index as index_file
from rmqctl.engine.dispatch.index import IndexWriter
from rmqctl.engine.dispatch.queue_files import FilePool
from rmqctl.errors import RefusedError, UsageError
from rmqctl.files.aside import AsideFolder
from rmqctl.formats.local import index_file as layout
from rmqctl.formats.local.index_file import ENTRY, HEADER, EntryRecord, HeaderRecord, IndexShape
from rmqctl.store.files import listing
from rmqctl.store.index.files import open_index, select
from tests.support.share import examples

SHAPE = IndexShape(5, 8)
Message = tuple[int, int, tuple[int, ...], bool]
"""(place, store time, hashes of its keys, whether it is a ROLLBACK)."""


@dataclass
class Reference:
    """index.md §5-§7, key by key."""

    shape: IndexShape
    files: list[bytearray] = field(default_factory=list)
    headers: list[list[int]] = field(default_factory=list)

    def current(self) -> bytearray:
        if not self.files or self.headers[-1][5] >= self.shape.max_entries:
            begin = self.headers[-1] if self.files else [0] * 6
            self.files.append(bytearray(self.shape.file_size))
            self.headers.append([max(begin[1], 0), max(begin[1], 0), max(begin[3], 0),
                                 max(begin[3], 0), 0, 1])
        return self.files[-1]

    def message(self, message: Message) -> None:
        phy, when, keys, rollback = message
        self.current()
        if phy < self.headers[-1][3] or rollback:
            return
        for key in keys:
            self.key(key, phy, when)

    def key(self, key_hash: int, phy: int, when: int) -> None:
        file, header = self.current(), self.headers[-1]
        slot = self.shape.slot_position(self.shape.slot_of(key_hash))
        value = int.from_bytes(file[slot:slot + 4], "big", signed=True)
        if value <= 0 or value > header[5]:
            value = 0
        diff = 0 if header[0] <= 0 else min(max(int((when - header[0]) / 1000), 0), (1 << 31) - 1)
        at = self.shape.entry_position(header[5])
        file[at:at + ENTRY.size] = layout.build_entry(EntryRecord(key_hash, phy, diff, value))
        file[slot:slot + 4] = header[5].to_bytes(4, "big")
        if header[5] <= 1:
            header[2], header[0] = phy, when
        header[4] += value == 0
        header[5] += 1
        header[3], header[1] = phy, when

    def contents(self, *, counts_empty: bool) -> list[bytes]:
        out = []
        for file, header in zip(self.files, self.headers, strict=True):
            count = header[5] if header[5] > 1 or counts_empty else 0
            out.append(layout.build_header(HeaderRecord(*header[:5], count))
                       + bytes(file[HEADER.size:]))
        return out


def give(writer: IndexWriter, some: list[Message]) -> None:
    kept = [(row, key) for row, message in enumerate(some) if not message[3] for key in message[2]]
    columns = np.array(kept, np.int64).reshape(-1, 2)
    writer.put(np.array([message[0] for message in some], np.int64), columns[:, 0], columns[:, 1],
               np.array([message[1] for message in some], np.int64))


POOLS: list[FilePool] = []


def writer(folder: Path | str, shape: IndexShape = SHAPE, clock: int = 0,
           **more: bool) -> IndexWriter:
    while len(POOLS) > 2:
        POOLS.pop(0).close()
    POOLS.append(FilePool(AsideFolder(str(folder)), 2))
    return IndexWriter(str(folder), shape, POOLS[-1], lambda: clock, **more)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    yield
    while POOLS:
        POOLS.pop().close()


def contents(folder: Path | str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(Path(folder, "index").glob("*"))]


KEYS = st.lists(st.integers(0, 12), max_size=4).map(tuple)
MESSAGES = st.lists(st.tuples(st.integers(1, 50), st.integers(-1500, 4000), KEYS,
                              st.sampled_from([False] * 9 + [True])), max_size=40)


def messages(steps: list[tuple[int, int, tuple[int, ...], bool]], when: int) -> list[Message]:
    out, phy = [], 0
    for size, later, keys, rollback in steps:
        out.append((phy, when := when + later, keys, rollback))
        phy += size
    return out


@pytest.mark.long
@settings(max_examples=examples(300))
@given(MESSAGES, st.integers(1, 15), st.booleans(), st.sampled_from([1_700_000_000_000, 0, -9999]),
       st.sampled_from([SHAPE, IndexShape(1, 2), IndexShape(3000, 30)]), st.booleans())
def test_keys_as_the_put_rules_have_them(steps, chunk, reopen, start, shape, five):
    some = messages(steps, start)
    wanted = Reference(shape)
    with tempfile.TemporaryDirectory() as folder:
        index_writer = writer(folder, shape, counts_empty=five)
        for at in range(0, len(some), chunk):
            for message in some[at:at + chunk]:
                wanted.message(message)
            give(index_writer, some[at:at + chunk])
            if reopen:
                index_writer.close()
                index_writer = writer(folder, shape, counts_empty=five)
        give(index_writer, some[-1:] if some and not some[-1][3] else [])
        if not reopen:
            index_writer.close()
            assert contents(folder) == wanted.contents(counts_empty=five)
        else:
            index_writer.close()
            assert [content[HEADER.size:] for content in contents(folder)] == [
                content[HEADER.size:] for content in wanted.contents(counts_empty=True)]


@settings(max_examples=examples(100))
@given(MESSAGES, st.integers(1, 15))
def test_a_broker_indexes_the_last_message_again(steps, chunk):
    some = messages(steps, 1_700_000_000_000)
    wanted = Reference(SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            index_writer = writer(folder, as_broker=True)
            for message in some:
                wanted.message(message)
            for at in range(0, len(some), chunk):
                give(index_writer, some[at:at + chunk])
            index_writer.close()
        assert [content[HEADER.size:] for content in contents(folder)] == [
            content[HEADER.size:] for content in wanted.contents(counts_empty=True)]


def test_a_message_that_was_indexed_in_part_gets_the_rest(tmp_path):
    some = [(0, 5000, (1, 2), False), (10, 6000, (3, 4, 4), False)]
    whole, part = writer(tmp_path / "whole"), writer(tmp_path / "part")
    give(whole, some)
    give(part, [some[0], (10, 6000, (3, 4), False)])
    part.close()
    part = writer(tmp_path / "part")
    give(part, some)
    give(part, some)
    for folder in (whole, part):
        folder.close()
    assert contents(tmp_path / "whole") == contents(tmp_path / "part")


def test_files_never_share_a_name_and_sort_by_age(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        index_writer = writer(tmp_path, clock=1_700_000_000_999)
        give(index_writer, [(0, 1, tuple(range(30)), False)])
        index_writer.close()
        index_writer = writer(tmp_path, clock=1_600_000_000_000)  # the clock was set back
        give(index_writer, [(10, 1, tuple(range(8)), False)])
        index_writer.close()
    finally:
        monkeypatch.undo()
        time.tzset()
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert names[:3] == ["20231115071320999", "20231115071321000", "20231115071321001"]
    assert len(names) == 6
    assert [HEADER.decode(content).begin_phy_offset
            for content in contents(tmp_path)] == [0] * 5 + [10]


def test_a_name_that_is_no_moment_is_counted_on(tmp_path):
    index_writer = writer(tmp_path)
    give(index_writer, [(0, 1, (1,), False)])
    index_writer.close()
    (file,) = (tmp_path / "index").iterdir()
    file.rename(tmp_path / "index" / "20239999999999999")
    index_writer = writer(tmp_path)
    give(index_writer, [(10, 1, tuple(range(7)), False)])
    index_writer.close()
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == [
        "20239999999999999", "20240000000000000"]


def test_the_end_of_the_newest_full_file_is_reported(tmp_path):
    index_writer = writer(tmp_path)
    give(index_writer, [(0, 5000, tuple(range(7)), False)])
    assert index_writer.index_timestamp == 0  # it is full, but a broker flushes it when it rolls
    give(index_writer, [(10, 6000, (), False)])
    assert index_writer.index_timestamp == 5000
    index_writer.close()
    assert len(contents(tmp_path)) == 2
    assert writer(tmp_path).index_timestamp == 5000


def test_a_full_file_is_on_disk_before_it_is_reported(tmp_path, monkeypatch):
    index_writer = writer(tmp_path)
    give(index_writer, [(0, 5000, tuple(range(7)), False)])
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (
        synced.append(os.fstat(fd).st_ino), real(fd)))
    (file,) = (tmp_path / "index").iterdir()
    give(index_writer, [(10, 6000, (), False)])
    assert synced == [file.stat().st_ino, file.parent.stat().st_ino]
    index_writer.close()


# -- what a process that died leaves --------------------------------------------------------------

BIG = IndexShape(3000, 10_000)


def many(first: int, count: int) -> list[Message]:
    return [(10 * at, 1_700_000_000_000 + at, (at * 7919 % 5000, at % 40), False)
            for at in range(first, first + count)]


def test_entries_behind_the_header_do_not_count_and_are_made_again(tmp_path):
    whole = writer(tmp_path / "whole", BIG)
    give(whole, many(0, 900))
    whole.close()
    result = writer(tmp_path / "died", BIG)
    give(result, many(0, 300))
    result.sync_to_file()
    give(result, many(300, 400))
    assert result._file is not None
    header = result._file.header
    (path,) = (tmp_path / "died" / "index").iterdir()
    before = path.read_bytes()[:HEADER.size]
    result.sync_to_file()  # slots reach the disk, and then the process dies before the header does
    data = before + path.read_bytes()[HEADER.size:]
    path.write_bytes(data)
    result = writer(tmp_path / "died", BIG)
    assert result._file is not None
    assert result._file.header.index_count == 601 < header.index_count
    healed = writer(tmp_path / "healed", BIG)
    give(healed, many(0, 300))
    healed.close()
    result.sync_to_file()
    slots = slice(HEADER.size, BIG.entry_position(0))
    assert path.read_bytes()[slots] == contents(tmp_path / "healed")[0][slots]
    give(result, many(250, 650))
    result.close()
    assert contents(tmp_path / "died") == contents(tmp_path / "whole")


def test_slots_behind_the_count_are_empty_for_a_broker(tmp_path):
    index_writer = writer(tmp_path)
    give(index_writer, [(0, 1, (1, 6), False)])
    index_writer.close()
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    for slot, value in ((1, 7), (2, 3), (3, -5)):
        data[SHAPE.slot_position(slot):SHAPE.slot_position(slot + 1)] = value.to_bytes(
            4, "big", signed=True)
    path.write_bytes(data)
    wanted = Reference(SHAPE, [data], [list(HEADER.decode(bytes(data)))])
    some = (10, 5, (1, 2, 3, 6, 8), False)
    wanted.message(some)
    index_writer = writer(tmp_path, as_broker=True)
    give(index_writer, [some])
    index_writer.close()
    assert contents(tmp_path) == wanted.contents(counts_empty=True)


def test_keys_are_found_by_following_the_chains(tmp_path):
    index_writer = writer(tmp_path, BIG)
    for at in range(0, 3000, 70):
        give(index_writer, many(at, 70))
    index_writer.sync_to_file()
    (file,) = listing(str(tmp_path / "index"), 17).files
    index = open_index(file, *BIG)
    numbers: list[int] = []
    select(index, 7, 10_000, 0, 1 << 62, numbers)
    assert sorted(numbers) == [message[0] for message in many(0, 3010) for key in message[2]
                               if key == 7]
    index.close()
    index_writer.close()


def test_only_slots_that_changed_are_written(tmp_path, monkeypatch):
    shape = IndexShape(100_000, 1000)
    index_writer = writer(tmp_path, shape)
    give(index_writer, [(0, 1, (3, 40_000, 99_999), False)])
    wrote = []
    real = FilePool.write
    monkeypatch.setattr(FilePool, "write", lambda self, path, data, at, **more: (
        wrote.append((at, len(data))), real(self, path, data, at, **more)))
    index_writer.sync_to_file()
    pages = [(at + size - 1) // 4096 - at // 4096 for at, size in wrote]
    entries, *rest = wrote  # new entries first, the header last
    assert entries == (shape.entry_position(1), 3 * ENTRY.size)
    assert pages[1:] == [0] * 4
    assert [at // 4096 for at, _ in rest] == [0, 39, 97, 0]
    index_writer.sync_to_file()
    assert len(wrote) == 5
    give(index_writer, [(1, 1, tuple(range(0, 100_000, 500)), False)])
    index_writer.sync_to_file()
    assert [size for _, size in wrote[5:]] == [200 * ENTRY.size, 400_000, HEADER.size]
    index_writer.close()
    data = contents(tmp_path)[0]
    assert data[HEADER.size:][4 * 500:4 * 500 + 4] == (5).to_bytes(4, "big")


def test_slots_are_written_at_the_latest_when_many_entries_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(index_file, "MAX_PENDING", 50)
    index_writer = writer(tmp_path, BIG)
    give(index_writer, many(0, 24))
    (path,) = (tmp_path / "index").iterdir()
    assert path.read_bytes()[:HEADER.size] == bytes(HEADER.size)
    give(index_writer, many(24, 1))
    assert HEADER.decode(path.read_bytes()).index_count == 51
    index_writer.close()


def test_an_empty_file_of_a_process_that_died_is_taken(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20231115071320999").touch()
    index_writer = writer(tmp_path)
    give(index_writer, [(0, 1, (1,), False)])
    index_writer.close()
    (data,) = contents(tmp_path)
    assert HEADER.decode(data).index_count == 2
    assert len(data) == SHAPE.file_size


def test_a_rolled_file_without_a_header_goes_on_from_the_one_before(tmp_path):
    some = [(0, 5000, tuple(range(7)), False), (10, 6000, (), False)]
    for size in (SHAPE.file_size, 0):
        index_writer = writer(tmp_path / str(size))
        give(index_writer, some)
        index_writer.close()
        wanted = contents(tmp_path / str(size))
        (tmp_path / str(size) / "index" / sorted(
            path.name for path in (tmp_path / str(size) / "index").iterdir())[1]).write_bytes(
                bytes(size))
        index_writer = writer(tmp_path / str(size))
        give(index_writer, some)
        give(index_writer, [(20, 7500, (9,), False)])
        index_writer.close()
        first, second = contents(tmp_path / str(size))
        assert first == wanted[0]
        assert HEADER.decode(second).index_count == 2
        assert ENTRY.decode(second, SHAPE.entry_position(1)) == EntryRecord(9, 20, 2, 0)


def test_other_shapes_are_refused(tmp_path):
    index_writer = writer(tmp_path)
    give(index_writer, [(0, 1, (1,), False)])
    index_writer.close()
    with pytest.raises(RefusedError, match="different sizes"):
        writer(tmp_path, IndexShape(6, 8))
    for shape in (IndexShape(0, 8), IndexShape(5, 1), IndexShape(5, 0)):
        with pytest.raises(UsageError, match="an index file cannot have"):
            writer(tmp_path, shape)
