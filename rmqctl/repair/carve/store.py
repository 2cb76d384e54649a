"""A new store of carved messages: each is written as the record it was (`append --as-recorded`).

Topic, queue, times, hosts, flags, properties and body stay. The queue offset stays where its
queue goes on there; behind a gap later ones move up, as a broker would misplace them otherwise.
The physical offset stays as long as nothing is missing in the log before it.

Records are written broker by broker (the one with the earliest message first), each in the order
of its log. So queue offsets ascend within each queue, wherever the pieces of the log were found.
A broker is known by its store host; hosts that are found in one log (it had several addresses, or
another one after a move) are one broker.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import create_store, plan_store
from rmqctl.engine.engine import GROUP_BYTES, GROUP_MESSAGES, Engine
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.sysflag import INNER_BATCH
from rmqctl.phrases import Phrase, counted
from rmqctl.repair.carve.carve import (
    DOUBTFUL,
    IN_PLACE,
    MISPLACED,
    CarvedPage,
    CarveOptions,
    CarveTally,
    Carving,
)
from rmqctl.repair.carve.sources import CarveSource, Input
from rmqctl.repair.carve.spool import Spool
from rmqctl.scan.frames import Array

_OPEN_SOURCES = 32
_LEAST_FILE = 1024
_MOST_TOPICS = 10_000
_NAMED = 5
MOST_HOSTS = 4096
"""Store hosts that are told apart; what comes after them is taken as one."""
MOST_LOGS = 1 << 16
"""Pieces of logs whose hosts are brought together."""
RUN = 1 << 20
_STEP = 1 << 10

RecordPlace = tuple[int, int, int, int, int]
"""(rank of the broker, physical offset, source, position, size)."""


@dataclass(slots=True)
class Written:
    """What came into the new store. ``reasons`` why messages were refused, with how often."""

    store: str
    messages: int = 0
    bytes_written: int = 0
    refused: int = 0
    physical_offsets_kept: int = 0
    renumbered: int = 0
    vanished: int = 0
    first_physical_offset: int | None = None
    end_physical_offset: int | None = None
    reasons: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {"store": self.store, "written": self.messages,
                "bytes_written": self.bytes_written, "refused": self.refused,
                "physical_offsets_kept": self.physical_offsets_kept,
                "queue_offsets_renumbered": self.renumbered,
                "first_physical_offset": self.first_physical_offset,
                "end_physical_offset": self.end_physical_offset}


def log_file_size(inputs: Sequence[Input]) -> int | None:
    """The size of a log's file which most inputs named like one have; None: nothing tells."""
    sizes = Counter(source.size
                    for source in inputs if source.base is not None and source.size >= _LEAST_FILE
                    and source.size % _LEAST_FILE == 0 and source.base % source.size == 0)
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else None


