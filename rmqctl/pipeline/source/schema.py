"""The tables of the data source and their columns, as Spark and as Arrow see them.

Types stand where the columns are made (`scan.columns`, `store.unit_columns`); here they only get
the columns which tell the store and the file.
"""

from __future__ import annotations

import re
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rmqctl.errors import UsageError
from rmqctl.scan.columns import FRAME_TYPES, MESSAGE_TYPES
from rmqctl.store.queue.unit_columns import INDEX_TYPES, QUEUE_TYPES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "rocketmq"
"""The data source, as Spark knows it."""
MESSAGES, FRAMES, CONSUMEQUEUE, INDEX = "messages", "frames", "consumequeue", "index"
TIERED_MESSAGES = "tiered_messages"
LOG_TABLES = (MESSAGES, FRAMES)
_PLACE = {"store": pa.string(), "file": pa.string()}
_OWNER = {"cluster": pa.string(), "broker": pa.string()}
_QUEUE = {"topic": pa.string(), "queue_id": pa.int32()}
TABLES: dict[str, dict[str, pa.DataType]] = {
    MESSAGES: _PLACE | MESSAGE_TYPES,
    FRAMES: _PLACE | FRAME_TYPES,
    CONSUMEQUEUE: _PLACE | _QUEUE | QUEUE_TYPES,
    INDEX: _PLACE | INDEX_TYPES,
    TIERED_MESSAGES: _PLACE | _OWNER | MESSAGE_TYPES,
}
"""All columns by table, in order."""
OF_FILE = frozenset(_PLACE) | frozenset(_QUEUE)
"""What is the same for all rows of a consumequeue file (the first two: of any file)."""
OF_TIER = frozenset(_PLACE) | frozenset(_OWNER)
"""What is the same for all messages of a queue in a tier."""
ONLY_ASKED = frozenset(("record",))
"""Columns that are there only where the schema names them."""


def columns(table: str, body: bool = True) -> dict[str, pa.DataType]:
    """The columns a table has; ``body`` False: as with the option ``body=none``."""
    return {name: kind for name, kind in TABLES[table].items() if body or name != "body"}


def default(table: str, body: bool = True) -> StructType:
    """The schema of a table for which none was given."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema([
        pa.field(name, kind) for name, kind in columns(table, body).items()
        if name not in ONLY_ASKED]))


def asked(schema: StructType, table: str, body: bool = True) -> tuple[pa.Schema, list[str]]:
    """(the Arrow schema Spark expects, the names of our columns) for a schema that was asked for.

    Names count without regard to case, as they do for Spark. UsageError names the columns which
    do not exist or have other types.
    """
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

    known = columns(table, body)
    by_name = {name.lower(): name for name in known}
    names: list[str] = []
    wrong: list[str] = []
    for field in schema.fields:
        name = by_name.get(field.name.lower())
        if name is None:
            wrong.append(f"{field.name} (there is none)")
            continue
        names.append(name)
        kind = from_arrow_type(known[name]).simpleString()
        if field.dataType.simpleString() != kind:
            wrong.append(f"{field.name} ({field.dataType.simpleString()}, is {kind})")
    if wrong:
        raise UsageError(f"the table {table} cannot have these columns: {', '.join(wrong)}; "
                         f"it has {', '.join(known)}")
    # PySpark 4.0 and 4.1 take UTC without being told.
    zone: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone), names


# -- tables in the text of a query ----------------------------------------------------------------


def says(text: str, word: str) -> bool:
    """Whether a word stands in the text of a query."""
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


def named_tables(text: str) -> list[str]:
    """The tables of the data source that a query may read: those it names."""
    return [table for table in TABLES if says(text, table)]
