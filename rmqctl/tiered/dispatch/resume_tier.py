"""`complete` for every queue of a tier, without its local store: ``tiered commit``."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.formats.tiered.metadata import QueueEntry, TopicEntry
from rmqctl.tiered.dispatch.resume import Completed, complete, rehearse
from rmqctl.tiered.dispatch.resume_metadata import unknown_topic
from rmqctl.tiered.dispatch.settings import resolve
from rmqctl.tiered.files import metadata_file
from rmqctl.tiered.files.lock import held
from rmqctl.tiered.files.writer import open_feeder
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.tier import Tier


@dataclass(frozen=True, slots=True)
class Committed:
    """What was done to a queue of a tier."""

    queue: FlatQueue
    done: Completed

    def as_dict(self) -> dict[str, Any]:
        name, done = self.queue.name, self.done
        return {"broker": name.broker, "topic": name.topic, "queue_id": name.queue_id,
                "units_added": done.units, "bytes_cut": sum(size for _, size, _ in done.cut),
                "kept": [kept for *_, kept in done.cut if kept],
                "entries_changed": done.entries,
                "status": ("refused" if done.fault else "completed" if done.changed else
                           "nothing to do"),
                "reason": done.fault}


def commit_tier(root: str, metadata: str | None, clock: Callable[[], int], *,
                dry_run: bool = False) -> Generator[Committed]:
    """Completes the queues of a tier one after the other; the metadata is saved at the end.

    NotAStoreError, UsageError (no metadata), RefusedError (metadata that would lose something),
    StoreHeldError, StoreIOError.
    """
    with Tier.open(root, metadata) as tier:
        path, home, place = tier.metadata_path, tier.home, tier.name
        if path is None or home is None:
            raise UsageError(f"{root}: no tieredStoreMetadata.json is found; name it with "
                             "--metadata, or make it with `rmqctl tiered recover`")
        if dry_run:
            _refuse(tier, path)
            for queue in tier.queues():
                yield Committed(queue, rehearse(queue, tier.metadata))
            return
    with held(place, home), Tier.open(root, metadata) as tier, closing(
            open_feeder(place)) as feeder:
        _refuse(tier, path)
        settings, _ = resolve(feeder, {})
        try:
            for queue in tier.queues():
                done = complete(feeder, queue, tier.metadata, settings.consume_queue_limit, clock)
                done.entries += _enter(queue, tier, clock())
                yield Committed(queue, done)
        finally:  # also of what was done before an error
            metadata_file.save(path.removesuffix(".bak"), tier.metadata, home)


def _refuse(tier: Tier, path: str) -> None:
    """RefusedError; StoreIOError where a part of the tier cannot be looked at."""
    for one in tier.problems:
        if one.unreadable:
            raise StoreIOError(one.reason)
    if tier.metadata_error is not None:
        raise RefusedError(f"{tier.metadata_error}; `rmqctl tiered recover` rebuilds it")
    if tier.metadata.old or tier.metadata.faults:
        raise RefusedError(f"{path}: something in it would be lost when it is written anew; see "
                           "`rmqctl tiered recover`")
    topic = unknown_topic(tier.queues(), tier.metadata)
    if topic is not None:
        raise RefusedError(f"{path} does not know the topic {topic}, which is in the tier; "
                           "`rmqctl tiered recover` finds its id in the index")


def _enter(queue: FlatQueue, tier: Tier, now: int) -> int:
    """Makes metadata know topic and queue, without which a broker does not open the files."""
    found, name = tier.metadata, queue.name
    changed = 0
    if name.topic not in found.topics:
        found.serial += 1
        found.topics[name.topic] = TopicEntry(found.serial, name.topic, update_timestamp=now)
        changed += 1
    table = found.queues.setdefault(name.topic, {})
    if name.queue_id not in table:
        table[name.queue_id] = QueueEntry(name.topic, name.broker, name.queue_id,
                                          update_timestamp=now)
        changed += 1
    return changed


