"""Set the delay service back to messages that count as delivered but have no delivered copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rmqctl.checks.delays import FILE
from rmqctl.phrases import Phrase
from rmqctl.repair.offsets.table import with_delays
from rmqctl.repair.plan import Action, Changes, Replace
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store


def set_back_delays(store: Store, offsets: Mapping[int, int],
                    clock: Callable[[], int]) -> Changes:
    """Return the changes that lower the offsets of delay levels in ``config/delayOffset.json``. A
    damaged file is left as it is.

    ``offsets``: the new offsets by level.
    """
    changes, copy = Changes(), load_one(store, FILE).main
    if not offsets or not copy.usable or copy.damaged or copy.database:
        return changes
    before = copy.value["offsetTable"]
    changes.steps.append(Replace(copy.path, with_delays(copy.value, offsets, clock)))
    changes.actions.append(Action(
        "set back", copy.path, None, len(offsets), Phrase(
            "{count:,} offset is later than the log: delayed messages count as delivered, but have "
            "no delivered copies",
            "{count:,} offsets are later than the log: delayed messages count as delivered, but "
            "have no delivered copies", count=len(offsets)), "delay level", proof={
                "levels": {str(level): {"from": before.get(str(level)), "to": offset}
                           for level, offset in offsets.items()}}))
    return changes
