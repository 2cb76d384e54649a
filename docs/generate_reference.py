"""Write the generated pages of the reference: commands, findings, formats, and the schema.

``make docs``, or ``python docs/generate_reference.py``, writes them below docs/reference. Git
ignores all but schema.md, for which ``--check`` says whether it is current. Only docs/formats.toml
is written by hand, so the pages cannot say what the program does not do.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import EFFECTS, REGISTRY, CommandSpec
from rmqctl.commands.app.describe import Parameter, parameters
from rmqctl.commands.app.lazy import RmqctlCommand, load
from rmqctl.errors import ExitCode

DOCS = Path(__file__).parent
FOLDER = DOCS / "reference"
SCHEMA = FOLDER / "schema.md"
FORMATS = DOCS / "formats.toml"
#: Folders of `FOLDER` that this program writes, and Git ignores.
GENERATED = ("commands", "findings", "formats")

_HEAD = "# Command reference\n"

#: An argument or option that so many commands describe alike is described once.
_SHARED_BY = 4
_GENERAL = "General"
_SHARED = "Shared options: "

Row = tuple[str, ...]

_VARIABLES = {
    "RMQCTL_STORE": "the STORE of a command, if it is omitted",
    "RMQCTL_COMMAND_OPTION": "the default of an option (see [defaults](defaults.md)), for example "
    "`RMQCTL_VERIFY_FAIL_ON`; `RMQCTL_TZ`, without a command, applies to all commands",
    "XDG_CONFIG_HOME": "where `rmqctl/config.toml` is, instead of `~/.config`",
    "RMQCTL_LANG": "the language of screens, help and errors, `en` or `zh`, if `--lang` is "
                   "omitted",
    "RMQCTL_DEBUG": "`1` shows the full traceback when rmqctl itself fails (as `-vv` does)",
    "NO_COLOR": "no colours",
    "FORCE_COLOR": "colours in the `table` format even if stdout is not a terminal",
    "COLUMNS": "width to lay out for, instead of the terminal's",
}


def reference() -> str:
    """Return all commands in one text, from which docs/manpages.py makes the manual pages."""
    loaded = {spec: load(spec) for spec in REGISTRY}
    common = _common(loaded.values())
    parts = [_HEAD, _contents(), *conventions(), *_shared(loaded.values(), common)]
    section = ""
    for spec, command in loaded.items():
        if spec.section != section:
            section = spec.section
            parts.append(f"## {section}\n")
        parts += _command(spec, command, common)
    return _page(parts)


def pages() -> dict[str, str]:
    """Return every generated page below `FOLDER` that Git ignores, by its path."""
    named = {"commands": command_pages(), "findings": finding_pages(), "formats": format_pages()}
    return {f"{folder}/{name}.md": text for folder, texts in named.items()
            for name, text in texts.items()}


def _page(parts: Iterable[str]) -> str:
    return "\n".join(parts).rstrip("\n") + "\n"


# -- commands -------------------------------------------------------------------------------------


def command_pages() -> dict[str, str]:
    """Return a page for each command; the commands of a group share a page."""
    loaded = {spec: load(spec) for spec in REGISTRY}
    common = _common(loaded.values())
    page_parts: dict[str, list[str]] = {}
    for spec, command in loaded.items():
        name = spec.name[0]
        if name not in page_parts:
            page_parts[name] = [f"# `rmqctl {name}`\n"]
        heading, *parts = map(_with_links, _command(spec, command, common))
        page_parts[name] += [heading.replace("#", "", 1), *parts] if len(spec.name) > 1 else parts
    index = ["# Commands\n", _contents(lambda spec: f"{spec.name[0]}.md" + (
        f"#rmqctl-{'-'.join(spec.name)}" if len(spec.name) > 1 else ""))]
    index += _shared(loaded.values(), common)
    return {"README": _page(index), **{name: _page(parts) for name, parts in page_parts.items()}}


def _with_links(part: str) -> str:
    """Link the names of shared options to their table on the index page."""
    match = re.match(r"([A-Z][^:`\n]*): (`[^\n]*`\.\n)", part)
    if not match:
        return part
    anchor = re.sub(r"[^\w-]", "", f"{_SHARED}{match[1]}".lower().replace(" ", "-"))
    return f"[{match[1]}](README.md#{anchor}): {match[2]}"


def _contents(link: Any = lambda spec: f"#rmqctl-{'-'.join(spec.name)}") -> str:
    rows = [(f"[`{spec.title}`]({link(spec)})", spec.effect, spec.help) for spec in REGISTRY]
    return _table(("command", "effect", "does"), rows)


def conventions() -> Iterator[str]:
    """Yield the tables of docs/reference/README.md, which are on the manual page, too."""
    yield "## Exit codes\n"
    yield _table(("code", "meaning"), [(str(int(code)), code.meaning) for code in ExitCode])
    yield "## Effects\n"
    yield _table(("effect", "promise"), EFFECTS.items())
    yield "## Environment\n"
    yield _table(("variable", "does"), [(f"`{k}`", v) for k, v in _VARIABLES.items()])


def _common(commands: Iterable[RmqctlCommand]) -> dict[str, Row]:
    """Return by name what many commands describe alike: the most frequent row of each name."""
    rows = Counter((p.names[0], _row(p)) for command in commands for p in parameters(command)
                   if not p.panel)
    common: dict[str, Row] = {}
    for (name, row), count in rows.most_common():
        if count >= _SHARED_BY:
            common.setdefault(name, row)
    return common


def _shared(commands: Iterable[RmqctlCommand], common: dict[str, Row]) -> Iterator[str]:
    """Options with a panel of their own, and what many commands have, are described once."""
    yield f"## {_SHARED}{_GENERAL}\n"
    yield _table(("name", "default", ""), sorted(common.values()))
    panels: dict[str, dict[str, Parameter]] = {}
    for command in commands:
        for option in parameters(command):
            if option.panel:
                panels.setdefault(option.panel, {})[option.names[0]] = option
    for panel, options in panels.items():
        yield f"## {_SHARED}{panel}\n"
        yield _options_table(options.values())


def _command(spec: CommandSpec, command: RmqctlCommand, common: dict[str, Row]) -> Iterator[str]:
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


# -- findings -------------------------------------------------------------------------------------


def finding_pages() -> dict[str, str]:
    """Return a page for each finding, and one for the actions of a plan."""
    from rmqctl.checks.explanations import FINDING, explanations

    explained = explanations().values()
    finding_texts = {entry.name: _page(_finding(entry)) for entry in explained
                     if entry.kind == FINDING}
    rows = [(f"[`{name}`]({name}.md)" if name in finding_texts else f"`{name}`", severity, meaning)
            for name, (severity, meaning, _) in CATEGORIES.items()]
    about = ("Names and severities never change; `rmqctl explain NAME` prints the same page. What "
             "a plan does about a finding: [actions](actions.md).\n")
    index = ["# Findings\n", about, _table(("finding", "severity", "meaning"), rows)]
    actions = [(f"`{entry.name}`", entry.cause) for entry in explained if entry.kind != FINDING]
    finding_texts["actions"] = _page(["# Actions of a plan\n", _table(("action", "does"), actions)])
    return {"README": _page(index), **finding_texts}


def _finding(finding: Any) -> Iterator[str]:
    yield f"# `{finding.name}`\n"
    yield f"Severity: **{finding.severity}**. Meaning: {finding.meaning}.\n"
    for title, text in (("Cause", finding.cause), ("What brokers do", finding.brokers),
                        ("What to do", finding.advice)):
        if text:
            yield f"## {title}\n\n{text}\n"
    yield f"Group: {finding.group}. [All findings](README.md)\n"


# -- formats --------------------------------------------------------------------------------------


def format_pages() -> dict[str, str]:
    """Return a page for each format of docs/formats.toml."""
    described = tomllib.loads(FORMATS.read_text(encoding="utf-8"))
    rows = [(f"[`{name}`]({file_of(name)}.md)",
             description["place"].replace("NNNNNNNNNNNNNNNNNNNN", "N"))
            for name, description in described.items()]
    about = ("Each page lists the fields of a file. All numbers are big-endian. `rmqctl dump FILE` "
             "prints a file record by record.\n")
    index = ["# On-disk formats\n", about, _table(("format", "place"), rows)]
    return {"README": _page(index),
            **{file_of(name): _page(_format(name, description))
               for name, description in described.items()}}


def file_of(name: str) -> str:
    """Return the name of a format's page: a site has the index of a folder as index.html."""
    return "index_file" if name == "index" else name


