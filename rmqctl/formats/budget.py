"""Limits for the value of one body (bytes, values and levels), enforced in every decoder.

A body of a few bytes may declare, repeat or refer to any amount of data. Decoders count the values
of a body in a `Budget`; if a limit is exceeded, only that body is not decoded.
"""

from __future__ import annotations

MAX_VALUES = 1_000_000
"""Maximum number of values in one body; a value that is referenced several times counts each
time.
"""
MAX_DEPTH = 100
MAX_BYTES = 32 << 20
"""Maximum total size of the texts, keys and numbers in one decoded body, in bytes. It is four times
the maximum size of a decompressed body.
"""
_VALUE, _CONTAINER = 8, 32
"""Number of bytes counted for each value or container, in addition to its text."""


class BudgetError(ValueError):
    """A body exceeds a limit of decoding."""


class Budget:
    """The remaining allowance of values and bytes for one body."""

    __slots__ = ("bytes", "values")

    def __init__(self) -> None:
        self.values, self.bytes = MAX_VALUES, MAX_BYTES

    def take(self, size: int = 0) -> None:
        """Count one value, with a text of ``size`` bytes.

        Raises: BudgetError.
        """
        self.values -= 1
        if self.values < 0:
            raise BudgetError(f"more than {MAX_VALUES:,} values")
        self.text(size + _VALUE)

    def text(self, size: int) -> None:
        """Count a text of ``size`` bytes that is not itself a value (for example, a key).

        Raises: BudgetError.
        """
        self.bytes -= size
        if self.bytes < 0:
            raise BudgetError(f"its value is larger than {MAX_BYTES >> 20} MiB")

    def container(self, depth: int) -> None:
        """Count one list or object at level ``depth`` (the outermost level is 0).

        Raises: BudgetError.
        """
        if depth >= MAX_DEPTH:
            raise BudgetError(f"nested deeper than {MAX_DEPTH} levels")
        self.take(_CONTAINER - _VALUE)


def at_most(count: int) -> None:
    """Reject a body that is known to have ``count`` values if this number exceeds the limit.

    Raises: BudgetError.
    """
    if count > MAX_VALUES:
        raise BudgetError(f"more than {MAX_VALUES:,} values")
