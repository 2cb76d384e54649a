"""Typer groups for the registry, which list their commands without importing the modules.

A group contains a placeholder for each command, with its name and one line of help. The command's
module is imported only to run the command, to complete its words, or to show its help.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer
import typer.core
import typer.main

from rmqctl import vfs
from rmqctl.commands import EFFECTS, REGISTRY, STORE_VARIABLE, CommandSpec, GroupSpec
from rmqctl.commands.app.coerce import use_light_coercion
from rmqctl.commands.app.helptext import HelpMixin
from rmqctl.commands.app.option_groups import spelled_out
from rmqctl.commands.app.targets import OF_TIERS, is_tier, refuse_elsewhere, shown, target_of
from rmqctl.errors import UsageError
from rmqctl.output.core import say

if TYPE_CHECKING:
    from rmqctl.commands.app.defaults import Default

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


# A group puts this before the words for its default command; users cannot type it.
_DEFAULT = "\0"
_PLACES = {"--from", "--out", "--commitlog-dir"}
"""Options whose value may be a URL."""
_YOUNG = 10_000
"""Number of new objects after which Python's garbage collector searches for reference cycles.
Reading a store may create millions of objects.
"""


class RmqctlCommand(HelpMixin, typer.core.TyperCommand):
    """A command of rmqctl. Its help states what it does to the store. RMQCTL_STORE may supply its
    argument STORE.
    """

    spec: CommandSpec
    _defaults: Mapping[str, Default] = MappingProxyType({})

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command; if STORE is omitted, insert RMQCTL_STORE as the first
        argument.

        typer assigns words from left to right, so in ``query id MSGID`` it takes MSGID for STORE.
        The line is therefore parsed again, with RMQCTL_STORE as the *first* argument, in two cases:

        * The line as typed cannot be parsed.
        * The next argument is missing, and the word in the position of STORE is a valid value for
          it (``config topics``, ``query offset 7``).
        """
        if ctx.resilient_parsing and self._wants_a_value(args[-1:]):
            args = args[:-1]  # a shell completes its value: without it, the line cannot be parsed
        original = list(args)
        if not ctx.resilient_parsing and not {"-h", "--help"} & set(args):
            refuse_elsewhere(self.spec, target_of(args, self.params))
            from rmqctl.commands.app.defaults import defaults_of

            try:
                self._defaults = defaults_of(self.spec, self.params, ctx, REGISTRY)
            except UsageError as error:
                error.add_note(ctx.command_path)
                raise
            ctx.default_map = {name: default.value for name, default in self._defaults.items()}
        store: Any = next((p for p in self.params if p.envvar == STORE_VARIABLE), None)
        fallback = os.environ.get(STORE_VARIABLE)
        try:
            unparsed = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            blamed = error.param
            if blamed is not None and blamed is store:  # text needs no conversion: it is missing
                missing = UsageError(
                    f"Missing argument {blamed.metavar!r}: name a store, or set {STORE_VARIABLE}"
                )
                missing.add_note(ctx.command_path)
                raise missing from None
            if store is None or not fallback:
                raise
            if blamed is None or blamed.param_type_name != "argument":
                raise
            try:
                return super().parse_args(ctx, [fallback, *original])
            except typer.TyperException:
                raise error from None
        if store is not None and fallback and self._took_a_value_for_store(ctx, store):
            return super().parse_args(ctx, [fallback, *original])
        return unparsed

    def _wants_a_value(self, words: list[str]) -> bool:
        return any(word in param.opts and not param.is_flag and not param.count
                   for word in words for param in self.params
                   if param.param_type_name == "option")

    def _took_a_value_for_store(self, ctx: Any, store: Any) -> bool:
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        following = arguments[arguments.index(store) + 1 :]
        if not following or ctx.get_parameter_source(following[0].name).name == "COMMANDLINE":
            return False
        descriptor = getattr(following[0], "type_descriptor", None)
        taken = ctx.params.get(store.name)
        parser = getattr(getattr(descriptor, "parameter_info", None), "parser", None)
        if parser is None:
            return taken in (getattr(descriptor, "choices", None) or ())
        with contextlib.suppress(UsageError):
            return parser(taken) is not None and not os.path.exists(taken)
        return False

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Add the command's name to a usage error that the command raises."""
        for param in self.params:
            if param.param_type_name == "argument" or _PLACES.intersection(param.opts):
                ctx.params[param.name] = shown(ctx.params[param.name])
            if "--commitlog-dir" in param.opts:
                for folder in ctx.params[param.name] or ():
                    refuse_elsewhere(self.spec, folder)
        if ctx.params.get("out_verbose") and self._defaults:
            from rmqctl.commands.app.defaults import key_of

            for param in self.params:
                if ctx.get_parameter_source(param.name).name == "DEFAULT_MAP":
                    say(f"rmqctl: --{key_of(param)} is set in {self._defaults[param.name].origin}",
                        sys.stderr)
        if not gc.isenabled():  # see rmqctl.__main__
            gc.freeze()
            gc.set_threshold(_YOUNG)
            gc.enable()
        try:
            result = super().invoke(ctx)
        except UsageError as error:
            error.add_note(ctx.command_path)
            raise
        except typer.Exit:
            vfs.raise_failure()
            raise
        vfs.raise_failure()
        return result


class Placeholder(typer.core.TyperCommand):
    """Stand-in for a command in a group's list; the command's module is not imported yet."""

    def __init__(self, spec: CommandSpec) -> None:
        super().__init__(
            spec.name[-1],
            help=spec.help,
            short_help=spec.help,
            rich_markup_mode=None,
            rich_help_panel=spec.section,
            hidden=spec in OF_TIERS.values(),
        )
        self.spec = spec


