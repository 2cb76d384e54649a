"""Topics whose log files have expired, and whose messages the compaction log keeps."""

from __future__ import annotations

import hashlib
import json
import struct
from base64 import b64decode
from pathlib import Path

import pytest

from rmqctl.store import Store
from rmqctl.store.queue.compaction import CompactionQueue
from tests.conftest import GoldenFolder, Runner

SET = "5.3.3/compaction/store"
TOPIC = "TP_user_Topic"


@pytest.fixture
def expired(golden_copy: GoldenFolder) -> Path:
    root = golden_copy(SET)
    for file in sorted((root / "commitlog").iterdir())[:4]:
        file.unlink()
    return root


def kept(root: Path, queue_id: int) -> list[int]:
    """The queue offsets in the compaction log."""
    with Store.open(root) as store:
        queue = CompactionQueue.open(store, TOPIC, queue_id)
        assert queue is not None
        with queue:
            return [unit.msg_base_offset for units in queue.files for unit in units]


def offsets(rmqctl: Runner, root: Path, *more: str) -> list[int]:
    read = rmqctl("read", root, "--topic", TOPIC, "-o", "jsonl", *more).expect(0, 1)
    return [row["queue_offset"] for row in read.jsonl()]


def served(golden: GoldenFolder) -> dict[int, list[tuple[int, str]]]:
    """What the engine gave of each queue: (queue offset, SHA-1 of the body)."""
    expected = json.loads((golden(SET).parent / "expect.json").read_text())
    return {queue["queueId"]: [(row[0], row[3]) for row in queue["messages"]]
            for queue in expected["queues"] if queue["topic"] == TOPIC}


def set_policy(root: Path, attributes: dict[str, str]) -> None:
    (root / "config").mkdir(exist_ok=True)
    (root / "config/topics.json").write_text(json.dumps({"topicConfigTable": {TOPIC: {
        "attributes": attributes, "perm": 6, "readQueueNums": 2, "topicName": TOPIC,
        "writeQueueNums": 2}}}))


@pytest.mark.parametrize("gone", [0, 4])
@pytest.mark.parametrize("view", ["auto", "broker"])
def test_read_is_what_the_engine_served(golden_copy: GoldenFolder, golden: GoldenFolder,
                                        rmqctl: Runner, view: str, gone: int) -> None:
    root = golden_copy(SET)
    for file in sorted((root / "commitlog").iterdir())[:gone]:
        file.unlink()
    for queue_id, wanted in served(golden).items():
        read = rmqctl("read", root, "--topic", TOPIC, "--queue", str(queue_id), "--view", view,
                      "-o", "jsonl", "--body", "base64").expect(0)
        assert [(row["queue_offset"], hashlib.sha1(b64decode(row["body"])).hexdigest())
                for row in read.jsonl()] == wanted
        assert "compaction log" in read.err


def test_export_and_sql_are_what_the_engine_served(golden: GoldenFolder, rmqctl: Runner) -> None:
    root, wanted = golden(SET), served(golden)
    counts = {queue_id: len(rows) for queue_id, rows in wanted.items()}
    rows = rmqctl("export", root, "--topic", TOPIC, "--out", "-", "--fields",
                  "queue_id,queue_offset").expect(0).jsonl()
    assert {queue_id: [row["queue_offset"] for row in rows if row["queue_id"] == queue_id]
            for queue_id in counts} == {
        queue_id: [offset for offset, _ in rows] for queue_id, rows in wanted.items()}
    pytest.importorskip("duckdb")
    query = f"SELECT queue_id, count(*) n FROM messages WHERE topic = '{TOPIC}' GROUP BY 1"
    result = rmqctl("sql", root, query, "-o", "jsonl").expect(0)
    assert {row["queue_id"]: row["n"] for row in result.jsonl()} == counts
    assert f"{TOPIC}: read from the compaction log" in result.err


def test_the_view_of_the_disk_has_the_commitlog(golden: GoldenFolder, rmqctl: Runner) -> None:
    root, disk = golden(SET), ("--view", "disk")
    count = 174
    assert len(offsets(rmqctl, root, *disk)) == count
    assert len(rmqctl("export", root, "--topic", TOPIC, "--out", "-", *disk).expect(
        0).jsonl()) == count
    pytest.importorskip("duckdb")
    result = rmqctl("sql", root, f"SELECT count(*) n FROM messages WHERE topic = '{TOPIC}'", *disk,
                    "-o", "jsonl").expect(0)
    assert result.jsonl() == [{"n": count}]
    assert "compaction" not in result.err


def test_all_messages_are_the_logs(golden: GoldenFolder, rmqctl: Runner) -> None:
    """Without a topic the log is read, and exported, as it is."""
    for words in (("read", golden(SET), "-o", "jsonl"), ("export", golden(SET), "--out", "-")):
        assert len(rmqctl(*words).expect(0).jsonl()) == 200


@pytest.mark.parametrize(("attributes", "compacted"), [
    ({"cleanup.policy": "COMPACTION"}, True), ({"cleanup.policy": "DELETE"}, False), ({}, False)])
