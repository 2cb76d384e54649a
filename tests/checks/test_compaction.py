"""Compacted topics: traces of a compaction pass, each damage is one finding at its place."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.formats.local import batch_consume_queue as batch
from rmqctl.formats.local import compaction, message
from rmqctl.formats.local.batch_consume_queue import UNIT, UNIT_SIZE
from tests.checks.small_checks import CLEAN, IDS, Log, brief, one_of, run, run_golden, trouble
from tests.conftest import GoldenFolder
from tests.support import damage, golden, snapshot

SET = "5.3.3/compaction/store"
TOPIC = "TP_user_Topic"
BASES = (0, 16560, 66240)
NO_LOG = Log(None, 0)
POSITIONS = "compaction/position-checkpoint"


def log_file(base: int, queue: int = 0) -> str:
    return f"compaction/compactionLog/{TOPIC}/{queue}/{base:020d}"


def cq_file(base: int, queue: int = 0) -> str:
    return f"compaction/compactionCq/{TOPIC}/{queue}/{base:020d}"


def check(root: Path, *, live: bool = False):
    return run("compaction", root, log=NO_LOG, live=live)


@pytest.fixture(scope="module")
def store(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy for all tests that put back what they change."""
    return snapshot.copy_tree(golden(SET), tmp_path_factory.mktemp("compaction") / "store")


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    return golden_copy(SET)


def row(root: Path, base: int, number: int) -> batch.UnitRecord:
    return batch.decode((root / cq_file(base)).read_bytes(), number * UNIT_SIZE)


def records(root: Path, base: int) -> list[message.Record]:
    """The messages of a log file, read one after the other."""
    data, at, texts = (root / log_file(base)).read_bytes(), 0, []
    while int.from_bytes(data[at + 4:at + 8], "big") in message.VERSIONS:
        texts.append(message.decode(data, at))
        at += texts[-1].total_size
    return texts


def changed(root: Path, file: str, at: int, data: bytes):
    """The findings with some bytes changed, which are then put back."""
    done = damage.write(root, file, at, data)
    try:
        return check(root)
    finally:
        damage.undo(root, done)


# -- legal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden_store", CLEAN, ids=IDS)
def test_no_finding_on_a_cleanly_closed_store(golden_store: golden.GoldenStore,
                                              golden: GoldenFolder) -> None:
    assert run_golden("compaction", golden_store, golden(golden_store.id)) == []


@pytest.mark.parametrize("state", ["compaction-before", "compaction-after-1st"])
def test_the_states_between_compactions_are_legal(state: str, golden: GoldenFolder, root: Path,
                                                  tmp_path: Path) -> None:
    damage.remove_folder(root, "compaction")
    snapshot.copy_tree(golden("5.3.3/compaction") / state, root / "compaction")
    assert check(root) == []


def test_everything_was_looked_at(store: Path) -> None:
    assert [len(records(store, base)) for base in BASES] == [19, 2, 10]
    assert row(store, 0, 19) == compaction.END_UNIT
    assert row(store, 66240, 10) == batch.ZERO


def test_traces_of_a_compaction_are_legal(root: Path) -> None:
    queue = (root / log_file(0)).parent
    (queue / "compacting").mkdir()
    (queue / "compacting" / f"{0:020d}").write_bytes(b"half done")
    (queue / f"{33120:020d}.delete").write_bytes(b"old")
    assert check(root) == []


@pytest.mark.parametrize("base", BASES)
def test_garbage_behind_the_blank_or_the_end_unit_is_legal(base: int, store: Path) -> None:
    """Nobody reads what lies there."""
    if row(store, base, 19) == compaction.END_UNIT:
        end = sum(record.total_size for record in records(store, base))
        assert changed(store, log_file(base), end + 8, b"\x55" * 300) == []
    else:
        assert changed(store, cq_file(base), 919, b"\0") == []


# -- the log -------------------------------------------------------------------------------------


def test_a_body_that_does_not_match_its_crc(store: Path) -> None:
    record = next(node for node in records(store, 0) if node.body)
    at = record.physical_offset + 88
    finding, what = one_of(changed(store, log_file(0), at, bytes([record.body[0] ^ 1])), store)
    assert what == ("compaction", log_file(0), record.physical_offset)
    assert (finding.length, finding.queue_offset) == (record.total_size, record.queue_offset)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("field", "data"), [(4, b"\0\0\0\0"), (28, struct.pack(">q", 5)),
                                             (0, struct.pack(">i", 95))])
def test_a_record_that_is_none(base: int, field: int, data: bytes, store: Path) -> None:
    """One damaged record costs one finding; its row is not accused too."""
    for record in records(store, base)[:3]:
        at = record.physical_offset - base
        finding, what = one_of(changed(store, log_file(base), at + field, data), store)
        assert what == ("compaction", log_file(base), at), finding
        assert finding.length == record.total_size


def test_a_record_of_another_queue(store: Path) -> None:
    record = records(store, 0)[3]
    finding, what = one_of(changed(store, log_file(0), record.physical_offset + 12,
                                   struct.pack(">i", 1)), store)
    assert what == ("compaction", log_file(0), record.physical_offset)
    assert "queue" in finding.detail


def test_a_blank_that_lies(store: Path) -> None:
    end = sum(record.total_size for record in records(store, 0))
    _, what = one_of(changed(store, log_file(0), end, b"\x01"), store)
    assert what == ("compaction", log_file(0), end)