def _format(name: str, described: dict[str, Any]) -> Iterator[str]:
    yield f"# `{name}`\n"
    yield f"Place: {described['place']}.\n"
    yield described["about"].strip() + "\n"
    for title, layout in described.get("layout", {}).items():
        yield f"## {title}\n"
        if about := layout.get("about", "").strip():
            yield f"{about}\n"
        rows = [(offset, width, f"`{field}`", kind, layout[field])
                for offset, width, field, kind in layout_rows(declaration(layout["of"]))]
        yield _table(("offset", "bytes", "field", "type", "meaning"), rows)


def declaration(of: str) -> Any:
    """Return the construct declaration that a layout of docs/formats.toml names."""
    module, name = of.split(":")
    return getattr(import_module(f"rmqctl.formats.{module}"), name)


def layout_rows(struct: Any) -> Iterator[Row]:
    """Yield offset, width, name and type of each named field.

    A width that depends on a flag is "8 or 20"; after a field of variable width, offsets count from
    its end.
    """
    offsets, after = {0}, ""
    for part in struct.subcons:
        widths, kind = _width(part)
        if part.name:
            at = " or ".join(map(str, sorted(offsets)))
            shown = " or ".join(map(str, sorted(widths))) or "variable"
            yield f"{after} + {at}" if after else at, shown, part.name, kind
        if widths:
            offsets = {offset + width for offset in offsets for width in widths}
        else:
            offsets, after = {0}, f"end of `{part.name}`"


