"""A query over the tables of stores, answered in this process by DuckDB.

DuckDB asks for a table as often as its plan scans it, and gets a stream of record batches each
time; nothing is copied into a data base. It takes whole tables, so what a query needs of them is
found before: the columns that its text names anywhere, and the conditions of a simple query on one
table. Both leave in too much rather than too little, and DuckDB applies all conditions again.

The streams are generators of this process, run by threads that are not Python's. A `Session` ends
only when those threads have: one that is left would enter an interpreter that no longer exists.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Self

import duckdb
import pyarrow as pa

from rmqctl.broker.view import view_of
from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.verify import Verification
from rmqctl.errors import StoreIOError, UsageError, interruption
from rmqctl.scan.ending import Stream
from rmqctl.scan.frames import DAMAGED, Batch, Span
from rmqctl.sql.interrupting import interrupted_by_signals
from rmqctl.sql.json_values import binary_text, distinct, moment_text, number_of
from rmqctl.sql.options import Options
from rmqctl.sql.planning import plan
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.reader import Reading
from rmqctl.sql.schema import CONSUMEQUEUE, INDEX, MESSAGES, ONLY_ASKED, TABLES
from rmqctl.store.config.offsets import COLUMNS as LAG_COLUMNS
from rmqctl.store.config.offsets import Lag
from rmqctl.store.decoded import Decoded, Decoding
from rmqctl.store.projection import DECODED
from rmqctl.store.store import Store

OFFSETS, FINDINGS = "offsets", "findings"
_TEXTS = frozenset(("store", "group", "topic", "note", "category", "severity", "structure", "file",
                    "detail", "next"))
_FINDING = ("category", "severity", "structure", "file", "offset", "length", "topic", "queue_id",
            "queue_offset", "detail", "next", "position", "count")


def _typed(names: Sequence[str]) -> dict[str, pa.DataType]:
    return {name: pa.string() if name in _TEXTS else pa.int64() for name in names}


COLUMNS: dict[str, dict[str, pa.DataType]] = {
    MESSAGES: TABLES[MESSAGES], CONSUMEQUEUE: TABLES[CONSUMEQUEUE], INDEX: TABLES[INDEX],
    OFFSETS: _typed(("store", *LAG_COLUMNS)), FINDINGS: _typed(("store", *_FINDING)),
}
"""All tables with their columns: those of the message object, of the data source, and of the
commands ``offsets`` and ``verify``."""
_CHEAP = {MESSAGES: "physical_offset", CONSUMEQUEUE: "queue_offset", INDEX: "number"}
"""What is read where a query needs rows, but no column of them."""
_ROWS = 4096
_FOR_DECODING = ("topic", "properties", "sys_flag", "body", "physical_offset")
_AT_ONCE = 32
"""Messages whose bodies are decoded before DuckDB gets them."""
_MEMORY = "512MB"
_SIGNS = {"COMPARE_EQUAL": "=", "COMPARE_GREATERTHAN": ">", "COMPARE_GREATERTHANOREQUALTO": ">=",
          "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<="}
_TURNED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
_FAR = 1 << 62


@dataclass(slots=True)
class Needs:
    """What a query wants of a table: ``names`` None for all columns."""

    names: set[str] | None
    filters: Filters = field(default_factory=Filters)


@dataclass(slots=True)
class Answer:
    """``columns``, and the rows as JSON knows values, once: they come as they are found."""

    columns: list[str]
    rows: Iterator[dict[str, Any]]


def _interrupt(base: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.Error):  # it is closed
        base.interrupt()


class Session:
    """A context manager. ``advance`` is told bytes of logs as they are read; with ``decoding`` the
    messages have the columns `DECODED`, text: JSON, but ``decoded_as``.
    """

    def __init__(self, stores: Sequence[str], log_folders: Sequence[str] = (),
                 advance: Callable[[int], None] = lambda _bytes: None,
                 decoding: Decoding | None = None) -> None:
        self._decoding = decoding
        self._columns = COLUMNS if decoding is None else COLUMNS | {
            MESSAGES: COLUMNS[MESSAGES] | dict.fromkeys(DECODED, pa.string())}
        self._stores, self._folders, self._advance = list(stores), tuple(log_folders), advance
        self._error: BaseException | None = None
        """What ended a stream: an error of a store, or a signal that the main thread met in it."""
        self._damage: dict[int, Span] = {}
        self._readers: list[pa.RecordBatchReader] = []

    @property
    def damaged(self) -> int:
        """How many damaged places of logs the answer leaves out."""
        return len(self._damage)

    @property
    def undecided(self) -> int:
        """How many whole records in them may be messages."""
        return sum(len(span.doubtful) for span in self._damage.values())

    def _passed(self, batch: Batch) -> None:
        self._damage |= {span.offset: span for span in batch.spans if span.kind == DAMAGED}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            scratch = held.enter_context(tempfile.TemporaryDirectory(prefix="rmqctl-sql-"))
            held.enter_context(_no_scanner())
            # A query reads tables, and neither files nor the network; what it sorts may be large.
            self._base = duckdb.connect(":memory:", config={
                "enable_external_access": "false", "memory_limit": _MEMORY,
                "temp_directory": scratch, "autoinstall_known_extensions": "false"})
            # Also while it is closed, which waits for a query that still runs.
            self._signals = held.enter_context(
                interrupted_by_signals(partial(_interrupt, self._base)))
            held.callback(self._close)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _close(self) -> None:
        """End the queries, and with the connection DuckDB's threads."""
        while self._readers:
            self._readers.pop().close()
        for table in COLUMNS:  # which lead back here, and DuckDB complains when it goes before them
            self._base.unregister(table)
        self._base.close()
        del self._base

    def ask(self, text: str) -> Answer:
        """UsageError with DuckDB's words for what is no query, or is wrong; errors of a store as
        they are.
        """
        wanted = needs(self._base, text, self._columns)
        for table, columns in self._columns.items():
            need = wanted.get(table) if wanted is not None else Needs(None)
            shown = _shown(table, columns, Needs(None) if need is None else need)
            self._base.register(table, _Table(
                shown, self._reading(table, shown, need.filters if need else Filters())))
        relation: Any = None
        try:
            relation = self._base.sql(text)
            if relation is None:
                raise UsageError("SQL: a query is wanted, which gives rows; nothing is changed")
            reader = relation.to_arrow_reader(_ROWS)
            self._readers.append(reader)
            names = distinct(list(relation.columns))
        except (duckdb.Error, RuntimeError) as error:  # the latter for a signal
            raise self._said(error) from None
        finally:  # a traceback keeps what it refers to, and with a relation all of DuckDB
            del relation
        changes = [_change(kind) for kind in reader.schema.types]
        return Answer(names, self._rows(reader, names, changes))

    def _rows(self, reader: pa.RecordBatchReader, names: list[str],
              changes: list[Callable[[Any], Any] | None]) -> Iterator[dict[str, Any]]:
        try:
            for batch in reader:
                columns = [column.to_pylist() for column in batch.columns]
                for values in zip(*columns, strict=True):
                    yield {name: value if change is None or value is None else change(value)
                           for name, change, value in zip(names, changes, values, strict=True)}
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            raise self._said(error) from None

    def _said(self, error: Exception) -> BaseException:
        stopped = self._error or interruption(error)
        if stopped is not None:
            return stopped
        if self._signals:
            signal.raise_signal(self._signals[0])  # DuckDB has dropped what its handler raised
        if isinstance(error, RuntimeError):
            return error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException):
            return StoreIOError(f"SQL: {lines[0]}")
        place = next((line for line in lines if line.startswith("LINE ")), "")
        return UsageError(f"SQL: {lines[0]}" + (f" ({place})" if place else ""))

    # -- tables -----------------------------------------------------------------------------------

    def _reading(self, table: str, schema: pa.Schema, filters: Filters) -> Callable[
            [], Iterator[pa.RecordBatch]]:
        make = {OFFSETS: self._offsets, FINDINGS: self._findings}.get(table)

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                if make is not None:
                    yield from _in_batches(make(), schema)
                else:
                    yield from self._of_files(table, schema, filters)
            except BaseException as error:  # which DuckDB makes an error of its own
                if not isinstance(error, GeneratorExit):
                    self._error = error
                raise

        return batches

    def _of_files(self, table: str, schema: pa.Schema, filters: Filters) -> Iterator[
            pa.RecordBatch]:
        options = Options(tuple(self._stores), table, log_folders=self._folders)
        made = [name for name in schema.names if table == MESSAGES and name in DECODED]
        stored = schema if not made else pa.schema([
            *(each for each in schema if each.name not in made),
            *(pa.field(name, COLUMNS[MESSAGES][name]) for name in _FOR_DECODING
              if name not in schema.names)])
        reading = Reading(table, stored.names, stored, filters, self._passed)
        for pieces in plan(options, filters):
            for piece in pieces:
                if made and self._decoding is not None:
                    yield from _decoded(reading.rows([piece]), schema, self._decoding)
                else:
                    yield from reading.rows([piece])
                if table == MESSAGES:
                    self._advance(getattr(piece, "end", 0) - getattr(piece, "start", 0))

    def _offsets(self) -> Iterator[dict[str, Any]]:
        for name in self._stores:
            with Store.open(name, self._folders) as store:
                for row in Lag(store, view_of(store, "auto"), None, None).rows():
                    yield {"store": name, **row}

    def _findings(self) -> Iterator[dict[str, Any]]:
        for name in self._stores:
            with Store.open(name, self._folders) as store:
                found: Finding
                for found in Verification(store).findings():
                    yield {"store": name, **found.as_dict()}


