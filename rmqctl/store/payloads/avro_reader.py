"""One Avro datum read within bounds, by fastavro's reader in Python.

Not by the compiled one, which does not count how deep it is: a body for a recursive schema would
end the process. What a body claims of itself is checked where it is read: a number of any length
takes quadratic time, and so does a decimal.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

from fastavro._read_py import read_data
from fastavro.io.binary_decoder import BinaryDecoder
from fastavro.read import LOGICAL_READERS

from rmqctl.formats.payloads.budget import Budget, BudgetError

_DECIMAL, _BOUNDED = "decimal", "rmqctl-decimal"
_MAX_DECIMAL = 1024
"""Bytes of a decimal: 2,466 digits."""
_MAX_VARINT = 10
"""Bytes of a whole number of 64 bits."""


def reader(schema: Any, named: dict[str, Any]) -> Callable[[bytes], Any]:
    """What reads bodies that are one datum of a parsed schema, whose named types are ``named``."""
    _register()
    schemas = {"writer": {name: _bound_decimals(kind) for name, kind in named.items()},
               "reader": {}}
    schema = _bound_decimals(schema)

    def read(body: bytes) -> Any:
        source = io.BytesIO(body)
        value = read_data(_Decoder(source), schema, schemas)  # type: ignore[no-untyped-call]
        if source.tell() != len(body):
            raise ValueError(f"{len(body) - source.tell()} bytes are left behind the datum")
        return value

    return read


class _Decoder(BinaryDecoder):
    """Counts the items of arrays and maps, and believes no size that it cannot read."""

    def __init__(self, source: io.BytesIO) -> None:
        super().__init__(source)  # type: ignore[no-untyped-call]
        self._budget = Budget()

    def read_long(self) -> int:
        number: int = 0
        for place in range(_MAX_VARINT):
            byte: bytes = self.fo.read(1)
            if not byte:
                raise EOFError("the datum is cut")
            number |= (byte[0] & 0x7F) << 7 * place
            if byte[0] < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise ValueError(f"a whole number of more than {_MAX_VARINT} bytes")

    read_int = read_index = read_enum = read_long

    def read_bytes(self) -> bytes:
        size = self.read_long()
        if size < 0:
            raise ValueError(f"a text or bytes of {size} bytes")
        return super().read_fixed(size)  # type: ignore[no-any-return, no-untyped-call]

    def read_array_start(self) -> None:
        self._block_count = self.read_long()

    read_map_start = read_array_start

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
    """The schema with another name for decimals, which `_decimal` reads."""
    if isinstance(schema, dict):
        return {name: _BOUNDED if name == "logicalType" and part == _DECIMAL
                else _bound_decimals(part) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_bound_decimals(part) for part in schema]
    return schema


def _register() -> None:
    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{_BOUNDED}"] = _decimal


def _decimal(data: bytes, schema: Any, reader_schema: Any = None) -> Any:
    if len(data) > _MAX_DECIMAL:
        raise BudgetError(f"a decimal of {len(data):,} bytes")
    kind = "bytes" if schema["type"] == "bytes" else "fixed"
    return LOGICAL_READERS[f"{kind}-{_DECIMAL}"](data, schema, reader_schema)
