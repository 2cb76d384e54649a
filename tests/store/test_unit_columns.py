from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import StoreIOError
from rmqctl.formats.local import batch_consume_queue, consume_queue, index_file
from rmqctl.formats.local.consume_queue import FILLER, ZERO, UnitRecord
from rmqctl.formats.local.index_file import EntryRecord, HeaderRecord, IndexShape
from rmqctl.formats.local.names import INDEX_DIGITS
from rmqctl.scan.columns import schema
from rmqctl.scan.tables import INDEX_COLUMNS, QUEUE_COLUMNS, Columns
from rmqctl.store.dump.dump import Dump, DumpOptions
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.index.files import IndexFile, open_index
from rmqctl.store.queue.unit_columns import (
    batch_queue_batches,
    index_batches,
    index_entries,
    queue_batches,
)
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support import arrow_rows, damage
from tests.support.golden import GoldenStore, golden_stores
from tests.support.share import examples

Rows = list[dict[str, Any]]
QUEUE, INDEX = list(QUEUE_COLUMNS), list(INDEX_COLUMNS)


def opened(path: Path) -> StoreFile:
    return StoreFile(str(path), path.name, int(path.name), path.stat().st_size)


def files_below(folder: Path) -> Iterator[StoreFile]:
    """The files of all queues of a structure."""
    for where, _, _ in sorted(os.walk(folder)):
        yield from listing(where).files


def rows_of(batches: Iterator[pa.RecordBatch], names: Sequence[str] = tuple(QUEUE),
            types: Columns = QUEUE_COLUMNS) -> Rows:
    rows: Rows = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == schema(names, types)
        assert batch.num_rows
        rows += arrow_rows.rows_of(batch)
    return rows


