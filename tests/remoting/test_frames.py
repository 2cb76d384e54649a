"""Frames and commands: written and read back, in pieces, leniently, and refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.ext.serve.remoting.codes import REQUESTS, Failed
from rmqctl.ext.serve.remoting.command import Command, read_command, read_json, write_command
from rmqctl.ext.serve.remoting.frame import (
    BINARY,
    BinaryHeader,
    Frame,
    FrameError,
    FrameReader,
    Header,
    frame_head,
    read_binary,
    write_binary,
)

_TEXT = st.text(max_size=20)
_INT = st.integers(-(1 << 31), (1 << 31) - 1)
_COMMANDS = st.builds(
    Command, code=_INT, opaque=_INT, flag=st.integers(0, 3),
    ext=st.dictionaries(_TEXT, _TEXT, max_size=5), remark=st.none() | _TEXT,
    body=st.binary(max_size=40))


@given(st.lists(_COMMANDS, max_size=4), st.integers(7, 200))
def test_commands_come_back_from_pieces_of_any_size(commands: list[Command], piece: int) -> None:
    stream = b"".join(map(write_command, commands))
    reader, values = FrameReader(), []
    for start in range(0, len(stream), piece):
        reader.feed(stream[start:start + piece])
        while (frame := reader.next()) is not None:
            values.append(read_command(frame))
    assert values == commands
    assert reader.held == 0


@given(st.integers(-(1 << 15), (1 << 15) - 1), st.integers(0, 255), _INT, st.none() | _TEXT,
       st.dictionaries(_TEXT, _TEXT, max_size=5))
def test_binary_headers_come_back_and_construct_reads_the_same(
        code: int, language: int, opaque: int, remark: str | None, ext: dict[str, str]) -> None:
    header = Header(code, language, 399, opaque, 1, remark or None, ext)
    data = write_binary(header)
    assert read_binary(data) == header
    parsed = BinaryHeader.parse(data)
    assert (parsed.code, parsed.opaque, parsed.remark.decode()) == (code, opaque, remark or "")
    for end in range(len(data)):  # cut anywhere, nothing but the one error
        with pytest.raises(FrameError):
            read_binary(data[:end])


def test_a_binary_frame_as_a_client_sends_it() -> None:
    data = bytes.fromhex(
        "0000003b01000037001e03018f00000007000000000000000000000022"
        "0005746f70696300000009546f7069635465737400077175657565496400000001" "32")
    reader = FrameReader()
    reader.feed(data)
    frame = reader.next()
    assert frame is not None
    assert frame.kind == BINARY
    command = read_command(frame)
    assert (command.code, command.opaque, command.language) == (30, 7, "PYTHON")
    assert command.ext == {"topic": "TopicTest", "queueId": "2"}


@pytest.mark.parametrize(("text", "value"), [
    (b'{"a":1}\n', {"a": 1}),
    (b'{a:1,$b:"x, c:2",3:[{d :null}]}', {"a": 1, "$b": "x, c:2", "3": [{"d": None}]}),
    (b'{0:"127.0.0.1:10911"}', {"0": "127.0.0.1:10911"}),
])
def test_json_is_read_as_fastjson_writes_it(text: bytes, value: object) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"a":', b"[" * 100_000, b"{a" * 50_000,
                                  b"9" * 10_000, b'"' + b"\\" * 99_999],
                         ids=["none", "open", "byte", "half", "deep", "deep-bare", "long", "text"])
def test_no_json_is_one_error(text: bytes) -> None:
    with pytest.raises(FrameError):
        read_json(text)


def test_values_of_fields_may_be_no_texts() -> None:
    header = json.dumps({"code": 11, "extFields": {"a": 1, "b": True, "c": None, "d": False}})
    command = read_command(Frame(0, header.encode(), b""))
    assert command.ext == {"a": "1", "b": "true", "d": "false"}
    assert (command.opaque, command.flag, command.language) == (0, 0, "OTHER")


@pytest.mark.parametrize("data", [
    b"\x00\x00\x00\x00\x00\x00\x00\x00", b"\xff\xff\xff\xff\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff\x00\x00\x00\x00", b"\x00\x00\x00\x08\x00\x00\x00\x05xxxx",
    b"\x00\x80\x00\x00\x00\x08\x00\x01"])  # a header of 512 KiB and a byte
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    with pytest.raises(FrameError):
        reader.next()


@pytest.mark.parametrize("header", [b"[]", b"7", b'{"code":"x"}', b'{"opaque":4294967296}',
                                    b'{"flag":1.5}', b"\x00"])
def test_what_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        read_command(Frame(0, header, b""))
    with pytest.raises(FrameError):
        read_command(Frame(7, b"{}", b""))


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_one_error(data: bytes) -> None:
    reader = FrameReader(limit=1 << 16)
    reader.feed(data)
    try:
        while (frame := reader.next()) is not None:
            read_command(frame)
    except FrameError:
        return
    assert reader.held <= len(data)


def test_how_much_of_a_frame_is_missing() -> None:
    reader, frame = FrameReader(), frame_head(b"{}", 100) + bytes(100)
    missing = []
    for part in (frame[:3], frame[3:8], frame[8:50], frame[50:] + frame[:9]):
        reader.feed(part)
        missing.append(reader.missing)
    assert missing == [0, len(frame) - 8, len(frame) - 50, 0]
    assert reader.next() is not None
    assert reader.missing == len(frame) - 9


def test_a_long_stream_of_small_frames_is_not_kept() -> None:
    data = frame_head(b"{}", 0)
    reader = FrameReader()
    for _ in range(2000):
        reader.feed(data * 50 + data[:3])
        while reader.next() is not None:
            pass
        reader.feed(data[3:])
        assert reader.next() is not None
        assert reader.held == 0


@pytest.mark.parametrize(("ext", "words"), [
    ({}, "<topic> is null"), ({"topic": "T"}, "<queueId> is null"),
    ({"topic": "T", "queueId": "x"}, "not a 32-bit number"),
    ({"topic": "T", "queueId": "2147483648"}, "not a 32-bit number")])
def test_fields_are_read_by_their_kinds(ext: dict[str, str], words: str) -> None:
    with pytest.raises(Failed, match=words):
        REQUESTS[30].read(ext)
    assert REQUESTS[30].read({"topic": "T", "queueId": "-1"}) == {"topic": "T", "queueId": -1}


def test_the_table_has_no_code_twice() -> None:
    assert len({request.name for request in REQUESTS.values()}) == len(REQUESTS)
