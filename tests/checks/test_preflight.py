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

DAMAGED = [golden_set for golden_set in all_sets() if golden_set.is_damaged]
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
    counts: Counter[tuple[int, str]] = Counter()
    with Store.open(root) as store:
        for batch in store.log.walk():
            good = batch.crc_ok()
            for row in range(len(batch)):
                if good[row]:
                    at = int(batch.column("topic_start")[row])
                    topic = batch.data[at:at + int(batch.column("topic_length")[row])].tobytes()
                    counts[int(batch.offset[row]), topic.decode()] += 1
    return counts


@pytest.mark.parametrize("golden_store", DAMAGED, ids=lambda golden_store: golden_store.id)
def test_the_engine_is_judge(golden, golden_store: GoldenSet):
    folder = golden(golden_store.id)
    expect = json.loads((folder / "expect.json").read_text())
    before, after = folder / "before", folder / "after"
    prediction = ask(before, golden_store.version, sizes=SHAPE)

    assert prediction.starts == expect["loaded"]
    assert prediction.broker.recovery == ("abnormal" if golden_store.kind.startswith("crash-")
                                   else "normal")
    if not prediction.starts:
        assert prediction.log.truncate_to is None
        assert prediction.broker.refusals
        assert not prediction.harmless
        return
    assert prediction.log.truncate_to == expect["maxPhyOffsetAfterLoad"]
    gone = {name for structure in ("commitlog", "consumequeue", "index")
            for name in files(before, structure) - files(after, structure)}
    assert set(prediction.broker.doomed) == gone
    assert prediction.broker.checkpoint == page.parse((after / "checkpoint").read_bytes())
    queues = {f"{queue['topic']}-{queue['queueId']}": queue["max"] for queue in expect["queues"]
              if queue["max"]}
    assert {key: end for key, end in prediction.queues.table.items() if end} == queues

    end = expect["maxPhyOffsetAfterLoad"]
    lost = Counter(topic for at, topic in intact(before) if at >= end)
    assert prediction.log.cut.by_topic == dict(lost)
    assert prediction.log.cut.count == lost.total() == len(prediction.log.cut.first)
    kept = {(at, topic) for at, topic in intact(before) if at < end}
    rowed = {(row[1], row[4]) for queue in expect["queues"] for row in queue["messages"]}
    assert prediction.queues.unreachable_by_topic == dict(
        Counter(topic for _, topic in kept - rowed))
    # Rows that lead to nothing whole tell of messages that were lost before.
    whole = {at for at, _ in intact(before)}
    gone_before = [topic for topic, places in row_places(before).items()
                   for at in places - whole]
    assert prediction.log.gone.by_topic == dict(Counter(gone_before))
    assert prediction.log.gone.count == len(gone_before)
    assert prediction.start_is_harmless == (
        not lost and kept <= rowed and not (gone_before and prediction.queues.cut)
        and not prediction.index.lost)
    assert prediction.harmless == (prediction.start_is_harmless and not gone_before)
    # The same by queue, as consumers count.
    assert prediction.queues.losses is not None
    assert {f"{topic}-{queue}": queue_loss.end
            for (topic, queue), queue_loss in prediction.queues.losses.items()
            if queue_loss.end} == queues
    for name, counted in (("cut", prediction.log.cut.by_topic),
                          ("lost", prediction.log.gone.by_topic),
                          ("without_row", prediction.queues.unreachable_by_topic)):
        by_topic: Counter[str] = Counter()
        for (topic, _), queue_loss in prediction.queues.losses.items():
            by_topic[topic] += getattr(queue_loss, name).count()
        assert dict(+by_topic) == counted, name


