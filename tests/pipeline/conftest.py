"""One Spark session for all tests of the pipeline, on two threads of this machine.

Tests that use it are of one xdist group, so that only one process of a parallel run starts it (and
starts with it: it is the largest group). `make test` runs those in `SMOKE`; the others run in
`make test-spark` and, with all golden stores, in `make test-exhaustive`. A process has one session
at a time: another kind takes its place (`Sessions`).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from rmqctl.ext.spark.versions import SOURCE
from rmqctl.store.log.ranges import Threads

HERE = Path(__file__).parent
SMOKE = {"test_projection", "test_several_stores_at_once", "test_messages_are_the_message_objects"}
"""One test of the data source, one of jobs, one of SQL."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests run for seconds: the JVM's second compiler would only take time from them."""


JOBS = ("test_export", "test_export_files", "test_export_layout", "test_export_spark",
        "test_one_file", "test_pool", "test_rebuild_pool", "test_rebuild_spark", "test_stats_pool",
        "test_verify", "test_engine_choice")
"""Files without the data source: all that can run with PySpark 3.5."""


def pytest_ignore_collect(collection_path):
    """With `make test-spark PYSPARK=3.5.7`, whose PySpark has no Python data sources."""
    is_job = collection_path.suffix != ".py" or collection_path.stem in ("conftest", *JOBS)
    return None if is_job or _has_source() else True


@cache
def _has_source():
    """Whether the PySpark that is installed has them; without importing it."""
    try:
        return int(version("pyspark").partition(".")[0]) >= SOURCE[0]
    except PackageNotFoundError:
        return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Before pytest-xdist writes the groups into the names of the tests."""
    for item in items:
        if (HERE in item.path.parents and "sessions" in getattr(item, "fixturenames", ())
                and item.get_closest_marker("xdist_group") is None):
            item.add_marker(pytest.mark.xdist_group("spark"))
        if _group_name(item) == "spark" and item.name.split("[")[0] not in SMOKE:
            item.add_marker(pytest.mark.area)


def _group_name(item):
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark and mark.args else None


class Sessions:
    """The Spark session of this process, kept as long as the same kind is asked for."""

    def __init__(self):
        self._kind, self._session, self._held = None, None, ExitStack()

    def use(self, master, **conf):
        from rmqctl.ext.spark.session import session

        conf = {"spark.driver.extraJavaOptions": QUICK_START, **conf}
        kind = master, tuple(sorted(conf.items()))
        if kind != self._kind:
            self.close()
            self._session = self._held.enter_context(session(master, conf=conf))
            self._kind = kind
        return self._session

    def close(self):
        self._kind = self._session = None
        self._held.close()


@pytest.fixture(scope="session")
def sessions():
    sessions = Sessions()
    yield sessions
    sessions.close()


@pytest.fixture(scope="module")
def spark(sessions):
    return sessions.use("local[2]")


@pytest.fixture
def spark_pool(spark):
    from rmqctl.ext.spark.pool import SparkPool

    return SparkPool(spark)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request):
    return Threads(request.param)