class StoreMaker:
    """Takes what a carving finds, then writes it. Use as a context manager.

    Nothing is made before `write`, but a place that cannot be taken is refused at once
    (RefusedError, UsageError for the sizes).
    """

    def __init__(self, root: str, settings: Settings) -> None:
        self._settings = plan_store(root, settings).settings
        self._order = Order()
        self._batch_topics: set[str] = set()
        self.written = Written(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._order.close()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def size(self) -> int:
        """Bytes of the records taken."""
        return self._order.size

    def take(self, carved: CarvedPage) -> None:
        """Remembers where messages lie: 32 bytes each, on disk."""
        self._order.add(carved)
        inner = carved.page.numbers("sys_flag") & INNER_BATCH
        if inner.any() and len(self._batch_topics) < _MOST_TOPICS:
            part = carved.page.select(np.flatnonzero(inner))
            self._batch_topics.update(part.column("topic"))

    def write(self, carving: Carving, advance: Callable[[int], None] = lambda _bytes: None,
              check: Callable[[], None] = lambda: None) -> Written:
        """Makes the store and puts everything in. ``check`` is called where a stop does no harm.

        StoreIOError, RefusedError; the store is then one of a broker that was stopped or killed.
        """
        done = self.written
        create_store(done.store, self._settings)
        settings = replace(self._settings, batch_topics=self._settings.batch_topics
                           | frozenset(self._batch_topics))
        with Engine.open(done.store, settings) as engine, _Reader(carving.inputs) as reader:
            for group in self._groups(reader):
                check()
                before = [record.physical_offset for record in group]
                size = sum(record.total_size for record in group)
                results = engine.put_many(group)
                for offset, result in zip(before, results, strict=True):
                    if result.physical_offset is None:
                        done.refused += 1
                        done.reasons[result.reason or result.status] += 1
                        continue
                    done.messages += 1
                    done.bytes_written += result.wrote_bytes or 0
                    done.physical_offsets_kept += result.physical_offset == offset
                    if done.first_physical_offset is None:
                        done.first_physical_offset = result.physical_offset
                    done.end_physical_offset = result.physical_offset + (result.wrote_bytes or 0)
                advance(size)
            done.renumbered = engine.renumbered
        return done

    def _groups(self, reader: _Reader) -> Iterator[list[Record]]:
        group: list[Record] = []
        size = 0
        for _, _, source, position, length in self._order.places():
            record = reader.record(source, position, length)
            if record is None:
                self.written.vanished += 1
                continue
            group.append(record)
            size += length
            if len(group) >= GROUP_MESSAGES or size >= GROUP_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group

    def reasons(self) -> list[str]:
        """Why messages were refused, the most frequent first."""
        return [f"{count} messages: {reason}" if count > 1 else f"1 message: {reason}"
                for reason, count in self.written.reasons.most_common(_NAMED)]


def remarks(tally: CarveTally, wanted: CarveOptions, written: Written | None,
            left_out: set[str]) -> Iterator[str]:
    """What is to be said of a carving in the end. ``written``: None where messages were only
    listed; ``left_out``: placements that were not written.
    """
    def hinted(said: Phrase, option: str, given: bool) -> Phrase:
        return said if written is not None or given else Phrase(
            "{what} (--{option} lists them)", what=said, option=option)

    def kept(placement: str) -> Phrase:
        if written is None:
            return Phrase("their placement is {placement}", placement=placement)
        if placement in left_out:
            return Phrase("left out; without --out they are listed")
        return Phrase("written too; --no-{placement} leaves them out", placement=placement)

    # What was found.
    if tally.breaks:
        yield Phrase("{count:,} place where a log is broken off or interrupted",
                     "{count:,} places where a log is broken off or interrupted",
                     count=tally.breaks)
    if tally.damaged:
        yield hinted(Phrase("{count:,} record with a body that does not match its CRC",
                            "{count:,} records with a body that does not match its CRC",
                            count=tally.damaged), "damaged", wanted.damaged)
    if tally.doubtful:
        yield Phrase("{messages} may lie in the body of a damaged one, nothing tells ({kept})",
                     messages=counted(tally.doubtful, "message"), kept=kept(DOUBTFUL))
    if tally.embedded:
        inside = Phrase("{count:,} intact record inside of damaged ones, perhaps copies in a body",
                        "{count:,} intact records inside of damaged ones, perhaps copies in a body",
                        count=tally.embedded)
        yield inside if wanted.embedded else Phrase("{what}; --embedded gives them", what=inside)
    if tally.duplicates:
        yield hinted(Phrase("{count:,} duplicate found", "{count:,} duplicates found",
                            count=tally.duplicates), "duplicates", wanted.duplicates)
    # What was written of it.
    if written is None:
        return
    if tally.counts.get(MISPLACED):
        yield Phrase("{count:,} misplaced message found ({kept})",
                     "{count:,} misplaced messages found ({kept})",
                     count=tally.counts[MISPLACED], kept=kept(MISPLACED))
    if written.messages:
        yield Phrase("config/topics.json of {store} is as a new store has it: a broker does not "
                     "let clients use topics it does not find there", store=written.store)
    if written.renumbered:
        yield Phrase("{messages} got new queue offsets, because others before them are missing",
                     messages=counted(written.renumbered, "message"))


class _Reader:
    """Reads records of many sources, with few of them open at a time."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._open: OrderedDict[int, CarveSource] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with ExitStack() as stack:
            for source in self._open.values():
                stack.callback(source.close)

    def record(self, source: int, position: int, length: int) -> Record | None:
        """The record; None if it is no longer there."""
        opened = self._open.get(source)
        if opened is None:
            if len(self._open) >= _OPEN_SOURCES:
                self._open.popitem(last=False)[1].close()
            with contextlib.suppress(StoreIOError):
                opened = CarveSource(self._inputs[source].path, lambda _at, _length: None)
            if opened is None:
                return None
            self._open[source] = opened
        self._open.move_to_end(source)
        try:
            record = decode(opened.read(position, length))
        except FormatError:
            return None
        return record if record.crc_ok else None


# -- the order of the records ---------------------------------------------------------------------


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

    def add(self, carved: CarvedPage) -> None:
        page = carved.page
        sizes = page.numbers("total_size")
        host: Array = np.fromiter(map(self._number, page.hosts("store_host")), np.int64, len(page))
        times = page.numbers("store_timestamp")
        for broker in np.unique(host).tolist():
            self._earliest[broker] = min(self._earliest[broker], int(times[host == broker].min()))
        physical = page.numbers("physical_offset")
        if carved.placement == IN_PLACE:
            self._bring_together(carved.source, physical - carved.offset, host)
        self._spool.add(carved.source, carved.offset, physical, sizes, host)
        self.size += int(sizes.sum())

    def _bring_together(self, source: int, shift: Array, host: Array) -> None:
        changes = (shift[1:] != shift[:-1]) | (host[1:] != host[:-1])
        for row in [0, *(np.flatnonzero(changes) + 1).tolist()]:
            key, broker = (source, int(shift[row])), int(host[row])
            other = self._logs.get(key)
            if other is not None:
                self._broker[self._first(broker)] = self._first(other)
            elif len(self._logs) < MOST_LOGS:
                self._logs[key] = broker

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

    def places(self) -> Iterator[RecordPlace]:
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
                run.append(done)
            self._spool.close()
            yield from heapq.merge(*map(_places, runs))
        finally:
            for run in runs:
                run.close()

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


def _places(run: Spool) -> Iterator[RecordPlace]:
    for rows in run.chunks(_STEP):
        yield from zip(*(rows[name].tolist() for name in (
            "late", "physical", "source", "position", "size")), strict=True)
