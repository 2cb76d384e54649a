"""What lies in examples/ works as its README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import damage, snapshot

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
STORE = EXAMPLES / "store"
LOG = "commitlog/00000000000000065536"

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


def run(script: Path, *words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "NO_COLOR": "1",
                   "RMQCTL": f"{sys.executable} -m rmqctl", **variables}
    return subprocess.run(["bash", str(script), *words], cwd=cwd, env=environment, text=True,
                          capture_output=True, timeout=120)


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    """Bytes of every file; modification times and empty folders do not travel with a checkout."""
    return {path: (entry.kind, entry.content)
            for path, entry in snapshot.take(folder, inodes=False).entries.items()
            if entry.kind != "d"}


def test_the_store_is_the_golden_one(golden):
    assert contents(STORE) == contents(golden("5.3.3/basic/store"))


@needs_bash
def test_the_demo_keeps_its_promises_from_anywhere(tmp_path):
    with snapshot.assert_unchanged(STORE):
        done = run(EXAMPLES / "demo.sh", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "body-crc" in done.stdout
    assert done.stdout.rstrip().endswith("All of it came out as promised.")
    assert list(tmp_path.iterdir()) == []


@needs_bash
def test_the_demo_notices_a_program_that_finds_nothing(tmp_path):
    program = tmp_path / "rmqctl"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    done = run(EXAMPLES / "demo.sh", cwd=tmp_path, RMQCTL="./rmqctl")
    assert done.returncode == 1
    assert "demo: exit code 0 where 1 was promised: rmqctl verify" in done.stderr


@pytest.fixture
def nightly(tmp_path):
    """Runs the cron script on a copy of the example; returns (what it did, state, metrics)."""
    if shutil.which("flock") is None:
        pytest.skip("no flock here")
    program = tmp_path / "rmqctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    program.chmod(0o755)
    store = snapshot.copy_tree(STORE, tmp_path / "store")
    metrics = tmp_path / "rmqctl.prom"

    def once(*words, store=store):
        return run(EXAMPLES / "cron" / "verify.sh", *words, cwd=tmp_path, RMQCTL=str(program),
                   RMQCTL_STORE=str(store), RMQCTL_STATE=str(tmp_path / "state"),
                   RMQCTL_METRICS=str(metrics), PYTHONPATH=str(ROOT))

    return once, store, metrics


@needs_bash
def test_the_nightly_check_is_silent_when_all_is_well(nightly):
    once, store, metrics = nightly
    for words in ((), (), ("--full",)):
        done = once(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert f'rmqctl_verify_ok{{store="{store}"}} 1' in metrics.read_text()


@needs_bash
def test_the_nightly_check_reports_damage(nightly):
    once, store, metrics = nightly
    damage.flip_bit(store, LOG, 40301, 0)
    for words in ((), (), ("--full",)):
        done = once(*words)
        assert done.returncode == 1
        assert done.stdout.startswith(f"rmqctl found damage in {store}\n")
        assert f"{LOG} @105738" in done.stdout
    assert f'rmqctl_verify_ok{{store="{store}"}} 0' in metrics.read_text()


@needs_bash
def test_the_nightly_check_says_why_it_could_not(nightly, tmp_path):
    once, _store, metrics = nightly
    done = once(store=tmp_path / "nothing")
    assert done.returncode == 3
    assert "is no store" in done.stdout
    assert not metrics.exists()
    assert once("--ful").returncode == 2
