"""Description of the losses from earlier repairs (`rmqctl.store.repair_losses`)."""

from __future__ import annotations

from collections.abc import Iterator

from rmqctl.checks.findings import Finding
from rmqctl.phrases import Joined, Phrase
from rmqctl.store.repair_losses import RepairLoss, RepairLosses

_MAX_NAMED = 3


def findings(losses: RepairLosses) -> Iterator[Finding]:
    """Yield an informational finding for each repair with losses."""
    for loss in losses.losses:
        yield Finding("lost-in-repair", "commitlog", in_words(loss), count=max(loss.total, 1))
    if losses.more:
        yield Finding("lost-in-repair", "commitlog", f"{losses.more:,} more repair records are not "
                      "read", count=losses.more)


def in_words(loss: RepairLoss) -> Phrase:
    """Describe the losses from a repair: ``22 messages are missing since repair ID``."""
    if loss.messages is None:
        return Phrase("the losses of repair {id} are unknown: its record is damaged", id=loss.id)
    parts = []
    if loss.messages:
        parts.append(Phrase("{count:,} message is missing since repair {id}",
                            "{count:,} messages are missing since repair {id}",
                            count=loss.messages, id=loss.id))
    if loss.undecided:
        parts.append(Phrase("{count:,} undecided record was discarded in repair {id}",
                            "{count:,} undecided records were discarded in repair {id}",
                            count=loss.undecided, id=loss.id))
    if loss.root is not None:
        parts.append(Phrase("the store was at {root} then", root=loss.root))
    return Joined("; ", parts)


def all_in_words(losses: RepairLosses) -> Phrase | None:
    """Describe the losses of the newest repairs; None if there are no losses."""
    if not losses.losses:
        return None
    named = [in_words(loss) for loss in reversed(losses.losses[-_MAX_NAMED:])]
    others = len(losses.losses) + losses.more - len(named)
    if others:
        rest = losses.total - sum(loss.total for loss in losses.losses[-_MAX_NAMED:])
        named.append(Phrase("{count:,} more in earlier repairs", count=rest))
    return Joined("; ", named)
