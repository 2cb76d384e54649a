"""Bodies that become far more than they are: each ends with a problem, and the listing goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
import sys
import threading
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.payloads import limits
from rmqctl.ext.payloads.decoding import Decoding
from rmqctl.ext.payloads.msgpack import count
from rmqctl.formats import bodies, budget
from tests.conftest import Runner
from tests.support import tiny

MIB = 1 << 20


def _text(text: bytes) -> bytes:
    return b"S" + struct.pack(">H", len(text)) + text


LONG = _text(b"a" * 60_000)
HESSIAN = {
    "references": b"\x57\x79" + LONG + b"Q\x91" * 15_000 + b"Z",
    "field names": b"\x57C\x01A\x91" + LONG + b"\x60N" * 15_000 + b"Z",
    "class names": b"\x57C" + LONG + b"\x90" + b"\x60" * 15_000 + b"Z",
    "binary references": b"\x57\x79B" + LONG[1:] + b"Q\x91" * 15_000 + b"Z",
}


def problem_of(spec: str, body: bytes, topic: str = "orders") -> str:
    decoded = Decoding(spec).decode(topic, {}, 0, body, "here")
    assert (decoded.value, decoded.kind) == (None, None)
    return str(decoded.problem)


@pytest.mark.parametrize("name", HESSIAN)
def test_what_is_repeated_is_counted_each_time(name: str) -> None:
    assert problem_of("hessian", HESSIAN[name]) == "its value is larger than 32 MiB"


@pytest.mark.parametrize("spec", ["auto", "gzip", "gzip+json"])
def test_members_of_gzip_are_bounded(spec: str) -> None:
    body = gzip.compress(b"", mtime=0) * (bodies.MAX_MEMBERS + 1)
    assert problem_of(spec, body) == "it has more than 10,000 gzip members"


def test_many_members_take_linear_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decompressor is fed about what it needs, not the rest of the body."""
    fed = 0

    class Counted:
        def __init__(self) -> None:
            self.codec = zlib.decompressobj(wbits=31)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.codec, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal fed
            fed += len(data)
            return self.codec.decompress(data, most)

    parts = [bytes([number % 256]) * 700 for number in range(5000)]
    body = b"".join(gzip.compress(part) for part in parts)
    assert bodies.members(body, Counted, 8 * MIB, "member") == b"".join(parts)
    assert fed < 20 * len(body)
    assert fed > len(body)


@pytest.mark.parametrize(("spec", "unit"), [
    ("json", b"[],"), ("json", b"1,"), ("json", b"{},"), ("msgpack", b"\x90"),
    ("msgpack", b"\xa1a"), ("hessian", b"\x78"), ("hessian", b"N")])
def test_values_are_counted_before_they_are_made(
        spec: str, unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (budget, sys.modules["rmqctl.ext.payloads.decoders"]):
        monkeypatch.setattr(module, "MAX_VALUES", 1000)

    def body(times: int) -> bytes:
        if spec == "json":
            return b"[" + (unit * times)[:-1] + b"]"
        return (b"\x57" + unit * times + b"Z" if spec == "hessian"
                else b"\xdd" + times.to_bytes(4) + unit * times)

    assert problem_of(spec, body(1001)) == "more than 1,000 values"
    assert Decoding(spec).decode("orders", {}, 0, body(300), "here").problem is None


def test_commas_in_texts_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (budget, sys.modules["rmqctl.ext.payloads.decoders"]):
        monkeypatch.setattr(module, "MAX_VALUES", 1000)
    body = json.dumps(["[,{" * 1000, '\\",' * 1000]).encode()
    assert Decoding("json").decode("orders", {}, 0, body, "here").problem is None


def test_the_count_of_msgpack_is_that_of_its_heads() -> None:
    msgpack = pytest.importorskip("msgspec").msgpack
    value = {"a": [1, -1, 300, 70_000, 1 << 40, -300, -70_000, -(1 << 40), 1.5, None, True],
             "b": b"x" * 300, "c": "y" * 300, "d": "z" * 70_000, "e": [[]] * 20, "f": {},
             "g": msgpack.Ext(5, b"12345"), "h": msgpack.Ext(5, b"12"), "i": b"x" * 70_000}
    body = msgpack.encode(value)
    assert count(body, 1000) == 1 + 2 * 9 + 11 + 20
    assert count(body, 7) == 8
    assert count(b"\xdd\xff\xff\xff\xff", 1000) == 1


@pytest.mark.parametrize(("topic", "body"), [
    ("RMQ_SYS_TRACE_TOPIC", b"a\x02" * (budget.MAX_VALUES + 1)),
    ("RMQ_SYS_TRACE_TOPIC", b"a\x01" * (budget.MAX_VALUES + 1)),
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"1," * (budget.MAX_VALUES + 1))], ids=["ends", "fields", "op"])
def test_bodies_of_internal_topics_too(topic: str, body: bytes) -> None:
    assert problem_of("auto", body, topic) == "more than 1,000,000 values"


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 99}


