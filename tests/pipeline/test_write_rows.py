"""Rows to messages, and the spool: what needs no Spark."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.ingest import Preparer
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.ext.spark.source import runs as sorted_runs
from rmqctl.ext.spark.source import write
from rmqctl.ext.spark.source.rows import (
    RECORDED,
    RecordRows,
    is_recorded,
    outgoing,
    put_columns,
    put_schema,
)
from rmqctl.ext.spark.source.write import StoreWriter
from rmqctl.formats.local.message import build, decode
from rmqctl.scan.columns import message_columns
from rmqctl.scan.source import FileSource
from rmqctl.scan.tables import MESSAGE_COLUMNS
from rmqctl.scan.walk import Walk
from rmqctl.store import Store

NAMES = [name for name in MESSAGE_COLUMNS if name != "record"]


@pytest.fixture(scope="module")
def batch(tiny_base) -> pa.RecordBatch:
    path = min((tiny_base.root / "commitlog").iterdir())
    with FileSource(str(path), int(path.name)) as source:
        return message_columns(next(iter(Walk(source))), list(MESSAGE_COLUMNS))


def with_column(batch: pa.RecordBatch, name: str, value) -> pa.RecordBatch:
    """The batch with another value in the second row."""
    values = batch.column(name).to_pylist()
    values[1] = value
    return batch.set_column(batch.schema.get_field_index(name), name,
                            pa.array(values, batch.schema.field(name).type))


def test_columns_make_the_very_records(batch):
    places, records = RecordRows(NAMES, Settings()).columns(batch.select(NAMES))
    assert records.to_pylist() == batch.column("record").to_pylist()
    assert places.tolist() == batch.column("physical_offset").to_pylist()
    least = RecordRows(RECORDED, Settings()).columns(batch.select(RECORDED))
    assert set(least[0].tolist()) == {-1}
    assert [decode(row).body for row in least[1].to_pylist()] == batch.column("body").to_pylist()


BAD = {
    "body damaged": ("body", b"other", "body CRC mismatch"),
    "crc known to be bad": ("crc_ok", False, "body CRC mismatch"),
    "host missing": ("store_host", None, "has no store_host"),
    "body left out": ("body", None, "has no body"),
    "host of IPv6": ("born_host", "[::1]:10", "IPv6"),
    "flag of IPv6": ("sys_flag", 0x10, "sys_flag|address"),
    "no host": ("born_host", "nonsense", "ADDRESS:PORT"),
    "port too large": ("born_host", "10.0.0.1:99999999999", "born_host|port"),
    "no magic": ("magic", "v7", "v7"),
    "topic too long": ("topic", "t" * 200, "topic"),
    "properties too long": ("properties_raw", "k\x01" + "v" * 40_000, "properties"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_is_no_record_is_refused(batch, case):
    column, value, words = BAD[case]
    changed = with_column(batch.select(NAMES), column, value)
    with pytest.raises(RefusedError, match=words):
        RecordRows(NAMES, Settings()).columns(changed)


def test_lost_bytes_of_a_text_are_noticed(batch):
    raw = decode(batch.column("record")[1].as_py())
    raw.properties = b"TAGS\x01\xff\x02" + raw.properties[7:]
    lost = with_column(batch.select(NAMES), "properties_raw",
                       raw.properties.decode("utf-8", "replace"))
    with pytest.raises(RefusedError, match="not UTF-8"):
        RecordRows(NAMES, Settings()).columns(lost)
    exact = with_column(batch.select(["record"]), "record", build(raw))
    assert RecordRows(["record"], Settings()).columns(exact)[1][1].as_py() == build(raw)


@pytest.mark.parametrize("value", [None, b"", b"no record at all, but long enough" * 4])
def test_a_record_that_is_none_is_refused(batch, value):
    changed = with_column(batch.select(["record"]), "record", value)
    with pytest.raises(RefusedError, match="record"):
        RecordRows(["record"], Settings()).columns(changed)


def test_which_columns_mean_what():
    assert is_recorded(RECORDED, None)
    assert is_recorded(["record", "topic"], None)
    assert not is_recorded(["topic", "body", "born_host"], None)
    assert not is_recorded(NAMES, False)
    with pytest.raises(UsageError, match="born_host"):
        is_recorded(["topic", "body"], True)
    with pytest.raises(UsageError, match="missing column: topic, body"):
        is_recorded(["record"], False)


def test_what_a_message_to_be_put_says():
    names = ["topic", "body", "keys", "tags", "properties", "queue_id"]
    given = pa.RecordBatch.from_pydict({
        "topic": ["t", "u"], "body": ["text", "more"], "keys": ["a b", None],
        "tags": ["A", None], "properties": pa.array([[("x", "1")], None], pa.map_(
            pa.string(), pa.string())), "queue_id": pa.array([7, None], pa.int64())})
    schema = put_schema(names)
    batch = pa.RecordBatch.from_arrays(put_columns(given, schema), schema=schema)
    prepare = Preparer(Settings(version="4.9.3"), lambda: "ID")
    first, second = outgoing(batch, prepare)
    assert (first.topic, first.body, first.queue_id) == ("t", b"text", 7)
    assert first.properties == prepare({"x": "1", "TAGS": "A", "KEYS": "a b"})
    assert second.properties == prepare({})
    assert (second.queue_id, second.born_host, second.store_timestamp) == (0, None, None)


def test_properties_that_cannot_be_are_refused():
    batch = pa.RecordBatch.from_pydict({
        "topic": ["t", "u"], "body": [b"b", b"b"], "properties": pa.array(
            [[("x", "1")], [("", "2")]], pa.map_(pa.string(), pa.string()))})
    with pytest.raises(RefusedError, match="of topic u: properties: .* cannot be a property name"):
        outgoing(batch, Preparer(Settings(), lambda: "ID"))


def test_columns_of_wrong_types_are_refused():
    schema = put_schema(["topic", "body", "queue_id"])
    for queue in (["seven"], [1 << 40]):
        given = pa.RecordBatch.from_pydict({"topic": ["t"], "body": ["b"], "queue_id": queue})
        with pytest.raises(UsageError, match="queue_id"):
            put_columns(given, schema)
    with pytest.raises(RefusedError, match="no topic"):
        put_columns(pa.RecordBatch.from_pydict({
            "topic": pa.array([None], pa.string()), "body": ["b"], "queue_id": [1]}), schema)


# -- the writer, task by task ---------------------------------------------------------------------

STORED = StructType([StructField("record", BinaryType())])
SIZES = {"indexSlots": "10", "indexMax": "100", "diskWatermark": "100%"}


def log_of(root) -> list[bytes]:
    with Store.open(str(root)) as store:
        return [batch.bytes_at(number) for batch in store.log.walk()
                for number in range(len(batch))]


def test_only_the_attempt_that_was_returned_counts(batch, tmp_path):
    """Retries and speculation: the same rows are spooled twice, by one of them only in part."""
    target = tmp_path / "new"
    writer = pickle.loads(pickle.dumps(StoreWriter(STORED, {"path": str(target), **SIZES})))
    rows = batch.select(["record"])
    writer.write(iter([rows]))
    writer.write(iter([rows.slice(0, 2)]))
    message = pickle.loads(pickle.dumps(writer.write(iter([rows.slice(0, 3), rows.slice(3)]))))
    assert not target.exists()
    pickle.loads(pickle.dumps(writer)).commit([message, None])
    assert log_of(target) == rows.column("record").to_pylist()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_late_attempt_cannot_bring_a_removed_write_back(batch, tmp_path):
    writer = StoreWriter(STORED, {"path": str(tmp_path / "new"), **SIZES})
    writer.abort([None])
    with pytest.raises(StoreIOError, match="workers and driver"):
        writer.write(iter([batch.select(["record"])]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keep", ["true", "false"])
def test_rows_left_out_move_what_comes_after_them(batch, tmp_path, caplog, keep):
    rows = batch.select(["record"])
    before = [decode(row) for row in rows.column("record").to_pylist()]
    orders = [text for text in before if (text.topic, text.queue_id) == (b"orders", 0)]
    assert [order.queue_offset for order in orders][:3] == [0, 1, 2]
    without = rows.filter(pa.array([text is not orders[1] for text in before]))
    target = tmp_path / "new"
    writer = StoreWriter(STORED, {"path": str(target), "keepQueueOffsets": keep, **SIZES})
    writer.commit([writer.write(iter([without]))])
    texts = [decode(data) for data in log_of(target)]
    assert [text.body for text in texts] == [text.body for text in before if text is not orders[1]]
    kept = [text.queue_offset for text in texts if (text.topic, text.queue_id) == (b"orders", 0)]
    assert kept[:2] == ([0, 2] if keep == "true" else [0, 1])
    assert ("kept a queue offset" if keep == "true" else "got new queue offsets") in caplog.text


def test_who_comes_first_has_the_place(batch, tmp_path):
    """Two writes to one place: the later one is refused, and the store is the first's."""
    target = tmp_path / "new"
    first, second = (StoreWriter(STORED, {"path": str(target), **SIZES}) for _ in range(2))
    rows = batch.select(["record"])
    messages = [first.write(iter([rows])), second.write(iter([rows.slice(0, 1)]))]
    first.commit(messages[:1])
    with pytest.raises(RefusedError, match="exists"):
        second.commit(messages[1:])
    second.abort(messages[1:])
    assert len(log_of(target)) == len(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_the_place_is_taken_while_the_store_is_made(batch, tmp_path, monkeypatch):
    target = tmp_path / "new"
    writer = StoreWriter(STORED, {"path": str(target), **SIZES})
    message = writer.write(iter([batch.select(["record"])]))
    real = write.publish_folder

    def taken(*given: str) -> None:
        target.mkdir()
        (target / "somebody's").write_text("work")
        real(*given)

    monkeypatch.setattr(write, "publish_folder", taken)
    with pytest.raises(StoreIOError, match="publish the store as"):
        writer.commit([message])
    writer.abort([message])
    assert [path.name for path in target.iterdir()] == ["somebody's"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_an_empty_folder_becomes_the_store(batch, tmp_path):
    target = tmp_path / "new"
    target.mkdir()
    writer = StoreWriter(STORED, {"path": f"file://{target}", **SIZES})
    writer.commit([writer.write(iter([batch.select(["record"])]))])
    assert len(log_of(target)) == batch.num_rows


# -- the spool ------------------------------------------------------------------------------------

SCHEMA = sorted_runs.spool_schema(pa.schema([pa.field("text", pa.binary())]))


def rows(places: list[tuple[int, int]]) -> pa.RecordBatch:
    keys, positions = zip(*places, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(positions), pa.array([b"%d/%d" % place for place in places])],
        schema=SCHEMA)


def spooled(folder, tasks: list[list[tuple[int, int]]], run_bytes: int
            ) -> list[sorted_runs.SortedRun]:
    runs = []
    for places in tasks:
        spooler = sorted_runs.Spooler(str(folder), SCHEMA, run_bytes)
        for at in range(0, len(places), 10):
            spooler.add(rows(places[at:at + 10]))
        runs += spooler.finish()
    return runs


@pytest.mark.parametrize("run_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("shuffled", [True, False])
def test_rows_come_back_in_order(tmp_path, monkeypatch, seed, run_bytes, shuffled):
    monkeypatch.setattr(sorted_runs, "BATCH_BYTES", 64)
    monkeypatch.setattr(sorted_runs, "MAX_OPEN", 4)
    draw = random.Random(seed)
    everything = [(draw.randrange(200) - 100, number) for number in range(1000)]
    if not shuffled:
        everything.sort()
    runs = spooled(tmp_path, [everything[at:at + 170] for at in range(0, 1000, 170)], run_bytes)
    (tmp_path / "left by another attempt.arrows").write_bytes(b"no run")
    rows = [row for batch in sorted_runs.merged(str(tmp_path), runs, SCHEMA)
            for row in batch.column("text").to_pylist()]
    assert rows == [b"%d/%d" % entry for entry in sorted(everything)]


def test_few_runs_are_open_at_a_time(tmp_path, monkeypatch):
    """One behind the other costs one open file; all over each other at most the fan-in."""
    monkeypatch.setattr(sorted_runs, "MAX_OPEN", 3)
    opened: list[int] = []
    now = 0

    class Counted(sorted_runs._RunCursor):
        def __init__(self, *given):
            nonlocal now
            now += 1
            super().__init__(*given)
            opened.append(now)

        def advance(self):
            nonlocal now
            super().advance()
            now -= self._batch is None

    monkeypatch.setattr(sorted_runs, "_RunCursor", Counted)
    behind = spooled(tmp_path, [[(number, number)] for number in range(20)], 1)
    assert sum(batch.num_rows for batch in sorted_runs.merged(str(tmp_path), behind, SCHEMA)) == 20
    assert max(opened) == 1
    over = spooled(tmp_path, [[(0, number), (9, number)] for number in range(20)], 1 << 20)
    assert sum(batch.num_rows for batch in sorted_runs.merged(str(tmp_path), over, SCHEMA)) == 40
    assert max(opened) == 3


def test_a_spool_that_cannot_be_read_is_said(tmp_path):
    (run,) = spooled(tmp_path, [[(number, number) for number in range(500)]], 1 << 20)
    path = tmp_path / run.name
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(StoreIOError, match=run.name):
        list(sorted_runs.merged(str(tmp_path), [run], SCHEMA))
    path.unlink()
    with pytest.raises(StoreIOError, match=run.name):
        list(sorted_runs.merged(str(tmp_path), [run], SCHEMA))
    with pytest.raises(StoreIOError, match="save rows in"):
        spooled(tmp_path / "missing", [[(1, 1)]], 1)


def test_lexsort_is_by_key_then_position(tmp_path):
    (run,) = spooled(tmp_path, [[(5, 1), (5, 0), (-3, 9)]], 1 << 20)
    assert (run.first, run.last) == ((-3, 9), (5, 1))
    (batch,) = sorted_runs.merged(str(tmp_path), [run], SCHEMA)
    assert np.array_equal(batch.column("position").to_numpy(), [9, 0, 1])
