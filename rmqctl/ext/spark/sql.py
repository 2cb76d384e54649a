"""Run SQL queries over the tables of stores.

The views are ``messages``, ``frames``, ``consumequeue``, ``index`` and, for stores with a tier,
``tiered_messages``. Only the views that a query names are created. Only the columns and rows that
the query's optimised plan needs are read (`plan_needs`). A view has all columns; unused columns
contain typed nulls.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import rmqctl.errors
from rmqctl.errors import RmqctlError, StoreIOError, UsageError
from rmqctl.export.staging import ExportStaging
from rmqctl.ext.spark import register
from rmqctl.ext.spark.plan_needs import Scans, needs
from rmqctl.ext.spark.pool import failure
from rmqctl.ext.spark.session import log_of
from rmqctl.ext.spark.source import schema as spark_schema
from rmqctl.ext.spark.source.losses import SWITCH
from rmqctl.ext.spark.source.tiered import holding
from rmqctl.files.durable import sync_file, sync_folder
from rmqctl.sql import schema
from rmqctl.sql.json_values import binary_text, distinct, moment_text, number_of
from rmqctl.sql.schema import NAME, named_tables, says

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

FileFormat = Literal["parquet", "json", "csv"]
Convert = Callable[[Any], Any]
_CHEAP = {schema.MESSAGES: "physical_offset", schema.FRAMES: "physical_offset",
          schema.CONSUMEQUEUE: "queue_offset", schema.INDEX: "number",
          schema.TIERED_MESSAGES: "physical_offset"}
"""For each table, the column to read for a query that needs rows but no columns."""
_SHOWING = ("DescribeRelation", "DescribeColumn", "DescribeQueryCommand", "ShowTables",
            "ShowColumns", "ShowFunctions", "ExplainCommand")
_CHANGING = ("org.apache.spark.sql.catalyst.plans.logical.Command",
             "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement",
             "org.apache.spark.sql.catalyst.plans.logical.CompoundPlanStatement")
_OWN_ERROR = re.compile(r"rmqctl\.errors\.(\w+): ([^\n]*)")
_DATA_STATES = ("22", "P0001")
"""Prefixes of the SQL states of errors in data (such as a division by zero, or raise_error)."""
_TIME_HINT = ("times are timestamps: compare them with '2024-06-21T19:51:59Z', or "
              "unix_millis(store_timestamp) with milliseconds")
_PLACE = re.compile(r"^== SQL.* \((line \d+, position \d+)\) ==$", re.MULTILINE)


def query(spark: SparkSession, stores: Sequence[str], text: str, *,
          options: Mapping[str, str] | None = None) -> DataFrame:
    """Return the result of a query: a lazy DataFrame that reads only what the query needs.

    ``options``: further options of the data source.
    Raises: UsageError with Spark's message for an invalid query, and for statements that change
    data.
    """
    given = dict(options or {})
    register(spark)
    with spark_errors(spark):
        shows = _check(spark, text)
        names = named_tables(text)
        columns = {table: _columns(table, text) for table in names}
        for table in names:
            _make_view(spark, table, stores, given, columns[table], None)
        if shows or not names:
            return spark.sql(text)
        scans_of = needs(spark.sql(text)._jdf.queryExecution().optimizedPlan())
        if scans_of is not None:
            for table in names:
                scans = scans_of.get(table, Scans())
                _make_view(spark, table, stores, given | scans.options(table, given),
                           columns[table], scans.columns)
        return spark.sql(text)


def damaged(spark: SparkSession, stores: Sequence[str]) -> dict[str, int]:
    """Return the number of damaged ranges in the log of each store. A query does not include the
    messages in these ranges. The logs are read once, without bodies.
    """
    register(spark)
    with spark_errors(spark):
        counts = (spark.read.format(NAME).schema("store string, kind string")
                  .option("table", schema.FRAMES).option("paths", json.dumps(list(stores)))
                  .option(SWITCH, "false").load()
                  .where("kind = 'damaged'").groupBy("store").count().collect())
    return {row[0]: row[1] for row in counts}


def _columns(table: str, text: str) -> StructType:
    """Return the columns of a view, including ``record`` only if the query names it."""
    struct = spark_schema.default(table)
    for column in schema.ONLY_ASKED:
        if column in schema.columns(table) and says(text, column):
            struct = struct.add(spark_schema.spark_field(schema.columns(table)[column]))
    return struct


def _make_view(spark: SparkSession, table: str, paths: Sequence[str], options: Mapping[str, str],
               struct: StructType, needed: set[str] | None) -> None:
    """Create the view of a table with the columns ``struct``; only ``needed`` columns are read
    (None: all).
    """
    from pyspark.sql.functions import col, lit
    from pyspark.sql.types import StructType

    read = struct
    if needed is not None:
        read = StructType([field for field in struct.fields
                           if field.name in (needed or {_CHEAP[table]})])
    frame = (spark.read.format(NAME).options(**options).option("table", table).schema(read)
             .load(holding(table, paths)))
    read_names = set(read.names)
    frame.select(*(col(field.name) if field.name in read_names else
                   lit(None).cast(field.dataType).alias(field.name) for field in struct.fields)
                 ).createOrReplaceTempView(table)


def _check(spark: Any, text: str) -> bool:
    """Return whether a text is a SHOW, DESCRIBE or EXPLAIN statement, not a query.
    Raises: UsageError if it changes data.
    """
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]

    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    if plan.getClass().getSimpleName() in _SHOWING:
        return True
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        name = node.getClass().getSimpleName()
        if name.startswith("Insert") or any(
                is_instance_of(spark.sparkContext._gateway, node, class_name)
                for class_name in _CHANGING):
            raise UsageError("SQL: only queries are allowed, not statements that change data "
                             f"({name})")
        children = node.children().iterator()
        while children.hasNext():
            waiting.append(children.next())
    return False


# -- what comes out -------------------------------------------------------------------------------


def rows(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield each row as a mapping for JSON as soon as it is available.

    Binary values become base64, timestamps and dates become ISO-8601. If two columns are called
    ``name``, the second becomes ``name_2``.
    """
    names = distinct(frame.columns)
    changes = [converter(field.dataType) for field in frame.schema.fields]
    with spark_errors(frame.sparkSession):
        for row in frame.toLocalIterator(prefetchPartitions=True):
            yield {name: value if change is None or value is None else change(value)
                   for name, value, change in zip(names, row, changes, strict=True)}


