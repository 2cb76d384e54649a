"""What a store has lost: the data source refuses to answer, queries warn, exports say it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.spark.source import schema as spark_schema
from rmqctl.ext.spark.source.limits import ReadAllAvailable
from rmqctl.ext.spark.source.losses import losses, refuse_losses
from rmqctl.ext.spark.source.source import SourceReader
from rmqctl.ext.spark.source.stream import StreamReader
from rmqctl.sql import schema
from rmqctl.sql.options import ReadOptions
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import damage

BASIC = "5.3.3/basic/store"
COUNT = "select count(*) as n from messages"


def _last_file(root: Path) -> None:
    max((root / "commitlog").iterdir()).unlink()


def _middle_file(root: Path) -> None:
    sorted((root / "commitlog").iterdir())[2].unlink()


def _every_file(root: Path) -> None:
    for file in (root / "commitlog").iterdir():
        file.unlink()


def _folder(root: Path) -> None:
    shutil.rmtree(root / "commitlog")


LOSSES = {_last_file: 465, _middle_file: 483, _every_file: 0, _folder: 0}


@pytest.fixture(params=LOSSES, ids=lambda lose: lose.__name__.strip("_"))
def lacking(request, golden_copy: GoldenFolder) -> tuple[Path, int]:
    """A store that has lost messages, and how many of its 600 are left."""
    root = golden_copy(BASIC)
    request.param(root)
    return root, LOSSES[request.param]


def options(root: Path, **more: str) -> ReadOptions:
    return ReadOptions.of({"path": str(root), **more})


def test_the_source_does_not_answer_unless_it_is_told_to(lacking):
    root, left = lacking
    with pytest.raises(StoreIOError, match=rf"{600 - left} messages.*failOnDataLoss=false"):
        refuse_losses(options(root))
    refuse_losses(options(root, failOnDataLoss="false"))
    refuse_losses(options(root, table="index"))


def test_a_store_without_losses(golden: GoldenFolder):
    assert list(losses([str(golden(BASIC))])) == []
    refuse_losses(options(golden(BASIC), failOnDataLoss="TRUE"))


def test_sql_warns(lacking, rmqctl):
    root, left = lacking
    done = rmqctl("sql", root, COUNT, "-o", "jsonl")
    assert json.loads(done.out) == {"n": left}
    assert f"{600 - left} messages are already lost" in " ".join(done.err.split()), done.describe()


# -- damage in the log ----------------------------------------------------------------------------


def _flip(root: Path) -> None:
    damage.flip_bit(root, FILE, _place(root)[0] + 3, 5)  # the size of a message


def _zeros(root: Path) -> None:
    first, end = _place(root)
    damage.zero(root, FILE, first, end - first)


def _zeros_at_the_end(root: Path) -> None:
    """Of a file that another one follows."""
    damage.zero(root, FILE, 60_000, 5_536)


def _place(root: Path) -> tuple[int, int]:
    with Store.open(root) as store:
        batch = next(iter(store.log.walk()))
        return int(batch.offset[20]), int(batch.offset[21])


FILE = f"commitlog/{0:020d}"
DAMAGE = (_flip, _zeros, _zeros_at_the_end)


@pytest.fixture(params=DAMAGE, ids=lambda do: do.__name__.strip("_"))
def damaged(request, golden_copy: GoldenFolder) -> Path:
    """A store of 600 messages whose log is damaged in the middle."""
    root = golden_copy(BASIC)
    request.param(root)
    return root


def read(root: Path, count: int, **more: str) -> int:
    """How many messages tasks of the source give, without Spark."""
    given = options(root, numPartitions=str(count), **more)
    reader = SourceReader(given, spark_schema.default(given.table))
    return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))


@pytest.mark.parametrize("count", [1, 5, 40])
def test_damage_in_the_log_is_a_loss(damaged, count):
    """Wherever the partitions are cut."""
    with pytest.raises(StoreIOError, match="at physical offset.*doctor.*failOnDataLoss=false"):
        read(damaged, count)
    left = read(damaged, count, failOnDataLoss="false")
    assert 500 < left < 600
    with Store.open(damaged) as store:
        assert left == sum(len(batch) for batch in store.log.walk())
    # Here each damaged place is a row.
    assert read(damaged, count, table="frames") > left


@pytest.mark.parametrize("count", [1, 5, 40])
@pytest.mark.parametrize("name", [BASIC, "4.9.3/basic/store", "5.3.3/v2topic/store"])
def test_zeros_that_nothing_was_written_to_are_no_loss(name, count, golden: GoldenFolder):
    root = golden(name)
    with Store.open(root) as store:
        assert read(root, count) == sum(len(batch) for batch in store.log.walk())


def test_a_body_that_does_not_match_is_a_row(golden_copy: GoldenFolder):
    root = golden_copy(BASIC)
    first, end = _place(root)
    damage.flip_bit(root, FILE, (first + end) // 2, 1)
    assert read(root, 3) == 600


@pytest.fixture(params=[*DAMAGE, *LOSSES], ids=lambda do: do.__name__.strip("_"))
def incomplete(request, golden_copy: GoldenFolder) -> Path:
    """A store with damage in its log or without some of its files."""
    root = golden_copy(BASIC)
    request.param(root)
    return root


def test_every_way_of_reading_says_the_same(incomplete, rmqctl, tmp_path):
    """What the source does not answer from is what no other command calls complete."""
    root = incomplete
    with pytest.raises(StoreIOError):
        read(root, 2)
    done = rmqctl("pipeline", "export", root, "--out", tmp_path / "out", "--engine", "local")
    assert done.code in (1, 5), done.describe()
    if done.code == 1:
        assert json.loads((tmp_path / "out/_rmqctl_export.json").read_text())["complete"] is False
    stats = rmqctl("pipeline", "stats", root, "--engine", "local", "-o", "json")
    assert stats.code == 1
    assert json.loads(stats.out)["complete"] is False
    assert rmqctl("sql", root, COUNT).err


def test_streams(incomplete, caplog):
    root = incomplete
    with pytest.raises(StoreIOError, match="failOnDataLoss=false"):
        followed(root)
    with caplog.at_level(logging.WARNING):
        left = followed(root, failOnDataLoss="false")
        assert "at physical offset" in caplog.text or "lost" in caplog.text
    with Store.open(root) as store:
        assert left == sum(len(batch) for batch in store.log.walk())


def test_a_stream_that_goes_on_where_the_log_was_left(golden_copy: GoldenFolder):
    """Its log is not mounted when it starts again: what comes later would be left out."""
    root = golden_copy(BASIC)
    end = {str(root): 5 * 65536 - 10_000}
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()
    with pytest.raises(StoreIOError, match="ends before physical offset.*not mounted"):
        reader(root).latestOffset(end, ReadAllAvailable())
    again = reader(root, failOnDataLoss="false")
    assert again.latestOffset(end, ReadAllAvailable()) == end


def test_a_stream_of_what_comes_next_does_not_ask_what_was(lacking):
    root, _ = lacking
    reader(root, startingOffsets="latest").initialOffset()


def reader(root: Path, **more: str) -> StreamReader:
    return StreamReader({"path": str(root), **more}, spark_schema.default(schema.MESSAGES))


def followed(root: Path, **more: str) -> int:
    """How many messages one batch of all there is gives."""
    following = reader(root, **more)
    start = following.initialOffset()
    following.prepareForTriggerAvailableNow()
    end = following.latestOffset(start, ReadAllAvailable())
    parts = following.partitions(start, end)
    return sum(rows.num_rows for part in parts for rows in following.read(part))


def test_spark(lacking, spark, rmqctl):
    from pyspark.errors import PySparkException

    root, left = lacking
    source = spark.read.format("rocketmq")
    with pytest.raises(PySparkException, match=f"{600 - left} messages"):
        source.load(str(root)).count()
    assert source.option("failOnDataLoss", "false").load(str(root)).count() == left


@pytest.mark.long
def test_spark_on_damage(damaged, spark):
    from pyspark.errors import PySparkException

    from rmqctl.ext.spark import sql

    source = spark.read.format("rocketmq")
    with pytest.raises(PySparkException, match="failOnDataLoss=false"):
        source.load(str(damaged)).count()
    left = source.option("failOnDataLoss", "false").load(str(damaged)).count()
    assert left == read(damaged, 1, failOnDataLoss="false")
    assert sql.damaged(spark, [str(damaged)]) == {str(damaged): 1}