def _decoded(batches: Iterator[pa.RecordBatch], schema: pa.Schema,
             decoding: Decoding) -> Iterator[pa.RecordBatch]:
    """The batches with columns of decoded bodies, a few messages at a time: values may be large."""
    for batch in batches:
        for start in range(0, batch.num_rows, _AT_ONCE):
            some = batch.slice(start, _AT_ONCE)
            topics, properties, flags, bodies, offsets = (
                some.column(name).to_pylist() for name in _FOR_DECODING)
            rows = [decoding.one(topic, dict(pairs or ()), flag, body or b"",
                                 f"physical offset {offset}")
                    for topic, pairs, flag, body, offset in zip(
                        topics, properties, flags, bodies, offsets, strict=True)]
            yield pa.RecordBatch.from_arrays([
                pa.array([_as_text(name, row) for row in rows], pa.string())
                if name in DECODED else some.column(name) for name in schema.names], schema=schema)


def _as_text(name: str, row: Decoded) -> str | None:
    if name == "decoded_as":
        return row.kind
    value = row.field(name)
    if value is None and (name == "internal" or row.kind is None):
        return None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@contextlib.contextmanager
def _no_scanner() -> Iterator[None]:
    """Within it, DuckDB reads streams in its own threads, which end with its connection.

    Where it finds `pyarrow.dataset` it has that read them, in threads of Arrow's pool, which read
    ahead and which nobody can wait for. (To load it takes longer than a small query, too.)
    """
    name = "pyarrow.dataset"
    before = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]  # how Python notes what is not to be had
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


