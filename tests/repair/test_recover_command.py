"""``rmqctl recover`` as a user runs it: every damage set, every promise of its help."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.repair.accidents import bytes_of, faults_of, kills_of
from tests.support import snapshot
from tests.support.cli import Result
from tests.support.golden import GoldenSet, all_sets, clean_stores
from tests.support.holder import KINDS, held
from tests.support.share import sample
from tests.support.tiny import Tiny

Run = Callable[..., Result]
Folder = Callable[[str], Path]
DAMAGED = [golden_set for golden_set in all_sets() if golden_set.is_damaged]
SIZES = ("--index-slots", "100", "--index-max", "200", "--consumequeue-file-size", "440")
"""The configuration of all damage sets, for where no file is left to tell it."""
JSON = ("-o", "json")


def intact(run: Run, root: Path) -> set[str]:
    """Every message that can be read in the log, behind damage too, without fillers."""
    messages = run("read", root, "--from-phy", "0", "-o", "jsonl").expect(0, 1).jsonl()
    return {json.dumps([message[name] for name in ("topic", "queue_id", "queue_offset",
                                                   "physical_offset", "body_crc",
                                                   "properties_raw")])
            for message in messages if message["crc_ok"]
            and "RMQCTL" not in message["properties_raw"]}


def assert_is_data(actions: list[dict[str, object]]) -> None:
    """Numbers say what is there and what will be; words only why. Corrected bytes are in hex."""
    for action in actions:
        assert not str(action["target"]).startswith("physical offset")
        if action["action"] == "correct":
            assert int(str(action["from"]), 16) ^ int(str(action["to"]), 16)
            continue
        for value in (action["from"], action["to"]):
            numbers = value.values() if isinstance(value, dict) else (value,)
            assert all(number is None or isinstance(number, int) for number in numbers), action


@pytest.mark.parametrize("golden_store", sample(DAMAGED, 8, "recover"),
                         ids=lambda golden_store: golden_store.id)
def test_every_damage_set_becomes_whole(rmqctl: Run, golden_copy: Folder,
                                        golden_store: GoldenSet) -> None:
    root = golden_copy(f"{golden_store.id}/before")
    was, before, readable = snapshot.take(root), bytes_of(root), intact(rmqctl, root)
    planned = rmqctl("recover", root, *SIZES, *JSON).recovered()
    assert snapshot.take(root) == was, "a plan changes nothing"
    done = rmqctl("recover", root, "--apply", "--yes", *SIZES, *JSON).recovered()
    assert done["actions"] == planned["actions"]
    assert done["messages_lost"] == planned["messages_lost"]
    assert done["topic_queue_table"] == planned["topic_queue_table"]
    assert done["applied"] is bool(planned["actions"])
    assert_is_data(planned["actions"])
    assert intact(rmqctl, root) >= readable
    rmqctl("verify", root).expect(0)
    for version in ("4.9.3", "5.3.3"):
        if golden_store.version == "5.3.3" and version == "4.9.3":
            continue  # an older broker on a newer store is another question
        answer = rmqctl("preflight", root, "--broker-version", version, *JSON).expect(0).json()
        assert answer["starts"]
        assert answer["messages_lost"] == 0
    table = rmqctl("recover", "table", root, *JSON).expect(0).json()
    assert table == done["topic_queue_table"]
    again = rmqctl("recover", root, "--apply", "--yes").expect(0)
    assert not again.out, "quiet when nothing was done"
    if done["applied"]:
        rmqctl("undo", root, "--yes").expect(0)
        assert bytes_of(root) == before


@pytest.mark.parametrize("golden_store", clean_stores(), ids=lambda golden_store: golden_store.id)
def test_a_sound_store_gets_an_empty_plan(rmqctl: Run, golden: Folder,
                                          golden_store: GoldenSet) -> None:
    root = golden(f"{golden_store.id}/store")
    if not (root / "commitlog").is_dir():
        pytest.skip("several log folders: see test_a_log_in_several_folders")
    answer = rmqctl("recover", root, *JSON).recovered()
    assert answer["actions"] == answer["messages_lost"] == []
    assert answer["topic_queue_table"] == rmqctl("recover", "table", root, *JSON).json()


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_log_in_several_folders(rmqctl: Run, golden_copy: Folder, version: str) -> None:
    root = golden_copy(f"{version}/multipath/store")
    folders = [word for path in sorted(root.glob("c*l*")) if (path / f"{0:020d}").exists()
               or (path.is_dir() and any(entry.name.isdigit() for entry in path.iterdir()))
               for word in ("--commitlog-dir", path.name)]
    folders = [word for word in folders if word != "consumequeue"]
    assert rmqctl("recover", root, *JSON).recovered()["actions"] == []
    assert rmqctl("recover", root, *folders, *JSON).recovered()["actions"] == []
    away = root.parent / "elsewhere"
    away.mkdir()
    for name in folders[1::2]:
        (root / name).rename(away / name)
    refused = rmqctl("recover", root, "--apply", "--yes").expect(6)
    assert "--commitlog-dir" in refused.err
    for name in folders[1::2]:
        (away / name).rename(root / name)
    was = bytes_of(root)
    shutil.rmtree(root / "consumequeue")
    rmqctl("recover", root, *folders, "--apply", "--yes", "--consumequeue-file-size",
           str(next(len(data) for name, data in was.items() if "consumequeue/" in name))).expect(0)
    assert {name: data for name, data in bytes_of(root).items()
            if "consumequeue/" in name and ".rmqctl" not in name} == {
        name: data for name, data in was.items() if "consumequeue/" in name}


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_one_deleted_queue_comes_back(rmqctl: Run, golden_copy: Folder, version: str) -> None:
    root = golden_copy(f"{version}/basic/store")
    was = snapshot.take(root)
    topic = min((root / "consumequeue").iterdir())
    queue = min(topic.iterdir())
    kept = bytes_of(queue)
    shutil.rmtree(queue)
    done = rmqctl("recover", root, "--topic", topic.name, "--queue", queue.name, "--apply",
                  "--yes", *JSON).recovered()
    assert {action["target"] for action in done["actions"]} == {
        f"consumequeue/{topic.name}/{queue.name}"}
    assert bytes_of(queue) == kept
    assert was  # the others were not touched
    rmqctl("verify", root).expect(0)


def test_the_table_alone(rmqctl: Run, golden_copy: Folder) -> None:
    root = golden_copy("5.3.3/crash-cqlag/before")
    result = rmqctl("recover", root, "--only", "topic-queue-table", *JSON).expect(0)
    document = result.json()
    assert document["actions"] == []
    assert document["topic_queue_table"] == rmqctl("recover", "table", root, *JSON).json()
    assert "differ between log and consumequeue" in document["notes"][0]


@pytest.mark.parametrize("golden_store", [golden_store for golden_store in DAMAGED
                                          if "shortfile" in golden_store.id],
                         ids=lambda golden_store: golden_store.id)
def test_a_broker_that_does_not_start(rmqctl: Run, golden_copy: Folder,
                                      golden_store: GoldenSet) -> None:
    root = golden_copy(f"{golden_store.id}/before")
    was = bytes_of(root)
    result = rmqctl("recover", root, "--strategy", "broker", "--apply", "--yes", *JSON).expect(6)
    assert not result.json()["starts"]
    assert "does not start" in " ".join(result.json()["notes"])
    assert {name: data for name, data in bytes_of(root).items() if name in was} == was


def test_without_a_terminal_apply_is_enough(rmqctl: Run, golden_copy: Folder) -> None:
    root = golden_copy("4.9.3/crash-crc/before")
    assert "rmqctl undo" in rmqctl("recover", root, "--apply").expect(0).out


@pytest.mark.parametrize("words", [
    ("--only", "log"), ("--only", ""), ("--queue", "1"), ("--topic", "T", "--only", "index"),
    ("--strategy", "broker", "--only", "index"), ("--apply", "--dry-run"), ("--yes",),
], ids=" ".join)
def test_wrong_words(rmqctl: Run, tiny: Tiny, words: tuple[str, ...]) -> None:
    rmqctl("recover", tiny.root, *words).expect(2)


@pytest.mark.parametrize("strategy", ["salvage", "broker"])
def test_a_held_store(rmqctl: Run, golden_copy: Folder, strategy: str) -> None:
    root = golden_copy("5.3.3/crash-crc/before")
    for kind in KINDS:
        with held(root, kind), snapshot.assert_unchanged(root):
            rmqctl("recover", root, "--strategy", strategy, "--apply", "--yes").expect(4)


@pytest.mark.parametrize("strategy", ["salvage", "broker"])
def test_a_plan_made_on_half_a_view_is_not_carried_out(
        rmqctl: Run, golden_copy: Folder, monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    """A file that cannot be read for a moment must not pass for one that is damaged."""
    root = golden_copy("5.3.3/crash-crc/before")
    real = os.open

    def failing(path: str, *args: int, **more: int) -> int:
        if str(path).endswith("/checkpoint"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *args, **more)

    was = bytes_of(root)
    monkeypatch.setattr(os, "open", failing)
    words = ("recover", root, "--strategy", strategy)
    assert "checkpoint" in rmqctl(*words).expect(5).err
    assert "checkpoint" in rmqctl("preflight", root).expect(5).err
    done = rmqctl(*words, "--apply", "--yes").expect(5)
    assert "checkpoint" in done.err
    monkeypatch.undo()
    assert bytes_of(root) == was


# -- accidents ------------------------------------------------------------------------------------


def damaged(tiny: Tiny) -> Callable[[Path], Path]:
    """A small store with a wrong byte in a body and without one queue."""

    def make(folder: Path) -> Path:
        root = snapshot.copy_tree(tiny.root, folder)
        log = min((root / "commitlog").iterdir())
        data = bytearray(log.read_bytes())
        message = next(stored_message for stored_message in tiny.messages
                       if stored_message.spec.body)
        data[message.start + data[message.start:].index(message.spec.body)] ^= 1
        log.write_bytes(data)
        shutil.rmtree(min(min((root / "consumequeue").iterdir()).iterdir()))
        (root / "abort").touch()
        return root

    return make


def command(rmqctl: Run, strategy: str) -> Callable[[Path], Result]:
    return lambda root: rmqctl("recover", root, "--strategy", strategy, "--apply", "--yes")


both = pytest.mark.parametrize("strategy", ["salvage", "broker"])


@pytest.mark.long
@both
def test_some_failing_calls(strategy: str, tiny: Tiny, rmqctl: Run, tmp_path: Path) -> None:
    assert faults_of(command(rmqctl, strategy), damaged(tiny), tmp_path / "faults", step=37) >= 5


@pytest.mark.long
@both
def test_some_kills(strategy: str, tiny: Tiny, rmqctl: Run, tmp_path: Path) -> None:
    assert kills_of(command(rmqctl, strategy), damaged(tiny), tmp_path / "kills", most=6) >= 5


@pytest.mark.exhaustive
@both
def test_every_failing_call(strategy: str, tiny: Tiny, rmqctl: Run, tmp_path: Path) -> None:
    assert faults_of(command(rmqctl, strategy), damaged(tiny), tmp_path / "faults") >= 100


@pytest.mark.exhaustive
@both
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_kill_at_every_call(strategy: str, power: bool, tiny: Tiny, rmqctl: Run,
                              tmp_path: Path) -> None:
    assert kills_of(command(rmqctl, strategy), damaged(tiny), tmp_path / "kills",
                    power=power) >= 50


def test_one_line_says_whose_messages_are_lost_and_of_when(rmqctl: Run, golden: Folder) -> None:
    output = rmqctl("recover", golden("5.3.3/clean-crc/before"), "--strategy",
                    "broker").expect(1).out
    assert ("affected: 20 of 273 messages (TP_bill_Event9 11, TP_pay_Topic 9), stored from "
            "2024-06-23T19:13:56.373Z to 2024-06-23T19:14:02.482Z") in output


@pytest.mark.long
def test_a_plan_says_what_it_needs_and_a_full_disk_changes_nothing(
        rmqctl: Run, golden_copy: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy("4.9.3/crash-crc/before")
    room, = rmqctl("recover", root, *JSON).expect(0).json()["room"]
    assert room["free"] > room["needed"] > 1 << 20
    about = os.statvfs(root)
    full = os.statvfs_result((*about[:4], 3, *about[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    shown = rmqctl("recover", root).expect(0).out
    assert "Disk space: needed 2.0 MiB, free 12.0 KiB." in shown
    assert "too little disk space for --apply" in shown
    before = bytes_of(root)
    assert rmqctl("recover", root, "--apply", "--yes").expect(5).err.rstrip().endswith(
        "nothing was changed")
    assert not list(root.glob(".rmqctl/scratch/*"))
    shutil.rmtree(root / ".rmqctl")
    assert bytes_of(root) == before
