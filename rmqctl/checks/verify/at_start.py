"""Predict whether the next broker startup repairs the problems that `verify` found.

The prediction is made only if there are problems. At startup, a broker dispatches the messages in
the part of the log that its recovery reads again. `rmqctl.checks.preflight` determines this part
from the release, the abort file and the checkpoint (spec: recovery.md §3-§6, §15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from rmqctl.broker.recovery import default_release
from rmqctl.broker.versions import VERSIONS, version_of
from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.context import StartRepairs
from rmqctl.checks.verify.queue.rows import QueueKey
from rmqctl.errors import RmqctlError
from rmqctl.formats.local.index_file import HEADER
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.checks.preflight.types import Prediction

_AFTER_CLEAN_END = {"4.4.0": "4.0.0 to 4.4.0", "5.3.1": "5.0.0 to 5.3.1"}
"""Groups of releases that recreate fewer entries at a startup after a clean shutdown.

Key: the last release of a group. Value: the text that names the group.
"""
_OF_AN_INDEX_FILE = frozenset({"index-unreadable", "index-header", "index-slot", "index-chain",
                               "index-entry", "index-time", "index-ahead", "file-size"})
"""Categories of damage inside an index file, which disappears if a broker discards the file."""
_END_TIME = HEADER.field("end_timestamp").offset


@dataclass
class AtStart:
    """Predicted startups of 4.x and 5.x releases on ``store``.

    The predictions share the part of the log that they need, so it is read only once.
    """

    store: Store
    relied_on: bool = False
    """True if any problem is ignored because the next startup repairs it."""

    @cached_property
    def _starts(self) -> list[Prediction] | None:
        """Return the predicted startups; None if one of them cannot be predicted."""
        from rmqctl.checks.preflight.preflight import preflight  # most stores do not need it

        names = {*VERSIONS, default_release(self.store)}
        if not self.store.has_abort:
            names.update(_AFTER_CLEAN_END)
        if self.store.layout.consumequeue == "rocksdb":  # others find no queue in it
            names = {name for name in names if version_of(name).rocksdb_queues}
        try:
            return [preflight(self.store, name, full=False) for name in sorted(names)]
        except RmqctlError:
            return None

    def rows(self, key: QueueKey, place: int | None, end: int) -> StartRepairs:
        """Return which releases recreate all missing entries of a queue at startup.

        ``place``: physical offset of the message with the first missing entry (None: unknown).
        ``end``: queue offset after the last message of the queue; misplaced entries do not count.
        """
        if place is None:
            return StartRepairs()

        def is_recreated(start: Prediction) -> bool:
            losses = (start.queues.losses or {}).get(key)
            return (losses is not None and losses.end == end and not losses.without_row
                    and not losses.cut)

        return self._judge(place, is_recreated)

    def rely(self) -> None:
        """Record that a problem is ignored because the next startup repairs it."""
        self.relied_on = True

    def keys(self, place: int | None) -> StartRepairs:
        """Return which releases recreate all missing index entries at startup. ``place``:
        physical offset of the first message without an index entry (None: unknown).
        """
        if place is None:
            return StartRepairs()
        return self._judge(place, lambda start: self._indexed and place >= start.index.begin)

    def index_file(self, finding: Finding) -> Finding:
        """Return the finding, with severity info if the next startup discards the index file.

        Brokers may discard index files after an unclean shutdown (index.md §9). The severity does
        not change in two cases:

        * The end time is wrong and entries are lost. The wrong time may be why the file is
          discarded.
        * Entries beyond the end of the log show that messages are lost.
        """
        if (finding.structure != "index" or not finding.is_trouble or finding.file is None
                or finding.category not in _OF_AN_INDEX_FILE):
            return finding
        from rmqctl.checks.preflight.load import relative

        name = relative(self.store, finding.file)
        telling = finding.category == "index-ahead"
        repairs = self._judge(None, lambda start: name in start.broker.doomed and not (
            telling and start.account.known_lost))
        of_end_time = (finding.category, finding.offset) == ("index-header", _END_TIME)
        if not repairs.severity or (of_end_time and repairs.entries_lost):
            return finding
        does = "discards the file" + (" and rebuilds it" if self._indexed else "")
        return replace(finding, severity=INFO, detail=finding.detail + repairs.index_words(does))

    @property
    def _indexed(self) -> bool:
        return self.store.sizes.conf.message_index is not False

    def _judge(self, place: int | None, is_repaired: Callable[[Prediction], bool]) -> StartRepairs:
        """Return which of the predicted startups repair a problem.

        ``place``: physical offset from which a startup must read the log again (None: no need).
        ``is_repaired``: returns whether a startup repairs the problem.
        """
        if not self._starts:
            return StartRepairs()
        by: list[str] = []
        not_by: list[str] = []
        for start in self._starts:
            does = (start.starts and not start.account.cut and is_repaired(start)
                    and (place is None or _reads(start, place)))
            name = start.broker_version
            (by if does else not_by).append(_AFTER_CLEAN_END.get(name, name))
        self.relied_on |= bool(by) and not not_by
        return StartRepairs(tuple(by), tuple(not_by),
                            max(start.index.lost for start in self._starts))


def _reads(start: Prediction, place: int) -> bool:
    """Return whether the startup dispatches all messages from physical offset ``place`` on."""
    return any(part.start <= place < part.end and (part.behind is None or place > part.behind)
               for part in start.log.dispatch)
