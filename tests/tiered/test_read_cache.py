"""What is read ahead: the last read, and never a wrong message."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.ext.tiered.as_broker import get_message
from rmqctl.ext.tiered.as_broker.get_message import Fetched, Matching, PullLimits, ReadAhead
from rmqctl.ext.tiered.flat_file import FlatQueue, QueueName
from rmqctl.ext.tiered.tier import Tier
from tests.tiered.tiers import TOPIC, Queue

FIRST, OTHER = QueueName("c", "a", "t", 0), QueueName("c", "b", "t", 0)


def value(offset: int) -> Fetched:
    return Fetched(offset, 0, 0, b"x")


def test_it_knows_what_the_last_read_gave() -> None:
    cache = ReadAhead()
    assert cache.look(FIRST, 0) == (False, None)
    cache.put(FIRST, 5, [value(5), None, value(7)])
    assert [cache.look(FIRST, at) for at in range(4, 9)] == [
        (False, None), (True, value(5)), (True, None), (True, value(7)), (False, None)]
    assert cache.look(OTHER, 5) == (False, None)  # a queue of two brokers is two
    cache.put(OTHER, 8, [value(8)])
    assert not cache.look(FIRST, 5)[0]
    assert cache.look(OTHER, 8) == (True, value(8))


@pytest.fixture
def queue(tmp_path: Path) -> FlatQueue:
    queue = Queue()
    for number in range(200):
        queue.put(b"%d" % number * 50, TAGS="AB"[number % 2])
    queue.write(tmp_path)
    flat_queue = Tier.open(str(tmp_path)).queue(TOPIC, 0)
    assert flat_queue is not None
    return flat_queue


@pytest.mark.parametrize("count", [1, 7, 32])
@pytest.mark.parametrize("limits", [PullLimits(), PullLimits(count=10), PullLimits(size=700),
                                    PullLimits(transfer=300), PullLimits(single=3)])
def test_pulls_are_right_however_little_is_read(count: int, limits: PullLimits,
                                                queue: FlatQueue) -> None:
    cache = ReadAhead()
    at, seen = 0, []
    while (pulled := get_message.get(queue, at, count, cache=cache,
                                     limits=limits)).status == get_message.FOUND:
        seen += [message.queue_offset for message in pulled.messages]
        at = pulled.next_offset
    assert seen == list(range(200))


def test_it_spares_reads(queue: FlatQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = queue.commit_log.reader.read

    def watched(path: str, position: int, length: int) -> bytes:
        if "COMMIT_LOG" in path and length > 28:
            reads.append((position, length))
        return real(path, position, length)

    monkeypatch.setattr(queue.commit_log.reader, "read", watched)
    cache = ReadAhead()
    for at in range(0, 200, 10):
        assert len(get_message.get(queue, at, 10, cache=cache).messages) == 10
    assert len(reads) == 1
    for at in range(64):
        get_message.get(queue, at, 1, cache=ReadAhead())
    assert max(length for _, length in reads[1:]) < 32 * 400  # who asks for one gets 32


@pytest.mark.parametrize("cached", [False, True])
def test_tags(cached: bool, queue: FlatQueue) -> None:
    cache = ReadAhead() if cached else None
    odd = get_message.get(queue, 0, 10, cache=cache, matching=Matching("B"))
    assert [message.queue_offset for message in odd.messages] == (
        list(range(1, 20, 2)) if cached else list(range(1, 10, 2)))
    assert odd.next_offset == (20 if cached else 10)
    none = get_message.get(queue, 0, 10, cache=cache, matching=Matching("C || D"))
    assert (none.status, none.next_offset) == (get_message.NO_MATCH, 200 if cached else 10)
    both = get_message.get(queue, 0, 10, cache=cache, matching=Matching("A || B"))
    every = get_message.get(queue, 0, 10, matching=Matching("*"))
    assert len(both.messages) == len(every.messages)


def test_tags_with_the_same_code(tmp_path: Path) -> None:
    queue = Queue()
    for tag in ("Aa", "BB", "Aa"):  # one hash in Java
        queue.put(TAGS=tag)
    queue.write(tmp_path)
    with Tier.open(str(tmp_path)) as tier:
        pulled = get_message.get(tier.queue(TOPIC, 0), 0, 9, matching=Matching("Aa"))
    assert [message.queue_offset for message in pulled.messages] == [0, 2]


def test_what_cannot_be_split_does_not_move_the_others(tmp_path: Path) -> None:
    """A broker puts the messages behind it one offset to the front, and hangs at its own."""
    flat_queue = Queue()
    for _ in range(9):
        flat_queue.put()
    flat_queue.write(tmp_path)
    path = flat_queue.log_path(tmp_path)
    data = bytearray(path.read_bytes())
    data[flat_queue.records[3].physical_offset + 4] ^= 1
    path.write_bytes(data)
    with Tier.open(str(tmp_path)) as tier:
        queue = tier.queue(TOPIC, 0)
        for cache in (None, ReadAhead()):
            pulled = get_message.get(queue, 0, 32, cache=cache)
            assert [message.queue_offset for message in pulled.messages] == [0, 1, 2, 4, 5, 6, 7, 8]
            assert pulled.next_offset == 9
            alone = get_message.get(queue, 3, 1, cache=cache)
            assert alone.next_offset > 3
