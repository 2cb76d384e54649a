"""``expect.json`` and ``input.jsonl`` of a golden set as typed objects.

`load` reads what the engine answered after it loaded a store; `puts` what it was given. How each
list is to be read (which units, which limits, which order) is said at the classes and held by
``tests/engine/test_expect_semantics.py``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOR_EVER = (1 << 63) - 1
"""``end`` of a key query that has no end (Java's Long.MAX_VALUE)."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One consumequeue entry between min and max, filler units included.

    ``tags_code``: 4.9.3 gives the raw value (an ext address where the queue has an ext file),
    5.3.3 the real one (looked up in the ext file). ``ext`` is what the ext file holds, 4.9.3
    only. ``batch_size`` and ``compacted_offset`` are set for a BatchCQ; there ``queue_offset``
    is the base offset of the batch.
    """

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    ext: ExtUnit | None = None
    batch_size: int | None = None
    compacted_offset: int | None = None

    @property
    def is_filler(self) -> bool:
        """A unit that stands for nothing, written before the first entry of a queue."""
        return self.physical_offset == 0 and self.size == 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class ExtUnit:
    """The consumequeue ext unit an entry points to; the bit map may be None."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes | None
    size: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message as ``getMessage`` delivers it: the record's own topic, queue id and offset.

    For an LMQ these differ from the queue's. ``body_sha1`` is over the stored (maybe compressed)
    bytes. Of a compaction topic ``physical_offset`` is the offset in the compaction log.
    """

    queue_offset: int
    physical_offset: int
    size: int
    body_sha1: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """The queue offset at a time. ``lower``/``upper`` are None for 4.9.3 (one rule: nearest)."""

    timestamp: int
    offset: int
    lower: int | None
    upper: int | None


@dataclass(frozen=True, slots=True)
class Pull:
    """The answer of ``getMessage(topic, queue, offset, maxMsgNums=5)``."""

    offset: int
    status: str
    next_begin: int
    min: int
    max: int
    physical_offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue after load; ``kind`` is ``SimpleCQ`` or ``BatchCQ``.

    4.9.3 lists queues that have no directory too (it was asked for them), all zeros.
    """

    topic: str
    queue_id: int
    kind: str
    min: int
    max: int
    max_physical_offset: int
    units: tuple[Unit, ...]
    messages: tuple[Message, ...]
    pulls: tuple[Pull, ...]
    by_time: tuple[TimeAnswer, ...]

    @property
    def id(self) -> str:
        return f"{self.topic}/{self.queue_id}"

    @property
    def is_empty(self) -> bool:
        return self.max == 0


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """``queryMessage(topic, key, max, begin, end)`` and the raw index answer below it.

    ``index`` is what the index gives, newest first. ``messages`` is the broker's answer:
    ascending, entries whose record cannot be read left out; hash collisions are still in it.
    """

    topic: str
    key: str
    max: int
    begin: int
    end: int
    messages: tuple[int, ...]
    index: tuple[int, ...]

    @property
    def id(self) -> str:
        window = "" if (self.begin, self.end) == (0, FOR_EVER) else f"@{self.begin}-{self.end}"
        return f"{self.topic}#{self.key}{window}"


@dataclass(frozen=True, slots=True)
class Expect:
    """Everything the engine said about one directory.

    ``loaded`` False: it refused to start; nothing but the trees' hashes is known then.
    ``config`` holds the broker settings as text.
    """

    engine: str
    kind: str
    description: str
    config: dict[str, str]
    loaded: bool
    min_physical_offset: int
    max_physical_offset: int
    max_after_load: int
    readable_total: int
    queues: tuple[Queue, ...]
    queries: tuple[KeyQuery, ...]
    checkpoint: dict[str, int]
    raw: dict[str, Any] = field(repr=False)

    @property
    def commitlog_file_size(self) -> int:
        return int(self.config["mappedFileSizeCommitLog"])

    @property
    def consumequeue_file_size(self) -> int:
        return int(self.config["mappedFileSizeConsumeQueue"])

    @property
    def index_slots(self) -> int:
        return int(self.config["maxHashSlotNum"])

    @property
    def index_max(self) -> int:
        return int(self.config["maxIndexNum"])

    @property
    def commitlog_dirs(self) -> tuple[str, ...]:
        """The directories of the log relative to the store root (several for a multi-path one)."""
        paths = self.config.get("storePathCommitLog")
        if paths is None:
            return ("commitlog",)
        return tuple(part.removeprefix("${root}/") for part in paths.split(","))

    @property
    def topic_attributes(self) -> dict[str, str]:
        """Topic -> attribute: ``queue.type=BatchCQ`` or ``cleanup.policy=COMPACTION``."""
        return {name.removeprefix("topic."): value for name, value in self.config.items()
                if name.startswith("topic.")}

    def is_compacted(self, topic: str) -> bool:
        """Whether reads of ``topic`` go to the compaction store."""
        return self.topic_attributes.get(topic) == "cleanup.policy=COMPACTION"

    def queue(self, topic: str, queue_id: int) -> Queue:
        for queue in self.queues:
            if (queue.topic, queue.queue_id) == (topic, queue_id):
                return queue
        raise KeyError(f"{topic}/{queue_id}")


def load(path: Path) -> Expect:
    """The typed content of an ``expect.json``."""
    raw: dict[str, Any] = json.loads(path.read_text())
    return Expect(
        engine=raw["engine"], kind=raw["kind"], description=raw.get("description", ""),
        config=raw["config"], loaded=raw["loaded"],
        min_physical_offset=raw.get("minPhyOffset", -1),
        max_physical_offset=raw.get("maxPhyOffset", -1),
        max_after_load=raw.get("maxPhyOffsetAfterLoad", -1),
        readable_total=raw.get("readableTotal", 0),
        queues=tuple(_queue(queue) for queue in raw.get("queues", ())),
        queries=tuple(
            KeyQuery(query["topic"], query["key"], query["max"], query["begin"], query["end"],
                     tuple(query["queryMessage"]), tuple(query["queryOffset"]))
            for query in raw.get("queries", ())),
        checkpoint=raw.get("checkpointInMemory", {}),
        raw=raw,
    )


def _queue(raw: dict[str, Any]) -> Queue:
    return Queue(
        topic=raw["topic"], queue_id=raw["queueId"], kind=raw["cqType"],
        min=raw["min"], max=raw["max"], max_physical_offset=raw["maxPhysicOffset"],
        units=tuple(_unit(item) for item in raw["cq"]),
        messages=tuple(Message(*message) for message in raw["messages"]),
        pulls=tuple(Pull(*item[:5], tuple(item[5])) for item in raw["getMessage5"]),
        by_time=tuple(TimeAnswer(when, offset, *(pair or (None, None)))
                      for when, offset, pair in raw["offsetByTime"]),
    )


def _unit(raw: list[Any]) -> Unit:
    if len(raw) == 6:
        return Unit(*raw[:4], batch_size=raw[4], compacted_offset=raw[5])
    return Unit(*raw[:4], ext=_ext(raw[4]) if len(raw) == 5 else None)


def _ext(raw: dict[str, Any]) -> ExtUnit:
    bits = raw.get("bitMap")
    return ExtUnit(raw["tagsCode"], raw["msgStoreTime"],
                   None if bits is None else bytes.fromhex(bits), raw["size"])


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as the engine decoded it from its log."""

    magic: int
    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    topic: str
    properties: str
    body_sha1: str
    body_length: int
    raw_sha1: str


@dataclass(frozen=True, slots=True)
class Put:
    """One line of ``input.jsonl``: what was handed in, the engine's answer, the records."""

    number: int
    op: str
    given: dict[str, Any]
    result: dict[str, Any]
    stored: tuple[Stored, ...]

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.given.get("body") or "")


def puts(path: Path) -> Iterator[Put]:
    """Every line of an ``input.jsonl`` in put order."""
    with path.open() as lines:
        for line in lines:
            raw: dict[str, Any] = json.loads(line)
            records = raw.get("storedList") or ([raw["stored"]] if raw.get("stored") else [])
            yield Put(raw["i"], raw.get("op", ""), raw, raw.get("result") or {},
                      tuple(_stored(record) for record in records))


def _stored(raw: dict[str, Any]) -> Stored:
    return Stored(
        int(raw["magic"], 16), raw["size"], raw["bodyCRC"], raw["queueId"], raw["flag"],
        raw["queueOffset"], raw["phyOffset"], raw["sysFlag"], raw["bornTimestamp"],
        raw["bornHost"], raw["storeTimestamp"], raw["storeHost"], raw["reconsumeTimes"],
        raw["preparedTransactionOffset"], raw["topic"], raw["propertiesString"] or "",
        raw["bodySha1"], raw["bodyLen"], raw["rawSha1"])
