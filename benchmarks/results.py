"""RESULTS.md, in which each script writes its own section. Standard library only."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
_NEXT = "\n## "


def with_section(text: str, mark: str, lines: list[str]) -> str:
    """Return the text with ``lines`` in place of the section that starts with ``mark``."""
    before, _, rest = text.partition(mark)
    _, following, behind = rest.partition(_NEXT)
    return before.rstrip("\n") + "\n\n" + "\n".join(lines) + following + behind


def publish(mark: str, lines: list[str]) -> None:
    """Write a section of RESULTS.md."""
    text = RESULTS.read_text(encoding="utf-8")
    RESULTS.write_text(with_section(text, mark, lines), encoding="utf-8")


def machine() -> str:
    """Return a line with CPU model, cores, Python, system and date."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    today = datetime.now(UTC).date().isoformat()
    return f"{model}, {cores} cores, Python {platform.python_version()}, Linux, {today}"
