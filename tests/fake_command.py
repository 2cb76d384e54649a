"""A rmqctl whose only command is ``fake``, for tests of the program around the commands.

In a test: ``with_command(monkeypatch, SOURCE)``. As a process: ``python -m tests.fake_command FILE
ARGS`` runs the command whose module text is in FILE.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

from rmqctl import cli
from rmqctl.commands import CommandSpec, GroupSpec

_PRELUDE = """
from typing import Annotated, Literal, get_type_hints
import os, signal, sys, time
from datetime import UTC
import typer
from rmqctl.commands.shared.message_options import SelectOptions
from rmqctl.commands.shared.options import *
from rmqctl.parse_values import *
from rmqctl.errors import *
from rmqctl.output import FLUSH, Output

# The options of groups by their fields' names: quiet: Quiet, commitlog_dirs: CommitlogDirs.
for _group in (OutputOptions, StoreOptions, SelectOptions):
    for _name, _hint in get_type_hints(_group, include_extras=True).items():
        globals().setdefault("".join(map(str.title, _name.split("_"))), _hint)
Store = Root
Sample = Annotated[float | None, typer.Option("--sample", parser=parse_percent, help="A share.")]

def open_output(output, quiet=0, verbose=0, no_progress=False):
    return OutputOptions(output=output, quiet=quiet, verbose=verbose,
                         no_progress=no_progress).value()
"""


def install(name: str, source: str, section: str = "Test") -> CommandSpec:
    """Make a module of ``source`` (it defines ``command``) and return its entry in the registry."""
    words = tuple(name.split())
    module = types.ModuleType("rmqctl_fake_" + "_".join(words))
    exec(compile(_PRELUDE + source, f"<{name}>", "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    return CommandSpec(words, module.__name__, f"The fake {name}", "read-only", section)


def with_command(monkeypatch, source: str, *, name: str = "fake", **others: str) -> None:
    """Replace the registry by ``name`` and ``others`` (underscores stand for spaces)."""
    specs = [install(name, source)]
    specs += [install(other.replace("_", " "), text) for other, text in others.items()]
    groups = {spec.name[:-1] for spec in specs if len(spec.name) > 1}
    monkeypatch.setattr(cli, "REGISTRY", tuple(specs))
    monkeypatch.setattr(
        cli, "GROUPS", tuple(GroupSpec(g, f"Group {g[-1]}", "Test") for g in sorted(groups))
    )


if __name__ == "__main__":
    cli.REGISTRY = (install("fake", Path(sys.argv[1]).read_text()),)
    cli.GROUPS = ()
    sys.exit(cli.main(["fake", *sys.argv[2:]]))
