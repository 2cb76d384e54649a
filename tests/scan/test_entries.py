"""The walk over DLedger's data: entries, what becomes of damaged ones, and of forged ones."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from rmqctl.formats import dledger
from rmqctl.scan.resync import next_provable, provable
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk, start_of
from tests.scan.test_walk import message

BASE = 4096
HEAD = dledger.HEAD_SIZE


def entry(index: int, at: int, body: bytes, magic: int = 1) -> bytes:
    raw = message(at + HEAD, body) if magic == 1 else b""
    return dledger.build(dledger.EntryHeadRecord(
        magic, HEAD + len(raw), index, 1, at, 0, 0, 0, len(raw))) + raw


def data_of(bodies: list[bytes], tail: int = 200) -> tuple[bytes, list[int]]:
    """A file of entries, closed by the end mark, and where each begins (positions)."""
    data, starts = b"", []
    for number, body in enumerate(bodies):
        starts.append(len(data))
        data += entry(number, BASE + len(data), body)
    return data + dledger.build_end(tail) + bytes(tail - 8), starts


def frames(data: bytes, **options: Any) -> list[tuple[str, int, int]]:
    """(kind, start, end) in positions; each byte is in one of them."""
    frame_list: list[tuple[str, int, int]] = []
    for batch in Walk(BytesSource(data, BASE, head=HEAD), **options):
        frame_list += [("message", int(at) - HEAD, int(at) - HEAD + int(size)) for at, size in zip(
            batch.offset - BASE, batch.frame_size, strict=True)]
        frame_list += [(span.kind, span.offset - BASE, span.end - BASE) for span in batch.spans]
    assert [start for _, start, _ in frame_list] == [0, *(end for _, _, end in frame_list)][:-1]
    assert not frame_list or frame_list[-1][2] == len(data)
    return frame_list


@pytest.mark.parametrize("chunk", [139, 300, 1 << 20])
def test_entries_and_the_end_mark(chunk: int) -> None:
    data, starts = data_of([b"", b"x" * 2000, b"y", b"z" * 500])
    listed_frames = frames(data, chunk=chunk)
    assert listed_frames == [*(("message", start, end) for start, end in zip(
        starts, [*starts[1:], len(data) - 200], strict=True)),
        ("blank", len(data) - 200, len(data))]
    # The least that may be left behind the last entry is the mark itself.
    data, _ = data_of([b"a", b"b"], tail=8)
    assert [kind for kind, _, _ in frames(data)] == ["message", "message", "blank"]


def test_unwritten_space_is_no_damage() -> None:
    data, _ = data_of([b"a", b"b"])
    data = data[:-200] + bytes(500)
    assert frames(data)[-1] == ("zero", len(data) - 500, len(data))
    assert frames(bytes(1000)) == [("zero", 0, 1000)]


def test_entries_without_a_message() -> None:
    first = entry(0, BASE, b"a")
    data = first + entry(1, BASE + len(first), b"", magic=2)
    data += entry(2, BASE + len(data), b"b") + bytes(100)
    assert [kind for kind, _, _ in frames(data)] == ["message", "blank", "message", "zero"]


@pytest.mark.parametrize("field", range(0, 140, 3))
def test_a_flipped_bit_costs_one_message_at_most(field: int) -> None:
    data, starts = data_of([b"a" * 30, b"b" * 30, b"c" * 30, b"d" * 30])
    raw = bytearray(data)
    raw[starts[1] + field] ^= 0x10
    listed_frames = frames(bytes(raw))
    assert [start for kind, start, _ in listed_frames if kind == "message"
            and start != starts[1]] == [
                starts[0], starts[2], starts[3]]
    assert (listed_frames[1][1], listed_frames[1][2]) == (starts[1], starts[2])


def test_a_whole_head_tells_how_long_a_lost_record_was() -> None:
    data, starts = data_of([b"a" * 30, b"b" * 30, b"c" * 30])
    lost = data[:starts[1] + HEAD] + bytes(starts[2] - starts[1] - HEAD) + data[starts[2]:]
    assert frames(lost)[1] == ("damaged", starts[1], starts[2])
    batch = next(batch for batch in Walk(BytesSource(lost, BASE, head=HEAD)) if batch.spans)
    assert "entry 1 is intact" in batch.spans[0].reason
    # Half written at the end of the log.
    torn = data[:starts[2] + HEAD + 50] + bytes(400)
    assert [kind for kind, _, _ in frames(torn)] == ["message", "message", "damaged", "zero"]


def test_an_entry_in_a_body_is_none() -> None:
    """Its sender knows where it will lie, and gives it every field that an entry has."""
    plain, _ = data_of([b"a" * 30])
    at = BASE + len(plain) - 200
    inner_at = at + HEAD + 88  # where the body of the second one begins
    inner = entry(2, inner_at, b"forged" * 4)
    outer = entry(1, at, inner + entry(3, inner_at + len(inner), b"more"))
    last = at + len(outer)
    data = plain[:-200] + outer + entry(2, last, b"true") + bytes(300)
    assert provable(BytesSource(data, BASE, head=HEAD), inner_at - BASE)
    places = [at - BASE, last - BASE]
    for start, end in ((20, 24), (HEAD, HEAD + 40), (0, 4), (4, 8), (HEAD, HEAD + 4)):
        raw = bytearray(data)
        raw[places[0] + start:places[0] + end] = bytes(end - start)
        listed_frames = frames(bytes(raw))
        assert [frame[1] for frame in listed_frames if frame[0] == "message" and frame[1] > 0
                and frame[1] != places[0]] == [places[1]], (start, end)


def test_a_search_finds_heads_not_records() -> None:
    data, starts = data_of([b"a" * 30, b"b" * 30, b"c" * 30])
    source = BytesSource(data, BASE, head=HEAD)
    for place in range(starts[2] + 1):
        assert next_provable(source, place, len(data)) == next(
            start for start in starts if start >= place)
    assert next_provable(source, starts[2] + 1, len(data)) == len(data) - 200
    for place in (starts[1], starts[1] + 10, starts[1] + HEAD):
        assert start_of(source, place) == starts[1]
    assert start_of(source, starts[1] + HEAD + 1) == starts[2]


def test_garbage_never_hangs() -> None:
    head = struct.pack(">iiqqqiiii", 1, 0, 0, 0, BASE, 0, 0, 0, -48)
    for raw in (head * 20, b"\xff" * 4000, head[:40] + b"\x7f" * 300,
                b"\xff\xff\xff\xff" + bytes(9)):
        frames(raw)
