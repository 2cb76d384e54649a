"""`recover` counts lost messages of which only groups' positions tell, as `preflight` does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.formats.local import checkpoint
from tests.adversary.writer import Layout, Writer
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.cli import Result

Run = Callable[..., Result]
JSON = ("-o", "json")



def reached(root: Path, beyond: int) -> int:
    """Tears the last message, takes away what is derived, and has a group stand `beyond` messages
    behind it; the queue offset of the message.
    """
    built = tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128)
    last = built.messages[-1].record
    file = built.files("commitlog")[-1]
    place = last.physical_offset - int(file.rpartition("/")[2])
    damage.write(root, file, place + 40, bytes(last.total_size - 40))
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    (root / "abort").touch()
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": {
        f"{last.topic.decode()}@billing": {str(last.queue_id): last.queue_offset + 1 + beyond}}}))
    return last.queue_offset


@pytest.mark.parametrize("beyond", [0, 2])
def test_a_lost_message_that_only_a_position_tells_of(tmp_path: Path, rmqctl: Run,
                                                      beyond: int) -> None:
    root = tmp_path / "store"
    offset = reached(root, beyond)
    predicted = rmqctl("preflight", root, *JSON).expect(1).json()
    assert predicted["messages_already_lost"] == 1 + beyond
    planned = rmqctl("recover", root, *JSON).expect(1).json()
    assert [(message["topic"], message["queue_id"], message["queue_offset"], message["known_by"])
            for message in planned["messages_lost"]] == [
        ("orders", 1, offset + number, "position") for number in range(1 + beyond)]
    assert planned["impact"]["messages"] == 1 + beyond
    rmqctl("recover", root, "--apply", *JSON).expect(1)
    assert rmqctl("recover", root, *JSON).expect(0).json()["messages_lost"] == []


def test_moving_the_offset_keeps_the_number(tmp_path: Path, rmqctl: Run) -> None:
    """The offset is all that tells of the lost messages."""
    root = tmp_path / "store"
    last = tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128).messages[-1].record
    (root / "abort").touch()
    (root / "config/consumerOffset.json.bak").unlink(missing_ok=True)
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": {
        f"{last.topic.decode()}@billing": {str(last.queue_id): last.queue_offset + 3}}}))
    assert rmqctl("doctor", root, *JSON).expect(1).json()["already_lost"] == 2
    rmqctl("offsets", "reset", root, "--group", "billing", "--beyond-end", "--apply",
           "--yes").expect(0)
    answer = rmqctl("doctor", root, *JSON).expect(0, 1).json()
    assert (answer["already_lost"], answer["offsets_beyond_end"]) == (2, [])
    # Undone, the offset tells of them again, and they count once.
    rmqctl("undo", root, "--yes").expect(0)
    assert rmqctl("doctor", root, *JSON).expect(1).json()["already_lost"] == 2


def test_a_position_at_the_end_tells_of_no_loss(tmp_path: Path, rmqctl: Run) -> None:
    root = tmp_path / "store"
    reached(root, -1)
    (root / "checkpoint").unlink()
    assert rmqctl("recover", root, *JSON).expect(0).json()["messages_lost"] == []


@pytest.mark.parametrize(("how", "known_by"), [
    (("recover",), ["checkpoint"]), (("recover", "--only", "checkpoint"), ["checkpoint"]),
    (("recover", "--strategy", "broker"), []), (("truncate", "--to-phy", "{end}"), [])])
def test_a_lost_message_that_only_the_checkpoint_tells_of(
        tmp_path: Path, rmqctl: Run, how: tuple[str, ...], known_by: list[str]) -> None:
    """It counts as one before a repair and after it, whatever becomes of the checkpoint."""
    root = tmp_path / "store"
    reached(root, -1)
    assert rmqctl("preflight", root, *JSON).expect(1).json()["messages_already_lost"] == 1
    assert rmqctl("doctor", root, *JSON).expect(1).json()["already_lost"] == 1
    end = rmqctl("preflight", root, *JSON).json()["truncate_to"]
    command, *options = (word.format(end=end) for word in how)
    plan = rmqctl(command, root, *options, *JSON).expect(0, 1).json()
    assert [message["known_by"] for message in plan["messages_lost"]] == known_by
    rmqctl(command, root, *options, "--apply", "--yes", *JSON).expect(0, 1)
    assert rmqctl("doctor", root, *JSON).expect(0, 1).json()["already_lost"] == 1
    rmqctl("undo", root, "--yes").expect(0)
    assert rmqctl("doctor", root, *JSON).expect(1).json()["already_lost"] == 1


@pytest.mark.parametrize(("lost_behind", "how"), [
    (0, ("recover",)), (3, ("recover",)), (3, ("truncate", "--to-phy", "{end}"))])
def test_a_damaged_record_and_what_only_the_checkpoint_tells_of(
        tmp_path: Path, rmqctl: Run, lost_behind: int, how: tuple[str, ...]) -> None:
    """A damaged last record is the message that the checkpoint knows. Behind intact ones it is
    another, which stays counted where a start would cut these off, too.
    """
    writer = Writer(Layout(with_queues=False, with_index=False, abort=True))
    for number in range(20 + lost_behind):
        writer.put("orders", b"message " * 9, queue_id=number % 4 if number < 20 else 0)
    for place in (3, 30, 60):
        writer.flip(writer.puts[19].body_at + place, place % 7)
    if lost_behind:
        writer.tear(writer.puts[-1].physical)
    root = writer.write(tmp_path / "store")
    lost = 1 + bool(lost_behind)
    assert rmqctl("preflight", root, *JSON).expect(1).json()["messages_already_lost"] == lost
    assert rmqctl("doctor", root, *JSON).expect(1).json()["already_lost"] == lost
    command, *options = (word.format(end=writer.puts[-1].physical) for word in how)
    plan = rmqctl(command, root, *options, *JSON).expect(0, 1).json()
    if command == "recover":
        assert len(plan["messages_lost"]) == lost
    rmqctl(command, root, *options, "--apply", "--yes", *JSON).expect(0, 1)
    after = rmqctl("doctor", root, *JSON).expect(0, 1).json()
    assert after["already_lost"] + after["messages_replaced"] == lost


def test_a_log_of_zeros_has_lost_what_its_checkpoint_knows(tmp_path: Path, rmqctl: Run) -> None:
    """Also after a repair, which leaves such a checkpoint."""
    root = tmp_path / "store"
    reached(root, -1)
    for file in (root / "commitlog").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    for folder in ("config", ".rmqctl"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for _ in range(2):
        assert rmqctl("preflight", root, *JSON).expect(1).json()["messages_already_lost"] == 1
        doctor = rmqctl("doctor", root, *JSON).expect(1).json()
        assert doctor["already_lost"] == 1
        assert "at least 1 message is already lost" in doctor["verdict"]
        assert [remainder["category"] for remainder in doctor["remains"]] == ["messages"]
        rmqctl("recover", root, "--apply", "--yes", *JSON).expect(0)


@pytest.mark.parametrize("field", ["physic_msg_timestamp", "logics_msg_timestamp"])
def test_one_time_of_the_checkpoint_alone_tells_of_no_loss(tmp_path: Path, rmqctl: Run,
                                                           field: str) -> None:
    """It may be damaged."""
    root = tmp_path / "store"
    tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128)
    page = root / "checkpoint"
    saved = checkpoint.parse(page.read_bytes())
    later = getattr(saved, field) + (1 << 30)
    page.write_bytes(checkpoint.build(saved._replace(**{field: later})))
    assert rmqctl("preflight", root, *JSON).json()["messages_already_lost"] == 0


@pytest.mark.parametrize("beyond", [10**5, 10**9, 10**15, 2**62])
def test_a_position_far_beyond_what_the_log_may_lack_tells_nothing(
        tmp_path: Path, rmqctl: Run, beyond: int) -> None:
    root = tmp_path / "store"
    offset = reached(root, beyond)
    planned = rmqctl("recover", root, *JSON).expect(1).json()
    assert [message["known_by"] for message in planned["messages_lost"]] == ["checkpoint"]
    text = f"of billing at {offset + 1 + beyond} in orders/1, which ends at {offset}: at most "
    assert any(text in note for note in planned["notes"])
    rmqctl("recover", root, "--apply", *JSON).expect(1)
    assert rmqctl("recover", root, *JSON).expect(0).json()["actions"] == []
