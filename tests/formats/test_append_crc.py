"""The appended CRC property: digits, the engine's records, damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.local import append_crc
from tests.formats.test_message import frames

crcs = st.integers(0, 0x7FFFFFFF)


def test_golden_bytes() -> None:
    assert append_crc.SIZE == 20
    assert append_crc.build(123) == b"__CRC32#\x013210000000\x02"
    assert append_crc.parse(b"__CRC32#\x013210000000\x02") == 123
    assert append_crc.build(0x7FFFFFFF) == b"__CRC32#\x017463847412\x02"


@given(crcs)
def test_leads_back(crc: int) -> None:
    raw = append_crc.build(crc)
    assert append_crc.parse(raw) == crc
    assert append_crc.build(append_crc.parse(raw)) == raw


@pytest.mark.parametrize("crc", [-1, 1 << 31])
def test_a_crc_has_31_bits(crc: int) -> None:
    with pytest.raises(FormatError):
        append_crc.build(crc)


@pytest.mark.parametrize(("raw", "path"), [
    (b"", "name"), (b"__CRC32$\x010000000000\x02", "name"),
    (b"__CRC32#\x020000000000\x02", "separator"), (b"__CRC32#\x01000000000", "digits"),
    (b"__CRC32#\x0100000x0000\x02", "digits"), (b"__CRC32#\x01000000000\xff\x02", "digits"),
    (b"__CRC32#\x010000000000\x01", "end"), (b"__CRC32#\x010000000000\x02\x02", "end"),
])
def test_refusals(raw: bytes, path: str) -> None:
    with pytest.raises(FormatError) as caught:
        append_crc.parse(raw, 40)
    assert (caught.value.offset, caught.value.path) == (40, path)


def test_every_record_of_the_engine_verifies(golden: Callable[[str], Path]) -> None:
    count = 0
    for _, raw in frames(golden("5.3.3/appendcrc")):
        assert append_crc.verify(raw) is True
        assert append_crc.stored(raw) == append_crc.compute(raw)
        assert append_crc.seal(raw[:-20] + bytes(20)) == raw
        count += 1
    assert count >= 150


def test_every_bit_of_a_record_is_covered(golden: Callable[[str], Path]) -> None:
    raw = min((raw for _, raw in frames(golden("5.3.3/appendcrc"))), key=len)
    for bit in range(8 * (len(raw) - append_crc.SIZE)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        assert append_crc.verify(bytes(changed)) is False
    for bit in range(8 * (len(raw) - append_crc.SIZE), 8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        assert append_crc.verify(bytes(changed)) is not True


def test_records_without_it(golden: Callable[[str], Path]) -> None:
    assert {append_crc.verify(raw) for _, raw in frames(golden("5.3.3/basic"))} == {None}
    with pytest.raises(FormatError):
        append_crc.seal(bytes(19))


@given(st.binary(max_size=60))
def test_any_bytes(raw: bytes) -> None:
    assert append_crc.verify(raw) in (None, True, False)
    assert 0 <= append_crc.compute(raw) <= 0x7FFFFFFF