def columns(frame: DataFrame) -> list[str]:
    """Return the names of the columns that `rows` yields."""
    return distinct(frame.columns)


def write(frame: DataFrame, out: str, form: FileFormat) -> None:
    """Write the rows to files in a new folder; after a failure the folder does not exist.

    In CSV, maps, lists and structures are written as JSON, and binary values as base64.
    Raises: RefusedError if ``out`` exists; StoreIOError.
    """
    with ExportStaging(out) as staging, spark_errors(frame.sparkSession):
        flat_frame = flat(frame) if form == "csv" else frame
        options = {"header": "true"} if form == "csv" else {}
        target = staging.path("")
        flat_frame.write.format(form).options(**options).mode("append").save(f"file:{target}")
        _settle(target)
        staging.publish()


def flat(frame: DataFrame) -> DataFrame:
    """Return a DataFrame with columns that CSV can represent: structures become JSON, binary values
    become base64.
    """
    from pyspark.sql import functions, types

    selected = []
    for field in frame.schema.fields:
        column = frame[field.name]
        if isinstance(field.dataType, types.BinaryType):
            column = functions.translate(functions.base64(column), "\r\n", "").alias(field.name)
        elif isinstance(field.dataType, types.MapType | types.ArrayType | types.StructType):
            column = functions.to_json(column).alias(field.name)
        selected.append(column)
    return frame.select(*selected)


def _settle(folder: str) -> None:
    """Flush all files to disk, and delete the additional files that Hadoop creates."""
    for where, _, files in os.walk(folder, topdown=False):
        for name in files:
            path = os.path.join(where, name)
            if not name.startswith(".") and name != "_SUCCESS":
                sync_file(path)
                continue
            try:
                os.unlink(path)
            except OSError as error:
                raise StoreIOError.from_oserror(error, path, "remove") from None
        sync_folder(where)


