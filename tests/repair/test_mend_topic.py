"""Damaged topics: set right where rows, the index or the queue itself tell; else it is said."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local.message import Record
from rmqctl.repair.salvage.salvage import Salvage, salvage
from rmqctl.store.store import Store
from tests.adversary.writer import Layout, Writer
from tests.conftest import GoldenFolder
from tests.repair import damage, salvaging
from tests.repair.accidents import bytes_of
from tests.support import tiny
from tests.support.cli import Result, run
from tests.support.share import every

Run = Callable[..., Result]
JSON = ("-o", "json")
QUEUES = ("consumequeue", "batchconsumequeue")
LOST = {"queues": QUEUES, "queues and index": (*QUEUES, "index"), "index": ("index",),
        "nothing": ()}
SPECS = [tiny.Spec(topic, queue, b"body %d" % number, {"UNIQ_KEY": f"0A{number:04X}"})
         for number, (topic, queue) in enumerate(
             [("orders", 0), ("bills1", 0), ("orders", 0), ("orders", 1), ("refund", 0),
              ("orders", 0), ("bills1", 0), ("orders", 1), ("orders", 0), ("bills1", 0)])]


def take_away(root: Path, names: Sequence[str]) -> None:
    for name in names:
        shutil.rmtree(root / name, ignore_errors=True)


def put(root: Path, whole: damage.Whole, place: int, at: int, data: bytes) -> None:
    """Bytes at a position of the record at a place."""
    base = place - place % whole.file_size
    with (root / "commitlog" / f"{base:020d}").open("r+b") as opened:
        opened.seek(place - base + at)
        opened.write(data)


def topic_at(record: Record, raw: bytes) -> int:
    return raw.rindex(record.topic, 0, len(raw) - len(record.properties))


def salvaged(root: Path) -> Salvage:
    with Store.open(root) as store:
        return salvage(store)


# -- real stores ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "place", "lost"), [
    ("4.9.3/crash-nocq/before", 90034, "queues"), ("5.3.3/basic/store", None, "queues and index")])
def test_four_zeros_and_back(rmqctl: Run, golden_copy: GoldenFolder, name: str, place: int | None,
                             lost: str) -> None:
    root = golden_copy(name)
    whole = damage.remember(root)
    if place is None:
        place = sorted(whole.records)[len(whole.records) // 2]
    record = whole.records[place]
    take_away(root, LOST[lost])
    was = bytes_of(root)
    put(root, whole, place, topic_at(record, whole.raw(place, record.total_size)) + 4, bytes(4))
    broken = bytes_of(root)
    options = ("--index-slots", "100", "--index-max", "400", *JSON)
    done = rmqctl("recover", root, "--apply", "--yes", *options).expect(0).json()
    action, = (planned_action for planned_action in done["actions"]
               if planned_action["action"] == "mend record")
    assert action["proof"]["fields"] == ["topic"]
    topic = os.fsdecode(record.topic)
    assert (f"{topic}/{record.queue_id} has no message with queue offset {record.queue_offset} here"
            in action["reason"])
    assert ("the index has the message's keys" in action["reason"]) == (lost == "queues")
    assert "left_damaged" not in done
    now = bytes_of(root)
    assert {path: now[path] for path in was if path.startswith("commitlog")} == {
        path: data for path, data in was.items() if path.startswith("commitlog")}
    findings = rmqctl("verify", root, *options).json()["findings"]
    assert not [finding for finding in findings if finding["severity"] != "info"]
    assert rmqctl("recover", root, *options).expect(0).json()["actions"] == []
    rmqctl("undo", root, "--yes").expect(0)
    assert {path: data for path, data in bytes_of(root).items()
            if not path.startswith(".rmqctl")} == broken


@pytest.mark.parametrize(("name", "lost"), [
    ("4.9.3/basic", "queues"), ("4.9.3/basic", "nothing"), ("5.3.3/batchcq", "index"),
    ("5.3.3/batchcq", "queues"), ("5.3.3/v2topic", "queues and index")])
def test_topics_and_their_lengths(golden_copy: GoldenFolder, name: str, lost: str) -> None:
    root = golden_copy(f"{name}/store")
    whole = damage.remember(root)
    take_away(root, LOST[lost])
    queued = [place for place, record in sorted(whole.records.items())
              if record.queue_offset and not record.sys_flag & 12]
    for number, place in enumerate(queued[3::len(queued) // 4]):
        record = whole.records[place]
        raw = whole.raw(place, record.total_size)
        at = topic_at(record, raw)
        start, data = [(at, bytes(len(record.topic))), (at, bytes([raw[at] ^ 1])),
                       (at - 1, bytes(4)), (at - 1, b"\x03")][number % 4]
        put(root, whole, place, start, data)
        salvage = salvaged(root)
        assert (salvage.lost, salvage.wrong_topics) == ((), 0)
        assert salvaging.records(salvage.parts)[place] == raw
        put(root, whole, place, 0, raw)


# -- every bit of a tiny store --------------------------------------------------------------------


@pytest.mark.parametrize(("lost", "sealed"), [(lost, lost != "index") for lost in LOST] + [
    ("queues", False), ("queues and index", False)])
def test_every_bit(tmp_path: Path, lost: str, sealed: bool) -> None:
    """Never another topic, and never another message; what is not told has no good neighbour."""
    built = tiny.build(tmp_path / "store", SPECS, append_crc=sealed)
    take_away(built.root, LOST[lost])
    came_back = tried = 0
    for message, bit in every(53, [(stored_message, bit) for stored_message in built.messages
                                   for bit in range(8 * (len(stored_message.record.topic) + 1))],
                              f"bits of topics {lost} {sealed}"):
        name, position = built.place(message.start)
        at = topic_at(message.record, message.raw) - 1 + bit // 8
        path = built.root / name
        whole = path.read_bytes()
        torn = bytearray(whole)
        torn[position + at] ^= 1 << bit % 8
        path.write_bytes(torn)
        salvage = salvaged(built.root)
        path.write_bytes(whole)
        there = salvaging.records(salvage.parts)
        assert all(there[other.start] == other.raw for other in built.messages
                   if other is not message)
        tried += 1
        came_back += there[message.start] == message.raw
        damaged = bytes(torn[position:position + len(message.raw)])
        assert there[message.start] in (message.raw, damaged) or salvage.lost
        if there[message.start] == damaged:
            assert message.record.topic == b"refund" or salvage.wrong_topics, (message.record, bit)
    assert came_back >= tried * 2 // 3


# -- what is not told -----------------------------------------------------------------------------


def torn(tmp_path: Path, number: int, topic: bytes, specs: Sequence[tiny.Spec] = SPECS,
         lost: str = "queues and index") -> tuple[tiny.Tiny, Salvage]:
    built = tiny.build(tmp_path / "store", specs)
    take_away(built.root, LOST[lost])
    set_topic(built, number, topic)
    return built, salvaged(built.root)


def set_topic(built: tiny.Tiny, number: int, topic: bytes) -> None:
    message = built.messages[number]
    name, position = built.place(message.start)
    data = bytearray((built.root / name).read_bytes())
    at = position + topic_at(message.record, message.raw)
    data[at:at + len(topic)] = topic
    (built.root / name).write_bytes(data)


def test_the_only_message_of_a_topic(rmqctl: Run, tmp_path: Path) -> None:
    """Nothing tells its topic: it stays, gets no row, and that is said."""
    built, end = torn(tmp_path, 4, b"re\0und")
    assert (end.actions, end.wrong_topics) == ((), 1)
    assert any("'re\\x00und': original unknown" in note for note in end.notes)
    done = rmqctl("recover", built.root, "--apply", "--yes", *JSON).expect(1)
    assert done.json()["left_damaged"] == ["commitlog"]
    assert "topic that cannot be a folder" in done.err


def test_one_of_which_only_the_index_tells(tmp_path: Path) -> None:
    """One turned bit makes the topic under which the index has its key."""
    built, end = torn(tmp_path, 4, b"sefund", lost="queues")
    action, = end.actions
    assert action.reason == (
        "topic 'sefund': corrected to refund; the index has the message's keys under this topic")
    assert salvaging.records(end.parts)[built.messages[4].start] == built.messages[4].raw


def test_two_that_may_be_each_other(tmp_path: Path) -> None:
    """Two topics of one length lack the same queue offset, and two messages have it."""
    specs = [tiny.Spec(topic, 0, b"body") for topic in ("orders", "bills1") * 4]
    built = tiny.build(tmp_path / "store", specs)
    take_away(built.root, LOST["queues and index"])
    set_topic(built, 2, b"\0" * 6)
    set_topic(built, 3, b"\1" * 6)
    salvage = salvaged(built.root)
    assert (salvage.actions, salvage.wrong_topics) == ((), 2)


def test_what_may_have_lost_its_others(tmp_path: Path) -> None:
    """The messages before it may be of a topic of which just this one is left."""
    specs = [tiny.Spec(topic, 0, b"body %d" % number) for number, topic in enumerate(
        ("refund", "ordert", "orders", "refund", "ordert", "refund"))]
    built = tiny.build(tmp_path / "store", specs)
    take_away(built.root, (*LOST["queues and index"], "config"))
    name, position = built.place(built.messages[1].start)
    data = bytearray((built.root / name).read_bytes())
    at = position + built.messages[1].raw.index(b"body")
    data[at:at + 6] = b"xyzzzy"
    (built.root / name).write_bytes(data)
    there = salvaging.records(salvaged(built.root).parts)
    assert there[built.messages[4].start] == built.messages[4].raw


def test_what_is_left_of_a_topic_counts(tmp_path: Path) -> None:
    """The message that the one queue lacks has taken the other's place."""
    specs = [tiny.Spec(topic, 0, b"body") for topic in ("orders", "bills1") * 3]
    built = tiny.build(tmp_path / "store", specs)
    take_away(built.root, LOST["queues and index"])
    set_topic(built, 2, b"orde\0s")
    set_topic(built, 3, b"orders")
    salvage = salvaged(built.root)
    assert (salvage.actions, salvage.wrong_topics) == ((), 1)


