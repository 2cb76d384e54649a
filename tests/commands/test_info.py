"""``rmqctl info``: the names scripts rely on, and one screen for people."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support import snapshot
from tests.support import tiny as tiny_stores
from tests.support.holder import held


def test_the_names_of_the_contract(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    answer = rmqctl("info", tiny_base.root, "-o", "json").expect(0).json()
    assert (answer["min_phy_offset"], answer["max_phy_offset"]) == (0, tiny_base.log_end)
    assert answer["messages"] == len(tiny_base.messages)
    by_queue = {(topic["topic"], queue["queue_id"]): queue["max_offset"]
                for topic in answer["topics"] for queue in topic["queues"]}
    assert by_queue == {key: len(units) for key, units in tiny_base.queues().items()}
    assert {(queue["min_offset"], queue["kind"]) for topic in answer["topics"]
            for queue in topic["queues"]} == {(0, "simple")}
    last = tiny_base.messages[-1].record.store_timestamp
    assert answer["checkpoint"] == {
        "physic_msg_timestamp": last, "logics_msg_timestamp": last, "index_msg_timestamp": 0,
        "master_flushed_offset": 0, "confirm_phy_offset": 0}
    assert answer["abort"] is False
    assert {name: answer["lock"][name] for name in ("held", "pid", "kind")} == {
        "held": False, "pid": None, "kind": None}
    assert {"path": "commitlog/00000000000000001024", "kind": "commitlog", "size": 1024,
            "base_offset": 1024}.items() <= next(
        file for file in answer["files"] if file["path"].endswith("1024")).items()
    assert (answer["first_store_timestamp"], answer["last_store_timestamp"]) == (
        tiny_stores.EPOCH, last)


def test_all_formats(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    assert rmqctl("info", tiny_base.root, "-o", "jsonl").expect(0).jsonl()[0]["messages"] == 8
    assert "max_phy_offset," in rmqctl("info", tiny_base.root, "-o", "csv").expect(0).out
    assert "## " not in rmqctl("info", tiny_base.root, "-o", "markdown").expect(0).out


@pytest.mark.parametrize("form", ["table", "plain"])
def test_one_screen(tiny_base: tiny_stores.Tiny, rmqctl: Runner, form: str) -> None:
    done = rmqctl("info", tiny_base.root, "-o", form, env={"COLUMNS": "80"}).expect(0)
    assert done.err == ""
    assert "2023-11-14T22:13:20.000Z" in done.out
    assert "8 in 3 queues of 2 topics" in done.out
    assert len(done.out.splitlines()) < 40


def test_the_zone_is_of_the_screen(tiny_base: tiny_stores.Tiny, rmqctl: Runner) -> None:
    done = rmqctl("info", tiny_base.root, "--tz", "+08:00", "-o", "plain").expect(0)
    assert "2023-11-15T06:13:20.000+08:00" in done.out


def test_many_topics_are_summed_up(tmp_path, rmqctl: Runner) -> None:
    tiny = tiny_stores.build(tmp_path / "store", [
        tiny_stores.Spec(f"topic-{number % 25:02d}", number % 12, b"x") for number in range(300)],
        commitlog_file_size=1 << 16)
    out = rmqctl("info", tiny.root, "-o", "plain").expect(0).out
    assert "and 5 more topics with 60 messages" in out
    assert "topic-24" not in out
    assert "4 more" in out, "the queues of a topic are not summed up"
    everything = rmqctl("info", tiny.root, "-o", "plain", "-v").expect(0).out
    assert "topic-24" in everything
    assert "11: 0" in everything


def test_a_held_lock(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    with held(tiny.root) as holder:
        answer = rmqctl("info", tiny.root, "-o", "json").expect(0).json()
        text = rmqctl("info", tiny.root, "-o", "plain").expect(0).out
    assert {name: answer["lock"][name] for name in ("held", "pid", "kind")} == {
        "held": True, "pid": holder.pid, "kind": "fcntl"}
    assert f"held by process {holder.pid} (fcntl)" in text


def test_a_flock(tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    fd = os.open(tiny.root / "lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        answer = rmqctl("info", tiny.root, "-o", "json").expect(0).json()
    finally:
        os.close(fd)
    assert (answer["lock"]["held"], answer["lock"]["kind"]) == (True, "flock")


def test_the_view_of_a_broker(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/crash-crc/before")
    disk = rmqctl("info", root, "-o", "json", "--view", "disk").json()["max_phy_offset"]
    assert "--view disk" in rmqctl("info", root).err
    broker = rmqctl("info", root, "-o", "json", "--view", "broker").json()["max_phy_offset"]
    assert broker < disk
    assert "as a broker sees it" in rmqctl("info", root, "-o", "plain", "--view", "broker").out


@pytest.mark.long
@pytest.mark.parametrize("command", ["info", "config", "offsets"])
def test_small_commands_stay_light(command: str, tiny_base: tiny_stores.Tiny) -> None:
    code = ("import sys; from rmqctl.cli import main; main(sys.argv[1:]); "
            "sys.exit('pyarrow' in sys.modules)")
    for form in ("json", "plain"):
        done = subprocess.run([sys.executable, "-c", code, command, tiny_base.root, "-o", form],
                              capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [["info"], ["info", "--view", "broker"], ["config"],
                                     ["config", "topics"], ["offsets"], ["stats"],
                                     ["stats", "--by", "tag", "--jobs", "2"]],
                         ids=" ".join)
def test_nothing_is_changed(command: list[str], tiny: tiny_stores.Tiny, rmqctl: Runner) -> None:
    with snapshot.assert_unchanged(tiny.root):
        rmqctl(command[0], tiny.root, *command[1:]).expect(0)


@pytest.mark.parametrize("command", ["info", "config", "offsets", "stats"])
def test_no_store(command: str, tmp_path, rmqctl: Runner) -> None:
    rmqctl(command, tmp_path / "nowhere").expect(3)
    rmqctl(command, tmp_path).expect(3)
