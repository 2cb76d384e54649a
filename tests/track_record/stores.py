"""The whole list."""

from __future__ import annotations

from tests.track_record import indexes, logs, queueing, small, starting
from tests.track_record.case import Case

GROUPS: dict[str, tuple[Case, ...]] = {
    "A broker does not start, or starts and deletes": starting.CASES,
    "Damage in the commitlog": logs.CASES,
    "Consumequeues and commitlog disagree": queueing.CASES,
    "Index": indexes.CASES,
    "Checkpoint, configuration, flags": small.CASES,
}
ALL: dict[str, Case] = {case.name: case for cases in GROUPS.values() for case in cases}


def find(word: str) -> Case:
    """A store by its name, or by its issue's number. KeyError when there is none."""
    for name, case in ALL.items():
        if word in (name, str(case.issue)):
            return case
    raise KeyError(word)
