"""Rows of Arrow columns with times as epoch ms, as message objects have them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def rows_of(columns: pa.Table | pa.RecordBatch, **how: Any) -> list[dict[str, Any]]:
    schema = pa.schema([field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field
                        for field in columns.schema])
    arrays = [column.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
              if pa.types.is_timestamp(column.type) else column for column in columns.columns]
    return type(columns).from_arrays(arrays, schema=schema).to_pylist(**how)
