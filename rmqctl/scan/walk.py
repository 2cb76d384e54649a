"""The frame walk: divides a commitlog file, or a range of one, into frames (architecture, idea 2).

Every byte of the range belongs to exactly one frame: a message, a blank record, zeros, or damage.
The walk follows the sizes record by record; no other Python code runs per record. Everything else
is checked by column. Where the chain of records breaks, `resync` determines what the bytes are and
where the chain continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import thread_time

import numpy as np

from rmqctl.formats import layout
from rmqctl.formats.local.message import START_SIZE, VERSIONS, Message, decode
from rmqctl.scan.damage.classify import classify
from rmqctl.scan.damage.led import Led
from rmqctl.scan.damage.slots import EarlierMessages, Stretch
from rmqctl.scan.frames import Array, Batch, joined, records_from
from rmqctl.scan.resync import MAX_RECORD, is_blank, located_size, next_provable
from rmqctl.scan.source import AtHand, Source, Witness

CHUNK = 2 << 20
Sound = Callable[[Array, int, int, int, Array, bool], int]
"""Function that uses sound records; the walk then skips them. Arguments: data, physical offset of
data[0], position of the next frame, position after the last frame, damaged records that may be
skipped (`Led.lost`), whether data is a mapping of the file, which only the kernel may read. Returns
the position after the used records.
"""
_MAPPED, _LEAST_MAPPED = 16 << 20, 1 << 20
"""Maximum and minimum number of bytes of a file that are mapped for that function at once."""
_SLACK = 64
"""Number of bytes at the end of a mapping that are not used: fields of a record that another
process changes meanwhile may point that far.
"""
_HEAD = layout.reader(Message, "total_size", "magic", "physical_offset")
_BURST = 64
_WORTH, _TRIES = 8 << 10, 4
"""Number of bytes from which on a call of the function for sound records is worthwhile between two
damaged places, and how many calls in a buffer may be less.
"""
_NONE_LOST: Array = np.zeros((0, 3), np.int64)


class Pace:
    """CPU time of skipping sound records in a mapping, and in a buffer into which the file is read.
    Which takes less depends on the processor and the system.

    Threads share one object without a lock: a lost update does not matter.
    """

    _WARM, _TRIAL = 8 << 20, 16 << 20
    """Number of bytes that are not measured because new topics and queues take most of the time,
    and that are measured in each way before the faster one is used.
    """

    def __init__(self) -> None:
        self._warm = 0
        self._seconds, self._bytes = [0.0, 0.0], [0, 0]

    def prefers_mapping(self) -> bool:
        """Return whether the next bytes are to be read in a mapping."""
        if self._warm < self._WARM or self._bytes[True] < self._TRIAL:
            return self._warm >= self._WARM
        return self._bytes[False] >= self._TRIAL and (
            self._seconds[True] * self._bytes[False] <= self._seconds[False] * self._bytes[True])

    def add(self, mapped: bool, since: float, count: int) -> None:
        """Add ``count`` bytes that took the time since ``since`` (s, of `time.thread_time`)."""
        if self._warm < self._WARM:
            self._warm += count
            return
        self._seconds[mapped] += thread_time() - since
        self._bytes[mapped] += count


_PACE = Pace()
_STEPS = (64 << 10, 1 << 20, 16 << 20)
_MAX_CHECKS = 64


def start_of(source: Source, at: int) -> int:
    """Return the first frame boundary at or after any position, even one inside a body.

    The walk starts at a nearby record that a consume queue entry confirms, or else at the start of
    the file. Without evidence about the log, the next provable record counts. In DLedger data, a
    position in the header of an entry or of its record means the start of that entry.

    Raises: StoreIOError.
    """
    at -= source.head
    if at <= 0:
        return 0
    if source.witness is None:
        candidate = next_provable(source, at, source.size)
        return source.size if candidate is None else candidate
    anchor = 0
    for back in _STEPS:
        if at <= back:
            break
        confirmed = _confirmed(source, source.witness, at - back, at)
        if confirmed is not None:
            anchor = confirmed
            break
    walk = Walk(source, anchor, at, chunk=min(CHUNK, max(at - anchor, 64 << 10)))
    for _ in walk:
        pass
    return walk.position


def _confirmed(source: Source, witness: Witness, start: int, end: int) -> int | None:
    """Return the first record in positions ``[start, end)`` to which an entry points. Only a few
    records are checked.
    """
    position = start
    for _ in range(_MAX_CHECKS):
        candidate = next_provable(source, position, end)
        if candidate is None:
            return None
        size = located_size(source, candidate)
        if size is not None and witness.confirms(decode(
                source.read(candidate + source.head, size - source.head))):
            return candidate
        position = candidate + 1
    return None


class Walk:
    """Iterates over the batches of ``[start, end)`` of a source (positions, not physical offsets).
    A frame belongs to the range in which it starts.

    ``start``: a frame boundary, or any position with ``resync``.
    ``resync``: begin at the first provable record. Unlike the result of `start_of`, this record is
        a guess: it may be part of a message body.
    ``first``: position at which the walk began.
    ``position``: position of the walk; after the walk, the next range begins there.
    ``growing``: end at the first bytes that are neither a message nor a blank record, because a
        file that is being written may be incomplete there.
    ``by_itself``: whether the file belongs to no store. Frames in the body of a damaged record then
        do not count as messages.
    ``is_dense``: whether the log has all messages of its queues.
    ``whole``: whether all frames of a buffer form one batch; otherwise, a batch ends at the first
        damage.
    ``beside``: removes stale records, which look like messages, from each batch
        (`rmqctl.scan.damage.stale`).
    ``sound``: called first with the data read; the records that it uses are in no batch.
    ``mapped``: whether it may be called with a mapping of the file.
    """

    def __init__(self, source: Source, start: int = 0, end: int | None = None, *,
                 resync: bool = False, growing: bool = False, chunk: int = CHUNK,
                 by_itself: bool = False, is_dense: bool = True, whole: bool = False,
                 beside: Callable[[Batch], Batch] | None = None,
                 sound: Sound | None = None, mapped: bool = True) -> None:
        self.source = source
        self._window = getattr(source, "window", None) if mapped and sound is not None else None
        self._whole, self._beside, self._sound = whole, beside, sound
        self.end = source.size if end is None else min(end, source.size)
        self.shrunk = False
        self._chunk, self._growing = chunk, growing
        if resync:
            first = next_provable(source, start, source.size)
            start = source.size if first is None else first
        self.first = self.position = start
        self.passed = EarlierMessages(self._look_back if start > 0 else None, by_itself=by_itself,
                                      is_dense=is_dense)

    @property
    def _is_led(self) -> bool:
        return self.source.witness is not None and not self.source.head

    def _look_back(self) -> list[Stretch]:
        """Return the last ranges of messages before the start of this walk, as a walk over the
        complete file would know them.
        """
        walk = Walk(self.source, 0, self.first, by_itself=self.passed.by_itself,
                    is_dense=self.passed.is_dense)
        for _ in walk:
            pass
        return walk.passed.stretches()

    def __iter__(self) -> Iterator[Batch]:
        buffer = bytearray(min(self._chunk, max(self.source.size - self.position, 1)))
        filled_from, filled = self.position, 0
        burst, sound_from = 1 << 62, self.position
        at_hand = AtHand(self.source)
        held: list[Batch] = []
        led: Led | None = None
        met, often, fresh, tries, started = 0, False, False, 0, 0.0
        while self.position < self.end:
            # Read on from the frame at which the walk is, unless the buffer contains all of it.
            at = self.position - filled_from
            if not self._complete(buffer, at, filled, filled_from):
                if held:  # their bytes are dropped
                    yield self._given(held)
                    held = []
                # Skip sound records in a mapping, which saves a copy; not where damage is frequent.
                if self._window is not None and met <= 1 and _PACE.prefers_mapping() and (
                        self._skip_mapped()):
                    continue
                started = thread_time()
                wanted = self._wanted(buffer, self.position - filled_from, filled)
                if wanted > len(buffer):
                    buffer = bytearray(wanted)
                filled_from = self.position
                room = min(len(buffer), self.source.size - filled_from)
                filled = self.source.read_into(memoryview(buffer)[:room], filled_from)
                at = 0
                at_hand.hold(buffer, filled_from, filled)
                led, met, often = None, 0, met > 1
                if filled < room:
                    self.shrunk = True
                    self.source.size = filled_from + filled
                    self.end = min(self.end, self.source.size)
                    if not filled:
                        return
                # If the previous buffer had much damage, examine this one by column.
                if often and self._whole and self._is_led:
                    led = Led(at_hand, memoryview(buffer)[:filled], filled_from)
                fresh, tries = True, _TRIES
            # Skip sound records at once.
            if fresh and self._sound is not None and tries:
                fresh = False
                if held:
                    yield self._given(held)
                    held = []
                reached = self._sound(
                    np.frombuffer(buffer, np.uint8, filled), self.source.base + filled_from, at,
                    self.end - filled_from, _NONE_LOST if led is None else led.lost, False)
                if 2 * (reached - at) > filled:
                    _PACE.add(False, started, reached - at)
                tries = min(tries + (reached - at) // _WORTH - 1, _TRIES)
                if reached > at:
                    self.position = filled_from + reached
                    if led is not None:
                        batch, sound_from = led.skipped(filled_from + at, self.passed, sound_from)
                        met += len(batch.spans)
                        if batch.spans:
                            yield self._given([batch])
                    continue
            # From the first record on that it did not skip.
            if often and led is not None:
                often = False
                batch, self.position, sound_from = led.frames(
                    self.position, self.end, self.passed, sound_from)
                met += len(batch.spans)
                if len(batch) or batch.spans:
                    held.append(batch)
                    continue
            # The records from here to the first invalid one.
            data = np.frombuffer(buffer, np.uint8, filled)
            batch = records_from(data, self.source.base + filled_from, at, self.end - filled_from,
                                 burst, self.source.head)
            good = len(batch)
            if good:
                self.position = filled_from + int(
                    batch.start[-1] + batch.column("total_size")[-1])
                burst *= 8
            # The chain is broken: determine what is there, and where it continues. After damage few
            # candidates are examined at a time, and more as long as they are sound.
            if self.position < self.end and good < burst // 8 and self._complete(
                    buffer, self.position - filled_from, filled, filled_from):
                if self._growing and not is_blank(self.source, self.position):
                    self.end = self.position
                else:
                    burst = _BURST
                    self.passed.add(sound_from, self.position)
                    # A single damage in a buffer is examined separately, many by column.
                    met += 1
                    if led is None and met > 1 and self._is_led:
                        led = Led(at_hand, memoryview(buffer)[:filled], filled_from)
                        if self._whole and self._sound is not None:
                            if good:
                                held.append(batch)
                            sound_from, fresh = self.position, True
                            continue
                    more = None if led is None or not self._whole else led.frames(
                        self.position, self.end, self.passed, self.position)
                    if more is not None and more[0].spans:
                        if good:
                            held.append(batch)
                        batch, self.position, sound_from = more
                        good = len(batch)
                    else:
                        span = None if led is None else led.span(self.position)
                        batch.spans = classify(at_hand, self.position,
                                               self.passed) if span is None else [span]
                        self.passed.is_damaged |= span is not None
                        sound_from = self.position = batch.spans[-1].end - self.source.base
                        fresh = self._whole
            burst = min(burst, 1 << 62)
            if good or batch.spans:
                held.append(batch)
                if not self._whole and (batch.spans or self._beside is None):
                    yield self._given(held)
                    held = []
        if held:
            yield self._given(held)
        self.passed.add(sound_from, self.position)

    def _skip_mapped(self) -> bool:
        """Skip sound records in a mapping. Return whether this reached its end, or the walk's."""
        assert self._window is not None
        assert self._sound is not None
        length = min(_MAPPED, self.source.size - self.position)
        started = thread_time()
        data = self._window(self.position, length) if length > _LEAST_MAPPED else None
        if data is None:
            return False
        reached = self._sound(
            np.frombuffer(data, np.uint8, length - _SLACK), self.source.base + self.position, 0,
            self.end - self.position, _NONE_LOST, True)
        del data  # the pages are released
        self.position += reached
        if 2 * reached > length:
            _PACE.add(True, started, reached)
        return self.position >= self.end or 2 * reached > length

    def _given(self, batches: list[Batch]) -> Batch:
        batch = joined(batches)
        return batch if self._beside is None else self._beside(batch)

    def _complete(self, buffer: bytearray, at: int, filled: int, filled_from: int) -> bool:
        """Return whether the frame at ``at`` can be judged from the buffer. False for a record that
        looks valid but ends after the buffer: read more first.
        """
        at += self.source.head
        if at + START_SIZE > filled:
            return filled > 0 and filled_from + filled >= self.source.size and (
                at - self.source.head < filled)
        total, magic, physical = _HEAD.unpack_from(buffer, at)
        return not (magic in VERSIONS
                    and physical == self.source.base + filled_from + at
                    and at + total > filled
                    and total <= min(MAX_RECORD, self.source.size - filled_from - at))

    def _wanted(self, buffer: bytearray, at: int, filled: int) -> int:
        """Return the buffer size that the frame at ``at`` needs (called only if the buffer is too
        small).
        """
        head = self.source.head
        if at != 0 or head + START_SIZE > filled:
            return 0
        total: int = _HEAD.unpack_from(buffer, head)[0]
        return total + head
