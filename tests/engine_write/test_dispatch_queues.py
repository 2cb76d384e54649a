"""Plain and batch consumequeues against the put algorithm in its simplest words."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.engine.dispatch.batch_queue import BatchColumns, BatchQueues
from rmqctl.engine.dispatch.consume_queue import ConsumeQueues, EntryColumns
from rmqctl.engine.dispatch.consume_queue_ext import ConsumeQueueExt
from rmqctl.engine.dispatch.queue_files import FilePool
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.files.aside import AsideFolder
from rmqctl.formats.local import batch_consume_queue as batch_format
from rmqctl.formats.local import consume_queue as format_
from rmqctl.formats.local import consume_queue_ext as ext_format
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE, UnitRecord
from rmqctl.formats.local.names import build_offset
from tests.engine_write.dispatching import derived
from tests.support.share import examples

UNITS = 4
FILE = UNITS * UNIT_SIZE


@dataclass
class Reference:
    """One queue by consumequeue.md §4, row by row."""

    files: dict[int, bytearray] = field(default_factory=dict)
    wrote: int = 0
    last: int | None = None
    first_in_queue: bool = False
    max_physic: int = -1
    gaps: int = 0

    def put(self, phy: int, size: int, code: int, index: int) -> None:
        if phy + size <= self.max_physic:
            return
        expect = index * UNIT_SIZE
        if self.last is None:
            self.last, self.wrote, self.first_in_queue = expect - expect % FILE, 0, True
            self.files[self.last] = bytearray(FILE)
        elif self.wrote == FILE:
            self.last, self.wrote, self.first_in_queue = self.last + FILE, 0, False
            self.files[self.last] = bytearray(FILE)
        if self.first_in_queue and index != 0 and self.wrote == 0:
            for _ in range(expect % FILE // UNIT_SIZE):
                self.append(FILLER)
        if index != 0:
            now = self.last + self.wrote
            if expect < now:
                return
            self.gaps += expect != now
        self.max_physic = phy + size
        self.append(UnitRecord(phy, size, code))

    def append(self, unit: UnitRecord) -> None:
        assert self.last is not None
        self.files[self.last][self.wrote:self.wrote + UNIT_SIZE] = format_.build(unit)
        self.wrote += UNIT_SIZE


STEP = st.tuples(st.integers(0, 2), st.one_of(st.integers(-2, 3), st.just(1), st.just(1)),
                 st.booleans())
"""Which queue, how far its queue offset moves on, whether the place in the log moves on."""


@pytest.mark.long
@settings(max_examples=examples(300))
@given(st.lists(STEP, max_size=60), st.lists(st.integers(0, 3), min_size=3, max_size=3),
       st.integers(1, 20))
def test_rows_as_the_put_algorithm_has_them(steps, first, chunk):
    wanted = [Reference() for _ in range(3)]
    offsets = [item - 1 for item in first]
    phy, rows = 0, []
    for queue, move, further in steps:
        offsets[queue] = max(0, offsets[queue] + move)
        phy += 10 if further else 0  # a message that lists a queue twice has one place
        rows.append((queue, offsets[queue], phy, 10, phy * 7))
        wanted[queue].put(phy, 10, phy * 7, offsets[queue])
    with tempfile.TemporaryDirectory() as folder:
        pool = FilePool(AsideFolder(folder), 2)  # fewer descriptors than files
        queues = ConsumeQueues(folder, FILE, pool)
        for queue in range(3):
            queues.number((f"t{queue}", queue))
        for at in range(0, len(rows), chunk):
            columns = [np.array(data, np.int64) for data in zip(*rows[at:at + chunk], strict=True)]
            queues.put(EntryColumns(*columns))
        pool.flush()
        assert pool.dirty == []
        pool.close()
        derived_files = derived(Path(folder))
    assert derived_files == {f"consumequeue/t{number}/{number}/{build_offset(base)}": bytes(data)
                             for number, reference in enumerate(wanted)
                             for base, data in reference.files.items()}
    for number, reference in enumerate(wanted):
        state = queues.queues[number]
        assert state.max_physic == reference.max_physic
        assert state.end == (0 if reference.last is None
                             else (reference.last + reference.wrote) // UNIT_SIZE)
    assert queues.gaps == sum(reference.gaps for reference in wanted)


def rows(queue: int, first: int, count: int, phy: int = 0) -> EntryColumns:
    array = np.arange(count, dtype=np.int64)
    return EntryColumns(np.full(count, queue), first + array, phy + 100 * array,
                        np.full(count, 100),                         np.full(count, 5))


def put(root: Path, some: EntryColumns, log_end: int | None = None) -> ConsumeQueues:
    pool = FilePool(AsideFolder(str(root)))
    queues = ConsumeQueues(str(root), FILE, pool, log_end)
    queues.number(("t", 0))
    queues.put(some)
    pool.close()
    return queues


def test_a_queue_of_fillers_only_takes_rows(tmp_path):
    put(tmp_path, rows(0, 2, 1))
    file = tmp_path / "consumequeue/t/0" / build_offset(0)
    file.write_bytes(format_.build(FILLER) * 2 + bytes(FILE - 2 * UNIT_SIZE))
    queues = put(tmp_path, rows(0, 2, 1))
    assert (queues.queues[0].end, queues.queues[0].max_physic) == (3, 100)


def test_an_emptied_first_file_gets_no_fillers(tmp_path):
    folder = tmp_path / "consumequeue/t/0"
    folder.mkdir(parents=True)
    (folder / build_offset(FILE)).write_bytes(bytes(FILE))
    queues = put(tmp_path, rows(0, 6, 1))
    assert (queues.gaps, queues.queues[0].end) == (1, UNITS + 1)


def test_a_last_file_without_a_size_is_taken_for_a_new_one(tmp_path):
    put(tmp_path, rows(0, 0, 4))
    (tmp_path / "consumequeue/t/0" / build_offset(FILE)).touch()
    put(tmp_path, rows(0, 4, 1, 400))
    derived_files = derived(tmp_path)
    assert [len(derived_file) for derived_file in derived_files.values()] == [FILE, FILE]
    assert format_.decode(
        derived_files[f"consumequeue/t/0/{build_offset(FILE)}"]).physical_offset == 400


@pytest.mark.parametrize("offset", [-1, -(1 << 62), 1 << 62, (1 << 63) - 1])
def test_queue_offsets_no_queue_can_have_are_left_out(offset, tmp_path):
    some = rows(0, 0, 3)
    some.offset[1] = offset
    queues = put(tmp_path, some)
    assert (queues.refused, queues.gaps) == (1, 1)
    assert queues.queues[0].end == 2


@pytest.mark.parametrize("first", [0, 2])
def test_rows_that_were_written_before_an_error_are_not_lost_or_doubled(first, tmp_path,
                                                                        monkeypatch):
    pool = FilePool(AsideFolder(str(tmp_path)))
    queues = ConsumeQueues(str(tmp_path), FILE, pool)
    queues.number(("t", 0))
    some = rows(0, first, 11)
    real, created = FilePool.create, iter("ab")

    def create(self, path, size):
        if next(created, None) is None:
            raise StoreIOError("no more files")
        real(self, path, size)

    with monkeypatch.context() as patch:
        patch.setattr(FilePool, "create", create)
        with pytest.raises(StoreIOError, match="no more files"):
            queues.put(some)
    assert queues.queues[0].end == 8
    assert queues.queues[0].max_physic == 100 * (8 - first)
    queues.put(some)
    pool.close()
    units = [unit for data in derived(tmp_path).values()
             for unit in format_.UNIT.decode_all(data) if unit.is_valid and not unit.is_filler]
    assert [unit.physical_offset for unit in units] == list(range(0, 1100, 100))
    assert queues.gaps == 0


def test_files_of_another_size_are_refused(tmp_path):
    put(tmp_path, rows(0, 0, 1))
    with pytest.raises(RefusedError, match=f"{build_offset(0)}: has {FILE} bytes"):
        ConsumeQueues(str(tmp_path), 2 * FILE, FilePool(AsideFolder(str(tmp_path))))


def test_all_rows_behind_the_log_start_the_queue_anew(tmp_path):
    put(tmp_path, rows(0, 0, 9, 1000))
    queues = put(tmp_path, rows(0, 2, 1, 500), log_end=900)
    assert queues.queues[0].end == 3
    (name, data), = derived(tmp_path).items()
    assert name.endswith(build_offset(0))
    assert list(format_.UNIT.decode_all(data)) == [FILLER, FILLER, UnitRecord(500, 100, 5),
                                                  format_.ZERO]


# -- extension units --------------------------------------------------------------------------


def test_extension_units_that_cannot_be(tmp_path):
    pool = FilePool(AsideFolder(str(tmp_path)))
    consume_queue_ext = ConsumeQueueExt(str(tmp_path), ("t", 0), 100, pool)
    assert consume_queue_ext.put(1, 2, bytes(77)) is None  # the end mark must have room
    assert consume_queue_ext.put(1, 2, bytes(76)) == ext_format.address(0)
    assert consume_queue_ext.put(1, 2, None) == ext_format.address(100)
    data = b"".join(derived(tmp_path).values())
    assert data[96:98] == ext_format.END_MARK
    assert consume_queue_ext.put(1, 2,
                                 bytes(57)) == ext_format.address(200)  # the mark needs its room
    big = ConsumeQueueExt(str(tmp_path), ("u", 0), 1 << 20, pool)
    assert big.put(1, 2, bytes(ext_format.MAX_SIZE - ext_format.HEAD_SIZE + 1)) is None
    assert big.put(1, 2, bytes(ext_format.MAX_SIZE - ext_format.HEAD_SIZE)) is not None
    pool.close()


def test_extension_units_of_rows_that_are_not_there_are_written_over(tmp_path):
    pool = FilePool(AsideFolder(str(tmp_path)))
    consume_queue_ext = ConsumeQueueExt(str(tmp_path), ("t", 0), 100, pool)
    first = [consume_queue_ext.put(code, 2, bytes(10)) for code in range(6)]
    again = ConsumeQueueExt(str(tmp_path), ("t", 0), 100, pool, first[2])
    assert again.put(9, 2, bytes(10)) == first[3]
    assert len(list((tmp_path / "consumequeue_ext/t/0").iterdir())) == 2
    onward = ConsumeQueueExt(str(tmp_path), ("t", 0), 100, pool)
    assert onward.put(9, 2, bytes(10)) == first[4]
    anew = ConsumeQueueExt(str(tmp_path), ("t", 0), 100, pool, unused=True)
    assert anew.put(9, 2, bytes(10)) == first[0]
    pool.close()


# -- batch queues -----------------------------------------------------------------------------


def batch_rows(*some: tuple[int, int, int]) -> BatchColumns:
    """(place, first queue offset, how many)."""
    place, base, count = (np.array(data, np.int64) for data in zip(*some, strict=True))
    same = np.zeros(len(place), np.int64)
    return BatchColumns(same, place, same + 10, same, same + 7, base, count)


def test_batch_rows(tmp_path):
    size = 2 * batch_format.UNIT_SIZE
    pool = FilePool(AsideFolder(str(tmp_path)))
    queues = BatchQueues(str(tmp_path), size, pool)
    queues.number(("t", 0))
    queues.put(batch_rows((0, 0, 3), (10, 3, 1), (20, -1, 1), (30, 4, -1), (40, 9, 0)))
    queues.put(batch_rows((10, 3, 1), (40, 9, 0), (50, 9, 2)))
    pool.close()
    assert queues.refused == 2
    assert (queues.queues[0].max_physic, queues.queues[0].next_offset) == (50, 11)
    data = b"".join(derived(tmp_path).values())
    units = list(batch_format.UNIT.decode_all(data))
    assert [(unit.physical_offset, unit.msg_base_offset, unit.batch_size, unit.compacted_offset)
            for unit in units] == [(0, 0, 3, -1), (10, 3, 1, -1), (40, 9, 0, -1), (50, 9, 2, -1)]


def test_batch_rows_of_a_cut_log(tmp_path):
    size = 2 * batch_format.UNIT_SIZE
    pool = FilePool(AsideFolder(str(tmp_path)))
    queues = BatchQueues(str(tmp_path), size, pool)
    queues.number(("t", 0))
    queues.put(batch_rows(*((10 * at, at, 1) for at in range(7))))
    for log_end, left in ((30, 3), (20, 2), (0, 0)):
        queues = BatchQueues(str(tmp_path), size, pool, log_end)
        assert queues.queues[0].next_offset == left
        queues.put(batch_rows((0, 0, 1)))  # is there, unless nothing is left
        data = b"".join(derived(tmp_path).values())
        units = list(batch_format.UNIT.decode_all(data))
        assert sum(unit.is_valid for unit in units) == max(left, 1)
        assert units[:max(left, 1)] == [unit for unit in units if unit.is_valid]
    pool.close()


def test_a_batch_file_size_that_is_no_multiple(tmp_path):
    with pytest.raises(UsageError, match="not a multiple of 46"):
        BatchQueues(str(tmp_path), 100, FilePool(AsideFolder(str(tmp_path)))).number(("t", 0))