def _width(part: Any) -> tuple[set[int], str]:
    """Return the possible widths of a field in bytes, none if they depend on data, and its type."""
    from construct import Bytes, FormatField, IfThenElse, Struct

    while hasattr(part, "subcon") and not isinstance(part, IfThenElse):
        part = part.subcon
    if isinstance(part, IfThenElse):
        then, otherwise = _width(part.thensubcon), _width(part.elsesubcon)
        return then[0] | otherwise[0], " or ".join(sorted({then[1], otherwise[1]}, key=_bits))
    if isinstance(part, Struct):
        inner = [_width(inner_part) for inner_part in part.subcons]
        return {sum(sum(widths) for widths, _ in inner)}, ", ".join(kind for _, kind in inner)
    if isinstance(part, FormatField):
        sign = "int" if part.fmtstr[1].islower() else "uint"
        return {part.length}, f"{sign}{8 * part.length}"
    if isinstance(part, Bytes) and isinstance(part.length, int):
        return {part.length}, "bytes"
    return set(), "bytes"


def _bits(kind: str) -> tuple[int, str]:
    return int(re.sub(r"\D", "", kind) or 0), kind


# -- schema ---------------------------------------------------------------------------------------

_SCHEMA_HEAD = """\
# Tables and columns

Generated by `make docs` from the declaration of the schema; a test fails if they differ.
`rmqctl export`, `rmqctl sql`, `rmqctl pipeline`, the Spark source `rocketmq` and `rmqctl.open`
(`to_arrow`, `to_pandas`, `to_polars`) have these columns, in this order, with these names and
types. The metadata of Parquet and Arrow files contains `schema_version` {version} and the comments
of the columns.

{types}
Times are UTC. SQL and Spark have times in microseconds, and show null for a time outside the years
1 to 9999 (only damage causes such times); exports and `rmqctl.open` keep the stored value. In
a condition, compare a time with a timestamp, not with a number: `store_timestamp > '2024-06-21'`.
For milliseconds write `epoch_ms(store_timestamp) > 1718928000000` in `rmqctl sql`, and
`unix_millis(store_timestamp) > 1718928000000` in Spark. Message objects (`read -o json`, iteration
in Python) have times in milliseconds since 1970.

The type of every column is nullable. A value is null only where the table says so. In text
that is not UTF-8, invalid bytes become U+FFFD; the column `record` keeps the bytes.
"""
_ON_SPARK = "Only in `rmqctl pipeline sql` and Spark."
_TABLES = {
    "messages": """\
Every intact record of the log, whether a consume queue entry points to it or not. A record whose
body does not match its CRC is included, with `crc_ok` false. `rmqctl.open` omits `store` and
`file`.""",
    "frames": f"Every byte of the log, in frames, including damaged ones. {_ON_SPARK}",
    "consumequeue": """\
The used entries, including those of light queues (LMQ). A batch consume queue has a row for each
batch.""",
    "index": "The entries of the index files.",
    "tiered_messages": f"""\
The messages of a tier that a consume queue entry points to. {_ON_SPARK}
`physical_offset` is the offset in the tiered commit log of the queue, and `msg_id` is derived from
it, so it is not the id that the broker returned. The other columns are those of `messages`:""",
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
    all_tables = TABLES | COLUMNS
    for name, about in _TABLES.items():
        columns = all_tables[name].values()
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
    rows = ((f"`{added.name}`", f"`{added.type}`", tables.comment_of(added))
            for added in tables.PROVENANCE.values())
    parts.append("## `export --provenance`\n\n" + _table(("column", "type", "meaning"), rows))
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the pages; with ``--check`` return 1 if the page of the schema is out of date."""
    schema = schema_page()
    if "--check" in arguments:
        current = SCHEMA.exists() and SCHEMA.read_text(encoding="utf-8") == schema
        print(f"{SCHEMA.name} is {'current' if current else 'out of date: run make docs'}")
        return int(not current)
    SCHEMA.write_text(schema, encoding="utf-8")
    for name in GENERATED:
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        (FOLDER / name).mkdir()
    written = pages()
    for path, text in written.items():
        (FOLDER / path).write_text(text, encoding="utf-8")
    print(f"wrote docs/reference: schema.md and {len(written)} pages in {', '.join(GENERATED)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
