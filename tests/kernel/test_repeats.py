"""Requests that differ from others in their numbers alone, read by the compiled kernel."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmqctl.ext.serve.consuming.plain import _NAMES, _NUMBERS
from rmqctl.ext.serve.remoting.codes import CODE_OF
from rmqctl.ext.serve.remoting.command import Command, read_command, write_command
from rmqctl.ext.serve.remoting.frame import (
    BINARY,
    COUNTED,
    HEAD_SIZE,
    Frame,
    FrameError,
    Header,
    frame_head,
    write_binary,
)
from rmqctl.kernel import active
from tests.support.kernels import compiled_only
from tests.support.share import RUN

pytestmark = compiled_only
CODE = CODE_OF["PULL_MESSAGE"]
FIELDS = {"consumerGroup": "G", "topic": "T", "queueId": "3", "queueOffset": "12345",
          "maxMsgNums": "32", "sysFlag": "7", "commitOffset": "17", "subscription": "a || b",
          "suspendTimeoutMillis": "15000", "subVersion": "1700000000000"}
FRAME = write_command(Command(CODE, 77, 0, FIELDS))


def taken(data: bytes, at: int = 0, limit: int = 1 << 20, most: int = 99) -> list[tuple[Any, ...]]:
    kernel = active()
    assert kernel is not None
    commands: list[tuple[Any, ...]] = kernel.repeats(
        bytearray(data), at, limit, HEAD_SIZE, COUNTED, _NAMES, most)
    return commands


def as_request(header: bytes) -> tuple[Command, tuple[int | str | None, ...]]:
    """(the rest of a header, its numbers) as requests are read."""
    command = read_command(Frame(0, header, b""))
    numbers = command.opaque, *(command.ext.pop(name, None) for name in _NUMBERS[1:])
    command.opaque = 0
    return command, numbers


def test_frames_behind_each_other_are_read_up_to_another_one() -> None:
    size = len(FRAME)
    with_body = write_command(Command(CODE, 6, 0, FIELDS, None, b"x"))
    binary = write_binary(Header(CODE, 0, 399, 1, 0, None, FIELDS))
    words = FRAME[HEAD_SIZE:].replace(b":77", b":").replace(b"12345", b"").replace(b'"17"', b'""')
    assert taken(FRAME * 2) == [(size, words, 77, 12345, 17), (2 * size, words, 77, 12345, 17)]
    assert len(taken(FRAME * 3, most=2)) == 2
    assert taken(FRAME * 2, size)[0][0] == 2 * size
    for other in (with_body, frame_head(binary, 0, BINARY) + binary, b"\xff" * 50, FRAME[:-1]):
        assert len(taken(FRAME + other + FRAME)) == 1
    assert taken(FRAME, limit=size - COUNTED - 1) == []
    assert all(taken(FRAME[:cut]) == [] for cut in range(size))


VALUES = ('"5"', "5", '"007"', "007", '"-3"', '"1.5"', "1.5", "1e2", '"', '""', "null", "true",
          '"9999999999999999999"', "4294967296", '"+5"', '" 5"', "5 ", '"\\u0035"', '"ä"', "[5]",
          '{"opaque":5}', '{"queueOffset":"5"}', '"{\\"opaque\\":5"', '"\x7f"', "-0", '"5', '5"')


def test_words_that_are_the_same_mean_the_same_but_for_the_numbers() -> None:
    """Whatever else a header holds: of two with the same words the one says what the other does,
    with its own numbers, if the first was read as it is read by others.
    """
    source = random.Random(RUN.seed)
    read = 0
    for _ in range(4000):
        top = {"code": str(CODE), "extFields": "", "flag": "0", "opaque": "@0", "version": "399",
               "language": '"JAVA"'}
        fields = {name: f'"{text}"' for name, text in FIELDS.items()} | {
            "queueOffset": '"@1"', "commitOffset": '"@2"'}
        for _ in range(source.randrange(3)):
            where = source.choice([fields, top])
            where[source.choice([*where, "x", *_NUMBERS])] = source.choice(
                [*VALUES, "@1", '"@2"', '{"opaque":@0}', '{"queueOffset":"@1"}', "[@0]"])
        for where in (fields, top):
            if source.random() < 0.1:
                del where[source.choice(list(where))]
        parts = [f'"{name}":{text}' for name, text in fields.items()]
        source.shuffle(parts)
        if "extFields" in top:
            top["extFields"] = "{" + ",".join(parts + parts[:source.random() < 0.05]) + "}"
        parts = [f'"{name}":{text}' for name, text in top.items()]
        text = "{" + ",".join(parts + parts[:source.random() < 0.05]) + "}"
        if source.random() < 0.1:
            text = text.replace(*source.choice([(",", ", "), ("}", "}}"), ('"', "'"), (":", ": "),
                                                ("{", "{{"), (":", "::")]), 1)
        headers = []
        for numbers in (("5", "5", "5"), ("6", "70000000000", "-8")):
            filled = text
            for place, number in enumerate(numbers):
                filled = filled.replace(f"@{place}", number)
            headers.append(filled.encode())
        first, second = ([command[1:] for command in taken(frame_head(header, 0))]
                         for header in headers)
        if not first or not second or first[0][0] != second[0][0]:
            continue
        values: list[tuple[Command, tuple[int | str | None, ...]]] = []
        for (_, *numbers), header in ((first[0], headers[0]), (second[0], headers[1])):
            try:
                rest, others = as_request(header)
            except FrameError:
                break
            if others[0] != numbers[0] or others[1:] != tuple(
                    None if number is None else str(number) for number in numbers[1:]):
                break
            values.append((rest, others))
        if values:  # the first was learned
            read += 1
            assert len(values) == 2, text
            assert values[0][0] == values[1][0], text
    assert read > 500


def test_what_is_too_long_is_left() -> None:
    fits = 1024 - len(FRAME) + HEAD_SIZE + 1
    for size, count in ((fits, 1), (fits + 1, 0)):
        assert len(taken(write_command(Command(CODE, 77, 0, FIELDS | {"topic": "t" * size})))
                   ) == count


def test_a_frame_of_another_shape_is_refused() -> None:
    kernel = active()
    assert kernel is not None
    for names, at in ((b"", 0), (b"a", 0), (b"a\0" * 9, 0), (b"a\0", -1)):
        with pytest.raises(ValueError, match="shape"):
            kernel.repeats(bytearray(FRAME), at, 100, HEAD_SIZE, COUNTED, names, 1)
