"""One schema: `export`, `sql`, `pipeline export`, Spark and `rmqctl.open` have the same columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from rmqctl import api
from rmqctl.scan.tables import MESSAGE_COLUMNS, METADATA, PLACE, VERSION, comment_of
from rmqctl.sql.query_needs import COLUMNS
from rmqctl.sql.schema import TABLES
from tests.conftest import GoldenFolder, Runner
from tests.pipeline import exporting
from tests.support.golden import golden_stores, is_covering

BASIC = "5.3.3/basic/store"
DUCKDB = {pa.int32(): "INTEGER", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN",
          pa.string(): "VARCHAR", pa.binary(): "BLOB",
          pa.timestamp("ms", tz="UTC"): "TIMESTAMP WITH TIME ZONE"}
SPARK = {pa.int32(): "int", pa.int64(): "bigint", pa.bool_(): "boolean", pa.string(): "string",
         pa.binary(): "binary", pa.timestamp("ms", tz="UTC"): "timestamp"}
Table = list[tuple[str, str, bool, str]]


def words(kind: pa.DataType, plain: dict[pa.DataType, str]) -> str:
    """A type as an engine names it."""
    if pa.types.is_map(kind):
        of = f"{words(kind.key_type, plain)}, {words(kind.item_type, plain)}"
        return f"MAP({of})" if plain is DUCKDB else f"map<{of.replace(' ', '')}>"
    if pa.types.is_list(kind):
        of = words(kind.value_type, plain)
        return f"{of}[]" if plain is DUCKDB else f"array<{of}>"
    return plain[kind]


def of_arrow(schema: pa.Schema, names: dict[pa.DataType, str]) -> Table:
    assert schema.metadata[b"schema_version"] == str(VERSION).encode()
    return [(field.name, words(field.type, names), field.nullable, comment_of(field))
            for field in schema]


def of_sql(rmqctl: Runner, store: Path, table: str) -> Table:
    columns = rmqctl("sql", store, f"describe {table}", "-o", "json").expect(0).json()
    comments = {row["column_name"]: row["comment"] for row in rmqctl(
        "sql", store, "select column_name, comment from duckdb_columns() where "
        f"table_name = '{table}'", "-o", "json").expect(0).json()}
    return [(row["column_name"], row["column_type"], row["null"] == "YES",
             comments[row["column_name"]]) for row in columns]


def test_five_ways_but_spark(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path) -> None:
    store = golden(BASIC)
    file, arrow = tmp_path / "m.parquet", tmp_path / "m.arrow"
    rmqctl("export", store, "--out", file).expect(0)
    rmqctl("export", store, "--format", "arrow", "--out", arrow).expect(0)
    wanted = of_arrow(pq.read_schema(file), DUCKDB)
    assert [name for name, *_ in wanted] == [
        *PLACE, *(name for name in MESSAGE_COLUMNS if name != "record")]
    assert of_arrow(pa.feather.read_table(arrow).schema, DUCKDB) == wanted
    exporting.run([store], tmp_path / "lake", partition_by=())
    assert of_arrow(pq.read_schema(exporting.data_files(tmp_path / "lake")[0]), DUCKDB) == wanted
    assert of_sql(rmqctl, store, "messages") == wanted
    with api.open(store) as opened:
        assert of_arrow(opened.messages().to_arrow().schema, DUCKDB) == wanted[len(PLACE):]


def test_spark(spark: Any, golden: GoldenFolder, rmqctl: Runner) -> None:
    from rmqctl.ext.spark import sql

    store = str(golden(BASIC))
    for table, columns in TABLES.items():
        wanted = of_arrow(pa.schema([column for name, column in columns.items()
                                     if name != "record"],
                                    METADATA), SPARK)
        if table != "tiered_messages":
            rows = sql.rows(sql.query(spark, [store], f"describe {table}"))
            assert [(row["col_name"], row["data_type"], True, row["comment"]) for row in rows
                    ] == wanted
        frame = spark.read.format("rocketmq").option("table", table).load(store)
        assert [(attribute.name, attribute.dataType.simpleString(), attribute.nullable,
                 attribute.metadata["comment"])
                for attribute in frame.schema.fields] == wanted


@pytest.mark.parametrize("table", ["consumequeue", "index", "offsets", "findings"])
def test_other_tables_of_sql(table: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    assert of_sql(rmqctl, golden(BASIC), table) == of_arrow(
        pa.schema([*COLUMNS[table].values()], METADATA), DUCKDB)


@pytest.mark.parametrize("store", [golden_store for golden_store in golden_stores()
                                   if is_covering(golden_store)],
                         ids=lambda golden_store: golden_store.id)
def test_only_what_the_schema_says_is_null(store: Any, golden: GoldenFolder) -> None:
    from rmqctl.sql.session import QuerySession

    with QuerySession([str(golden(store.id))], store.commitlog_dirs) as session:
        for table, columns in COLUMNS.items():
            never = [name for name, column in columns.items()
                     if "; null: " not in comment_of(column)]
            (counts,) = session.ask("select count(*) as n, " + ", ".join(
                f'count("{name}") as "{name}"' for name in never) + f" from {table}").rows
            rows = counts.pop("n")
            assert counts == dict.fromkeys(never, rows), table


def test_every_column_has_a_comment() -> None:
    for columns in (TABLES | COLUMNS).values():
        for field in columns.values():
            assert comment_of(field)