def test_names_that_no_file_system_has(rmqctl: Run, tmp_path: Path) -> None:
    built, _ = torn(tmp_path, 2, b"orde\0s")
    (built.root / "config" / "topics.json").write_text(
        '{"topicConfigTable": {"or\\ud800d": {}, "../../a": {}, "orders": {}}}')
    done = rmqctl("recover", built.root, *JSON).expect(0).json()
    assert "orders/0 has no message with queue offset 1" in next(
        action["reason"] for action in done["actions"] if action["action"] == "mend record")


def test_another_topic_that_is_known_stays(tmp_path: Path) -> None:
    """Without rows and index two such messages may have changed places: it is said."""
    _, end = torn(tmp_path, 5, b"bills1")
    assert (end.actions, end.wrong_topics) == ((), 1)
    assert any("out of order, and orders/0 has no message with queue offset 2 here" in note
               for note in end.notes)


def test_a_damaged_topic_is_no_witness_of_another(tmp_path: Path) -> None:
    """A queue of one message may be that message's damage, whatever it would lack then."""
    built = tiny.build(tmp_path / "store", SPECS)
    take_away(built.root, (*LOST["queues and index"], "config"))
    set_topic(built, 3, b"orde\0s")
    set_topic(built, 7, b"ordert")
    there = salvaging.records(salvaged(built.root).parts)
    for message in (built.messages[3], built.messages[7]):
        assert b"ordert" not in there[message.start] or message is built.messages[7]


