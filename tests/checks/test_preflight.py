"""preflight against the engine: what is said before is what the engine left afterwards."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.versions import VERSIONS
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import UsageError
from rmqctl.formats.local import checkpoint as page
from rmqctl.repair.executor.executor import Repair
from rmqctl.store import Sizes, Store
from tests.support import cli, snapshot
from tests.support.golden import GoldenSet, GoldenStore, all_sets, clean_stores

DAMAGED = [each for each in all_sets() if each.is_damaged]
SHAPE = Sizes(index_slots=100, index_max=200)
"""The index of all damage sets (where it is deleted no file tells it)."""
CRASH = "5.3.3/crash-live/before"
CLEAN = "5.3.3/basic/store"


def ask(root: Path, version: str | None = None, dirs: tuple[str, ...] = (),
        sizes: Sizes | None = None) -> Prediction:
    with Store.open(root, dirs, sizes) as store:
        return preflight(store, version)


def files(root: Path, structure: str) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / structure).rglob("*")
            if path.is_file()}


def intact(root: Path) -> Counter[tuple[int, str]]:
    """(physical offset, topic) of the intact messages in the files of a log."""
    found: Counter[tuple[int, str]] = Counter()
    with Store.open(root) as store:
        for batch in store.log.walk():
            good = batch.crc_ok()
            for row in range(len(batch)):
                if good[row]:
                    at = int(batch.column("topic_start")[row])
                    topic = batch.data[at:at + int(batch.column("topic_length")[row])].tobytes()
                    found[int(batch.offset[row]), topic.decode()] += 1
    return found


@pytest.mark.parametrize("each", DAMAGED, ids=lambda one: one.id)
def test_the_engine_is_judge(golden, each: GoldenSet):
    folder = golden(each.id)
    expect = json.loads((folder / "expect.json").read_text())
    before, after = folder / "before", folder / "after"
    made = ask(before, each.version, sizes=SHAPE)

    assert made.starts == expect["loaded"]
    assert made.recovery == ("abnormal" if each.kind.startswith("crash-") else "normal")
    if not made.starts:
        assert made.truncate_to is None
        assert made.refusals
        assert not made.harmless
        return
    assert made.truncate_to == expect["maxPhyOffsetAfterLoad"]
    gone = {name for structure in ("commitlog", "consumequeue", "index")
            for name in files(before, structure) - files(after, structure)}
    assert set(made.doomed) == gone
    assert made.checkpoint == page.parse((after / "checkpoint").read_bytes())
    queues = {f"{one['topic']}-{one['queueId']}": one["max"] for one in expect["queues"]
              if one["max"]}
    assert {key: end for key, end in made.table.items() if end} == queues

    end = expect["maxPhyOffsetAfterLoad"]
    lost = Counter(topic for at, topic in intact(before) if at >= end)
    assert made.lost_by_topic == dict(lost)
    assert made.messages_lost == lost.total() == len(made.lost_first)
    kept = {(at, topic) for at, topic in intact(before) if at < end}
    rowed = {(row[1], row[4]) for one in expect["queues"] for row in one["messages"]}
    assert made.unreachable_by_topic == dict(Counter(topic for _, topic in kept - rowed))
    # Rows that lead to nothing whole tell of messages that were lost before.
    whole = {at for at, _ in intact(before)}
    gone_before = [topic for topic, places in row_places(before).items()
                   for at in places - whole]
    assert made.already_lost_by_topic == dict(Counter(gone_before))
    assert made.messages_already_lost == len(gone_before)
    assert made.start_is_harmless == (
        not lost and kept <= rowed and not (gone_before and made.rows_cut)
        and not made.index_lost)
    assert made.harmless == (made.start_is_harmless and not gone_before)
    # The same by queue, as consumers count.
    assert made.queue_losses is not None
    assert {f"{topic}-{queue}": one.end for (topic, queue), one in made.queue_losses.items()
            if one.end} == queues
    for name, counted in (("cut", made.lost_by_topic), ("lost", made.already_lost_by_topic),
                          ("without_row", made.unreachable_by_topic)):
        by_topic: Counter[str] = Counter()
        for (topic, _), one in made.queue_losses.items():
            by_topic[topic] += getattr(one, name).count()
        assert dict(+by_topic) == counted, name


def row_places(root):
    """Where the rows of each topic lead to."""
    found = {}
    for path in (root / "consumequeue").glob("*/*/*"):
        raw = path.read_bytes()
        found.setdefault(path.parts[-3], set()).update(
            at for at, size, _ in struct.iter_unpack(">qiq", raw[:len(raw) // 20 * 20])
            if 0 < size < 0x7FFFFFFF)
    return found


@pytest.mark.parametrize("each", clean_stores(), ids=lambda one: one.id)
def test_a_sound_store_loses_nothing(golden, each: GoldenStore):
    made = ask(golden(each.id), each.version, each.commitlog_dirs)
    assert made.harmless
    assert (made.messages_lost, made.unreachable, made.rows_cut, made.doomed) == (0, 0, 0, [])
    assert not [one for one in made.actions if one.target != "checkpoint"]


@pytest.mark.parametrize("each", DAMAGED, ids=lambda one: one.id)
def test_duplicates_and_lost_entries_of_the_index(golden, each: GoldenSet):
    made = ask(golden(each.id) / "before", each.version, sizes=SHAPE)
    if not made.starts:
        return
    before, after = (_entries(golden(each.id) / state) for state in ("before", "after"))
    lost = before - after
    assert made.index_lost == sum(count for (_, place), count in lost.items()
                                  if place < made.truncate_to)
    if each.kind.endswith(("crash-live", "crash-cqlag")):
        assert made.index_entries > 0
        assert made.index_discarded > 0
    assert made.index_duplicates == sum(
        count - before[key] for key, count in after.items() if 0 < before[key] < count)


def _entries(root: Path) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    with Store.open(root, (), SHAPE) as store:
        for index in store.indexes_newest_first():
            for number in range(1, index.count):
                entry = index.entry(number)
                assert entry is not None
                found[entry.key_hash, entry.physical_offset] += 1
    return found


# -- loading --------------------------------------------------------------------------------------


def _last(root: Path, structure: str = "commitlog") -> Path:
    return max(path for path in (root / structure).rglob("*") if path.is_file())


def _empty_next(root: Path) -> None:
    last = _last(root)
    (last.parent / f"{int(last.name) + last.stat().st_size:020d}").touch()


def _empty_queue_file(root: Path) -> None:
    folder = _last(root, "consumequeue").parent
    last = max(folder.iterdir())
    (folder / f"{int(last.name) + last.stat().st_size:020d}").touch()


LOADING = {
    "folder": (lambda root: (root / "commitlog" / "lost+found").mkdir(), False, True),
    "strange name": (lambda root: shutil.copy(_last(root), root / "commitlog" / "copy.bak"),
                     False, False),
    "empty last": (_empty_next, False, True),
    "empty queue file": (_empty_queue_file, False, True),
    "short file": (lambda root: os.truncate(_last(root), 5000), False, False),
    "short queue file": (lambda root: os.truncate(_last(root, "consumequeue"), 100), False, False),
    "folder in a queue": (lambda root: (_last(root, "consumequeue").parent / "x").mkdir(),
                          False, True),
    "both copies broken": (lambda root: [(root / "config").mkdir(exist_ok=True), [
        (root / "config" / name).write_text("{broken") for name in (
            "topics.json", "topics.json.bak")]], False, False),
}


@pytest.mark.parametrize("name", LOADING)
def test_what_a_broker_loads(golden_copy, name: str):
    root = golden_copy(CRASH)
    change, old, new = LOADING[name]
    change(root)
    for version, starts in zip(("4.9.3", "5.3.3"), (old, new), strict=True):
        made = ask(root, version, sizes=SHAPE)
        assert made.starts is starts, (version, made.refusals)
        assert made.harmless is starts
        if not starts:
            assert made.actions
            assert {one.action for one in made.actions} == {"refuse to start"}


def test_an_empty_last_file_is_deleted(golden_copy):
    root = golden_copy(CRASH)
    _empty_next(root)
    made = ask(root, "5.3.3", sizes=SHAPE)
    assert made.doomed[0] == str(_last(root).relative_to(root))
    assert any("5.1.3" in one for one in made.differences)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("abort", [False, True])
def test_an_empty_log_destroys_every_queue(golden_copy, version: str, abort: bool):
    root = golden_copy(f"{version}/basic/store")
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()
    if abort:
        (root / "abort").touch()
    made = ask(root, version)
    assert made.starts
    assert made.truncate_to == 0
    destroyed = {one.target for one in made.actions if one.action == "destroy"}
    assert destroyed == {str(path.parent.relative_to(root))
                         for path in (root / "consumequeue").rglob("*") if path.is_file()}
    assert made.rows_lost > 0
    assert not made.harmless


# -- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_single_deleted_queue_never_comes_back(golden_copy, version: str):
    root = golden_copy(f"{version}/basic/store")
    with Store.open(root) as store:
        (topic, queue_id), queue = max(store.queues.items(), key=lambda one: one[1].written)
        rows = queue.written
    shutil.rmtree(root / "consumequeue" / topic / str(queue_id))
    made = ask(root, version)
    assert (made.messages_lost, made.unreachable_by_topic) == (0, {topic: rows})
    assert not made.harmless


def test_topics_that_were_deleted_are_no_loss(golden_copy):
    root = golden_copy(CLEAN)
    topic = min(path.name for path in (root / "consumequeue").iterdir())
    shutil.rmtree(root / "consumequeue" / topic)
    others = [path.name for path in (root / "consumequeue").iterdir()]
    (root / "config").mkdir(exist_ok=True)
    table = {name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
             for name in others}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    made = ask(root)
    assert made.unreachable == 0
    assert made.harmless
    assert "deleted topics are not counted" in " ".join(made.notes)


def test_a_queue_of_fillers_counts_as_dispatched_up_to_2_gib(golden_copy):
    """A broker's quirk: the filler's size is 0x7FFFFFFF (consumequeue.md §6)."""
    root = golden_copy("4.9.3/clean-nocq/before")
    folder = root / "consumequeue" / "TP_pay_Topic" / "0"
    folder.mkdir(parents=True)
    filler = (0).to_bytes(8) + (0x7FFFFFFF).to_bytes(4) + (0).to_bytes(8)
    (folder / f"{0:020d}").write_bytes(filler * 22)
    made = ask(root, "4.9.3", sizes=SHAPE)
    assert made.rows_added == 0
    assert made.unreachable == 274


# -- the log --------------------------------------------------------------------------------------


def test_v2_records_end_the_log_of_an_old_broker(golden):
    made = ask(golden("5.3.3/v2topic/store"), "4.9.3")
    assert made.messages_lost > 0
    assert "v2 record" in made.stop_reason
    assert any("5.1.0" in one for one in made.differences)


def test_a_missing_middle_file(golden_copy):
    """A broker goes on with the next file it has; after a clean end 4.9.3 without queues waits."""
    root = golden_copy("4.9.3/clean-nocq/before")
    sorted((root / "commitlog").iterdir())[2].unlink()
    made = ask(root, "4.9.3", sizes=SHAPE)
    assert not made.starts
    assert "start-up hangs" in made.refusals[0]
    again = ask(root, "5.3.3", sizes=SHAPE)
    assert again.starts
    assert again.truncate_to == 183565


def test_a_record_that_lies_about_its_place_is_taken(golden_copy):
    root = golden_copy(CRASH)
    with Store.open(root) as store:
        end = ask(root, sizes=SHAPE).truncate_to
        starts = [int(at) for batch in store.log.walk(163840, end) for at in batch.offset]
    wrong = starts[3]
    path = root / "commitlog" / f"{163840:020d}"
    with path.open("r+b") as file:
        file.seek(wrong - 163840 + 28)
        file.write((5).to_bytes(8))
    made = ask(root, sizes=SHAPE)
    assert made.truncate_to == end
    assert str(wrong) in " ".join(made.notes)


def test_versions(golden):
    root = golden(CLEAN)
    assert ask(root).broker_version == "5.3.3"
    assert ask(golden("4.9.3/basic/store")).broker_version == "4.9.3"
    with pytest.raises(UsageError, match=r"4\.9\.9"):
        ask(root, "4.9.9")


# -- the command ----------------------------------------------------------------------------------


def test_the_command(golden):
    root = golden("4.9.3/crash-crc-prev/before")
    with snapshot.assert_unchanged(root):
        done = cli.run("preflight", str(root), "-o", "json")
    assert done.code == 1
    made = json.loads(done.out)
    assert made["recovery"] == "abnormal"
    assert made["starts"] is True
    assert made["truncate_to"] == 151609
    assert made["messages_lost"] == sum(made["lost_by_topic"].values()) > 0
    assert {"action", "target", "reason"} <= made["actions"][0].keys()
    assert cli.run("preflight", str(golden(CLEAN))).code == 0
    assert cli.run("preflight", str(golden(CLEAN)), "--broker-version", "4.9.9").code == 2
    held = cli.run("preflight", str(golden("5.3.3/crash-shortfile/before")))
    assert held.code == 1
    assert held.out.splitlines()[0].endswith("; a 5.3.3 broker would not start")
    assert held.out.startswith("17 messages are already lost (TP_bill_Event9 10, TP_pay_Topic 7)")


@pytest.mark.long
def test_a_held_store_is_answered_with_a_note(golden_copy):
    root = golden_copy("4.9.3/basic/store")
    with Repair(str(root), "test"):
        made = _elsewhere(root)
    assert made["messages_lost"] == 0
    assert "a broker is running" in made["notes"][0]
    assert not any("a broker runs" in note for note in _elsewhere(root)["notes"])


def _elsewhere(root: Path) -> dict[str, Any]:
    """As another process sees it: a lock does not hold off its own."""
    done = subprocess.run([sys.executable, "-m", "rmqctl", "preflight", str(root), "-o", "json"],
                          capture_output=True, check=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_quick_reads_no_more_than_the_broker(golden_copy):
    root = golden_copy("5.3.3/crash-nocq/before")
    with Store.open(root, (), SHAPE) as store:
        quick, full = preflight(store, full=False), preflight(store)
    assert full.unreachable == 105
    assert quick.unreachable == 0
    assert quick.truncate_to == full.truncate_to
    assert "only in the part of the log that the broker reads" in quick.notes[-1]


def test_rows_that_a_wild_row_takes_along(golden_copy):
    """Truncation runs whenever the queues reach the log's end: a wild first row dooms its file."""
    root = golden_copy("4.9.3/crash-live/before")
    path = root / "consumequeue" / "TP_pay_Topic" / "1" / f"{880:020d}"
    data = bytearray(path.read_bytes())
    data[0] ^= 0x40
    path.write_bytes(data)
    made = ask(root, sizes=SHAPE)
    assert str(path.relative_to(root)) in made.doomed
    assert made.unreachable_by_topic == {"TP_pay_Topic": 3}


