"""Values in SQL92 filters, and operations on them as in RocketMQ's expression classes.

A property is text. In a comparison with a number it must be a number of the same type.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from functools import lru_cache, partial

Number = int | float
"""A number. An int is a Java Integer (below 2**31) or Long; a float is a Double."""
Scalar = str | Number | bool
Value = Scalar | None
"""The value of a part of a filter; None is NULL."""


class IncomparableError(Exception):
    """Error: a broker cannot compare two values, so the message does not match."""


_WHOLE = re.compile(r"([+-]?)0*+(\d{0,19})")
_DOUBLE = re.compile(r"""
    [\0-\x20]*+ ( [+-]? (?: NaN | Infinity
        | (?: [0-9]++\.?[0-9]*+ | \.[0-9]++ ) (?:[eE][+-]?[0-9]++)? (?P<suffix>[fFdD])?
        | (?P<hex> 0[xX] (?: [0-9a-fA-F]++\.?[0-9a-fA-F]*+ | \.[0-9a-fA-F]++ )
                   [pP][+-]?[0-9]++ ) (?P<hex_suffix>[fFdD])? ) ) [\0-\x20]*+
""", re.VERBOSE)


@lru_cache(maxsize=32)  # a filter may use the same property thousands of times
def _whole(text: str, bits: int) -> int:
    """Return the result of `Integer.valueOf` or `Long.valueOf`, which accept digits in any
    script.
    """
    match = _WHOLE.fullmatch(text)
    if match is None or not text[-1:].isdecimal() or max(text) > "\uffff":
        raise IncomparableError
    value = int(match[1] + (match[2] or "0"))
    if not -(1 << bits) <= value < 1 << bits:
        raise IncomparableError
    return value


@lru_cache(maxsize=32)
def _double(text: str) -> float:
    """Return the result of `Double.valueOf`."""
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise IncomparableError
    number = match[1][:-1] if match["suffix"] or match["hex_suffix"] else match[1]
    try:
        return float.fromhex(number) if match["hex"] else float(number)
    except OverflowError:
        return -math.inf if number.startswith("-") else math.inf


def _as_number(text: str, like: Number) -> Number:
    if isinstance(like, float):
        return _double(text)
    return _whole(text, 31 if abs(like) < 1 << 31 else 63)


def _double_key(value: Number) -> tuple[bool, float, float]:
    """Return a key that sorts doubles like `Double.compareTo`: -0.0 before 0.0, and NaN last; all
    NaNs are equal.
    """
    number = float(value)
    return (True, 0.0, 0.0) if math.isnan(number) else (False, number, math.copysign(1.0, number))


def _order(left: Scalar, right: Scalar) -> int:
    """Return a negative number, 0 or a positive number, like `ComparisonExpression.__compare`."""
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, bool) and isinstance(right, str):
            raise IncomparableError  # this cast fails; there is no cast the other way round
        if isinstance(left, str):
            left = left.lower() == "true"
        return left - right if isinstance(left, bool) and isinstance(right, bool) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = _as_number(left, right)
    elif isinstance(right, str):
        right = _as_number(right, left)
    if isinstance(left, float) or isinstance(right, float):
        first, second = _double_key(left), _double_key(right)
        return (first > second) - (first < second)
    return (left > right) - (left < right)


def equal(left: Value, right: Value) -> bool | None:
    """Compare like ``=``. The result is True for two nulls, null if only ``left`` is null, and
    False if only ``right`` is null.
    """
    if left is None:
        return True if right is None else None
    return right is not None and _order(left, right) == 0


def inverse(value: Value) -> bool | None:
    """Return the result of NOT; NOT null is null."""
    return None if value is None else not value


def not_equal(left: Value, right: Value) -> bool | None:
    """Return the result of ``<>``."""
    return inverse(equal(left, right))


def ordered(holds: Callable[[int, int], bool], left: Value, right: Value) -> bool | None:
    """Return the result of ``<``, ``>``, ``<=`` or ``>=``. ``holds`` compares the order of the
    values with 0. Two strings are compared as doubles.
    """
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        left, right = _double(left), _double(right)
    return holds(_order(left, right), 0)


def both(left: Value, right: Value) -> bool | None:
    """Return the result of AND for two conditions. ``left`` must not be false."""
    if right is False:
        return False
    return None if left is None or right is None else True


def either(left: Value, right: Value) -> bool | None:
    """Return the result of OR for two conditions, the first of which is not true."""
    if right is True:
        return True
    return None if left is None or right is None else False


def second(_: Value, value: Value) -> Value:
    """Return the second argument."""
    return value


def negative(value: Value) -> Value:
    """Return the result of the sign ``-``: null unless the value is a number (a property is
    text).
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return -value if number else None  # type: ignore[operator]


def property_as_condition(value: Value) -> bool | None:
    """Return the result of a property that is used as a condition. The result is never true,
    because a property is a string, not a Boolean.
    """
    return None if value is None else False


def is_in(texts: frozenset[str], negated: bool, value: Value) -> bool | None:
    """Return the result of IN."""
    return None if value is None else (value in texts) is not negated


def passes(holds: Callable[[str, str], bool], text: str, negated: bool, value: Value) -> bool:
    """Return the result of CONTAINS, STARTSWITH or ENDSWITH. The result is false for any value
    other than text, even with NOT.
    """
    return isinstance(value, str) and holds(value, text) is not negated


Judge = Callable[[Value, Value], Value]
ORDERS: dict[str, Judge] = {sign: partial(ordered, holds) for sign, holds in (
    ("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge))}
TEXT_TESTS = {"CONTAINS": str.__contains__, "STARTSWITH": str.startswith,
               "ENDSWITH": str.endswith}
