"""What a backup says is delivered is never later than its log: nothing is skipped after a restore.

The broker delivers delayed messages and retries as new messages, and then saves its progress. A
copy of this progress that is later than the copied log would skip messages for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.backup import backup as in_folder
from rmqctl.backup import moment, remote, remote_restore
from rmqctl.backup.backup import BackupSource
from rmqctl.backup.copying import database_files
from rmqctl.backup.finishing import lowered_files
from rmqctl.backup.restore import restore
from rmqctl.checks.delays import ahead, delays, timer_ahead
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store
from tests.backup.test_backup import growing, messages
from tests.conftest import GoldenFolder, Runner
from tests.support.layouts import layout_set
from tests.support.snapshot import copy_tree
from tests.support.tiny import Tiny
from tests.support.worn import worn

_NOW = 1_750_000_000_000
Growing = Callable[[int, int], Path]
__all__ = ["growing"]


@pytest.fixture(params=["folder", "url"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/at-url" if request.param == "url" else str(tmp_path / "backup")


def run(store: Path, backup: str, number: int = 0) -> Any:
    module = remote if "://" in backup else in_folder
    return module.back_up(BackupSource(str(store)), backup, lambda: _NOW + number * 1000,
                          "1.0.0")[0]


def restored(backup: str, target: Path, **how: Any) -> Any:
    return (remote_restore.restore if "://" in backup else restore)(backup, str(target), **how)


def save(root: Path, offset: int, *, bak: int | None = None) -> None:
    """The progress of a group and of the delay service, as a broker saves it."""
    config = root / "config"
    with Store.open(str(root)) as store:
        topic, queue_id = min(store.queues.by_key)
    for suffix, value in (("", offset), (".bak", offset if bak is None else bak)):
        (config / f"consumerOffset.json{suffix}").write_text(json.dumps(
            {"offsetTable": {f"{topic}@G": {queue_id: value}}}))
        (config / f"delayOffset.json{suffix}").write_text(json.dumps({"offsetTable": {1: value}}))
        (config / f"timercheck{suffix}").write_bytes(bytes(31) + bytes([value]))


def progress(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "config").iterdir())
            if moment.is_progress(f"config/{path.name}")}


def test_progress_is_not_later_than_the_log(growing: Growing, backup: str, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    root = growing(0, 40)
    fix = moment.fix

    def later(store: Store, least: int = 0) -> tuple[Store, int]:
        result = fix(store, least)
        save(root, 3)  # the broker goes on, while the log's end is fixed
        (root / "config/topics.json").write_text('{"topicConfigTable":{"New":{}}}')
        return result

    monkeypatch.setattr(moment, "fix", later)
    for number in range(2):  # a first run, and one that has nothing to copy but this
        save(root, 1 + number)
        before = progress(root)
        run(root, backup, number)
        target = tmp_path / f"new {number}"
        restored(backup, target)
        assert progress(target) == before
        assert "New" in (target / "config/topics.json").read_text()  # what exists, as of later


@pytest.mark.parametrize(("layout", "folder"), [
    ("5.3.3/rocksdb-config-v1", "consumerOffsets"), ("5.3.3/rocksdb-config-v2", "rdb")])
def test_progress_in_rocksdb_is_not_later_than_the_log(
        layout: str, folder: str, backup: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_tree(layout_set(layout) / "store", tmp_path / "store")
    database = root / "config" / folder
    before = {path.name: path.read_bytes() for path in database.iterdir() if path.name != "LOCK"}
    fix = moment.fix

    def later(store: Store, least: int = 0) -> tuple[Store, int]:
        result = fix(store, least)
        (database / "000099.sst").write_bytes(b"later")  # the broker goes on
        for path in database.glob("MANIFEST*"):
            path.write_bytes(path.read_bytes() + b"later")
        return result

    monkeypatch.setattr(moment, "fix", later)
    run(root, backup)
    target = tmp_path / "new"
    restored(backup, target)
    assert {path.name: path.read_bytes() for path in (target / "config" / folder).iterdir()
            if path.name != "LOCK"} == before


def test_a_database_too_large_for_the_memory_is_copied_with_the_other_files(
        tmp_path: Path) -> None:
    root = layout_set("5.3.3/rocksdb-config-v1") / "store"
    inner = "config/consumerOffsets"
    assert database_files(str(root), inner, 1 << 20).keys() >= {f"{inner}/CURRENT"}
    assert database_files(str(root), inner, 100) == {}
    assert database_files(str(tmp_path), inner, 100) == {}


def test_an_empty_file_of_progress_is_restored_empty(growing: Growing, backup: str,
                                                     tmp_path: Path) -> None:
    root = growing(0, 5)
    for number, content in enumerate((b"", b"{}", b"")):
        (root / "config/consumerOffset.json").write_bytes(content)
        run(root, backup, number)
        target = tmp_path / f"new {number}"
        restored(backup, target)
        assert (target / "config/consumerOffset.json").read_bytes() == content


def test_a_file_that_is_being_replaced_is_waited_for(growing: Growing, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    root = growing(0, 5)
    save(root, 1)
    main = root / "config/delayOffset.json"
    away = main.rename(tmp_path / "away")
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            away.rename(main)

    monkeypatch.setattr(moment.time, "sleep", sleep)
    with Store.open(str(root)) as store:
        assert moment.progress_files(store)["config/delayOffset.json"] == main.read_bytes()
    assert len(waits) == 3


def test_a_log_that_ends_between_points_gets_the_earlier_progress(
        growing: Growing, backup: str, tmp_path: Path) -> None:
    """The later point counts what was delivered after the end of the restored log."""
    points = []
    for number in range(3):
        root = growing(number * 30, 30)
        save(root, number + 1)
        points.append(run(root, backup, number))
    ends = [message["physical_offset"] for message in messages(root)]
    between = next(end for end in ends if end > points[1].log_end)
    for offset, value in ((between, 2), (points[1].log_end, 2), (points[0].log_end, 1)):
        target = tmp_path / str(offset)
        done = restored(backup, target, offset=offset)
        delays = json.loads((target / "config/delayOffset.json").read_text())
        assert delays == {"offsetTable": {"1": value}}
        assert (target / "config/timercheck").read_bytes()[-1] == value
        assert any("delivered again" in note for note in done.notes) is (offset == between)
    # Before the first point there is no earlier progress: a note says what that means.
    first = tmp_path / "first"
    done = restored(backup, first, offset=ends[3])
    assert any("groups may skip" in note for note in done.notes)


def test_delayed_messages_continue_after_the_last_delivered_one(
        golden_copy: GoldenFolder, backup: str, tmp_path: Path, rmqctl: Runner) -> None:
    """Before the first point, the log itself shows what was delivered."""
    root = golden_copy("4.9.3/delay-delivered/store")
    path = root / "config/delayOffset.json"
    with Store.open(str(root)) as store:
        levels = delays(store)
        places = [int(place) for batch in store.log.walk() for place in batch.offset]
    for name in (path, path.with_suffix(".json.bak")):
        name.write_text(json.dumps({"offsetTable": {
            **{level: delay.messages for level, delay in levels.items()}, 14: 3}}))
    run(root, backup)
    for number in (5, 50, 80, 81, 100, 136):
        target = tmp_path / str(number)
        done = restored(backup, target, offset=places[number])
        with Store.open(str(target)) as store:
            wanted = {level: delay.delivered_end for level, delay in delays(store).items()}
            assert ahead(store) == []
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            table = json.loads(re.sub(r"(\d+):", r'"\1":', (target / "config" / name).read_text()))
            assert table["offsetTable"] == {
                str(level): wanted.get(level, 0) for level in (*levels, 14)}
        assert any("will deliver them" in note for note in done.notes)
        rmqctl("preflight", target).expect(0)


def test_timers_continue_after_the_last_delivered_one(golden_copy: GoldenFolder, backup: str,
                                                      tmp_path: Path) -> None:
    root = golden_copy("5.3.3/timer/store")
    check = root / "config/timercheck"
    data = check.read_bytes()
    read = int.from_bytes(data[:8]) + 1_800_000
    check.write_bytes(read.to_bytes(8) + data[8:])
    run(root, backup)
    with Store.open(str(root)) as store:
        place = [int(place) for batch in store.log.walk() for place in batch.offset][60]
    done = restored(backup, tmp_path / "new", offset=place)
    assert any("timed message" in note and "will deliver them" in note for note in done.notes)
    changed = (tmp_path / "new/config/timercheck").read_bytes()
    assert int.from_bytes(changed[:8]) < read
    assert len(changed) == len(data)
    with Store.open(str(tmp_path / "new")) as store:
        assert timer_ahead(store, store.log.end).messages == 0


def test_lowered_offsets_are_lowered_in_both_copies(growing: Growing, backup: str, tmp_path: Path,
                                                    rmqctl: Runner) -> None:
    """Otherwise verify says that the file is older than its .bak, and recover takes the .bak."""
    root = growing(0, 20)
    save(root, 5)
    for suffix in ("", ".bak"):
        (root / f"config/timercheck{suffix}").unlink()  # not as a broker writes it
    run(root, backup)
    cut = messages(root)[2]["physical_offset"]
    target = tmp_path / "new"
    restored(backup, target, offset=cut)
    both = [json.loads((target / f"config/consumerOffset.json{suffix}").read_text())["offsetTable"]
            for suffix in ("", ".bak")]
    assert both[0] == both[1]
    assert max(offset for queues in both[0].values() for offset in queues.values()) < 5
    rmqctl("verify", target).expect(0)


@pytest.mark.parametrize("quote", ["", '"'])
def test_lowered_files_keep_their_form(growing: Growing, quote: str) -> None:
    """Light queues have a table of their own; a broker writes queue ids without quotes."""
    root = growing(0, 20)
    with Store.open(str(root)) as store:
        topic, queue_id = min(store.queues.by_key)
        text = (f'{{"dataVersion":{{"counter":4}},"lmqOffsetTable":{{"{topic}@%LMQ%g":999,"x":7}},'
                f'"offsetTable":{{"{topic}@G":{{{quote}{queue_id}{quote}:999}},'
                f'"without group":{{{quote}0{quote}:999}}}}}}').encode()
        name = "config/lmqConsumerOffset.json"
        changed = lowered_files(store, {name: text, f"{name}.bak": b"{", "config/other": text})
        end = store.queues.by_key[topic, queue_id].disk_end
        light = store.queues.by_key.get((topic, 0))
    content, count = changed.pop(name)
    assert not changed
    value = json.loads(content) if quote else json.loads(
        re.sub(rb"([{,]\s*)(\d+):", rb'\1"\2":', content))
    assert value["offsetTable"] == {f"{topic}@G": {str(queue_id): end}, "without group": {"0": 999}}
    assert value["lmqOffsetTable"]["x"] == 7
    if light is not None:
        assert value["lmqOffsetTable"][f"{topic}@%LMQ%g"] == light.disk_end
        assert count == 2
    assert value["dataVersion"]["counter"] == 5
    assert (f'"{queue_id}":'.encode() in content) is bool(quote)


def test_a_restore_names_damage_of_the_log(growing: Growing, backup: str, tmp_path: Path) -> None:
    root = growing(0, 20)
    place = messages(root)[10]
    log = min((root / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(place["physical_offset"] + 100)
        file.write(b"\xff" * 20)
    run(root, backup)
    notes = restored(backup, tmp_path / "new").notes
    assert any("damaged in 1 place" in note for note in notes)
    notes = restored(backup, tmp_path / "old", offset=messages(root)[5]["physical_offset"]).notes
    assert not any("damaged in" in note for note in notes)


def test_unreadable_bytes_do_not_end_a_run(growing: Growing, backup: str, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are copied and checked, and the point names the place."""
    root = growing(0, 120)
    log = sorted((root / "commitlog").iterdir())[1]
    content = log.read_bytes()
    with monkeypatch.context() as patched:
        worn(patched, log, 8192, 8292)
        patched.setattr(FileSource, "copy_to", lambda *_: 0)
        point = run(root, backup)
    name = f"commitlog/{log.name}"
    assert [(hole.file, hole.offset, hole.length) for hole in point.damaged if hole.unread] == [
        (name, 8192, 4096)]
    assert 60 < point.messages < 120
    restored(backup, tmp_path / "new")
    copy = (tmp_path / "new" / name).read_bytes()
    assert copy == content[:8192] + bytes(4096) + content[12288:]


