"""Write carved messages to a new store, as stored records (like `append --as-recorded`).

All fields except the offsets stay the same. The offsets also stay the same if fillers can replace
the missing messages (`rmqctl.repair.carve.bridging`). Without enough space for fillers, later
messages of a queue get smaller queue offsets. A broker would misplace entries at the old offsets.

Each log that was found becomes a separate store (`rmqctl.repair.carve.ordering`).
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from rmqctl.broker.settings import Settings
from rmqctl.engine.config.create import create_store, plan_store
from rmqctl.engine.engine import GROUP_BYTES, GROUP_MESSAGES, Engine
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local.message import Record, decode
from rmqctl.formats.local.sysflag import INNER_BATCH
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase, counted
from rmqctl.repair.carve.bridging import Bridge
from rmqctl.repair.carve.carve import (
    DOUBTFUL,
    MISPLACED,
    CarvedPage,
    CarveOptions,
    CarveTally,
    Carving,
)
from rmqctl.repair.carve.ordering import CarvedLog, Order
from rmqctl.repair.carve.sources import CarveSource, Input

_OPEN_SOURCES = 32
_MIN_FILE, _MAX_FILE, _MAX_SIZES = 1024, 1 << 31, 1024
DEFAULT_FILE = 1 << 30
_MAX_TOPICS = 10_000
_NAMED = 5
_FREE_FILL, _FILL = 64 << 20, 16
"""Limit on the total size of fillers: `_FREE_FILL` bytes, plus `_FILL` times the size of all
messages.
"""


@dataclass(slots=True)
class WrittenStore:
    """Contents of the new store.

    ``reasons``: number of refused messages by reason.
    ``logs``: if several logs were found, the store of each, and the reason why it is separate.
    """

    store: str
    messages: int = 0
    bytes_written: int = 0
    refused: int = 0
    physical_offsets_kept: int = 0
    fillers: int = 0
    queue_fillers: int = 0
    renumbered: int = 0
    vanished: int = 0
    copies: int = 0
    first_physical_offset: int | None = None
    end_physical_offset: int | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    logs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stores(self) -> list[str]:
        return [log["store"] for log in self.logs] or [self.store]

    def as_dict(self) -> dict[str, Any]:
        return {"store": self.store, "written": self.messages,
                "bytes_written": self.bytes_written, "refused": self.refused,
                "copies": self.copies,
                "physical_offsets_kept": self.physical_offsets_kept,
                "fillers": self.fillers, "queue_fillers": self.queue_fillers,
                "queue_offsets_renumbered": self.renumbered,
                "first_physical_offset": self.first_physical_offset,
                "end_physical_offset": self.end_physical_offset,
                **({"logs": self.logs} if self.logs else {})}

    def add(self, log: WrittenStore, reason: str) -> None:
        """Add the store written for one of several logs."""
        self.logs.append({"store": log.store, "written": log.messages,
                          "reason": str(reason) or None,
                          "first_physical_offset": log.first_physical_offset,
                          "end_physical_offset": log.end_physical_offset})
        for name in ("messages", "bytes_written", "refused", "physical_offsets_kept", "fillers",
                     "queue_fillers", "renumbered", "vanished"):
            setattr(self, name, getattr(self, name) + getattr(log, name))
        self.reasons += log.reasons


def log_file_size(inputs: Sequence[Input]) -> int | None:
    """Return the size of the log's files in bytes: the most frequent size of the inputs that are
    named like log files; None if unknown.
    """
    sizes = Counter(source.size
                    for source in inputs if source.base is not None and source.size >= _MIN_FILE
                    and source.size % _MIN_FILE == 0 and source.base % source.size == 0)
    return max(sizes, key=lambda size: (sizes[size], size)) if sizes else None


def size_by_ends(ends: Iterable[int]) -> int | None:
    """Return the size of the log's files in bytes; None if no size fits.

    ``ends``: the physical offsets at which blanks end files. The result is the largest size that
    fits most of these offsets.
    """
    ascending = sorted(ends)
    steps = {after - before for before, after in pairwise(ascending)}
    sizes = sorted(size for size in {DEFAULT_FILE, *ascending, *steps}
                   if _MIN_FILE <= size < _MAX_FILE)
    fits = {size: sum(not end % size for end in ascending) for size in sizes[-_MAX_SIZES:]}
    best = max(fits, key=lambda size: (fits[size], size), default=None)
    return best if best is not None and fits[best] else None


class StoreMaker:
    """Collects and writes the carved messages. Use as a context manager.

    Nothing is created before `write`.

    ``is_sized``: whether the settings determine the size of the log files. If false, the size is
    derived from the ends of files that the carving found.

    Raises, before anything is collected: RefusedError for a folder in use, UsageError for invalid
    sizes.
    """

    def __init__(self, root: str, settings: Settings, *, is_sized: bool = True) -> None:
        self._settings, self._is_sized = plan_store(root, settings).settings, is_sized
        self._order = Order()
        self._batch_topics: set[str] = set()
        self.written = WrittenStore(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._order.close()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def size(self) -> int:
        """Return the total size of the collected records in bytes."""
        return self._order.size

    def take(self, carved: CarvedPage) -> None:
        """Save the messages' places to disk, for `write`."""
        self._order.add(carved)
        inner = carved.page.numbers("sys_flag") & INNER_BATCH
        if inner.any() and len(self._batch_topics) < _MAX_TOPICS:
            part = carved.page.select(np.flatnonzero(inner))
            self._batch_topics.update(part.column("topic"))

    def write(self, carving: Carving, advance: Callable[[int], None] = lambda _bytes: None,
              check: Callable[[], None] = lambda: None) -> WrittenStore:
        """Create the store and put all messages into it.

        ``check``: called at points where stopping is safe.
        Raises: StoreIOError, RefusedError. The store is then in the state that a killed broker
        leaves.
        """
        done = self.written
        settings = self._settings
        size = None if self._is_sized else size_by_ends(carving.file_ends)
        if size is not None:
            settings = plan_store(done.store, replace(
                settings, commitlog_file_size=size)).settings
        settings = replace(settings, batch_topics=settings.batch_topics
                           | frozenset(self._batch_topics))
        # The place of each message, its log, and the gaps.
        with ExitStack() as held:
            logs = self._order.logs(
                lambda: Bridge(settings.commitlog_file_size, _FREE_FILL + _FILL * self.size))
            for log in logs:
                held.callback(log.close)
            done.copies = self._order.copies
            # Each log becomes a store.
            reader = held.enter_context(_Reader(carving.inputs))
            for log in logs:
                into = done if len(logs) == 1 else WrittenStore(
                    os.path.join(done.store, str(log.number + 1)))
                self._write_log(into, log, settings, reader, advance, check)
                if into is not done:
                    done.add(into, log.reason)
        return done

    @staticmethod
    def _write_log(done: WrittenStore, log: CarvedLog, settings: Settings, reader: _Reader,
                   advance: Callable[[int], None], check: Callable[[], None]) -> None:
        create_store(done.store, settings)
        with Engine.open(done.store, settings) as engine:
            writer = _Writer(engine, log, done)
            for place, keeps in log.ordered():
                record = reader.record(*place[3:6])
                if record is None:
                    done.vanished += 1
                elif writer.add(record, place[5], keeps=keeps):
                    advance(writer.flush())
                    check()
            advance(writer.flush())
            done.renumbered = engine.renumbered
            done.fillers, done.queue_fillers = log.bridge.fillers, log.bridge.queue_fillers

    def reasons(self) -> list[str]:
        """Return the reasons why messages were refused, the most frequent first."""
        return [f"{count} messages: {reason}" if count > 1 else f"1 message: {reason}"
                for reason, count in self.written.reasons.most_common(_NAMED)]


