"""SQL queries on the tables of stores, run by DuckDB in this process.

For each scan of a table, DuckDB receives a stream of record batches; nothing is copied into a
database. `query_needs` determines the columns and rows that a query needs, because DuckDB would
read complete tables. DuckDB then applies all conditions again.

The streams are Python generators that run in threads of DuckDB. A `QuerySession` waits for the end
of these threads: at exit, they would call an interpreter that no longer exists.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import duckdb
import pyarrow as pa

from rmqctl.errors import StoreIOError, UsageError, interruption
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.ending import Stream
from rmqctl.scan.frames import DAMAGED, Batch, Span
from rmqctl.scan.malloc_tuning import keep_freed_memory
from rmqctl.scan.tables import FINDING_COLUMNS, OFFSET_COLUMNS, Columns, comment_of
from rmqctl.sql.interrupting import interrupted_by_signals
from rmqctl.sql.json_values import (
    binary_text,
    distinct,
    micros_text,
    moment_text,
    number_of,
)
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.planning import plan
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.query_needs import COLUMNS, FINDINGS, MOMENT, OFFSETS, Needs, needs
from rmqctl.sql.reader import TableReader
from rmqctl.sql.schema import (
    CONSUMEQUEUE,
    INDEX,
    MESSAGES,
    ONLY_ASKED,
    as_in_engine,
    for_engine,
    says,
)
from rmqctl.store.projection import DECODED
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.checks.findings import Finding
    from rmqctl.store.decoded import Decoded, Decoding

_CHEAP = {MESSAGES: "physical_offset", CONSUMEQUEUE: "queue_offset", INDEX: "number"}
"""For each table, the column that is read if a query counts rows but uses none of the table's
columns.
"""
_ROWS = 4096
_FOR_DECODING = ("topic", "properties", "sys_flag", "body", "physical_offset")
_AT_ONCE = 32
"""Maximum number of messages whose bodies are decoded at a time."""
_MEMORY = "512MB"
_TIME_HINT = ("times are timestamps: compare them with '2024-06-21T19:51:59Z', or "
              "epoch_ms(store_timestamp) with milliseconds")


@dataclass(slots=True)
class QueryResult:
    """The result of a query: the names of its columns, and an iterator of rows with JSON values."""

    columns: list[str]
    rows: Iterator[dict[str, Any]]


def _interrupt(base: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.Error):  # it is closed
        base.interrupt()


class QuerySession:
    """A DuckDB connection with the tables of stores; a context manager.

    * ``advance``: called with the size in bytes of each piece of the log that was read
    * ``decoding``: if given, messages have the columns `DECODED`, as JSON texts except
      ``decoded_as``
    * ``compacted``: see `ReadOptions`
    """

    def __init__(self, stores: Sequence[str], log_folders: Sequence[str] = (),
                 advance: Callable[[int], None] = lambda _bytes: None,
                 decoding: Decoding | None = None, *, compacted: bool = False) -> None:
        self._decoding, self._compacted = decoding, compacted
        self._columns = COLUMNS if decoding is None else COLUMNS | {
            MESSAGES: COLUMNS[MESSAGES] | {
                name: pa.field(name, pa.string()) for name in DECODED}}
        self._stores, self._folders, self._advance = list(stores), tuple(log_folders), advance
        self._error: BaseException | None = None
        """The error that ended a stream: an error of a store, or the exception of a signal in the
        main thread.
        """
        self._damage: dict[int, Span] = {}
        self._readers: list[pa.RecordBatchReader] = []

    @property
    def damaged(self) -> int:
        """Return the number of damaged log ranges; their messages are missing from the result."""
        return len(self._damage)

    @property
    def undecided(self) -> int:
        """Return the number of intact records in damaged ranges that may or may not be messages."""
        return sum(len(span.doubtful) for span in self._damage.values())

    def _passed(self, batch: Batch) -> None:
        self._damage |= {span.offset: span for span in batch.spans if span.kind == DAMAGED}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as held:
            scratch = held.enter_context(tempfile.TemporaryDirectory(prefix="rmqctl-sql-"))
            held.enter_context(_no_scanner())
            # A query reads tables, neither files nor the network; sorting may need a lot of memory.
            self._base = duckdb.connect(":memory:", config={
                "enable_external_access": "false", "memory_limit": _MEMORY,
                "temp_directory": scratch, "autoinstall_known_extensions": "false"})
            self._base.execute("SET TimeZone = 'UTC'")
            # Also during close, which waits for a running query.
            self._signals = held.enter_context(
                interrupted_by_signals(partial(_interrupt, self._base)))
            held.callback(self._close)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _close(self) -> None:
        """End the queries and close the connection, which ends DuckDB's threads."""
        while self._readers:
            self._readers.pop().close()
        for table in COLUMNS:  # they refer to the connection, which must outlive them
            self._base.unregister(table)
        self._base.close()
        del self._base

    def ask(self, text: str) -> QueryResult:
        """Run a query.
        Raises: UsageError with DuckDB's message for an invalid query. Errors of a store are raised
        unchanged.
        """
        try:  # a signal may come within each call of DuckDB
            self._register(text)
        except (duckdb.Error, RuntimeError) as error:
            raise self._translated(error) from None
        relation: Any = None
        try:
            relation = self._base.sql(text)
            if relation is None:
                raise UsageError("SQL: expected a query that returns rows; stores are read-only")
            reader = relation.to_arrow_reader(_ROWS)
            self._readers.append(reader)
            names = distinct(list(relation.columns))
        except (duckdb.Error, RuntimeError) as error:  # the latter for a signal
            raise self._translated(error) from None
        finally:  # a traceback would keep the relation, and with it all of DuckDB
            del relation
        changes = [_change(kind) for kind in reader.schema.types]
        return QueryResult(names, self._rows(reader, names, changes))

    def _rows(self, reader: pa.RecordBatchReader, names: list[str],
              changes: list[Callable[[Any], Any] | None]) -> Iterator[dict[str, Any]]:
        try:
            for batch in reader:
                columns = [(column.cast(pa.int64()) if _is_moment(column.type) else
                            column).to_pylist() for column in batch.columns]
                for values in zip(*columns, strict=True):
                    yield {name: value if change is None or value is None else change(value)
                           for name, change, value in zip(names, changes, values, strict=True)}
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            raise self._translated(error) from None

    def _register(self, text: str) -> None:
        """Make the tables known to DuckDB, with the columns that a query needs."""
        wanted = needs(self._base, text, self._columns)
        for table, columns in self._columns.items():
            need = wanted.get(table) if wanted is not None else Needs(None)
            shown = _shown(table, columns, Needs(None) if need is None else need)
            self._base.register(table, _QueryTable(
                shown, self._reading(table, shown, need.filters if need else Filters()),
                self._note))
            for column in shown if says(text, "comment") else ():
                comment = comment_of(column).replace("'", "''")
                self._base.execute(f'COMMENT ON COLUMN {table}."{column.name}" IS \'{comment}\'')

    def _note(self, error: BaseException) -> None:
        self._error = error

    def _translated(self, error: Exception) -> BaseException:
        stopped = self._error or interruption(error)
        if stopped is not None:
            return stopped
        if self._signals:
            signal.raise_signal(self._signals[0])  # DuckDB has dropped the exception of its handler
        if isinstance(error, RuntimeError):
            return error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException):
            return StoreIOError(f"SQL: {lines[0]}")
        place = next((line for line in lines if line.startswith("LINE ")), "")
        hint = f". {_TIME_HINT}" if MOMENT in lines[0] else ""
        return UsageError(f"SQL: {lines[0]}" + (f" ({place})" if place else "") + hint)

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
            except BaseException as error:  # DuckDB converts it to its own error
                if not isinstance(error, GeneratorExit):
                    self._error = error
                raise

        return batches

    def _of_files(self, table: str, schema: pa.Schema, filters: Filters) -> Iterator[
            pa.RecordBatch]:
        keep_freed_memory()
        options = ReadOptions(tuple(self._stores), table, log_folders=self._folders,
                              compacted=self._compacted)
        decoded = [name for name in schema.names if table == MESSAGES and name in DECODED]
        stored = schema if not decoded else pa.schema([
            *(field for field in schema if field.name not in decoded),
            *(COLUMNS[MESSAGES][name] for name in _FOR_DECODING if name not in schema.names)])
        reading = TableReader(table, stored.names, stored, filters, self._passed)
        for pieces in plan(options, filters):
            for piece in pieces:
                if decoded and self._decoding is not None:
                    yield from _decoded(reading.rows([piece]), schema, self._decoding)
                else:
                    yield from reading.rows([piece])
                if table == MESSAGES:
                    self._advance(getattr(piece, "end", 0) - getattr(piece, "start", 0))

    def _offsets(self) -> Iterator[dict[str, Any]]:
        from rmqctl.broker.view import view_of
        from rmqctl.store.config.offsets import Lag

        for name in self._stores:
            with Store.open(name, self._folders) as store:
                for row in Lag(store, view_of(store, "auto"), None, None).rows():
                    yield {"store": name, **row}

    def _findings(self) -> Iterator[dict[str, Any]]:
        from rmqctl.checks.verify.verify import Verification

        for name in self._stores:
            with Store.open(name, self._folders) as store:
                finding: Finding
                for finding in Verification(store).findings():
                    yield {"store": name, **finding.as_dict()}


