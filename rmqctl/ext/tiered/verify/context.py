"""State shared by the checks of a tiered queue: counts, and a builder of findings with their
locations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any

from rmqctl.checks.findings import Finding
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.frames import Array

LOG, QUEUE, INDEX, METADATA, TIER, LOCAL = (
    "commitlog", "consumequeue", "index", "metadata", "tier", "local")
TIERED = "tiered"
"""Name of a tier among the structures of the store that contains it."""
STRUCTURES = (TIER, METADATA, LOG, QUEUE, INDEX, LOCAL)
"""Names of the parts that can be checked: values of ``--only``, and structures of findings."""

Progress = Callable[[int], None]


@dataclass(slots=True)
class TierCoverage:
    """Counts of what a run has checked.

    ``bytes_total``: sum of ``bytes_in_messages``, ``bytes_orphaned``, ``bytes_coda``,
    ``bytes_zero`` and ``bytes_damaged``.
    ``bytes_orphaned``: bytes of intact messages without a unit.
    ``bytes_zero`` and ``bytes_damaged``: bytes outside of messages.
    ``bytes_unverifiable``: bytes of messages with units that no checksum covers, as in ``verify``.
    ``messages_undecided``: number of intact records that may be messages or part of a message body.
    ``messages_replaced``: number of fillers, and of messages that a repair kept damaged.
    ``already_lost_by_topic``: for each topic, the number of messages with a unit that are missing
    or damaged in the tier, and missing in the log beside the tier. ``messages_replaced`` are
    included.
    ``messages_lost_in_repairs``: number of messages that repairs of the tier dropped.
    ``nowhere_since``: number of dropped messages that the log does not contain.
    ``property_crc_unverifiable``: number of messages whose ``__CRC32#`` covers their physical
    offset in the local store, which is unknown.

    The JSON field ``messages_already_lost`` is the sum of ``already_lost_by_topic`` and
    ``nowhere_since``.
    """

    queues: int = 0
    segments: int = 0
    bytes_total: int = 0
    messages: int = 0
    messages_undecided: int = 0
    messages_replaced: int = 0
    messages_lost_in_repairs: int = 0
    nowhere_since: int = 0
    bytes_in_messages: int = 0
    orphans: int = 0
    bytes_orphaned: int = 0
    bytes_coda: int = 0
    bytes_zero: int = 0
    bytes_damaged: int = 0
    bytes_unverifiable: int = 0
    property_crc_unverifiable: int = 0
    consumequeue_rows: int = 0
    rows_expired: int = 0
    index_files: int = 0
    index_items: int = 0
    items_proven: int = 0
    items_unverifiable: int = 0
    keys: int = 0
    already_lost_by_topic: Counter[str] = field(default_factory=Counter)
    local_equal: int = 0
    local_only: int = 0
    tiered_only: int = 0
    in_neither: int = 0

    def add(self, other: TierCoverage) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON fields.

        As in ``verify``, ``bytes_total`` is the sum of ``bytes_in_messages`` (here including
        orphans), ``bytes_blank`` (the codas), ``bytes_zero`` and ``bytes_damaged``.
        """
        values = {}
        for name in self.__slots__:
            values[name] = getattr(self, name)
            if name == "bytes_in_messages":
                values[name] += self.bytes_orphaned
                values["bytes_blank"] = self.bytes_coda
        values["messages_already_lost"] = (self.already_lost_by_topic.total()
                                           + values.pop("nowhere_since"))
        return values


@dataclass(slots=True)
class QueueFindings:
    """Builder of findings about a queue. It adds topic, queue id and file path to each finding."""

    queue: FlatQueue
    counted: TierCoverage = field(default_factory=TierCoverage)
    local_from: int | None = None
    """First queue offset whose message is in the store's log; None if unknown."""

    def lost(self, queue_offsets: Array) -> None:
        """Count messages that are lost in the tier and are not in the local log either."""
        if self.local_from is not None:
            queue_offsets = queue_offsets[queue_offsets < self.local_from]
        if len(queue_offsets):
            self.counted.already_lost_by_topic[self.queue.name.topic] += len(queue_offsets)

    def _find(self, flat: FlatFile, structure: str, category: str, detail: str,
              offset: int | None, more: dict[str, Any]) -> Finding:
        file, position = None, None
        if offset is not None:
            segment = flat.segment_of(offset)
            if segment is not None:
                file, position = flat.reader.where(segment.path), offset - segment.base
        name = self.queue.name
        return Finding(category, structure, detail, file or flat.reader.where(flat.folder), offset,
                       topic=name.topic, queue_id=name.queue_id, position=position, **more)

    def log(self, category: str, detail: str, offset: int | None = None, **more: Any) -> Finding:
        """Return a finding about the commit log; ``offset``: logical offset in it."""
        return self._find(self.queue.commit_log, LOG, category, detail, offset, more)

    def rows(self, category: str, detail: str, offset: int | None = None, **more: Any) -> Finding:
        """Return a finding about the consume queue; ``offset``: logical byte offset of a unit."""
        return self._find(self.queue.consume_queue, QUEUE, category, detail, offset, more)
