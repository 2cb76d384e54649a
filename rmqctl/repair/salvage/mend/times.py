"""Correct store times, which no checksum covers, from other structures that contain the same time.

These structures contain the time to the millisecond:

* a unit of a consumequeue_ext, and an entry of a batch queue;
* the deliver time in the entry of a delayed message;
* the header of an index file, for its first and last message;
* the checkpoint, for the last message of the log.

Other index entries contain it to the second. A broker's clock runs forward, so the neighbours in
the log limit a store time. If exactly one flipped bit makes a time fit between them, that bit was
flipped.

A single time out of order is legal, because a clock may be set back. It is kept unless one of these
proofs contradicts it. An impossible time (`header_rules.STORE_TIME`) is always replaced. If no
proof exists, the neighbour's time is used, so that searches by time work. The plan reports this.

In benchmarks/stage_yields.py, 49 of 60 store times with one flipped bit are restored, and 11 of 60
with a random value. Most of the others get the right second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from rmqctl.checks.verify.queue.ext_units import ExtReader
from rmqctl.damage.evidence import ENDLESS, chain
from rmqctl.damage.index_keys import IndexedKey, keys_of_places
from rmqctl.damage.records import Records, unless_crc_differs
from rmqctl.damage.survey.survey import Survey
from rmqctl.errors import RmqctlError
from rmqctl.formats.local import consume_queue_ext, delay
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record, build
from rmqctl.parse_values import time_text
from rmqctl.scan.headers import HeaderFault
from rmqctl.store.store import Store

_LONG = (1 << 64) - 1
_SECOND = 1000


class Between(NamedTuple):
    """Range of store times (ms) that the neighbours allow; -1 or `ENDLESS` on a side without a
    neighbour.
    """

    low: int
    high: int

    @property
    def closed(self) -> bool:
        return self.low >= 0 and self.high < ENDLESS

    def allows(self, time: int) -> bool:
        return self.low <= time <= self.high

    def by_no_chance(self, time: int, stored: int) -> bool:
        """Return whether a wrong clock is an unlikely explanation.

        A wrong clock is unlikely if the difference that the flipped bit makes is large compared
        with the span between the neighbours.
        """
        return abs(time - stored) > 64 * (self.high - self.low)

    def meets(self, key: IndexedKey) -> bool:
        """Return whether an allowed time is in the second that an index entry records."""
        return self.low < key.time + _SECOND and key.time <= self.high

    def may_be(self, time: int) -> bool:
        """Return whether a time at the start or end of the log is possible.

        The time must be allowed, and at most `rules.YEARS` away from the time of the only
        neighbour.
        """
        return not self.closed and self.allows(time) and (
            time <= self.low + rules.YEARS if self.low >= 0 else time >= self.high - rules.YEARS)


def proved_time(stored: int, between: Between, exact: Iterable[tuple[int, str]],
                keys: Sequence[IndexedKey], *, impossible: bool) -> tuple[int | None, str]:
    """Return (the proven time, the reason in words); (None, "") if no time is proven.

    * ``exact``: times in other structures, with the names of these structures.
    * ``keys``: the index entries that point to the message.
    * ``impossible``: whether the stored time is known to be wrong.
    """
    stored_text = f"store time {time_text(stored)}"
    turned = [time for bit in range(64)
              if between.allows(time := (stored & _LONG) ^ 1 << bit)]
    may_be = between.may_be(stored)
    exact = [*exact, *((key.time, "the header of its index file") for key in keys if key.exact)]
    if not impossible and any(time == stored for time, _ in exact):
        return None, ""
    if not impossible and keys and (any(key.time <= stored < key.time + _SECOND for key in keys)
                                    or all(key.agrees(stored) for key in keys)):
        return None, ""
    # A structure with the exact time.
    for time, by in exact:
        if between.allows(time) and (time in turned or not may_be):
            return time, f"{stored_text}: corrected to {time_text(time)}, from {by}"
    # One flipped bit: between neighbours on both sides, or in the index's second.
    seconds = [Between(max(between.low, key.time), min(between.high, key.time + _SECOND - 1))
               for key in keys if between.meets(key)]
    if seconds:
        turned = [time for time in turned if any(second.allows(time) for second in seconds)]
    if len(turned) == 1 and (seconds or (between.closed and between.by_no_chance(
            turned[0], stored))):
        return turned[0], f"{stored_text}: corrected to {time_text(turned[0])} (one flipped bit)"
    if seconds and not may_be:
        time = max(second.low for second in seconds)
        return time, (f"{stored_text}: set to {time_text(time)}, between its neighbours and in the "
                      "index entry's second; milliseconds unknown")
    return None, ""


def neighbours_time(stored: int, between: Between) -> tuple[int, str]:
    """Return the time of the neighbour, to replace an impossible store time, and the reason."""
    return between.low, (f"invalid store time {time_text(stored)}: original unknown, set to its "
                         f"neighbour's time, {time_text(between.low)}")


class Times:
    """Corrector of store times that may be damaged."""

    def __init__(self, store: Store, survey: Survey, records: Records) -> None:
        self._store, self._survey, self._records = store, survey, records
        self._impossible = {fault.offset for fault in survey.headers.faults
                            if rules.STORE_TIME in fault.categories}
        self._indexed: dict[int, list[IndexedKey]] | None = None

    def mend_astray(self) -> None:
        """Correct individual store times that are out of order, if another structure proves the
        original time.
        """
        for physical, low, high in self._survey.astray:
            _, record, _ = self._records.read(physical, None)
            if record is None or physical in self._impossible or (
                    self._records.is_replaced(physical)):
                continue
            time, reason = self._proved(record, Between(low, high))
            if time is not None and self._is_misfit(record):
                self._records.rejected.add(physical)  # two of its fields are another message's
                continue
            if time is not None and time != record.store_timestamp and self._records.replace(
                    physical, unless_crc_differs(build(replace(record, store_timestamp=time)))):
                self._records.reasons[physical] = reason

    def _is_misfit(self, record: Record) -> bool:
        """Return whether a record's queue offset fits nowhere in its queue and no entry points to
        it.
        """
        place = record.physical_offset
        witness = self._records.parts[0].witness
        runs = self._survey.runs.of((os.fsdecode(record.topic), record.queue_id))
        return any(run.low == run.high == place for run in chain(runs)[1]) and not (
            witness is not None and witness.confirms(record))

    def possible(self, record: Record, fault: HeaderFault) -> tuple[Record, str]:
        """Return the record with a possible store time. Return the record unchanged if its
        neighbours' times are impossible, too.
        """
        times = [time for place in (fault.before, fault.behind)
                 if (time := self._time_at(place)) is not None]
        if len(times) < 2 or min(times) < rules.EARLIEST:
            return record, ""
        between = Between(min(times), max(times))
        time, reason = self._proved(record, between, impossible=True)
        if time is None:
            time, reason = neighbours_time(record.store_timestamp, between)
        return replace(record, store_timestamp=time), reason

    def _time_at(self, place: int | None) -> int | None:
        if place is None:
            return None
        _, record, _ = self._records.read(place, None)
        return None if record is None else record.store_timestamp

    # -- proof ------------------------------------------------------------------------------------

    def _proved(self, record: Record, between: Between, *, impossible: bool = False) -> tuple[
            int | None, str]:
        """Return (the proven time, the reason in words); (None, "") if no time is proven."""
        keys = self._keys_of(record.physical_offset)
        exact = list(self._exact(record))
        if between.high >= ENDLESS and not any(between.meets(key) for key in keys):
            exact += [(time, "the checkpoint") for time in self._last_times()]
        return proved_time(record.store_timestamp, between, exact, keys, impossible=impossible)

    def _exact(self, record: Record) -> Iterator[tuple[int, str]]:
        """Yield (store time, name of the structure) for each structure that contains the store time
        to the millisecond.
        """
        key = os.fsdecode(record.topic), record.queue_id
        try:
            batch = self._store.queues.batch.get(key)
            row = batch.find(record.queue_offset) if batch is not None else None
            if row is not None and row.physical_offset == record.physical_offset:
                yield row.store_timestamp, "its batch queue entry"
            code = self._tags_code(key, record.queue_offset, record.physical_offset)
            if code is None:
                return
            if consume_queue_ext.is_address(code):
                with closing(ExtReader(self._store, *key)) as reader:
                    unit = reader.unit(code)
                if unit is not None:
                    yield unit.store_timestamp, "its unit in consumequeue_ext"
            elif record.topic == props.SCHEDULE_TOPIC.encode():
                late = self._delay(record)
                if late is not None:
                    yield code - late, "the deliver time in its consume queue entry"
        except RmqctlError:
            return  # what cannot be read proves nothing

    def _tags_code(self, key: tuple[str, int], queue_offset: int, physical: int) -> int | None:
        """Return the tags code of the entry at a queue offset if it points to ``physical``; else
        None.
        """
        queue = self._store.queues.by_key.get(key)
        if queue is None or queue_offset < 0:
            return None
        with closing(queue):
            unit = queue.unit(queue_offset)
        if unit is None or unit.physical_offset != physical:
            return None
        return unit.tags_code

    def _delay(self, record: Record) -> int | None:
        """Return the delay in ms between store time and delivery of a delayed message.

        Delay levels can be configured, so the delay of an adjacent message of the queue is
        preferred to the default.
        """
        key = os.fsdecode(record.topic), record.queue_id
        queue = self._store.queues.by_key.get(key)
        for queue_offset in (record.queue_offset - 1, record.queue_offset + 1):
            if queue is None or queue_offset < 0:
                continue
            with closing(queue):
                unit = queue.unit(queue_offset)
            if unit is None:
                continue
            _, other, _ = self._records.read(unit.physical_offset, unit.size)
            if other is not None and other.queue_offset == queue_offset and (
                    other.topic == record.topic and other.queue_id == record.queue_id):
                return unit.tags_code - other.store_timestamp
        return delay.DEFAULT_LEVELS.get(record.queue_id + 1)

    def _keys_of(self, physical: int) -> list[IndexedKey]:
        if self._indexed is None:
            places = {place for place, _, _ in self._survey.astray} | self._impossible
            self._indexed = keys_of_places(self._store, places)
        return self._indexed.get(physical, [])

    def _last_times(self) -> tuple[int, ...]:
        """Return the times in the checkpoint that are store times of the log's last message.

        These times are later than the store times of all earlier messages. Other times may belong
        to an earlier message, after which the clock was set back.
        """
        saved = self._store.checkpoint
        times = () if saved is None else (saved.physic_msg_timestamp, saved.logics_msg_timestamp)
        return tuple(time for time in times if time > self._survey.newest_before_last)
