"""Convert rows of a DataFrame to messages for a new store.

Recorded messages are stored unchanged; other rows become new messages. Many tasks read and check
the rows. The single writer of the log uses the output of these tasks, and does not check the
columns again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from rmqctl.broker.settings import Host, Settings
from rmqctl.engine.put.admission import check_record
from rmqctl.engine.put.encoder import assemble, body_crc, raw_text
from rmqctl.engine.put.ingest import Preparer
from rmqctl.engine.put.message import Outgoing
from rmqctl.errors import FormatError, RefusedError, UsageError
from rmqctl.formats.local import message
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    VERSIONS,
    Record,
    decode,
    magic_for,
    size_of,
    variant,
)
from rmqctl.formats.local.sysflag import INNER_BATCH
from rmqctl.scan.tables import MESSAGE_COLUMNS, MOMENT

RECORD = "record"
NEEDED = ("topic", "body")
RECORDED = (*NEEDED, "queue_id", "queue_offset", "sys_flag", "born_timestamp", "born_host",
            "store_timestamp", "store_host", "properties_raw")
"""The columns that a recorded message requires. Other fields of a record have default values."""
_RECORD_TOO = ("physical_offset", "total_size", "magic", "body_crc", "crc_ok", "flag",
               "reconsume_times", "prepared_transaction_offset")
_PUT = (*NEEDED, "queue_id", "flag", "sys_flag", "born_timestamp", "born_host", "store_host",
        "reconsume_times", "properties", "properties_raw", "tags", "keys")
"""The columns that are read for a new message; the engine sets all other fields, as a broker does.
"""
_IGNORED = ("store", "file")
_LOST = "\N{REPLACEMENT CHARACTER}"

_TYPES = {name: pa.int64() if field.type == MOMENT else field.type
          for name, field in MESSAGE_COLUMNS.items()}
"""Types of the columns, with times as epoch ms."""
RECORD_SCHEMA = pa.schema([pa.field(RECORD, pa.binary())])


def is_recorded(names: Sequence[str], asked: bool | None) -> bool:
    """Return whether rows with these columns are stored as recorded.

    ``asked``: the user's choice; with None, the columns decide.
    Raises: UsageError for impossible combinations.
    """
    valid = {*MESSAGE_COLUMNS, *_IGNORED}
    if strange := [name for name in names if name not in valid]:
        raise UsageError(f"messages have no column {', '.join(strange)}; valid: "
                         f"{', '.join(MESSAGE_COLUMNS)}")
    missing = [] if RECORD in names else [name for name in RECORDED if name not in names]
    if asked and missing:
        raise UsageError("storing messages as recorded requires these columns, too: "
                         f"{', '.join(missing)} (or the single column {RECORD})")
    recorded = not missing if asked is None else asked
    if not recorded and (lacking := [name for name in NEEDED if name not in names]):
        raise UsageError(f"missing column: {', '.join(lacking)}")
    return recorded


def put_schema(names: Sequence[str]) -> pa.Schema:
    """Return a schema with those columns in ``names`` that a new message uses."""
    return pa.schema([pa.field(name, _TYPES[name]) for name in _PUT if name in names])


def put_columns(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """Return the columns of a batch, converted to the types of a schema.
    Raises: RefusedError for an invalid row.
    """
    arrays = []
    for field in schema:
        array = _cast(batch.column(field.name), field)
        if field.name in NEEDED and array.null_count:
            raise RefusedError(f"a row has no {field.name}")
        arrays.append(array)
    return arrays


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        if field.name == "keys" and pa.types.is_string(array.type):
            array = pa.array([None if text is None else text.split() for text in array.to_pylist()],
                             field.type)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("ms", array.type.tz), safe=False)
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"column {field.name} is {array.type}, not {field.type}: {error}"
                         ) from None


# -- as recorded ---------------------------------------------------------------------------------


class RecordRows:
    """Converts rows to records, and checks each as the engine would."""

    def __init__(self, names: Sequence[str], settings: Settings) -> None:
        self._settings = settings
        self._raw = RECORD in names
        self._names = [name for name in (*RECORDED, *_RECORD_TOO) if name in names]
        self.batch_topics: set[str] = set()
        """Topics with inner batches, which go to batch consume queues."""

    def columns(self, batch: pa.RecordBatch) -> tuple[np.ndarray[Any, np.dtype[np.int64]],
                                                      pa.Array]:
        """Return two columns: the recorded physical offset of each row (-1 if not given), and its
        record.
        Raises: RefusedError.
        """
        records = self._stored(batch) if self._raw else self._assembled(batch)
        places, raws = [], []
        for record, raw in records:
            places.append(record.physical_offset)
            raws.append(raw)
        return np.array(places, np.int64), pa.array(raws, pa.binary())

    def _check(self, record: Record) -> None:
        refused = check_record(record, self._settings)
        if refused is not None:
            raise RefusedError(f"{_place(record)}: {refused.reason}")
        if record.sys_flag & INNER_BATCH:
            self.batch_topics.add(record.topic.decode("utf-8", "surrogateescape"))

    def _stored(self, batch: pa.RecordBatch) -> Iterator[tuple[Record, bytes]]:
        for raw in batch.column(RECORD).to_pylist():
            if raw is None:
                raise RefusedError(f"a row has no {RECORD}")
            try:
                record = decode(raw)
            except FormatError as error:
                raise RefusedError(f"column {RECORD}: field {error.path}: {error.reason}"
                                   ) from None
            if record.body and not record.crc_ok:
                raise _damaged(record)
            self._check(record)
            yield record, raw

    def _assembled(self, batch: pa.RecordBatch) -> Iterator[tuple[Record, bytes]]:
        names = self._names
        columns = []
        for name in names:
            array = _cast(batch.column(name), pa.field(name, _TYPES[name]))
            if name in RECORDED and array.null_count:
                raise RefusedError(f"a row has no {name}, which a recorded message needs (set "
                                   "asRecorded to false to write all rows as new messages)")
            columns.append(array.to_pylist())
        for values in zip(*columns, strict=True):
            record = _record(dict(zip(names, values, strict=True)))
            self._check(record)
            topic = variant(0, record.magic).topic_length.pack(len(record.topic)) + record.topic
            yield record, assemble(record, topic, record.properties)


def _record(row: dict[str, Any]) -> Record:
    body, sys_flag = row["body"], row["sys_flag"]
    topic, properties = raw_text(row["topic"]), raw_text(row["properties_raw"])
    magic = _magic(row.get("magic"), topic)
    size = size_of(sys_flag, magic, len(body), len(topic), len(properties))
    crc, recorded_crc = body_crc(body), row.get("body_crc")
    place = row.get("physical_offset")
    record = Record(
        size, magic, crc if body or recorded_crc is None else recorded_crc, row["queue_id"],
        row.get("flag") or 0, row["queue_offset"], -1 if place is None else place, sys_flag,
        row["born_timestamp"], _host(row["born_host"]), row["store_timestamp"],
        _host(row["store_host"]), row.get("reconsume_times") or 0,
        row.get("prepared_transaction_offset") or 0, body, topic, properties)
    if body and (row.get("crc_ok") is False or recorded_crc not in (None, crc)):
        raise _damaged(record)
    if size != row.get("total_size", size) and (_LOST in row["topic"]
                                                or _LOST in row["properties_raw"]):
        raise RefusedError(f"{_place(record)}: contains text that is not UTF-8, which string "
                           f"columns cannot keep; read the column {RECORD} as well")
    return record


def _place(record: Record) -> str:
    place = "" if record.physical_offset < 0 else f" at physical offset {record.physical_offset}"
    topic = record.topic.decode("utf-8", "replace")
    return f"the message{place} (topic {topic}, queue {record.queue_id}, {record.queue_offset})"


def _damaged(record: Record) -> RefusedError:
    return RefusedError(f"{_place(record)}: body CRC mismatch; storing it again would hide that "
                        "(exclude it with a condition on crc_ok, or omit the columns crc_ok and "
                        "body_crc)")


def _magic(given: str | None, topic: bytes) -> int:
    if given is None:
        return magic_for(topic)
    for magic, name in VERSIONS.items():
        if name == given:
            return magic
    raise RefusedError(f"column magic: expected one of {', '.join(VERSIONS.values())}, got "
                       f"{given!r}")


@lru_cache(maxsize=8192)
def _host(text: str) -> Host:
    try:
        return message.host_bytes(text)
    except ValueError:
        raise RefusedError(f"{text!r} is not ADDRESS:PORT") from None


# -- as new messages -----------------------------------------------------------------------------


def outgoing(batch: pa.RecordBatch, prepare: Preparer) -> list[Outgoing]:
    """Return the messages to put for the rows of a batch with a `put_schema`.

    ``prepare``: changes properties as a broker changes the properties of a client's message.
    Raises: RefusedError.
    """
    names = [name for name in batch.schema.names if name in _PUT]
    columns = [batch.column(name).to_pylist() for name in names]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    messages = []
    for row, properties in zip(rows, _prepared(rows, prepare), strict=True):
        born, store = row.get("born_host"), row.get("store_host")
        messages.append(Outgoing(
            row["topic"], row["body"], properties, row.get("queue_id") or 0,
            row.get("flag") or 0, row.get("sys_flag") or 0, row.get("born_timestamp"),
            None if born is None else _host(born), None,
            None if store is None else _host(store), row.get("reconsume_times") or 0))
    return messages


def _prepared(rows: Sequence[dict[str, Any]], prepare: Preparer) -> list[str]:
    """Return the properties string of each row.
    Raises: RefusedError with the topic of the first row whose properties are invalid.
    """
    properties = [_properties(row) for row in rows]
    try:
        return prepare.many(properties)
    except ValueError:
        for row, given in zip(rows, properties, strict=True):
            try:
                prepare(given)
            except ValueError as error:
                raise RefusedError(f"a message of topic {row['topic']}: properties: {error}"
                                   ) from None
        raise


def _properties(row: dict[str, Any]) -> dict[str, str] | str:
    raw: str | None = row.get("properties_raw")
    if raw is not None:
        return raw
    pairs = {name: value for name, value in row.get("properties") or () if value is not None}
    if row.get("tags"):
        pairs.setdefault(props.TAGS, row["tags"])
    if row.get("keys"):
        pairs.setdefault(props.KEYS, " ".join(filter(None, row["keys"])))
    return pairs
