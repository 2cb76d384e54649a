"""What lies in examples/ works as its README says."""

from __future__ import annotations

import fcntl
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


@pytest.mark.long
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


# -- make-fixture.sh and reinject.sh ---------------------------------------------------------------


@pytest.mark.long
@needs_bash
def test_two_fixtures_are_the_same(tmp_path, rmqctl):
    for name in ("one", "two"):
        done = run(EXAMPLES / "make-fixture.sh", name, cwd=tmp_path, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "no damage found" in done.stdout
    first, two = (contents(tmp_path / name) for name in ("one", "two"))
    assert {name for name in first if first[name] != two.get(name)} <= {
        *(name for name in first if name.startswith("index/")), "config/topics.json",
        "config/topics.json.bak"}  # the clock names index files and dates the configuration
    assert rmqctl("diff", tmp_path / "one", tmp_path / "two").code == 0


@pytest.mark.long
@needs_bash
def test_the_fixture_has_what_it_promises(tmp_path, rmqctl):
    assert run(EXAMPLES / "make-fixture.sh", cwd=tmp_path, PYTHONPATH=str(ROOT)).returncode == 0
    messages = rmqctl("read", tmp_path / "fixture", "-o", "jsonl").jsonl()
    topics = {message["topic"] for message in messages}
    assert topics == {"orders", "bills", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"}
    half, whole = messages[-2:]
    assert half["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert whole["prepared_transaction_offset"] == half["physical_offset"]
    assert whole["sys_flag"] == 8
    again = run(EXAMPLES / "make-fixture.sh", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert again.returncode == 1
    assert "not empty" in again.stderr


@pytest.mark.long
@needs_bash
def test_messages_are_put_into_other_stores(tmp_path, rmqctl):
    with snapshot.assert_unchanged(STORE):
        done = run(EXAMPLES / "reinject.sh", "work", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "195 messages, 194 of them sound" in done.stdout

    def message(store):
        return rmqctl("read", tmp_path / "work" / store, "--key", "stock-120", "--topic",
                      "TP_fraud_Topic", "-o", "jsonl").jsonl()[-1]

    was, salvaged, new = (message(store) for store in ("damaged", "salvaged", "running"))
    assert (was["queue_offset"], salvaged["queue_offset"], new["queue_offset"]) == (26, 25, 132)
    assert salvaged["store_timestamp"] == was["store_timestamp"] < new["store_timestamp"]
    assert salvaged["properties_raw"] == was["properties_raw"]
    assert {message["unique_key"] for message in (was, salvaged, new)} == {was["unique_key"]}


@pytest.mark.long
@needs_bash
def test_the_stores_of_a_reinjection_are_removed_unless_a_folder_is_named(tmp_path):
    done = run(EXAMPLES / "reinject.sh", cwd=tmp_path, TMPDIR=str(tmp_path), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


# -- cron ------------------------------------------------------------------------------------------


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


@pytest.mark.long
@needs_bash
def test_the_nightly_check_is_silent_when_all_is_well(nightly):
    once, store, metrics = nightly
    for words in ((), (), ("--full",)):
        done = once(*words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert f'rmqctl_verify_ok{{store="{store}"}} 1' in metrics.read_text()


@pytest.mark.long
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


@pytest.fixture
def beat(tmp_path, rmqctl):
    """Runs the heartbeat on a store of its own; returns (what it did, the store, metrics)."""
    if shutil.which("timeout") is None:
        pytest.skip("no timeout here")
    program = tmp_path / "rmqctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqctl "$@"\n')
    program.chmod(0o755)
    store = tmp_path / "store"
    rmqctl("init", store, "--index-slots", "100", "--index-max", "400").expect(0)
    rmqctl("topic", "create", store, "heartbeat").expect(0)
    metrics = tmp_path / "beat.prom"

    def once(**variables):
        return run(EXAMPLES / "cron" / "heartbeat.sh", cwd=tmp_path, PYTHONPATH=str(ROOT),
                   **{"RMQCTL": str(program), "RMQCTL_STORE": str(store),
                      "RMQCTL_METRICS": str(metrics), **variables})

    return once, store, metrics


@pytest.mark.long
@needs_bash
def test_the_heartbeat_is_silent_when_it_got_there(beat, rmqctl):
    once, store, metrics = beat
    for _ in range(2):
        done = once()
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    messages = rmqctl("read", store, "--topic", "heartbeat", "-o", "jsonl").jsonl()
    assert [message["queue_offset"] for message in messages] == [0, 1]
    assert f'rmqctl_heartbeat_exit_code{{store="{store}"}} 0\n' in metrics.read_text()


@needs_bash
def test_the_heartbeat_says_who_holds_the_store(beat):
    once, store, metrics = beat
    with (store / "lock").open("r+b") as held, snapshot.assert_unchanged(store):
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        done = once()
    assert done.returncode == 4
    assert f"{store} is held" in done.stdout
    assert f"process {os.getpid()}" in done.stdout
    assert f'rmqctl_heartbeat_exit_code{{store="{store}"}} 4\n' in metrics.read_text()


@pytest.mark.long
@needs_bash
def test_the_heartbeat_says_what_a_store_does_not_take(beat, rmqctl):
    once, store, _ = beat
    rmqctl("topic", "create", store, "heartbeat", "--perm", "r").expect(0)
    with snapshot.assert_unchanged(store):
        done = once()
    assert done.returncode == 6
    assert "not writable" in done.stdout
    assert once(RMQCTL_STORE=str(store / "config")).returncode == 3


@needs_bash
@pytest.mark.parametrize(("script", "code", "expected_text"), [
    ("echo 'rmqctl: error: no space' >&2; exit 5", 5, "disk full"),
    ("exec sleep 60", 124, "took longer than 1 s"), ("exit 70", 70, "exit code 70")])
def test_the_heartbeat_passes_on_what_went_wrong(beat, tmp_path, script, code, expected_text):
    once, _, metrics = beat
    program = tmp_path / "broken"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    done = once(RMQCTL=str(program), RMQCTL_SECONDS="1")
    assert done.returncode == code
    assert expected_text in done.stdout
    assert f"}} {code}\n" in metrics.read_text()
    assert once(RMQCTL_METRICS=str(tmp_path / "no" / "m.prom")).returncode == 5