def stored_rows(file: StoreFile, *, is_batch: bool = False) -> Rows:
    """The rows in use of a queue file, unit by unit."""
    unit: Any = batch_consume_queue.UNIT if is_batch else consume_queue.UNIT
    data = Path(file.path).read_bytes()
    values = []
    for number in range(len(data) // unit.size):
        row = unit.decode(data, number * unit.size)
        if any(row) and row != FILLER:
            values.append({
                "queue_offset": row.msg_base_offset if is_batch else
                file.base // unit.size + number,
                "physical_offset": row.physical_offset, "size": row.size,
                "tags_code": row.tags_code, "position": number * unit.size})
    return values


def dumped_rows(file: StoreFile) -> Rows:
    """What `dump` shows of a queue file, unused units and fillers left out."""
    with Dump(file.path, DumpOptions(kind="consumequeue")) as shown:
        return [{"position": row["offset"], **{name: row[name] for name in QUEUE if name in row}}
                for row in shown.rows() if row["type"] in ("unit", "damaged")
                and "physical_offset" in row]


@pytest.mark.parametrize("store", golden_stores(), ids=lambda golden_store: golden_store.id)
def test_queue_rows_are_the_units_in_use(store: GoldenStore, golden: GoldenFolder) -> None:
    root = golden(store.id)
    count = 0
    for name, read, is_batch in (("consumequeue", queue_batches, False),
                                 ("batchconsumequeue", batch_queue_batches, True)):
        for number, file in enumerate(files_below(root / name)):
            expected = stored_rows(file, is_batch=is_batch)
            assert rows_of(read(file, QUEUE)) == expected
            if not is_batch and number % 10 == 0:
                assert expected == dumped_rows(file)
            count += len(expected)
    assert count or store.state == "before"


def stored_entries(index: IndexFile) -> Rows:
    """The used entries of an index file, read one by one."""
    rows: Rows = []
    for number in range(1, index.header.index_count):
        entry = index.entry(number)
        if entry is None:
            break
        rows.append({
            "number": number, "position": index.shape.entry_position(number),
            "slot": index.shape.slot_of(entry.key_hash) if entry.key_hash >= 0 else None,
            "store_timestamp": index_file.entry_time(index.header, entry), **entry._asdict()})
    return rows


@pytest.mark.parametrize("store", golden_stores(), ids=lambda golden_store: golden_store.id)
def test_index_entries_are_the_used_ones(store: GoldenStore, golden: GoldenFolder) -> None:
    root = golden(store.id)
    with Store.open(root, store.commitlog_dirs) as opened:
        for file in opened.index.listing.files:
            index = opened.index.open(file)
            with index.source:
                expected = stored_entries(index)
            rows = rows_of(index_batches(file, INDEX, rows=70, shape=index.shape), INDEX,
                           INDEX_COLUMNS)
            assert rows == expected
            assert len(rows) == index_entries(file, index.shape)
            with Dump(file.path, DumpOptions(kind="index", index_slots=index.shape.slots)) as shown:
                dumped = [row for row in shown.rows() if row.get("used")]
            assert [(row["number"], row["store_timestamp"], row["slot"]) for row in rows] == [
                (row["number"], row["entry_time"], row["slot"]) for row in dumped]


UNIT = st.one_of(
    st.just(ZERO), st.just(FILLER), st.just(FILLER._replace(tags_code=1)),
    st.builds(UnitRecord, st.integers(-(1 << 63), (1 << 63) - 1),
              st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(UnitRecord, st.just(0), st.just(0), st.integers(0, 1)))


def in_ranges(read: Callable[[int, int], Iterator[pa.RecordBatch]], cuts: list[int],
              end: int) -> list[pa.RecordBatch]:
    return [item for first, last in pairwise([0, *sorted(cuts), end]) for item in read(first, last)]


@settings(max_examples=examples(80))
@given(st.lists(UNIT, max_size=30), st.binary(max_size=19),
       st.lists(st.integers(0, 31), max_size=4), st.integers(1, 7),
       st.lists(st.sampled_from(QUEUE), unique=True))
def test_any_ranges_of_any_queue_file(
        tmp_path_factory: pytest.TempPathFactory, units: list[UnitRecord], rest: bytes,
        cuts: list[int], rows: int, names: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / f"{2000 * consume_queue.UNIT_SIZE:020d}"
    path.write_bytes(b"".join(map(consume_queue.build, units)) + rest)
    file = opened(path)
    expected = stored_rows(file)
    record_batches = in_ranges(lambda first, last: queue_batches(file, names, first, last, rows),
                               cuts,                                1000)
    assert all(0 < record_batch.num_rows <= rows for record_batch in record_batches)
    assert sum(record_batch.num_rows for record_batch in record_batches) == len(expected)
    if names:
        assert rows_of(iter(record_batches), names) == [{name: row[name] for name in names}
                                                        for row in expected]


def test_batch_rows_in_ranges(tmp_path: Path) -> None:
    units = [batch_consume_queue.UnitRecord(100 * number, 90, number, 5, 3 * number, 3)
             for number in range(1, 9)]
    path = tmp_path / f"{0:020d}"
    path.write_bytes(b"".join(map(batch_consume_queue.build, units)) + bytes(46 * 3 + 11))
    file = opened(path)
    rows = rows_of(iter(in_ranges(
        lambda first, last: batch_queue_batches(file, QUEUE, first, last, 2), [3, 5], 99)))
    assert rows == stored_rows(file, is_batch=True)
    assert [row["queue_offset"] for row in rows] == [3 * number for number in range(1, 9)]


def index_of(path: Path, entries: list[EntryRecord], shape: IndexShape, **header: int) -> StoreFile:
    head = HeaderRecord(1000, 2000, 0, 0, 1, len(entries) + 1)._replace(**header)
    data = bytearray(shape.file_size)
    data[:index_file.HEADER.size] = index_file.build_header(head)
    at = shape.entry_position(1)
    raw = b"".join(map(index_file.build_entry, entries))
    data[at:at + len(raw)] = raw
    path.write_bytes(data[:shape.file_size])
    return opened(path)


ENTRIES = [EntryRecord(7 * number, 100 * number, number, number - 1) for number in range(1, 11)]


def test_index_entries_in_ranges(tmp_path: Path) -> None:
    shape = IndexShape(10, 40)
    file = index_of(tmp_path / "20250101000000000", ENTRIES, shape)
    for names in (INDEX, ["previous", "number"]):
        record_batches = in_ranges(lambda first, last, names=names: index_batches(  # type: ignore[misc]
            file, names, first, last, 3), [1, 4, 4, 9], 50)
        index = open_index(file)
        with index.source:
            assert rows_of(iter(record_batches), names, INDEX_COLUMNS) == [
                {name: row[name] for name in names} for row in stored_entries(index)]
    assert sum(index_batch.num_rows
               for index_batch in index_batches(file, [], rows=4)) == len(ENTRIES)


@pytest.mark.parametrize("count", [-(1 << 31), -1, 0, 1, 5, 12, 39, 40, 41, (1 << 31) - 1])
def test_an_index_header_may_count_what_it_likes(count: int, tmp_path: Path) -> None:
    shape = IndexShape(10, 40)
    path = tmp_path / "20250101000000000"
    index_of(path, ENTRIES, shape, index_count=count)
    with path.open("ab") as out:
        out.write(bytes(100))  # more than the shape has entries for
    file = opened(path)
    rows = rows_of(index_batches(file, INDEX, rows=3, shape=shape), INDEX, INDEX_COLUMNS)
    assert [row["number"] for row in rows] == list(range(1, max(min(count, 40), 1)))
    assert index_entries(file, shape) == len(rows)


def test_odd_numbers_of_an_index_do_not_stop_it(tmp_path: Path) -> None:
    entries = [EntryRecord(-5, -1, -3, -4), EntryRecord((1 << 31) - 1, 1 << 62, (1 << 31) - 1, 99)]
    shape = IndexShape(10, 40)
    file = index_of(tmp_path / "20250101000000000", entries, shape,
                    begin_timestamp=(1 << 63) - 1)
    first, second = rows_of(index_batches(file, INDEX, shape=shape), INDEX, INDEX_COLUMNS)
    assert (first["slot"], second["slot"]) == (None, ((1 << 31) - 1) % 10)
    assert first["store_timestamp"] == (1 << 63) - 1 - 3000
    assert second["store_timestamp"] == (1 << 63) - 1 + 1000 * ((1 << 31) - 1) - (1 << 64)


@pytest.mark.parametrize("size", [0, 1, 39, 40, 41, 79, 80, 99, 120, 879, 880])
def test_a_short_index_file_gives_what_is_there(size: int, tmp_path: Path) -> None:
    shape = IndexShape(10, 40)
    path = tmp_path / "20250101000000000"
    index_of(path, ENTRIES, shape)
    os.truncate(path, size)
    file = opened(path)
    rows = rows_of(index_batches(file, INDEX, shape=shape), INDEX, INDEX_COLUMNS)
    assert len(rows) == min(10, max(0, (size - shape.entry_position(1)) // 20))
    assert [row["key_hash"] for row in rows] == [entry.key_hash for entry in ENTRIES[:len(rows)]]


def test_an_index_nobody_can_tell_the_layout_of(tmp_path: Path) -> None:
    path = tmp_path / "20250101000000000"
    index_of(path, ENTRIES, IndexShape(10, 40))
    os.truncate(path, 101)
    with pytest.raises(StoreIOError, match="cannot determine the number of hash slots"):
        list(index_batches(opened(path), INDEX))
    path.write_bytes(bytes(101))  # no entry is claimed, so none is missed
    assert list(index_batches(opened(path), INDEX)) == []


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_of_a_store(seed: int, golden_copy: GoldenFolder) -> None:
    """Any bytes give rows or a StoreIOError, and the rows are what stands there."""
    root = golden_copy("5.3.3/basic/store")
    draw = random.Random(seed)
    queues = [os.path.relpath(store_file.path, root)
              for store_file in files_below(root / "consumequeue")]
    index = [os.path.relpath(file.path, root)
             for file in listing(str(root / "index"), INDEX_DIGITS).files]
    for file in draw.sample(queues, 10):
        size = (root / file).stat().st_size
        if draw.random() < 0.5:
            damage.random_bytes(root, file, seed)
        else:
            damage.truncate(root, file, draw.randrange(size))
        assert rows_of(queue_batches(opened(root / file), QUEUE)) == stored_rows(
            opened(root / file))
    for file in index:
        end = (root / file).stat().st_size
        damage.write(root, file, draw.randrange(40), draw.randbytes(4))
        damage.write(root, file, draw.randrange(end - 500), draw.randbytes(400))
        try:
            rows = rows_of(index_batches(opened(root / file), INDEX), INDEX, INDEX_COLUMNS)
        except StoreIOError:
            continue
        assert len(rows) == index_entries(opened(root / file))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = StoreFile(str(tmp_path / f"{0:020d}"), f"{0:020d}", 0, 20)
    os.mkfifo(tmp_path / f"{20:020d}")
    fifo = StoreFile(str(tmp_path / f"{20:020d}"), f"{20:020d}", 20, 20)
    for file in (missing, fifo):
        for read in (queue_batches, batch_queue_batches, index_batches):
            with pytest.raises(StoreIOError):
                list(read(file, []))


def test_a_huge_sparse_queue_file_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}"
    with path.open("wb") as out:
        out.truncate(20 << 35)
        out.seek(20 << 34)
        out.write(consume_queue.build(UnitRecord(5, 6, 7)))
    (row,) = rows_of(queue_batches(opened(path), QUEUE))
    assert (row["queue_offset"], row["size"]) == (1 << 34, 6)
