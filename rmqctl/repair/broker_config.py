"""The settings of the broker that wrote a store, as far as derived files depend on them.

The first source that has a value wins: the user, the record of `init`, the store's files. A note
names each value that is a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rmqctl.broker.release import judged
from rmqctl.broker.settings import Settings, ext_files, resolve
from rmqctl.engine.config.topics import Topics
from rmqctl.errors import RefusedError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration for a repair.

    ``batch_topics``: the topics with batch queues.
    ``notes``: notes about assumed values.
    ``topics_known``: whether config/topics.json, which names these topics, can be read.
    ``assumes_batch``: whether the size of batch consume queue files is a guess.
    ``index_unknown``: why the numbers of slots and entries of the index files are unknown; "" if
        they are known.
    """

    settings: Settings
    batch_topics: frozenset[str]
    notes: tuple[str, ...]
    topics_known: bool
    assumes_batch: bool
    index_unknown: str = ""

    def with_batches(self, store: Store, topics: Iterable[str]) -> Configured:
        """Return the configuration in which ``topics`` (topics with inner batches) have batch
        queues. A topic with plain consume queue files keeps its plain queues.

        Nothing changes if config/topics.json is known, or with a 4.x broker.
        """
        if self.topics_known or self.settings.profile.generation < 5:
            return self
        plain = {topic for (topic, _), queue in store.queues.by_key.items() if queue.exists}
        batch = self.batch_topics | (frozenset(topics) - plain)
        notes = self.notes
        if batch and not self.batch_topics and self.assumes_batch:
            notes += (_batch_size(self.settings),)
        return replace(self, batch_topics=batch, notes=notes)


def configured(store: Store, given: Mapping[str, Any], *, into_files: bool = False) -> Configured:
    """Return the configuration for a repair of an opened store.

    ``given``: values by the names of `Settings`, None if not given. ``into_files``: whether consume
    queues in RocksDB are converted into files.

    Multi-dispatch and LMQs count as disabled only if the user disables them, or if the consume
    queues are those of a broker without them. This is safe: only messages with a multi-dispatch
    property have further entries.

    Raises: the exceptions of `resolve`.
    """
    # Values that the store itself shows win over defaults.
    light = store.queues.light
    config = resolve(store, given, shown={
        "version": judged(store).release, "lmq": not light.own_ids,
        "multi_dispatch": not light.rows_optional,
        "consumequeue_ext": any(ext_files(store))})
    settings, origin, notes = config.settings, config.origin, []
    if config.index_unknown:
        settings = replace(settings, message_index=False)
        notes.append(f"{config.index_unknown}; the index is left as it is")
    # Note guessed sizes, because a broker with others does not read the files.
    if origin["consumequeue_file_size"] == "default" and (
            into_files or store.layout.consumequeue != "rocksdb") and not any(
            queue.files for queue in store.queues.by_key.values()):
        notes.append(_queue_size(
            "consumequeue", settings.consumequeue_file_size, "mappedFileSizeConsumeQueue",
            "--consumequeue-file-size", "; 4.9.2 and releases up to 4.4.0 skip them"))
    if "default" in (origin["index_slots"], origin["index_max"]) and (
            not store.index.listing.files):
        notes.append(
            f"no index file shows the number of slots: assuming a broker's default, "
            f"{settings.index_slots:,} slots and {settings.index_max:,} entries (--index-slots, "
            "--index-max). A broker with another maxHashSlotNum finds no keys in such files and "
            "reports no error")
    # Topics with batch queues: by settings, by folders, by topics.json.
    batch = settings.batch_topics | {topic for topic, _ in store.queues.batch}
    topics_known = load_one(store, "topics.json").value is not None
    try:
        batch |= Topics(store.root, settings, now_ms, store).batch_topics()
    except RefusedError as error:  # a damaged config/topics.json must not stop a repair
        notes.append(f"{error}; topics with batch queues are recognized by their folders")
    assumes_batch = origin["batch_consumequeue_file_size"] == "default" and not any(
        queue.files for queue in store.queues.batch.values())
    if batch and assumes_batch:
        notes.append(_batch_size(settings))
    return Configured(settings, batch, tuple(notes), topics_known, assumes_batch,
                      config.index_unknown)


def _queue_size(structure: str, size: int, name: str, option: str, older: str = "") -> str:
    """Return a note that the size of a queue's files is assumed, with the consequence of a wrong
    assumption (recovery.md §2).
    """
    return (f"no {structure} file shows the file size: assuming a broker's default, {size:,} "
            f"bytes ({option}). A broker with another {name} does not start on such files{older}")


def _batch_size(settings: Settings) -> str:
    return _queue_size("batchconsumequeue", settings.batch_consumequeue_file_size,
                       "mapperFileSizeBatchConsumeQueue", "--batch-consumequeue-file-size")
