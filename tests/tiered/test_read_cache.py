"""The read-ahead cache: bounded, forgetful, and never a wrong message."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.tiered.as_broker import get_message
from rmqctl.tiered.as_broker.get_message import Fetched, ReadAhead, TagMatching
from rmqctl.tiered.flat_file import FlatQueue, QueueName
from rmqctl.tiered.tier import Tier
from tests.tiered.made import TOPIC, Queue

ONE, OTHER = QueueName("c", "a", "t", 0), QueueName("c", "b", "t", 0)


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def value(offset: int, size: int) -> Fetched:
    return Fetched(offset, 0, 0, bytes(size))


def test_it_forgets_after_the_last_use() -> None:
    clock = Clock()
    cache = ReadAhead(1000, 15_000, clock)
    cache.put(ONE, 1, value(1, 100))
    clock.now = 14_999
    assert cache.look(ONE, 1) == (True, value(1, 100))
    clock.now = 29_998
    assert cache.look(ONE, 1)[0]
    clock.now = 44_998
    assert cache.look(ONE, 1) == (False, None)
    assert (len(cache), cache.bytes) == (0, 0)


def test_queues_of_two_brokers_are_two() -> None:
    cache = ReadAhead(1000, clock=Clock())
    cache.put(ONE, 1, value(1, 100))
    assert cache.look(OTHER, 1) == (False, None)
    assert (cache.hits, cache.misses) == (0, 1)


def test_what_is_too_large_is_not_kept() -> None:
    cache = ReadAhead(1000, clock=Clock())
    cache.put(ONE, 1, value(1, 400))
    cache.put(ONE, 2, value(2, 1001))
    assert cache.look(ONE, 1)[0]
    assert not cache.look(ONE, 2)[0]
    cache.put(ONE, 1, value(1, 1001))
    assert not cache.look(ONE, 1)[0]


STEPS = st.lists(st.tuples(st.sampled_from(["put", "look", "wait"]), st.integers(0, 12),
                           st.integers(0, 700)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_against_a_model(steps: list[tuple[str, int, int]]) -> None:
    clock = Clock()
    cache = ReadAhead(1000, 50, clock)
    model: OrderedDict[int, tuple[Fetched, int]] = OrderedDict()
    for what, offset, number in steps:
        for key in [key for key, (_, used) in model.items() if clock.now - used >= 50]:
            del model[key]
        if what == "wait":
            clock.now += number % 60
        elif what == "put":
            one = value(offset, number)
            cache.put(ONE, offset, one)
            model.pop(offset, None)
            while sum(max(len(each.data), 20) for each, _ in model.values()) + max(
                    number, 20) > 1000:
                model.popitem(last=False)
            model[offset] = one, clock.now
        else:
            found = cache.look(ONE, offset)
            assert found == ((True, model[offset][0]) if offset in model else (False, None))
            if offset in model:
                model[offset] = model[offset][0], clock.now
                model.move_to_end(offset)
        assert cache.bytes <= 1000


@pytest.fixture
def queue(tmp_path: Path) -> FlatQueue:
    made = Queue()
    for number in range(200):
        made.put(b"%d" % number * 50, TAGS="AB"[number % 2])
    made.write(tmp_path)
    found = Tier.open(str(tmp_path)).queue(TOPIC, 0)
    assert found is not None
    return found


@pytest.mark.parametrize("most", [0, 50, 1000, 20_000, 10_000_000])
def test_pulls_are_right_with_any_memory(most: int, queue: FlatQueue) -> None:
    cache = ReadAhead(most, clock=Clock())
    at, seen = 0, []
    while (found := get_message.get(queue, at, 7, cache=cache)).status == get_message.FOUND:
        assert cache.bytes <= most
        seen += [one.queue_offset for one in found.messages]
        at = found.next_offset
    assert seen == list(range(200))


def test_it_spares_reads(queue: FlatQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = queue.commit_log.reader.read

    def watched(path: str, position: int, length: int) -> bytes:
        if "COMMIT_LOG" in path and length > 28:
            reads.append((position, length))
        return real(path, position, length)

    monkeypatch.setattr(queue.commit_log.reader, "read", watched)
    cache = ReadAhead(clock=Clock())
    for at in range(0, 200, 10):
        assert len(get_message.get(queue, at, 10, cache=cache).messages) == 10
    assert len(reads) == 1
    for at in range(64):
        get_message.get(queue, at, 1, cache=ReadAhead(clock=Clock()))
    assert max(length for _, length in reads[1:]) < 32 * 400  # who asks for one gets 32


@pytest.mark.parametrize("cached", [False, True])
def test_tags(cached: bool, queue: FlatQueue) -> None:
    cache = ReadAhead(clock=Clock()) if cached else None
    odd = get_message.get(queue, 0, 10, cache=cache, matching=TagMatching("B"))
    assert [one.queue_offset for one in odd.messages] == (
        list(range(1, 20, 2)) if cached else list(range(1, 10, 2)))
    assert odd.next_offset == (20 if cached else 10)
    none = get_message.get(queue, 0, 10, cache=cache, matching=TagMatching("C || D"))
    assert (none.status, none.next_offset) == (get_message.NO_MATCH, 200 if cached else 10)
    both = get_message.get(queue, 0, 10, cache=cache, matching=TagMatching("A || B"))
    every = get_message.get(queue, 0, 10, matching=TagMatching("*"))
    assert len(both.messages) == len(every.messages)


def test_tags_with_the_same_code(tmp_path: Path) -> None:
    made = Queue()
    for tag in ("Aa", "BB", "Aa"):  # one hash in Java
        made.put(TAGS=tag)
    made.write(tmp_path)
    with Tier.open(str(tmp_path)) as tier:
        found = get_message.get(tier.queue(TOPIC, 0), 0, 9, matching=TagMatching("Aa"))
    assert [one.queue_offset for one in found.messages] == [0, 2]


def test_what_cannot_be_split_does_not_move_the_others(tmp_path: Path) -> None:
    """A broker puts the messages behind it one offset to the front, and hangs at its own."""
    made = Queue()
    for _ in range(9):
        made.put()
    made.write(tmp_path)
    path = made.log_path(tmp_path)
    data = bytearray(path.read_bytes())
    data[made.records[3].physical_offset + 4] ^= 1
    path.write_bytes(data)
    with Tier.open(str(tmp_path)) as tier:
        queue = tier.queue(TOPIC, 0)
        for cache in (None, ReadAhead(clock=Clock())):
            found = get_message.get(queue, 0, 32, cache=cache)
            assert [one.queue_offset for one in found.messages] == [0, 1, 2, 4, 5, 6, 7, 8]
            assert found.next_offset == 9
            alone = get_message.get(queue, 3, 1, cache=cache)
            assert alone.next_offset > 3
