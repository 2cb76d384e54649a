"""``rmqctl commands``: list all commands, for people and for scripts that run rmqctl."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rmqctl.commands import REGISTRY, CommandSpec
from rmqctl.commands.app.defaults import NEVER, variable
from rmqctl.commands.app.describe import parameters
from rmqctl.commands.app.lazy import load
from rmqctl.commands.shared.options import Out

_COLUMNS = ("name", "effect", "section", "help", "arguments", "options")


def command(
    *,
    out: Out,
) -> None:
    """List every command with its effect on the store, its arguments and its options.

    Effects: read-only opens nothing for writing, writes-new writes only to a new file or folder
    that you name, mutates changes STORE.

        rmqctl commands -o json
    """
    # Pass all rows at once, so that all column widths are known.
    out.rows([*_rows()], _COLUMNS, brief=("name", "effect", "help"))


def _variable(spec: CommandSpec, names: Sequence[str]) -> str | None:
    """Return the name of the environment variable that sets an option's default; None if only the
    command line can set the option.
    """
    key = next(name[2:] for name in names if name.startswith("--"))
    return None if key in NEVER else variable(spec.name, key)


def _rows() -> Iterator[dict[str, Any]]:
    for spec in REGISTRY:
        described = [*parameters(load(spec))]
        yield {
            "name": spec.title,
            "effect": spec.effect,
            "section": spec.section,
            "help": spec.help,
            "arguments": [p.as_row() for p in described if p.kind == "argument"],
            "options": [{**p.as_row(), "env": _variable(spec, p.names)}
                        for p in described if p.kind == "option"],
        }
