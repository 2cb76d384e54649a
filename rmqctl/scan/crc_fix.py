"""Find the change of a few bits that gives bytes the expected CRC-32.

CRC-32 is linear: what a damaged byte does to it depends on the byte's changed bits and on how many
bytes follow, on nothing else. The difference of two CRCs (the *syndrome*) is a polynomial over
GF(2) modulo the polynomial of the CRC, in which each further bit multiplies by x; that polynomial
is primitive, so every syndrome but 0 is one power of x. A logarithm to the base x therefore says
where the only flipped bit is, however long the bytes are: 2^32 - 1, the order of x, is a product of
small primes (Pohlig and Hellman's way). A changed byte v is v times such a power.

A record stores 31 bits of a CRC (commitlog.md §6): `syndromes` returns both possible differences.
Two CRCs over the same bytes, that of a body and that of its record, have the same polynomial: the
second follows from the first, and shows only that nothing else is damaged.
"""

from __future__ import annotations

from functools import cache, lru_cache, reduce
from typing import NamedTuple

import numpy as np

from rmqctl.scan.frames import Array

POLYNOMIAL = 0xEDB88320
"""Bit 31 is the power 0, bit 0 the power 31, as `zlib.crc32` has it."""
ORDER = (1 << 32) - 1
"""The order of x; larger than the bits of any body."""
MASKED = 1 << 31
"""The bit of a CRC that records do not store."""
_ONE, _X = 1 << 31, 1 << 30
_CHECK_BITS, _BYTE = 32, 8
_PRIMES = (3, 5, 17, 257, 65537)
_BABY_STEPS = 257


class Change(NamedTuple):
    """The bits ``xor`` (1 to 255) of the byte at ``position`` are flipped."""

    position: int
    xor: int


def syndromes(computed: int, stored: int) -> tuple[int, ...]:
    """Return the differences between a CRC and a stored one of 31 bits.

    None at all where the stored one has more bits: no change of the bytes explains that.
    """
    if stored >= MASKED:
        return ()
    return (computed ^ stored) & ~MASKED, (computed ^ stored) | MASKED


def one_bit(length: int, syndrome: int) -> list[Change]:
    """Return the flipped bit among ``length`` bytes that makes that difference; at most one."""
    if not syndrome:
        return []
    behind, bit = divmod(_logarithm(syndrome) - _CHECK_BITS, _BYTE)
    return [Change(length - 1 - behind, 1 << 7 - bit)] if 0 <= behind < length else []


def one_byte(length: int, syndrome: int) -> list[Change]:
    """Return all changes of one byte among ``length`` that make that difference, by position."""
    if not syndrome:
        return []
    behind, rest = np.divmod((_logarithm(syndrome) - _byte_logarithms()) % ORDER, _BYTE)
    found = np.flatnonzero((rest == 0) & (behind >= 1) & (behind <= length))
    return sorted(Change(length - int(behind[at]), int(at) + 1) for at in found)


def burst(length: int, syndrome: int, first_bit: int, bits: int) -> int | None:
    """The pattern of flipped bits at a known place that makes that difference, None without one.

    ``first_bit``: 8 * position, and 0 for the lowest bit of a byte; bit 0 of the pattern is there.
    Up to 32 ``bits`` at most one pattern does it, and for 32 always one: so a place found only by
    this proves nothing. ValueError for more bits, or beyond the bytes.
    """
    if not 1 <= bits <= _CHECK_BITS or not 0 <= first_bit <= _BYTE * length - bits:
        raise ValueError(f"no {bits} bits from {first_bit} on in {length} bytes")
    pattern = _times(syndrome, _power_of_x(-(_BYTE * length - first_bit)))
    return pattern if 0 < pattern < 1 << bits else None


# -- polynomials modulo that of the CRC -----------------------------------------------------------


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & ORDER
        b = b >> 1 ^ (POLYNOMIAL if b & 1 else 0)
    return product


def _raised(base: int, exponent: int) -> int:
    result = _ONE
    while exponent:
        if exponent & 1:
            result = _times(result, base)
        base = _times(base, base)
        exponent >>= 1
    return result


def _power_of_x(exponent: int) -> int:
    return _raised(_X, exponent % ORDER)


@lru_cache(maxsize=1 << 12)
def _logarithm(value: int) -> int:
    """Return the power of x (0 to 2^32 - 2) that ``value`` is; it is not 0. It is called many times
    for a damaged record: for a bit, for a byte, and in each round of a plan.
    """
    squares = [value]  # the power 2^n at place n
    while len(squares) < _CHECK_BITS:
        squares.append(_times(squares[-1], squares[-1]))
    logarithm = 0
    for prime in _PRIMES:
        # Within the subgroup of that many elements, then put together (Chinese remainders).
        cofactor = ORDER // prime
        power = reduce(_times, (one for place, one in enumerate(squares) if cofactor >> place & 1))
        rest = _in_subgroup(power, prime)
        logarithm += rest * cofactor * pow(cofactor, -1, prime)
    return logarithm % ORDER


def _in_subgroup(value: int, prime: int) -> int:
    """Return the power of the subgroup's generator that ``value`` is: baby steps, giant steps."""
    steps, giant = _subgroup(prime)
    low, middle, high, top = giant
    for number in range(prime // _BABY_STEPS + 1):
        if value in steps:
            return number * _BABY_STEPS + steps[value]
        value = (low[value & 0xFF] ^ middle[value >> 8 & 0xFF] ^ high[value >> 16 & 0xFF]
                 ^ top[value >> 24])
    raise AssertionError(f"{value} is not a power")  # the polynomial is primitive


@cache
def _subgroup(prime: int) -> tuple[dict[int, int], tuple[list[int], ...]]:
    """(the first powers of the generator, the tables that multiply by one giant step back)."""
    generator = _power_of_x(ORDER // prime)
    steps: dict[int, int] = {}
    value = _ONE
    for number in range(min(prime, _BABY_STEPS)):
        steps[value] = number
        value = _times(value, generator)
    back = _raised(generator, -_BABY_STEPS % prime)
    tables = []
    for shift in range(0, _CHECK_BITS, _BYTE):
        table = [0]
        for bit in range(_BYTE):
            product = _times(1 << shift + bit, back)
            table += [product ^ other for other in table]
        tables.append(table)
    return steps, tuple(tables)


@cache
def _byte_logarithms() -> Array:
    """Return the logarithms of a byte's values 1 to 255; twice a value is one power less."""
    known = [0] * (1 << _BYTE)
    for value in range(1, 1 << _BYTE):
        known[value] = (_logarithm(value) if value & 1 else known[value >> 1] - 1) % ORDER
    return np.array(known[1:], np.int64)
