"""Shell completion for topics, groups and names of findings.

Completion reads only folder names and small files of config/. If anything is wrong with a store,
nothing is offered and nothing is printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

import typer

from rmqctl.commands import STORE_VARIABLE
from rmqctl.errors import FormatError

_MAX_FILE_BYTES = 4 << 20
"""Maximum size, in bytes, of a file that is read for completion."""
_MAX_NAMES = 500
_QUEUES = ("consumequeue", "batchconsumequeue")


def _quiet(offers: Callable[[str], Iterable[str]]) -> Callable[..., list[str]]:
    """Return a completion function for typer.

    It returns the names from ``offers`` that begin with the typed word, sorted; an empty list if
    anything fails.
    """

    @wraps(offers)
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            root = _root(ctx)
            names = sorted(set(offers(root))) if root else []
        except Exception:  # noqa: BLE001  # a shell shows whatever is said amid the line
            return []
        return [name for name in names if name.startswith(incomplete)][:_MAX_NAMES]

    complete.__annotations__ = {"ctx": typer.Context, "incomplete": str, "return": list[str]}
    del complete.__wrapped__  # typer reads the signature
    return complete


def _root(ctx: typer.Context) -> str:
    """Return the STORE argument if it is already typed, else the value of RMQCTL_STORE."""
    for param in ctx.command.params:
        if getattr(param, "envvar", None) == STORE_VARIABLE:
            value: Any = ctx.params.get(param.name or "")
            if isinstance(value, str) and value:
                return value
    return os.environ.get(STORE_VARIABLE, "")


def _config(root: str, name: str) -> dict[str, Any]:
    from rmqctl.formats.config.config_json import parse

    path = os.path.join(root, "config", name)
    with suppress(OSError, FormatError):
        if os.path.isfile(path) and os.path.getsize(path) <= _MAX_FILE_BYTES:
            with open(path, "rb") as file:
                value = parse(file.read()).value
            if isinstance(value, dict):
                return value
    return {}


def _table(root: str, name: str, table: str) -> dict[str, Any]:
    value = _config(root, name).get(table)
    return value if isinstance(value, dict) else {}


@_quiet
def complete_topics(root: str) -> Iterator[str]:
    """Yield the topics that have a consume queue folder, then the topics in topics.json."""
    for folder in _QUEUES:
        with suppress(OSError), os.scandir(os.path.join(root, folder)) as entries:
            yield from (entry.name for entry in entries
                        if entry.is_dir() and not entry.name.startswith("."))
    yield from _table(root, "topics.json", "topicConfigTable")


@_quiet
def complete_groups(root: str) -> Iterator[str]:
    """Yield consumer groups that are configured or have offsets."""
    yield from _table(root, "subscriptionGroup.json", "subscriptionGroupTable")
    for key in _table(root, "consumerOffset.json", "offsetTable"):
        yield key.partition("@")[2].partition("@")[0]


def complete_findings(incomplete: str) -> list[str]:
    """Return the names of findings and actions that begin with the typed word."""
    from rmqctl.checks.explanations import explanations

    try:
        return [name for name in explanations() if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001  # see `_quiet`
        return []
