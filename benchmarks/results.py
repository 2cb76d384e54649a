"""RESULTS.md: sections which several scripts write, each its own. Standard library only."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_NEXT = "\n## "


def with_section(text: str, mark: str, lines: list[str]) -> str:
    """A text of sections with the one of ``mark`` made anew; the others stay."""
    before, _, rest = text.partition(mark)
    _, following, behind = rest.partition(_NEXT)
    return before.rstrip("\n") + "\n\n" + "\n".join(lines) + following + behind


def publish(mark: str, lines: list[str]) -> None:
    """Writes a section into RESULTS.md."""
    text = RESULTS.read_text(encoding="utf-8")
    RESULTS.write_text(with_section(text, mark, lines), encoding="utf-8")
