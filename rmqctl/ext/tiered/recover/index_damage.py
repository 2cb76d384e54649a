"""Find damaged index files of a tier (tiered.md §5, §17.3 I).

The content is checked as `tiered verify` does, and items are compared with the messages of the
recovered queues. Items of expired messages, removed topics and lost messages are not damage, nor
are differences between versions.

An item is damaged if an intact message contradicts it. An item that points to no message is also
damaged if it has the hash of a key whose item is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from rmqctl.checks.findings import INFO, WARNING, Finding
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue
from rmqctl.ext.tiered.index.index_file import TierIndexFile
from rmqctl.ext.tiered.verify import index
from rmqctl.ext.tiered.verify.context import TierCoverage
from rmqctl.ext.tiered.verify.index import note
from rmqctl.ext.tiered.verify.items import Items, ItemTally, code_of
from rmqctl.ext.tiered.verify.keys import KEY, MessageKeys, folded, marks
from rmqctl.ext.tiered.verify.queue import ENGINE_TIME
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered.metadata import Metadata
from rmqctl.formats.tiered.names import OLD_INDEX_NAMES
from rmqctl.formats.tiered.units import CODA_SIZE, is_coda
from rmqctl.parse_values import time_text
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch, distinct, gather_int


class IndexDamage(Items):
    """Finder of damaged index files. Create it with the index files, add the keys of all messages
    that will have a unit, then call `damaged`. Must be closed.

    ``queues``: the broker's queues. The parameters ``number`` and ``queue`` of methods are indexes
    in this list.
    ``offsets``: returns the positions to which a queue's units point after the recovery, ascending.
    """

    def __init__(self, files: Iterable[TierIndexFile], queues: Sequence[FlatQueue],
                 metadata: Metadata, offsets: Callable[[int], Array]) -> None:
        super().__init__(queues, metadata, TierCoverage())
        self._offsets = cache(offsets)
        self._lacking: Array = np.zeros(0, np.int64)
        self._by_name: dict[str, TierIndexFile] = {}
        self._reasons: dict[str, str] = {}
        for file in files:
            self._by_name[file.where] = file
            reason = self._form(file)
            if reason is not None:
                self._reasons[file.where] = reason

    def _form(self, file: TierIndexFile) -> str | None:
        """Describe the first fault in a file's structure; None if the file has none."""
        name = os.path.basename(file.where)
        if (file.status == "UNSEALED" and name not in OLD_INDEX_NAMES and file.size
                and int(name) != file.timestamp):
            return f"begins at {time_text(file.timestamp)}"
        self.start(file)
        try:
            for finding in index.check(file, self.take, index.ItemTimes()):
                if finding.severity != INFO:
                    return finding.detail
        except FormatError as error:
            return error.reason
        return None

    def collector(self, number: int) -> MessageKeys:
        """Return a collector for the keys of a queue's messages."""
        return MessageKeys(self.keys, number, self.queues[number].name.topic,
                           empty_too=self.has_empty)

    @staticmethod
    def take_messages(keys: MessageKeys, batch: Batch, rows: Array) -> None:
        """Add the keys of those messages in a batch for which ``rows`` (bool) is true."""
        keys.add(text.PropertySegments(batch), rows, batch.offset, batch.column("total_size"),
                 batch.column("queue_offset"),
                 gather_int(batch.data, batch.start + ENGINE_TIME, "i8"),
                 batch.column("store_timestamp"))

    def take_lost(self, number: int, items: Array) -> None:
        """Add keys, which are given as index items (`index.LOST`)."""
        out: Array = np.zeros(len(items), KEY)
        out["mark"] = marks(np.full(len(items), number, np.int64), items["offset"], items["size"],
                            folded(items["key_hash"]))
        out["queue"] = number
        out["time"] = out["true_time"] = items["store_time"]
        self.keys.add(out)

    def damaged(self, lacking: Array) -> list[tuple[TierIndexFile, str]]:
        """Return the damaged files, each with its first fault. ``lacking``: hashes of keys without
        an item.
        Raises: StoreIOError.
        """
        self._lacking = distinct(folded(lacking))
        for finding in self.findings():
            if (finding.severity != INFO and finding.position is not None
                    and finding.file in self._by_name):
                self._reasons.setdefault(finding.file, finding.detail)
        return [(self._by_name[where], reason) for where, reason in self._reasons.items()]

    def _tallied(self) -> Iterator[Finding]:
        for file, tally in zip(self.files, self._tallies, strict=True):
            if tally.unknown and len(self._lacking) and file.where not in self._reasons:
                yield from self._astray(file)

    def _astray(self, file: TierIndexFile) -> Iterator[Finding]:
        """Yield at most one finding about the items of missing queues: for the first of these items
        whose hash belongs to a key without an item.
        """
        for first, items in file.blocks():
            codes = code_of(items["topic_id"].astype(np.int64), items["queue_id"])
            odd = ~np.isin(codes, self._codes) & np.isin(folded(items["key_hash"]), self._lacking)
            for row in np.flatnonzero(odd).tolist():
                tally = ItemTally()
                self._unknown(tally, items["topic_id"][row:row + 1].astype(np.int64),
                              items["queue_id"][row:row + 1].astype(np.int64))
                for unknown in tally.unknown:
                    place, size = self._place(file, first + row)
                    yield note(file, "tiered-index-item",
                               f"item {first + row} belongs to {unknown}", place, length=size)
                    return

    def _strange(self, number: int, item: int) -> Finding:
        file = self.files[number]
        if file.where in self._reasons:
            return note(file, "tiered-index-item", "", severity=INFO)
        finding = super()._strange(number, item)
        place, _ = self._place(file, item)
        record = fmt.COMPACTED_ITEM.decode(file.read(place, fmt.COMPACTED_ITEM.size))
        code = int(code_of(record.topic_id, record.queue_id))
        queue = int(self._numbers[np.searchsorted(self._codes, code)])
        if not self._is_ours(queue, record):
            return replace(finding, severity=INFO)
        self._reasons[file.where] = finding.detail
        return replace(finding, severity=WARNING)

    def _is_ours(self, queue: int, item: fmt.CompactedItemRecord) -> bool:
        """Return whether an item that does not point to a message is itself damaged. If False, the
        item is correct and its message is damaged.
        """
        if self._is_whole(queue, item.commit_log_offset):
            return True
        offsets = self._offsets(queue)
        row = int(np.searchsorted(offsets, item.commit_log_offset))
        if row < len(offsets) and int(offsets[row]) == item.commit_log_offset:
            return False
        return bool(np.isin(folded(np.array([item.key_hash])), self._lacking)[0])

    def _is_whole(self, number: int, offset: int) -> bool:
        """Return whether the position ``offset`` is in an intact message that has a unit."""
        offsets, log = self._offsets(number), self.queues[number].commit_log
        row = int(np.searchsorted(offsets, offset, "right")) - 1
        if row < 0 or offset >= log.end:
            return False
        start = int(offsets[row])
        try:
            if is_coda(log.read(start, CODA_SIZE)):
                start += CODA_SIZE
            record = log.record_at(start)
        except StoreIOError:
            return False
        return record is not None and start <= offset < start + record.total_size <= log.end


