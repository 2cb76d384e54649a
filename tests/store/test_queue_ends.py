"""Where a queue's files end: by where their data ends, whatever holes and zeros lie in it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from rmqctl.broker.timer import TimerFiles
from rmqctl.formats.local import batch_consume_queue as batch_layout
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE, ZERO, UnitRecord, build, decode
from rmqctl.formats.timer import timer_log
from rmqctl.scan import holes
from rmqctl.scan.source import BytesSource, FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.log import commit_log
from rmqctl.store.queue import consume_queue
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import MAX_OPEN, FileQueue, last_used, valid_prefix
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support.reads import count_reads

PAGE = 4096
SIZE = 75 * PAGE  # a multiple of a unit and of a page


def rows(count: int, first: int = 0) -> bytes:
    return b"".join(build(UnitRecord(number * 100, 100, 7))
                    for number in range(first, first + count))


def laid_out(path: Path, pieces: dict[int, bytes], size: int = SIZE) -> FileSource:
    """A file with these pieces, and holes between them."""
    with path.open("wb") as file:
        file.truncate(size)
        for position, data in pieces.items():
            file.seek(position)
            file.write(data)
    return FileSource(str(path))


def first_invalid(data: bytes) -> int:
    return next(position for position in range(0, len(data), UNIT_SIZE)
                if decode(data, position).size <= 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_end_is_that_of_the_last_byte(tmp_path: Path, seed: int) -> None:
    """Of any pieces of data, zeros that are written and holes, at any places."""
    chance = random.Random(seed)
    pieces = {}
    for _ in range(chance.randrange(6)):
        kind = chance.choice([bytes, chance.randbytes])
        pieces[chance.randrange(SIZE - 1)] = kind(chance.choice([1, 20, PAGE, 9 * PAGE]))
    with laid_out(tmp_path / "file", pieces) as source:
        data = source.read(0, source.size)
        for start, end in ((0, len(data)), (5, len(data) - 7), (PAGE, 40 * PAGE), (9, 9)):
            used = len(data[start:end].rstrip(b"\0"))
            assert holes.used_end(source, start, end) == start + used
            assert holes.used_end(BytesSource(data), start, end) == start + used
            if used:
                assert start + used <= holes.data_end(source, start, end) <= end


@pytest.mark.parametrize("hole", [True, False])
@pytest.mark.parametrize("zeroed", [0, 1, 3])
def test_a_zeroed_page_hides_no_entry_behind_it(tmp_path: Path, zeroed: int, *, hole: bool) -> None:
    """Neither as a hole nor as zeros that are written."""
    data = rows(PAGE)  # 20 pages
    pieces = {0: data[:zeroed * PAGE], (zeroed + 1) * PAGE: data[(zeroed + 1) * PAGE:]}
    if not hole:
        pieces[zeroed * PAGE] = bytes(PAGE)
        pieces[20 * PAGE] = bytes(SIZE - 20 * PAGE)
    path = tmp_path / "00000000000000000000"
    with laid_out(path, pieces) as source:
        assert last_used(source, SIZE) == PAGE * UNIT_SIZE
        used = first_invalid(source.read(0, SIZE))
        for room in (SIZE, used, used - 1, -5):
            kept: list[bytes] = []
            assert valid_prefix(source, SIZE, kept, room) == used
            assert b"".join(kept) == (
                source.read(0, used) if room >= used else b"")
    queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
    assert queue.disk_end == queue.valid_end == PAGE
    assert sum(count for _, count in queue.parts(100)) == PAGE
    assert queue.unit(PAGE - 1) == UnitRecord((PAGE - 1) * 100, 100, 7)
    late = queue.late_unit()  # without a hole at the end, the last unit of a recovery
    last = PAGE if hole else used // UNIT_SIZE
    assert (None if late is None else late.physical_offset) == ((last - 1) * 100 if last else None)
    queue.close()


def test_a_late_unit_is_found_without_reading_the_queue(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00000000000000000000"
    laid_out(path, {0: rows(PAGE)}).close()
    reads = count_reads(monkeypatch)
    queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
    assert queue.late_unit() == UnitRecord((PAGE - 1) * 100, 100, 7)
    assert queue.valid_end == PAGE
    assert 0 < sum(reads) < 6 * PAGE
    queue.close()


@pytest.mark.parametrize("wrong", [b"\xff" * UNIT_SIZE, b"\1", bytes(UNIT_SIZE - 1) + b"\1",
                                   bytes(3 * PAGE) + b"\xff" * PAGE])
def test_wrong_bytes_at_the_end_do_not_hide_the_last_valid_unit(
        tmp_path: Path, wrong: bytes) -> None:
    path = tmp_path / "00000000000000000000"
    laid_out(path, {0: rows(PAGE) + wrong}).close()
    queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
    assert queue.late_unit() == UnitRecord((PAGE - 1) * 100, 100, 7)
    assert queue.valid_end == PAGE
    queue.close()


@pytest.mark.parametrize("count", [0, 1, 2, 204, 205, 5000, SIZE // UNIT_SIZE])
@pytest.mark.parametrize("hole", [True, False])
def test_what_is_read_is_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int,
                                      *, hole: bool) -> None:
    data = rows(count)
    path = tmp_path / "00000000000000000000"
    laid_out(path, {0: data if hole else data.ljust(SIZE, b"\0")}).close()
    read = count_reads(monkeypatch)
    queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
    assert (queue.written, queue.disk_end) == (count, count)
    assert queue.unit(count - 1) == (UnitRecord((count - 1) * 100, 100, 7) if count else None)
    queue.close()
    written = os.stat(path).st_blocks * 512 if hole else SIZE
    assert sum(read) <= 2 * written + 3 * PAGE  # the leading rows, and the end


@pytest.mark.parametrize("log_end", [1, 100, 20_401, 499_901, 10_000_000])
@pytest.mark.parametrize("count", [0, 1, 204, 5000])
def test_a_broker_ends_a_queue_at_the_same_row_with_holes_and_without(
        tmp_path: Path, count: int, log_end: int) -> None:
    ends = set()
    for name, data in ((0, rows(count)), (SIZE, rows(count).ljust(SIZE, b"\0"))):
        path = tmp_path / f"{name:020}"
        laid_out(path, {0: data}).close()
        queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
        ends.add(queue.truncated(log_end))
        queue.close()
    last = min(count, -(-log_end // 100))
    assert ends == {max(last, 1)}


@pytest.mark.parametrize("seed", range(30))
def test_a_short_queue_ends_where_the_same_entries_in_an_array_do(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(build(chance.choice([
        UnitRecord(number * 100, 100, 7), UnitRecord(number * 100, 100, 7), FILLER, ZERO,
        UnitRecord(-1, 5, 0), UnitRecord(chance.randrange(2_000), -3, 0)]))
        for number in range(chance.randrange(12))) + chance.randbytes(chance.randrange(UNIT_SIZE))
    size = SIZE if seed % 3 else max(UNIT_SIZE, len(data) // UNIT_SIZE * UNIT_SIZE)
    path = tmp_path / f"{0:020}"
    laid_out(path, {0: data[:size]}, size).close()
    ends: list[list[int]] = []
    for few in (consume_queue._FEW, -1):
        monkeypatch.setattr(consume_queue, "_FEW", few)
        ends.append([])
        for whether_read in (False, True):
            queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, size)], [])
            if whether_read:
                assert queue.written >= 0
            ends[-1] += [queue.truncated(log_end) for log_end in range(0, 2_100, 50)]
            queue.close()
    assert ends[0] == ends[1]


@pytest.fixture
def read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is read of files, by the bytes."""
    sizes: list[int] = []
    real = FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda of, place, size: (
        sizes.append(size), real(of, place, size))[1])  # type: ignore[func-returns-value]
    return sizes


