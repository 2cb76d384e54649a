"""Write docs/reference/README.md, docs/reference/schema.md and the table of findings in
docs/explanation/verify.md.

``make docs``, or ``python docs/generate_reference.py``, writes the files; ``--check`` only says
whether they are current. Nothing in the reference is written by hand, so it cannot say what the
program does not do.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import EFFECTS, REGISTRY, CommandSpec
from rmqctl.commands.app.describe import Parameter, parameters
from rmqctl.commands.app.lazy import Command, load
from rmqctl.errors import ExitCode

DOCS = Path(__file__).parent
TARGET = DOCS / "reference" / "README.md"
VERIFY = DOCS / "explanation" / "verify.md"
SCHEMA = DOCS / "reference" / "schema.md"

_HEAD = """\
# Command reference

Written by `make docs` from the program itself; a test fails when the two differ.
"""

#: An argument or option that so many commands describe alike is described once.
_SHARED_BY = 4
_GENERAL = "General"

Row = tuple[str, ...]

_VARIABLES = {
    "RMQCTL_STORE": "the STORE of every command that takes one, when it is left out",
    "RMQCTL_COMMAND_OPTION": "the default of an option ([defaults](defaults.md)): "
    "`RMQCTL_VERIFY_FAIL_ON`, or for all commands `RMQCTL_TZ`",
    "XDG_CONFIG_HOME": "where `rmqctl/config.toml` is, instead of `~/.config`",
    "RMQCTL_LANG": "the language of screens for people, `en` or `zh`, when `--lang` is left out",
    "RMQCTL_DEBUG": "`1` shows the full traceback when rmqctl itself fails (as `-vv` does)",
    "NO_COLOR": "no colours",
    "FORCE_COLOR": "colours in the `table` format although stdout is not a terminal",
    "COLUMNS": "width to lay out for, instead of the terminal's",
}


def reference() -> str:
    """The whole file."""
    loaded = {spec: load(spec) for spec in REGISTRY}
    common = _common(loaded.values())
    parts = [_HEAD, *_contents(), *_conventions(), *_shared(loaded.values(), common)]
    section = ""
    for spec, command in loaded.items():
        if spec.section != section:
            section = spec.section
            parts.append(f"## {section}\n")
        parts += _command(spec, command, common)
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


def _common(commands: Iterable[Command]) -> dict[str, Row]:
    """Return by name what many commands describe alike: the most frequent row of each name."""
    rows = Counter((p.names[0], _row(p)) for command in commands for p in parameters(command)
                   if not p.panel)
    common: dict[str, Row] = {}
    for (name, row), count in rows.most_common():
        if count >= _SHARED_BY:
            common.setdefault(name, row)
    return common


def _shared(commands: Iterable[Command], common: dict[str, Row]) -> Iterator[str]:
    """Options with a panel of their own, and what many commands have, are described once."""
    yield f"## Shared options: {_GENERAL}\n"
    yield _table(("name", "default", ""), sorted(common.values()))
    panels: dict[str, dict[str, Parameter]] = {}
    for command in commands:
        for option in parameters(command):
            if option.panel:
                panels.setdefault(option.panel, {})[option.names[0]] = option
    for panel, options in panels.items():
        yield f"## Shared options: {panel}\n"
        yield _options_table(options.values())


def _command(spec: CommandSpec, command: Command, common: dict[str, Row]) -> Iterator[str]:
    described = list(parameters(command))
    arguments = [p for p in described if p.kind == "argument"]
    options = [p for p in described if p.kind == "option"]
    own = [p for p in options if not p.panel]
    yield f"### `rmqctl {spec.title}`\n"
    usage = " ".join(["rmqctl", *spec.name, "[OPTIONS]", *map(_usage, arguments)])
    yield f"```\n{usage}\n```\n"
    yield f"Effect: **{spec.effect}**.\n"
    yield from _prose(command.help or "")
    for title, group in (("argument", arguments), ("option", own)):
        if rows := [_row(p) for p in group if _row(p) != common.get(p.names[0])]:
            yield _table((title, "default", ""), rows)
    shared: dict[str, list[str]] = {}
    if names := [f"`{p.names[0]}`" for p in arguments + own if _row(p) == common.get(p.names[0])]:
        shared[_GENERAL] = names
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
    return _table(("option", "default", ""), map(_row, options))


def _row(described: Parameter) -> Row:
    """Return the cells of an argument or option."""
    if described.kind == "argument":
        return f"`{_usage(described)}`", "", _remarks(described)
    value = f" {described.value_name}" if described.value_name else ""
    spelled = ", ".join(f"`{name}{value if name.startswith('--') else ''}`"
                        for name in described.names)
    return spelled, _default(described), _remarks(described)


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
    """docs/explanation/verify.md with the table of findings between its two marks."""
    begin, end = "<!-- findings: written by make docs -->\n", "<!-- end of findings -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{VERIFY.name} has lost the marks around its table of findings")
    rows = [(f"`{name}`", severity, meaning) for name, (severity, meaning, _) in CATEGORIES.items()]
    return head + begin + _table(("category", "severity", "meaning"), rows) + end + tail


_SCHEMA_HEAD = """\
# Tables and columns

