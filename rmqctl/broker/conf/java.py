"""Conversion of configuration values as in Java (``MixAll.properties2Object``).

A value that Java cannot convert raises ValueError. The broker ignores such a value and keeps the
default.
"""

from __future__ import annotations

import re
from typing import Any

_BITS = {"int": 32, "long": 64}
_WHOLE = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[fFdD]?")
_BLANKS = "".join(map(chr, range(0x21)))
"""Characters that ``String.trim`` removes."""


def value(kind: str, text: str, *, trims: bool) -> Any:
    """Return ``text`` as a value of the Java type ``kind``. ``trims``: remove blanks around
    strings, as 5.2.0 and later do.

    Raises: ValueError.
    """
    if kind in _BITS:
        return _integer(text, _BITS[kind])
    if kind in ("double", "float"):
        return _real(text.strip(_BLANKS))
    if kind == "boolean":
        return text.lower() == "true"
    return trim(text) if trims else text


def trim(text: str) -> str:
    """Return the result of ``String.trim``."""
    return text.strip(_BLANKS)


def _integer(text: str, bits: int) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError(text)
    number = int(text[:40])
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(text)
    return number


def _real(text: str) -> float:
    if not _REAL.fullmatch(text):
        raise ValueError(text)
    number = text.rstrip("fFdD") if not text.endswith("Infinity") else text
    return float(number.replace("Infinity", "inf"))
