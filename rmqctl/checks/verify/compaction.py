"""Checks of compacted topics (5.1+), which consist of pairs of a log file and a sparse queue file.

A record in such a log is a commitlog record whose physical offset is its position in this log. So
the same scan validates it. A compaction leaves working folders, ``.delete`` files and holes between
files; these are legal. spec: timer-and-others-5x.md §2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import field

import numpy as np

from rmqctl import vfs
from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.checks.verify.common import (
    LOOK,
    Gaps,
    bounded,
    pages,
    plural,
    runs,
    unreadable,
    used_units,
)
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.config import config_json
from rmqctl.formats.local import compaction as layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.batch_consume_queue import NOT_COMPACTED
from rmqctl.formats.local.compaction import END_UNIT, UNIT, UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.frames import BLANK, ZERO, Array, Batch, Span
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.queue.batch_queue import valid
from rmqctl.store.store import Store

FOLDER, LOG, QUEUE = "compaction", "compactionLog", "compactionCq"
POSITIONS = "position-checkpoint"
_PAGE = 1 << 15
_COLUMNS = ("offset", "size", "store_timestamp", "msg_base_offset", "tags_code")
_MAX_JSON = 16 << 20


def check(store: Store, *, live: bool | None = None) -> Iterator[Finding]:
    """Yield the findings for all compacted queues and ``position-checkpoint``."""
    held = store.lock.held if live is None else live
    yield from bounded(_check(store, held))


def _check(store: Store, held: bool) -> Iterator[Finding]:
    top = store.path(FOLDER)
    if not vfs.lexists(top):
        return
    yield from _positions(store, held)
    for topic, queue in sorted(_queues(store)):
        yield from _CompactedQueue(store, topic, queue, held).check()


def _queues(store: Store) -> set[tuple[str, str]]:
    queues = set()
    for part in (LOG, QUEUE):
        top = store.path(FOLDER, part)
        for topic in listing(top).folders:
            queues |= {(topic, name) for name in listing(os.path.join(top, topic)).folders
                       if name.isascii() and name.isdigit() and len(name) <= 10}
    return queues


@dataclass(slots=True)
class _Log:
    """Contents of a log file: columns of its intact records, and its damaged spans."""

    columns: dict[str, Array] = field(default_factory=dict)
    damage: list[Span] = field(default_factory=list)

    def in_damage(self, offset: Array) -> Array:
        out: Array = np.zeros(len(offset), bool)
        for span in self.damage:
            out |= (offset >= span.offset) & (offset < span.end)
        return out


class _CompactedQueue:
    def __init__(self, store: Store, topic: str, queue: str, held: bool) -> None:
        self._folders = {part: store.path(FOLDER, part, topic, queue) for part in (LOG, QUEUE)}
        self._topic, self._queue, self._held = topic, int(queue), held
        self._newest = -1

    def _tell(self, detail: str, path: str, offset: int | None = None, length: int | None = None,
              *, count: int = 1, category: str = "compaction", severity: str = "",
              row: int | None = None) -> Finding:
        return Finding(category, "compaction", detail, file=path, offset=offset, length=length,
                       topic=self._topic, queue_id=self._queue, queue_offset=row, count=count,
                       severity=severity, next=LOOK if offset is not None else None)

    def check(self) -> Iterator[Finding]:
        logs, queues = ({file.base: file for file in listing(self._folders[part]).files}
                        for part in (LOG, QUEUE))
        bases = sorted(logs.keys() | queues.keys())
        for base in bases:
            log, queue = logs.get(base), queues.get(base)
            if log is None or queue is None:
                if not self._held:  # a running compaction replaces one after the other
                    present = log or queue
                    assert present is not None
                    part = LOG if log is None else QUEUE
                    yield self._tell("the file is missing, but its counterpart exists",
                                     os.path.join(self._folders[part], present.name),
                                     category="file-missing")
                continue
            walked = _Log()
            try:
                yield from self._walk(log, walked)
            except StoreIOError as error:
                yield unreadable("compaction", log.path, error)
                continue
            try:
                yield from self._rows(log, queue, walked, last=base == bases[-1])
            except StoreIOError as error:
                yield unreadable("compaction", queue.path, error)

    # -- the log --------------------------------------------------------------------------------

    def _walk(self, file: StoreFile, walked: _Log) -> Iterator[Finding]:
        parts: list[tuple[Array, ...]] = []
        with FileSource(file.path, file.base) as source:
            for batch in Walk(source):
                for span in batch.spans:
                    if span.kind in (BLANK, ZERO):
                        continue
                    walked.damage.append(span)
                    yield self._tell(span.reason + (f" (field {span.field})" if span.field
                                                    else ""), file.path, span.offset - file.base,
                                     span.length)
                if len(batch):
                    parts.append(_columns(batch))
                    yield from self._records(file, batch)
        walked.columns = {name: np.concatenate(column) if parts else np.zeros(0, np.int64)
                          for name, column in zip(_COLUMNS, zip(*parts, strict=True)
                                                  if parts else ((),) * len(_COLUMNS),
                                                  strict=True)}

    def _records(self, file: StoreFile, batch: Batch) -> Iterator[Finding]:
        other = ~text.topics(batch).equal(self._topic.encode("utf-8", "surrogateescape"))
        size = batch.column("total_size")
        for words, mask in (
                ("body CRC mismatch", ~batch.crc_ok()),
                ("the message belongs to another topic", other),
                ("the message belongs to another queue", batch.column("queue_id") != self._queue)):
            for row in np.flatnonzero(mask).tolist():
                yield self._tell(words, file.path, int(batch.offset[row]) - file.base,
                                 int(size[row]), row=int(batch.column("queue_offset")[row]))

    # -- the queue ------------------------------------------------------------------------------

    def _rows(self, log: StoreFile, file: StoreFile, walked: _Log, *, last: bool) -> Iterator[
            Finding]:
        offsets = walked.columns["offset"]
        led: Array = np.zeros(len(offsets), bool)
        with FileSource(file.path) as source:
            for position, rows in _used(source):
                if isinstance(rows, str):
                    yield self._tell(rows, file.path, position, UNIT_SIZE)
                    continue
                yield from self._page(log, file, position, rows, walked, led)
        for first, count in runs(np.flatnonzero(~led).tolist()):
            # Log and queue are written one after the other: a crash may leave the last one alone.
            tail = last and first + count == len(offsets)
            start = int(offsets[first])
            length = int((offsets + walked.columns["size"])[first + count - 1]) - start
            yield self._tell(
                f"{plural(count, 'message')} of the log have no entry", log.path,
                start - log.base, length, count=count,
                row=int(walked.columns["msg_base_offset"][first]),
                severity=(INFO if self._held else WARNING) if tail else "")

    def _page(self, log: StoreFile, file: StoreFile, position: int, rows: Array, walked: _Log,
              led: Array) -> Iterator[Finding]:
        columns = walked.columns
        physical = rows["physical_offset"].astype(np.int64)
        index = np.searchsorted(columns["offset"], physical)
        inside = index < len(led)
        index[~inside] = 0
        led_to = inside & (columns["offset"][index] == physical) if len(led) else inside
        led[index[led_to]] = True
        # An entry that points elsewhere still belongs to its message, by the queue offset.
        base = rows["msg_base_offset"].astype(np.int64)
        led |= np.isin(columns["msg_base_offset"], base[~led_to])
        wrong: list[tuple[str, str, Array]] = [
            ("physical_offset", f"does not point to a message of {log.name}",
             ~led_to & ~walked.in_damage(physical))]
        if len(led):
            wrong += [(name, "does not match the message",
                       led_to & (rows[name] != columns[name][index]))
                      for name in _COLUMNS[1:]]
        wrong += [("batch_size", "is not 1", rows["batch_size"] != 1),
                  ("compacted_offset", f"is not {NOT_COMPACTED}",
                   rows["compacted_offset"] != NOT_COMPACTED),
                  ("reserved", "is not 0", rows["reserved"] != 0)]
        good: Array = np.ones(len(rows), bool)
        for name, words, mask in wrong:
            yield from self._tell_rows(file, position, rows, np.flatnonzero(mask & good), name,
                                       words)
            good &= ~mask
        sound = np.flatnonzero(good & led_to)
        if len(sound):  # a damaged entry shows nothing about its neighbours
            before = np.concatenate([[self._newest], base[sound][:-1]])
            self._newest = int(base[sound[-1]])
            yield from self._tell_rows(file, position, rows, sound[base[sound] <= before],
                                       "msg_base_offset",
                                       "is not greater than in the previous entry")

    def _tell_rows(self, file: StoreFile, start: int, rows: Array, which: Array, name: str,
                   words: str) -> Iterator[Finding]:
        place = UNIT.field(name)
        for row in which.tolist():
            position = start + row * UNIT_SIZE
            yield self._tell(f"{name} of entry {position // UNIT_SIZE}: {int(rows[row][name])} "
                             f"{words}", file.path, position + place.offset, place.size,
                             row=int(rows[row]["msg_base_offset"]))


def _columns(batch: Batch) -> tuple[Array, ...]:
    tags: Array = np.zeros(len(batch), np.int64)
    rows, values = text.PropertySegments(batch).find(props.TAGS)
    tags[rows] = text.hashes(values.data, values.start, values.length)[0]
    return (batch.offset, batch.column("total_size"), batch.column("store_timestamp"),
            batch.column("queue_offset"), tags)


def _used(source: FileSource) -> Iterator[tuple[int, Array | str]]:
    """Yield the runs of entries in a queue file, each as its position and its entries.

    The runs stop at the end unit or at the unused part of the file. An irregularity is yielded as a
    position and a text.
    """
    end = UNIT.array(layout.build(END_UNIT))
    gaps = Gaps()
    for first_row, data in pages(source, UNIT_SIZE, _PAGE):
        rows = UNIT.array(data)
        stop = np.flatnonzero(rows == end)
        if len(stop):
            rows = rows[:int(stop[0])]
        filled = np.flatnonzero(used_units(data, UNIT_SIZE)[:len(rows)])
        if len(filled):
            for first, count in gaps.add(first_row + filled, valid(rows[filled])):
                yield first * UNIT_SIZE, (
                    f"{plural(count, 'entry', 'entries')} zeroed, followed by more entries")
        for first, count in runs(filled.tolist()):
            yield (first_row + first) * UNIT_SIZE, rows[first:first + count]
        if len(stop):
            return


# -- the position file -------------------------------------------------------------------------


def _positions(store: Store, held: bool) -> Iterator[Finding]:
    """Check ``position-checkpoint``, which records the compaction progress of each queue, and its
    backup.
    """
    path = store.path(FOLDER, POSITIONS)
    states = [_json(store, name) for name in (POSITIONS, f"{POSITIONS}.bak")]
    main, backup = states
    if main is None or isinstance(main, dict):
        if main is not None:
            yield from _entries(path, main)
        return
    good = isinstance(backup, dict)
    backup_state = "its backup is intact" if good else "it has no intact backup"
    if isinstance(main, StoreIOError):
        yield unreadable("compaction", path, main)
    elif not held:
        yield Finding("config-backup" if good else "config-unreadable", "compaction",
                      f"{main.reason}; {backup_state}", file=path, offset=main.offset, next=LOOK)


def _json(store: Store, name: str) -> dict[str, object] | FormatError | StoreIOError | None:
    if not vfs.lexists(store.path(FOLDER, name)):
        return None
    try:
        value = config_json.parse(store.read_small(FOLDER, name, most=_MAX_JSON)).value
    except (FormatError, StoreIOError) as error:
        return error
    return value if isinstance(value, dict) else FormatError("not a JSON object", offset=0)


def _entries(path: str, value: dict[str, object]) -> Iterator[Finding]:
    table = value.get("queueOffsetMap")
    odd = [] if isinstance(table, dict) else ["queueOffsetMap"]
    if isinstance(table, dict):
        odd = [key for key, offset in table.items()
               if not isinstance(offset, int) or isinstance(offset, bool) or offset < -1]
    if odd:
        yield Finding("config-oddity", "compaction", f"{plural(len(odd), 'entry', 'entries')} with "
                      f"the wrong format: {odd[0]}", file=path, severity=WARNING, next=LOOK)
