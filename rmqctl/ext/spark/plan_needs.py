"""Determine which columns a query reads and which conditions its rows must meet.

Spark does not prune columns of a Python data source. Filters that Spark passes to the source also
apply to other scans of the same relation. Therefore this module reads columns and conditions from
the query's optimised plan. It returns them as a schema and load options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.pushdown import limits

_SCAN = "DataSourceV2ScanRelation"
_THROUGH = ("Filter",)
_ENDS = ("Project", "Aggregate")
_NO_SOURCE = ("LocalRelation", "OneRowRelation", "EmptyRelation", "Range", "CTERelationRef")
"""Types of leaf nodes in a plan that do not read a store."""
_SIGNS = {"EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
          "LessThan": "<", "LessThanOrEqual": "<="}
_TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_IN_MS = "unix_millis(store_timestamp)"
_LIMITS = {"store_timestamp": ("since", "until", 0, 1000), _IN_MS: ("since", "until", 0, 1),
           "physical_offset": ("startPhy", "endPhy", 1, 1)}
"""For each column: the options for the least and the greatest value, the number to add to the
greatest value, and a factor.

A literal is the option's value times the factor: 1000 for Spark's times, which are in µs.
"""
_EQUALS = {"topic": "topic", "queue_id": "queueId"}


@dataclass(slots=True)
class Scans:
    """Needs of the scans of one table: the columns of all scans, and the conditions of each
    scan.
    """

    columns: set[str] = field(default_factory=set)
    conditions: list[list[Any]] = field(default_factory=list)

    def options(self, table: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return load options for the conditions that options express exactly.

        A table that is scanned several times gets no options, because the scans may need different
        rows. Options in ``given`` are not overridden.
        """
        if len(self.conditions) != 1:
            return {}
        chosen: dict[str, str] = {}
        for condition in self.conditions[0]:
            for name, text in _options_of(condition, table):
                if name not in chosen and name.lower() not in {key.lower() for key in given}:
                    chosen[name] = text
        return chosen


class _UnknownLeafError(Exception):
    """Error: the plan contains a leaf node of an unknown type."""


def needs(plan: Any) -> dict[str, Scans] | None:
    """Return what the scans of each table need, by the source's option ``table``; None if unknown.

    ``plan``: an optimised logical plan (Java). A table that is missing from the result was
    optimised away.
    """
    scans: dict[str, Scans] = {}
    try:
        _visit(plan, None, [], scans)
    except _UnknownLeafError:
        return None
    return scans


def _visit(node: Any, above: set[int] | None, conditions: list[Any],
           scans: dict[str, Scans]) -> None:
    """Collect the scans below a node.

    ``above``: ids of the columns that nodes above this node use, None for all columns.
    ``conditions``: conditions that all used rows of the node's output meet.
    """
    name = node.getClass().getSimpleName()
    if name == _SCAN:
        scan = scans.setdefault(node.relation().options().get("table"), Scans())
        scan.conditions.append(conditions)
        for attribute in _items(node.output()):
            if above is None or attribute.exprId().id() in above:
                scan.columns.add(attribute.name())
        return
    if name in _ENDS or (name in _THROUGH and above is not None):
        own = {attribute.exprId().id() for attribute in _items(node.references())}
        above = own if name in _ENDS else own | (above or set())
    else:
        above = None
    children = list(_items(node.children()))
    if not children and name.rstrip("$") not in _NO_SOURCE:
        raise _UnknownLeafError(name)
    below = list(_conjuncts(node.condition())) if name == "Filter" else []
    for child in children:
        _visit(child, above, below, scans)
    for inner in _items(node.subqueries()):
        _visit(inner, None, [], scans)


def _items(several: Any) -> Iterator[Any]:
    """Yield the elements of a Scala collection."""
    iterator = several.iterator()
    while iterator.hasNext():
        yield iterator.next()


# -- conditions -----------------------------------------------------------------------------------


def _conjuncts(condition: Any) -> Iterator[Any]:
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() == "And":
            waiting += [node.right(), node.left()]
        else:
            yield node


def _options_of(condition: Any, table: str) -> Iterator[tuple[str, str]]:
    """Yield the options that express a condition exactly, if the condition compares a column with
    literals.
    """
    kind = condition.getClass().getSimpleName()
    if kind in ("In", "InSet"):
        column = _column(condition.children().head())
        values = _listed(condition, kind)
        sign = "="
    elif kind in _SIGNS:
        sign, (left, right) = _SIGNS[kind], (condition.left(), condition.right())
        if _column(left) is None:
            left, right, sign = right, left, _TURNED[sign]
        column, values = _column(left), [_literal(right)]
    else:
        return
    if column is None or not values or None in values:
        return
    for name, wanted in _bounds(column, sign, values):
        text = _text(wanted, moment=name in ("since", "until"))
        if text and _reads_back(table, name, text, wanted):
            yield name, text


def _listed(condition: Any, kind: str) -> list[Any]:
    """Return the values in an IN condition; None for each element that is not a literal."""
    if kind == "InSet":
        return [_plain(value) for value in _items(condition.hset())]
    return [_literal(child) for child in _items(condition.list())]


def _column(node: Any) -> str | None:
    kind = node.getClass().getSimpleName()
    if kind == "UnixMillis":
        return _IN_MS if _column(node.child()) == "store_timestamp" else None
    name: str | None = node.name() if kind == "AttributeReference" else None
    return name


def _literal(node: Any) -> Any:
    return _plain(node.value()) if node.getClass().getSimpleName() == "Literal" else None


def _plain(value: Any) -> str | int | None:
    """Return the value of a Java literal if it is a string or an integer; else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    text = value.getClass().getSimpleName() if hasattr(value, "getClass") else ""
    return value.toString() if text == "UTF8String" else None


def _bounds(column: str, sign: str, values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the load options for a condition, as pairs of name and value.

    A value is a set of texts or numbers, or a limit.
    """
    if column in _EQUALS and sign == "=":
        yield _EQUALS[column], set(values)
    if column not in _LIMITS or len(values) != 1 or not isinstance(values[0], int):
        return
    least, greatest, past, unit = _LIMITS[column]
    low, high = limits(sign, values, unit)
    if low is not None:
        yield least, low
    if high is not None:
        yield greatest, high + past


def _text(wanted: Any, *, moment: bool) -> str:
    if isinstance(wanted, set):
        return ",".join(map(str, wanted))
    return _moment(wanted) if moment else str(wanted)


def _moment(millis: int) -> str:
    """Return a time as ISO-8601 text; "" if it is out of range.

    An option also accepts a time as a number, but the number's unit depends on its number of
    digits.
    """
    try:
        return datetime.fromtimestamp(millis // 1000, UTC).replace(
            microsecond=millis % 1000 * 1000).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def _reads_back(table: str, name: str, text: str, wanted: Any) -> bool:
    """Return whether parsing the text of an option yields the value ``wanted`` again."""
    try:
        read = ReadOptions.of({"table": table, "path": "/", name: text}).filters
    except UsageError:
        return False
    if name == "topic":
        return all(isinstance(value, str) and "\ufffd" not in value for value in wanted) and (
            read.topics == frozenset(value.encode() for value in wanted))
    meant: dict[str, Any] = {"queueId": read.queue_ids, "since": read.since, "until": read.until,
                             "startPhy": read.start, "endPhy": read.end}
    return bool(wanted == meant[name])
