"""Correct the store times of messages in a queue's commit log if they are impossible or contradict
the index.

The rules are those of the local salvage (`rmqctl.repair.salvage.mend.times`), applied to the tier's
index items. A wrong time also affects the bounds of index files, of segments in the metadata and of
searches by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from rmqctl.damage.evidence import ENDLESS
from rmqctl.damage.records import unless_crc_differs
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.flat_file import FlatFile
from rmqctl.ext.tiered.recover.damaged import Patched
from rmqctl.ext.tiered.recover.survey import CommitLogSurvey
from rmqctl.ext.tiered.witness import QueueWitness
from rmqctl.formats.local import header_rules as rules
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.salvage.mend.times import Between, neighbours_time, proved_time
from rmqctl.scan.overlay import OverlayPiece

_SLACK = 1000
"""Maximum time (ms) by which a store time may be out of order. Store times beyond this are
examined.
"""
_MAX_DOUBTFUL, _BLOCK = 10_000, 1 << 20
_FAR = 1 << 62
"""Limit (ms) for times in calculations. It is larger than any real time, and prevents integer
overflow.
"""


@dataclass(slots=True)
class MendedTimes:
    """Corrected store times. ``pieces``: corrected pieces by the segment's path; ``reasons``:
    reasons for the corrections, as texts.
    """

    pieces: dict[str, list[OverlayPiece]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def mend_times(surveyed: CommitLogSurvey) -> MendedTimes:
    """Return corrections for the store times of messages. Raises: StoreIOError."""
    out, log = MendedTimes(), surveyed.log
    doubtful = list(_doubtful(surveyed))
    shifted = {moved.position: moved.says for moved in surveyed.shifted}
    records = {place: record for place, _, _ in doubtful
               if (record := _record(log, place, shifted.get(place, place))) is not None}
    witness = log.witness() if records and log.witness is not None else None
    keys = witness.times(records) if isinstance(witness, QueueWitness) else {}
    for place, between, impossible in doubtful:
        record, segment = records.get(place), log.segment_of(place)
        if record is None or segment is None or not segment.name_ok:
            continue
        stored = record.store_timestamp
        time, reason = proved_time(stored, between, (), keys.get(place, ()), impossible=impossible)
        if time is None and impossible:
            time, reason = neighbours_time(stored, between)
        if time is None or time == stored:
            continue
        now, then = (message.build(replace(record, store_timestamp=value))
                     for value in (stored, time))
        if unless_crc_differs(then) is None:
            continue
        differs = [byte for byte in range(len(now)) if now[byte] != then[byte]]
        out.pieces.setdefault(segment.path, []).append(OverlayPiece.of(
            place - segment.base + differs[0], then[differs[0]:differs[-1] + 1]))
        out.reasons.append(f"at {place} {reason}")
    return out


def _record(log: FlatFile, place: int, says: int) -> Record | None:
    """Return the intact record at a position that contains the physical offset ``says``."""
    record = log.record_at(place)
    sure = record is not None and record.crc_ok and record.physical_offset == says
    return record if sure else None


def _doubtful(surveyed: CommitLogSurvey) -> Iterator[tuple[int, Between, bool]]:
    """Yield the store times that are out of order, at most `_MAX_DOUBTFUL`.

    Each result is (position, store times before and after, whether the time is impossible).
    """
    rows, count = surveyed.rows, 0
    for start in range(0, len(rows), _BLOCK):
        # Compare each time with its neighbours; the first and last message have only one.
        low, high = max(start - 1, 0), min(start + _BLOCK + 1, len(rows))
        times = np.clip(rows["store_time"][low:high].astype(np.int64), -_FAR, _FAR)
        before, own, behind = times[:-2], times[1:-1], times[2:]
        have_times = (before >= rules.EARLIEST) & (behind >= rules.EARLIEST)
        odd = have_times & rules.stored_at_odd_time(before, own, behind)
        astray = (before <= behind) & ((own < before - _SLACK) | (own > behind + _SLACK))
        for row in np.flatnonzero(odd | astray).tolist():
            first, last = sorted((int(before[row]), int(behind[row])))
            yield (int(rows["position"][low + 1 + row]), Between(first, last), bool(odd[row]))
            count += 1
            if count >= _MAX_DOUBTFUL:
                return
    if len(rows) > 1:
        first, second = (int(time) for time in rows["store_time"][:2])
        if not second - rules.YEARS <= first <= second + _SLACK:
            yield int(rows["position"][0]), Between(-1, second), False
        before_last, last = (int(time) for time in rows["store_time"][-2:])
        if not before_last - _SLACK <= last <= before_last + rules.YEARS:
            yield int(rows["position"][-1]), Between(before_last, ENDLESS), False


def joined(pieces: Mapping[str, Sequence[OverlayPiece]], more: Mapping[str, Sequence[OverlayPiece]],
           below: TierReader) -> dict[str, list[OverlayPiece]]:
    """Merge two sets of corrected pieces, by file. Where pieces overlap, those in ``more`` are
    used. Raises: StoreIOError.
    """
    both = {path: [*pieces.get(path, ()), *more.get(path, ())] for path in {**pieces, **more}}
    reader = Patched(below, both)
    result: dict[str, list[OverlayPiece]] = {}
    for path, some in both.items():
        spans: list[list[int]] = []
        for piece in sorted(some, key=lambda piece: piece.at):
            if spans and piece.at <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], piece.end)
            else:
                spans.append([piece.at, piece.end])
        result[path] = [OverlayPiece.of(low, reader.read(path, low, high - low)) for low,
                        high in spans]
    return result
