"""The schema of rmqctl's tables.

`export`, `sql`, `pipeline`, the Spark source and `rmqctl.open` derive their columns from this
schema, and docs/reference/schema.md is generated from it. Each column is an Arrow field. Its
comment states meaning, unit, and when the value is null.

All columns have a nullable type, because query engines treat all columns as nullable. A value is
null only in the cases that its comment names.
"""

from __future__ import annotations

import pyarrow as pa

Columns = dict[str, pa.Field]

VERSION = 1
"""Increased when a column of a published version changes its name, type or meaning."""
METADATA = {"schema_version": str(VERSION)}
"""The metadata of a schema, and so of Parquet and Arrow files."""
_COMMENT = b"comment"

INT, LONG, BOOL = pa.int32(), pa.int64(), pa.bool_()
TEXT, BYTES = pa.string(), pa.binary()
MOMENT = pa.timestamp("ms", tz="UTC")
MAP = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
LIST = pa.list_(pa.field("element", pa.string()))
_NOT_A_MESSAGE, _NO_DAMAGE = "not a message", "not damaged"


def _column(name: str, kind: pa.DataType, comment: str, null: str = "") -> pa.Field:
    more = f"; null: {null}" if null else ""
    return pa.field(name, kind, metadata={_COMMENT: comment + more})


def _columns(*given: tuple[str, pa.DataType, str] | tuple[str, pa.DataType, str, str]) -> Columns:
    return {column[0]: _column(*column) for column in given}


def comment_of(field: pa.Field) -> str:
    """Return the comment of a column; empty for a column without a declaration, such as
    ``property.NAME``.
    """
    metadata: dict[bytes, bytes] = field.metadata or {}
    return metadata.get(_COMMENT, b"").decode()


PLACE = _columns(
    ("store", TEXT, "path of the store, as given"),
    ("file", TEXT, "file that contains the data, relative to the store"))
OWNER = _columns(
    ("cluster", TEXT, "cluster, from the name of the tier's folder"),
    ("broker", TEXT, "broker, from the name of the tier's folder"))
QUEUE = _columns(
    ("topic", TEXT, "topic"),
    ("queue_id", INT, "queue of the topic"))
PROVENANCE = _columns(
    ("position", LONG, "offset of the record in its file, in bytes"),
    ("sha256", TEXT, "SHA-256 of the record's bytes, in hexadecimal digits"))
MESSAGE_COLUMNS = _columns(
    ("physical_offset", LONG, "offset of the record in the log, in bytes"),
    ("total_size", INT, "size of the record, in bytes"),
    ("magic", TEXT, "version of the record: v1 or v2"),
    ("body_crc", INT, "CRC-32 of the body, as stored"),
    ("crc_ok", BOOL, "true if the body matches its CRC"),
    ("topic", TEXT, "topic"),
    ("queue_id", INT, "queue of the topic"),
    ("queue_offset", LONG, "number of the message in its queue, from 0"),
    ("flag", INT, "the producer's flags"),
    ("sys_flag", INT, "the broker's flags: compression, transaction, IPv6 hosts, batch"),
    ("born_timestamp", MOMENT, "when the producer created the message, by the producer's clock"),
    ("born_host", TEXT, "ADDRESS:PORT of the producer"),
    ("store_timestamp", MOMENT, "when the broker stored the message, by the broker's clock"),
    ("store_host", TEXT, "ADDRESS:PORT of the broker"),
    ("reconsume_times", INT, "number of retries by a consumer group"),
    ("prepared_transaction_offset", LONG,
     "physical offset of the half message that this message ends, in bytes; else 0"),
    ("properties", MAP, "all properties"),
    ("properties_raw", TEXT, "properties as stored, with their separators"),
    ("tags", TEXT, "the property TAGS", "no tag"),
    ("keys", LIST, "the property KEYS, split at spaces; empty if there are no keys"),
    ("unique_key", TEXT, "the property UNIQ_KEY: the ID that the client generated",
                         "no such property"),
    ("msg_id", TEXT, "the ID that the broker returned: store host and physical offset"),
    ("body", BYTES, "the body as stored; a compressed body stays compressed"),
    ("record", BYTES, "the complete record as stored; only present if selected"))
