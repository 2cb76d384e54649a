"""Find the part of a damaged stretch of our log that is proven to be equal in the source's log.

A *stretch* is a part of our log without intact records. If both logs contain the same two records,
the bytes between these records were equal, too.

The start or end of our log may be lost, or the source may begin or end in the stretch. In this
case, only one side of the stretch has an equal record. Our consume queues, our index and the
remains of the damaged records show how far the logs are equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rmqctl.checks.verify.common import plural
from rmqctl.damage.ranges import ENDLESS, EmptyRange
from rmqctl.damage.survey.survey import Runs
from rmqctl.errors import FormatError
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import HOST_BITS, decode, fixed_field
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.comparison import Comparison
from rmqctl.repair.salvage.keep import kept_from
from rmqctl.repair.salvage.mend.moved import misplaced
from rmqctl.repair.sources.opening import LogSource
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.walk import Walk

_BLOCK = 1 << 20
_MAX_HEADS = 10_000
_NEAR = 64 << 10
_PLACED = ("magic", "physical_offset")
_TELLING = ("total_size", "body_crc", "queue_offset", "store_timestamp")
_NEVER_BY_CHANCE = _TELLING[1:]


@dataclass(frozen=True, slots=True)
class Proven:
    """The part ``[start, end)`` of a stretch in which the source's log is proven to be the same as
    ours.

    * ``before``, ``after``: physical offsets of the equal messages before and after the stretch;
      None if no such message exists.
    * ``words``: the proof in words.
    """

    start: int
    end: int
    before: int | None
    after: int | None
    words: str


def proven_part(parts: Sequence[LogPart], source: LogSource, comparison: Comparison,
                stretch: EmptyRange) -> Proven | str:
    """Return the proven part of a stretch, or the reason why nothing is proven."""
    # The equal messages before and after the stretch, if no conflict is between them and the
    # stretch.
    left = comparison.equal.before(stretch.start) if stretch.start else None
    right = comparison.equal.behind(stretch.end) if stretch.end < ENDLESS else None
    parted_left = left is not None and comparison.conflicts.has_any(left.end, stretch.start)
    parted_right = right is not None and comparison.conflicts.has_any(stretch.end, right.start)
    before = None if left is None or parted_left else left.last
    after = None if right is None or parted_right else right.first
    start, end = stretch.start, stretch.end
    against = stretch.against
    agreement = _agreement(stretch)
    # Equal messages on both sides prove all of the stretch, unless more remains of our records
    # contradict the source than agree.
    if before is not None and after is not None:
        if len(against) > max(stretch.rows, stretch.keys, stretch.alike):
            return (f"the remains of this store's log contradict {plural(len(against), 'message')}"
                    f", the first at {against[0][0]}")
        return Proven(start, end, before, after,
                      f"the messages at {before} and {after} are equal{agreement}")
    _displaced(parts, source, stretch)
    agreement = _agreement(stretch)
    # An equal message only before the stretch: the logs may diverge after the last agreement.
    if before is not None:
        contradicted = [place for place, _ in against if place >= stretch.agreed_end]
        end = _far(parts, source, comparison, stretch, left.end if left else start)
        if end <= start:
            return _one_sided(source, contradicted, "may diverge there: the remains of this "
                              "store's log also match messages of another log")
        return Proven(start, end, before, None,
                      f"the messages up to {before} are equal{agreement}")
    # An equal message only after the stretch.
    if after is not None:
        contradicted = [behind for _, behind in against if behind <= stretch.agreed_first
                        or stretch.agreed_first < 0]
        if contradicted:
            start = stretch.agreed_first if stretch.agreed_first >= 0 else end
        elif not start:
            start = _head(parts)
        if start >= end:
            return _one_sided(
                source, contradicted, "starts there, or diverges before it" if stretch.start
                else "starts before this store's log, which has no trace of that part: it expired")
        return Proven(start, end, None, after,
                      f"the messages from {after} on are equal{agreement}")
    # No equal message: only the index or the remains of our records can prove a part.
    if (stretch.keys or stretch.alike) and not against and not comparison.conflicts.items:
        if comparison.bare:
            end = _far(parts, source, comparison, stretch, start)
            return Proven(start or _head(parts), end, None, None,
                          f"no message of this store is left{agreement}")
        return Proven(stretch.agreed_first, stretch.agreed_end, None, None,
                      f"this store has no message in this range{agreement}")
    return "no equal message before or after it"


def has_parted(source: LogSource, comparison: Comparison, stretch: EmptyRange, runs: Runs) -> bool:
    """Return whether our log diverges from the source's after a stretch.

    Our log diverges if no equal message follows and queue offsets of the source's messages in the
    stretch belong to other messages in our log (``runs``). A single such queue offset may be due to
    a flipped bit. It counts only if the remains of our log in the stretch also contradict the
    source.
    """
    if stretch.end == ENDLESS or comparison.equal.behind(stretch.end) is not None:
        return False
    enough = 1 if stretch.against else 2
    for item in comparison.offered.within(stretch.start, stretch.end):
        for place, size in _records_of(source, max(item.start, stretch.start),
                                       min(item.end, stretch.end)):
            there = source.log.locate(place)
            record = None if there is None else decode(there[0].read(there[1], size))
            if record is not None and sysflag.has_consume_queue_row(record.sys_flag):
                enough -= runs.has((os.fsdecode(record.topic), record.queue_id),
                                   record.queue_offset)
                if not enough:
                    return True
    return False


def _far(parts: Sequence[LogPart], source: LogSource, comparison: Comparison,
         stretch: EmptyRange, equal_end: int) -> int:
    """Return the physical offset up to which the source's log is proven to be the same in a
    stretch.

    ``equal_end``: end of the equal range before the stretch. The result is `ENDLESS` if the rest of
    the source's log can be copied, as a slave copies its master's log. That requires three things:

    * The stretch reaches the end of our log.
    * Nothing of our log, consume queues or index is left after the proven end.
    * Our last message is equal in the source, so the logs did not diverge before.
    """
    _begun(parts, source, comparison, stretch)
    end = max(stretch.agreed_end, stretch.timed_end if not stretch.against else -1)
    if stretch.end < ENDLESS or max(end, equal_end) < stretch.start or any(
            place >= end for place, _ in stretch.against):
        return end
    low, witness = max(end, stretch.start), parts[0].witness
    if witness is None or not len(witness.rows(low - _NEAR, low)[0]):
        return end  # entries would not show a loss
    if len(witness.rows(low, ENDLESS)[0]) or len(witness.keys(low, ENDLESS)[0]):
        return end
    return end if _holds_anything(parts, low) else ENDLESS


def _begun(parts: Sequence[LogPart], source: LogSource, comparison: Comparison,
           stretch: EmptyRange) -> None:
    """Compare the headers of our torn or damaged records with those of the source's records. Add
    the records that agree, and those that contradict each other, to ``stretch``.
    """
    for number, low, high in by_part(parts, stretch.start, stretch.end):
        with parts[number].open() as opened:
            for item in comparison.offered.within(low, high):
                for place, size in _records_of(source, max(item.start, low),
                                               min(item.end, high)):
                    ours = opened.read(place - opened.base, size)
                    theirs = source.log.locate(place)
                    if theirs is None or not any(ours):
                        continue
                    same = _same_message(ours, theirs[0].read(theirs[1], size))
                    if same:
                        stretch.alike += 1
                        stretch.agree(place, place + size)
                    elif same is not None:
                        stretch.against.append((place, place + size))
    stretch.against.sort()


def _same_message(ours: bytes, theirs: bytes) -> bool | None:
    """Return whether ``ours`` is what is left of the complete record ``theirs`` at the same offset.

    True if body CRC, queue offset and store time are equal, or if an earlier repair kept the record
    with its damage. False if at least two of these three fields and the size differ; fields that
    are 0 in ``ours`` do not count. None if unknown.
    """
    try:
        record = decode(theirs)
    except FormatError:
        return None
    try:
        if kept_from(decode(ours), record):
            return True
    except FormatError:
        pass
    bits = record.sys_flag & HOST_BITS

    def of(name: str, data: bytes) -> bytes:
        field = fixed_field(name, bits)
        return data[field.offset:field.offset + field.size]

    if any(of(name, ours) != of(name, theirs) for name in _PLACED):
        return None
    if any(of("body_crc", theirs)) and all(
            of(name, ours) == of(name, theirs) for name in _NEVER_BY_CHANCE):
        return True
    others = [name for name in _TELLING
              if any(of(name, ours)) and of(name, ours) != of(name, theirs)]
    return False if len(others) > 1 else None


def _displaced(parts: Sequence[LogPart], source: LogSource, stretch: EmptyRange) -> None:
    """Compare our records in misplaced pages with the source's records at the right offsets.

    Records that agree, and records that contradict, are added to ``stretch``.
    """
    for number, low, high in by_part(parts, stretch.start, stretch.end):
        part = parts[number]
        if part.path is None and not part.pieces:
            continue
        with part.open() as opened:
            for position, record in misplaced(opened, low - part.base, high - part.base):
                place = -1 if isinstance(record, int) else record.physical_offset
                there = source.log.locate(place) if (
                    not isinstance(record, int) and stretch.start <= place < stretch.end
                ) else None
                if isinstance(record, int) or there is None:
                    continue
                raw = there[0].read(there[1], record.total_size)
                if raw == opened.read(position, record.total_size):
                    stretch.alike += 1
                    stretch.agree(place, place + len(raw))
                elif any(raw):  # else the source ends before it
                    stretch.against.append((place, place + len(raw)))
    stretch.against.sort()


def _head(parts: Sequence[LogPart]) -> int:
    """Return the physical offset at which the lost first files of our log start. Expired files are
    not restored.
    """
    base, witness = parts[0].base, parts[0].witness
    if witness is None:
        return 0
    rows, _ = witness.rows(0, base)
    keys, _ = witness.keys(0, base)
    first_places = [int(places[0]) for places in (rows, keys) if len(places)]
    if first_places:
        size = parts[0].size
        return max(0, base - -(-(base - min(first_places)) // size) * size)
    anything = len(witness.rows(base, ENDLESS)[0]) or len(witness.keys(base, ENDLESS)[0])
    return base if anything else 0


def _records_of(source: LogSource, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (physical offset, size) of a source's records in ``[start, end)``, at most
    `_MAX_HEADS`.
    """
    position, left = start, _MAX_HEADS
    while position < end and left > 0 and (
            place := source.log.locate(position)) is not None:
        walk = Walk(place[0], place[1], min(place[0].size, end - place[0].base))
        for batch in walk:
            sizes = batch.column("total_size")[:left]
            yield from zip(batch.offset[:left].tolist(), sizes.tolist(), strict=True)
            left -= len(sizes)
            if left <= 0:
                return
        position = place[0].base + max(walk.position, place[1] + 1)


