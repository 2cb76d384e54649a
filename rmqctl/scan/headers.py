"""Fields of records that no broker can have written, found during a walk.

The rules are those of `formats.local.header_rules`. Each record is judged once, with the messages
before and after it. So a log may be divided anywhere: the merged results of the parts equal those
of a single walk.
"""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

import numpy as np

from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch

KEEP = 100_000
_AT = rules.FIELDS.index("physical_offset")
_TIME, _HOST, _NUMBER = range(len(rules.FIELDS), len(rules.FIELDS) + 3)
WIDTH = _NUMBER + 1
_ENDS = 4
_SCHEDULE = props.SCHEDULE_TOPIC.encode()


class HeaderFault(NamedTuple):
    """A record that breaks rules. ``offset``: its physical offset. ``categories``: the rules.
    ``before``, ``behind``: physical offsets of the previous and the next record; None at an end of
    the log.
    """

    offset: int
    categories: tuple[str, ...]
    before: int | None
    behind: int | None


def _none() -> Array:
    return np.zeros((0, WIDTH), np.int64)


@dataclass(slots=True)
class Headers:
    """Anomalies in a part of a log.

    The first and the last record of the part cannot be judged without their neighbors. They are
    judged by `merge` with the next part, or by `settle` at the ends of the log.
    """

    faults: list[HeaderFault] = field(default_factory=list)
    unlisted: int = 0
    early: int = 0
    """Number of records whose store time is earlier than RocketMQ itself."""
    first_early: int | None = None
    odd_born: int = 0
    """Number of records with an impossible born time."""
    first_odd_born: int | None = None
    back: int = 0
    """Number of times that the store time goes back by half a year or more, except for single
    damaged times.
    """
    first_back: int | None = None
    _first: Array = field(default_factory=_none)
    _last: Array = field(default_factory=_none)

    def add(self, batch: Batch, which: Array | None = None, numbers: Array | None = None) -> None:
        """Add the messages of a batch in log order.

        ``which`` (bool) selects messages. ``numbers``: rows of messages with a numeric property
        whose value is not a number (see `bad_numbers`).
        """
        if not len(batch) or (which is not None and not which.any()):
            return
        rows = self._rows(batch)
        if numbers is not None and len(numbers):
            rows[numbers, _NUMBER] = 1
        if which is not None:
            rows = rows[which]
        early = np.flatnonzero(rows[:, _TIME] < rules.EARLIEST)
        if len(early):
            self._count_early(len(early), int(rows[early[0], _AT]))
        born = rules.born_at_odd_time(batch.column("born_timestamp"),
                                      batch.column("store_timestamp"))
        odd = batch.offset[born if which is None else born & which]
        if len(odd):
            self._count_born(len(odd), int(odd[0]))
        self._join(rows)

    def add_run(self, heads: Array, count: int) -> None:
        """Add ``count`` messages of one host. Their times are possible and differ by less than half
        a year. ``heads``: the rows of the first two and the last two messages.
        """
        if count < _ENDS:
            self._join(heads[[0, 1, 3][:count]])
        else:
            self._join(heads[:2])
            self._last = heads[2:].copy()

    @staticmethod
    def _rows(batch: Batch) -> Array:
        columns = [*(batch.column(name) for name in rules.FIELDS[:_AT]), batch.offset,
                   batch.column("store_timestamp"), batch.store_hosts()]
        rows: Array = np.zeros((len(batch), WIDTH), np.int64)
        for number, column in enumerate(columns):
            rows[:, number] = column
        return rows

    def _count_early(self, count: int, first: int | None) -> None:
        self.early += count
        self.first_early = first if self.first_early is None else self.first_early

    def _count_born(self, count: int, first: int | None) -> None:
        self.odd_born += count
        self.first_odd_born = first if self.first_odd_born is None else self.first_odd_born

    def _count_back(self, count: int, first: int | None) -> None:
        self.back += count
        self.first_back = first if self.first_back is None else self.first_back

    def merge(self, other: Headers) -> None:
        """Merge the anomalies of the next part of the log into this object."""
        inner, self.unlisted = other.faults, self.unlisted + other.unlisted
        self._count_early(other.early, other.first_early)
        self._count_born(other.odd_born, other.first_odd_born)
        self._count_back(other.back, other.first_back)
        if len(other._first):
            self._join(other._first)
            self._last = other._last if len(other._first) > 1 else self._last
        self._keep(inner)

    def settle(self) -> None:
        """Judge the records at both ends of the log, which have only one neighbor."""
        ends = [self._first[:1]] if len(self._first) else []
        if len(self._first) > 1:
            ends.append(self._last[-1:])
        if len(self._first) > 1 and rules.clock_went_back(*self._first[:, _TIME]):
            self.back, self.first_back = self.back + 1, int(self._first[1, _AT])
        for number, row in enumerate(ends):
            beside = (self._first[1:2] if number == 0 else self._last[-2:-1])
            broken = _alone(row)
            names = tuple(name for name, of_rule in broken.items() if of_rule[0])
            if names:
                other = int(beside[0, _AT]) if len(beside) else None
                self._keep([HeaderFault(int(row[0, _AT]), names, *(
                    (None, other) if number == 0 else (other, None)))])
        self.faults.sort(key=lambda fault: fault.offset)

    def _join(self, rows: Array) -> None:
        """Append rows to the pending rows. The last row is judged when its next neighbor is
        known.
        """
        if len(self._first) < 2:
            self._first = np.concatenate([self._first, rows])[:2]
        both = np.concatenate([self._last, rows])
        self._middles(both)
        self._last = both[-2:].copy()

    def _middles(self, rows: Array) -> None:
        if len(rows) < 3:
            return
        before, own, behind = rows[:-2], rows[1:-1], rows[2:]
        broken = _alone(own)
        broken[rules.STORE_TIME] = rules.stored_at_odd_time(
            before[:, _TIME], own[:, _TIME], behind[:, _TIME])
        back = np.flatnonzero(rules.clock_went_back(own[:, _TIME], behind[:, _TIME])
                              & ~broken[rules.STORE_TIME])
        if len(back):
            self._count_back(len(back), int(behind[back[0], _AT]))
        # A broker that listens on both address families has a host in each.
        other = (own[:, _HOST] != before[:, _HOST]) & ((own ^ before)[:, _HOST] & 1 == 0)
        broken[rules.STORE_HOST] = (before[:, _HOST] == behind[:, _HOST]) & other & (
            ~broken[rules.STORE_PORT])
        odd = np.logical_or.reduce(list(broken.values()))
        self._keep([HeaderFault(
            int(own[row, _AT]), tuple(name for name, of_rule in broken.items() if of_rule[row]),
            int(before[row, _AT]), int(behind[row, _AT])) for row in np.flatnonzero(odd).tolist()])

    def _keep(self, faults: list[HeaderFault]) -> None:
        room = max(0, KEEP - len(self.faults))
        self.faults += faults[:room]
        self.unlisted += len(faults[room:])


