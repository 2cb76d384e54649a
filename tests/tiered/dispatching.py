"""Local stores that are dispatched, and what must be true of a tier that was fed from one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmqctl.ext.tiered.index.index_file import LocalIndex, TierIndexFile, uploaded
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.local import message
from rmqctl.formats.tiered import index
from rmqctl.formats.tiered import metadata as meta
from rmqctl.store.store import Store
from tests.conftest import Runner
from tests.engine_write.durable import new_store

BROKER = ("--broker", "broker-a")
SMALL = ("--commitlog-max-size", "3000", "--consumequeue-max-size", "130", "--index-slots", "16",
         "--index-max", "40")
"""Sizes that make many segments and index files of few messages."""
TOPICS = ("T0", "T1", "T2")
WHEN = 1_700_000_000_000
METADATA = "config/tieredStoreMetadata.json"


def record(number: int, *, topics: tuple[str, ...] = TOPICS, queues: int = 2,
           body: str | None = None, **more: Any) -> bytes:
    """A message with a number as a recorded line: a second after the one before."""
    properties = f"KEYS\1k{number} shared\2UNIQ_KEY\1u{number}\2TAGS\1tag{number % 5}\2"
    return json.dumps({
        "topic": topics[number % len(topics)], "queue_id": number // len(topics) % queues,
        "body": f"message {number} " + "x" * (number * 37 % 300) if body is None else body,
        "store_timestamp": WHEN + number * 1000, "born_timestamp": WHEN + number * 1000,
        "store_host": "127.0.0.1:10911", "born_host": "127.0.0.1:0",
        "properties_raw": properties, **more}).encode() + b"\n"


def put(rmqctl: Runner, store: Path, first: int, count: int, **more: Any) -> None:
    """Appends messages ``first`` … to a store."""
    source = store.parent / "lines"
    source.write_bytes(b"".join(record(n, **more) for n in range(first, first + count)))
    rmqctl("append", store, source, "--as-recorded").expect(0)


def local_store(rmqctl: Runner, root: Path, count: int, **more: Any) -> Path:
    """A new store with so many messages in six queues."""
    put(rmqctl, new_store(rmqctl, root), 0, count, **more)
    return root


def dispatched(rmqctl: Runner, store: Path, root: Path, *more: str, code: int = 0) -> Any:
    """One dispatch; the document it prints."""
    return rmqctl("tiered", "dispatch", store, root, *BROKER, "-o", "json", *more).expect(
        code).json()


def statuses(document: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    return {(queue["topic"], queue["queue_id"]): queue["status"] for queue in document["queues"]}


def opened(store: Path, root: Path) -> Tier:
    """The tier with the metadata that is in the store."""
    return Tier.open(str(root), str(store / METADATA))


def streams(store: Path, root: Path) -> dict[tuple[str, int, str], tuple[int, bytes]]:
    """(start, bytes) of every flat file of every queue, whatever its segments are."""
    with opened(store, root) as tier:
        return {(queue.name.topic, queue.name.queue_id, flat.kind):
                (flat.start, flat.read(flat.start, flat.end - flat.start))
                for queue in tier.queues() for flat in (queue.commit_log, queue.consume_queue)}


def segments(root: Path) -> dict[str, bytes]:
    """All segments of commit logs and consume queues by path."""
    return {str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*")) if path.is_file()
            and path.parent.name in ("COMMIT_LOG", "CONSUME_QUEUE")
            and ".rmqctl" not in path.relative_to(root).parts}


def index_items(store: Path, root: Path, slots: int | None = None,
                most: int | None = None) -> Counter[tuple[Any, ...]]:
    """What the index has: (hash, topic, queue, offset, size)."""
    counts: Counter[tuple[Any, ...]] = Counter()
    with opened(store, root) as tier, LocalIndex(tier.local_index_folder, slots, most) as local:
        files = [*local.files, *(file for _, flat in tier.indexes() for file in uploaded(flat))]
        for file in files:
            assert isinstance(file, TierIndexFile), file
            for _, rows in file.blocks():
                for row in rows:
                    counts[int(row["key_hash"]), tier.metadata.topic_of(int(row["topic_id"])),
                           int(row["queue_id"]), int(row["commit_log_offset"]),
                           int(row["size"])] += 1
        assert not local.errors
    return counts


def wanted_items(store: Path, root: Path) -> Counter[tuple[Any, ...]]:
    """What the index has to have: every key of every message that has a unit, once."""
    counts: Counter[tuple[Any, ...]] = Counter()
    with opened(store, root) as tier:
        for queue in tier.queues():
            for number in range(queue.cq_start, queue.commit_offset):
                unit, record = queue.unit(number), queue.record(number)
                assert unit is not None
                for key in keys_of(record):
                    counts[index.key_hash(queue.name.topic, key), queue.name.topic,
                           queue.name.queue_id, unit.commit_log_offset, unit.size] += 1
    return counts


def keys_of(record: message.Record) -> set[str]:
    """The keys of a message, as the broker collects them (no blank ones in these stores)."""
    pairs = dict(text.split("\1") for text in record.properties.decode().split("\2") if text)
    return {*pairs.get("KEYS", "").split(" "), pairs.get("UNIQ_KEY", "")} - {""}


def assert_consistent(store: Path, root: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Every unit leads to the local message of its queue offset, with only the physical offset
    another; the metadata says what the files are. (first, end) of each queue.
    """
    ends_by_queue = {}
    with opened(store, root) as tier, Store.open(store) as local:
        assert not tier.metadata_error
        assert tier.problems == []
        for queue in tier.queues():
            assert not list(queue.consume_queue.gaps())
            rows = local.queues.find(queue.name.topic, queue.name.queue_id)
            assert rows is not None
            for number in range(queue.cq_start, queue.commit_offset):
                unit = rows.unit(number)
                assert unit is not None
                theirs = queue.record(number)
                mine = local.log.record_at(unit.physical_offset, unit.size)
                assert mine is not None
                assert theirs == message.Record(**{
                    **{name: getattr(mine, name) for name in mine.__dataclass_fields__},
                    "physical_offset": queue.unit(number).commit_log_offset})
                assert queue.unit(number).tags_code == unit.tags_code
            ends_by_queue[queue.name.topic,
                          queue.name.queue_id] = queue.cq_start, queue.commit_offset
    return ends_by_queue


def assert_metadata(store: Path, root: Path) -> meta.Metadata:
    """The metadata is what a broker would have written of these files."""
    with opened(store, root) as tier:
        for queue in tier.queues():
            for flat in (queue.commit_log, queue.consume_queue):
                segments = tier.metadata.segments[flat.kind][queue.name.path]
                assert {segment.base: segment.size for segment in flat.segments} == {
                    base: segment.size for base, segment in segments.items()}
                for segment in segments.values():
                    if segment.size:
                        assert WHEN <= segment.begin_timestamp <= segment.end_timestamp
                    else:
                        assert segment.begin_timestamp == segment.end_timestamp == (1 << 63) - 1
            assert queue.name.queue_id in tier.metadata.queues[queue.name.topic]
            assert queue.name.topic in tier.metadata.topics
        return tier.metadata
