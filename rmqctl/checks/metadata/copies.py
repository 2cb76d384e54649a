"""Committed offsets of two copies of a store, compared by group (`diff`, ``recover --from``).

Slaves copy offsets from their master every 10 s; a master starts with its own
``consumerOffset.json``. If its file is older than a slave's, the master delivers messages again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rmqctl.checks.metadata.tables import LMQ_OFFSETS, OFFSETS, positions, table
from rmqctl.phrases import Phrase
from rmqctl.store.store import Store

_MAX_NAMED = 3


class GroupOffsets(NamedTuple):
    """Difference of the offsets of one group. ``a_ahead``, ``b_ahead``: queues in which this store
    has the greater offset, or the only one; ``a_messages``, ``b_messages``: the differences in
    messages.
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
        """Return ``a is ahead in 2 queues (by 45 messages)``, and the same text for b."""
        return "; ".join(
            f"{name} is ahead in {queues} queue{'' if queues == 1 else 's'} (by {messages:,} "
            f"message{'' if messages == 1 else 's'})" for name, queues, messages in (
                ("a", self.a_ahead, self.a_messages), ("b", self.b_ahead, self.b_messages))
            if queues)


def offset_differences(a: Store, b: Store) -> list[GroupOffsets]:
    """Return the groups whose committed offsets differ, by name; empty if a store has no readable
    file of consumer offsets.
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
    """Return the sentence of `recover` if a copy has greater committed offsets, else None."""
    ahead = [group for group in offset_differences(store, copy) if group.b_ahead]
    if not ahead:
        return None
    listed = ", ".join(f"{group.group} (by {group.b_messages:,})" for group in ahead[:_MAX_NAMED])
    return Phrase(
        "{copy} has greater committed offsets than config/{file}: {groups}. With this file, the "
        "broker delivers these messages again. If nobody reset these offsets, replace the file "
        "with {copy}/config/{file} while no broker runs (`rmqctl diff` compares the groups).",
        copy=name, file=OFFSETS, groups=listed if len(ahead) <= _MAX_NAMED else
        f"{listed} and {len(ahead) - _MAX_NAMED:,} more")


def _committed(store: Store) -> dict[tuple[str, str, int], int] | None:
    if not store.layout.reads("config"):
        return None
    tables = [table(store, name) for name in (OFFSETS, LMQ_OFFSETS)]
    if all(loaded.is_missing or loaded.loaded is None for loaded in tables):
        return None
    return {key: position for loaded in tables
            for key, position in positions(loaded.loaded or {}).items()}
