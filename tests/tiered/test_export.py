"""``export`` of a tier: the messages that its consume queues point to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets
from tests.tiered.test_read_made import flip, rolled
from tests.tiered.tiers import TOPIC, Queue

FIELDS = "topic,queue_id,queue_offset,physical_offset,msg_id,keys,tags,body,crc_ok"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("state", golden_sets.TIERS)
def test_an_export_has_what_read_prints(state: str, golden: GoldenFolder, rmqctl: Runner,
                                        tmp_path: Path) -> None:
    root = str(golden(state))
    read = rmqctl("read", root, "-o", "jsonl", "--fields", FIELDS)
    done = rmqctl("export", root, "--out", str(tmp_path / "all.jsonl"), "--fields", FIELDS)
    assert done.code == read.code == 0, done.err
    expected = [json.loads(line) for line in read.out.splitlines()]
    assert expected
    assert lines(tmp_path / "all.jsonl") == expected
    # One topic, at most five messages, on standard output.
    topic = expected[0]["topic"]
    some = rmqctl("export", root, "--out", "-", "--topic", topic, "--limit", "5", "--fields",
                  FIELDS)
    assert [json.loads(line) for line in some.out.splitlines()] == [
        row for row in expected if row["topic"] == topic][:5]


@pytest.mark.parametrize("codas", [False, True])
def test_codas_are_no_damage(codas: bool, rmqctl: Runner, tmp_path: Path) -> None:
    rolled(codas).write(tmp_path / "tier")
    done = rmqctl("export", str(tmp_path / "tier"), "--out", str(tmp_path / "out.jsonl"),
                  "--provenance")
    assert done.code == 0, done.err
    rows = lines(tmp_path / "out.jsonl")
    assert [row["queue_offset"] for row in rows] == list(range(15))
    # The origin of a message is its queue's commit log and the offset in it, across segments.
    for row in rows:
        segments = sorted((tmp_path / "tier" / row["file"]).iterdir(),
                          key=lambda path: path.name[8:])
        data = b"".join(path.read_bytes() for path in segments)
        size = int.from_bytes(data[row["position"]:][:4], "big")
        assert size == row["total_size"]
        assert row["position"] == row["physical_offset"]


def test_damage_is_reported_and_the_rest_exported(rmqctl: Runner, tmp_path: Path) -> None:
    queue = rolled(codas=False)
    queue.write(tmp_path / "tier")
    log, = (tmp_path / "tier").glob(f"*/*/{TOPIC}/0/COMMIT_LOG")
    segment = sorted(log.iterdir(), key=lambda path: path.name[8:])[1]
    flip(segment, 0)  # the size of the first record
    done = rmqctl("export", str(tmp_path / "tier"), "--out", str(tmp_path / "out.jsonl"))
    assert done.code == 1
    assert [row["queue_offset"] for row in lines(tmp_path / "out.jsonl")] == [
        number for number in range(15) if number != 5]
    assert f"{TOPIC}/0: queue offset 5: " in done.err.replace("\n", " ")
    # A folder has the same messages, and its manifest names the damage.
    done = rmqctl("export", str(tmp_path / "tier"), "--out", str(tmp_path / "folder"),
                  "--format", "jsonl", "--partition-by", "topic")
    assert done.code == 1
    files = [*(tmp_path / "folder").glob("*/*.json")]
    assert sorted(row["queue_offset"] for file in files for row in lines(file)) == [
        number for number in range(15) if number != 5]


def test_messages_without_a_unit_are_left_out(rmqctl: Runner, tmp_path: Path) -> None:
    """After a failed upload a broker writes messages again; units point to the later ones."""
    queue = Queue()
    queue.put(b"first")
    orphan = queue.put(b"again")
    queue.units[-1][1][-20:] = b""
    queue.records.remove(orphan)
    queue.put(b"again")
    queue.write(tmp_path / "tier")
    done = rmqctl("export", str(tmp_path / "tier"), "--out", str(tmp_path / "out.jsonl"))
    assert [row["body"] for row in lines(tmp_path / "out.jsonl")] == ["first", "again"], done.err
    assert done.code == 0


def test_a_segment_that_is_missing(rmqctl: Runner, tmp_path: Path) -> None:
    rolled(codas=False).write(tmp_path / "tier")
    log, = (tmp_path / "tier").glob(f"*/*/{TOPIC}/0/COMMIT_LOG")
    sorted(log.iterdir(), key=lambda path: path.name[8:])[1].unlink()
    done = rmqctl("export", str(tmp_path / "tier"), "--out", str(tmp_path / "out.jsonl"))
    assert done.code == 1
    assert len(lines(tmp_path / "out.jsonl")) == 10
    assert "(in no segment)" in done.err.replace("\n", " ")


def zero(path: Path, start: int, end: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[start:end] = bytes(len(data[start:end]))
    path.write_bytes(data)


LOSSES = {
    "zeroed end": lambda queue, root: zero(queue.log_path(root, 2), -200),
    "last record zeroed": lambda queue, root: zero(
        queue.log_path(root, 2), queue.records[14].physical_offset - queue.logs[2][0]),
    "cut end": lambda queue, root: os.truncate(
        queue.log_path(root, 2), queue.log_path(root, 2).stat().st_size - 200),
    "last segment": lambda queue, root: queue.log_path(root, 2).unlink(),
    "all segments": lambda queue, root: [queue.log_path(root, n).unlink() for n in range(3)],
    "units": lambda queue, root: queue.units_path(root, 1).unlink(),
    "a unit": lambda queue, root: zero(queue.units_path(root, 1), 0, 20),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_an_export_is_as_complete_as_read(loss: str, rmqctl: Runner, tmp_path: Path) -> None:
    """What ``read`` reports as lost, an export must not hide."""
    queue = rolled(codas=False)
    queue.write(tmp_path / "tier")
    LOSSES[loss](queue, tmp_path / "tier")
    read = rmqctl("read", tmp_path / "tier", "-o", "jsonl", "--fields", FIELDS)
    done = rmqctl("export", tmp_path / "tier", "--out", "-", "--fields", FIELDS)
    assert read.code == done.code == 1
    assert done.out == read.out
    assert "queue offset" in read.err
    assert "queue offset" in done.err
    assert " 0 bytes" not in done.err


def test_a_place_inside_the_tier_is_refused(rmqctl: Runner, tmp_path: Path) -> None:
    rolled(codas=False).write(tmp_path / "tier")
    done = rmqctl("export", str(tmp_path / "tier"), "--out", str(tmp_path / "tier" / "x.jsonl"))
    assert done.code == 2
    assert not (tmp_path / "tier" / "x.jsonl").exists()
