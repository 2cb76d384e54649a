"""Changes that a CRC explains: what was changed is found, and nothing but what fits."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.scan.crc_fix import MASKED, ByteChange, burst, one_bit, one_byte, syndromes

BODIES = st.binary(min_size=1, max_size=200)
LARGE = 4 << 20


@pytest.fixture(autouse=True, scope="module")
def tables() -> None:
    """They are made once in a process, which takes longer than a hypothesis may."""
    one_byte(1, 1)


def stored_crc(body: bytes) -> int:
    return zlib.crc32(body) & ~MASKED


def changed(body: bytes, change: ByteChange) -> bytes:
    turned = bytearray(body)
    turned[change.position] ^= change.xor
    return bytes(turned)


def explained(body: bytes, stored: int,
              by: Callable[[int, int], list[ByteChange]] = one_byte) -> list[ByteChange]:
    return sorted(change for syndrome in syndromes(zlib.crc32(body), stored)
                  for change in by(len(body), syndrome))


def by_trying(body: bytes, stored: int) -> list[ByteChange]:
    return [change for position in range(len(body)) for xor in range(1, 256)
            if stored_crc(changed(body, change := ByteChange(position, xor))) == stored]


@pytest.mark.parametrize("length", [1, 2, 7, 24])
def test_every_bit_of_a_small_body(length: int) -> None:
    body = bytes(range(40, 40 + length))
    for position in range(length):
        for bit in range(8):
            change = ByteChange(position, 1 << bit)
            assert explained(changed(body, change), stored_crc(body), one_bit) == [change]


@given(BODIES, st.data())
def test_a_changed_byte(body: bytes, data: st.DataObject) -> None:
    change = ByteChange(data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(1, 255)))
    assert change in explained(changed(body, change), stored_crc(body))


@given(st.binary(min_size=1, max_size=6), st.integers(0, MASKED - 1))
def test_as_many_as_trying_finds(body: bytes, stored: int) -> None:
    assert explained(body, stored) == by_trying(body, stored)


def test_as_many_as_trying_finds_where_there_are_some() -> None:
    """Of differences taken at random nearly none is that of a small body's byte."""
    body = b"a body of some forty bytes, and a few more"
    for position in range(0, len(body), 5):
        for xor in (1, 0x55, 0xFF):
            stored = stored_crc(changed(body, ByteChange(position, xor)))
            assert explained(body, stored) == by_trying(body, stored) != []


@given(st.integers(0, MASKED - 1), st.integers(1, 1 << 20))
def test_what_is_found_explains_any_difference(difference: int, length: int) -> None:
    body = bytes(length)
    stored = stored_crc(body) ^ difference
    for change in explained(body, stored):
        assert stored_crc(changed(body, change)) == stored
    bits = explained(body, stored, one_bit)
    assert set(bits) <= set(explained(body, stored))
    assert len(bits) <= 2


@given(BODIES, st.data())
def test_a_burst_at_a_known_place(body: bytes, data: st.DataObject) -> None:
    bits = data.draw(st.integers(1, min(31, 8 * len(body))))
    first = data.draw(st.integers(0, 8 * len(body) - bits))
    pattern = data.draw(st.integers(1, (1 << bits) - 1))
    turned = (int.from_bytes(body, "little") ^ pattern << first).to_bytes(len(body), "little")
    patterns = [burst(len(body), syndrome, first, bits)
                for syndrome in syndromes(zlib.crc32(turned), stored_crc(body))]
    assert pattern in patterns
    for other in {*patterns} - {None}:  # the bit that is not stored leaves a second one at most
        back = (int.from_bytes(turned, "little") ^ other << first).to_bytes(len(body), "little")
        assert stored_crc(back) == stored_crc(body)


@pytest.mark.parametrize(("first", "bits"), [(0, 0), (0, 33), (-1, 8), (9, 8)])
def test_a_burst_beyond_the_bytes(first: int, bits: int) -> None:
    with pytest.raises(ValueError, match="no"):
        burst(2, 1, first, bits)


def test_nothing_explains_what_is_right_or_cannot_be() -> None:
    assert explained(b"right", stored_crc(b"right")) == explained(
        b"right", stored_crc(b"right"), one_bit) == []
    assert one_bit(5, 0) == one_byte(5, 0) == []
    assert burst(5, 0, 0, 8) is None
    assert syndromes(7, 7 | MASKED) == syndromes(7, 9_999_999_999) == ()
    assert explained(b"", 5) == []


def test_a_large_body_takes_milliseconds() -> None:
    body = os.urandom(LARGE)
    right = stored_crc(body)
    for position in (0, 1, LARGE // 3, LARGE - 1):
        damaged = changed(body, ByteChange(position, 0x40))
        computed = zlib.crc32(damaged)
        start = time.process_time()
        for by in (one_bit, one_byte):
            changes = [change for syndrome in syndromes(computed, right)
                       for change in by(LARGE, syndrome)]
            assert ByteChange(position, 0x40) in changes
        assert time.process_time() - start < 0.1
