"""Epoch file, identity, extension units and batch rows: legal ones pass, damage is placed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.checks.extras import ExtReader, batch_expected
from rmqctl.errors import FormatError
from rmqctl.formats import batch_consume_queue as batch
from rmqctl.formats import consume_queue_ext as ext
from rmqctl.formats import epoch, message
from rmqctl.formats.batch_consume_queue import UNIT, UNIT_SIZE
from rmqctl.store import Store
from tests.checks.told import CLEAN, IDS, Log, log_of, one_of, run, run_golden, told, trouble
from tests.conftest import GoldenFolder
from tests.support import damage, golden, snapshot
from tests.support import tiny as tiny_stores

BATCH_SET, EXT_SETS = "5.3.3/batchcq/store", ("4.9.3/cqext/store", "5.3.3/cqext/store")
ROWS = [f"batchconsumequeue/TP_pay_Topic/0/{base:020d}" for base in (0, 736)]
UNITS = [f"consumequeue_ext/TP_order_Topic/0/{base:020d}" for base in (0, 2048)]
EPOCHS, IDENTITY = "epochFileCheckpoint", "brokerIdentity"


def copies(name: str, golden: GoldenFolder, factory: pytest.TempPathFactory) -> Path:
    return snapshot.copy_tree(golden(name), factory.mktemp("extras") / "store")


@pytest.fixture(scope="module")
def batches(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for all tests that put back what they change."""
    return copies(BATCH_SET, golden, tmp_path_factory)


@pytest.fixture(scope="module")
def batch_log(batches: Path) -> Log:
    with Store.open(batches) as store:
        return log_of(store)


