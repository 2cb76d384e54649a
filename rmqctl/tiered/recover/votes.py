"""Which topic an index item's topic id means, found by asking the messages (tiered.md §17.6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import message, properties
from rmqctl.formats.tiered import index as fmt
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.index.index_file import EMPTY, IndexFile

_SAMPLES = 64
"""Items of an id that are looked at."""
_ENOUGH = 8
"""Items that agree, after which no more are asked."""
_IDS = 1 << 16
"""Ids that are told apart; a damaged file may claim any number of them."""


def vote(files: Iterable[IndexFile], queues: Iterable[FlatQueue]) -> dict[str, dict[int, int]]:
    """{topic: {id: items of it whose message has such a key}}. What cannot be read votes not."""
    samples: dict[int, list[tuple[int, int, int, int]]] = {}
    for file in files:
        _sample(file, samples)
    by_number: dict[int, list[FlatQueue]] = {}
    for queue in queues:
        by_number.setdefault(queue.name.queue_id, []).append(queue)
    found: dict[str, dict[int, int]] = {}
    for topic_id, items in samples.items():
        for topic, count in _count(items, by_number).items():
            found.setdefault(topic, {})[topic_id] = count
    return found


def winners(votes: dict[str, dict[int, int]]) -> dict[str, int]:
    """One id for each topic, and no id for two."""
    found: dict[str, int] = {}
    used: set[int] = set()
    ranked = sorted(((count, topic_id, topic) for topic, ids in votes.items()
                     for topic_id, count in ids.items()), reverse=True)
    for _, topic_id, topic in ranked:
        if topic not in found and topic_id not in used:
            found[topic] = topic_id
            used.add(topic_id)
    return found


def _sample(file: IndexFile, samples: dict[int, list[tuple[int, int, int, int]]]) -> None:
    if file.form == EMPTY:
        return
    try:
        for _, items in file.blocks():
            ids = items["topic_id"]
            for topic_id in np.unique(ids).tolist():
                known = samples.get(topic_id)
                if known is None:
                    if len(samples) >= _IDS or topic_id < 0:
                        continue
                    known = samples[topic_id] = []
                if len(known) >= _SAMPLES:
                    continue
                at = np.flatnonzero(ids == topic_id)
                step = max(1, len(at) // (_SAMPLES - len(known)))
                for one in items[at[::step]][:_SAMPLES - len(known)].tolist():
                    known.append((one[0], one[2], one[3], one[4]))
    except (FormatError, StoreIOError):
        return


def _count(items: Iterable[tuple[int, int, int, int]],
           queues: dict[int, list[FlatQueue]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for key_hash, queue_id, offset, size in items:
        for queue in queues.get(queue_id, ()):
            if _has_key(queue, key_hash, offset, size):
                found[queue.name.topic] += 1
        if found and found.most_common(1)[0][1] >= _ENOUGH:
            break
    return found


def _has_key(queue: FlatQueue, key_hash: int, offset: int, size: int) -> bool:
    log = queue.commit_log
    if not (log.start <= offset and message.MIN_SIZE <= size <= log.end - offset):
        return False
    try:
        record = message.decode(log.read(offset, size))
    except (FormatError, StoreIOError):
        return False
    if record.total_size != size or record.topic.decode("utf-8", "replace") != queue.name.topic:
        return False
    return any(key_hash in fmt.both_hashes(queue.name.topic, key) for key in keys_of(record))


def keys_of(record: message.Record) -> Iterator[str]:
    """The keys that index items may stand for."""
    found = properties.parse(record.properties.decode("utf-8", "replace"))
    unique = found.get(properties.UNIQUE_KEY)
    if unique:
        yield unique
    yield from dict.fromkeys(found.get(properties.KEYS, "").split(" "))
