"""Values of Spark as JSON knows them, and columns as CSV can hold them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

Convert = Callable[[Any], Any]


def converter(kind: DataType) -> Convert | None:
    """What makes a value of a type JSON-ready; None where it is already."""
    from pyspark.sql import types

    if isinstance(kind, types.BinaryType):
        return _base64
    if isinstance(kind, types.TimestampType):
        return _moment
    if isinstance(kind, types.TimestampNTZType | types.DateType):
        return _iso
    if isinstance(kind, types.DecimalType):
        return _decimal
    if isinstance(kind, types.ArrayType):
        one = converter(kind.elementType)
        return None if one is None else lambda values: [_apply(one, value) for value in values]
    if isinstance(kind, types.MapType):
        key, value = converter(kind.keyType), converter(kind.valueType)
        return lambda values: {_text(_apply(key, name)): _apply(value, item)
                               for name, item in values.items()}
    if isinstance(kind, types.StructType):
        fields = [(field.name, converter(field.dataType)) for field in kind.fields]
        return lambda row: {name: _apply(change, value)
                            for (name, change), value in zip(fields, row, strict=True)}
    plain = (types.StringType, types.BooleanType, types.NumericType, types.NullType,
             types.CharType, types.VarcharType)
    return None if isinstance(kind, plain) else str


def _apply(change: Convert | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode("ascii")


def _iso(value: date) -> str:
    return value.isoformat()


def _moment(value: datetime) -> str:
    """Spark hands over local time without a zone."""
    moment = value.astimezone(UTC)
    return moment.isoformat(timespec="microseconds" if moment.microsecond % 1000 else
                            "milliseconds").replace("+00:00", "Z")


def _decimal(value: Decimal) -> int | str:
    """A whole number as such; any other as text, which keeps its digits."""
    whole = value.to_integral_value()
    return int(whole) if whole == value else str(value)


def flat(frame: DataFrame) -> DataFrame:
    """The columns as CSV can hold them: structures as JSON, binary as base64."""
    from pyspark.sql import functions, types

    made = []
    for field in frame.schema.fields:
        column = frame[field.name]
        if isinstance(field.dataType, types.BinaryType):
            column = functions.translate(functions.base64(column), "\r\n", "").alias(field.name)
        elif isinstance(field.dataType, types.MapType | types.ArrayType | types.StructType):
            column = functions.to_json(column).alias(field.name)
        made.append(column)
    return frame.select(*made)
