"""What a store has lost: the data source refuses to answer, queries warn, exports say it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.pipeline.source.losses import losses, refuse_losses
from rmqctl.pipeline.source.options import Options
from tests.conftest import GoldenFolder

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


def options(root: Path, **more: str) -> Options:
    return Options.of({"path": str(root), **more})


def test_the_source_does_not_answer_unless_it_is_told_to(lacking):
    root, left = lacking
    with pytest.raises(StoreIOError, match=rf"{600 - left} messages.*failOnDataLoss=false"):
        refuse_losses(options(root))
    refuse_losses(options(root, failOnDataLoss="false"))
    refuse_losses(options(root, table="index"))


def test_a_store_without_losses(golden: GoldenFolder):
    assert list(losses(options(golden(BASIC)))) == []
    refuse_losses(options(golden(BASIC), failOnDataLoss="TRUE"))


def test_sql_warns(lacking, rmqctl):
    root, left = lacking
    done = rmqctl("sql", root, COUNT, "-o", "jsonl")
    assert json.loads(done.out) == {"n": left}
    assert f"{600 - left} messages are already lost" in " ".join(done.err.split()), done.describe()


def test_spark(lacking, spark, rmqctl):
    from pyspark.errors import PySparkException

    root, left = lacking
    source = spark.read.format("rocketmq")
    with pytest.raises(PySparkException, match=f"{600 - left} messages"):
        source.load(str(root)).count()
    assert source.option("failOnDataLoss", "false").load(str(root)).count() == left
