"""Truncate consume queues together with the log: plain queues, batch queues, extension units.

The result is the same as if a broker had dispatched only the remaining log. No file without entries
is kept. A broker that truncates a queue accepts the first unit of the last file as an entry, even
if that unit is empty (spec: consumequeue.md §6).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import field
from typing import Any

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import batch_consume_queue, consume_queue, consume_queue_ext
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Action, Changes
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import cut_files
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Array
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.log.end import used_size
from rmqctl.store.store import Store

_PAGE_ROWS = 1 << 16
_EXT = "consumequeue_ext"


@dataclass(slots=True, kw_only=True)
class QueuesCut(Changes):
    """Changes to the queues.

    * ``next_offsets``: the next queue offset of each queue after the truncation
    * ``restarted``: queues that lose all entries and whose first entry was not at queue offset 0;
      their queue offsets start at 0 again
    """

    next_offsets: dict[QueueKey, int] = field(default_factory=dict)
    restarted: list[QueueKey] = field(default_factory=list)


def cut_queues(store: Store, to: int, scratch: Scratch | None = None) -> QueuesCut:
    """Remove the entries of records at or after physical offset ``to`` from all queues.

    In files, entries are removed only at the end of a queue. A damaged entry that points after
    ``to`` is kept if valid entries follow: truncating the queue there would remove the valid
    entries.

    ``scratch``: folder in which a database is rebuilt; it must exist until the plan is applied.
    Raises: StoreIOError.
    """
    cut = QueuesCut()
    # A database is rebuilt without the entries.
    in_rocksdb = store.layout.consumequeue == "rocksdb"
    if in_rocksdb:
        from rmqctl.repair.rebuild import rocksdb

        assert scratch is not None
        (cut.steps, cut.actions), cut.next_offsets = rocksdb.cut(store, to, scratch)
    # In files: each queue ends with the last entry before the cut.
    for key, queue in () if in_rocksdb else store.queues.by_key.items():
        tail = _tail(queue.files, consume_queue.UNIT, to)
        if tail is None:
            with closing(queue):
                cut.next_offsets[key] = queue.written
            continue
        if tail.last is not None and tuple(tail.last.tolist()) == tuple(consume_queue.FILLER):
            # Padding alone looks like a queue dispatched up to 2 GiB: its entries would be lost.
            tail.end = tail.last = None
            begins_late = True
        else:
            begins_late = queue.first_index > 0
        cut.next_offsets[key] = consume_queue.queue_offset(tail.end or 0)
        _plan(cut, store, key, "consumequeue", queue.files, tail,
              consume_queue.queue_offset(tail.used))
        if tail.end is None and begins_late:
            cut.restarted.append(key)
        _cut_ext(cut, store, key, queue.files, tail)
    # Batch queues, where an entry has several queue offsets.
    for key, batch in store.queues.batch.items():
        tail = _tail(batch.files, batch_consume_queue.UNIT, to)
        if tail is None:
            cut.next_offsets[key] = batch.bounds(0)[1]
            continue
        cut.next_offsets[key] = _behind(tail.last)
        _plan(cut, store, key, "batchconsumequeue", batch.files, tail, _behind(tail.newest))
        if tail.end is None and batch.files[0].base > 0:
            cut.restarted.append(key)
    return cut


def _behind(row: Any) -> int:
    """Return the queue offset after an entry of a batch queue; 0 if ``row`` is None."""
    return 0 if row is None else int(row["msg_base_offset"]) + int(row["batch_size"])


@dataclass(slots=True)
class _Tail:
    """The end of a truncated queue. Positions are bytes from the start of the queue.

    * ``end``: position after the last kept entry (None: no entry is kept)
    * ``last``: the last kept entry (None: no entry is kept)
    * ``used``: position after the last entry that the queue has now
    * ``newest``: the last removed entry
    * ``first_address``: lowest extension address in the removed entries
    """

    end: int | None
    last: Any
    used: int
    newest: Any
    first_address: int | None


def _tail(files: list[StoreFile], unit: Fixed[Any], to: int) -> _Tail | None:
    """Return where a queue ends after the truncation; None if its last entries all point before
    ``to``.
    """
    used = 0
    newest: Any = None
    address: int | None = None
    end: int | None = None
    last: Any = None
    for base, page in backwards(files, unit):
        used = used or base + len(page) * unit.size
        valid = (page["physical_offset"] >= 0) & (page["size"] > 0)
        before = np.flatnonzero(valid & (page["physical_offset"] < to))
        first = int(before[-1]) + 1 if len(before) else 0
        gone = page[first:][valid[first:]]
        newest = gone[-1] if newest is None and len(gone) else newest
        linked = gone["tags_code"][gone["tags_code"] <= consume_queue_ext.MAX_ADDRESS]
        if len(linked):
            least = int(linked.min())
            address = least if address is None else min(address, least)
        if len(before):
            end, last = base + first * unit.size, page[first - 1]
            break
    return None if newest is None else _Tail(end, last, used, newest, address)


def backwards(files: list[StoreFile], unit: Fixed[Any],
              until: int | None = None) -> Iterator[tuple[int, Array]]:
    """Yield (position in the stream of files, units) page by page, backward from the end of the
    used space.

    ``until``: yield only units before this position.
    """
    size = unit.size
    for file in reversed(files):
        if until is not None and file.base >= until:
            continue
        with FileSource(file.path) as source:
            count = min(-(-used_size(source) // size), file.size // size)
            if until is not None:
                count = min(count, (until - file.base) // size)
            while count > 0:
                first = max(0, count - _PAGE_ROWS)
                data = source.read(first * size, (count - first) * size)
                yield file.base + first * size, unit.array(data)
                count = first


def _plan(cut: QueuesCut, store: Store, key: QueueKey, folder: str, files: list[StoreFile],
          tail: _Tail, ended: int) -> None:
    """Add the steps that truncate the files of one queue, the last file first."""
    cut.steps += cut_files(store, files, tail.end or 0, tail.used)
    cut.actions.append(Action(
        "truncate", f"{folder}/{key[0]}/{key[1]}", ended, cut.next_offsets[key],
        "entries of removed messages"))


# -- extension units ------------------------------------------------------------------------------


def _cut_ext(cut: QueuesCut, store: Store, key: QueueKey, queue_files: list[StoreFile],
             tail: _Tail) -> None:
    """Truncate the extension files after the unit of the last entry that refers to a unit (spec
    §8).
    """
    files = listing(store.path(_EXT, key[0], str(key[1]))).files
    if not files:
        return
    end = _ext_end(files, queue_files, tail)
    if end is None:
        return
    steps = cut_files(store, files, end)
    cut.steps += steps
    if steps:
        cut.actions.append(Action(
            "truncate", f"{_EXT}/{key[0]}/{key[1]}", files[-1].end, end,
            "units of removed entries"))


def _ext_end(files: list[StoreFile], queue_files: list[StoreFile], tail: _Tail) -> int | None:
    """Return the position after the last kept unit; None if no removed entry refers to a unit."""
    last = None if tail.end is None else _last_address(queue_files, tail.end)
    if last is not None:
        position = consume_queue_ext.byte_offset(last)
        for file in files:
            if file.base <= position < file.end:
                with FileSource(file.path) as source:
                    data = source.read(position - file.base, consume_queue_ext.MAX_SIZE)
                try:
                    return position + consume_queue_ext.decode(data).size
                except FormatError:
                    break
    if tail.first_address is not None:
        return consume_queue_ext.byte_offset(tail.first_address)
    return files[0].base if tail.end is None else None


def _last_address(files: list[StoreFile], until: int) -> int | None:
    """Return the last extension address in the entries before ``until``; None if no entry has an
    address.
    """
    for _, page in backwards(files, consume_queue.UNIT, until):
        linked = np.flatnonzero(page["tags_code"] <= consume_queue_ext.MAX_ADDRESS)
        if len(linked):
            return int(page["tags_code"][linked[-1]])
    return None
