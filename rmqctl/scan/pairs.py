"""The properties of many records as Arrow maps, lists and strings.

What counts as a property is what `rmqctl.formats.local.properties.parse` says: the key ends at the
first separator, empty keys and values are none, the last of several values counts and stands
where the key stood first. Texts are decoded as Python does with ``replace``, keys before they
are compared.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rmqctl.formats.local import properties as props
from rmqctl.scan import text_slices
from rmqctl.scan.frames import Array
from rmqctl.scan.text import Properties, slices, strings

MAP = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
LIST = pa.list_(pa.field("element", pa.string()))
_ASSIGN = props.NAME_VALUE_SEPARATOR.encode()[0]
_DENSE = 1 << 22


def as_maps(found: Properties, count: int) -> pa.MapArray:
    """The properties of each of ``count`` records (`MAP`), in stored order, keys unique."""
    row, start, end = found.segments
    assign, valid = _assigns(found.data, start, end)
    if not valid.all():
        row, start, end, assign = row[valid], start[valid], end[valid], assign[valid]
    keys = strings(slices(found.data, start, assign - start))
    values = strings(slices(found.data, assign + 1, end - assign - 1))
    single = _singles(row, keys, count)
    if single is not None:
        first, last = single
        row, keys, values = row[first], keys.take(pa.array(first)), values.take(pa.array(last))
    return pa.MapArray.from_arrays(_edges(row, count), keys, values, MAP)


def as_lists(found: Properties, count: int, name: str = props.KEYS) -> pa.ListArray:
    """The parts between single spaces of a property of each record (`LIST`), empty without it."""
    row, start, length = found.places(name)
    of, start, length = text_slices.split(found.data, start, length)
    return pa.ListArray.from_arrays(_edges(row[of], count),
                                    strings(slices(found.data, start, length)), LIST)


def as_strings(found: Properties, count: int, name: str) -> pa.StringArray:
    """The value of a property of each of ``count`` records; null where there is none."""
    row, raw = found.find(name)
    texts = strings(raw)
    if len(row) == count:
        return texts
    where: Array = np.zeros(count, np.int64)
    absent = np.ones(count, bool)
    where[row], absent[row] = np.arange(len(row)), False
    return texts.take(pa.array(where, mask=absent))


def _edges(row: Array, count: int) -> pa.Int32Array:
    """List offsets for elements of ascending rows."""
    edges: Array = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(row, minlength=count), out=edges[1:])
    return pa.array(edges)


def _assigns(data: Array, start: Array, end: Array) -> tuple[Array, Array]:
    """(place of the first 0x01 of each segment, whether it is a property)."""
    marks = np.flatnonzero(data == _ASSIGN)
    if len(marks) == len(start) and (marks >= start).all() and (marks < end).all():
        assign = marks
    else:
        marks = np.append(marks, len(data))  # a segment without one finds something behind it
        assign = marks[np.searchsorted(marks, start)]
    return assign, (assign > start) & (assign < end - 1)


def _singles(row: Array, keys: pa.StringArray, count: int) -> tuple[Array, Array] | None:
    """(first place of each key of each row, ascending; last places); None if nothing is double."""
    coded = keys.dictionary_encode()
    width = max(len(coded.dictionary), 1)
    code = row * width + np.asarray(coded.indices)
    if count * width <= _DENSE:
        seen = np.zeros(count * width, bool)
        seen[code] = True
        distinct = int(np.count_nonzero(seen))
    else:
        distinct = len(np.unique(code))
    if distinct == len(code):
        return None
    first = np.unique(code, return_index=True)[1]
    last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
    order = np.argsort(first)
    return first[order], last[order]
