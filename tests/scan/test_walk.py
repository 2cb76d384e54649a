from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.formats.local.message import MAGIC_V1, Record, build, decode, parse, size_of
from rmqctl.scan.source import BytesSource, FileSource
from rmqctl.scan.walk import Walk
from tests.scan import reference
from tests.support.golden import golden_stores
from tests.support.share import examples, sample

BASE = 4096


def cut(data: bytes, base: int, **options: int) -> list[reference.Frame]:
    """The fast walk's frames in the reference's terms: neighbouring non-frames joined."""
    frames: list[reference.Frame] = []
    for batch in Walk(BytesSource(data, base), **options):
        sizes = batch.column("total_size")
        frames += [("message", int(at) - base, int(at + size) - base)
                   for at, size in zip(batch.offset, sizes, strict=True)]
        for span in batch.spans:
            kind = "blank" if span.kind == "blank" else "other"
            start, end = span.offset - base, span.end - base
            if kind == "other" and frames and frames[-1][0] == "other" and frames[-1][2] == start:
                frames[-1] = "other", frames[-1][1], end
            else:
                frames.append((kind, start, end))
    return frames


def joined(frames: list[reference.Frame]) -> list[reference.Frame]:
    """A located damaged record beside more damage is one stretch for the reference."""
    out: list[reference.Frame] = []
    for kind, start, end in frames:
        if kind == "other" and out and out[-1][0] == "other" and out[-1][2] == start:
            out[-1] = "other", out[-1][1], end
        else:
            out.append((kind, start, end))
    return out


def message(at: int, body: bytes, topic: bytes = b"T", properties: bytes = b"K\x01v\x02",
            flag: int = 0, magic: int = MAGIC_V1) -> bytes:
    import zlib

    size = size_of(flag, magic, len(body), len(topic), len(properties))
    wide = 16 if flag & 0x10 else 4
    store = 16 if flag & 0x20 else 4
    return build(Record(size, magic, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 1, at, flag, 5,
                        (bytes(wide), 1), 6, (bytes(store), 2), 0, 0, body, topic, properties))


def log(bodies: list[bytes], tail: int = 200, base: int = BASE) -> bytes:
    data = b""
    for number, body in enumerate(bodies):
        flag = (0, 0x10, 0x20, 0x30)[number % 4]
        magic = (MAGIC_V1, 0xDAA320AB)[number % 2]
        data += message(base + len(data), body, flag=flag, magic=magic)
    return data + bytes(tail)


@cache
def as_reference(file: Path) -> list[reference.Frame]:
    """Once for both builds: it takes longer than all else."""
    return reference.walk(file.read_bytes(), int(file.name))


@pytest.mark.parametrize("store", sample(golden_stores(), 20, "walk"),
                         ids=lambda golden_store: golden_store.id)
def test_golden_logs_are_cut_as_the_reference_cuts_them(store, golden) -> None:
    root = golden(store.id)
    for folder in store.commitlog_dirs:
        for file in sorted(Path(root, folder).iterdir()):
            data, base = file.read_bytes(), int(file.name)
            expected = as_reference(file)
            for chunk in (1 << 21, 4099):
                assert joined(cut(data, base, chunk=chunk)) == expected, file


@pytest.mark.parametrize("chunk", [91, 128, 300, 1000, 1 << 20])
def test_records_larger_than_the_buffer(chunk: int) -> None:
    data = log([b"", b"x" * 2000, b"y", b"z" * 5000, b""])
    frames = cut(data, BASE, chunk=chunk)
    assert frames == reference.walk(data, BASE)
    assert [kind for kind, _, _ in frames] == ["message"] * 5 + ["other"]


@pytest.mark.long
@settings(max_examples=examples(300))
@given(st.data())
def test_damaged_logs(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=60), min_size=1, max_size=12))
    raw = bytearray(log(bodies, data.draw(st.integers(0, 120))))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        kind = data.draw(st.sampled_from(["flip", "zero", "noise"]))
        end = min(len(raw), at + data.draw(st.integers(1, 150)))
        if kind == "flip":
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
        else:
            raw[at:end] = bytes(end - at) if kind == "zero" else data.draw(
                st.binary(min_size=end - at, max_size=end - at))
    chunk = data.draw(st.sampled_from([91, 200, 1 << 20]))
    frames = cut(bytes(raw), BASE, chunk=chunk)
    ends = [0, *(end for _, _, end in frames)]
    assert ends[:-1] == [start for _, start, _ in frames]
    assert ends[-1] == len(raw)
    expected = reference.walk(bytes(raw), BASE)
    # What lies in that which a damaged record says to be its own may be its body.
    own = [(start, start + int.from_bytes(raw[start:start + 4])) for kind, start, _ in frames
           if kind == "other"]
    proven = {frame for frame in expected if frame[0] != "other" and not any(
        start < frame[1] < end for start, end in own)}
    assert proven <= set(frames)
    # Where a damaged record still tells its size, the walk goes on right behind it and may
    # find a record there which the reference, searching blindly, does not dare to believe.
    for kind, start, end in set(frames) - proven:
        if kind == "message":
            record = reference.record_at(bytes(raw), BASE, start)
            assert record is not None
            assert record.total_size == end - start