def test_one_next_command_where_something_is_lost(golden):
    """The diagnosis, which names the repair; none where a start is harmless."""
    root = golden("5.3.3/crash-crc/before")
    assert cli.run("preflight", root, "-o", "json").json()["next"] == [f"rmqctl doctor {root}"]
    shown = cli.run("preflight", root, "-o", "plain").out.splitlines()
    heading = shown.index("What next")
    assert shown[heading + 2].startswith("Step 2 of 4")
    assert shown[heading + 3].endswith("rmqctl backup STORE DEST")
    assert shown[heading + 4] == f"rmqctl doctor {root}"
    done = cli.run("preflight", golden(CLEAN), "-o", "json")
    assert (done.code, done.json()["next"]) == (0, [])


@pytest.mark.parametrize("kind", ["crash-cqahead-file", "crash-nocheckpoint", "clean-crc"])
def test_actions_are_data(rmqctl, golden, kind: str) -> None:
    found = rmqctl("preflight", golden(f"5.3.3/{kind}/before"), "-o", "json").expect(0, 1).json()
    assert found["actions"]
    for one in found["actions"]:
        for value in (one["from"], one["to"]):
            numbers = value.values() if isinstance(value, dict) else (value,)
            assert all(number is None or isinstance(number, int) for number in numbers), one