def _decoded(batches: Iterator[pa.RecordBatch], schema: pa.Schema,
             decoding: Decoding) -> Iterator[pa.RecordBatch]:
    """Yield the batches, a few messages at a time because values may be large, with additional
    columns for the decoded bodies.
    """
    for batch in batches:
        for start in range(0, batch.num_rows, _AT_ONCE):
            part = batch.slice(start, _AT_ONCE)
            topics, properties, flags, bodies, offsets = (
                part.column(name).to_pylist() for name in _FOR_DECODING)
            rows = [decoding.decode(topic, dict(pairs or ()), flag, body or b"",
                                    f"physical offset {offset}")
                    for topic, pairs, flag, body, offset in zip(
                        topics, properties, flags, bodies, offsets, strict=True)]
            yield pa.RecordBatch.from_arrays([
                pa.array([_as_text(name, row) for row in rows], pa.string())
                if name in DECODED else part.column(name) for name in schema.names], schema=schema)


def _as_text(name: str, row: Decoded) -> str | None:
    if name == "decoded_as":
        return row.kind
    value = row.field(name)
    if value is None and (name == "internal" or row.kind is None):
        return None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@contextlib.contextmanager
def _no_scanner() -> Iterator[None]:
    """While this context is active, make DuckDB read streams in its own threads.

    These threads end with DuckDB's connection. If `pyarrow.dataset` can be imported, DuckDB instead
    reads in threads of Arrow's pool, which read ahead and cannot be joined. So this context
    prevents the import. (The import also takes longer than a small query.)
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


class _QueryTable:
    """A table that DuckDB can read more than once; each read starts a new stream."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]],
                 note: Callable[[BaseException], None]) -> None:
        self._schema, self._batches, self._note = schema, batches, note

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        try:
            reader = pa.RecordBatchReader.from_batches(self._schema, Stream(self._batches()))
            return reader.__arrow_c_stream__(requested_schema)
        except BaseException as error:  # a signal; DuckDB converts it to its own error
            self._note(error)
            raise


