"""A real cluster: one master and two workers of Spark's own, on loopback, started by the test.

The workers know nothing of this project: no checkout, no PYTHONPATH; the package reaches them
from the driver.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmqctl import kernel
from rmqctl.checks.verify.verdict import verdict
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.ext.spark.verify import verify_stores
from rmqctl.store.store import Store

pytestmark = [pytest.mark.xdist_group("spark-cluster"), pytest.mark.exhaustive]
_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_READY = 240
ROOT = Path(__file__).parents[2]
SPECULATION = {"spark.speculation": "true", "spark.speculation.interval": "100ms",
               "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
               "spark.speculation.minTaskRuntime": "300ms"}


def spark_class(home, name, *args, log, folder, host="127.0.0.1"):
    environ = {name: value for name, value in os.environ.items()
               if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    return subprocess.Popen(
        [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", *args], cwd=folder,
        stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        env={**environ, "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": host,
             "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=false"})


def wait_for(path, pattern, seconds=_READY):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = path.read_text(errors="replace")
        result = pattern.search(text)
        if result:
            return result
        time.sleep(0.1)
    raise AssertionError(f"{pattern.pattern} did not come:\n{path.read_text(errors='replace')}")


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """The URL of a cluster of two workers."""
    from pyspark.find_spark_home import _find_spark_home

    home, folder = _find_spark_home(), tmp_path_factory.mktemp("cluster")
    running, log = [], folder / "master.log"
    try:
        with log.open("wb") as out:
            running.append(spark_class(home, "master.Master", "--host", "127.0.0.1", "--port", "0",
                                       "--webui-port", "0", log=out, folder=folder))
            url = wait_for(log, _URL)[1]
            # Hosts of their own: a second attempt of a slow task is made on another one only.
            running += [spark_class(
                home, "worker.Worker", "--host", host, "--cores", "2", "--memory", "2g",
                "--webui-port", "0", "--work-dir", str(folder / host), url, log=out,
                folder=folder, host=host) for host in ("127.0.0.1", "127.0.0.2")]
            wait_for(log, re.compile(r"(Registering worker.*?){2}", re.DOTALL))
        yield url
    finally:
        for process in reversed(running):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def cluster(sessions, master):
    yield sessions.use(master, **{"spark.executor.memory": "512m", "spark.cores.max": "2",
                                  "spark.driver.host": "127.0.0.1", **SPECULATION})
    sessions.close()


@pytest.fixture
def pool(cluster):
    from rmqctl.ext.spark.pool import SparkPool

    return SparkPool(cluster)




def test_the_package_comes_from_the_driver(pool):
    def where(_):
        import rmqctl

        time.sleep(0.3)
        return os.getpid(), rmqctl.__file__

    locations = [result for _, result in pool.run(where, range(8))]
    assert len({worker for worker, _ in locations}) >= 2
    assert all("rmqctl.zip" in file for _, file in locations), locations


def test_the_kernel_comes_from_the_driver(pool):
    def where(_):
        from rmqctl import kernel

        return getattr(kernel.chosen(), "__file__", None)

    files = {result for _, result in pool.run(where, range(4))}
    assert pool.kernels == {kernel.name()}
    if kernel.name() == "compiled":
        assert not {file for file in files if Path(file).is_relative_to(ROOT)}


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/crash-crc/before",
                                  "5.3.3/timer/store"])
def test_verify_says_the_same(name, golden, pool):
    root = str(golden(name))
    with Store.open(root) as store:
        wanted = verdict(Verification(store), 500).as_dict()
    for count in (1, 7, 64):
        (verify_store,) = verify_stores([root], pool, VerifyOptions(ranges=count), 500)
        assert verify_store.error is None
        assert verify_store.verdict.as_dict() == wanted


def test_the_data_source_is_found_on_the_workers(golden, cluster):
    from rmqctl.ext.spark import register

    register(cluster)
    root = golden("4.9.3/basic/store")
    frame = cluster.read.format("rocketmq").option("numPartitions", "5").load(str(root))
    with Store.open(root) as store:
        wanted = sum(len(batch) for batch in store.log.walk())
    assert frame.count() == wanted


def test_relative_paths_are_the_drivers(golden, pool, monkeypatch):
    root = golden("4.9.3/basic/store")
    monkeypatch.chdir(root.parent)
    with Store.open("store") as store:
        wanted = verdict(Verification(store), 500).as_dict()
    for roots in (["store"], ["store", f"../{root.parent.name}/store"]):  # in ranges, and whole
        verdicts = verify_stores(roots, pool, VerifyOptions(), 500)
        assert [verify_store.error for verify_store in verdicts] == [None] * len(roots)
    (verdicts,) = verify_stores(["store"], pool, VerifyOptions(ranges=7), 500)
    assert verdicts.verdict.as_dict() == wanted


def test_an_executor_that_dies_costs_nothing(golden, pool, tmp_path):
    root = str(golden("5.3.3/basic/store"))
    with Store.open(root) as store:
        wanted = verdict(Verification(store), 500).as_dict()

    def dies_once(number):
        mark = tmp_path / "killed"
        if number == 1 and not mark.exists():
            mark.touch()
            # The Java process above this worker and the daemon that forked it.
            parent = os.getppid()
            above = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(above, signal.SIGKILL)
            time.sleep(30)
        time.sleep(0.2)
        return number

    assert [answer for _, answer in pool.run(dies_once, range(6))] == list(range(6))
    assert (tmp_path / "killed").exists()
    (verify_store,) = verify_stores([root], pool, VerifyOptions(ranges=7), 500)
    assert verify_store.verdict.as_dict() == wanted


def test_a_task_that_runs_twice_counts_once(golden, pool, tmp_path):
    """Speculation: a task that is slow is started a second time elsewhere."""
    def slow_once(number):
        mine = tmp_path / f"{number}-{os.getpid()}"
        mine.touch()
        time.sleep(90 if number == 0 and len(list(tmp_path.glob("0-*"))) == 1 else 0.2)
        return number

    began = time.monotonic()
    assert [answer for _, answer in pool.run(slow_once, range(6))] == list(range(6))
    assert len(list(tmp_path.glob("0-*"))) == 2, "it did not run twice"
    assert time.monotonic() - began < 80


def test_the_command_works_on_it(golden, master):
    root = golden("5.3.3/crash-crc/before")
    conf = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1",
            "--conf", "spark.cores.max=2"]
    done = {engine: subprocess.run(
        [sys.executable, "-m", "rmqctl", "pipeline", "verify", str(root), "-o", "json",
         "--engine", engine, "--master", master, *conf], text=True, capture_output=True,
        cwd=ROOT, timeout=500) for engine in ("spark", "local")}
    assert {completed.returncode for completed in done.values()} == {1}, done["spark"].stderr
    assert done["spark"].stdout == done["local"].stdout
    assert done["spark"].stderr == ""