class _Table:
    """A table that can be asked for more than once."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._schema, self._batches = schema, batches

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, Stream(self._batches()))
        return reader.__arrow_c_stream__(requested_schema)


def _shown(table: str, columns: Mapping[str, pa.DataType], need: Needs) -> pa.Schema:
    """The columns of a table that a query sees."""
    names = [name for name in columns if name not in ONLY_ASKED] if need.names is None else [
        name for name in columns if name in need.names]
    if need.names is None:
        return pa.schema([pa.field(name, columns[name]) for name in names])
    return pa.schema([pa.field(name, columns[name])
                      for name in names or [_CHEAP.get(table, next(iter(columns)))]])


def _in_batches(rows: Iterator[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    some: list[Mapping[str, Any]] = []
    for row in rows:
        some.append({name: _plain(row.get(name)) for name in schema.names})
        if len(some) == _ROWS:
            yield pa.RecordBatch.from_pylist(some, schema)
            some = []
    yield pa.RecordBatch.from_pylist(some, schema)


def _plain(value: Any) -> Any:
    """Text that can be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value


# -- what a query needs ---------------------------------------------------------------------------


def needs(base: duckdb.DuckDBPyConnection, text: str,
          known: Mapping[str, Mapping[str, pa.DataType]] = COLUMNS) -> dict[str, Needs] | None:
    """What a query needs of each table it names; None where that cannot be told (all of all).
    UsageError for what is no single query.
    """
    try:
        statements = base.extract_statements(text)
    except duckdb.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UsageError(f"SQL: {' '.join(lines[:2])}") from None
    if len(statements) != 1:
        raise UsageError(f"SQL: one query is wanted, there are {len(statements)}")
    if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise UsageError("SQL: a query is wanted, which gives rows; nothing is changed")
    [(serialized,)] = base.execute("select json_serialize_sql(?)", [text]).fetchall()
    tree = json.loads(serialized)
    if tree.get("error"):
        return None
    named: list[str] = []
    columns: set[str] = set()
    everything = _walk(tree, named, columns)
    tables = {name.lower() for name in named} & COLUMNS.keys()
    filters = _filters(tree, named)
    return {table: Needs(None if everything else {
        name for name in known[table] if name in columns}, filters if table == MESSAGES
        else Filters()) for table in tables}


