from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import MAGIC_V1, MAGIC_V2, Record, build, decode, size_of
from rmqctl.scan.columns import frame_columns, message_columns, schema
from rmqctl.scan.frames import Batch, Span
from rmqctl.scan.source import BytesSource, FileSource
from rmqctl.scan.tables import FRAME_COLUMNS, MESSAGE_COLUMNS
from rmqctl.scan.walk import Walk
from rmqctl.store.objects import message_object
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support.arrow_rows import rows_of
from tests.support.golden import GoldenStore, golden_stores
from tests.support.share import examples, sample

BASE = 1 << 33
NAMES = list(MESSAGE_COLUMNS)


def replaced(value: Any) -> Any:
    """The object's lossless texts as the columns have them."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return [replaced(cell) for cell in value] if isinstance(value, list) else value


def expected(raw: bytes) -> dict[str, Any]:
    """The row of a record, by the message object."""
    record = decode(raw)
    message = message_object(record, body="none")
    pairs = [(replaced(key), replaced(value)) for key, value in message["properties"].items()]
    # Keys that differ in broken bytes only become one, as if the broken text had been parsed.
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    assert properties == dict(pairs) or len(dict(pairs)) < len(pairs)
    return {**{name: replaced(value) for name, value in message.items()},
            "properties": list(properties.items()), "body": record.body, "record": raw}


def check(batch: Batch, names: Sequence[str] = tuple(NAMES)) -> int:
    record_batch = message_columns(batch, names)
    record_batch.validate(full=True)
    assert record_batch.schema == schema(names, MESSAGE_COLUMNS)
    assert record_batch.num_rows == len(batch)
    if names:
        rows = rows_of(record_batch)
        for number, row in enumerate(rows):
            expected_row = expected(batch.bytes_at(number))
            assert row == {name: expected_row[name] for name in names}
    return len(batch)


def logs(root: Path, store: GoldenStore) -> Iterator[FileSource]:
    for folder in store.commitlog_dirs:
        for file in sorted(Path(root, folder).iterdir()):
            with FileSource(str(file), int(file.name)) as source:
                yield source


def frames_of(batch: Batch, base: int) -> list[dict[str, Any]]:
    """The frames of a batch as rows, made one by one."""
    rows: list[dict[str, Any]] = []
    for number in range(len(batch)):
        row = expected(batch.bytes_at(number))
        rows.append({"kind": "message", "length": row["total_size"], **{
            name: row[name] for name in FRAME_COLUMNS if name in row}})
    for span in batch.spans:
        is_damage = span.kind == "damaged"
        rows.append({"kind": span.kind, "physical_offset": span.offset, "length": span.length,
                     "reason": span.reason if is_damage else None,
                     "field": span.field if is_damage else None})
    rows.sort(key=lambda row: int(row["physical_offset"]))
    empty = dict.fromkeys(FRAME_COLUMNS)
    return [{**empty, **row, "position": row["physical_offset"] - base} for row in rows]


def check_frames(source: FileSource | BytesSource, chunk: int = 1 << 16) -> list[dict[str, Any]]:
    """All frames of a source by column, held against those made singly."""
    rows, expected_rows = [], []
    for batch in Walk(source, chunk=chunk):
        record_batch = frame_columns(batch, list(FRAME_COLUMNS), source.base)
        record_batch.validate(full=True)
        assert record_batch.schema == schema(list(FRAME_COLUMNS), FRAME_COLUMNS)
        rows += rows_of(record_batch)
        expected_rows += frames_of(batch, source.base)
        check(batch)
    assert rows == expected_rows
    ends = [0, *(row["position"] + row["length"] for row in rows)]
    assert ends == [*(row["position"] for row in rows), source.size]
    return rows


@pytest.mark.parametrize("store", sample(golden_stores(), 14, "columns"),
                         ids=lambda golden_store: golden_store.id)
def test_columns_of_golden_logs_are_the_message_objects(
        store: GoldenStore, golden: GoldenFolder) -> None:
    rows = [row for source in logs(golden(store.id), store) for row in check_frames(source)]
    assert any(row["kind"] == "message" for row in rows)


@pytest.mark.parametrize("kind", ["basic", "ipv6"])
def test_columns_of_damaged_logs(kind: str, golden_copy: GoldenFolder) -> None:
    store = next(golden_store for golden_store in golden_stores()
                 if golden_store.id == f"5.3.3/{kind}/store")
    root = golden_copy(store.id)
    draw = random.Random(kind)
    files = sorted(Path(root, "commitlog").iterdir())
    used = files[0].stat().st_size // 2
    for _ in range(12):
        file = f"commitlog/{files[0].name}"
        damage.flip_bit(root, file, draw.randrange(used), draw.randrange(8))
        damage.write(root, file, draw.randrange(used), draw.randbytes(draw.randrange(1, 200)))
    rows = [row for source in logs(root, store) for row in check_frames(source)]
    damaged = [row for row in rows if row["kind"] == "damaged"]
    assert damaged
    assert all(row["reason"] and row["topic"] is None for row in damaged)
    assert {row["crc_ok"] for row in rows if row["kind"] == "message"} >= {True}


TEXT = st.lists(st.sampled_from(
    [b"\x01", b"\x02", b"KEYS", b"TAGS", b"UNIQ_KEY", b"K", b"a", b" ", b"=", "é".encode(),
     "\U0001f600".encode(), b"\xff", b"\xfe", b"\xe2\x82", b"\xed\xa0\x80", b"\xc0\x80", b"\0"]),
    max_size=14).map(b"".join)
PAIR = st.builds(lambda key, value, end: key + b"\x01" + value + end,
                 st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"K", b"", b"\xff", b"\xfe",
                                  "é".encode()]),
                 st.one_of(st.sampled_from([b"", b"a b  c", b" ", b"x"]), TEXT),
                 st.sampled_from([b"\x02", b"\x02", b"\x02", b""]))
PROPERTIES = st.one_of(st.lists(PAIR, max_size=6).map(b"".join), TEXT)
HOST = st.one_of(st.just((b"\x0a\0\0\x01", 10911)),
                 st.tuples(st.binary(min_size=16, max_size=16),
                           st.integers(-(1 << 31), (1 << 31) - 1)))
RECORD = st.fixed_dictionaries({
    "body": st.binary(max_size=40), "topic": st.one_of(st.sampled_from([b"T", b"U"]), TEXT),
    "properties": PROPERTIES, "born": HOST, "store": HOST,
    "magic": st.sampled_from([MAGIC_V1, MAGIC_V2]), "good": st.booleans(),
    "numbers": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=4, max_size=4),
    "longs": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=4, max_size=4)})


def log_of(specs: list[dict[str, Any]]) -> bytes:
    data = b""
    for spec in specs:
        queue, flag, reconsume, other = spec["numbers"]
        born, store = spec["born"], spec["store"]
        # Any other bits of the system flags, but those of the hosts' widths as the hosts are.
        flags = other & ~0x30 | (len(born[0]) == 16) << 4 | (len(store[0]) == 16) << 5
        crc = zlib.crc32(spec["body"]) & 0x7FFFFFFF
        size = size_of(flags, spec["magic"], len(spec["body"]), len(spec["topic"]),
                       len(spec["properties"]))
        data += build(Record(
            size, spec["magic"], crc if spec["good"] else crc ^ 1, queue, flag, spec["longs"][0],
            BASE + len(data), flags, spec["longs"][1], (born[0][:16], born[1]), spec["longs"][2],
            (store[0], store[1]), reconsume, spec["longs"][3], spec["body"], spec["topic"],
            spec["properties"]))
    return data


@pytest.mark.long
@settings(max_examples=examples(150))
@given(st.lists(RECORD, min_size=1, max_size=8), st.integers(0, 40),
       st.sampled_from([200, 1 << 20]))
def test_columns_of_odd_records(specs: list[dict[str, Any]], tail: int, chunk: int) -> None:
    data = log_of(specs) + bytes(tail)
    rows = check_frames(BytesSource(data, BASE), chunk)
    assert sum(row["kind"] == "message" for row in rows) == len(specs)


@pytest.mark.long
@settings(max_examples=examples(80))
@given(st.lists(RECORD, min_size=1, max_size=8), st.lists(st.sampled_from(NAMES), unique=True),
       st.data())
def test_any_projection_of_any_rows(specs: list[dict[str, Any]], names: list[str],
                                    data: st.DataObject) -> None:
    for batch in Walk(BytesSource(log_of(specs), BASE)):
        check(batch, names)
        kept = data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch)))
        mask = np.array(kept, bool)
        assert check(batch.select(mask), names) == sum(kept)
        assert check(batch.select(np.flatnonzero(mask)), names) == sum(kept)
        half = batch.select(slice(len(batch) // 2, None))
        assert check(half, names) == len(batch) - len(batch) // 2
        assert check(half.select(mask[len(batch) // 2:]), names) == sum(kept[len(batch) // 2:])


def many(count: int) -> bytes:
    """A log with different topics, tags and hosts."""
    return log_of([{
        "body": b"b" * number, "topic": f"T{number % 3}".encode(), "magic": MAGIC_V1,
        "properties": f"TAGS\x01t{number}\x02KEYS\x01k{number} m\x02".encode(), "good": True,
        "born": (bytes([10, 0, 0, number % 7]), 1), "store": (bytes(4), 10911),
        "numbers": [number, 0, 0, 0], "longs": [number, 1, 2, 0]} for number in range(count)])


def test_columns_stay_when_the_walk_goes_on() -> None:
    source = BytesSource(many(200), BASE)
    kept, expected_rows = [], []
    for batch in Walk(source, chunk=3000):
        kept.append(message_columns(batch, NAMES))
        expected_rows += [expected(batch.bytes_at(number)) for number in range(len(batch))]
    assert len(kept) > 5
    assert [row for record_batch in kept for row in rows_of(record_batch)] == expected_rows


def test_no_columns_keep_the_number_of_rows() -> None:
    data = many(5) + bytes(64)
    (batch,) = Walk(BytesSource(data, BASE))
    for table, count in ((message_columns(batch, []), 5), (frame_columns(batch, []), 6)):
        assert (table.num_rows, table.num_columns) == (count, 0)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_batch(table)
        assert pa.ipc.open_stream(sink.getvalue()).read_next_batch().num_rows == count


def test_some_rows_of_several_shapes() -> None:
    """Of the chosen rows none may be of a shape that others of the batch have."""
    hosts = [(b"\x0a\0\0\1", 7), (bytes(15) + b"\1", 8)]
    raw = b""
    for number, host in enumerate(hosts):
        record = Record(0, MAGIC_V1, 0, 0, 0, 0, len(raw), 16 * number, 1, host, 1,
                        (b"\x0a\0\0\1", 7), 0, 0, b"", b"t", b"")
        raw += build(replace(record, total_size=size_of(record.sys_flag, MAGIC_V1, 0, 1, 0)))
    (batch,) = Walk(BytesSource(raw))
    for number, (_, port) in enumerate(hosts):
        some = batch.select(np.array([number]))
        assert some.column("born_host.port").tolist() == [port]
        assert some.select(np.zeros(0, np.int64)).column("queue_id").tolist() == []
        assert some.select(np.array([0, 0])).column("born_host.port").tolist() == [port, port]
    assert len(batch.select(np.zeros(0, np.int64))) == 0


def test_frames_come_in_physical_order() -> None:
    data = many(6)
    (batch,) = Walk(BytesSource(data, BASE))
    hole = batch.select([2])
    part = batch.select([0, 1, 3, 4, 5])
    at, length = int(hole.offset[0]), int(hole.column("total_size")[0])
    part.spans = [Span("damaged", at, length, "flipped", "magic"),
                  Span("zero", BASE + len(data), 9)]
    rows = rows_of(frame_columns(part, list(FRAME_COLUMNS), BASE))
    assert rows == frames_of(part, BASE)
    assert [row["kind"] for row in rows] == [*["message"] * 2, "damaged", *["message"] * 3, "zero"]


def test_a_batch_of_spans_only_has_no_messages() -> None:
    (batch,) = Walk(BytesSource(bytes(100), BASE))
    record_batch = message_columns(batch, NAMES)
    assert (record_batch.num_rows, record_batch.schema) == (0, schema(NAMES, MESSAGE_COLUMNS))
    (row,) = rows_of(frame_columns(batch, list(FRAME_COLUMNS), BASE))
    assert (row["kind"], row["position"], row["length"]) == ("zero", 0, 100)


def test_a_body_of_many_bytes() -> None:
    data = log_of([{
        "body": bytes(range(256)) * 20_000, "topic": b"T", "magic": MAGIC_V2, "good": True,
        "properties": b"", "born": (bytes(4), 1), "store": (bytes(16), 2),
        "numbers": [0] * 4, "longs": [0] * 4}])
    assert sum(check(batch) for batch in Walk(BytesSource(data, BASE))) == 1


def test_an_unknown_column_is_refused() -> None:
    (batch,) = Walk(BytesSource(many(1), BASE))
    with pytest.raises(KeyError):
        message_columns(batch, ["topic", "no such"])
    with pytest.raises(KeyError):
        frame_columns(batch, ["kind", "body"])
