"""The vectorised reach of queues against plain Python over the same records."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.local import message, properties, sysflag
from rmqctl.scan.queue_reach import QueueReach, Reach
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk

BORN, STORED = message.host_bytes("10.0.0.7:1"), message.host_bytes("[::1]:2")


@dataclass(frozen=True)
class Put:
    topic: str = "t"
    queue_id: int = 0
    queue_offset: int = 0
    sys_flag: int = 0
    properties: dict[str, str] = field(default_factory=dict)


def log(puts: Sequence[Put]) -> bytes:
    data = b""
    for put in puts:
        flags = put.sys_flag | sysflag.STORE_HOST_V6
        body, topic = b"body", put.topic.encode()
        text = properties.build(put.properties).encode()
        data += message.build(message.Record(
            message.size_of(flags, message.MAGIC_V1, len(body), len(topic), len(text)),
            message.MAGIC_V1, zlib.crc32(body) & message.CRC_MASK, put.queue_id, 0,
            put.queue_offset, len(data), flags, 1, BORN, 2, STORED, 0, 0, body, topic, text))
    return data


def reach(puts: Sequence[Put], *, chunk: int = 2 << 20, generation: int = 5,
          plain: bool = False) -> dict[tuple[bytes, int], Reach]:
    queue_reach = QueueReach(generation, plain=plain)
    for batch in Walk(BytesSource(log(puts)), chunk=chunk):
        queue_reach.add(batch)
    return queue_reach.result()


def by_hand(puts: Iterable[Put], *, plain: bool = False) -> dict[tuple[bytes, int], Reach]:
    """consumequeue.md §4, §9, §10 in the simplest words."""
    reaches: dict[tuple[bytes, int], Reach] = {}

    def count(topic: str, queue_id: int, first: int, last: int) -> None:
        old = reaches.get((topic.encode(), queue_id), Reach(first, last + 1, 0))
        reaches[topic.encode(), queue_id] = Reach(
            min(old.first, first), max(old.end, last + 1), old.messages + 1)

    for put in puts:
        if sysflag.transaction_type(put.sys_flag) in ("prepared", "rollback"):
            continue
        first = last = put.queue_offset
        properties = put.properties
        if put.sys_flag & sysflag.INNER_BATCH and not plain:
            base, number = properties.get("INNER_BASE", ""), properties.get("INNER_NUM", "")
            if base.isdigit() and number.isdigit():
                first, last = int(base), int(base) + max(int(number), 1) - 1
        if first >= 0:
            count(put.topic, put.queue_id, first, last)
        # As Java's split: no empty parts at the end.
        names = properties.get("INNER_MULTI_DISPATCH", "").rstrip(",").split(",")
        offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "").rstrip(",").split(",")
        if plain or len(names) != len(offsets) or put.topic.startswith("%RETRY%"):
            continue
        for name, offset in zip(names, offsets, strict=True):
            if name and offset.isdigit():
                count(name, 0 if name.startswith("%LMQ%") else put.queue_id, int(offset),
                      int(offset))
    return reaches


NUMBER = st.integers(0, 300).map(str)
QUEUES = st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", "plain", "t", ""]), min_size=1, max_size=4)
PUTS = st.builds(
    Put,
    topic=st.sampled_from(["t", "other", "%RETRY%g", "größe"]),
    queue_id=st.sampled_from([0, 1, 7, 70_000, -1]),
    queue_offset=st.one_of(st.integers(-3, 300), st.just((1 << 62) - 1)),
    sys_flag=st.sampled_from([0, 0, sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_COMMIT,
                              sysflag.TRANSACTION_ROLLBACK, sysflag.INNER_BATCH]),
    properties=st.fixed_dictionaries({}, optional={
        "KEYS": st.just("k"), "INNER_NUM": NUMBER, "INNER_BASE": st.one_of(NUMBER, st.just("x")),
        "INNER_MULTI_DISPATCH": QUEUES.map(",".join),
        "INNER_MULTI_QUEUE_OFFSET": st.lists(st.one_of(NUMBER, st.just("")), min_size=1,
                                             max_size=4).map(",".join)}))


@pytest.mark.long
@given(st.lists(PUTS, max_size=30), st.sampled_from([300, 1000, 1 << 20]), st.booleans())
def test_columns_and_plain_python_agree(puts: list[Put], chunk: int, plain: bool) -> None:
    assert reach(puts, chunk=chunk, plain=plain) == by_hand(puts, plain=plain)


@pytest.mark.long
@given(st.lists(PUTS, max_size=20), st.integers(0, 20))
def test_parts_merge_to_the_whole(puts: list[Put], cut: int) -> None:
    parts = []
    for some in (puts[:cut], puts[cut:]):
        queue_reach = QueueReach()
        for batch in Walk(BytesSource(log(some))):
            queue_reach.add(batch)
        parts.append(pickle.loads(pickle.dumps(queue_reach)))  # as a worker process hands it back
    parts[0].merge(parts[1])
    assert parts[0].result() == by_hand(puts)


@pytest.mark.parametrize(("generation", "counted"), [(4, True), (5, False)])
def test_system_topics_are_dispatched_by_4_only(generation: int, counted: bool) -> None:
    put = Put("rmq_sys_x", properties={"INNER_MULTI_DISPATCH": "%LMQ%a",
                                       "INNER_MULTI_QUEUE_OFFSET": "4"})
    queue_reach = reach([put], generation=generation)
    assert ((b"%LMQ%a", 0) in queue_reach) is counted
    assert queue_reach[b"rmq_sys_x", 0] == Reach(0, 1, 1)