class CommandGroup(HelpMixin, typer.core.TyperGroup):
    """A group whose commands are imported when they are used.

    ``default``: the command to run if the first word after the group's name is not a sub-command,
    such as ``recover STORE`` beside ``recover table STORE``.
    """

    default: CommandSpec | None = None

    @property
    def listed(self) -> Mapping[str, Any]:  # type: ignore[override]  # computed here
        return {name: command for name, command in self.commands.items() if not command.hidden}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "COMMAND [ARGS]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the group's name; if there are none, show the help and exit.

        ``rmqctl`` alone prints the help to stdout, because a person wants an overview. A group
        alone, such as ``rmqctl query``, is a usage error with the help on stderr, because a script
        has probably lost the rest of its command line.
        """
        if not args and not ctx.resilient_parsing:
            is_program = ctx.parent is None
            typer.echo(self.get_help(ctx), err=not is_program)
            raise typer.Exit(0 if is_program else 2)
        if self.default is not None and args and args[0] not in self.commands:
            args = ["--", _DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # A group with a default command takes words that name none of its commands as arguments.
        if self.default is not None and args[0] == _DEFAULT:
            default = load(self.default)
            default.listed = self.commands
            return None, default, args[1:]
        # Only an unknown top-level word can be a command name of mqadmin.
        if ctx.parent is None and args[0] not in self.commands:
            from rmqctl.commands.app.aliases import find

            alias = find(args[0])
            if alias is not None:
                spec = next(spec for spec in REGISTRY if spec.name == alias.command)
                try:
                    words, note = alias.words(args[1:])
                except UsageError as error:
                    error.add_note(" ".join([ctx.command_path, *alias.command]))
                    raise
                if note is not None:
                    say(note, sys.stderr)
                return args[0], load(spec), words
        # For a mistyped name, suggest similar commands that change nothing.
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except typer.TyperException as error:
            near = difflib.get_close_matches(args[0], self._harmless(ctx))
            if near:
                error.message = (f"{error.message.rstrip('.')}. Did you mean "
                                 f"{', '.join(map(repr, near))}?")
            raise
        # Load the command itself only now; a tier as the target selects the command for tiers.
        if isinstance(command, Placeholder):
            command, rest = _for_target(load(command.spec), rest)
        return name, command, rest

    def _harmless(self, ctx: Any) -> list[str]:
        """Return the command names that may be suggested for a mistyped name.

        Users paste a suggestion without checking it, so a command that changes a store is never
        suggested.
        """
        from rmqctl.commands.app.aliases import named

        others = [] if ctx.parent else list(named())
        return [name for name, command in self.commands.items()
                if not _may_mutate(command)] + others


def _may_mutate(command: Any) -> bool:
    """Return whether a command may change a store. A group may if its default command may, or if
    all of its commands may.
    """
    if isinstance(command, CommandGroup):
        default = command.default
        return (default is not None and default.effect == "mutates") or all(
            map(_may_mutate, command.commands.values()))
    return isinstance(command, Placeholder) and command.spec.effect == "mutates"


def _for_target(command: RmqctlCommand, words: list[str]) -> tuple[RmqctlCommand, list[str]]:
    """Return (command, words). If ``words`` name a tier, these are the corresponding tier command
    and its words; else the arguments unchanged.
    """
    spec = OF_TIERS.get(command.spec.name)
    if {"-h", "--help"} & set(words):
        return command, words
    if spec is None:
        return command, words
    params = list(command.params)
    option_names = {name for param in params for name in param.opts}
    if any(word.startswith("-") and word.partition("=")[0] not in option_names for word in words):
        params += load(spec).params
    first = target_of(words, params)
    if first is None or not is_tier(first):
        return command, words
    return load(spec), words if first in words else [first, *words]


def load(spec: CommandSpec) -> RmqctlCommand:
    """Import a command's module and return the typer command."""
    module = importlib.import_module(spec.module)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(
        name=spec.name[-1],
        cls=RmqctlCommand,
        short_help=spec.help,
        epilog=f"Effect: {spec.effect}: {_promise(spec)}.",
        context_settings=dict(CONTEXT_SETTINGS),
    )(spelled_out(module.command))
    command: Any = typer.main.get_command(app)
    assert isinstance(command, RmqctlCommand)
    command.spec = spec
    use_light_coercion(command.params)
    return command


def fill(root: CommandGroup, registry: Iterable[CommandSpec], groups: Iterable[GroupSpec]) -> None:
    """Add a placeholder for each command of ``registry`` to ``root``, or to a group in ``root``."""
    group_by_name: dict[tuple[str, ...], CommandGroup] = {(): root}
    described = {group.name: group for group in groups}

    def group_of(name: tuple[str, ...]) -> CommandGroup:
        if name not in group_by_name:
            group_by_name[name] = _group(described[name])
            group_of(name[:-1]).add_command(group_by_name[name])
        return group_by_name[name]

    for spec in registry:
        if spec.name in described:
            group_of(spec.name).default = spec
        else:
            group_of(spec.name[:-1]).add_command(Placeholder(spec))


def _promise(spec: CommandSpec) -> str:
    if spec.name[0] == "tiered" and spec.effect == "mutates":
        return "changes DIR, and the metadata and index files in its broker's local root"
    return EFFECTS[spec.effect]


def _group(spec: GroupSpec) -> CommandGroup:
    return CommandGroup(
        name=spec.name[-1],
        hidden=spec.name == ("tiered", "query"),
        help=spec.help,
        short_help=spec.help,
        rich_markup_mode=None,
        rich_help_panel=spec.section,
        context_settings=dict(CONTEXT_SETTINGS),
        suggest_commands=False,
    )