@pytest.mark.parametrize("field", ["total_size", "magic", "physical_offset", "body_length"])
def test_a_damaged_record_costs_itself_only(field: str) -> None:
    from rmqctl.formats import layout
    from rmqctl.formats.local.message import Message

    raw = bytearray(log([b"a" * 30, b"b" * 30, b"c" * 30, b"d" * 30]))
    frames = cut(bytes(raw), BASE)
    _, start, end = frames[1]
    flags = decode(bytes(raw[start:end]))
    place = layout.field(Message, field, sys_flag=flags.sys_flag, magic=flags.magic)
    for bit in range(8 * place.size):
        damaged = bytearray(raw)
        damaged[start + place.offset + bit // 8] ^= 1 << bit % 8
        result = cut(bytes(damaged), BASE)
        assert result == [frames[0], ("other", start, end), *frames[2:]], (field, bit)


def test_a_copy_of_a_record_inside_a_damaged_body_is_no_record() -> None:
    """Even one that names the right place, as long as it does not chain or match its CRC."""
    first = message(BASE, b"x" * 10)
    body_at = BASE + len(first) + 88
    forged = bytearray(message(body_at, b"abc"))
    forged[-6] ^= 1
    forged[88] ^= 1
    second = bytearray(message(BASE + len(first), bytes(forged)))
    second[4] ^= 1
    third = message(BASE + len(first) + len(second), b"y" * 10)
    data = first + bytes(second) + third
    assert cut(data, BASE) == [
        ("message", 0, len(first)), ("other", len(first), len(first) + len(second)),
        ("message", len(first) + len(second), len(data))]


def test_ranges_join_to_the_whole(golden) -> None:
    """Any cuts, inside records and inside damage: the parts' frames are those of the whole."""
    root = golden("5.3.3/crash-crc/before")
    seed = random.Random(7)
    for file in sorted((root / "commitlog").iterdir()):
        raw = bytearray(file.read_bytes())
        for _ in range(4):
            raw[seed.randrange(len(raw) // 2)] ^= 0xFF
        base = int(file.name)
        whole = cut(bytes(raw), base)
        for parts in (2, 7, 64):
            cuts = sorted({0, *(seed.randrange(len(raw)) for _ in range(parts - 1)), len(raw)})
            numbers: list[int] = []
            position = 0
            for start, end in pairwise(cuts):
                walk = Walk(BytesSource(bytes(raw), base), start, end, resync=start > 0)
                if walk.first != position:
                    walk = Walk(BytesSource(bytes(raw), base), position, max(end, position))
                numbers += [int(at) - base for batch in walk for at in batch.offset]
                position = walk.position
            assert numbers == [start for kind, start, _ in whole if kind == "message"]


def test_columns_equal_the_construct_reader(golden) -> None:
    root = golden("5.3.3/ipv6/store")
    names = ("queue_id", "queue_offset", "physical_offset", "sys_flag", "born_timestamp",
             "store_timestamp", "reconsume_times", "prepared_transaction_offset", "flag",
             "body_crc", "total_size")
    count = 0
    for file in sorted((root / "commitlog").iterdir()):
        with FileSource(str(file), int(file.name)) as source:
            for batch in Walk(source):
                for index in range(len(batch)):
                    record = parse(batch.bytes_at(index))
                    assert decode(batch.bytes_at(index)) == record
                    for name in names:
                        assert int(batch.column(name)[index]) == getattr(record, name)
                    assert bool(batch.crc_ok()[index]) == record.crc_ok
                    count += 1
                rows = np.arange(len(batch))[::2]
                part = batch.select(rows)
                assert part.column("born_timestamp").tolist() == batch.column(
                    "born_timestamp")[rows].tolist()
    assert count == 130


def test_a_file_that_shrinks_ends_the_walk(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000004096"
    data = log([b"q" * 500] * 50, 0)
    file.write_bytes(data)
    with FileSource(str(file), BASE) as source:
        with open(file, "r+b") as other:
            other.truncate(len(data) // 2)
        walk = Walk(source, chunk=1000)
        seen = sum(len(batch) for batch in walk)
    assert walk.shrunk
    assert 0 < seen < 50


def test_garbage_never_hangs() -> None:
    seed = random.Random(3)
    for size in (0, 1, 7, 8, 47, 48, 91, 5000, 70000):
        data = seed.randbytes(size)
        frames = cut(data, BASE, chunk=1024)
        assert sum(end - start for _, start, end in frames) == size
    hostile = (b"\x00\x00\x00\x5b" + b"\xda\xa3\x20\xa7") * 4000
    assert sum(end - start for _, start, end in cut(hostile, BASE)) == len(hostile)


@pytest.mark.parametrize("base", [0, BASE])
def test_zeros_are_no_damage(base: int) -> None:
    """A file a broker made ahead, copied without its holes; at base 0 every place reads as 0."""
    spans = [span for batch in Walk(BytesSource(bytes(5000), base)) for span in batch.spans]
    assert [(span.kind, span.offset, span.length) for span in spans] == [("zero", base, 5000)]


def test_a_zeroed_stretch_is_searched_at_once() -> None:
    """Records behind a gap of zeros are found without looking at each of its bytes."""
    import time

    far = 24 << 20
    data = message(BASE, b"x") + bytes(far)
    data += message(BASE + len(data), b"y" * 40) + bytes(100)
    start = time.perf_counter()
    frames = cut(data, BASE)
    assert [kind for kind, _, _ in frames] == ["message", "other", "message", "other"]
    assert time.perf_counter() - start < 2
