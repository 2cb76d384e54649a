"""The data source through Spark Connect: found by its name, frames reused, losses refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import damage

pytestmark = [pytest.mark.xdist_group("spark-cluster"), pytest.mark.exhaustive]
for library in ("grpc", "grpc_status", "google.rpc", "zstandard", "pandas"):
    pytest.importorskip(library, reason=f"Spark Connect needs {library}, which is not installed")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
sound, damaged = sys.argv[1:]
frame = spark.read.format("rocketmq").load(sound)
some = frame.where("queue_id = 3")
frame.createOrReplaceTempView("m")
row = spark.sql("select (select count(*) from m where queue_id = 3), (select count(*) from m)")
found = [some.count(), frame.count(), some.unionAll(frame).count(), *row.collect()[0]]
try:
    words = spark.read.format("rocketmq").load(damaged).count()
except Exception as error:
    words = str(error)
print(json.dumps([type(spark).__module__, found, words]))
spark.stop()
"""


def test_frames_and_losses(golden: GoldenFolder, golden_copy: GoldenFolder):
    sound, damaged = golden("5.3.3/basic/store"), golden_copy("5.3.3/basic/store")
    damage.zero(damaged, f"commitlog/{65536:020d}", 20_000, 9_000)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(sound), str(damaged)], capture_output=True, text=True,
        check=False, timeout=230, env={**os.environ, "PYSPARK_PYTHON": sys.executable,
                                       "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": os.pathsep.join(
                                           [str(ROOT), os.environ.get("PYTHONPATH", "")])})
    assert done.returncode == 0, done.stderr[-3000:]
    module, counts, words = json.loads(done.stdout.splitlines()[-1])
    assert module == "pyspark.sql.connect.session"
    assert counts == [36, 600, 636, 36, 600]
    assert "failOnDataLoss=false" in words