def _long(number: int) -> bytes:
    """As Avro writes it."""
    number, written = number << 1, b""
    while number > 0x7F:
        written += bytes([number & 0x7F | 0x80])
        number >>= 7
    return written + bytes([number])


@pytest.mark.parametrize(("schema", "body", "words"), [
    (DECIMAL, _long(1024) + b"7" * 1024, None),
    (DECIMAL, _long(8 * MIB - 4) + b"7" * (8 * MIB - 4), "a decimal of 8,388,604 bytes"),
    (DECIMAL, _long(1024) + b"7" * 9, "EOF"),
    ({"type": "fixed", "name": "f", "size": 2000, "logicalType": "decimal", "precision": 99},
     b"7" * 2000, "a decimal of 2,000 bytes"),
    ("long", b"\xff" * 8 * MIB, "an integer of more than 10 bytes"),
    ("string", b"\xff" * 8 * MIB, "an integer of more than 10 bytes"),
    ("string", b"\x09abcde", "invalid length of a string or bytes: -5"),
    ({"type": "array", "items": "int"}, _long(MIB) + b"\x02" * MIB, "more than 1,000 values"),
    ({"type": "map", "values": "int"}, _long(MIB) + b"\x00\x02" * MIB, "1,000 values"),
], ids=[*range(9)])
def test_avro(schema: Any, body: bytes, words: str | None, tmp_path: Path,
              monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastavro")
    monkeypatch.setattr(budget, "MAX_VALUES", 1000)
    (tmp_path / "a.avsc").write_text(json.dumps(schema))
    decoded = Decoding(f"avro:{tmp_path}/a.avsc").decode("orders", {}, 0, body, "here")
    assert (words is None) == (decoded.problem is None), decoded.problem
    assert (words or "") in (decoded.problem or "")


def test_values_of_protobuf_are_counted_while_they_are_made(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(name="bound.proto", package="bound")
    kind = file.message_type.add(name="Tree")
    kind.field.add(name="more", number=1, label=3, type=11, type_name=".bound.Tree")
    (tmp_path / "a.desc").write_bytes(
        descriptors.FileDescriptorSet(file=[file]).SerializeToString())
    spec = f"protobuf:{tmp_path}/a.desc#bound.Tree"
    monkeypatch.setattr(budget, "MAX_VALUES", 1000)
    assert problem_of(spec, b"\x0a\x00" * 1001) == "more than 1,000 values"
    # 30 each in 40: no list is long.
    assert problem_of(spec, (b"\x0a\x3c" + b"\x0a\x00" * 30) * 40) == "more than 1,000 values"
    assert Decoding(spec).decode("orders", {}, 0, b"\x0a\x00" * 500, "here").problem is None
    # Fields of other types are told by their size, without an object for each.
    decoding = Decoding(spec)
    tracemalloc.start()
    try:
        decoded = decoding.decode("orders", {}, 0, b"\x7b\x7c" * 50_000, "here")
        assert "no field of" in str(decoded.problem)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def _endless(_body: bytes) -> None:
    while True:
        with contextlib.suppress(Exception):  # as a plug-in may be written
            sum(range(1000))


def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each thread for itself. No clock: the watch looks at once, and no time is allowed."""
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(limits, "_LOOK", 0.001)
    monkeypatch.setattr(limits, "_WATCH", limits._Watch())
    problems: list[str] = []
    threads = [threading.Thread(target=lambda: problems.append(
        problem_of(f"python:{__name__}._endless", b"x"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == ["takes longer than 0 s"] * 3
    assert not limits._WATCH._started
    assert not limits._WATCH._ended


def test_the_listing_goes_on(tmp_path: Path, rmqctl: Runner) -> None:
    bombs = [*HESSIAN.values(), b"\x79" * 1000]
    root = tiny.build(tmp_path / "store", [
        tiny.Spec("orders", 0, body) for body in (b"\x01a", *bombs, b"\x01b")
    ], tiny.Options(commitlog_file_size=MIB)).root
    done = rmqctl("read", root, "-o", "jsonl", "--decode", "hessian", "--body", "none").expect(0)
    rows = done.jsonl()
    assert [row["decoded"] for row in rows] == ["a", *[None] * len(bombs), "b"]
    assert all(row["decode_problem"] for row in rows[1:-1])
    assert f"{len(bombs)} bodies not decoded" in done.err


def test_frames_of_zstd_are_bounded() -> None:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14)
                               else "backports.zstd")
    empty = zstd.compress(b"")
    assert bodies.decompressed("zstd", empty * 10_001) == (
        empty * 10_001, "marked as zstd, but it has more than 10,000 frames")
    assert bodies.decompressed("zstd", empty * 100 + zstd.compress(b"x")) == (b"x", None)
