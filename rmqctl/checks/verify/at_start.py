"""Whether the next start of a broker puts right what `verify` finds: asked only once it finds that.

Brokers dispatch again what lies in the part of the log that their recovery reads. How much that is
depends on the release, on the abort file and on the checkpoint; `rmqctl.checks.preflight` follows
it (spec: recovery.md §3-§6, §15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rmqctl.broker.recovery import default_release
from rmqctl.broker.versions import VERSIONS
from rmqctl.checks.verify.context import PutRight
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.errors import RmqctlError
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.checks.preflight.types import Prediction

_AFTER_CLEAN_END = {"4.4.0": "4.0.0 to 4.4.0", "5.3.1": "5.0.0 to 5.3.1"}
"""The last of the releases that make fewer rows at a start after a clean end: which they are."""


@dataclass
class AtStart:
    """What releases of both generations do to ``store``: no more than the log they read at a
    start is read for it, once.
    """

    store: Store
    relied_on: bool = False
    """Whether something counts as no trouble because of a start that is still to come."""

    @cached_property
    def _starts(self) -> list[Prediction] | None:
        """None where one of them cannot be predicted."""
        from rmqctl.checks.preflight.preflight import preflight  # most stores do not need it

        names = {*VERSIONS, default_release(self.store)}
        if not self.store.has_abort:
            names.update(_AFTER_CLEAN_END)
        try:
            return [preflight(self.store, name, full=False) for name in sorted(names)]
        except RmqctlError:
            return None

    def rows(self, key: QueueKey, place: int | None, end: int) -> PutRight:
        """Whether a start makes all rows of a queue that are missing, the first of them for the
        message at the physical offset ``place`` (None: not known). ``end``: the queue offset
        behind the last message of the queue. Rows that go to wrong places do not reach it.
        """
        def made(start: Prediction) -> bool:
            losses = (start.queue_losses or {}).get(key)
            return (losses is not None and losses.end == end and not losses.without_row
                    and not losses.cut)

        return self._judge(place, made)

    def keys(self, place: int | None) -> PutRight:
        """Whether a start makes all index entries that are missing, as `rows`."""
        indexed = self.store.sizes.conf.message_index is not False
        return self._judge(place, lambda _start: indexed)

    def _judge(self, place: int | None, made: Callable[[Prediction], bool]) -> PutRight:
        if place is None or not self._starts:
            return PutRight()
        by: list[str] = []
        not_by: list[str] = []
        for start in self._starts:
            does = (start.starts and not start.messages_lost and _reads(start, place)
                    and made(start))
            name = start.broker_version
            (by if does else not_by).append(_AFTER_CLEAN_END.get(name, name))
        self.relied_on |= bool(by) and not not_by
        return PutRight(tuple(by), tuple(not_by), max(start.index_lost for start in self._starts))


def _reads(start: Prediction, place: int) -> bool:
    """Whether all from the physical offset ``place`` on is dispatched again."""
    return any(part.start <= place < part.end and (part.behind is None or place > part.behind)
               for part in start.dispatch)