def remarks(tally: CarveTally, wanted: CarveOptions, written: WrittenStore | None,
            left_out: set[str]) -> Iterator[str]:
    """Yield the notes on a finished carving. ``written``: None if messages were only listed;
    ``left_out``: placements that were not written.
    """
    def hinted(phrase: Phrase, option: str, given: bool) -> Phrase:
        return phrase if written is not None or given else Phrase(
            "{what} (--{option} lists them)", what=phrase, option=option)

    def kept(placement: str) -> Phrase:
        if written is None:
            return Phrase("listed with placement {placement}", placement=placement)
        if placement in left_out:
            return Phrase("not written; run without --out to list them")
        return Phrase("written too; --no-{placement} skips them", placement=placement)

    # Counts of the carving.
    if tally.breaks:
        yield Phrase("{count:,} place where a log ends early or is interrupted",
                     "{count:,} places where a log ends early or is interrupted",
                     count=tally.breaks)
    if tally.damaged:
        yield hinted(Phrase("{count:,} record with a body CRC mismatch",
                            "{count:,} records with a body CRC mismatch",
                            count=tally.damaged), "damaged", wanted.damaged)
    if tally.doubtful:
        yield Phrase("{messages} may be part of the body of a damaged message ({kept})",
                     messages=counted(tally.doubtful, "message"), kept=kept(DOUBTFUL))
    if tally.embedded:
        inside = Phrase("{count:,} intact record inside damaged records, possibly a copy in a "
                        "message body",
                        "{count:,} intact records inside damaged records, possibly copies in "
                        "message bodies",
                        count=tally.embedded)
        yield inside if wanted.embedded else Phrase("{what}; --embedded includes them", what=inside)
    if tally.duplicates:
        yield hinted(Phrase("{count:,} duplicate found", "{count:,} duplicates found",
                            count=tally.duplicates), "duplicates", wanted.duplicates)
    # Counts of the new store.
    if written is None:
        return
    if tally.counts.get(MISPLACED):
        yield Phrase("{count:,} misplaced message found ({kept})",
                     "{count:,} misplaced messages found ({kept})",
                     count=tally.counts[MISPLACED], kept=kept(MISPLACED))
    if written.messages:
        yield Phrase("config/topics.json of {store} contains only a new store's topics; a broker "
                     "does not let clients use others",
                     store=", ".join(written.stores))
    if written.fillers:
        yield Phrase("{fillers} written for missing parts, so that messages keep their physical "
                     "offsets", fillers=counted(written.fillers, "filler"))
    if written.queue_fillers:
        yield Phrase("{messages} missing in queues: consumers receive a filler (RMQCTL=lost) "
                     "for each", messages=counted(written.queue_fillers, "message"))
    if written.renumbered:
        yield Phrase("{messages} got new queue offsets, because others before them are missing",
                     messages=counted(written.renumbered, "message"))
    if written.copies:
        yield Phrase("{messages} of a compaction log or a tier not written: the log has them, too",
                     messages=counted(written.copies, "message"))
    for log in written.logs[1:]:
        yield Phrase("{store} contains a separate log: {reason}", store=log["store"],
                     reason=log["reason"])


