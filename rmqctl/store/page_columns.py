"""Pages of messages as Arrow record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rmqctl.scan.columns import message_columns
from rmqctl.scan.tables import MESSAGE_COLUMNS, METADATA
from rmqctl.store.objects import PROPERTY
from rmqctl.store.pages import BatchPage, Page


def schema(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema for named fields; ``property.NAME`` is a column for one property."""
    return pa.schema([MESSAGE_COLUMNS.get(name) or pa.field(name, pa.string()) for name in names],
                     METADATA)


def page_columns(page: Page, names: Sequence[str]) -> pa.RecordBatch:
    """Return the named fields of the message object as columns; ``property.NAME`` is the value of
    one property.

    ``body`` is as stored. Invalid UTF-8 becomes U+FFFD.
    """
    wanted = schema(names)
    arrays = {}
    if isinstance(page, BatchPage):
        columns = [name for name in names if name in MESSAGE_COLUMNS]
        arrays = dict(zip(columns, message_columns(page.batch, columns).columns, strict=True))
    for field in wanted:
        if field.name not in arrays:
            arrays[field.name] = _column(page, field)
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=wanted)


def _column(page: Page, field: pa.Field) -> pa.Array:
    name = field.name
    if name == "body":
        return pa.array(page.raw(name), field.type)
    if name.startswith(PROPERTY):
        wanted = name.removeprefix(PROPERTY)
        values: list[Any] = [row.get(wanted) for row in page.column("properties")]
    else:
        values = page.column(name)
    if name == "properties":
        values = [[(_text(key), _text(value)) for key, value in row.items()] for row in values]
    elif name == "keys":
        values = [list(map(_text, row)) for row in values]
    else:
        values = list(map(_text, values))
    return pa.array(values, field.type)


def _text(value: Any) -> Any:
    """Return a text with everything that UTF-8 cannot encode replaced by U+FFFD; return other
    values unchanged.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value
