"""Rows of a batch consumequeue: each kind of damage in its category, at its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.checks.verify import config
from rmqctl.checks.verify.queue.batch_rows import batch_expected
from rmqctl.formats.local import batch_consume_queue as batch
from rmqctl.formats.local import message
from rmqctl.formats.local.batch_consume_queue import UNIT, UNIT_SIZE
from rmqctl.store import Store
from tests.checks.small_checks import Changed, Log, log_of, one_of, run
from tests.conftest import GoldenFolder
from tests.support import damage, snapshot
from tests.support import tiny as tiny_stores

SET = "5.3.3/batchcq/store"
ROWS = [f"batchconsumequeue/TP_pay_Topic/0/{base:020d}" for base in (0, 736)]


@pytest.fixture(scope="module")
def batches(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for all tests that put back what they change."""
    return snapshot.copy_tree(golden(SET), tmp_path_factory.mktemp("batch") / "store")


@pytest.fixture(scope="module")
def log(batches: Path) -> Log:
    with Store.open(batches) as store:
        return log_of(store)


@pytest.fixture
def changed(batches: Path, log: Log) -> Changed:
    return Changed("extras", batches, log)


def row(root: Path, file: str, number: int) -> batch.UnitRecord:
    return batch.decode((root / file).read_bytes(), number * UNIT_SIZE)


def test_the_golden_rows_are_of_both_kinds(batches: Path) -> None:
    sizes = {row(batches, ROWS[0], number).batch_size for number in range(16)}
    assert {1} < sizes
    assert row(batches, ROWS[1], 3) == batch.ZERO


def test_what_a_record_says_of_its_row(batches: Path) -> None:
    with Store.open(batches) as store:
        for number in range(16):
            unit = row(batches, ROWS[0], number)
            record = store.log.record_at(unit.physical_offset)
            assert record is not None
            assert batch_expected(record) == (unit.msg_base_offset, unit.batch_size)


@pytest.mark.parametrize(("text", "expected"), [
    ("", (9, 1)), ("INNER_NUM\x015", (9, 1)), ("INNER_BASE\x0140", (9, 1)),
    ("INNER_BASE\x0140\x02INNER_NUM\x015\x02", (40, 5)),
    ("INNER_BASE\x01-1\x02INNER_NUM\x015\x02", (-1, 5))])
def test_batch_expected(text: str, expected: tuple[int, int],
                        tiny_base: tiny_stores.Tiny) -> None:
    record = tiny_base.messages[0].record
    stored_message = message.decode(message.build(record))
    stored_message.queue_offset, stored_message.properties = 9, text.encode()
    assert batch_expected(stored_message) == expected


@pytest.mark.parametrize("text", ["INNER_BASE\x01x\x02INNER_NUM\x015",
                                  "INNER_BASE\x011\x02INNER_NUM\x0140000"])
def test_a_number_a_broker_cannot_read(text: str, tiny_base: tiny_stores.Tiny) -> None:
    record = message.decode(message.build(tiny_base.messages[0].record))
    record.properties = text.encode()
    with pytest.raises(ValueError, match="number"):
        batch_expected(record)


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
                     changed: Changed) -> None:
    before = row(batches, ROWS[0], number)
    at = number * UNIT_SIZE
    finding, what = one_of(changed((ROWS[0], at, UNIT.build(
        before._replace(**{field: value})))), batches)
    assert what == (category, ROWS[0], at + UNIT.field(field).offset), finding
    assert (finding.structure, finding.topic, finding.queue_id) == (
        "batchconsumequeue", "TP_pay_Topic", 0)


def test_a_row_of_another_queue(batches: Path, changed: Changed) -> None:
    other = row(batches, "batchconsumequeue/TP_pay_Topic/1/00000000000000000000", 0)
    data = UNIT.build(other)
    finding, what = one_of(changed((ROWS[0], 2 * UNIT_SIZE, data)), batches)
    assert what == ("cq-wrong-offset", ROWS[0], 2 * UNIT_SIZE)
    assert "another queue" in finding.detail


def test_a_row_twice(batches: Path, changed: Changed) -> None:
    data = UNIT.build(row(batches, ROWS[0], 4))
    _, what = one_of(changed((ROWS[0], 5 * UNIT_SIZE, data)), batches)
    assert what == ("cq-duplicate", ROWS[0], 5 * UNIT_SIZE)


def test_two_rows_swapped(batches: Path, changed: Changed) -> None:
    data = b"".join(UNIT.build(row(batches, ROWS[0], number)) for number in (5, 4))
    _, what = one_of(changed((ROWS[0], 4 * UNIT_SIZE, data)), batches)
    assert what == ("cq-out-of-order", ROWS[0],
                    5 * UNIT_SIZE + UNIT.field("msg_base_offset").offset)


@pytest.mark.parametrize(("file", "first", "count"), [(0, 3, 2), (0, 14, 2), (1, 0, 1)])
def test_zeros_among_rows(file: int, first: int, count: int, batches: Path,
                          changed: Changed) -> None:
    finding, what = one_of(changed((ROWS[file], first * UNIT_SIZE, bytes(
        count * UNIT_SIZE))), batches)
    assert what == ("cq-missing-entry", ROWS[file], first * UNIT_SIZE)
    assert finding.count == count


def test_garbage_in_the_unused_rows(batches: Path, changed: Changed) -> None:
    at = 9 * UNIT_SIZE
    _, what = one_of(changed((ROWS[1], at + 13, b"\x09")), batches)
    assert what[:2] == ("cq-wrong-size", ROWS[1])
    assert at <= what[2] < at + UNIT_SIZE


def test_rows_behind_the_end_of_the_log(batches: Path, changed: Changed) -> None:
    """The log was cut: one finding per queue, at its first row beyond the end."""
    cut = Log(None, row(batches, ROWS[1], 1).physical_offset)
    findings = changed(log=cut)
    assert {finding.category for finding in findings} == {"cq-ahead"}
    first = next(finding for finding in findings if finding.file and finding.file.endswith(ROWS[1]))
    assert (first.offset, first.count) == (UNIT_SIZE, 2)
    assert changed(log=cut, live=True) == [], "the log has grown since"


def test_an_expired_log_is_legal(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    damage.remove(root, f"commitlog/{0:020d}")
    assert run("extras", root) == []


def test_a_missing_log_file_loses_rows(golden_copy: GoldenFolder, log: Log) -> None:
    root = golden_copy(SET)
    damage.remove(root, f"commitlog/{49152:020d}")
    findings = run("extras", root, log=log)
    assert {(finding.category, finding.severity) for finding in findings} == {("cq-lost", "info")}
    assert len(findings) > 5


def test_a_row_to_a_damaged_message(batches: Path, log: Log) -> None:
    """Whose fault it is only the log pass can tell: it says where the log is damaged."""
    at = row(batches, ROWS[0], 2).physical_offset
    done = damage.write(batches, f"commitlog/{0:020d}", at + 4, b"\0")
    with Store.open(batches) as store:
        check_queues = list(config.check_queues(store, log.end, live=False,
                                                 in_damage=lambda offset: offset == at))
    damage.undo(batches, done)
    assert [(check_queue.category, check_queue.severity)
            for check_queue in check_queues] == [("cq-lost", "info")]
