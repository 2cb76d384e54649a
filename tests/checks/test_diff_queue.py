"""diff by queue: the same messages at other physical offsets, in another order, on another host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.checks.diff import queue
from rmqctl.formats.local import sysflag
from tests.checks.diffing import change, counts, diff, earlier, in_log, pair
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.tiny import DEFAULT, Spec, Tiny

__all__ = ["pair"]

@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def moved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tiny, Tiny]:
    """A store, and one that has a message of another topic in front, on another host."""
    specs = [*DEFAULT, Spec("half", 0, b"p", sys_flag=sysflag.TRANSACTION_PREPARED),
             Spec("half", 0, b"q", sys_flag=sysflag.TRANSACTION_PREPARED)]
    first = Spec("first", 0, b"in front")
    a = tiny_stores.build(tmp_path / "a", specs, append_crc=request.param)
    elsewhere = [replace(spec, store="[::2]:10911") for spec in (first, *specs)]
    b = tiny_stores.build(tmp_path / "b", elsewhere, append_crc=request.param)
    earlier(b)
    return a, b


def test_a_moved_store_has_the_same_messages(moved: tuple[Tiny, Tiny]) -> None:
    a, b = moved
    run = diff(a.root, b.root)
    assert run.summary["by"] == "queue"
    assert in_log(run) == [("missing-in-a", 0)]
    assert counts(run) == (10, 0, 1, 0)
    assert counts(diff(b.root, a.root)) == (10, 0, 0, 1)
    assert counts(diff(a.root, b.root, strict=True)) == (0, 10, 1, 0)


def test_a_change_in_a_moved_store(moved: tuple[Tiny, Tiny]) -> None:
    a, b = moved
    changed = b.messages[2]
    change(b, changed, changed.raw.index(b"second"))
    difference = next(item for item in diff(a.root, b.root).differences.listed
                      if item.kind == "different")
    assert (difference.physical_offset, difference.physical_offset_b) == (a.messages[1].start,
                                                                          changed.start)
    assert difference.msg_id != difference.msg_id_b
    assert difference.fields == ("body",)


def test_another_order_of_properties_is_the_same_message(tmp_path: Path) -> None:
    forward = {"UNIQ_KEY": "A", "KEYS": "k", "TAGS": "t"}
    stores = [tiny_stores.build(tmp_path / name, [Spec("t", 0, b"x", properties)] * 3)
              for name, properties in (("a", forward), ("b", dict(reversed(forward.items()))))]
    assert counts(diff(stores[0].root, stores[1].root, "queue")) == (3, 0, 0, 0)
    physical = diff(stores[0].root, stores[1].root, "physical")
    assert counts(physical) == (0, 3, 0, 0)
    assert physical.differences.listed[0].fields == ("properties",)


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_another_order_of_queues(block: int, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """The second log has all of one queue before the other one."""
    monkeypatch.setattr(queue, "_BLOCK", block)
    specs = [Spec("t", number % 3, b"%d" % number) for number in range(60)]
    a = tiny_stores.build(tmp_path / "a", specs)
    b = tiny_stores.build(tmp_path / "b", sorted(specs, key=lambda queue: queue.queue_id))
    for tiny in (a, b):
        times_of_their_own(tiny)
    assert counts(diff(a.root, b.root, "queue")) == (60, 0, 0, 0)
    change(b, b.messages[30], 16)
    assert counts(diff(a.root, b.root, "queue")) == (59, 1, 0, 0)


def times_of_their_own(tiny: Tiny) -> None:
    """Times are in the order of the log; here they shall belong to the message: its body."""
    for message in tiny.messages:
        file, position = tiny.place(message.start)
        when = (tiny_stores.EPOCH + int(message.spec.body)).to_bytes(8, "big")
        damage.write(tiny.root, file, position + 40, when)
        damage.write(tiny.root, file, position + 56, when)


def test_keys_are_exact(tmp_path: Path) -> None:
    """A queue offset beyond all queues is none of the next queue's, a prepared message not the
    first one of its queue."""
    odd, first = Spec("t", 0, b"1"), Spec("t", 1, b"2")
    half = Spec("u", 0, b"3", sys_flag=sysflag.TRANSACTION_PREPARED)
    done = Spec("u", 0, b"4", sys_flag=sysflag.TRANSACTION_COMMIT)
    a = tiny_stores.build(tmp_path / "a", [odd, first, half, done])
    b = tiny_stores.build(tmp_path / "b", [first, odd, done, half])
    for tiny in (a, b):
        times_of_their_own(tiny)
        message = next(stored_message for stored_message in tiny.messages
                       if stored_message.spec is odd)
        change(tiny, message, 22)  # 1 << 40
    assert counts(diff(a.root, b.root, "queue")) == (4, 0, 0, 0)


@pytest.mark.parametrize("kept", [True, False])
def test_a_queue_that_has_expired_as_a_whole(kept: bool, tmp_path: Path) -> None:
    """Its consumequeue says so; without it nobody can know."""
    specs = [*[Spec("early", 0, b"x" * 300)] * 4, *[Spec("late", 0, b"x" * 300)] * 4]
    a = tiny_stores.build(tmp_path / "a", specs)
    b = tiny_stores.build(tmp_path / "b", specs, expired_files=2)
    if not kept:
        damage.remove_folder(b.root, "consumequeue/early")
    run = diff(a.root, b.root, "queue")
    assert run.equal is kept
    assert counts(run) == (4, 0, 0, 0 if kept else 4)
    assert [(file["where"], file["messages"]) for file in run.summary["outside"]] == [
        ("before" if kept else "beyond", 4)]


def test_a_message_that_is_there_twice(pair: tuple[Tiny, Tiny]) -> None:
    """Two messages of one queue offset, as a broker that lost its table writes them."""
    a, b = pair
    again = b.messages[3]  # queue offset 1 of its queue becomes 0
    file, position = b.place(again.start + 20)
    damage.write(b.root, file, position, bytes(8))
    run = diff(a.root, b.root, "queue")
    assert sorted(in_log(run)) == [("missing-in-a", again.start), ("missing-in-b", again.start)]
    assert counts(run) == (7, 0, 1, 1)
    assert counts(diff(b.root, b.root, "queue")) == (8, 0, 0, 0)


def test_an_absurd_queue_offset(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    for at in (20, 21):  # the highest bytes of the queue offset
        change(b, b.messages[3], at, 6)
    run = diff(a.root, b.root, "queue")
    assert counts(run) == (7, 0, 1, 1)
    assert counts(diff(b.root, b.root, "queue")) == (8, 0, 0, 0)