def _walk(node: Any, named: list[str], columns: set[str]) -> bool:
    """Collects the tables and columns that a tree names; whether it wants all columns."""
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


def _filters(tree: Mapping[str, Any], named: Sequence[str]) -> Filters:
    """The conditions of a query on the messages alone, those that the source can apply."""
    try:
        node = tree["statements"][0]["node"]
        source, where = node["from_table"], node["where_clause"]
        simple = (node["type"] == "SELECT_NODE" and source["type"] == "BASE_TABLE"
                  and [name.lower() for name in named] == [MESSAGES] and where is not None)
        # A name that the query gives to something of its own is none of ours.
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
        else:
            filters = filters & _condition(condition)
    return filters


def _condition(node: Mapping[str, Any]) -> Filters:
    sign = _SIGNS.get(str(node.get("type")))
    if node.get("type") == "COMPARE_IN":
        name, *values = (_operand(child) for child in node["children"])
        if None in values or not isinstance(name, _Column):
            return Filters()
        return _limits(name, "in", values)
    if sign is None:
        return Filters()
    left, right = _operand(node["left"]), _operand(node["right"])
    if isinstance(right, _Column):
        left, right, sign = right, left, _TURNED[sign]
    if not isinstance(left, _Column) or right is None or isinstance(right, _Column):
        return Filters()
    return _limits(left, sign, [right])


class _Column(str):
    """The name of a column, beside texts that are values."""


def _operand(node: Mapping[str, Any]) -> Any:
    """A column, a text or a whole number; None for anything else."""
    if node.get("type") == "COLUMN_REF":
        return _Column(node["column_names"][-1].lower())
    if node.get("type") != "VALUE_CONSTANT" or node["value"]["is_null"]:
        return None
    kind, value = node["value"]["type"]["id"], node["value"]["value"]
    if kind == "VARCHAR" and isinstance(value, str):
        return value
    return value if kind in ("INTEGER", "BIGINT") and abs(value) <= _FAR else None


def _limits(name: str, sign: str, values: Sequence[Any]) -> Filters:
    if name == "topic" and sign in ("=", "in") and all(isinstance(text, str) for text in values):
        return Filters() if any("\ufffd" in text for text in values) else Filters(
            topics=frozenset(text.encode() for text in values))
    if not all(isinstance(number, int) for number in values):
        return Filters()
    if name == "queue_id" and sign in ("=", "in"):
        return Filters(queue_ids=frozenset(values))
    if name not in ("store_timestamp", "physical_offset"):
        return Filters()
    least = min(values) if sign in ("=", "in", ">=") else values[0] + 1 if sign == ">" else None
    most = max(values) if sign in ("=", "in", "<=") else values[0] - 1 if sign == "<" else None
    if name == "store_timestamp":
        return Filters(since=least, until=most)
    return Filters(start=least, end=None if most is None else most + 1)


# -- values as JSON knows them --------------------------------------------------------------------


def _change(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What makes a value of a type JSON-ready; None where it is already."""
    if pa.types.is_map(kind):
        return lambda pairs: {str(_ready(key)): _ready(value) for key, value in pairs}
    if pa.types.is_interval(kind):
        return lambda parts: f"{parts[0]} months {parts[1]} days {parts[2] / 1e9:g} s"
    if (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
            or pa.types.is_large_string(kind)):
        return None
    return _ready


def _ready(value: Any) -> Any:
    if isinstance(value, bytes):
        return binary_text(value)
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else moment_text(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, Decimal):
        return number_of(value)
    if isinstance(value, float) and not math.isfinite(value):  # which JSON does not know
        return None
    if isinstance(value, Mapping):
        return {str(key): _ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_ready(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
