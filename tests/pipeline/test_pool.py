"""The pool on Spark: order, errors, killed workers, interruption, a quiet session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rmqctl.backup.backup import BackupSource
from rmqctl.backup.remote import back_up
from rmqctl.errors import FormatError, JobError, UsageError
from rmqctl.ext.spark.pool import STORE, packed
from rmqctl.ext.spark.session import NO_JAVA, package_zip, workers_of
from rmqctl.scan.source import FileSource
from rmqctl.store.store import Store
from tests.support import snapshot

ROOT = Path(__file__).parents[2]


def test_results_come_in_the_order_of_the_tasks(spark_pool):
    def slow_first(number):
        time.sleep(0.3 if number == 0 else 0)
        return number * number

    assert list(spark_pool.run(slow_first, range(9))) == [(n, n * n) for n in range(9)]
    assert list(spark_pool.run(slow_first, [])) == []


@pytest.mark.parametrize(("weights", "jobs", "packs"), [
    ([1], 2, 1), ([100 << 10] * 1772, 2, 8), ([64 << 20] * 40, 2, 40), ([STORE] * 345, 2, 8),
    ([1 << 30, 1, 1, 1, 1 << 30], 1, 2), ([0, 0, 0], 4, 1)])
def test_small_tasks_share_one_of_spark(weights, jobs, packs):
    archive = packed(weights, jobs)
    assert [number for pack in archive for number in pack] == list(range(len(weights)))
    assert len(archive) == packs


def test_an_error_of_a_task_is_raised_as_it_was(spark_pool):
    def fails(number):
        if number == 3:
            raise FormatError("no such thing", file="commitlog/0", offset=17, path="magic")
        return number

    with pytest.raises(FormatError) as caught:
        list(spark_pool.run(fails, range(5)))
    assert str(caught.value) == "commitlog/0 @17 field magic: no such thing"


@pytest.mark.parametrize("is_backup", [False, True])
def test_a_store_at_a_url(is_backup, spark_pool, golden_copy, tmp_path):
    root = golden_copy("5.3.3/basic/store")
    url = f"file://{root}"
    if is_backup:
        url = f"file://{tmp_path}/objects"
        back_up(BackupSource(str(root)), url, lambda: 1_750_000_000_000, "1.0.0")
    with Store.open(root) as here, Store.open(url) as there:
        [own, paths] = [[file.path for file in store.log.files] for store in (here, there)]

        def read(path):
            with FileSource(path) as source:
                return source.read(0, source.size)

        assert [data for _, data in spark_pool.run(read, paths)] == [
            Path(path).read_bytes() for path in own]


def test_a_killed_worker_is_replaced(spark_pool, tmp_path):
    def dies_once(number):
        mark = tmp_path / f"{number}"
        if number in (1, 4) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number + 1

    assert [answer for _, answer in spark_pool.run(dies_once, range(6))] == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "1").exists()
    assert (tmp_path / "4").exists()


@pytest.mark.exhaustive
def test_a_worker_killed_again_and_again_is_an_error_with_the_log(spark_pool, spark):
    def dies(number):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(JobError, match="killed repeatedly") as caught:
        list(spark_pool.run(dies, range(2)))
    assert spark.rmqctl_log in str(caught.value)
    assert Path(spark.rmqctl_log).stat().st_size > 0


def test_progress_hears_of_every_task(spark):
    from rmqctl.ext.spark.pool import SparkPool

    heard = []
    pool = SparkPool(spark, watch=lambda done, count: heard.append((done, count)))
    list(pool.run(lambda number: time.sleep(0.25), range(6)))
    assert heard[-1] == (6, 6)
    assert {count for _, count in heard} == {6}
    assert any(0 < done < 6 for done, _ in heard)


@pytest.mark.exhaustive
def test_an_interruption_cancels_the_job(spark, tmp_path):
    from rmqctl.ext.spark.pool import SparkPool

    class Stop(BaseException):
        pass

    def watch(done, count):
        if any(tmp_path.iterdir()):
            raise Stop

    def endless(number):
        (tmp_path / str(number)).touch()
        time.sleep(60)

    pool, began = SparkPool(spark, watch=watch), time.monotonic()
    with pytest.raises(Stop):
        list(pool.run(endless, range(2)))
    assert time.monotonic() - began < 50
    status = spark.sparkContext.statusTracker()
    waited = time.monotonic() + 20
    while status.getActiveJobsIds() and time.monotonic() < waited:
        time.sleep(0.1)
    assert status.getActiveJobsIds() == []
    list(SparkPool(spark).run(lambda number: number, range(4)))  # and the session goes on


@pytest.mark.parametrize(("master", "count"), [("local[3]", 3), ("local", 1), ("local[2,9]", 2),
                                               ("spark://h:7077", None), ("yarn", None)])
def test_masters(master, count):
    assert workers_of(master) == count


@pytest.mark.parametrize("master", ["", "local[0]", "local[x]", "http://h", "spark:/h"])
def test_no_masters(master):
    with pytest.raises(UsageError, match="--master"):
        workers_of(master)


def rmqctl(*args, **env):
    return subprocess.run([sys.executable, "-m", "rmqctl", *map(str, args)], text=True,
                          capture_output=True, timeout=500, cwd=ROOT,
                          env={**os.environ, **env})


@pytest.mark.long
def test_without_java_one_sentence(golden, tmp_path):
    root = golden("4.9.3/basic/store")
    done = rmqctl("pipeline", "verify", root, PATH=str(tmp_path), JAVA_HOME="",
                  TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"rmqctl: error: {NO_JAVA}\n"
    assert list(tmp_path.iterdir()) == []
    assert rmqctl("pipeline", "verify", root, "--engine", "local", PATH=str(tmp_path),
                  JAVA_HOME="").returncode == 0


@pytest.mark.exhaustive
@pytest.mark.xdist_group("spark-cluster")
def test_a_run_is_quiet_and_leaves_nothing(golden, tmp_path):
    root = golden("4.9.3/basic/store")
    before = snapshot.take(root)
    done = rmqctl("pipeline", "verify", root, "--master", "local[1]", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "no damage found" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert snapshot.take(root) == before


@pytest.mark.exhaustive
@pytest.mark.xdist_group("spark-cluster")
def test_ctrl_c_ends_it_at_once(golden, tmp_path):
    """SIGINT while the job runs: exit 130, no traceback, no process of Spark's left."""
    slow, mark = tmp_path / "slow.py", tmp_path / "on"
    slow.write_text(f"""
import sys, time
import rmqctl.ext.spark.verify as jobs
from rmqctl.cli import main

def endless(_):
    open({str(mark)!r}, "w").close()
    time.sleep(100)

jobs.verify_stores = lambda roots, pool, *_: [one for one in pool.run(endless, [1, 2])]
sys.exit(main())
""")
    child = subprocess.Popen(
        [sys.executable, slow, "pipeline", "verify", str(golden("4.9.3/basic/store")),
         "--master", "local[1]"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=ROOT, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)})
    timer = threading.Timer(400, child.kill)
    timer.start()
    while not mark.exists() and child.poll() is None:
        time.sleep(0.1)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate()
    timer.cancel()
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    until = time.monotonic() + 60  # what was told to end may need a moment
    while str(child.pid) in groups() and time.monotonic() < until:
        time.sleep(0.2)
    assert str(child.pid) not in groups()


def groups():
    """The process groups there are, without those that only wait to be counted out."""
    processes = subprocess.run(["ps", "-eo", "pgid=,stat="], text=True, capture_output=True).stdout
    return {line.split()[0] for line in processes.splitlines()
            if not line.split()[1].startswith("Z")}


def test_the_archive_for_workers_holds_the_package(tmp_path):
    import zipfile

    names = zipfile.ZipFile(package_zip(str(tmp_path))).namelist()
    assert "rmqctl/scan/walk.py" in names
    assert "pyspark_rocketmq/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name]
