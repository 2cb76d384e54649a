"""Derive the entries of plain messages, in a single loop of the kernel extension over the log.

The loop ends at the first message that is damaged, or that only `Deriver` can process. `Deriver`
then continues from this message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rmqctl.engine.dispatch.derive import Derived, Deriver
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.kernel import active
from rmqctl.scan.derived import NAMES, TopicNumbers, delays
from rmqctl.scan.frames import Array, part_of

_KEYS_EACH = 2
"""Number of keys per message for which space is reserved at first."""
_USUAL = 512
"""Size of a record for which space is reserved at first. The system clears memory in large pages:
far more space than needed would take most of the time.
"""


class LeadPass:
    """Derives entries from the bytes that a scan has read. Pass `over` to the scan as ``intact``.

    ``length``: number of bytes of the log to process. ``limit``: only messages that end at or
    before this physical offset are processed. `settle` passes the results to ``take``.
    """

    @classmethod
    def of(cls, deriver: Deriver, length: int, limit: int | None,
           take: Callable[[Derived], None]) -> LeadPass | None:
        """Return a `LeadPass`; None if the kernel extension is not available."""
        kernel = active()
        return None if kernel is None else cls(kernel, deriver, length, limit, take)

    def __init__(self, kernel: Any, deriver: Deriver, length: int, limit: int | None,
                 take: Callable[[Derived], None]) -> None:
        self._kernel, self._deriver, self._limit, self._take = kernel, deriver, limit, take
        self._at = {name: number for number, name in enumerate(kernel.LEAD_STATE)}
        self._ends = dict(enumerate(kernel.SOUND_ENDS))
        self._state: Array = np.zeros(len(self._at), np.int64)
        self._topics, self._numbers = TopicNumbers(), [0][:0]
        self._delays = delays(deriver.levels)
        self._most, self._keys_each = length // MIN_SIZE + 1, _KEYS_EACH
        self._room = min(length // _USUAL + 1, self._most)
        self._columns: Array = np.empty((len(kernel.LEAD_COLUMN), 0), np.int64)
        self._rowed: Array = np.empty(0, bool)
        self._keys: Array = np.empty((2, 0), np.int64)

    def over(self, data: Array, base: int, at: int, end: int, _lost: Array, mapped: bool) -> int:
        """Process the messages in ``data`` from position ``at`` on; return the position after the
        last processed one (see `rmqctl.scan.walk.Sound`).
        """
        if self._limit is not None:
            data = data[:max(self._limit - base, 0)]
            end = min(end, len(data))
        if at >= end:
            return at
        self._state[self._at["at"]] = at
        while True:
            ended = self._ends[self._kernel.lead(
                data, base, end, self._deriver.with_keys, self._state, *NAMES,
                *self._topics.table.tables, self._topics.rows, self._delays, self._columns,
                self._rowed.view(np.uint8), self._keys, mapped)]
            if ended == "new_topic":
                start, length = self._state[-2:].tolist()
                topic = part_of(data, start, length, mapped)
                if topic is None:
                    return int(self._state[self._at["at"]])
                self._numbers.append(self._deriver.topics.number(self._topics.add(topic)))
            elif ended != "no_room" or not self._more_room():
                return int(self._state[self._at["at"]])

    def _more_room(self) -> bool:
        """Make space for more messages or keys; return False if even a single message has more keys
        than fit.
        """
        is_first = not self._columns.shape[1]
        if not is_first:
            messages = self._state[self._at["messages"]]
            if not messages:
                return False
            if messages == self._columns.shape[1]:
                self._room = min(2 * self._room, self._most)
            else:
                self._keys_each *= 2
            self.settle()
        columns = len(self._columns)
        self._columns = np.empty((columns, self._room), np.int64)
        self._rowed = np.empty(self._room, bool)
        keyed = self._room * self._keys_each if self._deriver.with_keys else 0
        self._keys = np.empty((2, keyed), np.int64)
        return True

    def settle(self) -> None:
        """Call ``take`` with the columns of all messages since the last call."""
        count, keys = self._state[1:3].tolist()
        if not count:
            return
        columns = dict(zip(self._kernel.LEAD_COLUMN, self._columns[:, :count], strict=True))
        columns["topic"] = np.array(self._numbers, np.int64)[columns["topic"]]
        if not self._deriver.with_rows:
            columns["tags"] = columns["tags"][:0]
        row, key_hash = self._keys[:, :keys] if self._deriver.with_keys else (None, None)
        self._take(Derived(self._deriver.topics.texts, **columns, rowed=self._rowed[:count],
                           key_row=row, key_hash=key_hash, further=None, inner=None))
        # The receiver keeps the arrays.
        self._state[1:3] = 0
        self._columns = self._columns[:, :0]
