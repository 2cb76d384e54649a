"""One line of a plan: what a repair would do, or what a broker does at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Action:
    """``target`` is relative to the store root where it lies in it (``commitlog/000…``,
    ``consumequeue/TopicTest/0``, ``checkpoint``).

    ``before`` and ``after`` (JSON: ``from``, ``to``) say in a few words what is there and what
    will be; ``reason`` why. ``action`` is a verb of two or three words at most:
    ``truncate``, ``move aside``, ``rebuild``, ``fill`` …
    """

    action: str
    target: str
    before: str | int | None
    after: str | int | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"action": self.action, "target": self.target, "from": self.before,
                "to": self.after, "reason": self.reason}
