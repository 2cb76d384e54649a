"""A log on a disk that does not give all of it: the rest is read, what is lost is named."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.scan.source import BytesSource
from rmqctl.scan.tolerant import SKIPPED, STEP, TolerantWalk, UnreadRange
from tests.scan.test_walk import BASE, log

BODIES = [bytes([65 + number % 26]) * (number * 37 % 1500) for number in range(4500)]


class Worn(BytesSource):
    """Every read of ``[start, end)`` fails, wherever it begins."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        super().__init__(data, BASE, "worn")
        self._bad = start, end

    def _check(self, position: int, length: int) -> None:
        if position < self._bad[1] and position + length > self._bad[0]:
            raise StoreIOError(f"worn: cannot read at {position}")

    def read(self, position: int, length: int) -> bytes:
        self._check(position, length)
        return super().read(position, length)

    def read_into(self, buffer: memoryview, position: int) -> int:
        self._check(position, len(buffer))
        return super().read_into(buffer, position)


@pytest.fixture(scope="module")
def whole() -> tuple[bytes, list[tuple[int, int]]]:
    """A log of more than one buffer, and the places of its records."""
    data = log(BODIES)
    items = list(TolerantWalk(lambda: BytesSource(data, BASE), 0, len(data)))
    places = [(int(at) - BASE, int(at + size) - BASE) for batch in items
              for at, size in zip(batch.offset, batch.column("total_size"), strict=True)]
    assert len(places) == len(BODIES)
    return data, places


def walked(walk: TolerantWalk) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(places of the messages, positions that are lost); nothing is there twice."""
    messages: list[tuple[int, int]] = []
    lost: list[tuple[int, int]] = []
    reached = 0
    for item in walk:
        if isinstance(item, UnreadRange):
            lost.append((item.start, item.end))
            spans = lost[-1:]
        else:
            spans = [(int(at) - BASE, int(at + size) - BASE) for at, size in zip(
                item.offset, item.column("total_size"), strict=True)]
            messages += spans
        assert spans == [] or spans[0][0] >= reached
        reached = max([reached, *(end for _, end in spans)])
        assert reached <= walk.position
    return messages, lost


@pytest.mark.parametrize("start", [0, 700, 100_000, (2 << 20) - 300, (2 << 20) + 5, 3_000_000])
@pytest.mark.parametrize("length", [1, 512, 200_000])
def test_only_what_is_near_is_lost(start: int, length: int, whole) -> None:
    data, places = whole
    end = start + length
    walk = TolerantWalk(lambda: Worn(data, start, end), 0, len(data))
    messages, lost = walked(walk)
    assert len(lost) == 1
    [(first, last)] = lost
    assert start - 2 * STEP <= first <= start
    assert end <= last <= end + 2 * SKIPPED
    assert messages == [(at, stop) for at, stop in places if stop <= first or at >= last]
    assert (walk.first, walk.shrunk) == (0, False)


def test_records_before_damage_that_cannot_be_searched_are_not_lost(whole) -> None:
    data, places = whole
    at = places[1000][0]
    broken = bytearray(data)
    broken[at:at + 4] = b"\0\0\0\7"
    messages, _ = walked(TolerantWalk(
        lambda: Worn(bytes(broken), at + 3 * SKIPPED, at + 3 * SKIPPED + 1), 0, len(broken)))
    assert messages[:1000] == places[:1000]


def test_ranges_meet_at_any_cut(whole) -> None:
    data, places = whole
    bad = 1_000_000, 1_000_512
    cuts = sorted(random.Random(5).sample(range(len(data)), 6))
    messages: list[tuple[int, int]] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        messages += walked(TolerantWalk(lambda: Worn(data, *bad), start, end,
                                        resync=start > 0))[0]
    assert len(set(messages)) == len(messages)
    far = [place for place in places
           if place[1] < bad[0] - 2 * SKIPPED or place[0] > bad[1] + 2 * SKIPPED]
    assert set(far) <= set(messages) <= set(places)


def test_what_cannot_be_opened_is_lost_as_a_whole() -> None:
    def refused() -> BytesSource:
        raise StoreIOError("no such file")

    walk = TolerantWalk(refused, 100, 900)
    assert list(walk) == [UnreadRange(100, 900, "no such file")]
    assert (walk.first, walk.position) == (100, 900)


def test_an_error_of_the_consumer_is_its_own(whole) -> None:
    walk = TolerantWalk(lambda: BytesSource(whole[0], BASE), 0, len(whole[0]))

    def consume() -> None:
        for _ in walk:
            raise StoreIOError("a queue cannot be read")

    with pytest.raises(StoreIOError, match="a queue"):
        consume()


def test_a_disk_that_gives_nothing_ends() -> None:
    size = 1 << 28
    source = Worn(b"", 0, size)
    source.size = size
    walk = TolerantWalk(lambda: source, 0, size)
    assert [(item.start, item.end) for item in walk if isinstance(item, UnreadRange)] == [(0, size)]


def test_a_file_that_became_shorter_is_seen(whole) -> None:
    walk = TolerantWalk(lambda: BytesSource(whole[0], BASE), 0, len(whole[0]) + 1)
    assert walked(walk)[0] == whole[1]
    assert walk.shrunk


@pytest.mark.parametrize("start", [0, 100_000, (2 << 20) - 300, (2 << 20) + 5, 3_000_000])
@pytest.mark.parametrize("steps", [0, 1, 7, 1 << 30])
def test_what_is_passed_over_comes_once(start: int, steps: int, whole) -> None:
    """Some records of each buffer come in no batch; with those in batches none is there twice."""
    data, places = whole
    sizes = dict(places)
    passed: list[tuple[int, int]] = []

    def sound(_data: Any, base: int, at: int, end: int, _lost: Any,
              _mapped: bool) -> int:
        for _ in range(steps):
            place = base + at - BASE
            if at >= end or sizes.get(place, 1 << 62) - place > len(_data) - at:
                break
            passed.append((place, sizes[place]))
            at += sizes[place] - place
        return at

    messages: list[tuple[int, int]] = []
    lost = 0
    walk = TolerantWalk(lambda: Worn(data, start, start + 512), 0, len(data), sound=sound)
    for item in walk:
        if isinstance(item, UnreadRange):
            lost += 1
            continue
        messages += [(int(at) - BASE, int(at + size) - BASE) for at, size in zip(
            item.offset, item.column("total_size"), strict=True)]
    assert lost == 1
    assert walk.position == len(data)
    place = sorted(messages + passed)
    assert len(set(place)) == len(place)
    expected, _ = walked(TolerantWalk(lambda: Worn(data, start, start + 512), 0, len(data)))
    assert place == sorted(expected)


def test_an_error_of_who_passes_over_is_no_damage(whole) -> None:
    def sound(_data: Any, _base: int, _at: int, _end: int, _lost: Any,
              _mapped: bool) -> int:
        raise StoreIOError("elsewhere")

    with pytest.raises(StoreIOError, match="elsewhere"):
        list(TolerantWalk(lambda: BytesSource(whole[0], BASE), 0, len(whole[0]), sound=sound))
