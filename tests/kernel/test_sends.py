"""Frames of producers, read by the compiled kernel: as the library reads them, or not at all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmqctl.ext.serve.producing.plain import _fields
from rmqctl.ext.serve.remoting.codes import CODE_OF, REQUESTS, Failed
from rmqctl.ext.serve.remoting.command import Command, read_command, write_command
from rmqctl.ext.serve.remoting.frame import COUNTED, HEAD_SIZE, FrameError, FrameReader, frame_head
from rmqctl.kernel import active
from tests.support.kernels import compiled_only
from tests.support.share import RUN

pytestmark = compiled_only
CODE = CODE_OF["SEND_MESSAGE_V2"]
FIELDS = {"a": "P", "b": "topic", "c": "TBW102", "d": "8", "e": "3", "f": "0", "g": "1700000000000",
          "h": "7", "i": "KEYS\x01k\x02TAGS\x01A", "j": "1", "k": "false", "m": "false"}
FRAME = write_command(Command(CODE, 5, 2, FIELDS, None, b"the body"))


def taken(data: bytes, at: int = 0, limit: int = 1 << 20, most: int = 99) -> list[tuple[Any, ...]]:
    kernel = active()
    assert kernel is not None
    commands: list[tuple[Any, ...]] = kernel.sends(bytearray(data), at, limit, HEAD_SIZE, COUNTED,
                                                   CODE, *_fields(), most)
    return commands


def as_request(frame: bytes) -> tuple[Any, ...]:
    """The same of the first frame, as requests are read."""
    reader = FrameReader()
    reader.feed(frame)
    first = reader.next()
    assert first is not None
    command = read_command(first)
    assert (command.code, command.is_response) == (CODE, False)
    assert command.flag in (0, 2)
    fields = REQUESTS[CODE].read(command.ext)
    assert not fields["batch"]
    end = HEAD_SIZE + len(first.header) + len(first.body)
    return (end, command.opaque, command.flag, fields["topic"], fields["queueId"], fields["flag"],
            fields["sysFlag"], fields["bornTimestamp"], fields["reconsumeTimes"] or 0,
            fields["properties"] or "", first.body)


def test_frames_behind_each_other_are_read_up_to_another_one() -> None:
    other = write_command(Command(CODE_OF["PULL_MESSAGE"], 6, 0, {}))
    size = len(FRAME)
    assert [command[0]
            for command in taken(FRAME * 3 + other + FRAME)] == [size, 2 * size, 3 * size]
    assert taken(FRAME * 3)[1] == (2 * size, *as_request(FRAME)[1:])
    assert len(taken(FRAME * 3, most=2)) == 2
    assert taken(other + FRAME) == []
    assert taken(other + FRAME, len(other))[0][0] == len(other) + size
    assert taken(FRAME, limit=size - COUNTED - 1) == []


def test_frames_that_are_cut_off_are_left() -> None:
    for size in range(len(FRAME)):
        assert taken(FRAME[:size]) == []
        assert len(taken(FRAME + FRAME[:size])) == 1


def test_any_turned_bit_is_read_as_by_others_or_not_at_all() -> None:
    strange = 0
    header = len(FRAME) - len(b"the body")
    for place in range(header * 8):
        data = bytearray(FRAME)
        data[place // 8] ^= 1 << place % 8
        commands = taken(bytes(data))
        strange += not commands
        if commands:
            assert commands == [as_request(bytes(data))]
    assert strange > header


TEXTS = ('"x"', '"310"', '"-0"', '"0"', '"007"', '"2147483648"', '"-2147483648"', '"true"', "null",
         "3", "-7", "1.5", "1e2", "true", '"1e2"', '""', '" 1"', '"\\u0001\\u0002"', '"\\u00e4"',
         '"\\n"', '"ä"', '"\x7f"', '"\\"', "[]", "{}", '"999999999999999999"',
         '"1' + "0" * 18 + '"')


def test_any_values_are_read_as_by_others_or_not_at_all() -> None:
    source = random.Random(RUN.seed)
    read = 0
    for _ in range(4000):
        fields = {name: f'"{text}"'.replace("\x01", "\\u0001").replace("\x02", "\\u0002")
                  for name, text in FIELDS.items()}
        top = {"code": str(CODE), "extFields": "", "flag": "0", "opaque": "9", "version": "399",
               "language": '"JAVA"', "serializeTypeCurrentRPC": '"JSON"', "remark": "null"}
        for _ in range(source.randrange(3)):
            where = fields if source.random() < 0.8 else top
            where[source.choice([*where, "x", "n"])] = source.choice(TEXTS)
        for where in (fields, top):
            if source.random() < 0.2:
                del where[source.choice(list(where))]
        if "extFields" in top:
            items = [f'"{name}":{text}' for name, text in fields.items()]
            source.shuffle(items)
            top["extFields"] = "{" + ",".join(items + items[:source.random() < 0.1]) + "}"
        items = [f'"{name}":{text}' for name, text in top.items()]
        text = "{" + ",".join(items + items[:source.random() < 0.1]) + "}"
        if source.random() < 0.1:
            text = text.replace(*source.choice([(",", ", "), ("}", "}}"), ('"', "'"), (":", "::")]),
                                1)
        frame = frame_head(text.encode(), 3) + b"abc"
        commands = taken(frame)
        if commands:
            read += 1
            assert commands == [as_request(frame)], text
        else:
            try:
                wanted = as_request(frame)
            except (FrameError, Failed, AssertionError, KeyError):
                continue
            assert len(wanted) == 11  # read by others, more leniently
    assert read > 300


def test_what_is_too_long_is_left() -> None:
    longest = "k\x01" + "v" * 4000
    frame = write_command(Command(CODE, 1, 0, FIELDS | {"i": longest}))
    assert taken(frame) == [as_request(frame)]
    assert taken(write_command(Command(CODE, 1, 0, FIELDS | {"i": longest + "v" * 100}))) == []


def test_a_frame_of_another_shape_is_refused() -> None:
    kernel = active()
    assert kernel is not None
    for takes, at in ((bytes(25), 0), (bytes(26), -1)):
        with pytest.raises(ValueError, match="shape"):
            kernel.sends(bytearray(FRAME), at, 100, HEAD_SIZE, COUNTED, CODE, takes, 0, 1)
