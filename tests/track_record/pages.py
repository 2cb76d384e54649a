"""The page of each store: ``python -m tests.track_record.pages`` writes them all anew.

A page is a transcript (tests/transcripts/README.md). Which commands it shows is said here, once for
all; what they answer is what they answered last, and is compared in tests/test_transcripts.py. The
one command writes the pages, plays them, and writes the table of their README.md.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rmqctl.commands import REGISTRY
from tests import test_transcripts as transcripts
from tests.support import cli
from tests.track_record import build, stores
from tests.track_record.case import Case

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "transcripts" / "track-record"
TABLE = FOLDER / "README.md"
BEGIN, END = "<!-- stores: written by python -m tests.track_record.pages -->", "<!-- end -->"
WIDTH = 100
COMMANDS = {spec.name for spec in REGISTRY}

# What is not the same every time: when a repair was made, and what a file system makes of its size.
MASKS = (
    r"20[0-9]{6}T[0-9]{6}Z-[0-9]+ -> REPAIR",
    r"\([0-9.]+ [KMGT]?i?B on -> (SIZE on",
)


def path_of(case: Case) -> Path:
    """The page of a store."""
    return FOLDER / f"{case.name}.md"


def commands(case: Case) -> list[tuple[str, list[str]]]:
    """(heading, commands without ``rmqctl``): every page shows these, as far as they exist."""
    store = f"store {case.options}".strip()
    preflight = [f"preflight {store} --broker-version {version}" for version in case.versions]
    sections = [
        ("", [f"verify {store}", *case.shows]),
        ("What a broker would do at its start", preflight),
        ("Recover", [f"recover {store}", f"recover {store} --apply --yes"]),
        ("Afterwards", [*preflight, f"verify {store}"]),
    ]
    if case.left:  # nothing is changed: it would all come once more
        sections = sections[:3]
    if ("recover",) not in COMMANDS:
        sections = sections[:2]
    if ("preflight",) not in COMMANDS:
        sections = [(title, [line for line in lines if not line.startswith("preflight")])
                    for title, lines in sections]
    return [(title, lines) for title, lines in sections if lines]


def page(case: Case) -> str:
    """A page without answers."""
    parts = [f"# {case.title}", _wrapped(f"{case.link}. {case.saw}"), _wrapped(case.state),
             f"store: track-record/{case.name}"]
    if ("recover",) in COMMANDS:
        parts += [f"mask: {mask}" for mask in MASKS]
    for title, lines in commands(case):
        block = "\n".join(f"$ rmqctl {line}" for line in lines)
        parts += [f"## {title}"] * bool(title)
        if title == "Recover" and case.left:
            parts.append(f"This is not for a program to decide: {case.left}.")
        parts.append(f"```console\n{block}\n```")
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    """Lines of at most `WIDTH` columns; none begins like a directive of a transcript."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "\n".join(lines)


def without_answers(text: str) -> str:
    """A page as `page` writes it: what the commands answered is left out."""
    steps = transcripts.parse(text)
    for step in steps:
        if isinstance(step, transcripts.Command):
            step.expected = []
    return transcripts.render(steps)


def with_answers(new: str, old: str) -> str:
    """The page ``new`` with the answers of ``old``, as far as they are to the same commands."""
    answers: dict[str, list[list[str]]] = {}
    for step in transcripts.parse(old):
        if isinstance(step, transcripts.Command):
            answers.setdefault(step.line, []).append(step.expected)
    steps = transcripts.parse(new)
    for step in steps:
        if isinstance(step, transcripts.Command) and answers.get(step.line):
            step.expected = answers[step.line].pop(0)
    return transcripts.render(steps)


def table(root: Path) -> str:
    """The tables of tests/transcripts/track-record/README.md, from the stores in ``root``."""
    columns = _columns()
    lines = []
    for title, cases in stores.GROUPS.items():
        lines += ["", f"### {title}", "", _row(columns), "|" + "---|" * len(columns)]
        lines += [line(case, root) for case in cases]
    return "\n".join([*lines[1:], ""])


def _columns() -> list[str]:
    columns = ["issue", "store", "`rmqctl verify`"]
    columns += ["a broker's start"] * (("preflight",) in COMMANDS)
    return columns + ["`rmqctl recover`"] * (("recover",) in COMMANDS)


def line(case: Case, root: Path) -> str:
    """The row of a store of ``root``."""
    cells = [case.link, f"[{case.title}]({case.name}.md)", verify_categories(case, root),
             started(case, root),              recovered(case, root)]
    return _row(cells[:len(_columns())])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _json(case: Case, root: Path, command: str, *words: str) -> dict[str, Any]:
    report = cli.run(command, root / case.name, *case.options.split(), *words, "-o", "json")
    document: dict[str, Any] = report.json() if report.code in (0, 1) else {"refused": report.code}
    return document


def verify_categories(case: Case, root: Path) -> str:
    """The categories `verify` finds, most serious first, with their numbers."""
    counted = Counter((finding["severity"], finding["category"])
                      for finding in _json(case, root, "verify")["findings"]
                      if finding["severity"] != "info")
    order = sorted(counted, key=lambda pair: (pair[0] != "error", pair[1]))
    words = [f"`{name}`" + f" × {counted[level, name]}" * (counted[level, name] > 1)
             for level, name in order]
    return ", ".join(words) or "nothing wrong"


def started(case: Case, root: Path) -> str:
    """What a start of each broker would cost."""
    if ("preflight",) not in COMMANDS:
        return ""
    costs = {version: _cost(_json(case, root, "preflight", "--broker-version", version))
             for version in case.versions}
    if len(set(costs.values())) == 1:
        return costs[case.versions[0]]
    return "<br>".join(f"{version}: {cost}" for version, cost in costs.items())


def _cost(document: dict[str, Any]) -> str:
    if not document["starts"]:
        return "does not start"
    costs = [f"{verb} {count:,} {what}" for verb, count, what in (
        ("cuts off", document["messages_lost"], "intact messages"),
        ("leaves", document["unreachable"], "without an entry"),
        ("may not find", document["shadowed"], "messages in files that are there twice"),
        ("destroys", document["rows_lost"], "rows"),
        ("loses", document["index"]["entries_lost"], "index entries")) if count]
    return ", ".join(costs) or "costs nothing"


def recovered(case: Case, root: Path) -> str:
    """How many messages recover cannot bring back, or what it leaves to do by hand."""
    if ("recover",) not in COMMANDS or case.left:
        return case.left
    plan = _json(case, root, "recover")
    lost, actions = len(plan["messages_lost"]), len(plan["actions"])
    done = f"{actions} action{'s' * (actions > 1)}" if actions else "nothing to do"
    return f"{done}, {lost} message{'s' * (lost > 1)} lost" if lost else done


def document(text: str, root: Path) -> str:
    """tests/transcripts/track-record/README.md with the table put in."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table(root)}\n{END}{tail}"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for case in stores.ALL.values():
        path, new = path_of(case), page(case)
        path.write_text(with_answers(new, path.read_text()) if path.exists() else new)
    with tempfile.TemporaryDirectory() as folder:
        build.main([folder])
        TABLE.write_text(document(TABLE.read_text(), Path(folder)))
    return subprocess.run(  # a process of its own: which pages there are is read when it starts
        [sys.executable, "-m", "pytest", "-q", "--update", "-k", "track-record",
         "tests/test_transcripts.py"], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
