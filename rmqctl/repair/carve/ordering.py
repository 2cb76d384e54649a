"""The order in which carved messages are written, and what is written between them.

Records are written broker by broker, the one with the earliest message first, each in the order of
its log. So queue offsets ascend within each queue, wherever the pieces of the log were found. A
broker is known by its store host; hosts of messages that follow each other without a gap (it had
several addresses, or another one after a move) are one broker.

A message keeps its physical offset: fillers take the place of what is missing before it. Those
whose place is taken by another message come last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from rmqctl.formats import dledger
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.filler import NOWHERE
from rmqctl.formats.local.message import Record, decode
from rmqctl.repair.carve.carve import MISPLACED, CarvedPage
from rmqctl.repair.carve.spool import Spool
from rmqctl.repair.salvage.filler import MOST, Style, filler, least_filler
from rmqctl.scan.frames import Array

MOST_HOSTS = 4096
"""Store hosts that are told apart; what comes after them is taken as one."""
MOST_FILES = 1024
"""Missing files between those of a log that are written with a filler each."""
RUN = 1 << 20
_STEP = 1 << 10

_STYLE = Style()

RecordPlace = tuple[int, int, int, int, int]
"""(rank of the broker, physical offset, source, position, size)."""


class Bridge:
    """Fillers for what is missing of a log whose files have ``file_size`` bytes.

    ``room``: how many bytes of fillers may be written in all. A file that is missing gets one.
    """

    def __init__(self, file_size: int, room: int) -> None:
        self.file_size, self._room, self._files = file_size, room, MOST_FILES
        self.fillers = 0

    def spans(self, end: int, physical: int) -> bool:
        """Whether a log that ends at ``end`` can go on at ``physical``."""
        missing, start = self._missing(end, physical)
        gap = physical - start
        return (physical >= end and (not gap or gap >= least_filler(_STYLE))
                and gap <= self._room and len(missing) <= self._files)

    def _missing(self, end: int, physical: int) -> tuple[range, int]:
        """(the bases of missing files between, where in the file of ``physical`` a gap starts)."""
        size = self.file_size
        base, last = physical - physical % size, end - end % size
        return range(last + size if end % size else last, base, size), max(base, end)

    def records(self, end: int, before: Record) -> Iterator[Record]:
        """The fillers between the end of the log and a message, if they can be there."""
        physical = before.physical_offset
        if end >= physical or not self.spans(end, physical):
            return
        missing, at = self._missing(end, physical)
        self._files -= len(missing)
        self._room -= physical - at
        least = least_filler(Style(sealed=True))
        for base in missing:
            yield self._record(base, least, before)
        while at < physical:
            left = physical - at
            size = left if left <= MOST else MOST - least
            yield self._record(at, size, before)
            at += size

    def _record(self, physical: int, size: int, before: Record) -> Record:
        raw = bytearray(size)
        host = before.store_host if len(before.store_host[0]) == len(NOWHERE[0]) else NOWHERE
        style = Style(props.CRC32.encode() in before.properties, host)
        if size < least_filler(style):
            style = Style(host=host)
        for at, data in filler(physical, size, before.store_timestamp, style):
            raw[at:at + len(data)] = data
        self.fillers += 1
        return decode(bytes(raw))


class Order:
    """Collects places, then gives them sorted. ``run`` places are sorted in memory at once."""

    def __init__(self, run: int = RUN) -> None:
        self._spool, self._astray = Spool(), Spool()
        self._run = run
        self._hosts: dict[bytes, int] = {}
        self._earliest: list[int] = []
        self._broker: list[int] = []
        """For each host another one of the same broker, itself for one of them."""
        self._last = -1, 0, 0, 0
        """(source, its end in the log, its end in the source, host) of the last record."""
        self.size = 0
        """Bytes of all records."""

    def __len__(self) -> int:
        return len(self._spool) + len(self._astray)

    def add(self, carved: CarvedPage) -> None:
        page = carved.page
        sizes = page.numbers("total_size")
        host: Array = np.fromiter(map(self._number, page.hosts("store_host")), np.int64, len(page))
        times = page.numbers("store_timestamp")
        for broker in np.unique(host).tolist():
            self._earliest[broker] = min(self._earliest[broker], int(times[host == broker].min()))
        physical = page.numbers("physical_offset")
        self._bring_together(carved, physical, physical + sizes, host)
        spool = self._astray if carved.placement == MISPLACED else self._spool
        spool.add(carved.source, carved.offset, physical, sizes, host)
        self.size += int(sizes.sum())

    def _bring_together(self, carved: CarvedPage, physical: Array, ends: Array,
                        host: Array) -> None:
        """Hosts of records that follow each other without a gap are of one broker."""
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
        """The host that stands for a host's broker."""
        broker = self._broker
        while broker[host] != host:
            broker[host] = host = broker[broker[host]]
        return host

    def _number(self, host: bytes) -> int:
        known = self._hosts.get(host)
        if known is None:
            known = min(len(self._hosts), MOST_HOSTS - 1)
            if known == len(self._earliest):
                self._earliest.append(1 << 63)
                self._broker.append(known)
            if len(self._hosts) < MOST_HOSTS:
                self._hosts[host] = known
        return known

    def places(self, bridge: Bridge) -> Iterator[tuple[RecordPlace, bool]]:
        """All places in the order to write, with whether the message keeps its physical offset.

        A misplaced message keeps it where nothing else is.
        """
        rank = self._ranks()
        end, current, keeps = 0, -1, True
        late = Spool()
        with ExitStack() as held:
            held.callback(late.close)

            def defer(place: RecordPlace) -> None:
                broker, physical, source, position, size = place
                late.add(source, position, physical, size, broker)

            astray = self._sorted(self._astray, rank, held)
            waiting = next(astray, None)
            for place in self._sorted(self._spool, rank, held):
                broker, physical, *_, size = place
                if broker != current:
                    is_first, current = current < 0, broker
                    start = physical - physical % bridge.file_size if is_first else end
                    end, keeps = start, bridge.spans(start, physical)
                # Misplaced messages that lie between this one and the one before it.
                while waiting is not None and waiting[:2] < (broker, physical):
                    reach = waiting[1] + waiting[4]
                    if keeps and waiting[0] == broker and bridge.spans(end, waiting[1]) and (
                            reach <= physical and bridge.spans(reach, physical)):
                        yield waiting, True
                        end = reach
                    else:
                        defer(waiting)
                    waiting = next(astray, None)
                # The message itself; where its place is taken, it comes last.
                if not keeps:
                    yield place, False
                elif bridge.spans(end, physical):
                    yield place, True
                    end = physical + size
                elif physical - end < least_filler(_STYLE) and (
                        physical - end != dledger.HEAD_SIZE):
                    defer(place)
                else:
                    keeps = False
                    yield place, False
            while waiting is not None:
                defer(waiting)
                waiting = next(astray, None)
            yield from ((place, False) for place in _places(late))

    def _sorted(self, spool: Spool, rank: Array, held: ExitStack) -> Iterator[RecordPlace]:
        runs: list[Spool] = []
        for rows in spool.chunks(self._run):
            ranks = rank[rows["late"]]
            order = np.lexsort((rows["physical"], ranks))
            run = Spool()
            held.callback(run.close)
            runs.append(run)
            done = rows[order]
            done["late"] = ranks[order]
            run.append(done)
        spool.close()
        return heapq.merge(*map(_places, runs))

    def _ranks(self) -> Array:
        """For each host the number of its broker, in the order in which they are written."""
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
        self._astray.close()


def _places(run: Spool) -> Iterator[RecordPlace]:
    for rows in run.chunks(_STEP):
        yield from zip(*(rows[name].tolist() for name in (
            "late", "physical", "source", "position", "size")), strict=True)
