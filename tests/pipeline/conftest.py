"""One Spark session for all tests of the pipeline, on two threads of this machine.

Tests that use it carry ``pytestmark = pytest.mark.xdist_group("spark")``, so that only one
process of a parallel run starts it.
"""

from __future__ import annotations

import pytest

from rmqctl.store.ranges import Processes


@pytest.fixture(scope="session")
def spark():
    from rmqctl.pipeline.session import session

    with session("local[2]") as found:
        yield found


@pytest.fixture
def spark_pool(spark):
    from rmqctl.pipeline.pool import SparkPool

    return SparkPool(spark)


@pytest.fixture(params=[1, 2], ids=["1 process", "2 processes"])
def processes(request):
    return Processes(request.param)
