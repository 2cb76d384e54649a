"""Read records from the Parquet files of an export for `recover --from`, encoded to stored bytes.

Text columns do not preserve bytes that are not UTF-8. A record with such bytes can be restored only
from the column ``record``.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

from rmqctl.errors import NotAStoreError, StoreIOError
from rmqctl.formats.local.message import VERSIONS, Record, host_bytes
from rmqctl.repair.sources.encode import encoded
from rmqctl.repair.sources.records import Unused

_NUMBERS = ("total_size", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset",
            "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times",
            "prepared_transaction_offset")
_TEXTS = ("magic", "born_host", "store_host", "topic", "properties_raw")
NEEDED = (*_NUMBERS, *_TEXTS, "body")
_RECORD, _TOPIC = "record", "topic"
_ROWS = 256
_LOST = "\ufffd"
_FOLDER = re.compile(r"topic=(.*)", re.DOTALL)
_CUT = re.compile(r".*~[0-9a-f]{16}", re.DOTALL)
_MAGICS = {name: magic for magic, name in VERSIONS.items()}
_host = lru_cache(maxsize=4096)(host_bytes)


def records(path: str, unused: Unused) -> Iterator[tuple[str, bytes]]:
    """Yield (description of the position, record bytes) for the message in each row.

    Raises: NotAStoreError if the file is not from an export, or lacks columns that a record needs;
    StoreIOError.
    """
    try:
        with parquet.ParquetFile(path) as file:
            topic = _topic_of(path)
            make, columns = _reader(path, file.schema_arrow, topic)
            row = 0
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                for values in _with_numbers(batch).to_pylist():
                    where = f"{path} row {row}"
                    row += 1
                    try:
                        yield where, make(values)
                    except (ValueError, TypeError, KeyError, struct.error) as error:
                        unused.add(_reason(error), where)
    except pa.ArrowException as error:
        text = " ".join(str(error).split())
        raise StoreIOError(f"{path}: cannot be read as Parquet: {text}") from None
    except OSError as error:
        if error.errno is None:  # Arrow's error for a file that is not Parquet
            text = " ".join(str(error).split())
            raise StoreIOError(f"{path}: cannot be read as Parquet: {text}") from None
        raise StoreIOError.from_oserror(error, path, "read") from None


def _reader(path: str, schema: pa.Schema, topic: str | None) -> tuple[
        Callable[[Mapping[str, Any]], bytes], Sequence[str]]:
    """Return (a function that encodes the record of a row, the names of the columns that
    it needs).
    """
    names = set(schema.names)
    if _RECORD in names and pa.types.is_binary(schema.field(_RECORD).type):
        return _record, [_RECORD]
    columns = [name for name in NEEDED if name != _TOPIC or topic is None]
    missing = [name for name in columns if name not in names]
    if len(missing) > len(columns) // 2:
        raise NotAStoreError(f"{path}: is Parquet, but not written by `rmqctl pipeline export`: "
                             f"it has no column {missing[0]}")
    if missing:
        raise NotAStoreError(f"{path}: has no column {', '.join(missing)}: without it records "
                             "cannot be rebuilt")
    kinds: list[tuple[Sequence[str], Callable[[Any], bool], str]] = [
        (_NUMBERS, lambda kind: pa.types.is_integer(kind) or pa.types.is_timestamp(kind),
         "integers"),
        (_TEXTS, lambda kind: pa.types.is_string(kind) or pa.types.is_dictionary(kind), "text"),
        (("body",), pa.types.is_binary, "bytes")]
    for columns_of_kind, fits, words in kinds:
        for name in columns_of_kind:
            if name in columns and not fits(schema.field(name).type):
                raise NotAStoreError(f"{path}: the column {name} is {schema.field(name).type}; "
                                     f"an export has {words} there")

    def make(values: Mapping[str, Any]) -> bytes:
        return encoded(_of(values, topic))

    return make, columns


def _with_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with all times as numbers in epoch ms: exports have ms, Spark writes µs or
    ns.
    """
    return pa.RecordBatch.from_arrays(
        [column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
         if pa.types.is_timestamp(column.type) else column for column in batch.columns],
        names=batch.schema.names)


def _record(values: Mapping[str, Any]) -> bytes:
    raw = values[_RECORD]
    if raw is None:
        raise ValueError("no value in record")
    return bytes(raw)


def _of(values: Mapping[str, Any], topic: str | None) -> Record:
    given = values if topic is None else {**values, _TOPIC: topic}
    empty = next((name for name in NEEDED if given[name] is None), None)
    if empty is not None:
        raise ValueError(f"no value in {empty}")
    if _LOST in given[_TOPIC] or _LOST in given["properties_raw"]:
        raise ValueError("topic or properties contain U+FFFD, which may replace bytes that are not "
                         "text (export --fields record keeps those)")
    number: list[int] = [given[name] for name in _NUMBERS]
    size, crc, queue_id, flag, queue_offset, place, sys_flag, born, stored, again, prepared = number
    magic = _MAGICS[given["magic"]]
    return Record(size, magic, crc, queue_id, flag, queue_offset, place, sys_flag, born,
                  _host(given["born_host"]), stored, _host(given["store_host"]), again, prepared,
                  given["body"], given[_TOPIC].encode(), given["properties_raw"].encode())


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return "magic is neither v1 nor v2"
    if isinstance(error, struct.error):
        return f"a record cannot have these values: {error}"
    return str(error)


def _topic_of(path: str) -> str | None:
    """Return the topic in the name of a folder above the file (``topic=NAME``); None if no folder
    has such a name.
    """
    for part in reversed(os.path.abspath(path).split(os.sep)[:-1]):
        match = _FOLDER.fullmatch(part)
        if match is not None:
            return None if _CUT.fullmatch(match[1]) else unquote(match[1])
    return None
