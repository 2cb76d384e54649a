"""Results of `diff`: differences between two stores, and a description of how two records differ.

The stores are called ``a`` and ``b``, as on the command line. `Side` reads the log of one store:
its frames and damaged spans, by physical offset. `Side` skips a hole in the log (a missing or short
file). Messages that the other store has in this range count as missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields
from typing import Any, Literal

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record, host_text
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.scan.frames import DAMAGED, Array, Batch, Span
from rmqctl.scan.walk import Walk
from rmqctl.store.log.bounds import View
from rmqctl.store.log.end import find_end
from rmqctl.store.objects import text

Kind = Literal["different", "missing-in-a", "missing-in-b", "damaged-in-a", "damaged-in-b",
               "queue", "config", "epoch", "entry"]
PLACE = frozenset({"physical_offset", "store_host", "prepared_transaction_offset", "magic",
                   "total_size"})
"""Fields that depend on where a message is stored, so they differ between stores."""
_MAX_SHOWN = 40
_MAX_BYTES = 8
_MAX_FIELDS = 3
Name = Literal["a", "b"]
MISSING: dict[Name, Kind] = {"a": "missing-in-a", "b": "missing-in-b"}
DAMAGE: dict[Name, Kind] = {"a": "damaged-in-a", "b": "damaged-in-b"}
_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference. Offsets and lengths refer to ``a``, or to ``b`` if the message is missing from
    ``a``.

    * ``physical_offset_b``, ``msg_id_b``: set if they differ from the values of ``a``
    * ``fields``: names of the differing fields (``properties.NAME`` for one property)
    * ``structure``: commitlog, consumequeue, config or store
    """

    kind: Kind
    structure: str = "commitlog"
    file: str | None = None
    physical_offset: int | None = None
    length: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    msg_id: str | None = None
    unique_key: str | None = None
    store_timestamp: int | None = None
    physical_offset_b: int | None = None
    msg_id_b: str | None = None
    fields: tuple[str, ...] = ()
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object; fields that do not apply are null."""
        values = {name: getattr(self, name) for name in COLUMNS}
        values["fields"] = list(self.fields)
        return values


COLUMNS = tuple(field_of_row.name for field_of_row in fields(Difference))


@dataclass(slots=True)
class Differences:
    """``listed``: the first ``most`` differences. ``counts``: number of all differences by kind."""

    most: int = 1000
    listed: list[Difference] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def room(self) -> int:
        """Return the number of differences that can still be listed; callers need not describe
        more.
        """
        return max(self.most - len(self.listed), 0)

    def add(self, difference: Difference) -> None:
        self.counts[difference.kind] += 1
        if self.room:
            self.listed.append(difference)

    def count(self, kind: Kind, more: int) -> None:
        """Count differences without listing them."""
        if more:
            self.counts[kind] += more


@dataclass(frozen=True, slots=True)
class DifferenceRun:
    """Adjacent differences of one kind, in the log or in a queue."""

    first: Difference
    last: Difference
    count: int
    queues: frozenset[tuple[str | None, int | None]]

    @property
    def end(self) -> int | None:
        """Return the physical offset after the last difference."""
        if self.last.physical_offset is None:
            return None
        return self.last.physical_offset + (self.last.length or 0)


def runs(differences: Iterable[Difference]) -> Iterator[DifferenceRun]:
    """Yield runs of adjacent differences of one kind."""
    run: DifferenceRun | None = None
    for difference in differences:
        if run is not None and _goes_on(run, difference):
            run = DifferenceRun(run.first, difference, run.count + 1,
                                run.queues | {(difference.topic, difference.queue_id)})
            continue
        if run is not None:
            yield run
        run = DifferenceRun(difference, difference, 1,
                            frozenset({(difference.topic, difference.queue_id)}))
    if run is not None:
        yield run


def _goes_on(run: DifferenceRun, difference: Difference) -> bool:
    last = run.last
    if (difference.kind, difference.structure, difference.fields, difference.file) != (
            last.kind, last.structure, last.fields,
            last.file) or difference.structure != "commitlog":
        return False
    if difference.physical_offset is not None and difference.physical_offset == run.end:
        return True
    return (difference.topic is not None and len(run.queues) == 1
            and (difference.topic, difference.queue_id) == (last.topic, last.queue_id)
            and last.queue_offset is not None and difference.queue_offset == last.queue_offset + 1)


# -- records --------------------------------------------------------------------------------------


def of_record(kind: Kind, record: Record, detail: str = "") -> Difference:
    """Return the difference for a message that only one of the stores has."""
    return Difference(kind, **_identity(record), detail=detail)


def of_pair(a: Record, b: Record, *, ignored: frozenset[str] = frozenset()) -> Difference:
    """Return the difference between two messages with the same position or queue offset."""
    differing = differences_of(a, b, ignored=ignored)
    elsewhere: dict[str, Any] = {}
    if b.physical_offset != a.physical_offset:
        elsewhere["physical_offset_b"] = b.physical_offset
    if b.message_id != a.message_id:
        elsewhere["msg_id_b"] = b.message_id
    return Difference("different", **_identity(a), **elsewhere, fields=tuple(differing),
                      detail=_in_words(a, b, differing))


def _identity(record: Record) -> dict[str, Any]:
    properties = props.parse(text(record.properties))
    return {"physical_offset": record.physical_offset, "length": record.total_size,
            "topic": text(record.topic), "queue_id": record.queue_id,
            "queue_offset": record.queue_offset, "msg_id": record.message_id,
            "unique_key": properties.get(props.UNIQUE_KEY),
            "store_timestamp": record.store_timestamp}


def differences_of(a: Record, b: Record, *, ignored: frozenset[str] = frozenset()) -> dict[
        str, tuple[Any, Any]]:
    """Return the fields that differ, by name: their values in ``a`` and in ``b``.

    The fields are in the order of the record.

    ``ignored``: fields that are not compared. With `PLACE`, three further things are not compared:

    * the CRC property that brokers append
    * the sys_flag bit for an IPv6 store host
    * the order of the properties
    """
    out: dict[str, tuple[Any, Any]] = {}
    for record_field in fields(Record):
        name = record_field.name
        left, right = getattr(a, name), getattr(b, name)
        if name == "sys_flag" and "store_host" in ignored:
            left, right = (flag & ~sysflag.STORE_HOST_V6 for flag in (left, right))
        if name == "properties":
            out.update(_properties(left, right, exact="store_host" not in ignored))
        elif left != right and name not in ignored:
            out[name] = left, right
    return out


def _properties(a: bytes, b: bytes, *, exact: bool) -> dict[str, tuple[Any, Any]]:
    if a == b:
        return {}
    left, right = props.parse(text(a)), props.parse(text(b))
    if not exact:
        left.pop(props.CRC32, None)
        right.pop(props.CRC32, None)
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    if not names and exact:  # the same map in another order, or with another separator at the end
        return {"properties": (a, b)}
    return {f"properties.{name}": (left.get(name), right.get(name)) for name in names}


def _in_words(a: Record, b: Record, differing: Mapping[str, tuple[Any, Any]]) -> str:
    bad = [name for name, record in (("a", a), ("b", b)) if record.body and not record.crc_ok]
    words = [f"body CRC mismatch in {' and in '.join(bad)}"] if bad else []
    words += [_pair(name, left, right)
              for name, (left, right) in list(differing.items())[:_MAX_FIELDS]]
    if len(differing) > _MAX_FIELDS:
        words.append(f"{len(differing) - _MAX_FIELDS} more fields")
    return "; ".join(words)


def _pair(name: str, left: Any, right: Any) -> str:
    """Describe the two values of a field, as in ``flag 0 / 7``.

    For bytes, the text also contains the position of the first difference.
    """
    if not isinstance(left, bytes):
        if name.endswith("_timestamp"):
            return f"{name} {time_text(left)} / {time_text(right)}"
        return f"{name} {_value(left)} / {_value(right)}"
    shorter = min(len(left), len(right))
    first = next((position for position in range(shorter) if left[position] != right[position]),
                 shorter)
    size = f"{len(left)} bytes" if len(left) == len(right) else (
        f"{len(left)} / {len(right)} bytes")
    return (f"{name} of {size}, different from byte {first} on: "
            f"{left[first:first + _MAX_BYTES].hex() or 'end'} / "
            f"{right[first:first + _MAX_BYTES].hex() or 'end'}")


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return host_text(*value)
    if isinstance(value, str):
        return repr(value[:_MAX_SHOWN]) + ("..." if len(value) > _MAX_SHOWN else "")
    return str(value)


class Side:
    """A cursor over the frames of a log.

    * ``position``: start of the next frame
    * ``messages``, ``bytes_damaged``: number of messages and damaged bytes before ``position``
    * ``end``: end of the log in the selected view when the comparison began (on disk: after the
      last provable record)
    """

    def __init__(self, name: Name, view: View) -> None:
        self.name, self.view, self.store = name, view, view.store
        self.log = view.store.log
        self.start = self.log.min_offset
        self.end = find_end(view.store).offset if view.log_end is None else view.log_end
        self.position = self.start
        self.messages = self.bytes_damaged = self.damaged_spans = 0
        self.open_damage: list[DamagedSpan] = []
        self._page = bytearray(_PAGE)

    def _normalise(self) -> None:
        """If the position is in a hole, move it to the next file."""
        if self.log.file_of(self.position) is None:
            later = [file.base for file in self.log.files if file.base >= self.position]
            self.position = min(later, default=max(self.position, self.log.end))

    def frames(self, upto: int) -> Iterator[Batch]:
        """Yield batches of the frames from ``position`` up to ``upto``, and advance
        ``position``.
        """
        while self.position < min(upto, self.log.end):
            file, place = self.log.file_of(self.position), self.log.locate(self.position)
            if file is None or place is None:
                return
            source, position = place
            walk = Walk(source, position, upto - source.base)
            for batch in walk:
                self.position = source.base + walk.position
                self.passed(batch)
                yield batch
            if walk.end < upto - source.base:  # all of the file, which may have shrunk meanwhile
                self.position = max(source.base + walk.position, file.end)
            self._normalise()

    def passed(self, batch: Batch) -> None:
        """Count the messages and the damage of a batch that the cursor has read."""
        self.messages += len(batch)
        for span in batch.spans:
            if span.kind == DAMAGED:
                self.bytes_damaged += span.length
                self.damaged_spans += 1
                self.open_damage.append(DamagedSpan(span))

    def skip(self, upto: int, messages: int) -> None:
        """Move the cursor to ``upto``, past ``messages`` messages that are equal in both logs."""
        self.position = upto
        self.messages += messages
        self._normalise()

    def holds(self, physical: int, data: Array) -> bool:
        """Return whether the log has exactly these bytes at ``physical``, all in one file."""
        place = self.log.locate(physical)
        if place is None or place[1] + len(data) > place[0].size:
            return False
        if len(self._page) < len(data):
            self._page = bytearray(len(data))
        view = memoryview(self._page)[:len(data)]
        if place[0].read_into(view, place[1]) < len(data):
            return False
        return bool(np.array_equal(np.frombuffer(view, np.uint8), data))

    def pages(self, start: int, length: int) -> Iterator[bytes]:
        """Yield the bytes of a span that is in one file, a bounded page at a time."""
        place = self.log.locate(start)
        for position in range(0, length, _PAGE):
            yield b"" if place is None else place[0].read(place[1] + position,
                                                          min(_PAGE, length - position))

    # -- damage -------------------------------------------------------------------------------

    def damaged_at(self, start: int, end: int) -> DamagedSpan | None:
        """Return a damaged span that overlaps ``[start, end)``, marked as reported; None if no span
        does.
        """
        for damage in self.open_damage:
            if damage.span.offset < end and start < damage.span.end:
                damage.named = True
                return damage
        return None

    def close_damage(self, upto: int) -> list[DamagedSpan]:
        """Return the damaged spans that end at or before ``upto``, and remove them from
        `open_damage`.
        """
        closed = [damage for damage in self.open_damage if damage.span.end <= upto]
        self.open_damage = [damage for damage in self.open_damage if damage.span.end > upto]
        return closed


class DamagedSpan:
    """A damaged span of a log. ``named``: whether a difference already reports it."""

    def __init__(self, span: Span) -> None:
        self.span, self.named = span, False

    @property
    def place(self) -> tuple[int, int]:
        """Return the physical offset and the length of the span."""
        return self.span.offset, self.span.length

    def words(self, side: Side) -> str:
        return f"{side.name} is damaged here: {self.span.reason}"


def report_damage(a: Side, b: Side, upto: int, out: Differences) -> int:
    """Report damage before ``upto``, unless a difference already reports it.

    ``upto``: an offset that both cursors have passed. Return the number of damaged spans whose
    bytes are the same in both logs; these are not differences.
    """
    damage_a, damage_b = a.close_damage(upto), b.close_damage(upto)
    if not damage_a and not damage_b:
        return 0
    common = {damage.place for damage in damage_a} & {damage.place for damage in damage_b}
    alike = {place for place in common if all(
        page == other for page, other in zip(a.pages(*place), b.pages(*place), strict=True))}
    for side, damages in ((a, damage_a), (b, damage_b)):
        for damage in damages:
            if not damage.named and damage.place not in alike:
                out.add(Difference(DAMAGE[side.name], physical_offset=damage.span.offset,
                                   length=damage.span.length, detail=damage.words(side)))
    return len(alike)