# -- values as JSON knows them --------------------------------------------------------------------


def converter(kind: DataType) -> Convert | None:
    """Return the function that converts values of a type for JSON; None if JSON can represent them
    as they are.
    """
    from pyspark.sql import types

    if isinstance(kind, types.BinaryType):
        return binary_text
    if isinstance(kind, types.TimestampType):
        return moment_text
    if isinstance(kind, types.TimestampNTZType | types.DateType):
        return _iso
    if isinstance(kind, types.DecimalType):
        return number_of
    if isinstance(kind, types.ArrayType):
        convert = converter(kind.elementType)
        return None if convert is None else lambda values: [_apply(convert, value)
                                                            for value in values]
    if isinstance(kind, types.MapType):
        key, value = converter(kind.keyType), converter(kind.valueType)
        return lambda values: {_text(_apply(key, name)): _apply(value, item)
                               for name, item in values.items()}
    if isinstance(kind, types.StructType):
        fields = [(field.name, converter(field.dataType)) for field in kind.fields]
        return lambda row: {name: _apply(change, value)
                            for (name, change), value in zip(fields, row, strict=True)}
    plain = (types.StringType, types.BooleanType, types.NumericType, types.NullType,
             types.CharType, types.VarcharType)
    return None if isinstance(kind, plain) else str


def _apply(change: Convert | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _iso(value: date) -> str:
    return value.isoformat()


# -- errors ---------------------------------------------------------------------------------------


@contextmanager
def spark_errors(spark: SparkSession) -> Iterator[None]:
    """Convert Spark's exceptions: to a UsageError for an error in the query, otherwise to the error
    for a failed job.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    # It repeats the exception on stderr, with the complete Java stack.
    with suppress(ImportError):  # PySpark 3.5 has no logger of its own
        from pyspark.logger import PySparkLogger

        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except RmqctlError:
        raise
    except (PySparkException, Py4JError) as error:
        raise _interruption(error) or _error(error, log_of(spark)) from None


def _interruption(error: BaseException | None) -> BaseException | None:
    """Return the interruption (Ctrl-C, SIGTERM) that caused an error, or None.

    After an interruption, pyspark fails to clean up and raises another error.
    """
    while error is not None:
        if not isinstance(error, Exception):
            return error
        error = error.__context__
    return None


def _error(error: Exception, log: str | None) -> BaseException:
    from pyspark.errors import AnalysisException, ParseException

    causes = list(_causes(error))
    text = "\n".join([str(error), *(words for _, words in causes)])
    own_error = _OWN_ERROR.search(text)
    kind = getattr(rmqctl.errors, own_error[1], None) if own_error else None
    if own_error and isinstance(kind, type) and issubclass(kind, RmqctlError):
        return kind(own_error[2])
    if isinstance(error, AnalysisException | ParseException):
        reason = _sentence(str(error))
        return UsageError(f"SQL: {reason}" + (f". {_TIME_HINT}" if '"TIMESTAMP"' in reason else ""))
    wrong = next((words for state, words in causes if state.startswith(_DATA_STATES)), None)
    return failure(error, log) if wrong is None else UsageError(f"SQL: {_sentence(wrong)}")


def _causes(error: Any) -> Iterator[tuple[str, str]]:
    """For a Java exception and each of its causes, yield the SQL state ("" if there is none) and
    the message.
    """
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    gateway = SparkContext._gateway
    while cause is not None and gateway is not None:
        is_sparks = is_instance_of(gateway, cause, "org.apache.spark.SparkThrowable")
        yield (cause.getSqlState() or "") if is_sparks else "", cause.getMessage() or ""
        cause = cause.getCause()


def _sentence(text: str) -> str:
    """Return Spark's message on one line, with the position of the error but without the plan
    and the query.
    """
    sentences: list[str] = []
    for line in text.strip().splitlines():
        words = line.strip()
        if words.startswith(("== ", "'", "+-", ":-")) or not words:
            break
        sentences.append(words)
    place = _PLACE.search(text)
    sentence = " ".join(sentences).rstrip("; ")
    return f"{sentence} ({place[1]})" if place else sentence
