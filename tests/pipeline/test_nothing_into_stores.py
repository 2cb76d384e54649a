"""Nothing of ours is put into a store: every way of the pipeline to write a file refuses it.

All of these refuse before Spark is started, so none of the tests has a session.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from rmqctl.errors import UsageError
from rmqctl.export.staging import ExportStaging
from rmqctl.ext.spark.source.write import StoreWriter
from rmqctl.store.inside_store import enclosing_store, refuse_in_store
from tests.conftest import GoldenFolder, Runner
from tests.support import snapshot

PLACES = ("out", "commitlog/out", "consumequeue/out", "config/a/b/out", ".rmqctl/out", "")
QUERY = "SELECT count(*) AS n FROM messages"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("rmqctl.ext.spark.session.session", started)


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    return golden_copy("5.3.3/basic/store")


def refused(rmqctl: Runner, store: Path, *words: object) -> None:
    """A command that ends with exit code 2, names the store and changes nothing."""
    with snapshot.assert_unchanged(store.parent):
        done = rmqctl("pipeline", *map(str, words)).expect(2)
    assert f"is in the store {store}" in done.err
    assert done.out == ""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("more", [("--engine", "local"), ("--engine", "spark"), ("--dry-run",)])
def test_export(place, more, root, golden, rmqctl: Runner):
    other = golden("4.9.3/basic/store")  # the store that is exported is another one
    for exported in (root, other):
        refused(rmqctl, root, "export", exported, "--out", root / place, *more)


@pytest.mark.parametrize("place", PLACES)
def test_rows_of_a_query(place, root, golden, rmqctl: Runner):
    other = golden("4.9.3/basic/store")
    for asked in (root, other):
        refused(rmqctl, root, "sql", asked, QUERY, "--out", root / place)
    refused(rmqctl, root, "sql", other, QUERY, "--out", root / place, "--dry-run")


def test_a_query_is_refused_for_what_is_there(root, tmp_path, rmqctl: Runner):
    """As it would be at the end, but now."""
    (tmp_path / "mine").write_text("mine")
    with snapshot.assert_unchanged(tmp_path):
        rmqctl("pipeline", "sql", root, QUERY, "--out", tmp_path / "mine").expect(6)
        rmqctl("pipeline", "sql", root, QUERY, "--out", tmp_path / "no" / "out").expect(5)


@pytest.mark.parametrize("words", [
    ("verify",), ("stats", "--engine", "spark"), ("sql",), ("export", "--engine", "spark"),
    ("rebuild",)], ids=lambda words: words[0])
def test_what_spark_says(words, root, tmp_path, rmqctl: Runner):
    name, *more = words
    asked = [QUERY] if name == "sql" else []
    out = ["--out", tmp_path / "out"] if name == "export" else []
    for place in ("spark.log", "config/spark.log"):
        refused(rmqctl, root, name, root, *asked, *out, *more, "--spark-log", root / place)


@pytest.mark.parametrize("place", [*PLACES, "consumequeue"])
def test_the_scratch_folder_of_a_rebuild(place, root, golden, rmqctl: Runner):
    for mended in (root, golden("4.9.3/basic/store")):
        refused(rmqctl, root, "rebuild", mended, "--engine", "local", "--scratch", root / place)


@pytest.mark.parametrize("place", ["out", "commitlog/out", "a/b/out"])
def test_a_new_store(place, root):
    schema = StructType().add("topic", StringType()).add("body", BinaryType())
    with snapshot.assert_unchanged(root), pytest.raises(UsageError, match="is in the store"):
        StoreWriter(schema, {"path": str(root / place), "diskWatermark": "100%"})


def test_by_a_link(root, tmp_path, rmqctl: Runner):
    (tmp_path / "link").symlink_to(root / "config")
    refused(rmqctl, root, "export", root, "--out", tmp_path / "link" / "out")
    refused(rmqctl, root, "sql", root, QUERY, "--out", tmp_path / "link" / "out")


def test_a_log_that_lies_elsewhere(root, tmp_path):
    """Its folder in the store is a link: what is named lies in the store."""
    (root / "commitlog").rename(tmp_path / "disk")
    (root / "commitlog").symlink_to(tmp_path / "disk")
    assert enclosing_store(root / "commitlog" / "out") == str(root)


@pytest.mark.parametrize("name", ["5.3.3/multipath/store", "4.9.3/crash-nocq/before",
                                  "5.3.3/crash-nocq-noindex-nocheckpoint/before",
                                  "5.3.3/batchcq/store", "5.3.3/tiered/store"])
def test_stores_of_all_kinds_are_known(name, golden: GoldenFolder):
    root = golden(name)
    for place in ("", "out", "commitlog/out"):
        assert enclosing_store(root / place) == str(root)
    with pytest.raises(UsageError, match=f"^--it is in the store {root}"):
        refuse_in_store(root / "out", "--it")


def test_a_bare_log_is_a_store(tmp_path):
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    assert enclosing_store(log / "out") is None
    (log / "00000000000000000000").touch()
    assert enclosing_store(log / "out") == str(tmp_path / "store")
    assert enclosing_store(tmp_path / "out") is None


def test_what_is_no_store(tmp_path, monkeypatch):
    for name in ("index", "config", "lock"):
        (tmp_path / name).mkdir()
    (tmp_path / "commitlog").touch()
    assert enclosing_store(tmp_path / "out") is None
    monkeypatch.chdir(tmp_path)
    assert enclosing_store("out") is None
    with ExportStaging("out") as staging:  # beside a file of that name all is well
        staging.publish()
    assert sorted(os.listdir(tmp_path)) == ["commitlog", "config", "index", "lock", "out"]


def test_beside_a_store_all_is_well(root):
    refuse_in_store(root.parent / "out")
    assert enclosing_store(f"{root}-export/out") is None


def test_a_clusters_folder_of_a_tier_counts_as_a_store(tmp_path):
    cluster = tmp_path / "212d6b50_DefaultCluster"
    (cluster / "broker-a").mkdir(parents=True)
    assert enclosing_store(cluster / "broker-a" / "out") == str(cluster)
    assert enclosing_store(tmp_path / "00000000_DefaultCluster" / "out") is None
    assert enclosing_store(tmp_path / "out") is None
