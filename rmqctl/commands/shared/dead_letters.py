"""Code that the commands on dead letters share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rmqctl.errors import ExitCode

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.store import Store as OpenedStore

#: The options of `SelectOptions` for dead letters.
OF_DEAD_LETTERS = "count since until tag key where"


def refuse_unknown(out: Output, store: OpenedStore, group: str) -> None:
    """End the run with exit code 1 if a group has no dead letters."""
    from rmqctl.store.explain import near_names
    from rmqctl.store.groups.dead_letters import groups_with

    groups = groups_with(store)
    if group not in groups:
        out.warn(f"group {group} has no dead letters in this store{near_names(group, groups)}")
        raise typer.Exit(int(ExitCode.FINDINGS))
