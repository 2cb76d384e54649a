"""`create_store`: what an empty store is, what is refused, and every way to be interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.config import create
from rmqctl.engine.config.create import create_store, plan_store
from rmqctl.errors import RefusedError, StoreHeldError, StoreIOError, UsageError
from rmqctl.files.lock import StoreLock
from rmqctl.store import Store
from tests.engine_write.faults import Killed, broken, failing, out_of_space
from tests.support import snapshot

SMALL = Settings(commitlog_file_size=65536, consumequeue_file_size=400, index_slots=100,
                 index_max=400)


def contents(root: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
            for path in sorted(root.rglob("*"))}


def expected(**more: None) -> set[str]:
    return {"commitlog", "consumequeue", "index", "config", "checkpoint", "lock", ".rmqctl",
            ".rmqctl/store.json", *more}


def test_an_empty_store(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b" / "store"
    new_store = create_store(root, SMALL)
    store_contents = contents(root)
    assert store_contents.keys() == expected()
    assert store_contents["checkpoint"] == bytes(4096)
    assert store_contents["lock"] == b"lock"
    assert new_store.commitlog_dirs == ("commitlog",)
    assert new_store.notes == []
    assert json.loads(store_contents[".rmqctl/store.json"]) == {
        "format": 1, "version": "5.3.3", "commitlog_file_size": 65536,
        "consumequeue_file_size": 400, "consumequeue_ext_file_size": 48 << 20,
        "batch_consumequeue_file_size": 13_800_000, "index_slots": 100, "index_max": 400,
        "consumequeue_ext": False, "lmq": False, "multi_dispatch": False,
        "append_properties_crc": False,
        "message_delay_level": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"}
    with Store.open(root) as store:
        assert store.log.file_size == 65536
        assert store.config.remembered["index_slots"] == 100
        assert not store.lock.held


def test_an_empty_folder_and_a_mount_point_will_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    create_store(tmp_path / "empty", SMALL)
    (tmp_path / "mounted" / "lost+found").mkdir(parents=True)
    create_store(tmp_path / "mounted", SMALL)
    assert (tmp_path / "mounted" / "checkpoint").exists()


def test_planning_makes_nothing(tmp_path: Path) -> None:
    plan_store(tmp_path / "new" / "store", SMALL)
    assert list(tmp_path.iterdir()) == []


# -- multi-path logs ------------------------------------------------------------------------------


def test_the_folders_of_the_log(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "disk2" / "log"
    new_store = create_store(root, SMALL, ["cl1", "deep/cl2", str(other), str(root / "cl4")])
    assert new_store.commitlog_dirs == ("cl1", "deep/cl2", str(other), "cl4")
    assert contents(root).keys() == expected() - {"commitlog"} | {"cl1", "deep", "deep/cl2", "cl4"}
    assert other.is_dir()
    with Store.open(root) as store:
        assert store.log_folders == [str(root / "cl1"), str(root / "deep/cl2"), str(other),
                                     str(root / "cl4")]


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["a/b", "a"], ["."], [".."], ["../.."],
                                   ["config"], ["consumequeue/x"], [".rmqctl/x"], [""], ["a\0b"],
                                   ["x/../lock"], ["timerlog"]])
def test_folders_that_cannot_be(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(UsageError):
        create_store(tmp_path / "x" / "store", SMALL, names)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_log_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "disk" / "00000000000000000000").mkdir(parents=True)
    with pytest.raises(RefusedError, match="00000000000000000000"):
        create_store(tmp_path / "store", SMALL, [str(tmp_path / "disk")])
    assert not (tmp_path / "store").exists()


# -- what is refused ------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_named_and_left_alone(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"file{number}").write_text("mine")
    before = snapshot.take(tmp_path)
    with pytest.raises(RefusedError, match=r"file0, file1, file2, file3, file4 and 2 more"):
        create_store(tmp_path, SMALL)
    assert snapshot.take(tmp_path) == before


def test_a_store_is_not_made_twice(tmp_path: Path) -> None:
    create_store(tmp_path / "s", SMALL)
    before = contents(tmp_path)
    with pytest.raises(RefusedError, match="commitlog"):
        create_store(tmp_path / "s", replace(SMALL, index_slots=7))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["lock", "checkpoint", "commitlog", "config"])
def test_a_brokers_empty_folders_are_not_taken_for_our_own(tmp_path: Path, name: str) -> None:
    """Only the mark of an interrupted run says that it may be gone on with."""
    path = tmp_path / name
    if name == "lock":
        path.write_bytes(b"locked by me")
    elif name == "checkpoint":
        path.write_bytes(bytes(4096))
    else:
        path.mkdir()
    with pytest.raises(RefusedError, match=name):
        create_store(tmp_path, SMALL)


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link", "file/below"):
        with pytest.raises((RefusedError, StoreIOError)):
            create_store(tmp_path / name, SMALL)
    for name in ("", "a\0b"):
        with pytest.raises(UsageError):
            create_store(name, SMALL)


@pytest.mark.parametrize(("name", "value", "expected_text"), [
    ("commitlog_file_size", 1023, "the minimum is 1024"), ("commitlog_file_size", 1 << 31, "large"),
    ("commitlog_file_size", 0, "small"), ("commitlog_file_size", -1, "small"),
    ("consumequeue_file_size", 0, "small"), ("consumequeue_file_size", (1 << 31) - 1, "large"),
    ("batch_consumequeue_file_size", 0, "small"), ("consumequeue_ext_file_size", 23, "small"),
    ("index_slots", 1, "at least 2 slots"), ("index_max", 1, "at least 2 entries"),
    ("index_slots", 1 << 30, "a broker allows"), ("version", "5.9.9", "not a RocketMQ release"),
    ("message_delay_level", "1s soon", "delay level 2")])
def test_nonsense_is_refused_before_anything_is_made(tmp_path: Path, name: str, value: object,
                                                     expected_text: str) -> None:
    with pytest.raises(UsageError, match=expected_text):
        create_store(tmp_path / "store", replace(SMALL, **{name: value}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value"), [
    ("commitlog_file_size", 1024), ("commitlog_file_size", (1 << 31) - 1),
    ("consumequeue_file_size", 20), ("batch_consumequeue_file_size", 46),
    ("consumequeue_ext_file_size", 24), ("index_slots", 2), ("index_max", 2)])
def test_the_limits_themselves_are_taken(tmp_path: Path, name: str, value: int) -> None:
    assert getattr(create_store(tmp_path, replace(SMALL, **{name: value})).settings, name) == value


def test_an_appended_crc_needs_a_version_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5\.2\.0"):
        create_store(tmp_path, replace(SMALL, version="4.9.3", append_properties_crc=True))


def test_sizes_are_rounded_up_to_whole_units(tmp_path: Path) -> None:
    new_store = create_store(tmp_path, replace(SMALL, consumequeue_file_size=381,
                                               batch_consumequeue_file_size=47))
    assert new_store.settings.consumequeue_file_size == 400
    assert new_store.settings.batch_consumequeue_file_size == 92
    assert [note.split(" gets ")[0] for note in new_store.notes] == [
        "a consume queue file", "a batch consume queue file"]
    assert Store.open(tmp_path).config.remembered["consumequeue_file_size"] == 400


# -- interruptions --------------------------------------------------------------------------------


def calls(tmp_path: Path, *folders: str) -> int:
    with failing(None) as counter:
        create_store(tmp_path / "count", SMALL, folders)
    return counter.calls


@pytest.mark.parametrize("error", [Killed, out_of_space, broken], ids=["kill", "space", "eio"])
def test_an_interrupted_run_is_completed_by_the_next(tmp_path: Path, error) -> None:
    total = calls(tmp_path, "cl1", "deep/cl2")
    assert total > 20
    whole = contents(tmp_path / "count")
    for number in range(total):
        root = tmp_path / f"store{number}"
        with failing(number, error) as counter:
            if error is Killed:
                with pytest.raises(Killed):
                    create_store(root, SMALL, ["cl1", "deep/cl2"])
            else:
                try:
                    create_store(root, SMALL, ["cl1", "deep/cl2"])
                except StoreIOError as raised:
                    assert str(tmp_path) in str(raised)
        assert counter.failed
        done = (root / ".rmqctl" / "store.json").exists() and not (
            root / ".rmqctl" / "init").exists()
        if done:
            with pytest.raises(RefusedError):
                create_store(root, SMALL, ["cl1", "deep/cl2"])
        else:
            create_store(root, SMALL, ["cl1", "deep/cl2"])
        left = {name: data for name, data in contents(root).items() if not name.endswith(".new")}
        assert left == whole, number


def test_what_came_in_between_is_not_taken_over(tmp_path: Path) -> None:
    with failing(calls(tmp_path) - 3, Killed), pytest.raises(Killed):
        create_store(tmp_path / "s", SMALL)
    root = tmp_path / "s"
    assert (root / ".rmqctl" / "init").exists()
    (root / "commitlog" / "00000000000000000000").write_bytes(b"a message")
    with pytest.raises(RefusedError, match="00000000000000000000"):
        create_store(root, SMALL)
    assert (root / "commitlog" / "00000000000000000000").read_bytes() == b"a message"


def test_a_used_checkpoint_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".rmqctl").mkdir()
    (tmp_path / ".rmqctl" / "init").touch()
    (tmp_path / "checkpoint").write_bytes(b"\0" * 4095 + b"\1")
    with pytest.raises(RefusedError, match="checkpoint"):
        create_store(tmp_path, SMALL)


def test_two_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    with StoreLock(tmp_path / "s"), pytest.raises(StoreHeldError):
        create_store(tmp_path / "s", SMALL)
    # One that looked while the other was at work finds, once it has the lock, a whole store.
    real = create.make_folders

    def slow(path: str) -> None:
        monkeypatch.setattr(create, "make_folders", real)
        create_store(path, replace(SMALL, index_slots=7))

    monkeypatch.setattr(create, "make_folders", slow)
    with pytest.raises(RefusedError):
        create_store(tmp_path / "t", SMALL)
    assert Store.open(tmp_path / "t").config.remembered["index_slots"] == 7
