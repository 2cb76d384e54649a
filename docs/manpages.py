"""Write manual pages from the reference: rmqctl(1), and one page for each command.

The wheel installs them in share/man/man1 (hatch_build.py). ``python docs/manpages.py FOLDER``
writes them there. Of the dependencies only typer is needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import NamedTuple

GENERATOR = Path(__file__).parent / "generate_reference.py"
_SHARED = "Shared options: "
_COMMAND = re.compile(r"`rmqctl (.+)`")
_EXIT, _ENVIRONMENT = "Exit codes", "Environment"
_RESERVED = {_EXIT, _ENVIRONMENT, "Effects"}


class Block(NamedTuple):
    """A piece of a page: a ``table`` of rows without its head, a ``code`` block, or ``text``."""

    kind: str
    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()


class Section(NamedTuple):
    """What follows a heading of ``level`` numbers signs."""

    level: int
    title: str
    blocks: list[Block]


def reference() -> str:
    """Return the text that docs/generate_reference.py makes of all commands."""
    spec = spec_from_file_location("generate_reference", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    generator = module_from_spec(spec)
    spec.loader.exec_module(generator)
    return str(generator.reference())


def pages(reference: str, version: str) -> dict[str, str]:
    """The manual pages by file name (``rmqctl-query-key.1``). ValueError: no reference."""
    sections = list(_sections(reference))
    shared = {part.title.removeprefix(_SHARED): _table(part) for part in sections
              if part.title.startswith(_SHARED)}
    commands = {match[1]: part for part in sections if (match := _COMMAND.fullmatch(part.title))}
    if not commands:
        raise ValueError("the reference has no command")
    helps = _helps(sections[0])
    manpages = {"rmqctl.1": _overview(sections, helps, version)}
    for name, section in commands.items():
        manpages[f"{_page(name)}.1"] = _command(name, section, helps[name], shared, version)
    return manpages


def _page(name: str) -> str:
    return "-".join(["rmqctl", *name.split()])


def _helps(contents: Section) -> dict[str, str]:
    """One line for each command, from the table at the top of the reference."""
    return {re.sub(r"\[`(.+?)`\].*", r"\1", row[0]): row[2] for row in _table(contents)}


def _table(section: Section) -> tuple[tuple[str, ...], ...]:
    return next(block.rows for block in section.blocks if block.kind == "table")


# Reading the reference


def _sections(reference: str) -> Iterator[Section]:
    lines: list[str] = []
    level, title, is_code = 0, "", False
    for line in reference.splitlines():
        is_code ^= line.startswith("```")
        heading = None if is_code else re.match(r"(#+) (.*)", line)
        if heading:
            if level:
                yield Section(level, title, list(_blocks(lines)))
            level, title, lines = len(heading[1]), heading[2], []
        else:
            lines.append(line)
    yield Section(level, title, list(_blocks(lines)))


def _blocks(lines: list[str]) -> Iterator[Block]:
    for block in re.findall(r"```\n.*?\n```|(?:(?!```)[^\n]+\n?)+", "\n".join(lines), re.DOTALL):
        if block.startswith("```"):
            yield Block("code", block[4:-4])
        elif block.startswith("|"):
            rows = [_cells(line) for line in block.splitlines()]
            yield Block("table", rows=tuple(rows[2:]))
        else:
            yield Block("text", " ".join(block.split()))


def _cells(line: str) -> tuple[str, ...]:
    cells = re.split(r" ?(?<!\\)\| ?", line.strip())[1:-1]
    return tuple(cell.replace("\\|", "|").strip() for cell in cells)


# Writing roff


def _overview(sections: list[Section], helps: dict[str, str], version: str) -> str:
    named = {listed.title: listed for listed in sections}
    lines = [*_head("rmqctl", version),
             _escaped("rmqctl - inspect, verify, repair and serve Apache RocketMQ store "
                      "directories without a broker"),
             ".SH SYNOPSIS", r"\fBrmqctl\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]"]
    # The commands under the headings that they have in the reference.
    for section in sections:
        if section.level == 2 and section.title not in _RESERVED | {"Conventions"} \
                and not section.title.startswith(_SHARED):
            lines += [".SH", _escaped(section.title).upper()]
        elif match := _COMMAND.fullmatch(section.title):
            lines += [".TP", rf"\fB{_escaped(_page(match[1]))}\fR(1)", _inline(helps[match[1]])]
    lines += [".SH EXIT STATUS", *_definitions(_table(named[_EXIT])),
              ".SH ENVIRONMENT", *_definitions(_table(named[_ENVIRONMENT]))]
    return "\n".join(lines) + "\n"


def _command(name: str, section: Section, summary: str,
             shared: dict[str, tuple[tuple[str, ...], ...]], version: str) -> str:
    usage, effect, *blocks = section.blocks
    lines = [*_head(_page(name), version), _escaped(f"{_page(name)} - ") + _inline(summary),
             ".SH SYNOPSIS", rf"\fB{_escaped(usage.text)}\fR", ".SH DESCRIPTION"]
    panels: list[tuple[str, list[str]]] = []
    for block in blocks:
        panel, colon, names = block.text.partition(": ")
        if block.kind == "code":
            lines += [".PP", ".RS 4", ".nf", *map(_escaped, block.text.splitlines()), ".fi", ".RE"]
        elif block.kind == "table":
            is_options = block.rows[0][0].startswith("`-")
            lines += [".SH OPTIONS" if is_options else ".SH ARGUMENTS", *_definitions(block.rows)]
        elif colon and panel in shared:
            panels.append((panel, re.findall(r"`([^`]+)`", names)))
        else:
            lines += [".PP", _inline(block.text)]
    # Options that several commands share have a table of their own in the reference.
    for panel, wanted in panels:
        rows = tuple(row for row in shared[panel] if _first_name(row) in wanted)
        lines += [".SH", _escaped(panel).upper(), *_definitions(rows)]
    lines += [".SH EFFECT", _inline(effect.text), ".SH SEE ALSO", r"\fBrmqctl\fR(1)"]
    return "\n".join(lines) + "\n"


def _first_name(row: tuple[str, ...]) -> str:
    return re.sub(r"`\[?([^ `.\]]+).*", r"\1", row[0])


def _head(page: str, version: str) -> list[str]:
    return [f'.TH "{_escaped(page.upper())}" "1" "" "rmqctl {version}" "rmqctl"', ".SH NAME"]


def _definitions(rows: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """Rows as a list: what it is, and on the lines below what the other columns say."""
    for row in rows:
        yield ".TP"
        yield rf"\fB{_escaped(row[0].replace('`', ''))}\fR"
        default = row[1] if len(row) > 2 else ""
        note = "  [required]" if default == "required" else f"  [default: {default}]"
        yield _inline(row[-1] + (note if default else "")) or r"\&"


def _inline(text: str) -> str:
    """Text with its code spans in bold and its links as their words, safe at a line's start."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"`([^`]*)`|\*\*([^*]+)\*\*", text)
    text_parts = "".join(rf"\fB{_escaped(part)}\fR" if at % 3 else _escaped(part)
                   for at, part in enumerate(parts) if part is not None)
    return rf"\&{text_parts}" if text_parts.startswith((".", "'")) else text_parts


def _escaped(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


def main(arguments: list[str]) -> int:
    """Write all pages into the folder that is named."""
    from rmqctl import __version__

    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(reference(), __version__).items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(list(folder.glob('*.1')))} pages into {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
