"""Both builds on the same bytes, sound, damaged and hostile: every column and every stop is equal.

This is what `make kernel-asan` runs against a kernel that watches its memory.
"""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest

from rmqctl.formats import layout
from rmqctl.formats.local.message import (
    MAGIC_BLANK,
    VARIANTS,
    Message,
    Record,
    build,
    size_of,
)
from rmqctl.kernel import active
from rmqctl.scan import aggregate, text
from rmqctl.scan.frames import Batch, examine, gather_int, records_from, shape
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from tests.support.kernels import compiled_only, using
from tests.support.share import RUN

pytestmark = compiled_only

FIELDS = ("total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset",
          "physical_offset", "sys_flag", "born_timestamp", "born_host.port", "store_timestamp",
          "store_host.port", "reconsume_times", "prepared_transaction_offset", "body_start",
          "body_length", "topic_start", "topic_length", "properties_start", "properties_length")
NUMBERS = (0, 1, 39, 40, 87, 88, 90, 91, 92, 127, 128, 255, 256, 32767, 32768, 65535, 65536,
           (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1, (1 << 32) - 91, 0xDAA320A7,
           0xDAA320AB, MAGIC_BLANK)
ROUNDS = 1000


def message(seed: random.Random, at: int, variant: tuple[int, int]) -> bytes:
    bits, magic = variant
    body = seed.randbytes(seed.choice((0, 0, 1, 7, 8, 9, 30, 200)))
    topic = seed.randbytes(seed.choice((0, 1, 5, 127)))
    properties = seed.randbytes(seed.choice((0, 3, 60)))

    def number(bits: int) -> int:
        return seed.getrandbits(bits) - (1 << bits - 1)

    return build(Record(
        size_of(bits, magic, len(body), len(topic), len(properties)), magic,
        zlib.crc32(body) & 0x7FFFFFFF, number(32), number(32), number(64), at,
        number(32) & ~0x30 | bits, number(64),
        (seed.randbytes(16 if bits & 0x10 else 4), number(32)), number(64),
        (seed.randbytes(16 if bits & 0x20 else 4), number(32)), number(32), number(64),
        body, topic, properties))


def log(seed: random.Random, base: int) -> bytearray:
    """Sound records, all of one variant or mixed, and something behind them."""
    same = seed.choice((None, *VARIANTS))
    data = bytearray()
    for _ in range(seed.randrange(9)):
        data += message(seed, base + len(data), same or seed.choice(VARIANTS))
    rest = seed.randrange(60)
    data += seed.choice((bytes(rest), seed.randbytes(rest),
                         struct.pack(">iI", 8 + rest, MAGIC_BLANK) + bytes(rest)))
    return data


def entries(seed: random.Random, base: int) -> bytearray:
    """Records as `log`, with 48 bytes of something else before each."""
    data = bytearray()
    for _ in range(seed.randrange(9)):
        data += seed.randbytes(48)
        data += message(seed, base + len(data), seed.choice(VARIANTS))
    return data + bytes(seed.randrange(60))


def damaged(seed: random.Random, data: bytearray) -> bytearray:
    """A few faults: bits, noise, an odd number in a field of a record or anywhere, a cut."""
    starts = [at for at in range(len(data) - 8) if data[at + 4:at + 7] == b"\xda\xa3\x20"]
    for _ in range(seed.randrange(4)):
        if not data:
            break
        at = seed.randrange(len(data))
        kind = seed.randrange(5)
        if kind == 0:
            data[at] ^= 1 << seed.randrange(8)
        elif kind == 1:
            data[at:at + 40] = seed.randbytes(len(data[at:at + 40]))
        elif kind == 2 and starts:
            field = seed.choice(layout.prefix(Message, sys_flag=seed.choice((0, 16, 32, 48)),
                                              magic=0xDAA320A7))
            raw = struct.pack(">q", seed.choice(NUMBERS) - seed.choice((0, 0, 1 << 32)))
            place = seed.choice(starts) + field.offset
            data[place:place + field.size] = raw[-field.size:][:max(len(data) - place, 0)]
        elif kind == 3:
            data[at:at + 2] = seed.choice((b"\x7f\xff", b"\x80\x00", b"\xff\xff"))[
                :len(data) - at]
        else:
            del data[at:]
    return data


def columns(batch: Batch) -> dict[str, Any]:
    """Everything a batch knows of its records, the lazily made columns first."""
    values_by_name: dict[str, Any] = {name: batch.column(name).tolist()
                                      for name in reversed(FIELDS)}
    hosts = [kind.names for _, kind in ((0, shape(0, 0xDAA320A7).dtype),)]
    assert {name for name in hosts[0] or () if not name.endswith(".address")} <= set(FIELDS) | {
        "body_length"}
    return values_by_name | {"start": batch.start.tolist(), "offset": batch.offset.tolist(),
                             "crc_ok": batch.crc_ok().tolist(),
                             "hosts": batch.store_hosts().tolist(),
                             "every second": batch.select(slice(0, None,
                                                                2)).column("queue_id").tolist()}


def on_both(ask: Any) -> tuple[Any, Any]:
    with using("python"):
        first = ask()
    with using("compiled"):
        second = ask()
    return first, second


def rounds() -> range:
    return range(ROUNDS * (30 if RUN.exhaustive else 1))


def test_the_records_that_follow_each_other(seed: int) -> None:
    source = random.Random(seed)
    seen = 0
    for number in rounds():
        base = source.choice((0, 4096, 1 << 33, (1 << 62) + 5))
        data = np.frombuffer(bytes(damaged(source, log(source, base))), np.uint8)
        at = source.choice((0, 0, 0, source.randrange(len(data) + 2)))
        end = source.choice((len(data), source.randrange(len(data) + 1)))
        most = source.choice((1 << 62, 0, 1, 3))
        head = source.choice((0, 0, 0, 48, 1 << 40))
        if head == 48:
            data = np.frombuffer(bytes(damaged(source, entries(source, base))), np.uint8)
        question = data, base, at, end, most, head
        first, second = on_both(lambda question=question: columns(records_from(*question)))
        assert first == second, (seed, number)
        seen += len(first["start"])
    assert seen > ROUNDS // 2


def test_candidates_at_given_places(seed: int) -> None:
    source = random.Random(seed)
    proven = 0
    for number in rounds():
        base = source.choice((0, 4096, 1 << 33))
        raw = bytes(damaged(source, log(source, base)))
        data = np.frombuffer(raw, np.uint8)
        numbers = [at for at in range(len(raw)) if raw[at + 4:at + 7] == b"\xda\xa3\x20"]
        start = np.array(sorted({*numbers, *(source.randrange(len(raw) + 9) for _ in range(3))}),
                         np.int64)
        bases = source.choice((base, np.full(len(start), base, np.int64)))
        if isinstance(bases, np.ndarray):
            bases[::3] += source.choice((0, 1))

        def ask(bases: Any = bases, start: Any = start, data: Any = data) -> Any:
            batch, ok = examine(data, bases, start)
            return ok.tolist(), columns(batch.select(ok))

        first, second = on_both(ask)
        assert first == second, (seed, number)
        proven += sum(first[0])
    assert proven > ROUNDS // 2


def test_walks(seed: int) -> None:
    """Frames and spans of a whole log, through buffers of several sizes."""
    source = random.Random(seed)
    for number in rounds():
        base = source.choice((0, 4096, 1 << 33))
        data = bytes(damaged(source, log(source, base)))
        chunk, growing = source.choice((91, 200, 1 << 20)), source.choice((False, True))

        def ask(data: bytes = data, base: int = base, chunk: int = chunk,
                growing: bool = growing) -> Any:
            walk = Walk(BytesSource(data, base), chunk=chunk, growing=growing)
            return [(columns(batch), batch.spans) for batch in walk], walk.position

        first, second = on_both(ask)
        assert first == second, (seed, number)


def test_sizes_at_every_limit() -> None:
    """Each length field of each variant set to all odd numbers, and cut at every byte."""
    source = random.Random(1)
    for variant in VARIANTS:
        sound = message(source, 0, variant) + message(source, 0, variant)
        shaped = shape(*variant)
        places = [(0, 4), (shaped.head_size - 4, 4)]
        body = int.from_bytes(sound[shaped.head_size - 4:shaped.head_size])
        topic = shaped.head_size + body
        places.append((topic, shaped.topic_length_size))
        width = shaped.topic_length_size
        places.append((topic + width + int.from_bytes(sound[topic:topic + width]), 2))
        for at, size in places:
            for value in NUMBERS:
                raw = bytearray(sound)
                raw[at:at + size] = struct.pack(">Q", value)[-size:]
                data = np.frombuffer(bytes(raw), np.uint8)
                first, second = on_both(lambda data=data: columns(
                    records_from(data, 0, 0, len(data))))
                assert first == second, (variant, at, value)
        for length in range(len(sound) // 2 + 2):
            # In memory of its own length, so that a read behind it is seen.
            data = np.frombuffer(sound[:length], np.uint8).copy()
            first, second = on_both(lambda data=data: columns(
                records_from(data, 0, 0, len(data))))
            assert first == second, (variant, length)


def test_integers_and_places_outside() -> None:
    source = random.Random(2)
    data = np.frombuffer(source.randbytes(64), np.uint8)
    at = np.arange(57)
    for code in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
        first, second = on_both(lambda code=code: gather_int(data, at, code).tolist())
        assert first == second, code
        for outside in (65 - int(code[1:]), 1 << 40, (1 << 63) - 1):
            for name in ("python", "compiled"):
                with using(name), pytest.raises(IndexError):
                    gather_int(data, np.array([outside]), code)


def test_texts_as_a_matrix_and_their_hashes(seed: int) -> None:
    source = random.Random(seed)
    for number in range(300):
        most = (128, 256)[number % 2]
        data = np.frombuffer(bytes(source.randrange(most) for _ in range(300)), np.uint8)
        length = np.array([source.choice((0, 1, 3, 4, 5, source.randrange(90)))
                           for _ in range(source.randrange(8))], np.int64)
        start = np.array([source.choice((0, 300 - content, source.randrange(301 - content)))
                          for content in length.tolist()], np.int64)
        width = max(int(length.max(initial=0)) + source.choice((0, 0, 8)), 1)
        question = data, start, length

        def ask(question: Any = question, width: int = width) -> Any:
            texts, full = text.matrix(*question, width)
            return texts.tolist(), full, [hash_.tolist() for hash_ in text.hashes(*question)]

        first, second = on_both(ask)
        assert first == second, (seed, number)


def test_texts_outside_of_the_data() -> None:
    data = np.zeros(20, np.uint8)
    with using("compiled"):
        for start, length in ((-1, 2), (0, 21), (20, 1), (21, 0), (19, 2), (0, -1), (1 << 62, 4),
                              (-(1 << 63), 4), (4, (1 << 63) - 1)):
            place = np.array([start], np.int64), np.array([length], np.int64)
            with pytest.raises(IndexError):
                text.hashes(data, *place)
            with pytest.raises(IndexError):
                text.matrix(data, *place, 64)
        with pytest.raises(IndexError):  # longer than the row
            text.matrix(data, np.zeros(1, np.int64), np.full(1, 9), 8)


def test_both_checksums_of_the_kernel() -> None:
    """ISA-L's and its own, which serves where ISA-L's cannot be found."""
    source = random.Random(3)
    data = np.frombuffer(source.randbytes(5000), np.uint8)
    raw = data.tobytes()
    start = np.array([source.randrange(5000) for _ in range(300)] + [0, 0, 5000, 9000, 4990])
    length = np.array([source.randrange(80) for _ in range(300)] + [5000, 0, 1, 5, 100])
    expected = [zlib.crc32(raw[a:a + n]) & 0x7FFFFFFF
                for a, n in zip(start.tolist(), length.tolist(), strict=True)]
    with using("compiled"):
        module = active()
        assert module is not None
        out = np.empty(len(start), np.int64)
        module.crcs(data, start, length, out)
        assert out.tolist() == expected
        assert not module.use_crc(0)
        module.crcs(data, start, length, out)
        assert out.tolist() == expected
    with using("compiled"):
        active()  # ISA-L's again


def test_sums_by_group() -> None:
    draw = np.random.default_rng(5)
    group, size, body, time = draw.integers(0, 7, (4, 300))
    sums, expected = np.zeros((5, 9), np.int64), np.zeros((5, 9), np.int64)
    aggregate._include(expected, group, 1, size, body, time, time)
    with using("compiled"):
        module = active()
        assert module is not None
        module.add_up(*map(np.ascontiguousarray, (group, size, body, time)), sums)
        assert (sums == expected).all()
        for wrong in (-1, 9):
            with pytest.raises(IndexError):
                module.add_up(np.array([wrong]), size[:1], body[:1], time[:1], sums)
        with pytest.raises(IndexError):
            module.add_up(np.zeros(2, np.int64), size[:1], body[:1], time[:1], sums)


def test_arrays_of_another_shape_are_refused() -> None:
    with using("compiled"):
        module = active()
        assert module is not None
        data, array = np.zeros(100, np.uint8), np.zeros(3, np.int64)
        with pytest.raises(ValueError, match="shape"):
            module.follow(data, 0, 0, 100, 1, np.zeros((2, 4), np.int64))
        with pytest.raises(ValueError, match="shape"):
            module.examine(data, array, array, np.zeros((2, 4), np.int64), np.zeros(3, np.uint8))
        with pytest.raises(IndexError):
            module.examine(data, array[:2], array, np.zeros((9, 3), np.int64),
                           np.zeros(3, np.uint8))
        with pytest.raises(IndexError):
            module.examine(data, array, array, np.zeros((9, 2), np.int64), np.zeros(3, np.uint8))
        with pytest.raises(IndexError):
            module.integers(data, array, 0, 4, True, np.zeros(2, np.int64))
        with pytest.raises(IndexError):
            module.crcs(data, array, array[:2], np.zeros(3, np.int64))
        with pytest.raises(IndexError):
            module.lengths([b"a", b"b"], array[:1])
        with pytest.raises(ValueError, match="integer"):
            module.integers(data, array, 0, 3, True, array)
