"""The actions of plans: of a repair, and of a broker at startup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_or_zero

Value = int | str | Mapping[str, int] | None
"""State before or after an action: a number, a file name, or several numbers by name; None if the
state is not a value.
"""
_TIME = "_timestamp"
"""Suffix of the names of numbers that are times (epoch ms)."""
_PLURALS = {"entry": "entries"}


@dataclass(frozen=True, slots=True)
class Action:
    """An action. ``action`` is a verb of at most three words: ``truncate``, ``move aside``,
    ``rebuild``, ``fill`` …

    ``target``: the affected file or folder, relative to the store root if it is in the store
        (``commitlog/000…``, ``consumequeue/TopicTest/0``, ``checkpoint``).
    ``before``, ``after`` (JSON: ``from``, ``to``): the old and the new state, as data.
    ``unit``: their unit (``byte``, ``entry``); "" for offsets, names, or a byte value (``0x41``).
    ``offset``, ``length``: the affected bytes of the log; None for all of the target.
    ``reason``: a sentence.
    ``proof``: the evidence, as data.
    """

    action: str
    target: str
    before: Value
    after: Value
    reason: str
    unit: str = ""
    offset: int | None = None
    length: int | None = None
    proof: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"action": self.action, "target": self.target, "from": self.before,
                "to": self.after, "unit": self.unit or None, "offset": self.offset,
                "length": self.length, "reason": self.reason,
                "proof": None if self.proof is None else dict(self.proof)}

    def in_words(self) -> dict[str, str | int]:
        """Return the action as a row of a table: action, target, from, to, reason."""
        before = self._cell(self.before)
        if self.offset is not None:
            before = (f"{self.length or 0:,} bytes from {self.offset}" if self.before is None
                      else f"{before} at {self.offset}")
        return {"action": self.action, "target": self.target, "from": before,
                "to": self._cell(self.after), "reason": self.reason}

    def _cell(self, value: Value) -> str | int:
        if value is None:
            return ""
        if isinstance(value, Mapping):
            return ", ".join(
                f"{name.split('_')[0]} {time_or_zero(number) if name.endswith(_TIME) else number}"
                for name, number in value.items())
        if not self.unit or (isinstance(value, str) and not value[:1].isdigit()):
            return value  # a state, such as "unreadable", has no unit
        unit = "entry" if self.unit == "row" else self.unit
        unit = unit if value == 1 else _PLURALS.get(unit, unit + "s")
        return f"{value:,} {unit}" if isinstance(value, int) else f"{value} {unit}"
