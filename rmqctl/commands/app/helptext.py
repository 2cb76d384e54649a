"""Layout of the help: the same plain text on every output, with coloured headings on a terminal.

To keep ``--help`` fast, this module imports neither rich nor the libraries that commands use.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rmqctl.commands.app.coerce import use_light_coercion
from rmqctl.commands.app.describe import Parameter, parameter, parameters

_HEADING = re.compile(
    r"^(Usage|[A-Z][^:\n]*|[^\s\uff1a]+)(:(?=\n| rmqctl)|: |\uff1a(?=\n|rmqctl))", re.MULTILINE)
_OPTIONS = "Options"
_EXAMPLE = "    "
COMMON_PANELS = (
    "Output", "Message display", "Store layout", "Applying the plan",
    "The broker's configuration", "Commitlog writing", "Spark", "Scheduled runs",
    "Client limits", "Tier layout", "Local store")
"""Panels of options that many commands have, or that few people need. The help of a command omits
these panels; `help options` lists them.
"""
_COMMON = {"--tz", "--jobs", "--help", "--dry-run", "--write-outside"}
_OWN = {"--apply"}


class HelpRequest(NamedTuple):
    """The context object that help reads: the words of the command line, and whether to show all
    options of a command.
    """

    words: tuple[str, ...] = ()
    all_options: bool = False


class HelpMixin:
    """Mixin for a typer command or group, with the methods that write help."""

    params: Any
    help: str | None

    #: Commands to list below the options: those of a group; its default command lists them, too.
    listed: Mapping[str, Any] = MappingProxyType({})

    def get_help_option(self, ctx: Any) -> Any:
        """Return the ``--help`` option. Its text can only be changed here, because typer creates
        the option itself.
        """
        option = super().get_help_option(ctx)  # type: ignore[misc]
        use_light_coercion([option])
        return option

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line. For the default command of a group, the line contains only the
        group's name.
        """
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, such as ``[OPTIONS] STORE [MSGID]``."""
        pieces = ["[OPTIONS]"]
        for param in self.params:
            if param.param_type_name == "argument":
                described = parameter(param)
                name = described.value_name or described.names[0]
                name += "..." if described.repeatable else ""
                pieces.append(name if described.required else f"[{name}]")
        return pieces

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring as help text. Paragraphs are filled; indented paragraphs are examples
        with one command per line.
        """
        for paragraph in re.split(r"\n[ \t]*\n", self.help or ""):
            formatter.write_paragraph()
            if all(line[:1].isspace() for line in paragraph.splitlines()):
                from rmqctl.output.cells import folded_command

                for line in textwrap.dedent(paragraph).splitlines():
                    example = folded_command(line, formatter.width - len(_EXAMPLE))
                    formatter.write(textwrap.indent("\n".join(example), _EXAMPLE) + "\n")
            else:
                with formatter.indentation():
                    formatter.write_text(" ".join(paragraph.split()))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options by panel, and the commands of a group by section.

        Common options are omitted unless all options are requested.
        """
        shows_all = not hasattr(self, "spec") or _request(ctx).all_options
        has_more = False
        arguments: list[tuple[str, str]] = []
        panels: dict[str, list[tuple[str, str]]] = {_OPTIONS: []}
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(param, "hidden", False):
                continue
            described = parameter(param)
            if described.kind == "argument":
                arguments.append((described.value_name or "", _remarks(described)))
            elif shows_all or not is_common(described):
                panel = panels.setdefault(described.panel or _OPTIONS, [])
                panel.append((_spelling(described), _remarks(described)))
            else:
                has_more = True
        if arguments:
            _section(formatter, "Arguments", arguments)
        for name, rows in panels.items():
            if rows:
                _section(formatter, name, rows)
        if has_more:
            formatter.write_paragraph()
            formatter.write("Common options: rmqctl help options\n")
        self.format_command_list(ctx, formatter)

    def format_command_list(self, ctx: Any, formatter: Any) -> None:
        """Write the listed commands under the headings of their sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.listed.items():
            sections.setdefault(command.rich_help_panel or "Commands", []).append(
                (name, command.short_help or "")
            )
        for title, rows in sections.items():
            _section(formatter, title if len(sections) > 1 else "Commands", rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        epilog = getattr(self, "epilog", None)
        if epilog:
            formatter.write_paragraph()
            formatter.write_text(epilog)

    def get_help(self, ctx: Any) -> str:
        """Return the complete help; its headings are bold when stdout is a terminal that shows
        colour.
        """
        formatter = formatter_of(ctx)
        self.format_help(ctx, formatter)  # type: ignore[attr-defined]
        text: str = formatter.getvalue().rstrip("\n")
        if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
            return text
        return _HEADING.sub(lambda m: f"\x1b[1m{m.group(1)}\x1b[0m{m.group(2)}", text)


def _request(ctx: Any) -> HelpRequest:
    request = ctx.find_root().obj
    return request if isinstance(request, HelpRequest) else HelpRequest()


def formatter_of(ctx: Any) -> Any:
    """Return the formatter for help: typer's, or `SpokenHelp` for a language other than English."""
    from rmqctl.output.language import ENGLISH, requested

    formatter = ctx.make_formatter()
    request = ctx.find_root().obj
    if not isinstance(request, HelpRequest):  # no user's command line
        return formatter
    spoken = requested(request.words, os.environ)
    if spoken.name == ENGLISH:
        return formatter
    from rmqctl.commands.app.spoken_help import SpokenHelp

    return SpokenHelp(spoken, formatter.width)


def is_common(described: Parameter) -> bool:
    """Return whether an option is omitted from the help of commands and shown only by `help
    options`.
    """
    names = set(described.names)
    return described.kind == "option" and not described.required and not names & _OWN and (
        described.panel in COMMON_PANELS or bool(names & _COMMON))


def common_options(formatter: Any, commands: Iterable[Any]) -> str:
    """Return the page of `help options`: each common option once.

    The description of an option is that of the first command that has the option.
    """
    names = (*COMMON_PANELS, _OPTIONS)
    panels: dict[str, dict[str, tuple[str, str]]] = {name: {} for name in names}
    for command in commands:
        for described in parameters(command):
            if is_common(described):
                rows = panels[described.panel or _OPTIONS]
                rows.setdefault(described.names[0], (_spelling(described), _remarks(described)))
    formatter.write_text("Options that several commands share. Run rmqctl help options COMMAND for "
                         "all options of a command.")
    for title, rows in panels.items():
        _section(formatter, title, list(rows.values()))
    text: str = formatter.getvalue()
    return text.rstrip("\n")


def _section(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    with formatter.section(title):
        formatter.write_dl(rows)


def _spelling(described: Parameter) -> str:
    """Return the names and the value of an option for help, such as ``-o, --output FORMAT``."""
    names = sorted(described.names, key=lambda name: (name.startswith("--"), name))
    value = described.value_name
    return ", ".join(names) + (f" {value}" if value else "")


def _remarks(described: Parameter) -> str:
    """Return the help of a parameter, followed by its choices, variable and default in brackets."""
    extra = []
    if described.choices is not None and described.metavar:
        extra.append("one of: " + ", ".join(described.choices))
    if described.env:
        extra.append(f"env: {described.env}")
    if described.default not in (None, False, 0) or (
        described.default == 0 and described.type == "integer"
    ):
        extra.append(f"default: {described.default}")
    if described.required and described.kind == "option":
        extra.append("required")
    return f"{described.help}  [{'; '.join(extra)}]" if extra else described.help
