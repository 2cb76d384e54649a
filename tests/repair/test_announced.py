"""What `verify` finds after `recover`, the plan has announced: repeated queue offsets, and damaged
entries of queues whose messages are gone.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.adversary.writer import Header, Layout, Writer
from tests.support.cli import run

OPTIONS = ("--index-slots", "16", "--index-max", "256", "-o", "json")


def errors(store: Path) -> list[str]:
    return [finding["category"] for finding in run("verify", store, *OPTIONS).json()["findings"]
            if finding["severity"] == "error"]


@pytest.mark.parametrize("repeated", [0, 1, 3])
def test_repeated_queue_offsets_are_counted(repeated: int, tmp_path: Path) -> None:
    """No entry points to the later messages: a queue has one for each queue offset."""
    writer = Writer(Layout(index_slots=16, index_entries=256))
    for number in range(20):
        writer.put("orders", b"order %d" % number, keys=f"o{number}")
    for number in range(repeated):
        writer.put("orders", b"again", row=False, keys=f"a{number}",
                   header=Header(queue_offset=7 + number))
    store = writer.write(tmp_path / "store")
    plan = run("recover", store, *OPTIONS, "--apply", "--yes").expect(0).json()
    notes = [note for note in plan["notes"]
             if "that an earlier message of the queue already has" in note]
    assert [note.split()[0] for note in notes] == ([str(repeated)] if repeated else [])
    assert bool(errors(store)) == bool(repeated)


@pytest.mark.parametrize("entry", [struct.pack(">qiq", 500, -5, 0), struct.pack(">qiq", 300, 0, 1)])
@pytest.mark.parametrize("topic", ["%LMQ%a", "bills"])
def test_a_damaged_entry_of_a_queue_without_messages_is_cleared(entry: bytes, topic: str,
                                                               tmp_path: Path) -> None:
    writer = Writer(Layout(index_slots=16, index_entries=256))
    for number in range(20):
        writer.put("orders", b"order %d" % number, keys=f"o{number}")
    writer.rows[topic, 0] = {0: entry}
    store = writer.write(tmp_path / "store")
    assert errors(store)
    plan = run("recover", store, *OPTIONS, "--apply", "--yes").expect(0).json()
    assert [action["target"] for action in plan["actions"]] == [f"consumequeue/{topic}/0"]
    assert errors(store) == []


def test_entries_of_expired_messages_stay(tmp_path: Path) -> None:
    """Behind a damaged one, too: they say up to which queue offset a queue was filled."""
    size = 16 << 10
    writer = Writer(Layout(log_file_size=size, first_file=size, index_slots=16,
                           index_entries=256))
    for number in range(20):
        writer.put("orders", b"order %d" % number, keys=f"o{number}")
    unit = struct.pack(">qiq", 100, 200, 0)
    writer.rows["bills", 0] = {0: unit, 1: struct.pack(">qiq", 300, 0, 0), 2: unit}
    store = writer.write(tmp_path / "store")
    queue = store / "consumequeue" / "bills" / "0" / f"{0:020d}"
    before = queue.read_bytes()
    run("recover", store, *OPTIONS, "--apply", "--yes").expect(0)
    assert queue.read_bytes() == before
