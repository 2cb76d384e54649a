"""Find the few flipped bits that explain a wrong CRC-32.

CRC-32 is linear: the effect of a damaged byte depends only on its changed bits and on the number of
bytes after it. The difference of two CRCs (the *syndrome*) is a polynomial over GF(2), modulo the
CRC's polynomial. Each additional bit after the damage multiplies the syndrome by x. The CRC's
polynomial is primitive, so every nonzero syndrome is exactly one power of x. Its logarithm to the
base x is therefore the position of a single flipped bit, for any number of bytes. The order of x,
2^32 - 1, is a product of small primes, so the method of Pohlig and Hellman computes the logarithm.
The syndrome of a changed byte v is v times a power of x.

A record stores 31 bits of a CRC (commitlog.md §6), so `syndromes` returns two possible differences.
The CRC of a body and the CRC of its complete record use the same polynomial. So if a change
explains the body's CRC, the record's CRC adds no evidence for this change. It only shows that the
rest of the record is intact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache, reduce
from typing import NamedTuple

from rmqctl.kernel import active

POLYNOMIAL = 0xEDB88320
"""The CRC polynomial: bit 31 is the coefficient of x^0, bit 0 that of x^31, as in `zlib.crc32`."""
ORDER = (1 << 32) - 1
"""The multiplicative order of x: greater than the number of bits in any body."""
MASKED = 1 << 31
"""The bit of a CRC that records do not store."""
_UNIT, _X = 1 << 31, 1 << 30
_BEYOND = tuple(reduce(lambda value, _: value >> 1 ^ (POLYNOMIAL if value & 1 else 0), range(4),
                       low) for low in range(16))
"""Products of x^4 and each combination of the four highest powers of x, reduced."""
_CHECK_BITS, _BYTE = 32, 8
_PRIMES = (3, 5, 17, 257, 65537)
_SHARES = tuple(ORDER // prime * pow(ORDER // prime, -1, prime) for prime in _PRIMES)
"""Factor by which each subgroup's logarithm contributes to the complete logarithm."""
_BABY_STEPS = 1024
_NIBBLE = 4
_FEW_BYTES = 1 << 16
"""Number of bytes up to which the kernel tries each byte; for more bytes a logarithm is faster."""


class ByteChange(NamedTuple):
    """A change of one byte: the bits ``xor`` (1 to 255) of the byte at ``position`` are flipped."""

    position: int
    xor: int


def syndromes(computed: int, stored: int) -> tuple[int, ...]:
    """Return the possible differences between a CRC and a stored CRC of 31 bits.

    Empty if the stored CRC has the 32nd bit set, which no change of the bytes explains.
    """
    if stored >= MASKED:
        return ()
    return (computed ^ stored) & ~MASKED, (computed ^ stored) | MASKED


def one_bit(length: int, syndrome: int) -> list[ByteChange]:
    """Return the only bit among ``length`` bytes whose flip causes the difference, or an empty
    list.
    """
    if not syndrome:
        return []
    behind, bit = divmod(_logarithm(syndrome) - _CHECK_BITS, _BYTE)
    return [ByteChange(length - 1 - behind, 1 << 7 - bit)] if 0 <= behind < length else []


def one_byte(length: int, syndrome: int) -> list[ByteChange]:
    """Return all single-byte changes in ``length`` bytes that cause the difference,
    in order of position.
    """
    if not syndrome:
        return []
    kernel = active() if length <= _FEW_BYTES else None
    if kernel is not None:
        return sorted(ByteChange(length - 1 - behind, xor)
                      for behind, xor in kernel.byte_changes(syndrome, length))
    # A byte so many bits before the end: its logarithm is in a range, which begins again at 0.
    last = _logarithm(syndrome) - _BYTE
    first = last - _BYTE * (length - 1)
    logarithms, values = _byte_logarithms()
    changes = []
    for turn in (0, ORDER):
        for at in range(bisect_left(logarithms, first + turn),
                        bisect_right(logarithms, last + turn)):
            behind, rest = divmod(last + turn - logarithms[at], _BYTE)
            if not rest:
                changes.append(ByteChange(length - 1 - behind, values[at]))
    return sorted(changes)


