"""tiered dump, and dump of a tier's files: every form, damage, what a copy is."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

from rmqctl.formats import kinds
from tests.conftest import GoldenFolder, Runner
from tests.tiered.tiers import T0, Index, Queue
from tests.tiered.verifying import Small


def test_every_golden_file(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/tiered/store-live")
    files = [path for path in sorted((root / "tieredstore").rglob("*")) if path.is_file()]
    files += [path for path in (root / "tiered_index_file").iterdir() if path.is_file()]
    files.append(root / "config/tieredStoreMetadata.json")
    units = messages = 0
    for path in files:
        rows = rmqctl("tiered", "dump", path, "-o", "json").expect(0).json()
        assert rows == rmqctl("dump", path, "-o", "json").expect(0).json()
        assert not [row for row in rows if "error" in row]
        kinds_found = {row["type"] for row in rows}
        assert kinds_found <= {"message", "unit", "header", "slot", "item", "empty", "metadata",
                               "topic", "queue", "segment"}
        units += sum(row["type"] == "unit" for row in rows)
        messages += sum(row["type"] == "message" for row in rows)
    assert units == messages == 300


def test_units_have_their_queue_offsets(golden: GoldenFolder, rmqctl: Runner) -> None:
    folder = golden("5.3.3/tiered")
    expect = json.loads((folder / "expect.json").read_text())["extra"]["flatFiles"]
    for entry in expect:
        answer = []
        for segment in entry["consumeQueueSegments"]:
            path, = (folder / "store/tieredstore").glob(
                f"*/*/{entry['topic']}/{entry['queueId']}/CONSUME_QUEUE/{segment['fileName']}")
            answer += rmqctl("tiered", "dump", path, "-o", "json").json()
        assert [[row["queue_offset"], row["commit_log_offset"], row["size"], row["tags_code"]]
                for row in answer] == [message[:4] for message in entry["messages"]]


def test_items_of_both_forms(tmp_path: Path, rmqctl: Runner) -> None:
    queue, index = Queue(), Index(T0 + 2500, slots=9, max_items=30)
    for number in range(8):
        message = queue.put(KEYS=f"k{number % 3}")
        index.add(message, f"k{number % 3}")
    for name, raw, form in (("a", index.compacted(), "compacted"), ("b", index.open_form(),
                                                                    "open")):
        path = tmp_path / name
        path.write_bytes(raw)
        result = rmqctl("tiered", "dump", path, "-o", "json").expect(0)
        assert form in result.err
        rows = [row for row in result.json() if row["type"] == "item"]
        assert sorted((row["key_hash"], row["commit_log_offset"], row["size"], row["time_diff"])
                      for row in rows) == sorted((item[0], *item[3:]) for item in index.items)
        for row in rows:
            assert row["slot"] == row["key_hash"] % 9
            assert row["item_time"] == T0 + 2500 + 1000 * row["time_diff"]
        fourth = rmqctl("tiered", "dump", path, "--from", "3", "--count", "1", "-o", "json").json()
        assert fourth == rows[3:4]
        there = rmqctl("tiered", "dump", path, "--at", str(rows[2]["offset"]), "-o", "json").json()
        assert there == rows[2:3]


def test_codas(tmp_path: Path, rmqctl: Runner) -> None:
    queue = Queue()
    queue.put(b"one")
    queue.roll_log(coda=True)
    queue.write(tmp_path)
    path = queue.log_path(tmp_path)
    rows = rmqctl("tiered", "dump", path, "-o", "json").expect(0).json()
    assert [row["type"] for row in rows] == ["message", "coda"]
    assert rows[1]["max_store_timestamp"] == T0
    assert rows[1]["magic"] == "cbd43194"
    fields = rmqctl("tiered", "dump", path, "--hex", "-o", "json").json()[1]["fields"]
    assert [attribute["name"] for attribute in fields] == ["size", "magic", "max_store_timestamp"]


def test_metadata_entries(tier: Small, rmqctl: Runner) -> None:
    rows = rmqctl("tiered", "dump", tier.metadata_path, "-o", "json").expect(0).json()
    count = sum(len(queue.logs) + len(queue.units) for queue in tier.queues) + 1
    assert sum(row["type"] == "segment" for row in rows) == count
    assert [row["topic"] for row in rows if row["type"] == "topic"] == ["orders", "帐单"]
    value = json.loads(tier.metadata_path.read_text())
    value["topicMetadataTable"]["orders"]["topicId"] = "x"
    tier.metadata_path.write_text(json.dumps(value))
    rows = rmqctl("tiered", "dump", tier.metadata_path, "-o", "json").expect(1).json()
    assert rows[-1]["error"]["field"] == "topicMetadataTable.orders"


def test_metadata_of_5_1_0(tmp_path: Path, rmqctl: Runner) -> None:
    path = tmp_path / "tieredStoreMetadata.json"
    path.write_text(
        '{"commitLogFileSegmentTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:'
        '{0:{"baseOffset":0,"beginTimestamp":5,"createTimestamp":6,"endTimestamp":7,"path":"x",'
        '"queue":{"brokerName":"broker-a","queueId":0,"topic":"orders"},"size":91,"status":1,'
        '"type":0}}},"maxTopicId":2,"queueMetadataTable":{},"topicMetadataTable":{"orders":'
        '{"reserveTime":-1,"status":0,"topic":"orders","topicId":1}}}')
    rows = rmqctl("tiered", "dump", path, "-o", "json").expect(0).json()
    assert [(row["path"], row["base_offset"], row["size"], row["status"]) for row in rows
            if row["type"] == "segment"] == [("broker-a/orders/0", 0, 91, 1)]


def test_damage_is_reported_and_the_rest_shown(tier: Small, rmqctl: Runner) -> None:
    path = tier.queues[0].log_path(tier.root)
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    rows = rmqctl("tiered", "dump", path, "-o", "json").expect(1).json()
    assert [row["type"] for row in rows] == ["damaged", "message", "message", "message"]
    units = tier.queues[0].units_path(tier.root)
    units.write_bytes(units.read_bytes() + b"\1" * 3)
    rows = rmqctl("tiered", "dump", units, "-o", "json").expect(1).json()
    assert [row["type"] for row in rows] == ["unit"] * 5 + ["damaged"]
    data = bytearray(tier.index_path.read_bytes())
    struct.pack_into(">i", data, 84, -7)
    tier.index_path.write_bytes(data)
    assert rmqctl("tiered", "dump", tier.index_path, "-o", "json").expect(1)


def test_copies_are_known_by_content(tier: Small, tmp_path: Path, rmqctl: Runner) -> None:
    for path, type_ in ((tier.queues[0].log_path(tier.root), "message"), (tier.index_path, "item"),
                        (tier.local_path, "item"), (tier.queues[0].units_path(tier.root), "unit"),
                        (tier.metadata_path, "segment")):
        copy = tmp_path / "evidence"
        copy.write_bytes(path.read_bytes())
        rows = rmqctl("tiered", "dump", copy, "-o", "json").expect(0).json()
        assert type_ in {row["type"] for row in rows}


def test_refusals(tier: Small, tmp_path: Path, rmqctl: Runner) -> None:
    other = tmp_path / "notes"
    other.write_text("hello")
    assert "--kind" in rmqctl("tiered", "dump", other).expect(3).err
    rmqctl("tiered", "dump", other, "--kind", "index").expect(1)
    rmqctl("tiered", "dump", other, "--kind", "nonsense").expect(2)
    rmqctl("tiered", "dump", tmp_path / "none").expect(5)
    rmqctl("tiered", "dump", tier.root).expect(5)


def test_paths_tell_the_kind() -> None:
    segment = "cfcd208400000000000000000000"
    for folder, kind in (("COMMIT_LOG", "tiered_commitlog"), ("INDEX", "tiered_index"),
                         ("CONSUME_QUEUE", "tiered_consumequeue"), ("other", None)):
        assert kinds.from_path(["tier", "topic", "0", folder, segment]) == kind
    assert kinds.from_path(["tiered_index_file", "1700000000000"]) == "tiered_index"
    assert kinds.from_path(["tiered_index_file", "compacting", "17"]) == "tiered_index"
    assert kinds.from_path(["config", "tieredStoreMetadata.json.bak"]) == "tiered_metadata"
    assert kinds.base_offset("06997f0400000000000000000762") == 762


def test_any_bytes(tier: Small, rmqctl: Runner, seed: int) -> None:
    chance = random.Random(seed)
    for path in (tier.queues[0].log_path(tier.root), tier.index_path, tier.local_path,
                 tier.queues[0].units_path(tier.root), tier.metadata_path):
        clean = path.read_bytes()
        for _ in range(8):
            raw = bytearray(clean)
            for _ in range(chance.randrange(1, 5)):
                at = chance.randrange(len(raw))
                raw[at:at + chance.randrange(1, 9)] = chance.randbytes(chance.randrange(0, 9))
            path.write_bytes(raw)
            rmqctl("tiered", "dump", path, "--hex", "-o", "jsonl").expect(0, 1, 3).jsonl()
