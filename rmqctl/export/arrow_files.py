"""Files of an export whose rows are Arrow columns: Parquet, Arrow, Avro."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa

from rmqctl.export.files import ExportFile
from rmqctl.export.spec import Export
from rmqctl.scan.columns import dict_column

_DICTIONARY = ("store", "file", "magic", "topic", "born_host", "store_host", "tags",
               "properties.key_value.key")
"""Parquet columns with few distinct values, for which a dictionary saves space."""
_NO_STATISTICS = ("body", "record", "properties_raw")
_NUMBERS = "DELTA_BINARY_PACKED"
"""Encoding of numbers and times. Most of them differ little from the previous one, so their pages
become much smaller, and compressing these takes half the time.
"""
_ZSTD_LEVEL = 1
_SYNC_INTERVAL = 1 << 20
_AVRO_CODECS = {"deflate": "deflate", "none": "null"}


def opened(spec: Export, target: IO[bytes]) -> ExportFile:
    """Return a new file of the export's format that writes to ``target``."""
    if spec.format == "parquet":
        return ParquetFile(spec, target)
    if spec.format == "avro":
        return AvroFile(spec, target)
    if spec.format == "arrow":
        return ArrowFile(spec, target)
    from rmqctl.export.xlsx import XlsxFile

    return XlsxFile(spec, target)


class ParquetFile:
    """A Parquet file; each chunk becomes a row group."""

    def __init__(self, spec: Export, target: IO[bytes]) -> None:
        from pyarrow import parquet

        names = _leaves(spec.schema)
        self._writer = parquet.ParquetWriter(
            target, spec.schema, compression=spec.compression.replace("none", "NONE"),
            compression_level=_ZSTD_LEVEL if spec.compression == "zstd" else None,
            use_dictionary=[name for name in names if name in _DICTIONARY],
            column_encoding={field.name: _NUMBERS for field in spec.schema
                             if pa.types.is_integer(field.type)
                             or pa.types.is_timestamp(field.type)},
            write_statistics=[name for name in names if name not in _NO_STATISTICS])

    def write(self, chunk: pa.Table) -> None:
        self._writer.write_table(chunk, row_group_size=max(1, len(chunk)))

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        self._writer.is_open = False  # otherwise it would close itself, with a message on stderr


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the paths of the columns in Parquet's schema."""
    leaves = []
    for field in schema:
        if pa.types.is_map(field.type):
            leaves += [f"{field.name}.key_value.key", f"{field.name}.key_value.value"]
        elif pa.types.is_list(field.type):
            leaves.append(f"{field.name}.list.element")
        else:
            leaves.append(field.name)
    return leaves


class ArrowFile:
    """A file in Arrow's own format (Feather), which contains record batches in their in-memory
    form.
    """

    def __init__(self, spec: Export, target: IO[bytes]) -> None:
        way = None if spec.compression == "none" else spec.compression
        self._writer = pa.ipc.new_file(target, spec.schema,
                                       options=pa.ipc.IpcWriteOptions(compression=way))

    def write(self, chunk: pa.Table) -> None:
        self._writer.write_table(chunk)

    def close(self) -> None:
        self._writer.close()

    def abandon(self) -> None:
        pass


class AvroFile:
    """An Avro object container file; every field may be null."""

    def __init__(self, spec: Export, target: IO[bytes]) -> None:
        from fastavro.write import Writer

        self._maps = [field.name for field in spec.schema if pa.types.is_map(field.type)]
        self._names = _avro_names(spec.schema.names)
        self._writer = Writer(target, avro_schema(spec.schema), _AVRO_CODECS[spec.compression],
                              _SYNC_INTERVAL)

    def write(self, chunk: pa.Table) -> None:
        write, names, maps = self._writer.write, self._names, self._maps
        columns = [dict_column(column) if name in maps else column.to_pylist()
                   for name, column in zip(chunk.column_names, map(_whole_numbers, chunk.columns),
                                           strict=True)]
        for values in zip(*columns, strict=True):
            write(dict(zip(names, values, strict=True)))

    def close(self) -> None:
        self._writer.flush()

    def abandon(self) -> None:
        pass


def _whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of times as epoch ms, because these can also represent times outside the
    calendar.
    """
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


_AVRO = {pa.string(): "string", pa.int64(): "long", pa.int32(): "int", pa.bool_(): "boolean",
         pa.binary(): "bytes",
         pa.timestamp("ms", tz="UTC"): {"type": "long", "logicalType": "timestamp-millis"}}


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """Return the Avro schema of a record with the given columns."""
    names = _avro_names(schema.names)
    return {"type": "record", "name": "Message", "namespace": "rmqctl", "fields": [
        {"name": name, "type": ["null", _avro_type(field.type)], "default": None}
        for name, field in zip(names, schema, strict=True)]}


def _avro_type(kind: pa.DataType) -> Any:
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _avro_type(kind.item_type)]}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type)]}
    return _AVRO[kind]


def _avro_names(names: Sequence[str]) -> list[str]:
    """Replace each character of a column name that Avro does not allow with ``_``
    (``property.X-1`` becomes ``property_X_1``). A duplicate name gets more ``_`` at its end.
    """
    taken: dict[str, None] = {}
    for name in names:
        avro_name = "".join(char if char.isascii() and (char.isalnum() or char == "_") else "_"
                            for char in name)
        while avro_name in taken:
            avro_name += "_"
        taken[avro_name] = None
    return list(taken)