def _with_holes(path: Path, data: bytes, size: int) -> StoreFile:
    """A file that begins and ends with these bytes, and takes no space between them."""
    with path.open("wb") as file:
        file.write(data)
        file.seek(size - len(data))
        file.write(data)
    return StoreFile(str(path), path.name, 0, size)


def test_holes_in_a_batch_queue_are_not_read(tmp_path: Path, read_sizes: list[int]) -> None:
    rows = b"".join(batch_layout.UNIT.build(batch_layout.UnitRecord(
        100 * number, 90, 0, 0, number, 1, 0, 0)) for number in range(1, 4))
    size = (1 << 40) // batch_layout.UNIT_SIZE * batch_layout.UNIT_SIZE
    queue = BatchQueue("T", 0, str(tmp_path), [_with_holes(tmp_path / "0", rows, size)], [], size)
    assert queue.used(0)["physical_offset"].tolist() == [100, 200, 300]
    assert {*queue.rows_of(0)["physical_offset"].tolist()} == {0, 100, 200, 300}
    assert queue.bounds(0) == (1, 4)
    assert sum(read_sizes) < 8 << 20


def test_holes_in_the_timer_log_are_not_read(tmp_path: Path, golden: GoldenFolder,
                                             read_sizes: list[int]) -> None:
    store = golden("5.3.3/timer") / "store"
    log = min((store / "timerlog").iterdir()).read_bytes()
    with Store.open(store) as opened:
        timers = TimerFiles.of(opened)
        once = sum(len(units) for _, units in timers.pages())
        units = log[:timer_log.UNIT_SIZE * 3]
        size = (1 << 40) // timer_log.UNIT_SIZE * timer_log.UNIT_SIZE
        timers.files = [_with_holes(tmp_path / "0", units, size)]
        read_sizes.clear()
        unit_pages = [units for _, units in timers.pages()]
    assert once > 3
    assert sum(map(len, unit_pages)) == 6
    assert sum(read_sizes) < 32 << 20


