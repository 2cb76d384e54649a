"""The passes over sound records on hostile bytes and tables: they end, and read nothing outside.

`make kernel-asan` runs this against a kernel that watches its memory.
"""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from rmqctl.formats.local import append_crc
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.delay import DEFAULT_LEVELS
from rmqctl.formats.local.message import VARIANTS, Record, build, decode, size_of
from rmqctl.kernel import active
from rmqctl.scan import text
from rmqctl.scan.derived import NAMES, TopicNumbers, delays
from rmqctl.scan.frames import records_from
from tests.kernel.test_equal import damaged, log
from tests.support.kernels import compiled_only
from tests.support.share import RUN

pytestmark = compiled_only

ROUNDS = 300
TEXTS = (b"", b"TAGS\1a\2", b"KEYS\1a b  c\2", b"UNIQ_KEY\1u\2KEYS\1k", b"TAGS\1\xe4\xb8\xad\2",
         b"KEYS\1\xf0\x9f\x98\x80 \xc3\xa9", b"TAGS\1\xff\2", b"DELAY\x013\2", b"DELAY\1x\2",
         b"INNER_NUM\x013\2", b"\1", b"a\2\2", b"TAGS\1", b"KEYS\1 \2", b"RMQCTL\1damaged\2",
         b"TAGS\1a\2TAGS\1b\2", b"__CRC32#\x010000000000\2", b"a\1\0\2")


def plain_log(luck: random.Random, base: int) -> bytearray:
    """Records that a broker may have written, and some that it may not."""
    data = bytearray()
    for _ in range(luck.randrange(12)):
        bits, magic = luck.choice(VARIANTS[:1] * 5 + VARIANTS)
        body = luck.randbytes(luck.choice((0, 1, 40)))
        texts = b"".join(luck.choice(TEXTS) for _ in range(luck.randrange(4)))
        topic = luck.choice((b"t", b"orders", props.SCHEDULE_TOPIC.encode(), b""))
        if seal := luck.random() < 0.2:
            texts += append_crc.build(0)
        place = base + len(data)
        raw = build(Record(
            size_of(bits, magic, len(body), len(topic), len(texts)), magic,
            zlib.crc32(body) & 0x7FFFFFFF, luck.choice((0, 1, 5000, -1)), 0,
            luck.randrange(3), place, luck.choice((0, 0, 0, 4, 8, 12, 1 << 20)) | bits,
            1_700_000_000_000, (luck.randbytes(16 if bits & 16 else 4), 4000),
            luck.choice((1_700_000_000_000, 0)),
            (bytes(16 if bits & 32 else 4), 10911), 0, 0, body, topic, texts))
        data += append_crc.seal(raw) if seal else raw
    return data


