"""rmqctl as the tests see it: every call into the library stands here, and nowhere else.

The functions answer in plain tuples, in the shapes of `tests.support.engine`, so that a change of
the library's interface changes this file alone. `verify` goes through the command, whose JSON is
a contract, unless the library offers the same without a process around it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import cli
from tests.support.engine import Expect

Row = tuple[int, int, int, str, str, int]
"""(queue offset, physical offset, size, sha1 of the body, topic, queue id) of a record."""
UnitRow = tuple[int, ...]
"""(queue offset, physical offset, size, tagsCode), for a BatchCQ also (batch size, compacted)."""
PullRow = tuple[str, int, int, int, list[int]]
"""(status, next begin, min, max, physical offsets)."""


# -- reading -------------------------------------------------------------------------------------


def messages(root: Path, expect: Expect, topic: str, queue_id: int) -> list[Row]:
    """The messages of a queue from min to max, as `getMessage` would deliver them."""
    raise NotImplementedError


def cq(root: Path, expect: Expect, topic: str, queue_id: int) -> list[UnitRow]:
    """The entries from min to max, fillers included, tagsCode raw (an ext address stays one)."""
    raise NotImplementedError


def ext(root: Path, expect: Expect, topic: str, queue_id: int,
        address: int) -> tuple[int, int, bytes | None, int]:
    """(tagsCode, store timestamp, bit map or None, size) of the ext unit behind an address."""
    raise NotImplementedError


def min_max(root: Path, expect: Expect, topic: str, queue_id: int) -> tuple[int, int]:
    """The queue's min and max offset; (0, 0) for a queue that is not there."""
    raise NotImplementedError


def query_key(root: Path, expect: Expect, topic: str, key: str, begin: int, end: int,
              maximum: int, *, raw: bool) -> list[int]:
    """Physical offsets in the broker's order (ascending); ``raw`` keeps false hash hits."""
    raise NotImplementedError


def offset_by_time(root: Path, expect: Expect, topic: str, queue_id: int, timestamp: int, *,
                   like: str, boundary: str) -> int:
    """The queue offset at a time: ``like`` "4.9.3" or "5.3.3", boundary "lower" or "upper"."""
    raise NotImplementedError


def get_message(root: Path, expect: Expect, topic: str, queue_id: int,
                offset: int) -> PullRow:
    """``getMessage`` with at most five messages."""
    raise NotImplementedError


def log_bounds(root: Path, expect: Expect) -> tuple[int, int]:
    """The log's min and max physical offset, as the engine has them after its recovery."""
    raise NotImplementedError


# -- verify --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; ``file`` is relative to the root.

    ``offset`` is the physical offset for the commitlog, else the position in the file;
    ``position`` is always the latter. ``count``: how many rows or records it stands for.
    """

    category: str
    severity: str
    structure: str
    file: str
    offset: int | None
    length: int | None
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    position: int | None
    count: int
    detail: str

    @property
    def physical_offset(self) -> int | None:
        """Of a finding in the commitlog: the place in the log."""
        return self.offset if self.structure == "commitlog" else None

    def touches(self, file: str, span: tuple[int, int]) -> bool:
        """Whether it names ``file`` and a place in the span (or no place at all)."""
        if self.file != file:
            return False
        if self.position is None:
            return True
        return self.position < span[1] and self.position + max(self.length or 0, 1) > span[0]

    def __str__(self) -> str:
        return (f"{self.severity} {self.category} {self.structure} {self.file}@{self.position}"
                f"+{self.length}: {self.detail}")


@dataclass(frozen=True, slots=True)
class Report:
    """What verify says: ``ok``, findings, and where every byte of the log went."""

    ok: bool
    findings: tuple[Finding, ...]
    coverage: dict[str, int]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that mean damage: errors and warnings."""
        return tuple(each for each in self.findings if each.severity != "info")

    def of(self, *structures: str) -> tuple[Finding, ...]:
        return tuple(each for each in self.findings if each.structure in structures)

    def text(self) -> str:
        return "\n".join(str(each) for each in self.findings) or "no findings"


def verify(root: Path, *, options: Sequence[str] = (), only: str | None = None) -> Report:
    """Everything that can be checked. ``only`` as the option takes it."""
    words = ["verify", os.fspath(root), "-o", "json", *options]
    if only is not None:
        words += ["--only", only]
    # 5: something could not be read, and is stated as a finding; the rest is reported.
    raw = cli.run(*words).expect(0, 1, 5).json()
    return Report(raw["ok"], tuple(_findings(root, raw["findings"])), raw["coverage"])


def _findings(root: Path, raw: Iterable[dict[str, Any]]) -> Iterable[Finding]:
    for each in raw:
        file = each.get("file") or ""
        yield Finding(
            each["category"], each["severity"], each["structure"],
            os.path.relpath(file, root) if os.path.isabs(file) else file,
            each.get("offset"), each.get("length"), each.get("topic"), each.get("queue_id"),
            each.get("queue_offset"), each.get("position", each.get("offset")),
            each.get("count", 1), each.get("detail") or "")


def every_byte_is_accounted_for(report: Report) -> bool:
    """The identity the contract promises, whatever the damage."""
    parts = ("bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged")
    return report.coverage["bytes_total"] == sum(report.coverage[name] for name in parts)


# -- commands ------------------------------------------------------------------------------------


def read_only_commands() -> list[str]:
    """The names of all commands that declare to change nothing, from the registry itself."""
    listed = cli.run("commands", "-o", "json").expect(0).json()
    return sorted(each["name"] for each in listed if each["effect"] == "read-only")
