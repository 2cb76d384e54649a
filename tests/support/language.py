"""Every text of the program that a person reads, with where it is, and the words it must not have.

``python -m tests.support.language --seed 7`` prints 100 of them, drawn by chance, for readers
(`make language-sample SEED=7`); ``--all PATH ...`` lists those of files or folders.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.source import PACKAGE, nodes, trees

ROOT = PACKAGE.parent
MESSAGE, DOCSTRING, PAGE = "message", "docstring", "page"

#: What no text contains, and the better words (docs/explanation/architecture.md, "Language").
FORBIDDEN = {
    r"\banew\b": "again, new",
    r"(?<!there )\b(?:is|are) (?-i:none)\b(?! of)":
        "is not a ..., is invalid, does not exist, is missing",
    r"\bis no (?!longer|more\b|later|earlier|larger|reason|way)": "is not a",
    r"\bset right\b|\bput right\b|\bheal(?:s|ed)?\b": "repair, fix, restore",
    r"\bnothing tells\b|\bcannot be told\b|\bis not told\b": "unknown, cannot be determined",
    r"\bleads? to\b": "points to",
    r"\blies? (?:in|at|behind|beyond|before|after|inside|outside|elsewhere|there)\b":
        "is in, is at",
    r"\bstands? (?:in|at|behind|beyond|before|after|there|for)\b": "is in, is at, means",
    r"\bbehind (?!\w+ (?:URL|log|server|proxy)\b)(?:it|them|the|a|an|that|this|its)\b":
        "after (behind is for what lags)",
    r"\bof an earlier life\b|\bearlier life\b": "stale, from an earlier use of the file",
    r"\bdata bases?\b": "database",
    r"\bturned bits?\b|\bbits? (?:that )?turned\b": "flipped bit",
    r"\btaken? back\b|\btakes? (?:it|them|a repair|repairs) back\b": "undo, revert",
    r"\bthat is (?:no|none)\b(?! longer)": "that is not a",
    r"\bsomebody\b|\bwhoever\b": "name who",
    r"\bhanded out\b": "invisible (delivered by POP, not yet acknowledged)",
    r"\bhold against\b|\bheld against\b": "compare with, check against",
    r"\bhas in it\b": "contains",
    r"\bpassed over\b(?!$|`| \(checks)": "skipped",
    r"\bso long\b(?! as)": "while, until",
    r"\bbegin of\b": "start of",
}
_FORBIDDEN = [(re.compile(words, re.IGNORECASE), better) for words, better in FORBIDDEN.items()]
_PROSE = re.compile(r"[A-Za-z]{2,}[,;:]? [a-z`'{(<A-Z-]+.* ?[a-z]{2,}")
_SQL = re.compile(r"^\s*(?:select|create|insert|with|pragma|copy)\b", re.IGNORECASE)


class Text(NamedTuple):
    """A text with its place; the values of an f-string are ``{}``."""

    kind: str
    path: str
    line: int
    text: str

    def faults(self) -> list[str]:
        """Return "words -> better words" for each forbidden expression in the text."""
        return [f"{match[0]!r} -> {better}" for words, better in _FORBIDDEN
                if (match := words.search(" ".join(self.text.split())))]


@cache
def texts() -> list[Text]:
    """Return every message, docstring and sentence of a page, in the order of the files."""
    return [*in_program(), *in_tables(), *in_pages()]


def in_program() -> Iterator[Text]:
    """Yield the messages and docstrings of all modules."""
    for path, tree in trees().items():
        name = str(path.relative_to(ROOT))
        docstrings = set()
        for node in nodes(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) \
                    and isinstance(node.value.value, str):
                docstrings.add(id(node.value))
                yield Text(DOCSTRING, name, node.lineno, node.value.value)
        yield from _messages(tree, name, docstrings)


def _messages(tree: ast.Module, name: str, passed: set[int]) -> Iterator[Text]:
    """Yield the strings of a module that are prose; `passed` are ids of those that are not."""
    parts = {id(part) for node in nodes(tree) if isinstance(node, ast.JoinedStr)
             for part in node.values}
    for node in nodes(tree):
        if id(node) in passed or id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{}"
                           for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _PROSE.search(text) and not _SQL.match(text):
            yield Text(MESSAGE, name, node.lineno, text)


def in_tables() -> Iterator[Text]:
    """Yield the texts of findings and actions (`rmqctl explain`)."""
    for path in sorted(PACKAGE.rglob("explanations.toml")):
        lines = path.read_text().splitlines()
        for entry in tomllib.loads(path.read_text()).values():
            for value in entry.values() if isinstance(entry, dict) else ():
                if isinstance(value, str) and _PROSE.search(value):
                    start = value.split("\n")[0][:60]
                    line = next((n for n, text in enumerate(lines, 1) if start in text), 1)
                    yield Text(MESSAGE, str(path.relative_to(ROOT)), line, value)


def doc_pages() -> list[Path]:
    """Return the pages of docs/, without the generated ones that Git ignores."""
    generated = {ROOT / "docs" / "reference" / name for name in ("commands", "findings", "formats")}
    return sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent not in generated)


def in_pages() -> Iterator[Text]:
    """Yield the paragraphs of README, CHANGELOG and docs that are neither code nor generated."""
    for path in sorted([*ROOT.glob("*.md"), *doc_pages()]):
        if path.name.endswith(".zh-CN.md"):
            continue
        code, paragraph, start = False, [], 1
        for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
            if line.lstrip().startswith("```"):
                code = not code
            if code or not line.strip() or line.lstrip().startswith("```"):
                if paragraph:
                    yield Text(PAGE, str(path.relative_to(ROOT)), start, "\n".join(paragraph))
                paragraph = []
                continue
            if not paragraph:
                start = number
            paragraph.append(line)


def main() -> None:
    """Print a sample, or the texts of files and folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--kind", choices=[MESSAGE, DOCSTRING, PAGE], action="append")
    parser.add_argument("--faults", action="store_true", help="only those with forbidden words")
    parser.add_argument("--all", nargs="*", metavar="PATH", help="all below these, no sample")
    args = parser.parse_args()
    chosen = [text for text in texts() if not args.kind or text.kind in args.kind]
    if args.faults:
        chosen = [text for text in chosen if text.faults()]
    if args.all is not None:
        below = tuple(args.all) or ("",)
        chosen = [text for text in chosen if text.path.startswith(below)]
    else:
        chosen = random.Random(args.seed).sample(chosen, min(args.count, len(chosen)))
    for text in chosen:
        faults = f"   ! {'; '.join(text.faults())}" if text.faults() else ""
        print(f"{text.path}:{text.line} ({text.kind}){faults}\n    "
              + "\n    ".join(text.text.strip().splitlines()))


if __name__ == "__main__":
    main()
