"""Spark schemas of the tables."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmqctl.errors import UsageError
from rmqctl.scan.tables import comment_of
from rmqctl.sql.schema import ONLY_ASKED, columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType


def default(table: str, body: bool = True) -> StructType:
    """Return the default schema of a table."""
    from pyspark.sql.types import StructType

    return StructType([spark_field(field) for name, field in columns(table, body).items()
                       if name not in ONLY_ASKED])


def spark_field(field: pa.Field) -> StructField:
    """Convert a column to a Spark field with a comment."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField

    return StructField(field.name, from_arrow_type(field.type), True,
                       {"comment": comment_of(field)})


def asked(schema: StructType, table: str, body: bool = True) -> tuple[pa.Schema, list[str]]:
    """Return the Arrow schema that Spark expects for a requested schema, and the column names.

    The case of names is ignored, as in Spark.
    Raises: UsageError with the columns that do not exist or have other types.
    """
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

    all_columns = columns(table, body)
    by_name = {name.lower(): name for name in all_columns}
    names: list[str] = []
    wrong: list[str] = []
    for field in schema.fields:
        name = by_name.get(field.name.lower())
        if name is None:
            wrong.append(f"{field.name} (does not exist)")
            continue
        names.append(name)
        kind = from_arrow_type(all_columns[name].type).simpleString()
        if field.dataType.simpleString() != kind:
            wrong.append(f"{field.name} ({field.dataType.simpleString()}, is {kind})")
    if wrong:
        raise UsageError(f"invalid columns for the table {table}: {', '.join(wrong)}; valid: "
                         f"{', '.join(all_columns)}")
    # PySpark 4.0 and 4.1 use UTC by default.
    zone: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone), names