def messages_with_units(queue: FlatQueue, offsets: Array) -> Iterator[tuple[Batch, Array]]:
    """Yield each batch of a queue's commit log, and a boolean array: True if the message has a unit
    and the queue's topic.

    ``offsets``: positions to which the units point, ascending.
    Raises: StoreIOError.
    """
    topic = os.fsencode(queue.name.topic)
    if not len(offsets):
        return
    for segment in queue.commit_log.segments:
        if not segment.usable:
            continue
        for batch in queue.commit_log.batches(segment):
            if not len(batch):
                continue
            # A unit may point to the coda before its message (§3).
            rows = _among(batch.offset, offsets) | _among(batch.offset - CODA_SIZE, offsets)
            if rows.any():
                rows &= text.topics(batch).equal(topic)
                yield batch, rows


def _among(values: Array, offsets: Array) -> Array:
    row = np.minimum(np.searchsorted(offsets, values), len(offsets) - 1)
    among: Array = offsets[row] == values
    return among


def slot_counts(flat: FlatFile | None) -> list[int]:
    """Return the number of hash slots of each uploaded file, including damaged files. The number
    follows from the position of the first slot's items, because the items follow the last slot.
    Raises: StoreIOError.
    """
    unit, counts = fmt.COMPACTED_SLOT, []
    for segment in flat.segments if flat is not None else ():
        data = flat.reader.read(segment.path, fmt.HEADER.size, unit.size) if flat else b""
        if len(data) < unit.size:
            continue
        count, rest = divmod(unit.decode(data).position - fmt.HEADER.size, unit.size)
        if not rest and count > 0 and fmt.HEADER.size + count * unit.size <= segment.size:
            counts.append(count)
    return counts