def undecodable(batch: Batch) -> Array:
    """Return a boolean array: whether a client's decoder rejects each record of a batch."""
    broken = rules.alone({name: batch.column(name) for name in rules.FIELDS})
    mask: Array = np.logical_or.reduce([broken[name] for name in rules.UNDECODABLE])
    return mask


def bad_numbers(batch: Batch, generation: int,
                properties: text.PropertySegments | None = None) -> Array:
    """Return the row numbers of records with a non-numeric value in a numeric property (spec:
    commitlog.md §9). A broker refuses such a record and truncates the log there.

    ``properties``: the properties of the batch, if they are already parsed.
    """
    scheduled = text.topics(batch).equal(_SCHEDULE)
    properties = properties or text.PropertySegments(batch)
    if not scheduled.any() and (
            generation < 5 or not len(properties.places(props.INNER_NUM)[0])):
        return np.zeros(0, np.int64)  # the usual case
    row, levels = properties.find(props.DELAY)
    which = scheduled[row]
    bad = _no_numbers(row[which], levels.take(which), rules.DELAY_BITS)
    if generation >= 5:
        inner = [(*properties.find(name), bits) for name, bits in rules.INNER.items()]
        both = np.intersect1d(inner[0][0], inner[1][0])
        for row, values, bits in inner:
            bad |= _no_numbers(row, values, bits) & {*both.tolist()}
    return np.array(sorted(bad), np.int64)


def _no_numbers(rows: Array, values: text.Texts, bits: int) -> set[int]:
    is_number: dict[bytes, bool] = {}
    return {row for row, raw in zip(rows.tolist(), values.tolist(), strict=True)
            if not is_number.setdefault(
                raw, rules.is_number(raw.decode("utf-8", "replace"), bits))}


def _alone(rows: Array) -> dict[str, Array]:
    broken = rules.alone({name: rows[:, number] for number, name in enumerate(rules.FIELDS)})
    return {**broken, rules.NUMBER: rows[:, _NUMBER] != 0}