# -- the queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 5, 18])
@pytest.mark.parametrize(("field", "value"), [
    ("physical_offset", 1), ("physical_offset", 1 << 40), ("physical_offset", -2), ("size", 4000),
    ("size", 0), ("tags_code", 12345), ("store_timestamp", 1), ("msg_base_offset", 0),
    ("batch_size", 2), ("compacted_offset", 0), ("reserved", 1)])
def test_a_wrong_row(number: int, field: str, value: int, store: Path) -> None:
    at = number * UNIT_SIZE
    data = UNIT.build(row(store, 0, number)._replace(**{field: value}))
    finding, what = one_of(changed(store, cq_file(0), at, data), store)
    assert what == ("compaction", cq_file(0), at + UNIT.field(field).offset), finding
    assert (finding.topic, finding.queue_id, finding.severity) == (TOPIC, 0, "error")


def test_rows_out_of_order(store: Path) -> None:
    pair = b"".join(UNIT.build(row(store, 0, number)) for number in (4, 3))
    _, what = one_of(changed(store, cq_file(0), 3 * UNIT_SIZE, pair), store)
    assert what == ("compaction", cq_file(0),
                    4 * UNIT_SIZE + UNIT.field("msg_base_offset").offset)


def test_zeros_among_the_rows(store: Path) -> None:
    findings = changed(store, cq_file(0), 3 * UNIT_SIZE, bytes(2 * UNIT_SIZE))
    gone = records(store, 0)[3:5]
    assert brief(findings, store) == [
        ("compaction", cq_file(0), 3 * UNIT_SIZE),
        ("compaction", log_file(0), gone[0].physical_offset)]
    assert (findings[1].count, findings[1].length) == (2, sum(record.total_size for record in gone))


@pytest.mark.parametrize(("base", "number", "severity"), [(66240, 9, "warning"), (0, 18, "error")])
def test_the_last_row_was_never_written(base: int, number: int, severity: str,
                                        store: Path) -> None:
    """A crash between log and queue leaves this, but only at the very end."""
    data = (compaction.build(compaction.END_UNIT) if base == 0 else b"").ljust(
        (20 - number) * UNIT_SIZE, b"\0")
    finding, what = one_of(changed(store, cq_file(base), number * UNIT_SIZE, data), store)
    last = records(store, base)[-1]
    assert what == ("compaction", log_file(base), last.physical_offset - base)
    assert finding.severity == severity


def test_rows_missing_in_the_middle_of_the_last_file(store: Path) -> None:
    findings = changed(store, cq_file(66240), 3 * UNIT_SIZE, bytes(UNIT_SIZE))
    assert [(finding.category, finding.severity)
            for finding in findings] == [("compaction", "error")] * 2


def test_nothing_is_read_behind_the_end_unit(store: Path) -> None:
    data = compaction.build(compaction.END_UNIT) + b"\x01" * UNIT_SIZE
    assert changed(store, cq_file(66240), 10 * UNIT_SIZE, data) == []


def test_garbage_in_the_unused_rows(store: Path) -> None:
    at = 15 * UNIT_SIZE
    _, what = one_of(changed(store, cq_file(66240), at + 21, b"\x01"), store)
    assert what == ("compaction", cq_file(66240), at)


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [log_file(16560), cq_file(16560)])
def test_half_of_a_pair(gone: str, root: Path) -> None:
    damage.remove(root, gone)
    assert brief(check(root), root) == [("file-missing", gone, None)]
    assert check(root, live=True) == [], "a compaction replaces one after the other"


@pytest.mark.parametrize(("data", "category"), [
    (b"", "config-backup"), (b"{", "config-backup"), (b"[]", "config-backup"),
    (b'{"queueOffsetMap":{"a_0":"x"}}', "config-oddity"), (b'{"queueOffsetMap":[]}',
                                                           "config-oddity")])
def test_the_position_file(data: bytes, category: str, root: Path) -> None:
    (root / POSITIONS).write_bytes(data)
    finding, what = one_of(check(root), root)
    assert (what[:2], finding.severity) == ((category, POSITIONS), "warning")


def test_both_position_files(root: Path) -> None:
    for name in (POSITIONS, f"{POSITIONS}.bak"):
        (root / name).write_bytes(b'{"queueOffsetMap":')
    assert brief(check(root), root) == [("config-unreadable", POSITIONS, 18)]
    damage.remove(root, POSITIONS)
    damage.remove(root, f"{POSITIONS}.bak")
    assert check(root) == []


@pytest.mark.parametrize("kind", [damage.fifo, damage.directory, damage.symlink])
def test_no_regular_position_file(kind, root: Path) -> None:
    kind(root, POSITIONS)
    assert brief(check(root), root) == [("file-unreadable", POSITIONS, None)]


def test_sparse_terabytes(root: Path) -> None:
    damage.huge_sparse(root, log_file(66240))
    damage.huge_sparse(root, cq_file(66240))
    assert trouble(check(root)) == []


@pytest.mark.long
@settings(max_examples=60, derandomize=True)
@given(log=st.binary(max_size=300), rows=st.binary(max_size=300),
       units=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200), st.integers(0, 5)),
                      max_size=5), positions=st.binary(max_size=30))
def test_random_bytes(log: bytes, rows: bytes, units: list[tuple[int, int, int]],
                      positions: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.getbasetemp() / "random-compaction"
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    for name in (log_file(0), cq_file(0)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    built = b"".join(UNIT.build(batch.UnitRecord(at, size, 0, 0, base, 1))
                     for at, size, base in units)
    (root / log_file(0)).write_bytes(log)
    (root / cq_file(0)).write_bytes(built + rows)
    (root / POSITIONS).write_bytes(positions)
    for finding in check(root):
        assert finding.structure == "compaction"