def test_the_policy_decides(golden_copy: GoldenFolder, rmqctl: Runner,
                            attributes: dict[str, str], *, compacted: bool) -> None:
    root = golden_copy(SET)
    set_policy(root, attributes)
    assert (len(offsets(rmqctl, root)) == 52) == compacted
    pull = rmqctl("sql", root, f"SELECT count(*) n FROM messages WHERE topic = '{TOPIC}'", "-o",
                  "jsonl").expect(0)
    assert pull.jsonl() == [{"n": 52 if compacted else 174}]


def test_places_of_the_commitlog_are_read_there(golden: GoldenFolder, rmqctl: Runner) -> None:
    assert len(offsets(rmqctl, golden(SET), "--from-phy", "0")) == 174


@pytest.mark.parametrize("queue_id", [0, 1])
def test_messages_of_the_compaction_log_are_read(expired: Path, golden: GoldenFolder,
                                                 rmqctl: Runner, queue_id: int) -> None:
    queue = ("--queue", str(queue_id), "--view", "disk")
    logged = offsets(rmqctl, expired, *queue, "--from-phy", "0")
    alone = [offset for offset in kept(expired, queue_id) if offset < logged[0]]
    assert alone
    assert offsets(rmqctl, expired, *queue) == [*alone, *logged]
    # What the compaction log has is the very message that the log had.
    before = rmqctl("read", golden(SET), "--topic", TOPIC, *queue, "-o", "jsonl").expect(0).jsonl()
    after = rmqctl("read", expired, "--topic", TOPIC, *queue, "-o", "jsonl").jsonl()
    same = {row["queue_offset"]: (row["body"], row["unique_key"]) for row in before}
    assert all(same[row["queue_offset"]] == (row["body"], row["unique_key"]) for row in after)


def test_what_is_asked_for_holds_there_too(expired: Path, rmqctl: Runner) -> None:
    alone = kept(expired, 0)
    assert offsets(rmqctl, expired, "--queue", "0", "--offset", str(alone[1]),
                   "--limit", "2") == alone[1:3]
    rows = rmqctl("query", "offset", expired, "--topic", TOPIC, "--queue", "0", str(alone[1]),
                  "-o", "jsonl").expect(0).jsonl()
    assert [row["queue_offset"] for row in rows] == [alone[1]]


@pytest.mark.parametrize("places", [(0, 366), (28,), (4,)])
def test_a_damaged_compaction_log(golden_copy: GoldenFolder, rmqctl: Runner,
                                  places: tuple[int, ...]) -> None:
    """A message that is not there is left out, and the rest is read."""
    root = golden_copy(SET)
    file = min((root / "compaction/compactionLog" / TOPIC / "0").iterdir())
    data = bytearray(file.read_bytes())
    for place in places:
        data[place] ^= 0xFF
    file.write_bytes(data)
    left = 31 - len(places)
    read = rmqctl("read", root, "--topic", TOPIC, "--queue", "0", "-o", "jsonl").expect(1)
    assert len(read.jsonl()) == left
    out = rmqctl("export", root, "--topic", TOPIC, "--queue", "0", "--out", "-").expect(1)
    assert len(out.jsonl()) == left
    result = rmqctl("sql", root, "SELECT count(*) n FROM messages WHERE queue_id = 0 AND topic = "
                    f"'{TOPIC}'", "-o", "jsonl").expect(1)
    assert result.jsonl() == [{"n": left}]


@pytest.mark.parametrize(("count", "code"), [("1", 0), ("2", 1)])
@pytest.mark.parametrize("place", ["compaction/compactionLog/TP_user_Topic/0", "commitlog"])
def test_a_limited_read_tells_what_it_left_out(golden_copy: GoldenFolder, rmqctl: Runner,
                                               place: str, count: str, code: int) -> None:
    """Damage before the last message that is shown, and none behind it."""
    root = golden_copy(SET)
    view = ("--view", "disk" if place == "commitlog" else "broker")
    words = ("--topic", TOPIC, "--queue", "0", *view, "-o", "jsonl")
    rows = rmqctl("read", root, *words).expect(0).jsonl()
    file = min((root / place).iterdir())
    data = bytearray(file.read_bytes())
    data[rows[1]["physical_offset"] + 4] ^= 0xFF  # the magic of the second message
    file.write_bytes(data)
    read = rmqctl("read", root, *words, "--limit", count).expect(code)
    assert [row["queue_offset"] for row in read.jsonl()] == [
        row["queue_offset"] for row in (rows[0], rows[2])[:int(count)]]
    assert ("points to no message" in read.err) is bool(code)


def test_entries_that_lead_back_and_forth(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    """A hostile index ends nothing: what it says twice is given once by export."""
    root = golden_copy(SET)
    index = min((root / "compaction/compactionCq" / TOPIC / "0").iterdir())
    data = bytearray(index.read_bytes())
    data[46:54] = struct.pack(">q", 0)  # the second entry leads to the first message
    data[100:104] = struct.pack(">i", 1 << 30)  # the third is of a size that none has
    index.write_bytes(data)
    for words in (("read",), ("export", "--out", "-")):
        rmqctl(words[0], root, "--topic", TOPIC, "--queue", "0", *words[1:]).expect(1)
