"""A cluster that nobody answers at: a sentence and an exit code, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.xdist_group("spark-cluster")
def test_a_master_that_does_not_answer(tmp_path):
    log = tmp_path / "spark.log"
    done = subprocess.run(  # Spark tries for a minute
        [sys.executable, "-m", "rmqctl", "pipeline", "verify", "examples/store", "--master",
         "spark://127.0.0.1:1", "--spark-log", str(log)], cwd=ROOT, text=True,
        capture_output=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 5
    assert done.stdout == ""
    assert done.stderr == ("rmqctl: error: no cluster answers at spark://127.0.0.1:1 "
                           f"(Spark's log: {log})\n")
    assert "All masters are unresponsive" in log.read_text()


def test_what_the_log_tells_is_said(tmp_path, monkeypatch):
    from rmqctl.errors import JobError
    from rmqctl.ext.spark import session

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    log = tmp_path / "log"
    log.write_text("ERROR: All masters are unresponsive! Giving up.\n")
    error = session._not_started(RuntimeError("gone"), "spark://h:1", str(log))
    assert isinstance(error, JobError)
    assert str(error) == f"no cluster answers at spark://h:1 (Spark's log: {log})"
    log.write_text("java.lang.UnsupportedClassVersionError: x\n")
    assert "is older" in str(session._not_started(RuntimeError("gone"), "local", str(log)))
