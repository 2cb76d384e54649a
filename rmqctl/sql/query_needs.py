"""The needs of a query, determined from its text.

The needs are all columns that the query names and, for a simple query on the table messages, its
conditions on rows. When in doubt, more columns and rows are included than needed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import duckdb

from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.tables import FINDING_COLUMNS, OFFSET_COLUMNS, Columns
from rmqctl.sql.pushdown import Filters, limits
from rmqctl.sql.schema import CONSUMEQUEUE, INDEX, MESSAGES, TABLES

OFFSETS, FINDINGS = "offsets", "findings"
COLUMNS: dict[str, Columns] = {
    MESSAGES: TABLES[MESSAGES], CONSUMEQUEUE: TABLES[CONSUMEQUEUE], INDEX: TABLES[INDEX],
    OFFSETS: OFFSET_COLUMNS, FINDINGS: FINDING_COLUMNS,
}
"""The columns of each table. The tables ``offsets`` and ``findings`` contain the output of the
commands ``offsets`` and ``verify``.
"""
_SIGNS = {"COMPARE_EQUAL": "=", "COMPARE_GREATERTHAN": ">", "COMPARE_GREATERTHANOREQUALTO": ">=",
          "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<="}
_TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_MAX_INTEGER = 1 << 62
_MS = 1000
MOMENT = "TIMESTAMP WITH TIME ZONE"
_MOMENTS = (MOMENT, "TIMESTAMP", "DATE")


@dataclass(slots=True)
class Needs:
    """The needs of a query for one table. ``names``: columns (None: all); ``filters``: conditions
    on rows.
    """

    names: set[str] | None
    filters: Filters = field(default_factory=Filters)


def needs(base: duckdb.DuckDBPyConnection, text: str,
          columns_of: Mapping[str, Columns] = COLUMNS) -> dict[str, Needs] | None:
    """Return what a query needs from each table that it names.

    None if this cannot be determined: all tables must then be read completely.
    Raises: UsageError if the text is not a single query.
    """
    try:
        statements = base.extract_statements(text)
    except duckdb.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UsageError(f"SQL: {' '.join(lines[:2])}") from None
    if len(statements) != 1:
        raise UsageError(f"SQL: expected one query, got {len(statements)}")
    if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise UsageError("SQL: expected a query that returns rows; stores are read-only")
    [(serialized,)] = base.execute("select json_serialize_sql(?)", [text]).fetchall()
    tree = json.loads(serialized)
    if tree.get("error"):
        return None
    named: list[str] = []
    columns: set[str] = set()
    everything = _walk(tree, named, columns)
    tables = {name.lower() for name in named} & COLUMNS.keys()
    filters = _filters(base, tree, named)
    return {table: Needs(None if everything else {
        name for name in columns_of[table] if name in columns}, filters if table == MESSAGES
        else Filters()) for table in tables}


def _walk(node: Any, named: list[str], columns: set[str]) -> bool:
    """Collect the tables and columns that a syntax tree names; return whether the tree needs all
    columns.
    """
    everything = False
    if isinstance(node, list):
        for item in node:
            everything |= _walk(item, named, columns)
        return everything
    if not isinstance(node, dict):
        return False
    kind = node.get("type")
    if kind == "BASE_TABLE":
        named.append(node.get("table_name", ""))
    if kind == "COLUMN_REF":
        columns |= {name.lower() for name in node.get("column_names", ())}
    if kind == "JOIN":
        columns |= {name.lower() for name in node.get("using_columns") or ()}
        everything |= node.get("ref_type") == "NATURAL"
    if kind == "STAR" or node.get("class") == "STAR":
        everything = True
    for value in node.values():
        everything |= _walk(value, named, columns)
    return everything


def _filters(base: duckdb.DuckDBPyConnection, tree: Mapping[str, Any],
             named: Sequence[str]) -> Filters:
    """Return the conditions of a query that the data source can apply.

    There are no such conditions if the query reads any table other than messages.
    """
    try:
        node = tree["statements"][0]["node"]
        source, where = node["from_table"], node["where_clause"]
        simple = (node["type"] == "SELECT_NODE" and source["type"] == "BASE_TABLE"
                  and [name.lower() for name in named] == [MESSAGES] and where is not None)
        # A name that the query defines itself does not refer to a column of the table.
        given = {str(item.get("alias", "")).lower() for item in node["select_list"]}
        given |= {str(name).lower() for name in source.get("column_name_alias") or ()}
    except (KeyError, IndexError, TypeError):
        return Filters()
    if not simple or given & {"topic", "queue_id", "store_timestamp", "physical_offset"}:
        return Filters()
    filters = Filters()
    waiting = [where]
    while waiting:
        condition = waiting.pop()
        if condition.get("type") == "CONJUNCTION_AND":
            waiting += condition["children"]
        elif condition.get("type") == "COMPARE_BETWEEN":
            waiting += [{"type": kind, "left": condition["input"], "right": condition[border]}
                        for kind, border in (("COMPARE_GREATERTHANOREQUALTO", "lower"),
                                             ("COMPARE_LESSTHANOREQUALTO", "upper"))]
        else:
            filters = filters & _condition(base, condition)
    return filters


def _condition(base: duckdb.DuckDBPyConnection, node: Mapping[str, Any]) -> Filters:
    sign = _SIGNS.get(str(node.get("type")))
    if node.get("type") == "COMPARE_IN":
        name, *values = (_operand(child) for child in node["children"])
        if None in values or not isinstance(name, _ColumnName):
            return Filters()
        return _limits(base, name, "in", values)
    if sign is None:
        return Filters()
    left, right = _operand(node["left"]), _operand(node["right"])
    if isinstance(right, _ColumnName):
        left, right, sign = right, left, _TURNED[sign]
    if not isinstance(left, _ColumnName) or right is None or isinstance(right, _ColumnName):
        return Filters()
    return _limits(base, left, sign, [right])


class _ColumnName(str):
    """A column name; a text value is a plain ``str``."""


_IN_MS = _ColumnName("epoch_ms(store_timestamp)")


@dataclass(frozen=True, slots=True)
class _TimeText:
    """A text that is cast to a time type."""

    text: str
    kind: str


def _operand(node: Mapping[str, Any]) -> Any:
    """Return the column name, text, time or integer that a syntax node contains; None for any other
    node.
    """
    if node.get("type") == "COLUMN_REF":
        return _ColumnName(node["column_names"][-1].lower())
    if node.get("type") == "FUNCTION" and len(node["children"]) == 1:
        inner = _operand(node["children"][0])
        name = f"{node['function_name'].lower()}({inner})"
        return _IN_MS if isinstance(inner, _ColumnName) and name == _IN_MS else None
    if node.get("type") == "OPERATOR_CAST" and node["cast_type"]["id"] in _MOMENTS:
        inner = _operand(node["child"])
        return _TimeText(inner, node["cast_type"]["id"]) if type(inner) is str else None
    if node.get("type") != "VALUE_CONSTANT" or node["value"]["is_null"]:
        return None
    kind, value = node["value"]["type"]["id"], node["value"]["value"]
    if kind == "VARCHAR" and isinstance(value, str):
        return value
    return value if kind in ("INTEGER", "BIGINT") and abs(value) <= _MAX_INTEGER else None


def _micros(base: duckdb.DuckDBPyConnection, value: str | _TimeText) -> int | None:
    """Parse a text as a time, as DuckDB does. Return µs since 1970; None if it is not a time."""
    moment = _TimeText(value, MOMENT) if isinstance(value, str) else value
    with contextlib.suppress(duckdb.Error):  # the query reports it, too
        [(micros,)] = base.execute(f"SELECT epoch_us(CAST(CAST(? AS {moment.kind}) AS "
                                   f"{MOMENT}))", [moment.text]).fetchall()
        return micros if isinstance(micros, int) and abs(micros) <= _MAX_INTEGER else None
    return None


def _limits(base: duckdb.DuckDBPyConnection, name: str, sign: str,
            values: Sequence[Any]) -> Filters:
    if name == "topic" and sign in ("=", "in") and all(isinstance(text, str) for text in values):
        return Filters() if any("\ufffd" in text for text in values) else Filters(
            topics=frozenset(text.encode() for text in values))
    if name == "store_timestamp" and all(isinstance(moment, str | _TimeText) for moment in values):
        micros = [micro for moment in values if (micro := _micros(base, moment)) is not None]
        if len(micros) < len(values):
            return Filters()
        least, most = limits(sign, micros, _MS)
        return Filters(since=least, until=most)
    if not all(isinstance(number, int) for number in values):
        return Filters()
    if name == "queue_id" and sign in ("=", "in"):
        return Filters(queue_ids=frozenset(values))
    if name not in (_IN_MS, "physical_offset"):
        return Filters()
    least, most = limits(sign, values)
    if name == _IN_MS:
        return Filters(since=least, until=most)
    return Filters(start=least, end=None if most is None else most + 1)
