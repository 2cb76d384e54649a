"""Read one Avro datum within bounds, with fastavro's reader in Python.

fastavro's compiled reader does not limit depth: with a recursive schema, a body could crash the
process. This module also checks the sizes that a body declares, because integers and decimals of
unlimited length take quadratic time.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from typing import Any

from rmqctl.formats.budget import Budget, BudgetError

_DECIMAL, _BOUNDED = "decimal", "rmqctl-decimal"
_MAX_DECIMAL = 1024
"""Maximum size of a decimal in bytes (2,466 digits)."""
_MAX_VARINT = 10
"""Maximum size of a 64-bit integer in bytes."""


def reader(schema: Any, named: dict[str, Any]) -> Callable[[bytes], Any]:
    """Return a function that reads a body as one datum of a parsed schema. ``named``: the schema's
    named types.
    """
    from fastavro._read_py import read_data

    _register()
    schemas = {"writer": {name: _bound_decimals(kind) for name, kind in named.items()},
               "reader": {}}
    schema = _bound_decimals(schema)

    def read(body: bytes) -> Any:
        source = io.BytesIO(body)
        value = read_data(_Decoder(source), schema, schemas)  # type: ignore[no-untyped-call]
        if source.tell() != len(body):
            raise ValueError(f"trailing bytes after the datum: {len(body) - source.tell():,}")
        return value

    return read


class _Decoder:
    """fastavro's binary decoder with limits: array and map items are counted, and sizes beyond the
    end of the body are rejected.
    """

    def __init__(self, source: io.BytesIO) -> None:
        self.fo = source
        self._budget = Budget()
        self._block_count = 0

    def read_null(self) -> None:
        return None

    def read_boolean(self) -> bool:
        return self.read_fixed(1) != b"\0"

    def read_float(self) -> float:
        return float(struct.unpack("<f", self.read_fixed(4))[0])

    def read_double(self) -> float:
        return float(struct.unpack("<d", self.read_fixed(8))[0])

    def read_fixed(self, size: int) -> bytes:
        data = self.fo.read(size)
        if len(data) < size:
            raise EOFError(f"expected {size:,} bytes, only {len(data):,} are left")
        return data

    def read_long(self) -> int:
        number = 0
        for place in range(_MAX_VARINT):
            byte = self.fo.read(1)
            if not byte:
                raise EOFError("the datum is truncated")
            number |= (byte[0] & 0x7F) << 7 * place
            if byte[0] < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError(f"an integer of more than {_MAX_VARINT} bytes")

    read_int = read_index = read_enum = read_long

    def read_bytes(self) -> bytes:
        size = self.read_long()
        if size < 0:
            raise ValueError(f"invalid length of a string or bytes: {size:,}")
        return self.read_fixed(size)

    def read_utf8(self, handle_unicode_errors: str = "strict") -> str:
        return self.read_bytes().decode(errors=handle_unicode_errors)

    def read_array_start(self) -> None:
        self._block_count = self.read_long()

    def read_array_end(self) -> None:
        pass

    read_map_start, read_map_end = read_array_start, read_array_end

    def _items(self) -> Iterator[None]:
        while self._block_count != 0:
            if self._block_count < 0:
                self._block_count = -self._block_count
                self.read_long()  # the size of the block in bytes
            for _ in range(self._block_count):
                self._budget.take()
                yield
            self._block_count = self.read_long()

    iter_array = iter_map = _items


def _bound_decimals(schema: Any) -> Any:
    """Return a copy of the schema in which decimals have a type name that makes `_decimal` read
    them.
    """
    if isinstance(schema, dict):
        return {name: _BOUNDED if name == "logicalType" and part == _DECIMAL
                else _bound_decimals(part) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_bound_decimals(part) for part in schema]
    return schema


def _register() -> None:
    from fastavro.read import LOGICAL_READERS

    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{_BOUNDED}"] = _decimal


def _decimal(data: bytes, schema: Any, reader_schema: Any = None) -> Any:
    if len(data) > _MAX_DECIMAL:
        raise BudgetError(f"a decimal of {len(data):,} bytes")
    from fastavro.read import LOGICAL_READERS

    kind = "bytes" if schema["type"] == "bytes" else "fixed"
    return LOGICAL_READERS[f"{kind}-{_DECIMAL}"](data, schema, reader_schema)
