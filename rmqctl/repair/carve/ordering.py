"""Determine the order in which carved messages are written, and the logs that become new stores.

The broker with the earliest message comes first. The records of each broker are in log order. Queue
offsets therefore ascend within each queue, wherever the pieces of the log were found.

A broker is recognised by its store host. Different hosts of messages without a gap between them are
the same broker, with several addresses or after a move.

A message keeps its physical offset: fillers replace what is missing before the message. Two
messages with the same physical offset belong to different logs, and each log becomes a separate
store. Copies in a compaction log or a tier (`rmqctl.repair.carve.copies`) are not written.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import field

import numpy as np

from rmqctl.files.row_file import RowFile
from rmqctl.formats import dledger
from rmqctl.formats.local.sysflag import INNER_BATCH, has_consume_queue_row
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.repair.carve.bridging import Bridge, Lacking
from rmqctl.repair.carve.carve import MISPLACED, CarvedPage
from rmqctl.repair.carve.copies import ShiftQueues, identities
from rmqctl.repair.salvage.filler import Style, least_filler
from rmqctl.scan.frames import Array, distinct
from rmqctl.store.pages import Page

MAX_HOSTS = 4096
"""Maximum number of store hosts that are told apart; all further hosts count as one."""
MAX_LOGS = 64
"""Maximum number of logs that are kept separate; messages from further logs are put
at the end of the last of these logs.
"""
RUN = 1 << 20
_STEP = 1 << 10
_MIN_FILLER = least_filler(Style())

_PLACE = np.dtype([("physical", "<i8"), ("position", "<i8"), ("offset", "<i8"), ("size", "<i4"),
                   ("source", "<i4"), ("broker", "<i4"), ("queue", "<i4"), ("is_late", "<i4"),
                   ("time", "<i8"), ("identity", "<u8")])
_FIELDS = ("broker", "physical", "is_late", "source", "position", "size", "queue", "offset",
           "time")

RecordPlace = tuple[int, int, int, int, int, int, int, int, int]
"""Location of a record: (rank of the broker, physical offset, whether the record is misplaced,
source, position, size, queue number or -1, queue offset, store time).
"""
_FOLLOWS = -1
_CLOCK = 60_000
"""Maximum number of milliseconds by which a broker's clock may have been set back between fragments
of a log.
"""


class _Places(RowFile):
    """Places of records before they are sorted."""

    def __init__(self) -> None:
        super().__init__(_PLACE, "places of records", held=RUN >> 6)

    def append_place(self, place: RecordPlace) -> None:
        row: Array = np.zeros(1, _PLACE)
        for name, value in zip(_FIELDS, place, strict=True):
            row[name] = value
        self.append(row)

    def __iter__(self) -> Iterator[RecordPlace]:
        for rows in self.chunks(_STEP):
            yield from zip(*(rows[name].tolist() for name in _FIELDS), strict=True)


@dataclass(slots=True)
class CarvedLog:
    """One of the logs that were found.

    ``reason``: why the log is not part of an earlier log.
    ``places``: the messages in order.
    ``tail``: messages that do not fit between these.
    ``keeps``: whether physical offsets are kept. DLedger entry headers between messages prevent
    this.
    """

    number: int
    bridge: Bridge
    reason: str
    end: int
    lacking: Lacking = field(default_factory=Lacking)
    places: _Places = field(default_factory=_Places)
    tail: _Places = field(default_factory=_Places)
    keeps: bool = True
    _time: int = 0
    _after: tuple[int, int] = (-1, 0)

    def distance(self, place: RecordPlace) -> int | None:
        """Return the difference (ms) between the store times of a message and of the log's last
        message.

        Return `_FOLLOWS` for the next message in the same source. Return None for a message that
        cannot follow.
        """
        _, physical, _, source, position, *_, time = place
        if physical == self.end and self._after == (source, position):
            return _FOLLOWS
        if physical != self.end and (time < self._time - _CLOCK or (
                self.keeps and physical - self.end >= _MIN_FILLER
                and not self.bridge.spans(self.end, physical))):
            return None
        return abs(time - self._time)

    def takes(self, physical: int) -> bool:
        """Return whether a message at a physical offset can come next, after fillers if
        necessary.
        """
        if self.keeps and physical - self.end == dledger.HEAD_SIZE:
            self.keeps = False
        return not self.keeps or self.bridge.spans(self.end, physical)

    def add(self, place: RecordPlace) -> None:
        """Add the next message."""
        _, physical, _, source, position, size, *_, time = place
        self.places.append_place(place)
        self.end, self._time, self._after = physical + size, time, (source, position + size)

    def ordered(self) -> Iterator[tuple[RecordPlace, bool]]:
        """Yield (place, whether the message keeps its physical offset), in writing order."""
        yield from ((place, self.keeps) for place in self.places)
        yield from ((place, False) for place in self.tail)

    def close(self) -> None:
        self.places.close()
        self.tail.close()


class Order:
    """Collects the places of messages, and divides the messages into logs.

    ``run``: maximum number of places that are sorted in memory at once.
    """

    def __init__(self, run: int = RUN) -> None:
        self._spool = _Places()
        self._run = run
        self._queues: dict[tuple[bytes, int], int] = {}
        self._queues_of = ShiftQueues()
        self._batches: set[int] = set()
        """Queues with inner batches, which use several queue offsets."""
        self._hosts: dict[bytes, int] = {}
        self._earliest: list[int] = []
        self._reach: list[int] = []
        """For each host: the physical offset after its last message that is not misplaced."""
        self._broker: list[int] = []
        """For each host: another host of the same broker, or the host itself."""
        self._last = -1, 0, 0, 0
        """The last record: (source, end of the record in the log and in the source, host)."""
        self.size = 0
        """Total size of all records in bytes."""
        self.copies = 0
        """Number of copies that are skipped, because the `logs` contain the same messages
        elsewhere.
        """

    def __len__(self) -> int:
        return len(self._spool)

    def add(self, carved: CarvedPage) -> None:
        page = carved.page
        sizes = page.numbers("total_size")
        host: Array = np.fromiter(map(self._number, page.hosts("store_host")), np.int64, len(page))
        times = page.numbers("store_timestamp")
        for broker in distinct(host).tolist():
            self._earliest[broker] = min(self._earliest[broker], int(times[host == broker].min()))
        physical = page.numbers("physical_offset")
        self._bring_together(carved, physical, physical + sizes, host)
        rows: Array = np.empty(len(page), _PLACE)
        rows["physical"], rows["position"], rows["size"] = physical, carved.offset, sizes
        rows["source"], rows["broker"] = carved.source, host
        rows["queue"], rows["offset"] = self._queue(page), page.numbers("queue_offset")
        rows["is_late"], rows["time"] = carved.placement == MISPLACED, times
        rows["identity"] = identities(host, rows["queue"], rows["offset"], sizes, times,
                                      page.numbers("body_crc"))
        self._spool.append(rows)
        self._queues_of.add(rows)
        self._extend(rows)
        self.size += int(sizes.sum())

    def _extend(self, rows: Array) -> None:
        """Record the ends of messages that are not misplaced."""
        rows = rows[rows["is_late"] == 0]
        np.maximum.at(reach := np.array(self._reach, np.int64), rows["broker"],
                      rows["physical"] + rows["size"])
        self._reach = reach.tolist()

    def _leave_copies(self) -> None:
        """Remove copies from the places to sort. Raises: StoreIOError."""
        spool, self.copies = self._queues_of.without_copies(self._spool, into := _Places())
        if spool is into:
            self._spool.close()
            self._spool, self._reach = into, [0] * len(self._reach)
            for rows in into.chunks(_STEP):
                self._extend(rows)

    def _queue(self, page: Page) -> Array:
        """Return the queue number of each message; -1 for messages without a queue."""
        flags = page.numbers("sys_flag").tolist()
        queues = [self._queues.setdefault(key, len(self._queues)) if has_consume_queue_row(flag)
                  else -1 for flag, *key_of in zip(flags, page.raw("topic"),
                                                   page.numbers("queue_id").tolist(), strict=True)
                  for key in [(key_of[0], key_of[1])]]
        self._batches.update(queue for flag, queue in zip(flags, queues, strict=True)
                             if flag & INNER_BATCH)
        return np.array(queues, np.int32)

    def _bring_together(self, carved: CarvedPage, physical: Array, ends: Array,
                        host: Array) -> None:
        """Assign the hosts of contiguous records to one broker."""
        source, after, position, other = self._last
        if (source, after, position) == (carved.source, physical[0], carved.offset[0]):
            self._broker[self._first(int(host[0]))] = self._first(other)
        follows = (physical[1:] == ends[:-1]) & (host[1:] != host[:-1]) & (
            np.diff(carved.offset) == np.diff(physical))
        for row in np.flatnonzero(follows).tolist():
            self._broker[self._first(int(host[row + 1]))] = self._first(int(host[row]))
        self._last = (carved.source, int(ends[-1]),
                      int(carved.offset[-1] + ends[-1] - physical[-1]), int(host[-1]))

    def _first(self, host: int) -> int:
        """Return the host that represents a host's broker."""
        broker = self._broker
        while broker[host] != host:
            broker[host] = host = broker[broker[host]]
        return host

    def _number(self, host: bytes) -> int:
        number = self._hosts.get(host)
        if number is None:
            number = min(len(self._hosts), MAX_HOSTS - 1)
            if number == len(self._earliest):
                self._earliest.append(1 << 63)
                self._reach.append(0)
                self._broker.append(number)
            if len(self._hosts) < MAX_HOSTS:
                self._hosts[host] = number
        return number

    def logs(self, bridge: Callable[[], Bridge]) -> list[CarvedLog]:
        """Return the logs that were found, with the places of their messages.

        Each message is added to the log that fits best. This is the log that the message continues
        in the same source, else the log with the nearest store time. A message that contradicts all
        logs of its broker starts a new log.

        ``bridge``: returns a new bridge for a log.
        """
        names = [(topic.decode("utf-8", "surrogateescape"), queue) for topic, queue in self._queues]
        self._leave_copies()
        rank = self._ranks()
        reach = [0] * len(rank)
        for host, end in enumerate(self._reach):
            reach[rank[host]] = max(end, reach[rank[host]])
        logs: list[CarvedLog] = []
        first, current = 0, -1
        with ExitStack() as held:
            for place, following in _ahead(self._sorted(rank, held)):
                broker, physical, is_late, _, _, size, queue, offset, _ = place
                if broker != current:
                    first, current = len(logs), broker
                # A misplaced message goes between others of the first log, or into another one.
                fits = [log for log in logs[first:] if physical >= log.end]
                if is_late and (physical + size > following or physical >= reach[broker]):
                    fits = [log for log in fits if log.number > first
                            or log.distance(place) == _FOLLOWS]
                best = _best(fits, place)
                if best is None and len(logs) < MAX_LOGS:
                    best = CarvedLog(len(logs), bridge(), self._reason(logs, first, fits),
                                     end=physical - physical % bridge().file_size)
                    logs.append(best)
                if best is None or not best.takes(physical):
                    (best or logs[-1]).tail.append_place(place)
                    continue
                # Its gap, its queue, and the message itself.
                if best.keeps and physical > best.end:
                    best.lacking.gap(physical, best.bridge.take(best.end, physical))
                if queue >= 0 and queue not in self._batches:
                    best.lacking.met(queue, names[queue], offset)
                best.add(place)
        return logs

    @staticmethod
    def _reason(logs: list[CarvedLog], first: int, fits: list[CarvedLog]) -> str:
        if not logs:
            return ""
        if len(logs) == first:
            return Phrase("another store host")
        return Phrase("too much is missing before it, or it is older") if fits else Phrase(
            "same physical offsets as other messages, with different bytes")

    def _sorted(self, rank: Array, held: ExitStack) -> Iterator[RecordPlace]:
        runs: list[_Places] = []
        for rows in self._spool.chunks(self._run):
            ranked = rows.copy()
            ranked["broker"] = rank[rows["broker"]]
            run = _Places()
            held.callback(run.close)
            runs.append(run)
            run.append(ranked[np.lexsort((ranked["is_late"], ranked["physical"],
                                          ranked["broker"]))])
        self._spool.close()
        return heapq.merge(*runs)

    def _ranks(self) -> Array:
        """Return the rank of each host's broker, in the order in which brokers are written."""
        first: Array = np.array([self._first(broker) for broker in range(len(self._broker))],
                                np.int64)
        earliest: dict[int, int] = {}
        for broker, time in zip(first.tolist(), self._earliest, strict=True):
            earliest[broker] = min(time, earliest.get(broker, time))
        ordered = sorted(earliest, key=lambda broker: (earliest[broker], broker))
        numbers: Array = np.zeros(len(first), np.int64)
        numbers[ordered] = np.arange(len(ordered))
        ranks: Array = numbers[first]
        return ranks

    def close(self) -> None:
        self._spool.close()


def _best(logs: list[CarvedLog], place: RecordPlace) -> CarvedLog | None:
    """Return the log that a message fits best."""
    near = [(distance, log.number, log) for log in logs
            if (distance := log.distance(place)) is not None]
    return min(near)[2] if near else None


def _ahead(places: Iterator[RecordPlace]) -> Iterator[tuple[RecordPlace, int]]:
    """Yield each place, with the physical offset of the next place if both belong to the same
    broker, else 2**63.
    """
    last: RecordPlace | None = None
    for place in places:
        if last is not None:
            yield last, place[1] if place[0] == last[0] else 1 << 63
        last = place
    if last is not None:
        yield last, 1 << 63
