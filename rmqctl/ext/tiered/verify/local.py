"""Compare a tiered queue with the same queue of the broker's local store (tiered.md §7, §17.3).

The message of a queue offset is in both stores, only in the local store, only in the tier, or in
neither. If both stores contain a message, all bytes except the physical offset must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.context import LOCAL, TierCoverage
from rmqctl.formats import layout
from rmqctl.formats.local import consume_queue, consume_queue_ext, message
from rmqctl.formats.tiered.names import is_filtered
from rmqctl.formats.tiered.units import UnitRecord
from rmqctl.store.queue.search import first_from
from rmqctl.store.store import Store

_AT = layout.field(message.Message, "physical_offset")
_BLOCK = 1 << 12


def compare_queues(tier: Tier, queue: FlatQueue, store: Store, counted: TierCoverage) -> Iterator[
        Finding]:
    """Yield findings about a queue, and add the counts of its messages to ``counted``."""
    name = queue.name
    local = store.queues.find(name.topic, name.queue_id)
    where = tier.reader.where(queue.commit_log.folder)
    first, end = max(queue.min_offset, queue.cq_start), queue.commit_offset
    if local is None:
        counted.tiered_only += max(end - first, 0)
        return
    try:
        # Messages on one side only, or on neither.
        # Rows are in log order: those before its first file point to deleted bytes.
        high = local.disk_end
        low = first_from(local, local.first_index, high, store.log.min_offset)
        counted.local_only += max(high - max(low, end), 0) + max(min(high, first) - low, 0)
        counted.tiered_only += max(min(end, low) - first, 0)
        if low > end:
            counted.in_neither += low - end
            yield Finding("tiered-lost", LOCAL, "expired before upload: "
                          f"{plural(low - end, 'message')} from queue offset {end} on", where,
                          topic=name.topic, queue_id=name.queue_id, queue_offset=end,
                          count=low - end)
        queue_offset = max(low, first)
        while queue_offset < min(high, end):
            units = local.units(queue_offset, min(_BLOCK, min(high, end) - queue_offset))
            if not len(units):
                break
            tier_units = [UnitRecord(*row)
                          for row in queue.units(queue_offset, len(units)).tolist()]
            for number, row in enumerate(units.tolist()):
                unit = tier_units[number] if number < len(tier_units) else queue.unit(queue_offset
                                                                                      + number)
                finding = _difference(queue, store, queue_offset + number, unit,
                                      consume_queue.UnitRecord(*row), where)
                if finding is None:
                    counted.local_equal += 1
                else:
                    yield finding
            queue_offset += len(units)
    except StoreIOError as error:
        yield Finding("file-unreadable", LOCAL, str(error), where, topic=name.topic,
                      queue_id=name.queue_id)
    finally:
        local.close()


def count_others(tier: Tier, store: Store, counted: TierCoverage) -> None:
    """Count the local messages of queues that are not in the tier."""
    tiered = {(queue.name.topic, queue.name.queue_id) for queue in tier.queues()}
    for (topic, queue_id), queue in store.queues.by_key.items():
        if (topic, queue_id) not in tiered and not is_filtered(topic):
            try:
                counted.local_only += queue.disk_end - queue.first_index
            except StoreIOError:
                continue  # verify of the store reports it
            finally:
                queue.close()


def _difference(queue: FlatQueue, store: Store, queue_offset: int, tier_unit: UnitRecord | None,
                local: consume_queue.UnitRecord, where: str) -> Finding | None:
    """Return a finding if the tier's copy of a message differs from the local copy, else None."""
    if tier_unit is None:
        return _differs(queue, queue_offset, "the tier has no unit for it", where, None)
    ours = store.log.raw_at(local.physical_offset, local.size)
    theirs = _raw(queue, tier_unit)
    if ours is None:
        return _differs(queue, queue_offset, "the local store has no such message at "
                        f"{local.physical_offset}", where, tier_unit)
    if theirs is None:
        return _differs(queue, queue_offset, "incomplete in the tier", where, tier_unit)
    if tier_unit.tags_code != local.tags_code and not consume_queue_ext.is_address(local.tags_code):
        return _differs(queue, queue_offset, f"tags code {tier_unit.tags_code}, in the local store "
                        f"{local.tags_code}", where, tier_unit)
    end = _AT.offset + _AT.size
    if ours[:_AT.offset] == theirs[:_AT.offset] and ours[end:] == theirs[end:]:
        return None
    size = min(len(ours), len(theirs))
    unequal = np.frombuffer(ours, np.uint8, size) != np.frombuffer(theirs, np.uint8, size)
    unequal[_AT.offset:end] = False
    byte = int(unequal.argmax()) if unequal.any() else size
    return _differs(queue, queue_offset, f"differs from the local message at byte {byte}", where,
                    tier_unit)


def _raw(queue: FlatQueue, unit: UnitRecord) -> bytes | None:
    try:
        return queue.raw(unit)
    except FormatError:
        return None


def _differs(queue: FlatQueue, queue_offset: int, detail: str, where: str,
             unit: UnitRecord | None) -> Finding:
    offset = None if unit is None else unit.commit_log_offset
    return Finding("tiered-differs", LOCAL, detail, where, offset, topic=queue.name.topic,
                   queue_id=queue.name.queue_id, queue_offset=queue_offset)