def _holds_anything(parts: Sequence[LogPart], start: int) -> bool:
    """Return whether any byte from a physical offset on is not zero."""
    for number, low, high in by_part(parts, start, ENDLESS):
        with parts[number].open() as opened:
            position = opened.next_data(low - opened.base)
            while position < high - opened.base:
                if any(opened.read(position, _BLOCK)):
                    return True
                position = opened.next_data(position + _BLOCK)
    return False


def by_part(parts: Sequence[LogPart], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part number, start, end) for a range of physical offsets."""
    for number, part in enumerate(parts):
        low, high = max(part.base, start), min(part.end, end)
        if low < high:
            yield number, low, high


def _agreement(stretch: EmptyRange) -> str:
    """Describe how many of this store's entries, index keys and records agree with the source.

    Return an empty string if none of them agree.
    """
    counts = [plural(count, *names) for count, *names in (
        (stretch.rows, "entry", "entries"), (stretch.keys, "key"),
        (stretch.alike, "unproven record")) if count]
    if not counts:
        return ""
    is_singular = stretch.rows + stretch.keys + stretch.alike == 1
    return f"; {' and '.join(counts)} agree{'s' if is_singular else ''}"


def _one_sided(source: LogSource, contradicted: Sequence[int], words: str) -> str:
    if contradicted:
        return f"the remains of this store's log contradict it at {contradicted[0]}"
    return f"{source.name} {words}"
