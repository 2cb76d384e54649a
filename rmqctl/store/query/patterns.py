"""Regular expression searches in untrusted messages, with a time limit for each search.

Python's ``re`` has no time limit. During a search it holds the GIL, and no signal is handled. With
the pattern ``(a+)+$`` from a user, thirty characters in a message would hang a command forever. The
package ``regex`` accepts the same expressions and supports a time limit.
"""

from __future__ import annotations

import warnings
from time import thread_time

from rmqctl.errors import UsageError

MAX_SECONDS = 5.0
"""Time limit of one search, in seconds. A pattern without backtracking needs less time even for the
largest body.
"""
SECONDS_PER_CHARACTER = 2e-6
"""Number of seconds for each searched character. All searches of one pattern together may take
`MAX_SECONDS` plus this time. Most patterns need a hundredth of that time.
"""
_ADVICE = "avoid nested repetitions such as (a+)+"
_left: dict[str, float] = {}
"""For each pattern: the number of seconds that its searches may still take."""


def check(pattern: str) -> None:
    """Raise UsageError if the pattern is not a regular expression."""
    import regex  # imported here because few commands need it

    try:
        with warnings.catch_warnings():
            # about syntax that may change its meaning in a later release
            warnings.simplefilter("ignore")
            regex.compile(pattern)
    except regex.error as error:
        raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
    except RecursionError:
        raise UsageError("the regular expression is nested too deeply") from None


def matches(pattern: str, text: str) -> bool:
    """Return whether ``pattern`` matches somewhere in ``text``.

    Raises: UsageError if the search takes more than `MAX_SECONDS`, or if all searches together
    exceed their time limit.
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
