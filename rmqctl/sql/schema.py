"""The tables of stores and their columns, as Arrow sees them.

Types stand where the columns are made (`scan.columns`, `store.unit_columns`); here they only get
the columns which tell the store and the file.
"""

from __future__ import annotations

import re

import pyarrow as pa

from rmqctl.scan.columns import FRAME_TYPES, MESSAGE_TYPES
from rmqctl.store.queue.unit_columns import INDEX_TYPES, QUEUE_TYPES

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


# -- tables in the text of a query ----------------------------------------------------------------


def says(text: str, word: str) -> bool:
    """Whether a word stands in the text of a query."""
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


def named_tables(text: str) -> list[str]:
    """The tables of the data source that a query may read: those it names."""
    return [table for table in TABLES if says(text, table)]
