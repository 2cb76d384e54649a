"""The command line as it was typed, for the one command that a verdict names as the next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextvars import ContextVar

_PROGRAM = "rmqctl"
_OF_A_STORE = frozenset({"--commitlog-dir", "--commitlog-file-size", "--consumequeue-file-size",
                         "--index-slots", "--index-max", "--broker-conf"})
"""Options that say how a store is to be read: another command needs them as well."""

words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""What was typed behind the program's name."""


def again(*more: str, without: Iterable[str] = ()) -> str:
    """The command that runs, for a shell, with the options ``more`` and ``without`` others (flags
    without a value).
    """
    left = [word for word in words.get() if word not in without]
    end = left.index("--") if "--" in left else len(left)
    return shlex.join([_PROGRAM, *left[:end], *more, *left[end:]])


def other(*command: str) -> str:
    """Another ``command`` (its words, with the store) for a shell, with those options that said
    how the store is to be read.
    """
    return shlex.join([_PROGRAM, *command, *_about_the_store(words.get())])


def _about_the_store(typed: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for number, word in enumerate(typed):
        if word == "--":
            break
        if word in _OF_A_STORE:
            kept += typed[number:number + 2]
        elif word.partition("=")[0] in _OF_A_STORE:
            kept.append(word)
    return kept
