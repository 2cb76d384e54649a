"""The command line as it was typed, for the one command that a verdict names as the next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache

_PROGRAM = "rmqctl"
_FOLDERS, _FOLDERS_B = "--commitlog-dir", "--commitlog-dir-b"
_OF_A_STORE = frozenset({_FOLDERS, "--commitlog-file-size", "--consumequeue-file-size",
                         "--index-slots", "--index-max", "--broker-conf", "--broker-version"})
"""Options that say how a store is to be read, and by which release's rules: another command needs
them as well."""
_OF_A_TIER = frozenset({"--metadata", "--broker", "--index-slots", "--index-max", "--broker-conf"})
"""The same for a tier: the sizes are those of its index."""
_LANGUAGE = "--lang"
_TIERED = "tiered"

words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""What was typed behind the program's name."""


def again(*more: str, without: Iterable[str] = ()) -> str:
    """The command that runs, for a shell, with the options ``more`` and ``without`` others (flags
    without a value).
    """
    left = [word for word in words.get() if word not in without]
    end = left.index("--") if "--" in left else len(left)
    return shlex.join([_PROGRAM, *left[:end], *more, *left[end:]])


def other(*command: str, second: bool = False) -> str:
    """Another ``command`` (its words, with the store or tier) for a shell, with those options that
    said how the store or tier is to be read, as far as the other command has them.

    ``second``: it is about the second of two stores, which may have folders of its own.
    """
    return shlex.join([_PROGRAM, *command, *_about_the_store(command, second)])


def completed(command: str | None) -> str | None:
    """A ``command`` for a shell, that a library function made, with the options of `other`."""
    return None if command is None else _completed(command, words.get())


@lru_cache
def _completed(command: str, _words: tuple[str, ...]) -> str:
    """Most findings have the same one."""
    program, *rest = shlex.split(command)
    kept = _about_the_store(rest, second=False) if program == _PROGRAM else []
    return f"{command} {shlex.join(kept)}" if kept else command


def _about_the_store(command: Sequence[str], second: bool) -> list[str]:
    typed = words.get()
    if (typed[:1] == (_TIERED,)) != (command[0] == _TIERED):
        return []  # sizes of a tier's index are not those of a store's
    wanted = (_OF_A_TIER if command[0] == _TIERED else _OF_A_STORE) | {_LANGUAGE}
    left = list(typed[:typed.index("--")] if "--" in typed else typed)
    if second and any(word.partition("=")[0] == _FOLDERS_B for word in left):
        wanted = wanted - {_FOLDERS} | {_FOLDERS_B}
    kept: list[tuple[str, list[str]]] = []
    for number, word in enumerate(left):
        option, is_joined, value = word.partition("=")
        if option in wanted:
            name = _FOLDERS if option == _FOLDERS_B else option
            kept.append((name, [f"{name}={value}"] if is_joined
                         else [name, *left[number + 1:number + 2]]))
    known = _options(tuple(command[:3])) if kept else frozenset()
    return [word for option, spelled in kept if option in known for word in spelled]


@cache
def _options(command: tuple[str, ...]) -> frozenset[str]:
    """The options of the command that begins with these words (at least those of its name)."""
    from rmqctl.commands import REGISTRY
    from rmqctl.commands.app.lazy import load

    spec = max((spec for spec in REGISTRY if command[:len(spec.name)] == spec.name),
               key=lambda spec: len(spec.name), default=None)
    return frozenset() if spec is None else frozenset(
        option for parameter in load(spec).params for option in parameter.opts)
