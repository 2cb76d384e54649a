"""Determine the content and the offset of every record of a store, as numpy columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.layout import BLANK
from benchmarks.options import Options, topic_names
from benchmarks.tails import TAGS, tags_codes, tail_length

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]

DONORS = 64  # the first records, plain ones, whose bytes are embedded in later bodies
PADDING = 24  # random bytes before and after an embedded record
BLOCK = 1 << 16  # records drawn at a time
FIRST_TIMESTAMP = 1_700_000_000_000
MAX_GAP_MS = 4


class Trick(IntEnum):
    """Kind of data in a body that imitates a record or a part of a record."""

    NONE = 0
    COPY = 1  # an earlier record
    FORGED = 2  # the same, with the physicalOffset of its new place
    CHAINED = 3  # two forged records in a row
    CUT = 4  # the start of a record
    MAGICS = 5  # magic numbers
    BLANK = 6  # a blank record


EMBEDDED_RECORDS = {Trick.COPY: 1, Trick.FORGED: 1, Trick.CHAINED: 2}


@dataclass(frozen=True)
class Plan:
    """The records of a store in log order, as columns; offsets and sizes in bytes."""

    options: Options
    topics: list[str]
    topic: U8
    queue: U8
    tag: U8
    keys: U8
    trick: U8
    donor: U8
    body_length: I32
    size: I32
    phy: I64
    queue_offset: I64
    store_timestamp: I64
    tags_code: I64

    def __len__(self) -> int:
        return len(self.phy)

    @property
    def end(self) -> int:
        """Physical offset after the last record."""
        return int(self.phy[-1] + self.size[-1])

    @property
    def file_of(self) -> I64:
        """Numbers of the records' commitlog files, from 0."""
        return self.phy // self.options.commitlog_file_size

    def queue_groups(self) -> Iterator[tuple[str, int, I64]]:
        """Yield (topic, queue id, record numbers in order) of every queue with records."""
        for members in queue_members(self.topic, self.queue, self.options.queues):
            first = members[0]
            yield self.topics[self.topic[first]], int(self.queue[first]), members


def queue_members(topic: U8, queue: U8, queues: int) -> list[I64]:
    """Return the record numbers of each non-empty queue, in log order."""
    number = topic.astype(np.int32) * queues + queue
    order = np.argsort(number, kind="stable")
    borders = np.flatnonzero(np.diff(number[order])) + 1
    return [part for part in np.split(order, borders) if len(part)]


def place(size: I32, file_size: int, log_size: int) -> I64:
    """Return the physical offsets of the records that fit into ``log_size``, as a broker places
    them.

    A record goes to the next file if it would leave less space than a blank record needs.
    """
    room = file_size - BLANK.itemsize
    if int(size.max()) > room:
        raise ValueError(f"a record of {size.max()} bytes does not fit in a file of {file_size}")
    ends = np.cumsum(size, dtype=np.int64)
    starts = ends - size
    phy = np.empty(len(size), dtype=np.int64)
    first = file_start = 0
    while first < len(size):
        stop = int(np.searchsorted(ends, starts[first] + room, side="right"))
        phy[first:stop] = starts[first:stop] - starts[first] + file_start
        first, file_start = stop, file_start + file_size
    return phy[: np.searchsorted(phy + size, log_size, side="right")]


def make_plan(options: Options) -> Plan:
    """Generate random records until the log is full."""
    rng = np.random.Generator(np.random.PCG64(options.seed))
    topics = topic_names(options.topics)
    columns: dict[str, list[NDArray[Any]]] = {}
    drawn = 0
    donor_sizes: I32 | None = None
    while drawn < options.log_size:
        block = draw_block(rng, options, topics, donor_sizes)
        if donor_sizes is None:
            donor_sizes = block["size"][:DONORS].astype(np.int32)
        for name, column in block.items():
            columns.setdefault(name, []).append(column)
        drawn += int(block["size"].sum(dtype=np.int64))
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    phy = place(whole["size"], options.commitlog_file_size, options.log_size)
    if not len(phy):
        raise ValueError("the log is too small for one record")
    kept = {name: column[: len(phy)] for name, column in whole.items()}
    queue_offset = np.empty(len(phy), dtype=np.int64)
    for members in queue_members(kept["topic"], kept["queue"], options.queues):
        queue_offset[members] = np.arange(len(members))
    gaps = kept.pop("gap").astype(np.int64)
    return Plan(
        options=options,
        topics=topics,
        phy=phy,
        queue_offset=queue_offset,
        store_timestamp=FIRST_TIMESTAMP + np.cumsum(gaps),
        tags_code=tags_codes()[kept["tag"]],
        **kept,
    )


def draw_block(
    rng: np.random.Generator, options: Options, topics: list[str], donor_sizes: I32 | None
) -> dict[str, NDArray[Any]]:
    """Return the columns of the next BLOCK records. The first block (``donor_sizes`` is None)
    starts with the donors, the records that later bodies copy.
    """
    weights = 1.0 / np.arange(2, len(topics) + 2)  # some topics are busier than others
    topic = rng.choice(len(topics), BLOCK, p=weights / weights.sum()).astype(np.uint8)
    tag = rng.integers(0, len(TAGS), BLOCK, dtype=np.uint8)
    keys = rng.integers(0, 3, BLOCK, dtype=np.uint8)
    spread = options.body_length // 10
    body = rng.integers(
        options.body_length - spread, options.body_length + spread + 1, BLOCK, dtype=np.int32
    )
    lengths = np.array(
        [
            [[tail_length(name, tag_no, n) for n in range(3)] for tag_no in range(len(TAGS))]
            for name in topics
        ],
        dtype=np.int32,
    )
    fixed = lengths[topic, tag, keys]
    tricks = rng.integers(1, len(Trick), BLOCK, dtype=np.uint8)
    trick = np.where(rng.random(BLOCK) < options.adversarial, tricks, Trick.NONE).astype(np.uint8)
    if donor_sizes is None:
        trick[:DONORS] = Trick.NONE
        donor_sizes = (body + fixed)[:DONORS]
    donor = rng.integers(0, DONORS, BLOCK, dtype=np.uint8)
    for kind, copies in EMBEDDED_RECORDS.items():
        chosen = trick == kind
        body[chosen] = copies * donor_sizes[donor[chosen]] + 2 * PADDING
    return {
        "topic": topic,
        "queue": rng.integers(0, options.queues, BLOCK, dtype=np.uint8),
        "tag": tag,
        "keys": keys,
        "trick": trick,
        "donor": donor,
        "body_length": body,
        "size": body + fixed,
        "gap": rng.integers(0, MAX_GAP_MS + 1, BLOCK, dtype=np.uint8),
    }
