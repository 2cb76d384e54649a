"""The tables of stores for query engines, with their columns (from `scan.tables`)."""

from __future__ import annotations

import re

import pyarrow as pa

from rmqctl.scan.tables import (
    FRAME_COLUMNS,
    INDEX_COLUMNS,
    MESSAGE_COLUMNS,
    MOMENT,
    OWNER,
    PLACE,
    QUEUE,
    QUEUE_COLUMNS,
    Columns,
)

NAME = "rocketmq"
"""Name of the data source in Spark."""
MESSAGES, FRAMES, CONSUMEQUEUE, INDEX = "messages", "frames", "consumequeue", "index"
TIERED_MESSAGES = "tiered_messages"
LOG_TABLES = (MESSAGES, FRAMES)
TABLES: dict[str, Columns] = {
    MESSAGES: PLACE | MESSAGE_COLUMNS,
    FRAMES: PLACE | FRAME_COLUMNS,
    CONSUMEQUEUE: PLACE | QUEUE | QUEUE_COLUMNS,
    INDEX: PLACE | INDEX_COLUMNS,
    TIERED_MESSAGES: PLACE | OWNER | MESSAGE_COLUMNS,
}
"""All columns of each table, in order."""
OF_FILE = frozenset(PLACE) | frozenset(QUEUE)
"""Columns with one value for all rows of a consume queue file. The columns of `PLACE` have one
value for all rows of any file.
"""
OF_TIER = frozenset(PLACE) | frozenset(OWNER)
"""Columns with one value for all messages of a queue in a tier."""
ONLY_ASKED = frozenset(("record",))
"""Columns that a table has only if the requested schema names them."""
ENGINE_MOMENT = pa.timestamp("us", tz="UTC")
"""The type of times in DuckDB and Spark, in microseconds."""
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999


def columns(table: str, body: bool = True) -> Columns:
    """Return the columns of a table; without the column ``body`` if ``body`` is False."""
    return {name: kind for name, kind in TABLES[table].items() if body or name != "body"}


def for_engine(field: pa.Field) -> pa.Field:
    """Return a field with the type that query engines use for it."""
    return field.with_type(ENGINE_MOMENT) if field.type == MOMENT else field


def as_in_engine(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column for a query engine.

    Times outside the years 1 to 9999 become null, because the engines or Python reject them.
    """
    if column.type != MOMENT or kind == MOMENT:
        return column
    import pyarrow.compute as pc  # takes as long to load as a small query

    raw = column.view(pa.int64())
    in_range = pc.and_(pc.greater_equal(raw, _FIRST), pc.less_equal(raw, _LAST))
    if pc.all(in_range).as_py() is False:
        column = pc.if_else(in_range, raw, pa.scalar(None, pa.int64())).view(MOMENT)
    return column.cast(kind)


# -- tables in the text of a query ----------------------------------------------------------------


def says(text: str, word: str) -> bool:
    """Return whether the text of a query contains a word."""
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


def named_tables(text: str) -> list[str]:
    """Return those tables of the data source whose names occur in a query."""
    return [table for table in TABLES if says(text, table)]
