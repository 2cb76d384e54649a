"""The command line as the user typed it; its layout options are added to recommended commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache

_PROGRAM = "rmqctl"
_FOLDERS, _FOLDERS_B = "--commitlog-dir", "--commitlog-dir-b"
_OF_A_STORE = frozenset({_FOLDERS, "--commitlog-file-size", "--consumequeue-file-size",
                         "--index-slots", "--index-max", "--broker-conf", "--broker-version"})
"""Options that a recommended command must also have: the layout of the store, and the broker
release whose rules apply.
"""
_OF_A_TIER = frozenset({"--metadata", "--broker", "--index-slots", "--index-max", "--broker-conf"})
"""The corresponding options for a tier, whose index options describe the tier's own index."""
_LANGUAGE = "--lang"
_TIERED = "tiered"

words: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""The words that were typed after the program's name."""


def again(*more: str, without: Iterable[str] = ()) -> str:
    """Return the running command line, quoted for a shell, with the words ``more`` added and the
    flags ``without`` removed.
    """
    left = [word for word in words.get() if word not in without]
    end = left.index("--") if "--" in left else len(left)
    return shlex.join([_PROGRAM, *left[:end], *more, *left[end:]])


def other(*command: str, second: bool = False) -> str:
    """Return the command line of another command, quoted for a shell.

    ``command``: the words of that command, including the store or tier. Layout options that the
    user typed are added if that command has them.
    ``second``: whether that command is about the second of two compared stores; the folders of its
    log are given by ``--commitlog-dir-b``.
    """
    return shlex.join([_PROGRAM, *command, *_about_the_store(command, second)])


def completed(command: str | None) -> str | None:
    """Return a ``command`` line that a library function recommends, with the typed layout options
    added, as in `other`.
    """
    return None if command is None else _completed(command, words.get())


@lru_cache
def _completed(command: str, _words: tuple[str, ...]) -> str:
    """Return ``command`` with the typed layout options added. The result is cached, because most
    findings recommend the same command.
    """
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
    own_options = _options(tuple(command[:3])) if kept else frozenset()
    return [word for option, spelled in kept if option in own_options for word in spelled]


@cache
def _options(command: tuple[str, ...]) -> frozenset[str]:
    """Return the options of the rmqctl command whose name is at the start of the given words."""
    from rmqctl.commands import REGISTRY
    from rmqctl.commands.app.lazy import load

    spec = max((spec for spec in REGISTRY if command[:len(spec.name)] == spec.name),
               key=lambda spec: len(spec.name), default=None)
    return frozenset() if spec is None else frozenset(
        option for parameter in load(spec).params for option in parameter.opts)
