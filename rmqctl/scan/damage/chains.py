"""Whether frames found behind damage are records of the log, or lie in a damaged record's body.

Where nothing tells how long a damaged record O was, the frames behind it may be its body: whoever
sent it may have put whole records into it, with the right physical offsets. Let frames follow each
other without a break up to an *anchor*, a place where a record of the log is known to begin. If
the first of them lie in O's body, O ends somewhere among them, and what follows O is a record:

* O ends where one of the frames ends. Then O's own topic and properties are the last bytes of that
  frame, too: its end can be read as the end of a record in two ways.
* O ends inside of a frame. Then this frame has a record inside of it which says that it lies
  just there.

So frames behind the last one of these kinds are records of the log: that is a proof, whatever the
bodies hold. No broker's message is longer than `MAX_RECORD`, so a chain of that length needs no
anchor. The end of the log is none, as O may have been torn just there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    BLANK_PATTERN,
    HOST_BITS,
    MAGIC_OFFSET,
    MAGIC_PATTERN,
    MAGIC_V1,
    PROPERTIES_LENGTH_SIZE,
    START_SIZE,
    Message,
    is_magic,
    longest_topic,
    magic_at,
    variant,
)
from rmqctl.scan.frames import Array, Batch, records_from
from rmqctl.scan.resync import MAX_RECORD, is_blank, is_placed, located_size, next_provable
from rmqctl.scan.source import Source

_FIRST_BLOCK = 64 << 10
_BLOCK = 1 << 20
_NO_TEXT = np.array([byte < 32 and byte not in b"\1\2\t\n\r" for byte in range(256)])
_START = layout.reader(Message, "sys_flag")
MOST_NAMED = 10_000
"""Frames that are named one by one; the others are counted."""
_PAIR = b"\1"
"""Between name and value of a property."""
_SHORT_TOPIC = longest_topic(MAGIC_V1)
_LONGEST_TOPIC = 512
_MOST_BREAKS = 1000


@dataclass(slots=True)
class Chain:
    """Frames that follow each other from a position on, up to ``end``.

    ``sure``: from this position on they are records of the log, or it is the anchor; None where
    there is no anchor. ``unsure``: (position, size) of the first frames before it, ``count`` how
    many there are. ``records``: of all of the chain. ``odd``: the ends of frames with which a body
    may end, too: the first `MOST_NAMED` and the last.
    """

    end: int
    sure: int | None = None
    unsure: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    records: int = 0
    odd: list[int] = field(default_factory=list)


def follow(source: Source, start: int, origin: int, stop: int | None,
           own_end: Callable[[int], int | None],
           is_end: Callable[[int], bool] | None = None) -> Chain:
    """The chain from ``start`` on, behind a damaged record at ``origin``.

    ``stop``: a position where a record of the log begins, beyond doubt. ``own_end``: where a
    damaged record at a position ends, if that is beyond doubt. ``is_end``: whether a position
    without a frame is an anchor; unless given, only a blank is that `closes` its file.
    StoreIOError.
    """
    at = sure = start
    frames: list[tuple[int, int]] = []
    odd_ends: list[int] = []
    count = breaks = 0
    anchored, block = False, _FIRST_BLOCK
    while True:
        if (stop is not None and at == stop) or at - origin > MAX_RECORD:
            anchored = True
            break
        if at >= source.size or (stop is not None and at > stop):
            anchored = stop is None and at == source.size and (
                closes(source, at) if is_end is None else is_end(at))
            break
        starts, ends, odd = _block(source, at, block)
        block = _BLOCK
        if len(starts):
            inside = len(starts) if stop is None else int(np.searchsorted(starts, stop))
            starts, ends, odd = starts[:inside], ends[:inside], odd[:inside]
            at = int(ends[-1])
            if odd.any():
                note(odd_ends, ends[odd].tolist())
                sure = odd_ends[-1]
            count += len(starts)
            room = max(0, MOST_NAMED - len(frames))
            frames += list(zip(starts[:room].tolist(), (ends - starts)[:room].tolist(),
                               strict=True))
            continue
        # No frame: the file's end, or one more damaged record, of an extent beyond doubt.
        if is_blank(source, at):
            anchored = stop is None and (closes(source, at) if is_end is None else is_end(at))
            break
        behind = own_end(at) if breaks < _MOST_BREAKS else None
        if behind is None:
            anchored = is_end is not None and is_end(at)
            break
        breaks += 1
        if _is_odd(source, at, behind):
            note(odd_ends, [behind])
            sure = behind
        at = behind
    records = count + breaks
    if not anchored:
        return Chain(at, None, frames, count, records, odd_ends)
    unsure = [one for one in frames if one[0] < sure]
    return Chain(at, sure, unsure, len(unsure) if count == len(frames) else count, records,
                 odd_ends)


def note(ends: list[int], more: list[int]) -> None:
    """Adds to the ends of odd frames; where there are too many the last stands for others, too."""
    ends += more[:max(MOST_NAMED - len(ends), 0)]
    if more:
        ends[-1] = more[-1]


def closes(source: Source, at: int) -> bool:
    """Whether the blank at a position closes its file: nothing is behind it but the next file. So
    does the end of a tier's segment, which has none.

    A body may hold a blank, too. Then the record around it ends in what follows, and so does the
    true blank, unless the log was torn there.
    """
    behind = next_provable(source, at + 1, source.size)
    return behind is None and source.witness is not None and source.witness.goes_on(
        source.base + source.size)


def _block(source: Source, at: int, block: int) -> tuple[Array, Array, Array]:
    """(start, end, whether something is odd) of frames from a position on, as many as are read.

    Positions of the source. None of them where no frame begins.
    """
    nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    size = located_size(source, at)
    if size is None:
        return nothing
    raw = source.read(at, max(block, size))
    data = np.frombuffer(raw, np.uint8)
    batch = records_from(data, source.base + at, 0, len(raw), head=source.head)
    if not len(batch):
        return nothing
    start = batch.start - source.head
    end = start + batch.frame_size
    return start + at, end + at, _odd(source, at, raw, batch, end)


def _odd(source: Source, at: int, raw: bytes, batch: Batch, end: Array) -> Array:
    """Of the frames of a block: whether one has a record inside, or ends like two."""
    odd = np.zeros(len(batch), bool)
    known = set(batch.start.tolist())
    for inner in _magics(raw, int(end[-1])):
        if inner >= 0 and inner not in known and _is_head(source, at + inner):
            odd[max(0, int(np.searchsorted(batch.start, inner, "right")) - 1)] = True
    own_end = batch.column("properties_start") - PROPERTIES_LENGTH_SIZE
    own_topic = batch.column("topic_start")
    own = dict(zip(own_end.tolist(), own_topic.tolist(), strict=True))
    others = set(own_end[_other_topics(batch.data, batch.start, own_end, own_topic)].tolist())
    # Topic and properties are text. The lengths of another record's are not: they are seen even
    # where damage hit the end of the record around.
    strange = np.concatenate([[0], np.cumsum(_NO_TEXT[batch.data])])
    for name in ("topic", "properties"):
        first = batch.column(f"{name}_start")
        odd |= strange[first + batch.column(f"{name}_length")] > strange[first]
    start = batch.start - source.head
    for row, place in _tails(batch.data, start, end):
        if place in others or place not in own:
            topics = _topics(batch.data, int(start[row]), place)
            odd[row] |= bool(topics - {own.get(place, -1)})
    return odd


def _other_topics(data: Array, start: Array, end: Array, own: Array) -> Array:
    """Before which of the ends of topics another topic than its own might begin (bool): what
    `_topics` has to look at, for many records at once.
    """
    found: Array = np.zeros(len(end), bool)
    no_name = np.flatnonzero((data <= 32) | (data >= 127))
    behind = np.concatenate([[-1], no_name])[np.searchsorted(no_name, end)]
    for length in range(1, _LONGEST_TOPIC):
        at = end - length  # where such a topic would begin, and its length before
        inside = (at - 1 > start) & (at > behind) & (at != own)
        low = data[np.maximum(at - 1, 0)] == length & 0xFF
        if length > _SHORT_TOPIC:
            low &= data[np.maximum(at - 2, 0)] == length >> 8
        found |= inside & low
    return found


def _is_odd(source: Source, start: int, end: int) -> bool:
    """The same for one damaged record: any record inside, or another way to end than its own."""
    start += source.head
    raw = source.read(start, end - start)
    for inner in _magics(raw, len(raw)):
        if inner > 0 and _is_head(source, start + inner):
            return True
    data = np.frombuffer(raw, np.uint8)
    span = np.zeros(1, np.int64), np.array([len(raw)], np.int64)
    topics = {topic for _, place in _tails(data, *span) for topic in _topics(data, 0, place)}
    return topics != {_own_topic(raw)}


def _own_topic(raw: bytes) -> int:
    """Where the topic of a record begins by its own head; -1 where that tells nothing."""
    magic = magic_at(raw)
    if len(raw) < START_SIZE or not is_magic(magic):
        return -1
    shape = variant(_START.unpack_from(raw)[0] & HOST_BITS, magic)
    if len(raw) < shape.head_size:
        return -1
    length: int = shape.head.unpack_from(raw)[-1]
    return shape.head_size + length + shape.topic_length.size


def _magics(raw: bytes, end: int) -> Iterator[int]:
    """Where by its magic a record or a blank might start."""
    for pattern in (MAGIC_PATTERN, BLANK_PATTERN):
        for hit in pattern.finditer(raw, 0, end):
            yield hit.start() - MAGIC_OFFSET


def _is_head(source: Source, at: int) -> bool:
    """Whether a record, or what is left of one, says that it lies here; or a blank that fits.

    DLedger's end mark is not looked for: behind it is nothing that a frame around it could hold.
    """
    return is_placed(source, at - source.head) or (not source.head and is_blank(source, at))


def _tails(data: Array, start: Array, end: Array) -> list[tuple[int, int]]:
    """(row, place) of each length of properties which leads to just the end of its frame.

    ``start``, ``end``: the frames of ``data``, one behind the other.
    """
    low, high = int(start[0]), int(end[-1])
    value = (data[low:high - 1].astype(np.int32) << 8) | data[low + 1:high]
    wanted = np.repeat(end, end - start)[:high - 1 - low] - np.arange(low, high - 1)
    places = np.flatnonzero(value == wanted - PROPERTIES_LENGTH_SIZE) + low
    rows = np.searchsorted(start, places, "right") - 1
    return list(zip(rows.tolist(), places.tolist(), strict=True))


def _topics(data: Array, start: int, end: int) -> set[int]:
    """Where a topic may begin that ends at ``end``, its length before it: names are printable."""
    low = max(start + 1, end - _LONGEST_TOPIC)
    window = data[low:end].astype(np.int32)
    left = len(window) - 1 - np.arange(len(window))
    short = (window == left) & (left > 0) & (left <= _SHORT_TOPIC)
    found = set((np.flatnonzero(short) + low + 1).tolist())
    if len(window) > 1:
        wide = ((window[:-1] << 8) | window[1:]) == left[1:]
        found |= set((np.flatnonzero(wide & (left[1:] > _SHORT_TOPIC)) + low + 2).tolist())
    return {topic for topic in found
            if bool(((data[topic:end] > 32) & (data[topic:end] < 127)).all())}


def tails_of(data: bytes) -> set[int]:
    """Where the topic of a record may begin that ends with these bytes; positions in them."""
    array = np.frombuffer(data, np.uint8)
    if len(array) < 2 * PROPERTIES_LENGTH_SIZE:
        return set()
    span = np.zeros(1, np.int64), np.array([len(array)], np.int64)
    return {topic for _, place in _tails(array, *span) for topic in _topics(array, 0, place)}


def ends_record(data: bytes) -> bool:
    """Whether these bytes may be the last of a record: they end with a topic and properties."""
    array = np.frombuffer(data, np.uint8)
    if len(array) < 2 * PROPERTIES_LENGTH_SIZE:
        return False
    span = np.zeros(1, np.int64), np.array([len(array)], np.int64)
    for _, place in _tails(array, *span):
        properties = data[place + PROPERTIES_LENGTH_SIZE:]
        if (not properties or _PAIR in properties) and _topics(array, 0, place):
            return True
    return False