def burst(length: int, syndrome: int, first_bit: int, bits: int) -> int | None:
    """Return the pattern of flipped bits at a known position that causes the difference; None if no
    pattern does.

    ``first_bit`` is 8 * position + bit, where bit 0 is the lowest bit of a byte. Bit 0 of the
    pattern is at ``first_bit``. For up to 32 ``bits``, at most one pattern matches. For exactly 32
    bits, a pattern always matches, so the match proves nothing about the position.

    Raises: ValueError for more than 32 bits, or for bits after the end of the bytes.
    """
    if not 1 <= bits <= _CHECK_BITS or not 0 <= first_bit <= _BYTE * length - bits:
        raise ValueError(f"{length} bytes do not contain {bits} bits from bit {first_bit} on")
    pattern = _times(syndrome, _power_of_x(-(_BYTE * length - first_bit)))
    return pattern if 0 < pattern < 1 << bits else None


# -- polynomials modulo that of the CRC -----------------------------------------------------------


def _times(a: int, b: int) -> int:
    """Return the product, computed for four powers of ``a`` at a time, the highest powers first."""
    once, twice, thrice = _doubled(b), _doubled(_doubled(b)), _doubled(_doubled(_doubled(b)))
    low = (0, thrice, twice, twice ^ thrice)
    table = (*low, *(once ^ other for other in low), *(b ^ other for other in low),
             *(b ^ once ^ other for other in low))
    product = 0
    for _ in range(_CHECK_BITS // _NIBBLE):
        product = product >> _NIBBLE ^ _BEYOND[product & 15] ^ table[a & 15]
        a >>= _NIBBLE
    return product


def _doubled(value: int) -> int:
    return value >> 1 ^ (POLYNOMIAL if value & 1 else 0)


def _raised(base: int, exponent: int) -> int:
    result = _UNIT
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
    """Return the exponent (0 to 2^32 - 2) of the power of x that equals ``value``, which must not
    be 0.

    Speed matters: each damaged record needs many calls.
    """
    logarithm, before = 0, value
    for number, (prime, share) in enumerate(zip(_PRIMES, _SHARES, strict=True)):
        # The power that is in the subgroup of ``prime`` elements: to all other primes.
        power = before
        for other in range(number + 1, len(_PRIMES)):
            power = _times(_squared(power, other), power)
        # combined (Chinese remainders).
        logarithm += _in_subgroup(power, prime) * share
        before = _times(_squared(before, number), before)
    return logarithm % ORDER


def _squared(value: int, number: int) -> int:
    """Return ``value`` to the power of 2^2^``number``. This exponent is ``_PRIMES[number]`` minus
    one. Squaring is linear, so a table per byte of ``value`` is enough.
    """
    low, middle, high, top = _squares()[number]
    return (low[value & 0xFF] ^ middle[value >> 8 & 0xFF] ^ high[value >> 16 & 0xFF]
            ^ top[value >> 24])


@cache
def _squares() -> list[tuple[list[int], ...]]:
    """Return the tables of `_squared` for each prime."""
    images = [1 << bit for bit in range(_CHECK_BITS)]
    tables = []
    for prime in _PRIMES:
        times = (prime - 1).bit_length() - 1  # how often it is squared, of which half is done
        for _ in range(max(1, times // 2)):
            images = [_times(image, image) for image in images]
        tables.append(_tables(images))
    return tables


def _tables(images: Sequence[int]) -> tuple[list[int], ...]:
    """Return the linear map with the given image of each bit, as one table per byte."""
    tables = []
    for shift in range(0, _CHECK_BITS, _BYTE):
        table = [0]
        for image in images[shift:shift + _BYTE]:
            table += [image ^ other for other in table]
        tables.append(table)
    return tuple(tables)


def _in_subgroup(value: int, prime: int) -> int:
    """Return the power to which the subgroup's generator must be raised to get ``value`` (baby-step
    giant-step).
    """
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
    """Return (the first powers of the generator, the tables that multiply by the inverse of one
    giant step).
    """
    generator = _power_of_x(ORDER // prime)
    steps: dict[int, int] = {}
    value = _UNIT
    for number in range(min(prime, _BABY_STEPS)):
        steps[value] = number
        value = _times(value, generator)
    back = _raised(generator, -_BABY_STEPS % prime)
    return steps, _tables([_times(1 << bit, back) for bit in range(_CHECK_BITS)])


@cache
def _byte_logarithms() -> tuple[list[int], list[int]]:
    """Return (the logarithms of the byte values 1 to 255 in ascending order, the values in the same
    order). The logarithm of a doubled value is smaller by one.
    """
    logarithms = [0] * (1 << _BYTE)
    for value in range(1, 1 << _BYTE):
        logarithms[value] = (_logarithm(value) if value & 1 else logarithms[value >> 1] - 1) % ORDER
    pairs = sorted((logarithm, value) for value, logarithm in enumerate(logarithms) if value)
    return [logarithm for logarithm, _ in pairs], [value for _, value in pairs]