def test_many_queues_ask_once_each_whether_records_follow(golden_copy, monkeypatch):
    root = golden_copy("5.3.3/basic/store")
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    size = (root / "commitlog" / names[0]).stat().st_size
    for number in range(1, 6):  # files without a record
        with open(root / "commitlog" / f"{int(names[-1]) + number * size:020d}", "wb") as file:
            file.truncate(size)
    walks = []
    with Store.open(root) as store:
        log, end = store.log, store.log.end
        walk = commit_log.Walk
        monkeypatch.setattr(commit_log, "Walk", lambda *words: walks.append(words) or walk(*words))
        border = log.record_border(int(names[-1]))
        assert border is not None
        assert all(log.has_record_from(place) for place in range(border, 0, -1000))
        assert not any(log.has_record_from(place) for place in range(end - 5 * size, end, 97))
        assert log.has_record_from(border)
    assert len(walks) <= 2 + 5


def test_queues_keep_few_files_open(tmp_path: Path) -> None:
    """However many queues a store has: those that were read first are closed, and open again."""
    queues = []
    for number in range(3 * MAX_OPEN):
        path = tmp_path / str(number) / "00000000000000000000"
        path.parent.mkdir()
        path.write_bytes(rows(2, number))
        queues.append(FileQueue("topic", number, str(path.parent), listing(str(path.parent)).files,
                                []))
    before = len(os.listdir("/proc/self/fd"))
    for queue in (*queues, *reversed(queues)):
        assert queue.disk_end == 2
        assert [int(row["physical_offset"]) for row in queue.units(0, 2)] == [
            100 * queue.queue_id, 100 * queue.queue_id + 100]
        assert len(os.listdir("/proc/self/fd")) <= before + MAX_OPEN


@pytest.mark.parametrize("count", [0, 1, 203, 204, 205, 206])
def test_few_rows_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                count: int) -> None:
    """However often they are asked for, by other threads too; behind them the file is read."""
    path = tmp_path / "00000000000000000000"
    laid_out(path, {0: rows(count)}).close()
    queue = FileQueue("T", 0, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
    assert (queue.written, queue.disk_end) == (count, count)
    read = count_reads(monkeypatch)
    for batch in (queue, queue.again()):
        assert batch.units(0, count).tobytes() == rows(count)
        assert (batch.written, batch.disk_end) == (count, count)
    assert sum(read) <= (2 * count * UNIT_SIZE if count > PAGE // UNIT_SIZE else 0)
    with path.open("r+b") as file:
        file.seek(count * UNIT_SIZE)
        file.write(rows(1, count))
    assert queue.units(0, count + 1).tobytes() == rows(count + 1)
    queue.close()


def test_no_more_rows_are_kept_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00000000000000000000"
    laid_out(path, {0: rows(50)}).close()
    before = FileQueue.kept
    monkeypatch.setattr(consume_queue, "MAX_KEPT", before + 1)
    queues = [FileQueue("T", number, str(tmp_path), [StoreFile(str(path), path.name, 0, SIZE)], [])
              for number in range(3)]
    assert [queue.disk_end for queue in queues] == [50] * 3
    assert FileQueue.kept == before + 1_000
    assert [queue.units(0, 50).tobytes() for queue in queues] == [rows(50)] * 3
    queues.clear()
    assert FileQueue.kept == before
