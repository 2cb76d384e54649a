"""Regular expressions of users on texts of strangers: each search has a time limit.

Python's ``re`` tries all ways to match one after the other, holds the interpreter's lock meanwhile
and is told of no signal: with ``(a+)+$`` thirty characters of a message would hang a command for
ever. ``regex`` takes the same expressions and ends a search at a time limit.
"""

from __future__ import annotations

import warnings
from time import thread_time

from rmqctl.errors import UsageError

MAX_SECONDS = 5.0
"""Of one search. A pattern that does not try all ways needs less for the largest body."""
SECONDS_PER_CHARACTER = 2e-6
"""Of all searches for a pattern together, and `MAX_SECONDS`. Most take a hundredth of that."""
_ADVICE = "avoid nested repetitions such as (a+)+"
_left: dict[str, float] = {}
"""By pattern the seconds that are left."""


def check(pattern: str) -> None:
    """Raise UsageError if the pattern is not a regular expression."""
    import regex  # here, as few commands have one

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else one day
            regex.compile(pattern)
    except regex.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
    except RecursionError:
        raise UsageError("the regular expression is nested too deeply") from None


def matches(pattern: str, text: str) -> bool:
    """Return whether ``pattern`` matches somewhere in ``text``. Raise UsageError beyond
    `MAX_SECONDS`, or where all texts together take too long for their size.
    """
    import regex

    begun = thread_time()
    try:
        matched = regex.search(pattern, text, timeout=MAX_SECONDS) is not None
    except TimeoutError:
        raise UsageError(
            f"the regular expression {pattern!r} takes more than {MAX_SECONDS:g} s on one value of "
            f"{len(text):,} characters: {_ADVICE}") from None
    left = _left.get(pattern, MAX_SECONDS) + len(text) * SECONDS_PER_CHARACTER - (
        thread_time() - begun)
    _left[pattern] = left
    if left < 0:
        raise UsageError(
            f"the regular expression {pattern!r} takes more than "
            f"{SECONDS_PER_CHARACTER * 1e6:g} microseconds per character of the messages: "
            f"{_ADVICE}")
    return matched