def offsets_of(root: Path) -> dict[str, dict[int, int]]:
    with Store.open(str(root)) as store:
        table: dict[str, dict[int, int]] = {}
        for row in load_one(store, "consumerOffset.json").rows():
            table.setdefault(f"{row['topic']}@{row['group']}", {})[row["queue_id"]] = row["offset"]
    return table


@pytest.mark.parametrize(("number", "queue", "offset"), [
    (4, "orders@billing", 0), (7, "%RETRY%billing@billing", 0), (9, "orders@billing", 2)])
def test_what_was_sent_back_later_is_delivered_again(
        retried: Tiny, backup: str, tmp_path: Path, number: int, queue: str,
        offset: int) -> None:
    """Message 4 is the retry of the first message of orders, message 7 its dead letter."""
    run(retried.root, backup)
    with Store.open(str(retried.root)) as store:
        place = [int(place) for batch in store.log.walk() for place in batch.offset][number]
    before = offsets_of(retried.root)
    done = restored(backup, tmp_path / "new", offset=place)
    assert before[queue][0] > offset or number == 9
    assert offsets_of(tmp_path / "new")[queue][0] == offset
    assert any("sent back" in note for note in done.notes) is (number != 9)


def test_transactions_that_ended_later_are_checked_again(
        golden_copy: GoldenFolder, backup: str, tmp_path: Path, rmqctl: Runner) -> None:
    root = golden_copy("4.9.3/transaction/store")
    half, op = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
    with Store.open(str(root)) as store:
        ends = {topic: store.queues.by_key[topic, 0].disk_end for topic in (half, op)}
        places = [int(place) for batch in store.log.walk() for place in batch.offset]
        first = next(place for place in places
                     if (record := store.log.record_at(place)) is not None
                     and record.topic == op.encode())
    (root / "config").mkdir(exist_ok=True)
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": {
        f"{topic}@CID_RMQ_SYS_TRANS": {0: end} for topic, end in ends.items()}}))
    run(root, backup)
    done = restored(backup, tmp_path / "new", offset=first)
    assert any("are checked again" in note for note in done.notes)
    table = offsets_of(tmp_path / "new")
    assert table[f"{half}@CID_RMQ_SYS_TRANS"] == table[f"{op}@CID_RMQ_SYS_TRANS"] == {0: 0}
    pending = rmqctl("transactions", "list", tmp_path / "new", "-o", "json").expect(0, 1).json()
    assert "passed over" not in {row["state"] for row in pending}
