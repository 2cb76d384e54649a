"""What a command is to work on: a tier has commands of its own, which stand in for those of stores.

``read DIR`` of a tier is ``tiered read DIR``, for every command in `OF_TIERS`. Those stay, and are
not listed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rmqctl.commands import REGISTRY, STORE_VARIABLE, CommandSpec

OF_TIERS: dict[tuple[str, ...], CommandSpec] = {
    spec.name[1:]: spec for spec in REGISTRY if spec.name[0] == "tiered" and spec.name[1:] in {
        other.name for other in REGISTRY} and spec.name[1:] != ("recover",)}
"""The command of tiers for each command of stores that there is twice."""


def is_tier(target: str) -> bool:
    """Return whether a path is a tier and no store: a URL, or a folder with a cluster's folder."""
    if "://" in target:
        return True
    with suppress(OSError, ValueError):  # a name that no system takes
        names = set(os.listdir(target))
        if names & {"commitlog", "consumequeue", "config"}:
            return False
        from rmqctl.formats.tiered.names import parse_cluster

        return any(parse_cluster(name) and os.path.isdir(os.path.join(target, name))
                   for name in names)
    return False


def target_of(words: Sequence[str], params: Sequence[Any]) -> str | None:
    """Return the first argument of a command line, else what stands for it in the environment.

    ``params``: of all commands whose options may be among the words.
    """
    with_value = {word for param in params if param.param_type_name == "option"
                  and not param.is_flag and not param.count for word in param.opts}
    before = ""
    for word in words:
        if not word.startswith("-") and before not in with_value:
            return word
        before = word
    return os.environ.get(STORE_VARIABLE)