@pytest.fixture(scope="module")
def units(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copies(EXT_SETS[0], golden, tmp_path_factory)


def changed(root: Path, *changes: tuple[str, int, bytes], log: Log | None = None,
            live: bool = False):
    """The findings with some bytes changed, which are then put back."""
    done = [damage.write(root, file, at, data) for file, at, data in changes]
    try:
        return run("extras", root, log=log, live=live)
    finally:
        for one in reversed(done):
            damage.undo(root, one)


@pytest.mark.parametrize("each", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(each: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("extras", each, golden(each.id)) == []


@pytest.mark.parametrize("name", tiny_stores.VARIANTS)
def test_no_finding_on_a_tiny_store(name: str, tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", name)
    dirs = store.options.commitlog_dirs
    assert run("extras", store.root, dirs if dirs != ("commitlog",) else ()) == []


# -- epoch file and identity -----------------------------------------------------------------------


def test_an_epoch_file(tiny: tiny_stores.Tiny) -> None:
    root, good = tiny.root, epoch.build([epoch.Epoch(1, 0), epoch.Epoch(3, 900)])
    (root / EPOCHS).write_bytes(good)
    assert run("extras", root) == []
    bad = good.replace(b"3-900", b"3-901")
    (root / EPOCHS).write_bytes(bad)
    found, what = one_of(run("extras", root), root)
    assert (what, found.severity) == (("epoch-file", EPOCHS, good.index(b"\n") + 1), "error")
    (root / f"{EPOCHS}.bak").write_bytes(good)
    found, what = one_of(run("extras", root), root)
    assert (what[0], found.severity) == ("epoch-file", "warning")
    (root / f"{EPOCHS}.bak").write_bytes(bad)
    assert run("extras", root)[0].severity == "error"


@pytest.mark.parametrize(("data", "offset"), [
    (b"", 0), (b"x\n0\n", 0), (b"2\n0\n1-0\n", 0), (b"1\n0\n1_0\n", 4), (b"1\n", 2)])
def test_a_damaged_epoch_file(data: bytes, offset: int, tiny: tiny_stores.Tiny) -> None:
    (tiny.root / EPOCHS).write_bytes(data)
    _, what = one_of(run("extras", tiny.root), tiny.root)
    assert what == ("epoch-file", EPOCHS, offset)


@pytest.mark.parametrize(("data", "offset"), [
    (b"cluster#broker-a#1", None), (b"cluster#broker-a#1\n", None), (b"", 0), (b"c#b", 3),
    (b"c#b#x", 4), (b"c##1", 2)])
def test_the_identity(data: bytes, offset: int | None, tiny: tiny_stores.Tiny) -> None:
    (tiny.root / IDENTITY).write_bytes(data)
    expected = [] if offset is None else [("small-file", IDENTITY, offset)]
    assert told(run("extras", tiny.root), tiny.root) == expected


@pytest.mark.parametrize("name", [EPOCHS, IDENTITY, "brokerIdentity-temp"])
def test_no_regular_file(name: str, tiny: tiny_stores.Tiny) -> None:
    (tiny.root / name).mkdir()
    assert told(run("extras", tiny.root), tiny.root) == [("file-unreadable", name, None)]


# -- extension units -------------------------------------------------------------------------------


def steps(root: Path, file: str) -> list[ext.Step]:
    return [step for step in ext.walk((root / file).read_bytes()) if step.unit]


def test_the_golden_extension_is_long_enough(units: Path) -> None:
    assert len(steps(units, UNITS[0])) > 50
    assert ext.END_MARK in (units / UNITS[0]).read_bytes()
    assert len({step.size for step in steps(units, UNITS[0])}) > 1


@pytest.mark.parametrize("name", EXT_SETS)
def test_units_by_address(name: str, golden: GoldenFolder) -> None:
    """Every row of every queue leads to the unit which a plain walk of the files finds there."""
    root = golden(name)
    asked = 0
    with Store.open(root) as store:
        for (topic, queue_id), queue in store.queues.items():
            walked = {int(file.name) + step.at: step.unit
                      for file in (root / f"consumequeue_ext/{topic}/{queue_id}").iterdir()
                      for step in ext.walk(file.read_bytes()) if step.unit}
            with ExtReader(store, topic, queue_id) as reader:
                for number in range(queue.first_index, queue.written):
                    row = queue.unit(number)
                    assert row is not None
                    unit = reader.unit(row.tags_code)
                    assert unit == walked[ext.byte_offset(row.tags_code)]
                    asked += 1
                for address in (0, 77, -5, ext.address(1 << 40), ext.address(3), -(1 << 63) - 1):
                    assert reader.unit(address) is None, address
    assert asked > 100


def test_pages_of_units(tmp_path: Path) -> None:
    """Units of the largest size, asked in any order over several pages."""
    folder = tmp_path / "consumequeue_ext/t/0"
    folder.mkdir(parents=True)
    (tmp_path / "commitlog").mkdir()
    made = [ext.make(number, 5, bytes([number % 251]) * (number * 977 % 32_700))
            for number in range(40)]
    data, places = b"", []
    for unit in made:
        places.append(len(data))
        data += ext.build(unit)
    (folder / f"{4096:020d}").write_bytes(data + bytes(100))
    with Store.open(tmp_path) as store, ExtReader(store, "t", 0) as reader:
        for number in [*range(40), *range(39, -1, -3), 7, 31, 7]:
            assert reader.unit(ext.address(4096 + places[number])) == made[number]
        assert reader.unit(ext.address(4095)) is None
    with Store.open(tmp_path) as store, ExtReader(store, "nobody", 0) as reader:
        assert reader.unit(ext.address(0)) is None


@pytest.mark.parametrize("field", ["size", "bit_map_size"])
@pytest.mark.parametrize("value", [21, 33, 400, 2500, -1, -7, 0, 19])
@pytest.mark.parametrize("number", [0, 7, 50])
def test_a_wrong_size_is_one_unit(number: int, value: int, field: str, units: Path) -> None:
    step = steps(units, UNITS[0])[number]
    assert step.unit is not None
    at = step.at + (0 if field == "size" else 18)
    if (field, value) in (("size", -1), ("bit_map_size", len(step.unit.bit_map))):
        return  # an end mark, or what it is anyway
    found, what = one_of(changed(units, (UNITS[0], at, struct.pack(">h", value))), units)
    assert what == ("cq-ext", UNITS[0], step.at)
    assert (found.topic, found.queue_id, found.structure) == (
        "TP_order_Topic", 0, "consumequeue_ext")


def test_zeros_among_units(units: Path) -> None:
    step = steps(units, UNITS[0])[9]
    found, what = one_of(changed(units, (UNITS[0], step.at, bytes(step.size))), units)
    assert what == ("cq-ext", UNITS[0], step.at)
    assert found.length == step.size + len(struct.pack(">h", 1)) - 1


def test_the_end_mark_of_a_file_that_another_one_follows(units: Path) -> None:
    last = steps(units, UNITS[0])[-1]
    _, what = one_of(changed(units, (UNITS[0], last.at + last.size, b"\0\0")), units)
    assert what == ("cq-ext", UNITS[0], last.at + last.size)


def test_the_last_file_ends_before_the_rows_do(units: Path) -> None:
    last = steps(units, UNITS[1])[-1]
    _, what = one_of(changed(units, (UNITS[1], last.at, bytes(last.size))), units)
    assert what == ("cq-ext", UNITS[1], last.at)


def test_what_a_recovery_cut_off_is_legal(units: Path) -> None:
    """Stale bytes behind the last unit a row leads to."""
    last = steps(units, UNITS[1])[-1]
    stale = b"\x00\x05" + b"\x77" * 60
    assert changed(units, (UNITS[1], last.at + last.size, stale)) == []


# -- batch rows ------------------------------------------------------------------------------------


def row(root: Path, file: str, number: int) -> batch.UnitRecord:
    return batch.decode((root / file).read_bytes(), number * UNIT_SIZE)


def test_the_golden_rows_are_of_both_kinds(batches: Path) -> None:
    sizes = {row(batches, ROWS[0], number).batch_size for number in range(16)}
    assert {1} < sizes
    assert row(batches, ROWS[1], 3) == batch.ZERO


def test_what_a_record_says_of_its_row(batches: Path) -> None:
    with Store.open(batches) as store:
        for number in range(16):
            one = row(batches, ROWS[0], number)
            record = store.log.record_at(one.physical_offset)
            assert record is not None
            assert batch_expected(record) == (one.msg_base_offset, one.batch_size)


@pytest.mark.parametrize(("text", "expected"), [
    ("", (9, 1)), ("INNER_NUM\x015", (9, 1)), ("INNER_BASE\x0140", (9, 1)),
    ("INNER_BASE\x0140\x02INNER_NUM\x015\x02", (40, 5)),
    ("INNER_BASE\x01-1\x02INNER_NUM\x015\x02", (-1, 5))])
def test_batch_expected(text: str, expected: tuple[int, int],
                        tiny_base: tiny_stores.Tiny) -> None:
    record = tiny_base.messages[0].record
    made = message.decode(message.build(record))
    made.queue_offset, made.properties = 9, text.encode()
    assert batch_expected(made) == expected


@pytest.mark.parametrize("text", ["INNER_BASE\x01x\x02INNER_NUM\x015",
                                  "INNER_BASE\x011\x02INNER_NUM\x0140000"])
def test_a_number_a_broker_cannot_read(text: str, tiny_base: tiny_stores.Tiny) -> None:
    made = message.decode(message.build(tiny_base.messages[0].record))
    made.properties = text.encode()
    with pytest.raises(ValueError, match="number"):
        batch_expected(made)


@pytest.mark.parametrize("number", [0, 3, 15])
@pytest.mark.parametrize(("field", "value", "category"), [
    ("physical_offset", 1, "cq-wrong-offset"), ("physical_offset", -1, "cq-wrong-offset"),
    ("physical_offset", 1 << 50, "cq-ahead"), ("size", 95, "cq-wrong-size"),
    ("size", 40_000, "cq-wrong-size"), ("size", -4, "cq-wrong-size"),
    ("tags_code", 4711, "cq-wrong-tag"), ("store_timestamp", 5, "cq-batch"),
    ("msg_base_offset", 1 << 40, "cq-out-of-order"), ("msg_base_offset", -1, "cq-out-of-order"),
    ("batch_size", 77, "cq-batch"), ("batch_size", 0, "cq-batch"),
    ("compacted_offset", 3, "cq-batch"), ("reserved", 1, "cq-batch")])
def test_a_wrong_row(number: int, field: str, value: int, category: str, batches: Path,
                     batch_log: Log) -> None:
    before = row(batches, ROWS[0], number)
    at = number * UNIT_SIZE
    found, what = one_of(changed(batches, (ROWS[0], at, UNIT.build(
        before._replace(**{field: value}))), log=batch_log), batches)
    assert what == (category, ROWS[0], at + UNIT.field(field).offset), found
    assert (found.structure, found.topic, found.queue_id) == (
        "batchconsumequeue", "TP_pay_Topic", 0)


def test_a_row_of_another_queue(batches: Path, batch_log: Log) -> None:
    other = row(batches, "batchconsumequeue/TP_pay_Topic/1/00000000000000000000", 0)
    data = UNIT.build(other)
    found, what = one_of(changed(batches, (ROWS[0], 2 * UNIT_SIZE, data), log=batch_log), batches)
    assert what == ("cq-wrong-offset", ROWS[0], 2 * UNIT_SIZE)
    assert "another queue" in found.detail


def test_a_row_twice(batches: Path, batch_log: Log) -> None:
    data = UNIT.build(row(batches, ROWS[0], 4))
    _, what = one_of(changed(batches, (ROWS[0], 5 * UNIT_SIZE, data), log=batch_log), batches)
    assert what == ("cq-duplicate", ROWS[0], 5 * UNIT_SIZE)


def test_two_rows_swapped(batches: Path, batch_log: Log) -> None:
    data = b"".join(UNIT.build(row(batches, ROWS[0], number)) for number in (5, 4))
    _, what = one_of(changed(batches, (ROWS[0], 4 * UNIT_SIZE, data), log=batch_log), batches)
    assert what == ("cq-out-of-order", ROWS[0],
                    5 * UNIT_SIZE + UNIT.field("msg_base_offset").offset)


@pytest.mark.parametrize(("file", "first", "count"), [(0, 3, 2), (0, 14, 2), (1, 0, 1)])
def test_zeros_among_rows(file: int, first: int, count: int, batches: Path,
                          batch_log: Log) -> None:
    found, what = one_of(changed(batches, (ROWS[file], first * UNIT_SIZE, bytes(
        count * UNIT_SIZE)), log=batch_log), batches)
    assert what == ("cq-missing-entry", ROWS[file], first * UNIT_SIZE)
    assert found.count == count


def test_garbage_in_the_unused_rows(batches: Path, batch_log: Log) -> None:
    at = 9 * UNIT_SIZE
    found = changed(batches, (ROWS[1], at + 13, b"\x09"), log=batch_log)
    _, what = one_of(found, batches)
    assert what[:2] == ("cq-wrong-size", ROWS[1])
    assert at <= what[2] < at + UNIT_SIZE


def test_rows_behind_the_end_of_the_log(batches: Path, batch_log: Log) -> None:
    """The log was cut: one finding per queue, at its first row behind the end."""
    cut = Log(None, row(batches, ROWS[1], 1).physical_offset)
    found = changed(batches, log=cut)
    assert {one.category for one in found} == {"cq-ahead"}
    first = next(one for one in found if one.file and one.file.endswith(ROWS[1]))
    assert (first.offset, first.count) == (UNIT_SIZE, 2)
    assert changed(batches, log=cut, live=True) == [], "the log has grown since"


def test_an_expired_log_is_legal(golden_copy: GoldenFolder) -> None:
    root = golden_copy(BATCH_SET)
    damage.remove(root, f"commitlog/{0:020d}")
    assert run("extras", root) == []


def test_a_missing_log_file_loses_rows(golden_copy: GoldenFolder, batch_log: Log) -> None:
    root = golden_copy(BATCH_SET)
    damage.remove(root, f"commitlog/{49152:020d}")
    found = run("extras", root, log=batch_log)
    assert {(one.category, one.severity) for one in found} == {("cq-lost", "info")}
    assert len(found) > 5


def test_a_row_to_a_damaged_message(batches: Path, batch_log: Log) -> None:
    """Whose fault it is only the log pass can tell: it says where the log is damaged."""
    from rmqctl.checks import extras

    at = row(batches, ROWS[0], 2).physical_offset
    done = damage.write(batches, f"commitlog/{0:020d}", at + 4, b"\0")
    with Store.open(batches) as store:
        found = list(extras.check(store, batch_log.end, live=False,
                                  in_damage=lambda offset: offset == at))
    damage.undo(batches, done)
    assert [(one.category, one.severity) for one in found] == [("cq-lost", "info")]


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [damage.huge_sparse, damage.fifo, damage.symlink])
@pytest.mark.parametrize(("name", "file"), [(BATCH_SET, ROWS[1]), (EXT_SETS[0], UNITS[1])])
def test_strange_files(kind, name: str, file: str, golden_copy: GoldenFolder) -> None:
    """Names and kinds are told by the check of files; here nothing may hang or raise."""
    root = golden_copy(name)
    kind(root, file)
    assert {one.category for one in trouble(run("extras", root))} <= {"cq-ext", "file-unreadable"}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=st.binary(max_size=300), units=st.binary(max_size=200), log=st.binary(max_size=300),
       built=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(-1, 5),
                                st.integers(-1, 3)), max_size=4),
       sizes=st.lists(st.integers(-3, 60), max_size=6), code=st.integers(0, 250))
def test_random_bytes(rows: bytes, units: bytes, log: bytes,
                      built: list[tuple[int, int, int, int]], sizes: list[int], code: int,
                      tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "random-extras"
    made = b"".join(UNIT.build(batch.UnitRecord(at, size, 0, 0, base, count))
                    for at, size, base, count in built)
    chain = b"".join(struct.pack(">hqqh", size, 1, 1, size - 20).ljust(max(size, 20), b"\1")
                     for size in sizes)
    name = f"t/0/{0:020d}"
    for path, data in ((f"batchconsumequeue/{name}", made + rows),
                       (f"consumequeue_ext/{name}", chain + units),
                       (f"consumequeue/{name}", struct.pack(">qiq", 0, 100, code - (1 << 63))),
                       (f"commitlog/{0:020d}", log), (EPOCHS, rows), (IDENTITY, units)):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    for one in run("extras", root, log=Log(None, 1000)):
        assert one.detail
    with Store.open(root) as store, ExtReader(store, "t", 0) as reader:
        for at in range(0, len(chain) + len(units), 7):
            unit = reader.unit(ext.address(at))
            try:
                assert unit == ext.decode(chain + units, at)
            except FormatError:
                assert unit is None