def row_places(root):
    """Where the rows of each topic lead to."""
    places = {}
    for path in (root / "consumequeue").glob("*/*/*"):
        raw = path.read_bytes()
        places.setdefault(path.parts[-3], set()).update(
            at for at, size, _ in struct.iter_unpack(">qiq", raw[:len(raw) // 20 * 20])
            if 0 < size < 0x7FFFFFFF)
    return places


@pytest.mark.parametrize("golden_store", clean_stores(), ids=lambda golden_store: golden_store.id)
def test_a_sound_store_loses_nothing(golden, golden_store: GoldenStore):
    prediction = ask(golden(golden_store.id), golden_store.version, golden_store.commitlog_dirs)
    assert prediction.harmless
    assert (prediction.log.cut.count, prediction.queues.unreachable, prediction.queues.cut,
            prediction.broker.doomed) == (0, 0, 0, [])
    assert not [action for action in prediction.actions if action.target != "checkpoint"]


@pytest.mark.parametrize("golden_store", DAMAGED, ids=lambda golden_store: golden_store.id)
def test_duplicates_and_lost_entries_of_the_index(golden, golden_store: GoldenSet):
    prediction = ask(golden(golden_store.id) / "before", golden_store.version, sizes=SHAPE)
    if not prediction.starts:
        return
    before, after = (_entries(golden(golden_store.id) / state) for state in ("before", "after"))
    lost = before - after
    assert prediction.index.lost == sum(count for (_, place), count in lost.items()
                                        if place < prediction.log.truncate_to)
    if golden_store.kind.endswith(("crash-live", "crash-cqlag")):
        assert prediction.index.entries > 0
        assert prediction.index.discarded > 0
    assert prediction.index.duplicates == sum(
        count - before[key] for key, count in after.items() if 0 < before[key] < count)


def _entries(root: Path) -> Counter[tuple[int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    with Store.open(root, (), SHAPE) as store:
        for index in store.index.newest_first():
            for number in range(1, index.count):
                entry = index.entry(number)
                assert entry is not None
                counts[entry.key_hash, entry.physical_offset] += 1
    return counts


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
        prediction = ask(root, version, sizes=SHAPE)
        assert prediction.starts is starts, (version, prediction.broker.refusals)
        assert prediction.harmless is starts
        if not starts:
            assert prediction.actions
            assert {action.action for action in prediction.actions} == {"refuse to start"}


def test_an_empty_last_file_is_deleted(golden_copy):
    root = golden_copy(CRASH)
    _empty_next(root)
    prediction = ask(root, "5.3.3", sizes=SHAPE)
    assert prediction.broker.doomed[0] == str(_last(root).relative_to(root))
    assert any("5.1.3" in difference for difference in prediction.broker.differences)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("abort", [False, True])
def test_an_empty_log_destroys_every_queue(golden_copy, version: str, abort: bool):
    root = golden_copy(f"{version}/basic/store")
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").mkdir()
    if abort:
        (root / "abort").touch()
    prediction = ask(root, version)
    assert prediction.starts
    assert prediction.log.truncate_to == 0
    destroyed = {action.target for action in prediction.actions if action.action == "destroy"}
    assert destroyed == {str(path.parent.relative_to(root))
                         for path in (root / "consumequeue").rglob("*") if path.is_file()}
    assert prediction.queues.lost > 0
    assert not prediction.harmless


# -- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_single_deleted_queue_never_comes_back(golden_copy, version: str):
    root = golden_copy(f"{version}/basic/store")
    with Store.open(root) as store:
        (topic, queue_id), queue = max(store.queues.by_key.items(),
                                       key=lambda pair: pair[1].written)
        rows = queue.written
    shutil.rmtree(root / "consumequeue" / topic / str(queue_id))
    prediction = ask(root, version)
    assert (prediction.log.cut.count, prediction.queues.unreachable_by_topic) == (0, {topic: rows})
    assert not prediction.harmless


def test_topics_that_were_deleted_are_no_loss(golden_copy):
    root = golden_copy(CLEAN)
    topic = min(path.name for path in (root / "consumequeue").iterdir())
    shutil.rmtree(root / "consumequeue" / topic)
    others = [path.name for path in (root / "consumequeue").iterdir()]
    (root / "config").mkdir(exist_ok=True)
    table = {name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
             for name in others}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    prediction = ask(root)
    assert prediction.queues.unreachable == 0
    assert prediction.harmless
    assert "deleted topics are not counted" in " ".join(prediction.notes)


def test_a_queue_of_fillers_counts_as_dispatched_up_to_2_gib(golden_copy):
    """A broker's quirk: the filler's size is 0x7FFFFFFF (consumequeue.md §6)."""
    root = golden_copy("4.9.3/clean-nocq/before")
    folder = root / "consumequeue" / "TP_pay_Topic" / "0"
    folder.mkdir(parents=True)
    filler = (0).to_bytes(8) + (0x7FFFFFFF).to_bytes(4) + (0).to_bytes(8)
    (folder / f"{0:020d}").write_bytes(filler * 22)
    prediction = ask(root, "4.9.3", sizes=SHAPE)
    assert prediction.queues.added == 0
    assert prediction.queues.unreachable == 274


# -- the log --------------------------------------------------------------------------------------


def test_v2_records_end_the_log_of_an_old_broker(golden):
    prediction = ask(golden("5.3.3/v2topic/store"), "4.9.3")
    assert prediction.log.cut.count > 0
    assert "v2 record" in prediction.log.stop_reason
    assert any("5.1.0" in difference for difference in prediction.broker.differences)


def test_a_missing_middle_file(golden_copy):
    """A broker goes on with the next file it has; after a clean end 4.9.3 without queues waits."""
    root = golden_copy("4.9.3/clean-nocq/before")
    sorted((root / "commitlog").iterdir())[2].unlink()
    prediction = ask(root, "4.9.3", sizes=SHAPE)
    assert not prediction.starts
    assert "start-up hangs" in prediction.broker.refusals[0]
    again = ask(root, "5.3.3", sizes=SHAPE)
    assert again.starts
    assert again.log.truncate_to == 183565


def test_a_record_that_lies_about_its_place_is_taken(golden_copy):
    root = golden_copy(CRASH)
    with Store.open(root) as store:
        end = ask(root, sizes=SHAPE).log.truncate_to
        starts = [int(at) for batch in store.log.walk(163840, end) for at in batch.offset]
    wrong = starts[3]
    path = root / "commitlog" / f"{163840:020d}"
    with path.open("r+b") as file:
        file.seek(wrong - 163840 + 28)
        file.write((5).to_bytes(8))
    prediction = ask(root, sizes=SHAPE)
    assert prediction.log.truncate_to == end
    assert str(wrong) in " ".join(prediction.notes)


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
    document = json.loads(done.out)
    assert document["recovery"] == "abnormal"
    assert document["starts"] is True
    assert document["truncate_to"] == 151609
    assert document["messages_lost"] == sum(document["lost_by_topic"].values()) > 0
    assert {"action", "target", "reason"} <= document["actions"][0].keys()
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
        plan = _elsewhere(root)
    assert plan["messages_lost"] == 0
    assert "a broker is running" in plan["notes"][0]
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
    assert full.queues.unreachable == 105
    assert quick.queues.unreachable == 0
    assert quick.log.truncate_to == full.log.truncate_to
    assert "only in the part of the log that the broker reads" in quick.notes[-1]


def test_rows_that_a_wild_row_takes_along(golden_copy):
    """Truncation runs whenever the queues reach the log's end: a wild first row dooms its file."""
    root = golden_copy("4.9.3/crash-live/before")
    path = root / "consumequeue" / "TP_pay_Topic" / "1" / f"{880:020d}"
    data = bytearray(path.read_bytes())
    data[0] ^= 0x40
    path.write_bytes(data)
    prediction = ask(root, sizes=SHAPE)
    assert str(path.relative_to(root)) in prediction.broker.doomed
    assert prediction.queues.unreachable_by_topic == {"TP_pay_Topic": 3}


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
    answer = rmqctl("preflight", golden(f"5.3.3/{kind}/before"), "-o", "json").expect(0, 1).json()
    assert answer["actions"]
    for action in answer["actions"]:
        for value in (action["from"], action["to"]):
            numbers = value.values() if isinstance(value, dict) else (value,)
            assert all(number is None or isinstance(number, int) for number in numbers), action