Written by `make docs` from the one declaration of the schema; a test fails when the two differ.
`rmqctl export`, `rmqctl sql`, `rmqctl pipeline`, the Spark source `rocketmq` and `rmqctl.open`
(`to_arrow`, `to_pandas`, `to_polars`) have these columns, in this order, with these names and
types. Parquet and Arrow files have `schema_version` {version} in their metadata, and the comments
of the columns.

{types}
Times are UTC. SQL and Spark have them in microseconds, and show null for a time outside the years
1 to 9999 (only damage makes one); exports and `rmqctl.open` keep the stored value. A condition
compares times with times: `store_timestamp > '2024-06-21'`. For milliseconds write
`epoch_ms(store_timestamp) > 1718928000000` in `rmqctl sql`, and
`unix_millis(store_timestamp) > 1718928000000` in Spark. Message objects (`read -o json`, iteration
in Python) have times in milliseconds since 1970.

Every column is nullable in type. A value is null only where the table says so. Text that is not
UTF-8 has U+FFFD in it; the column `record` keeps the bytes.
"""
_ON_SPARK = "Only in `rmqctl pipeline sql` and Spark."
_TABLES = {
    "messages": """\
Every intact record of the log, whether a consume queue entry points to it or not. A record whose
body does not match its CRC is included, with `crc_ok` false. `rmqctl.open` leaves `store` and
`file` out.""",
    "frames": f"Every byte of the log, in frames, damaged ones too. {_ON_SPARK}",
    "consumequeue": """\
The entries in use, of light queues (LMQ) too; of a batch consume queue one row for each batch.""",
    "index": "The entries of the index files.",
    "tiered_messages": f"""\
The messages of a tier that a consume queue entry points to. {_ON_SPARK}
`physical_offset` is the offset in the tiered commit log of the queue, and `msg_id` is made of it:
it is not the id that the broker returned. The other columns are those of `messages`:""",
    "offsets": "The rows of `rmqctl offsets`. Only in `rmqctl sql`.",
    "findings": "The findings of `rmqctl verify`. Only in `rmqctl sql`.",
}


def schema_page() -> str:
    """docs/reference/schema.md: every table with its columns."""
    from rmqctl.scan import tables
    from rmqctl.sql.query_needs import COLUMNS
    from rmqctl.sql.schema import TABLES

    types = {
        "int32": ("INTEGER", "int"), "int64": ("BIGINT", "bigint"), "bool": ("BOOLEAN", "boolean"),
        "string": ("VARCHAR", "string"), "binary": ("BLOB", "binary"),
        "timestamp[ms, UTC]": ("TIMESTAMP WITH TIME ZONE", "timestamp"),
        "list<string>": ("VARCHAR[]", "array<string>"),
        "map<string, string>": ("MAP(VARCHAR, VARCHAR)", "map<string,string>"),
    }
    head = _table(("Arrow, Parquet", "DuckDB (`rmqctl sql`)", "Spark"),
                  ([f"`{name}`" for name in (arrow, *others)] for arrow, others in types.items()))
    parts = [_SCHEMA_HEAD.format(version=tables.VERSION, types=head)]
    known = TABLES | COLUMNS
    for name, about in _TABLES.items():
        columns = known[name].values()
        if name == "tiered_messages":
            columns = (tables.PLACE | tables.OWNER).values()
        rows = []
        for column in columns:
            kind = str(column.type).replace("tz=", "").replace("element: ", "")
            assert kind in types, kind
            comment, _, null = tables.comment_of(column).partition("; null: ")
            rows.append((f"`{column.name}`", f"`{kind}`", null, comment))
        parts.append(f"## `{name}`\n\n{about}\n\n" + _table(
            ("column", "type", "null", "meaning"), rows))
    rows = ((f"`{one.name}`", f"`{one.type}`", tables.comment_of(one))
            for one in tables.PROVENANCE.values())
    parts.append("## `export --provenance`\n\n" + _table(("column", "type", "meaning"), rows))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the files; with ``--check`` compare them and return 1 when one is out of date."""
    made = {TARGET: reference(), VERIFY: findings_page(VERIFY.read_text(encoding="utf-8")),
            SCHEMA: schema_page()}
    stale = 0
    for path, text in made.items():
        current = path.exists() and path.read_text(encoding="utf-8") == text
        if "--check" in arguments:
            state = "current" if current else "out of date: run make docs"
            print(f"{path.relative_to(DOCS)} is {state}")
            stale += not current
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{path.relative_to(DOCS)}")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
