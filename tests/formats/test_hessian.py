"""Hessian 2.0, by the examples of its own draft, and against bytes that mean harm."""

from __future__ import annotations

import contextlib
import math
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.ext.payloads import hessian
from rmqctl.ext.payloads.hessian import HessianError, loads


def h(text: str) -> bytes:
    """Hex digits, and words in quotes as they are."""
    parts = text.split("'")
    return b"".join(part.encode() if number % 2 else bytes.fromhex(part)
                    for number, part in enumerate(parts))


CAR = h("43 0b 'example.Car' 92 05 'color' 05 'model'")
EXAMPLES: list[tuple[str, bytes, Any]] = [
    *((f"int {number}", h(raw), number) for raw, number in (
        ("90", 0), ("80", -16), ("bf", 47), ("c8 00", 0), ("c0 00", -2048), ("c7 00", -256),
        ("cf ff", 2047), ("d4 00 00", 0), ("d0 00 00", -262144), ("d7 ff ff", 262143),
        ("49 00 00 01 2c", 300), ("49 ff ff ff ff", -1))),
    *((f"long {number}", h(raw), number) for raw, number in (
        ("e0", 0), ("d8", -8), ("ef", 15), ("f8 00", 0), ("f0 00", -2048), ("f7 00", -256),
        ("ff ff", 2047), ("3c 00 00", 0), ("38 00 00", -262144), ("3f ff ff", 262143),
        ("59 00 00 01 2c", 300), ("4c 80 00 00 00 00 00 00 00", -(1 << 63)))),
    *((f"double {number}", h(raw), number) for raw, number in (
        ("5b", 0.0), ("5c", 1.0), ("5d 80", -128.0), ("5d 7f", 127.0), ("5e 80 00", -32768.0),
        ("44 40 28 80 00 00 00 00 00", 12.25), ("5f 00 00 2f da", 12.25))),
    ("true", b"T", True), ("false", b"F", False), ("null", b"N", None),
    ("binary", h("20"), b""), ("short binary", h("23 01 02 03"), b"\1\2\3"),
    ("longer binary", h("34 03 01 02 03"), b"\1\2\3"),
    ("binary in chunks", h("41 00 02 01 02 42 00 01 03"), b"\1\2\3"),
    ("date", h("4a 00 00 00 d0 4b 92 84 b8"), datetime(1998, 5, 8, 9, 51, 31, tzinfo=UTC)),
    ("minutes", h("4b 00 e3 83 8f"), datetime(1998, 5, 8, 9, 51, tzinfo=UTC)),
    ("empty text", h("00"), ""), ("text", h("05 'hello'"), "hello"),
    ("a character of two bytes", h("01 c3 83"), "\u00c3"),
    ("longer text", h("30 05 'hello'"), "hello"), ("text of two bytes of length", h(
        "53 00 05 'hello'"), "hello"),
    ("text in chunks", h("52 00 07 'hello, ' 05 'world'"), "hello, world"),
    ("a character of two surrogates", h("02 ed a0 bd ed b8 80"), "\U0001f600"),
    ("the same in two chunks", h("52 00 01 ed a0 bd 01 ed b8 80"), "\U0001f600"),
    ("the same as UTF-8", h("02 f0 9f 98 80"), "\U0001f600"),
    ("list", h("57 90 91 5a"), [0, 1]), ("list of a length", h("7a 90 91"), [0, 1]),
    ("list of a counted length", h("58 92 90 91"), [0, 1]),
    ("typed list", h("72 04 '[int' 90 91"), [0, 1]),
    ("typed list with an end", h("55 04 '[int' 90 91 5a"), [0, 1]),
    ("typed lists of one type", h("7a 56 04 '[int' 91 90 56 90 91 91"), [[0], [1]]),
    ("map", h("48 91 03 'fee' a0 03 'fie' 5a"), {1: "fee", 16: "fie"}),
    ("typed map", h("4d 03 'Car' 05 'model' 06 'Beetle' 5a"),
     {"@class": "Car", "model": "Beetle"}),
    ("objects", b"\x7a" + CAR + h("4f 90 03 'red' 08 'corvette' 60 05 'green' 05 'civic'"), [
        {"@class": "example.Car", "color": "red", "model": "corvette"},
        {"@class": "example.Car", "color": "green", "model": "civic"}]),
    ("a cycle", h("43 04 'Node' 92 04 'head' 04 'tail' 4f 90 91 51 90"),
     {"@class": "Node", "head": 1, "tail": {"@ref": 0}}),
    ("the same twice", h("7a 48 5a 51 91"), [{}, {}]),
]


@pytest.mark.parametrize(("raw", "value"), [
    pytest.param(raw, value, id=name) for name, raw, value in EXAMPLES])
def test_examples_of_the_draft(raw: bytes, value: Any) -> None:
    document = loads(raw)
    assert document == value
    assert type(document) is type(value)
    for length in range(len(raw)):
        with pytest.raises(HessianError):
            loads(raw[:length])
    with pytest.raises(HessianError, match="trailing bytes after the value: 1"):
        loads(raw + b"N")


@pytest.mark.parametrize(("raw", "words"), [
    (h("58 49 7f ff ff ff 90"), "2,147,483,647 elements in only 1 bytes"),
    (h("58 8f"), "-1 elements"),
    (b"\x79" * 5000 + b"N", "nested deeper than 100 levels"),
    (h("43 01 'A' 91 01 'a'") + b"\x60" * 5000, "nested deeper"),
    (h("43 01 'A' 49 7f ff ff ff"), "elements in only 0 bytes"),
    (h("4f 90"), "object of class 0, but"), (h("51 90"), "reference to value 0, but"),
    (h("70 90"), "reference to type 0, but"), (h("48 57 5a 90 5a"), "key of a map"),
    (h("4a 7f ff ff ff ff ff ff ff"), "outside the range of dates"),
    (h("01 c3 28"), "not valid UTF-8"), (h("40"), "does not start a value"),
    (h("52 00 00 90"), "does not start a string"), (h("41 00 00 90"), "does not start binary data"),
    (b"C" * 10, "does not start a string"),
])
def test_what_is_none(raw: bytes, words: str) -> None:
    with pytest.raises(HessianError, match=words):
        loads(raw)


def test_values_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hessian.budget, "MAX_VALUES", 1000)
    assert loads(b"\x57" + b"N" * 999 + b"Z") == [None] * 999
    with pytest.raises(ValueError, match="more than 1,000 values"):
        loads(b"\x57" + b"N" * 1000 + b"Z")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_refused(raw: bytes) -> None:
    with contextlib.suppress(HessianError):
        loads(raw)


def test_numbers_of_eight_bytes() -> None:
    assert loads(b"D" + struct.pack(">d", math.pi)) == math.pi
    assert loads(b"L" + struct.pack(">q", 1 << 40)) == 1 << 40
