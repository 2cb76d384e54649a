"""Which tables a query names, and which of their columns it needs, off Spark's optimised plan.

Spark prunes no columns of a Python data source, but its optimiser puts a projection above the scan
of every source, and above that nothing sees other columns. What that projection, and conditions
below it, name is what has to be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rmqctl.pipeline.source.schema import TABLES

_SCAN = "DataSourceV2ScanRelation"
_THROUGH = ("Filter",)
_ENDS = ("Project", "Aggregate")
_NO_SOURCE = ("LocalRelation", "OneRowRelation", "EmptyRelation", "Range", "CTERelationRef")
"""Leaves of a plan that read nothing of a store."""


class _UnknownLeafError(Exception):
    """A leaf of which nobody knows what it reads."""


def says(text: str, word: str) -> bool:
    """Whether a word stands in the text of a query."""
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


def named_tables(text: str) -> list[str]:
    """The tables of the data source that a query may read: those it names."""
    return [one for one in TABLES if says(text, one)]


def needed_columns(plan: Any) -> dict[str, set[str]] | None:
    """The columns (names as in the scan) by the source's option ``table``; None: nobody knows.

    ``plan`` is an optimised logical plan (Java), made while no filter was handed to the source:
    such a filter is not in the plan any more, nor are its columns. A table that is not found
    was optimised away.
    """
    found: dict[str, set[str]] = {}
    try:
        _visit(plan, None, found)
    except _UnknownLeafError:
        return None
    return found


def _visit(node: Any, above: set[int] | None, found: dict[str, set[str]]) -> None:
    """``above``: ids of the columns that are seen from above; None for all."""
    name = node.getClass().getSimpleName()
    if name == _SCAN:
        table = node.relation().options().get("table")
        columns = found.setdefault(table, set())
        for one in _items(node.output()):
            if above is None or one.exprId().id() in above:
                columns.add(one.name())
        return
    if name in _ENDS or (name in _THROUGH and above is not None):
        own = {one.exprId().id() for one in _items(node.references())}
        above = own if name in _ENDS else own | (above or set())
    else:
        above = None
    children = list(_items(node.children()))
    if not children and name.rstrip("$") not in _NO_SOURCE:
        raise _UnknownLeafError(name)
    for child in children:
        _visit(child, above, found)
    for inner in _items(node.subqueries()):
        _visit(inner, None, found)


def _items(several: Any) -> Iterator[Any]:
    """The elements of a Scala collection."""
    iterator = several.iterator()
    while iterator.hasNext():
        yield iterator.next()