class _Writer:
    """Writer of records in groups, with fillers before the records that keep their physical
    offsets.
    """

    def __init__(self, engine: Engine, to: CarvedLog, done: WrittenStore) -> None:
        self._engine, self._to, self._done = engine, to, done
        self._group: list[Record] = []
        self._size, self._keeps = 0, False
        self._end: int | None = None

    def add(self, record: Record, size: int, *, keeps: bool) -> bool:
        """Add a record; return whether it is time for `flush`."""
        if keeps != self._keeps or (keeps and record.physical_offset != self._end):
            self.flush()
            if keeps:
                self._fill(record)
        self._keeps, self._end = keeps, record.physical_offset + size
        self._group.append(record)
        self._size += size
        return len(self._group) >= GROUP_MESSAGES or self._size >= GROUP_BYTES

    def _fill(self, record: Record) -> None:
        """Write fillers up to the physical offset of a record."""
        log, physical = self._engine.log, record.physical_offset
        is_new = log.current is None and not log.files
        end = physical - physical % log.file_size if is_new else log.position
        lacking = self._to.lacking.rows.pop(physical, ())
        if self._to.bridge.spans(end, physical):
            for filler in self._to.bridge.records(end, record, lacking):
                self._engine.put(filler)

    def flush(self) -> int:
        """Write the collected records; return their total size in bytes."""
        done, group, size = self._done, self._group, self._size
        self._group, self._size = [], 0
        while group:
            before = [record.physical_offset for record in group]
            results = self._engine.put_many(group, stop=True)
            for offset, result in zip(before, results, strict=False):
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
            group = group[len(results):]
            if group and self._keeps:
                self._fill(group[0])
        return size


class _Reader:
    """Reader of records from many sources, of which only a few are open at a time."""

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
        """Read the record at a place; None if the source no longer contains it."""
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
