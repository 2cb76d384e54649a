"""The intact records of all queues of a tier, for `recover --from`."""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.ext.tiered.tier import Tier
from rmqctl.repair.sources.records import Unused


def records(root: str, unused: Unused) -> Iterator[tuple[str, bytes]]:
    """Yield (location as a string, bytes) for each record. A record's physical offset is its offset
    in the queue's commit log. Damaged parts and records are added to ``unused``.
    Raises: NotAStoreError, StoreIOError.
    """
    with Tier.open(root) as tier:
        for problem in tier.problems:
            if problem.unreadable:
                unused.add(problem.reason, problem.path)
        for queue in tier.queues():
            log = queue.commit_log
            for segment in log.segments:
                for batch in log.batches(segment):
                    sound = batch.crc_ok() | (batch.column("body_length") == 0)
                    for row, place in enumerate(batch.offset.tolist()):
                        where = f"{segment.path} @{place}"
                        if sound[row]:
                            yield where, batch.bytes_at(row)
                        else:
                            unused.add("body CRC mismatch", where)
