"""The places of many records, sorted on disk into the order in which they go into a new store.

That is: broker by broker (the one with the earliest message first), each in the order of its log.
So queue offsets ascend within each queue, wherever the pieces of the log were found. A broker is
known by its store host; hosts that are found in one log (it had several addresses, or another one
after a move) are one broker.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from rmqctl.repair.carve.carve import IN_PLACE, Found
from rmqctl.repair.carve.spool import Spool
from rmqctl.scan.frames import Array

MOST_HOSTS = 4096
"""Store hosts that are told apart; what comes after them is taken as one."""
MOST_LOGS = 1 << 16
"""Pieces of logs whose hosts are brought together."""
RUN = 1 << 20
_STEP = 1 << 10

Place = tuple[int, int, int, int, int]
"""(rank of the broker, physical offset, source, position, size)."""


class Order:
    """Collects places, then gives them sorted. ``run`` places are sorted in memory at once."""

    def __init__(self, run: int = RUN) -> None:
        self._spool = Spool()
        self._run = run
        self._hosts: dict[bytes, int] = {}
        self._earliest: list[int] = []
        self._broker: list[int] = []
        """For each host another one of the same broker, itself for one of them."""
        self._logs: dict[tuple[int, int], int] = {}
        """A host of each log, which is known by its source and the shift there."""
        self.size = 0
        """Bytes of all records."""

    def __len__(self) -> int:
        return len(self._spool)

    def add(self, found: Found) -> None:
        page = found.page
        sizes = page.numbers("total_size")
        host: Array = np.fromiter(map(self._number, page.hosts("store_host")), np.int64, len(page))
        times = page.numbers("store_timestamp")
        for one in np.unique(host).tolist():
            self._earliest[one] = min(self._earliest[one], int(times[host == one].min()))
        physical = page.numbers("physical_offset")
        if found.placement == IN_PLACE:
            self._bring_together(found.source, physical - found.offset, host)
        self._spool.add(found.source, found.offset, physical, sizes, host)
        self.size += int(sizes.sum())

    def _bring_together(self, source: int, shift: Array, host: Array) -> None:
        changes = (shift[1:] != shift[:-1]) | (host[1:] != host[:-1])
        for row in [0, *(np.flatnonzero(changes) + 1).tolist()]:
            key, one = (source, int(shift[row])), int(host[row])
            other = self._logs.get(key)
            if other is not None:
                self._broker[self._first(one)] = self._first(other)
            elif len(self._logs) < MOST_LOGS:
                self._logs[key] = one

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

    def places(self) -> Iterator[Place]:
        """All places in order."""
        rank = self._ranks()
        runs: list[Spool] = []
        try:
            for rows in self._spool.chunks(self._run):
                ranks = rank[rows["late"]]
                order = np.lexsort((rows["physical"], ranks))
                run = Spool()
                runs.append(run)
                done = rows[order]
                done["late"] = ranks[order]
                run.add_rows(done)
            self._spool.close()
            yield from heapq.merge(*map(_places, runs))
        finally:
            for run in runs:
                run.close()

    def _ranks(self) -> Array:
        """For each host the number of its broker, in the order in which they are written."""
        first: Array = np.array([self._first(one) for one in range(len(self._broker))], np.int64)
        earliest: dict[int, int] = {}
        for one, time in zip(first.tolist(), self._earliest, strict=True):
            earliest[one] = min(time, earliest.get(one, time))
        ordered = sorted(earliest, key=lambda one: (earliest[one], one))
        numbers: Array = np.zeros(len(first), np.int64)
        numbers[ordered] = np.arange(len(ordered))
        found: Array = numbers[first]
        return found

    def close(self) -> None:
        self._spool.close()


def _places(run: Spool) -> Iterator[Place]:
    for rows in run.chunks(_STEP):
        yield from zip(*(rows[name].tolist() for name in (
            "late", "physical", "source", "position", "size")), strict=True)
