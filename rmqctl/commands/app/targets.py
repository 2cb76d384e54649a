"""The target of a command: a store, or a tier, for which the corresponding tier command runs.

If DIR is a tier, ``read DIR`` runs ``tiered read DIR``. The same applies to every command in
`OF_TIERS`. The tier commands can also be typed, but are not listed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rmqctl import vfs
from rmqctl.commands import REGISTRY, STORE_VARIABLE, CommandSpec
from rmqctl.errors import RefusedError, RmqctlError

OF_TIERS: dict[tuple[str, ...], CommandSpec] = {
    spec.name[1:]: spec for spec in REGISTRY if spec.name[0] == "tiered" and spec.name[1:] in {
        other.name for other in REGISTRY} and spec.name[1:] != ("recover",)}
"""The tier command that corresponds to each store command, by the name of the store command."""


_OF_THE_DISK = {("du",), ("retention",), ("dump",), ("browse",)}
_READERS = {("export",), ("report",), ("pipeline", "export"), ("pipeline", "sql")}
"""Commands that only read the store that their first argument names, and write elsewhere."""
_NO_STORES = {"tiered", "restore", "carve", "case"}
"""First words of the commands whose first argument is not a store."""
_WITH_PASSWORD = re.compile(r"[\w+.:-]+://[^/@\s]*:[^@\s]*@")
"""Start of a URL that may contain a password."""
_MARKS = {"commitlog", "consumequeue", "config", "index", "checkpoint"}


def is_tier(target: str) -> bool:
    """Return whether ``target`` is a tier and not a store: the URL of a tier, or a folder that
    contains the folder of a cluster but no store structures.
    """
    if "://" in target and vfs.archive_of(target) is None:
        return _is_tier_at(target)
    with suppress(OSError, ValueError):  # not a valid file name
        names = set(os.listdir(target))
        if names & _MARKS:
            return False
        from rmqctl.formats.tiered.names import parse_cluster

        return any(parse_cluster(name) and os.path.isdir(os.path.join(target, name))
                   for name in names)
    return False


def _is_tier_at(url: str) -> bool:
    """Return whether a URL is the root of a tier; True if the URL cannot be read."""
    from rmqctl.files.remote.reader import RemoteReader
    from rmqctl.formats.tiered.names import parse_cluster

    with suppress(RmqctlError), RemoteReader(url) as remote:
        return any(parse_cluster(entry.name) for entry in remote.list("") if entry.is_folder)
    return True


def refuse_elsewhere(spec: CommandSpec, target: str | None) -> None:
    """Raise RefusedError if ``target`` is a URL or in an archive, but the command needs a local
    store.

    A command needs a local store if it changes the store, or if it works only on a local disk.
    """
    if target is None or spec.name[0] in _NO_STORES or not vfs.is_elsewhere(target):
        return
    name = " ".join(spec.name)
    if spec.name in _OF_THE_DISK or (spec.effect != "read-only" and spec.name not in _READERS):
        from rmqctl.files.remote.reader import without_secrets

        named = shlex.quote(without_secrets(target))
        raise RefusedError(f"{without_secrets(target)}: `rmqctl {name}` requires a local store; "
                           f"`rmqctl restore {named} FOLDER` copies it into a folder")


def shown(value: Any) -> Any:
    """Return an argument's value with the passwords in URLs hidden, for display."""
    if isinstance(value, list | tuple):
        return type(value)(map(shown, value))
    if isinstance(value, str) and _WITH_PASSWORD.match(value):
        from rmqctl.files.remote.reader import hide

        return hide(value)
    return value


def target_of(words: Sequence[str], params: Sequence[Any]) -> str | None:
    """Return the first argument in the ``words`` of a command line, else the value of RMQCTL_STORE.
    ``params``: the parameters of every command whose options may be among the words.
    """
    with_value = {word for param in params if param.param_type_name == "option"
                  and not param.is_flag and not param.count for word in param.opts}
    before = ""
    for word in words:
        if not word.startswith("-") and before not in with_value:
            return word
        before = word
    return os.environ.get(STORE_VARIABLE)
