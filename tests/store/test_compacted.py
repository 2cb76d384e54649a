"""Topics whose log files have expired, and whose messages the compaction log keeps."""

from __future__ import annotations

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


@pytest.mark.parametrize("queue_id", [0, 1])
def test_messages_of_the_compaction_log_are_read(expired: Path, golden: GoldenFolder,
                                                 rmqctl: Runner, queue_id: int) -> None:
    queue = ("--queue", str(queue_id))
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
    said = rmqctl("query", "offset", expired, "--topic", TOPIC, "--queue", "0", str(alone[1]),
                  "-o", "jsonl").expect(0).jsonl()
    assert [row["queue_offset"] for row in said] == [alone[1]]


def test_a_whole_log_is_read_as_before(golden: GoldenFolder, rmqctl: Runner) -> None:
    read = rmqctl("read", golden(SET), "--topic", TOPIC, "-o", "jsonl").expect(0)
    assert "compaction" not in read.err
    assert len({(row["queue_id"], row["queue_offset"]) for row in read.jsonl()}) == len(
        read.jsonl())