class Tables:
    """What a pass is given: some of it of an odd size."""

    def __init__(self, luck: random.Random) -> None:
        self.kernel: Any = active()
        self.topics = TopicNumbers({"other"})
        self.state: Any = np.zeros(len(self.kernel.SOUND_STATE), np.int64)
        self.queues: Any = np.zeros((luck.randrange(1, 4), 7), np.int64)
        self.cells: Any = np.zeros(0, np.int32)
        self.units: Any = np.frombuffer(luck.randbytes(luck.choice((0, 19, 20, 200))), np.uint8)
        self.entries: Any = np.frombuffer(luck.randbytes(luck.choice((0, 19, 20, 200))), np.uint8)
        self.intervals: Any = np.zeros((luck.randrange(2), 5), np.int64)
        self.bad: Any = np.zeros((luck.randrange(3), 7), np.int64)
        self.heads: Any = np.zeros((4, 11), np.int64)
        self.lost: Any = np.array([(luck.choice((0, 1)), 1, 0), (
            luck.randrange(-2, 300), luck.choice((-1, 1, 100, 1 << 62)), 0)], np.int64)
        self.extra: Any = np.zeros((luck.randrange(3), 3), np.int64)
        self.mapped = luck.choice((False, True))

    def sound(self, data: Any, base: int, end: int, what: int) -> str:
        files = len(self.entries) // 20
        return self.kernel.SOUND_ENDS[self.kernel.sound(
            data, base, end, what, self.state, *NAMES, *self.topics.table.tables,
            self.topics.rows, self.cells, self.queues, self.intervals, self.units,
            np.zeros(len(self.units) // 20, np.int64), self.entries,
            np.array([0, files], np.int64), np.array([0], np.int64), delays(DEFAULT_LEVELS),
            self.heads, self.bad, self.lost, self.extra, self.mapped)]


@pytest.mark.parametrize("share", range(4))
def test_any_bytes_end(share: int) -> None:
    for number in range(ROUNDS):
        luck = random.Random(f"{RUN} {share} {number}")
        base = luck.choice((0, 4096, (1 << 63) - 4096))
        log_bytes = luck.choice((plain_log, log))(luck, base)
        data = np.frombuffer(bytes(luck.choice((damaged(luck, log_bytes), log_bytes))), np.uint8)
        tables = Tables(luck)
        for _ in range(30):
            ended = tables.sound(data, base, len(data), luck.choice((0, 1, 2, 3, 7)))
            at, asked = int(tables.state[0]), tables.state[-2:].tolist()
            assert 0 <= at <= len(data)
            if ended == "new_topic":
                tables.topics.add(data[asked[0]:asked[0] + asked[1]])
            elif ended == "new_queue" and asked[1] < 1 << 12:
                tables.topics.rows[asked[0], 1:3] = len(tables.cells), asked[1] + 1
                tables.cells = np.append(tables.cells, np.zeros(asked[1] + 1, np.int32))
            elif ended == "no_unit" and len(tables.units) >= 20:
                tables.queues[asked[0], :3] = asked[1], len(tables.units) // 20, 0
            elif ended == "no_entry" and len(tables.entries) >= 20:
                tables.state[tables.kernel.SOUND_STATE.index("window")] = tables.state[
                    tables.kernel.SOUND_STATE.index("entry")]
            else:
                break


def test_messages_that_nothing_is_asked_of_are_passed_over() -> None:
    luck = random.Random(str(RUN))
    for _ in range(ROUNDS):
        data = np.frombuffer(bytes(plain_log(luck, 0)), np.uint8)
        batch = records_from(data, 0, 0, len(data))
        tables = Tables(luck)
        while tables.sound(data, 0, len(data), 0) == "new_topic":
            asked = tables.state[-2:].tolist()
            tables.topics.add(data[asked[0]:asked[0] + asked[1]])
        count = int(tables.state[1])
        for row in range(count):
            record = decode(batch.bytes_at(row))
            assert record.crc_ok
            assert record.sys_flag & ~0x7FF == 0
            assert record.queue_id >= 0
            assert not any(part.startswith(b"INNER_") for part in record.properties.split(b"\2"))
        assert int(tables.state[2]) == int(batch.column("total_size")[:count].sum())


@pytest.mark.parametrize("share", range(2))
def test_columns_of_any_bytes(share: int) -> None:
    kernel: Any = active()
    for number in range(ROUNDS):
        luck = random.Random(f"{RUN} lead {share} {number}")
        data = np.frombuffer(bytes(damaged(luck, plain_log(luck, 0))), np.uint8)
        topics = TopicNumbers()
        room, key_room = luck.choice((0, 1, 50)), luck.choice((0, 1, 50))
        columns: Any = np.full((len(kernel.LEAD_COLUMN), room), -7, np.int64)
        keys: Any = np.empty((2, key_room), np.int64)
        state: Any = np.zeros(len(kernel.LEAD_STATE), np.int64)
        while True:
            ended = kernel.SOUND_ENDS[kernel.lead(
                data, 0, len(data), True, state, *NAMES, *topics.table.tables, topics.rows,
                delays(DEFAULT_LEVELS), columns, np.zeros(room, np.uint8), keys,
                luck.choice((False, True)))]
            if ended != "new_topic":
                break
            start, length = state[-2:].tolist()
            topics.add(data[start:start + length])
        at, count, key_count = state[:3].tolist()
        assert count <= room
        assert key_count <= key_room
        batch = records_from(data, 0, 0, len(data))
        assert (columns[3, :count] == batch.offset[:count]).all()
        assert (columns[4, :count] == batch.column("total_size")[:count]).all()
        assert at == int(batch.column("total_size")[:count].sum())
        names = text.topics(batch).tolist()[:count]
        assert [topics.name(number) for number in columns[0, :count].tolist()] == names


def test_arrays_of_another_shape_are_refused() -> None:
    tables = Tables(random.Random(0))
    data = np.zeros(10, np.uint8)
    for name, value in (("heads", np.zeros((3, 11), np.int64)), ("bad", np.zeros((1, 6), np.int64)),
                        ("queues", np.zeros((1, 3), np.int64)),
                        ("intervals", np.zeros((1, 4), np.int64)),
                        ("lost", np.zeros((1, 2), np.int64)),
                        ("extra", np.zeros((1, 2), np.int64))):
        kept = getattr(tables, name)
        setattr(tables, name, value)
        with pytest.raises(ValueError, match="another shape"):
            tables.sound(data, 0, 10, 0)
        setattr(tables, name, kept)
    tables.state[0] = 11
    with pytest.raises(ValueError, match="another shape"):
        tables.sound(data, 0, 10, 0)


@pytest.mark.parametrize("place", [-1, 5, 1 << 40])
@pytest.mark.parametrize("mapped", [False, True])
def test_units_outside_are_never_read(place: int, mapped: bool) -> None:
    tables = Tables(random.Random(0))
    tables.mapped = mapped
    body = b"body"
    raw = build(Record(size_of(0, 0xDAA320A7, 4, 1, 0), 0xDAA320A7,
                       zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, 0, 0,
                       1_700_000_000_000, (b"\1\2\3\4", 5), 1_700_000_000_000,
                       (b"\1\2\3\4", 5), 0, 0, body, b"t", b""))
    data = np.frombuffer(raw, np.uint8)
    tables.topics.add(np.frombuffer(b"t", np.uint8))
    tables.topics.rows[0, 1:3] = 0, 1
    tables.cells = np.zeros(1, np.int32)
    tables.units = np.frombuffer(struct.pack(">qiq", 0, len(raw), 0), np.uint8)
    tables.queues[0, :3] = 0, 10, place
    with pytest.raises(IndexError):
        tables.sound(data, 0, len(data), 1)