def _shown(table: str, columns: Columns, need: Needs) -> pa.Schema:
    """Return the columns of a table that a query needs, with the types that query engines use."""
    names = [name for name in columns if (name not in ONLY_ASKED if need.names is None else
                                          name in need.names)]
    return pa.schema([for_engine(columns[name])
                      for name in names or [_CHEAP.get(table, next(iter(columns)))]])


def _in_batches(rows: Iterator[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    batch: list[Mapping[str, Any]] = []
    for row in rows:
        batch.append({name: _plain(row.get(name)) for name in schema.names})
        if len(batch) == _ROWS:
            yield _in_batch(batch, schema)
            batch = []
    yield _in_batch(batch, schema)


def _in_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = OFFSET_COLUMNS | FINDING_COLUMNS
    arrays = [as_in_engine(pa.array([row[field.name] for row in rows], columns[field.name].type),
                           field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(value: Any) -> Any:
    """Return a text with U+FFFD for each byte that is not UTF-8; other values unchanged."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value


# -- values as JSON knows them --------------------------------------------------------------------


def _is_moment(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _change(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that converts values of a type to JSON; None if no conversion
    is needed.
    """
    if _is_moment(kind):
        return micros_text
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
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        return None
    if isinstance(value, Mapping):
        return {str(key): _ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_ready(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
