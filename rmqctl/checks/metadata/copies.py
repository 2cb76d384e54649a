"""Comparison of the committed offsets in two copies of a store, by group (`diff`, ``recover
--from``).

Slaves copy offsets from their master every 10 s; a master starts with its own
``consumerOffset.json``. If this file is older than a slave's, the master delivers messages again.
"""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from rmqctl.checks.metadata.tables import LMQ_OFFSETS, OFFSETS, positions, table
from rmqctl.phrases import Phrase
from rmqctl.store.store import Store

_MAX_NAMED = 3


class GroupOffsets(NamedTuple):
    """Difference between the offsets of one group in two stores, a and b.

    ``a_ahead``: number of queues in which the offset is greater in a or exists only in a.
    ``a_messages``: sum of the differences in these queues.
    ``b_ahead``, ``b_messages``: the same for b.
    """

    group: str
    a_ahead: int
    a_messages: int
    b_ahead: int
    b_messages: int

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self._asdict()

    @property
    def in_words(self) -> str:
        """Return text such as ``a is ahead in 2 queues (by 45 messages)``, for a, b or both."""
        return "; ".join(
            f"{name} is ahead in {queues} queue{'' if queues == 1 else 's'} (by {messages:,} "
            f"message{'' if messages == 1 else 's'})" for name, queues, messages in (
                ("a", self.a_ahead, self.a_messages), ("b", self.b_ahead, self.b_messages))
            if queues)


def offset_differences(a: Store, b: Store) -> list[GroupOffsets]:
    """Return the groups whose committed offsets differ, sorted by name; an empty list if one of the
    stores has no readable consumer offsets.
    """
    offsets_a, offsets_b = _committed(a), _committed(b)
    if offsets_a is None or offsets_b is None:
        return []
    counts: dict[str, list[int]] = {}
    for key in {**offsets_a, **offsets_b}:
        left, right = offsets_a.get(key, -1), offsets_b.get(key, -1)
        if left == right:
            continue
        count = counts.setdefault(key[0], [0, 0, 0, 0])
        first = 0 if left > right else 2
        count[first] += 1
        count[first + 1] += abs(max(left, 0) - max(right, 0))
    return [GroupOffsets(group, *count) for group, count in sorted(counts.items())]


def newer_offsets(store: Store, copy: Store, name: str) -> Phrase | None:
    """Return a note for `recover` if ``copy`` has greater committed offsets than ``store``; else
    None.
    """
    ahead = [group for group in offset_differences(store, copy) if group.b_ahead]
    if not ahead:
        return None
    listed = ", ".join(f"{group.group} (by {group.b_messages:,})" for group in ahead[:_MAX_NAMED])
    return Phrase(
        "{copy} has greater committed offsets than config/{file}: {groups}. With the smaller "
        "offsets, the broker delivers these messages again. If nobody reset the offsets: "
        "`rmqctl offsets import STORE {source} --max`, before a slave of this broker starts: it "
        "copies the offsets of its master. `rmqctl offsets diff` compares them.",
        source=shlex.quote(name), copy=name, file=OFFSETS,
        groups=listed if len(ahead) <= _MAX_NAMED else
        f"{listed} and {len(ahead) - _MAX_NAMED:,} more")


def _committed(store: Store) -> dict[tuple[str, str, int], int] | None:
    if not store.layout.reads("config"):
        return None
    tables = [table(store, name) for name in (OFFSETS, LMQ_OFFSETS)]
    if all(loaded.is_missing or loaded.loaded is None for loaded in tables):
        return None
    return {key: position for loaded in tables
            for key, position in positions(loaded.loaded or {}).items()}