FRAME_COLUMNS = _columns(
    ("position", LONG, "offset of the frame in its file, in bytes"),
    ("physical_offset", LONG, "offset of the frame in the log, in bytes"),
    ("length", LONG, "size of the frame, in bytes"),
    ("kind", TEXT, "message, blank (closes a file), zero or damaged"),
    ("crc_ok", BOOL, "true if the body matches its CRC", _NOT_A_MESSAGE),
    ("topic", TEXT, "topic", _NOT_A_MESSAGE),
    ("queue_id", INT, "queue of the topic", _NOT_A_MESSAGE),
    ("queue_offset", LONG, "number of the message in its queue, from 0", _NOT_A_MESSAGE),
    ("store_timestamp", MOMENT, "when the broker stored the message", _NOT_A_MESSAGE),
    ("reason", TEXT, "the problem", _NO_DAMAGE),
    ("field", TEXT, "the invalid field of the record", "not damaged, or no single field"))
QUEUE_COLUMNS = _columns(
    ("queue_offset", LONG, "number of the entry in its queue, from 0; for a batch: the first"),
    ("physical_offset", LONG, "physical offset that the entry points to, in bytes"),
    ("size", INT, "size of the record that the entry points to, in bytes"),
    ("tags_code", LONG, ("as stored: the tag's hash code, an address in the queue's extension, "
                         "or the delivery time of a delayed message in ms")),
    ("position", LONG, "offset of the entry in its file, in bytes",
     "the queue is in RocksDB"))
INDEX_COLUMNS = _columns(
    ("number", INT, "number of the entry in its file, from 1"),
    ("slot", INT, "hash slot of the entry", "negative hash, which no broker writes"),
    ("key_hash", INT, "hash code of topic#key"),
    ("physical_offset", LONG, "physical offset that the entry points to, in bytes"),
    ("store_timestamp", MOMENT, "start of the file plus time_diff; exact to the second"),
    ("time_diff", INT, "time since the start of the file, in seconds"),
    ("previous", INT, "number of the previous entry of the same slot; 0 for the first entry"),
    ("position", LONG, "offset of the entry in its file, in bytes"))
OFFSET_COLUMNS = _columns(
    ("store", TEXT, "path of the store, as given"),
    ("group", TEXT, "consumer group; (delay): the delay service", "no group consumes the topic"),
    ("topic", TEXT, "topic"),
    ("queue_id", LONG, "queue of the topic"),
    ("min_offset", LONG, "first queue offset in the queue", "the queue cannot be read"),
    ("max_offset", LONG, "queue offset after the last message", "the queue cannot be read"),
    ("consumer_offset", LONG, "committed offset of the group; 0: none committed", "no group"),
    ("diff", LONG, "max_offset - consumer_offset, in messages", "no group, or unknown"),
    ("last_store_timestamp", MOMENT, "store time of the message before consumer_offset",
     "no such message"),
    ("note", TEXT, "remark on the offset", "no remark"))
FINDING_COLUMNS = _columns(
    ("store", TEXT, "path of the store, as given"),
    ("category", TEXT, "category of the finding"),
    ("severity", TEXT, "error, warning or info"),
    ("structure", TEXT, "structure that the finding is in"),
    ("file", TEXT, "file that the finding is in, relative to the store",
     "not in a single file"),
    ("offset", LONG, "offset of the finding in the log or file, in bytes", "unknown"),
    ("length", LONG, "number of affected bytes", "unknown"),
    ("topic", TEXT, "topic", "unknown or not applicable"),
    ("queue_id", LONG, "queue of the topic", "unknown or not applicable"),
    ("queue_offset", LONG, "queue offset", "unknown or not applicable"),
    ("detail", TEXT, "description of the finding"),
    ("next", TEXT, "command that shows more or repairs it", "none"),
    ("position", LONG, "offset of the finding in its file, in bytes", "unknown"),
    ("count", LONG, "number of findings of the same kind that this row represents"))
