"""``rmqctl topic create`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.files.lock import StoreLock
from tests.conftest import GoldenFolder, Runner
from tests.engine_write.faults import failing
from tests.support import snapshot
from tests.support.holder import held
from tests.support.tiny import Tiny


@pytest.fixture
def store(tmp_path: Path, rmqctl: Runner) -> Path:
    rmqctl("init", tmp_path / "store").expect(0)
    return tmp_path / "store"


@pytest.fixture
def broker(store: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the store's lock as a Java broker does."""
    with held(store) as process:
        yield process


def topic(store: Path, name: str) -> dict[str, object]:
    return json.loads((store / "config/topics.json").read_text())["topicConfigTable"][name]


def test_the_document(store: Path, rmqctl: Runner) -> None:
    done = rmqctl("topic", "create", store, "orders", "--read-queues", "3", "--write-queues", "2",
                  "--perm", "r", "--attribute", "message.type=FIFO", "--order", "-o", "json")
    answer = done.expect(0).json()
    assert answer["after"] == topic(store, "orders") == {
        "attributes": {"message.type": "FIFO"}, "order": True, "perm": 4, "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG", "topicName": "orders", "topicSysFlag": 0,
        "writeQueueNums": 2}
    assert (answer["action"], answer["before"], answer["dry_run"]) == ("create", None, False)
    assert answer["data_version"]["counter"] == 1
    again = rmqctl("topic", "create", store, "orders", "-o", "json").expect(0).json()
    assert (again["action"], again["data_version"]["counter"]) == ("none", 1)
    less = rmqctl("topic", "create", store, "orders", "--read-queues", "1", "-o", "json").expect(0)
    assert (less.json()["action"], less.json()["before"]) == ("change", answer["after"])
    assert "queue 1 and above" in less.err


def test_the_version_of_the_store_decides(tmp_path: Path, rmqctl: Runner) -> None:
    rmqctl("init", tmp_path / "s", "--broker-version", "4.9.3").expect(0)
    rmqctl("topic", "create", tmp_path / "s", "orders").expect(0)
    assert "attributes" not in topic(tmp_path / "s", "orders")
    rmqctl("topic", "create", tmp_path / "s", "more", "--attribute", "queue.type=BatchCQ").expect(2)
    rmqctl("topic", "create", tmp_path / "s", "more", "--broker-version", "5.3.3").expect(0)
    assert topic(tmp_path / "s", "more")["attributes"] == {}


def test_a_dry_run_changes_nothing(store: Path, rmqctl: Runner) -> None:
    with snapshot.assert_unchanged(store):
        done = rmqctl("topic", "create", store, "orders", "--dry-run", "-o", "json").expect(0)
    assert done.json()["action"] == "create"
    assert done.json()["dry_run"]
    assert done.json()["data_version"] is None


@pytest.mark.parametrize(("words", "code", "expected_text"), [
    (["a b"], 6, "characters"), ([""], 6, "blank"), (["TBW102"], 6, "system topic"),
    (["x" * 128], 6, "128 characters"), (["t", "--perm", "9"], 2, "--perm"),
    (["t", "--read-queues", "0"], 2, "--read-queues"), ([], 2, "NAME"),
    (["t", "--attribute", "x"], 2, "FIELD=VALUE"),
    (["t", "--attribute", "x=y"], 2, "unknown topic attribute")])
def test_what_is_refused(store: Path, rmqctl: Runner, words: list[str], code: int,
                         expected_text: str) -> None:
    with snapshot.assert_unchanged(store / "config"):
        assert expected_text in rmqctl("topic", "create", store, *words).expect(code).err


def test_no_store(tmp_path: Path, rmqctl: Runner) -> None:
    rmqctl("topic", "create", tmp_path, "orders").expect(3)
    rmqctl("topic", "create", tmp_path / "nowhere", "orders").expect(3)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_held(store: Path, rmqctl: Runner,
                              broker: subprocess.Popen[bytes]) -> None:
    with snapshot.assert_unchanged(store):
        done = rmqctl("topic", "create", store, "orders").expect(4)
    assert str(broker.pid) in done.err
    rmqctl("topic", "create", store, "orders", "--dry-run").expect(0)


def test_a_held_store_is_not_made_anew(store: Path, rmqctl: Runner,
                                       broker: subprocess.Popen[bytes]) -> None:
    rmqctl("init", store).expect(6)
    empty = store.parent / "empty"
    empty.mkdir()
    with StoreLock(empty):
        rmqctl("init", empty).expect(4)


def test_the_store_of_a_broker(tiny: Tiny, rmqctl: Runner) -> None:
    before = json.loads((tiny.root / "config/topics.json").read_text())
    rmqctl("topic", "create", tiny.root, "new").expect(0)
    after = json.loads((tiny.root / "config/topics.json").read_text())
    del after["topicConfigTable"]["new"]
    assert after["topicConfigTable"] == before["topicConfigTable"]
    assert json.loads((tiny.root / "config/topics.json.bak").read_text()) == before
    assert rmqctl("verify", tiny.root, "-o", "json").expect(0).json()["findings"] == []


def test_a_store_without_configuration(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    root = golden_copy("4.9.3/basic/store")
    rmqctl("topic", "create", root, "orders").expect(0)
    answer = rmqctl("config", root, "topics", "-o", "json").expect(0).json()
    assert [row["topic"] for row in answer] == ["orders"]


def test_the_backup_is_mentioned(store: Path, rmqctl: Runner) -> None:
    for name in ("one", "two"):
        rmqctl("topic", "create", store, name).expect(0)
    (store / "config/topics.json").write_bytes(b"{")
    done = rmqctl("topic", "create", store, "three").expect(0)
    assert "reading config/topics.json.bak instead" in done.err
    assert set(json.loads((store / "config/topics.json").read_text())["topicConfigTable"]) == {
        "one", "three"}
    assert (store / ".rmqctl/kept/config/topics.json.1").read_bytes() == b"{"


def test_out_of_space(store: Path, rmqctl: Runner) -> None:
    rmqctl("topic", "create", store, "one").expect(0)
    before = (store / "config/topics.json").read_bytes()
    with failing(9):
        done = rmqctl("topic", "create", store, "two")
    assert "no space left" in done.expect(5).err
    assert (store / "config/topics.json").read_bytes() == before
