"""tiered ls: queues, segments and index files; files and metadata side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmqctl.ext.tiered.read import ls
from rmqctl.ext.tiered.tier import Tier
from tests.conftest import GoldenFolder, Runner
from tests.tiered import tiers
from tests.tiered.tiers import T0, segment_name
from tests.tiered.verifying import OTHER, Small

NEVER = (1 << 63) - 1


def states(tier: Small) -> dict[tuple[str, int], str]:
    """(type, base offset) -> state of the segments of the first queue."""
    with Tier.open(str(tier.root)) as opened:
        return {(row["type"], row["base_offset"]): row["state"]
                for row in ls.segments(opened, topic=tiers.TOPIC)}


@pytest.mark.parametrize("state", ["store", "store-live"])
def test_as_the_engine_has_it(state: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    folder = golden("5.3.3/tiered")
    name = "expect.json" if state == "store" else "expect-live.json"
    expect = json.loads((folder / name).read_text())["extra"]["flatFiles"]
    root = folder / state
    answer = rmqctl("tiered", "ls", root, "-o", "json").expect(0).json()
    assert len(answer["queues"]) == len(expect)
    by_queue = {(row["topic"], row["queue_id"]): row for row in answer["queues"]}
    for entry in expect:
        row = by_queue[entry["topic"], entry["queueId"]]
        assert (row["commit_log_start"], row["commit_log_end"]) == (
            entry["commitLogMin"], entry["commitLogCommit"])
        assert (row["min_offset"], row["commit_offset"]) == (entry["cqMin"], entry["cqCommit"])
        assert row["commit_log_segments"] == len(entry["commitLogSegments"])
        assert row["consume_queue_segments"] == len(entry["consumeQueueSegments"])
        assert row["state"] == "ok"
        assert row["bytes"] == row["metadata_bytes"]
    rows = rmqctl("tiered", "ls", root, "--segments", "-o", "json").expect(0).json()["segments"]
    for entry in expect:
        for kind, name in (("COMMIT_LOG", "commitLogSegments"),
                           ("CONSUME_QUEUE", "consumeQueueSegments")):
            mine = [row for row in rows if (row["topic"], row["queue_id"], row["type"]) == (
                entry["topic"], entry["queueId"], kind)]
            assert [(row["base_offset"], row["size"], row["begin_timestamp"],
                     row["end_timestamp"], Path(row["path"]).name) for row in mine] == [
                (segment["baseOffset"], segment["size"], segment["minTimestamp"],
                 segment["maxTimestamp"],                  segment["fileName"])
                         for segment in entry[name]]


def test_index_files(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/tiered/store-live")
    index_files = rmqctl("tiered", "ls", root, "-o", "json").expect(0).json()["index_files"]
    assert [row["status"] for row in index_files] == ["UPLOADED"] * 3 + ["UNSEALED"]
    assert [row["form"] for row in index_files] == ["compacted"] * 3 + ["open"]
    assert index_files[-1] | {"path": ""} == {
        "broker": None, "status": "UNSEALED", "form": "open", "begin_timestamp": 1795233794638,
        "end_timestamp": 1795233897264, "items": 73, "used_slots": 43, "hash_slots": 64,
        "size": 6300, "base_offset": None, "generation": "5.2+", "error": None, "path": ""}


def test_states_of_segments(tier: Small) -> None:
    queue = tier.queues[0]
    second = queue.logs[1][0]
    assert set(states(tier).values()) == {"ok"}
    path = queue.log_path(tier.root)
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    assert states(tier)["COMMIT_LOG", 0] == "gap"
    path.write_bytes(data + b"12345")
    assert states(tier)["COMMIT_LOG", 0] == "overlap"
    path.write_bytes(data)
    last = queue.log_path(tier.root, 1)
    content = last.read_bytes()
    last.write_bytes(content[:-1])
    assert states(tier)["COMMIT_LOG", second] == "short"
    last.write_bytes(content + b"1")
    assert states(tier)["COMMIT_LOG", second] == "stale-metadata"
    last.write_bytes(content)
    extra = path.with_name(segment_name(second + len(content)))
    extra.write_bytes(b"")
    assert states(tier)["COMMIT_LOG", second + len(content)] == "empty"
    extra.write_bytes(b"abc")
    assert states(tier)["COMMIT_LOG", second + len(content)] == "no-metadata"
    extra.rename(extra.with_name("00000000" + extra.name[8:]))
    assert states(tier)["COMMIT_LOG", second + len(content)] == "bad-name"
    last.unlink()
    assert states(tier)["COMMIT_LOG", second] == "no-file"


def test_metadata_of_queues_that_have_no_folder(tier: Small, rmqctl: Runner) -> None:
    value = json.loads(tier.metadata_path.read_text())
    value["commitLogFileSegmentTable"]["broker-a/gone/4"] = {"0": {
        "baseOffset": 0, "type": 0, "size": 5, "beginTimestamp": NEVER}}
    tier.metadata_path.write_text(json.dumps(value))
    rows = rmqctl("tiered", "ls", tier.root, "--segments", "-o", "json").expect(0).json()
    gone = [row for row in rows["segments"] if row["topic"] == "gone"]
    assert [(row["queue_id"], row["state"], row["size"], row["metadata_size"],
             row["begin_timestamp"]) for row in gone] == [(4, "no-file", None, 5, None)]


def test_filters_and_formats(tier: Small, rmqctl: Runner) -> None:
    rows = rmqctl("tiered", "ls", tier.home, "--topic", OTHER, "-o", "jsonl").expect(0).jsonl()
    assert [(row["topic"], row["min_offset"], row["commit_offset"])
            for row in rows] == [(OTHER, 40, 42)]
    rmqctl("tiered", "ls", tier.home, "--broker", "nobody", "-o", "json").expect(2)
    text = rmqctl("tiered", "ls", tier.home, "-o", "csv").expect(0).out
    assert text.splitlines()[0] == ",".join(ls.QUEUE_COLUMNS)
    text = rmqctl("tiered", "ls", tier.home, "--segments", "-o", "tsv").expect(0).out
    assert text.splitlines()[0] == "\t".join(ls.SEGMENT_COLUMNS)
    shown = rmqctl("tiered", "ls", tier.home).expect(0).out
    assert "Index files" in shown


def test_what_cannot_be_read_is_said(tier: Small, rmqctl: Runner) -> None:
    tier.index_path.write_bytes(b"no index")
    tier.local_path.write_bytes(b"no index either")
    tier.metadata_path.write_text("{")
    result = rmqctl("tiered", "ls", tier.home, "-o", "json").expect(0)
    assert "tieredStoreMetadata.json" in result.err
    errors = [row["error"] for row in result.json()["index_files"] if row["error"]]
    assert len(errors) == 2
    tier.metadata_path.unlink()
    result = rmqctl("tiered", "ls", tier.root).expect(0)
    assert "no tieredStoreMetadata.json" in result.err
    assert T0 > 0


def test_refusals(tmp_path: Path, rmqctl: Runner) -> None:
    rmqctl("tiered", "ls", tmp_path / "none").expect(3)
    rmqctl("tiered", "ls", tmp_path).expect(3)
