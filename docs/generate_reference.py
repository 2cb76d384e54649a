"""Writes docs/reference.md, and the table of findings in docs/verify.md, from the program itself.

``make docs``, or ``python docs/generate_reference.py``, writes the files; ``--check`` only says
whether they are current. Nothing in the reference is written by hand, so it cannot say what the
program does not do.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import EFFECTS, REGISTRY, CommandSpec
from rmqctl.commands.app.describe import Parameter, parameters
from rmqctl.commands.app.lazy import Command, load
from rmqctl.errors import ExitCode

TARGET = Path(__file__).parent / "reference.md"
VERIFY = Path(__file__).parent / "verify.md"

_HEAD = """\
# Command reference

Written by `make docs` from the program itself; a test fails when the two differ.
"""

_VARIABLES = {
    "RMQCTL_STORE": "the STORE of every command that takes one, when it is left out",
    "RMQCTL_COMMAND_OPTION": "the default of an option ([defaults](defaults.md)): "
    "`RMQCTL_VERIFY_FAIL_ON`, or for all commands `RMQCTL_TZ`",
    "XDG_CONFIG_HOME": "where `rmqctl/config.toml` is, instead of `~/.config`",
    "RMQCTL_LANG": "the language of screens for people, `en` or `zh`, when `--lang` is left out",
    "RMQCTL_DEBUG": "`1` shows the full traceback when rmqctl itself fails (as `-vv` does)",
    "NO_COLOR": "no colours",
    "FORCE_COLOR": "colours in the `table` format although stdout is no terminal",
    "COLUMNS": "width to lay out for, instead of the terminal's",
}


def reference() -> str:
    """The whole file."""
    loaded = {spec: load(spec) for spec in REGISTRY}
    parts = [_HEAD, *_contents(), *_conventions(), *_shared(loaded.values())]
    section = ""
    for spec, command in loaded.items():
        if spec.section != section:
            section = spec.section
            parts.append(f"## {section}\n")
        parts += _command(spec, command)
    return "\n".join(parts).rstrip("\n") + "\n"


def _contents() -> Iterator[str]:
    rows = [
        (f"[`{spec.title}`](#rmqctl-{'-'.join(spec.name)})", spec.effect, spec.help)
        for spec in REGISTRY
    ]
    yield _table(("command", "effect", "does"), rows)


def _conventions() -> Iterator[str]:
    yield "## Exit codes\n"
    yield _table(("code", "meaning"), [(str(int(code)), code.meaning) for code in ExitCode])
    yield "## Effects\n"
    yield _table(("effect", "promise"), EFFECTS.items())
    yield "## Environment\n"
    yield _table(("variable", "does"), [(f"`{k}`", v) for k, v in _VARIABLES.items()])


def _shared(commands: Iterable[Command]) -> Iterator[str]:
    """Options with a panel of their own are shared by many commands and described once."""
    panels: dict[str, dict[str, Parameter]] = {}
    for command in commands:
        for option in parameters(command):
            if option.panel:
                panels.setdefault(option.panel, {})[option.names[0]] = option
    for panel, options in panels.items():
        yield f"## Shared options: {panel}\n"
        yield _options_table(options.values())


def _command(spec: CommandSpec, command: Command) -> Iterator[str]:
    described = list(parameters(command))
    arguments = [p for p in described if p.kind == "argument"]
    options = [p for p in described if p.kind == "option"]
    own = [p for p in options if not p.panel]
    yield f"### `rmqctl {spec.title}`\n"
    usage = " ".join(["rmqctl", *spec.name, "[OPTIONS]", *map(_usage, arguments)])
    yield f"```\n{usage}\n```\n"
    yield f"Effect: **{spec.effect}**.\n"
    yield from _prose(command.help or "")
    if arguments:
        rows = [(f"`{_usage(p)}`", _remarks(p)) for p in arguments]
        yield _table(("argument", ""), rows)
    if own:
        yield _options_table(own)
    shared: dict[str, list[str]] = {}
    for option in options:
        if option.panel:
            shared.setdefault(option.panel, []).append(f"`{option.names[0]}`")
    for panel, names in shared.items():
        yield f"{panel}: {', '.join(names)}.\n"


def _usage(argument: Parameter) -> str:
    name = (argument.value_name or "") + ("..." if argument.repeatable else "")
    return name if argument.required else f"[{name}]"


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of a docstring; indented ones become code blocks."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        lines = paragraph.splitlines()
        if all(line[:1].isspace() for line in lines):
            yield "```\n" + "\n".join(line.strip() for line in lines) + "\n```\n"
        else:
            yield paragraph + "\n"


def _options_table(options: Iterable[Parameter]) -> str:
    rows = []
    for option in options:
        value = f" {option.value_name}" if option.value_name else ""
        spelled = ", ".join(f"`{name}{value if name.startswith('--') else ''}`"
                            for name in option.names)
        rows.append((spelled, _default(option), _remarks(option)))
    return _table(("option", "default", ""), rows)


def _default(option: Parameter) -> str:
    if option.required:
        return "required"
    if option.default in (None, False) or option.type == "count":
        return ""
    return f"`{option.default}`"


def _remarks(described: Parameter) -> str:
    extra = []
    if described.choices and described.metavar:
        extra.append("One of " + ", ".join(f"`{choice}`" for choice in described.choices) + ".")
    if described.env:
        extra.append(f"Environment: `{described.env}`.")
    return " ".join([" ".join(described.help.split()), *extra])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] * len(titles)]
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def findings_page(page: str) -> str:
    """docs/verify.md with the table of findings between its two marks as the program has it."""
    begin, end = "<!-- findings: written by make docs -->\n", "<!-- end of findings -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{VERIFY.name} has lost the marks around its table of findings")
    rows = [(f"`{name}`", severity, meaning) for name, (severity, meaning, _) in CATEGORIES.items()]
    return head + begin + _table(("category", "severity", "meaning"), rows) + end + tail


def main(arguments: list[str]) -> int:
    """Write the files; with ``--check`` compare them and return 1 when one is out of date."""
    made = {TARGET: reference(), VERIFY: findings_page(VERIFY.read_text(encoding="utf-8"))}
    stale = 0
    for path, text in made.items():
        current = path.exists() and path.read_text(encoding="utf-8") == text
        if "--check" in arguments:
            print(f"{path.name} is {'current' if current else 'out of date: run make docs'}")
            stale += not current
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{path.name}")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