def test_the_index_contradicts(tmp_path: Path) -> None:
    """Its keys were damaged too, so the gap alone is not believed."""
    built = tiny.build(tmp_path / "store", SPECS)
    take_away(built.root, LOST["queues"])
    set_topic(built, 5, b"order\0")
    message = built.messages[5]
    name, position = built.place(message.start)
    data = bytearray((built.root / name).read_bytes())
    data[position + message.raw.index(b"UNIQ_KEY\x01") + 9] ^= 1
    (built.root / name).write_bytes(data)
    salvage = salvaged(built.root)
    assert (salvage.actions, salvage.wrong_topics) == ((), 1)
    assert any("the index has other keys there" in note for note in salvage.notes)


def test_a_lone_message_of_a_sound_topic_stays(tmp_path: Path) -> None:
    """A gap of another queue next to it is no proof against what its own key says."""
    specs = [*SPECS[:4], tiny.Spec("ordert", 0, b"alone", {"UNIQ_KEY": "0AFF"}), *SPECS[4:]]
    built = tiny.build(tmp_path / "store", specs)
    take_away(built.root, LOST["queues"])
    set_topic(built, 2, b"orde\0s")  # orders/0 lacks one now
    salvage = salvaged(built.root)
    action, = salvage.actions
    assert action.offset == built.messages[2].start
    assert salvaging.records(salvage.parts)[built.messages[4].start] == built.messages[4].raw


def test_a_source_knows_it(rmqctl: Run, tmp_path: Path) -> None:
    """Where nothing of ours tells, a topic that can be none gives way."""
    replica = tiny.build(tmp_path / "replica", SPECS)
    built, _ = torn(tmp_path, 4, b"re\0und")
    plan: dict[str, Any] = rmqctl("recover", built.root, "--from", replica.root, *JSON).json()
    assert "conflict" not in {action["action"] for action in plan["actions"]}
    copy, = (action for action in plan["actions"] if action["action"] == "copy")
    assert copy["offset"] == built.messages[4].start


def test_a_renamed_folder_of_a_topic_with_one_message_is_no_proof(tmp_path: Path) -> None:
    writer = Writer(Layout(with_index=False))
    for topic in ("many", "many", "t0", "many"):
        writer.put(topic, b"body")
    root = writer.write(tmp_path / "store")
    (root / "consumequeue/t0").rename(root / "consumequeue/t1")
    run("recover", root, "--apply", "--yes").expect(0)
    log, = (root / "commitlog").iterdir()
    assert log.read_bytes().startswith(b"".join(put.raw for put in writer.puts))
    assert (root / "consumequeue/t0/0").is_dir()
