"""Recover a queue of a tier (tiered.md §4, §8.3, §8.4, §17.6).

Physical offsets are corrected and damaged records repaired in the commit log. The consume queue is
rebuilt from the messages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import IO

import numpy as np

from rmqctl.checks.verify.common import plural
from rmqctl.ext.tiered.displaced import Shifted
from rmqctl.ext.tiered.flat_file import FlatFile, FlatQueue, QueueName, Segment
from rmqctl.ext.tiered.recover.damaged import Patched, find_damaged, with_units
from rmqctl.ext.tiered.recover.survey import (
    PHYSICAL_OFFSET,
    CommitLogSurvey,
    close_up,
    copy_ranges,
    correct_offsets,
    survey,
)
from rmqctl.ext.tiered.recover.times import joined, mend_times
from rmqctl.ext.tiered.recover.units import (
    Expected,
    OffsetRun,
    RebuiltUnits,
    UnitFile,
    at_their_places,
    split_names,
    unit_files,
    wrong_names,
)
from rmqctl.ext.tiered.witness import QueueWitness
from rmqctl.files.durable import failed, make_folders
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, UNIT_SIZE, is_coda
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Changes, Create, FileContent, Lost, Patch, Replace
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.problems import ambiguity

_MAX_RUNS, _MAX_ROUNDS = 8, 4


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """A segment's state after the recovery.

    ``begin`` and ``end``: first and last store time of its messages; `NEVER` if it has none.
    ``all_times``: the times of all messages are known (the times of expired messages are unknown).
    ``quirk``: the two times that a broker reads instead; None if it reads the right times.
    """

    base: int
    size: int
    begin: int
    end: int
    mtime_ms: int | None
    quirk: tuple[int, int] | None = None
    all_times: bool = True


def copy_renamed(changes: Changes, flat: FlatFile, segment: Segment, target: str) -> None:
    """Plan to copy a segment to its correct name. The caller moves the misnamed file aside."""
    full = os.path.abspath(flat.reader.where(segment.path))
    changes.act(Create(target, FileContent(full, movable=False), segment.mtime_ms * 1_000_000),
                "rename", segment.name, os.path.basename(target),
                "its name is wrong: a broker would not find it", "")


@dataclass(slots=True)
class RecoveredQueue(Changes):
    """Plan for a queue, and the queue's state after the recovery. The queue offsets are then
    ``[first, last)``.

    ``refs``: path of a file with the position (int64) to which each unit points.
    ``shifted``: messages whose physicalOffset is corrected.
    ``view``: the queue with its recovered commit log, if files change.
    ``ambiguous``: number of skipped records that may be messages.
    """

    name: QueueName
    commit_log: list[RecoveredSegment] = field(default_factory=list)
    consume_queue: list[RecoveredSegment] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    lost_total: int = 0
    shifted: list[Shifted] = field(default_factory=list)
    first: int = 0
    last: int = 0
    refs: str = ""
    view: FlatQueue | None = None
    ambiguous: int = 0


def recover_queue(queue: FlatQueue, folder: str, entry_bases: Iterable[int], most: int, *,
                  drop_orphans: bool, keep_ambiguous: bool = False,
                  changes: bool = True) -> RecoveredQueue:
    """Plan the recovery of a queue, with its new files in the scratch folder ``folder``.

    ``entry_bases``: bases of consume queue files in the metadata.
    ``most``: maximum number of units in a file.
    ``keep_ambiguous``: treat intact records that may be in a message body as messages.
    ``changes``: if False, only examine the queue.
    Raises: StoreIOError.
    """
    return QueueRecovery(queue, folder, drop_orphans=drop_orphans, keep_ambiguous=keep_ambiguous,
                         changes=changes).run(entry_bases, most)


class QueueRecovery:
    """The recovery of a queue, see `recover_queue`."""

    def __init__(self, queue: FlatQueue, folder: str, *, drop_orphans: bool, keep_ambiguous: bool,
                 changes: bool) -> None:
        self._queue, self._folder = queue, folder
        self._drop, self._keep, self._changes = drop_orphans, keep_ambiguous, changes
        self._out = RecoveredQueue(queue.name, refs=os.path.join(folder, "refs"))
        make_folders(folder, durable=False)

    def run(self, entry_bases: Iterable[int], most: int) -> RecoveredQueue:
        """Plan the steps in order of execution. Raises: StoreIOError."""
        out, queue = self._out, self._queue
        # Names: keep one file per base, move the others aside.
        log, wrong = split_names(queue.commit_log)
        rows, strange = split_names(queue.consume_queue, UNIT_SIZE)
        self._move_aside(wrong, "another file has the same base offset")
        self._move_aside(strange, "no consume queue file begins here")
        # The commit log: survey it, with its files at the offsets that their messages contain.
        surveyed = self._survey_placed(log, rows)
        self._rename([*wrong_names(surveyed.log), *wrong_names(rows)])
        # Messages with a wrong physicalOffset.
        if self._changes and surveyed.shifted:
            surveyed = self._close_up(surveyed)
        # Damaged records: repair them if the repair is proven, else give them units.
        bounds: list[tuple[int, int, int]] = []
        if self._changes:
            surveyed, bounds = self._mend(surveyed)
        log = surveyed.log
        # Units: keep those of the queue, add those of messages.
        units = RebuiltUnits(log, rows, Expected(surveyed.rows), bounds)
        if self._changes:
            units.fill(before=not self._drop, behind=not self._drop)
        # The files of the consume queue.
        files = unit_files(units.runs, rows.segments, map(units.kept, rows.segments), entry_bases,
                           most)
        if not self._changes:
            files = [file for file in files if file.segment is not None]
        end = self._write_units(units, files)
        self._plan_empty_files(units, files)
        # The future log segments, without orphans if they are dropped.
        self._plan_log_segments(surveyed, end)
        # What cannot be recovered.
        out.notes.extend(_notes(queue, surveyed, units, end if self._drop else None,
                                changes=self._changes))
        if self._changes:
            out.shifted = surveyed.shifted
            out.lost_total = units.cut
            out.lost = [Lost(queue.name.topic, queue.name.queue_id, queue_offset,
                             unit.commit_log_offset, unit.size, by="consumequeue")
                        for queue_offset, unit in units.lost]
        out.ambiguous = len(surveyed.doubtful)
        out.first = units.runs[0].start if units.runs else 0
        out.last = units.runs[-1].end if units.runs else 0
        if log.segments and len(surveyed.rows):
            out.first = max(out.first, int(surveyed.rows["queue_offset"][0]))
        return out

    def _survey_placed(self, log: FlatFile, rows: FlatFile) -> CommitLogSurvey:
        """Survey the log. If all messages of a segment imply another base, move the segment there.
        Remove a segment that contains no message and overlaps another segment. After each of these
        changes, survey the log again.
        """
        path = os.path.join(self._folder, "rows")
        surveyed = survey(self._queue, log, path)
        witness = log.witness() if self._keep and log.witness is not None else None
        while surveyed.doubtful and isinstance(witness, QueueWitness) and witness.keep(
                surveyed.doubtful):
            surveyed = survey(self._queue, log, path)
        if not self._changes:
            return surveyed
        if surveyed.misplaced:
            log, moved = at_their_places(log, surveyed.misplaced)
            if moved:
                surveyed = survey(self._queue, log, path)
                self._out.view = FlatQueue(self._queue.name, log, rows)
        if in_the_way := surveyed.in_the_way():
            self._move_aside(in_the_way, "contains no message of its own, and an earlier segment "
                             "extends past its start")
            log, _ = split_names(replace(log, segments=[
                segment for segment in log.segments if segment not in in_the_way]))
            surveyed = survey(self._queue, log, path)
        return surveyed

    # -- names ------------------------------------------------------------------------------------

    def _target(self, kind: str, base: int) -> str:
        name = self._queue.name
        return names.segment_path(name.cluster, name.broker, name.topic, name.queue_id, kind, base)

    def _rename(self, segments: Sequence[Segment]) -> None:
        """Plan steps that copy misnamed commit log files to their correct names, and move misnamed
        consume queue files aside, since these are rebuilt.
        """
        for segment in segments if self._changes else ():
            kind = segment.path.split("/")[-2]
            target = self._target(kind, segment.base)
            if kind == names.COMMIT_LOG:
                copy_renamed(self._out, self._queue.commit_log, segment, target)
            self._move_aside([segment], "its name is wrong")

    def _move_aside(self, segments: Iterable[Segment], why: str) -> None:
        for segment in segments if self._changes else ():
            self._out.move_aside(segment.path, segment.size, why)

    # -- the commit log ---------------------------------------------------------------------------

    def _close_up(self, surveyed: CommitLogSurvey) -> CommitLogSurvey:
        """Survey the log without repeated parts of blocks. Return this survey if it has less
        damage, else the given survey.
        """
        log, files = close_up(surveyed, self._folder)
        if not files:
            return surveyed
        queue = FlatQueue(self._queue.name, log, self._queue.consume_queue)
        path = os.path.join(self._folder, "rows-again")
        again = survey(queue, log, path)
        remove_file(path)
        if again.damaged >= surveyed.damaged:
            return surveyed
        correct_offsets(again, files)
        for segment in surveyed.log.segments:
            if segment.path in files:
                target = self._target(names.COMMIT_LOG, segment.base)
                self._out.act(Replace(target, FileContent(files[segment.path]),
                                      segment.mtime_ms * 1_000_000),
                              "close up", segment.size, segment.usable,
                              "a part of a block is stored twice; without the first copy, every "
                              "unit points to its message")
        self._out.view = queue
        return again

    def _mend(self,
              surveyed: CommitLogSurvey) -> tuple[CommitLogSurvey, list[tuple[int, int, int]]]:
        """Plan the patches that repair records and correct wrong physical offsets.

        Return two values: the survey, extended by units that point to the remaining damage; and the
        bounds of the damage for each of these units.
        """
        out = self._out
        damaged = find_damaged(surveyed, self._queue.name)
        mended: dict[str, list[OverlayPiece]] = {}
        why: list[str] = []
        if not any(isinstance(step, Replace) for step in out.steps):
            below, count = surveyed.log.reader, 0
            # Records first: a repaired record is evidence for its neighbours.
            for _ in range(_MAX_ROUNDS):
                if not damaged.mended:
                    break
                count += sum(map(len, damaged.mended.values()))
                mended = joined(mended, damaged.mended, below)
                surveyed = self._survey_with(surveyed, Patched(below, mended))
                damaged = find_damaged(surveyed, self._queue.name)
            if count:
                why.append("damaged fields restored from the rest of the record and its queue: "
                           f"{count}")
            # Store times last, in rounds: corrected times help to correct their neighbours.
            for _ in range(_MAX_ROUNDS):
                times = mend_times(surveyed)
                if not times.pieces:
                    break
                mended = joined(mended, times.pieces, below)
                surveyed = self._survey_with(surveyed, Patched(below, mended))
                why += times.reasons
            if mended:
                damaged = find_damaged(surveyed, self._queue.name)
        self._patch(surveyed, mended, why)
        for first, end in damaged.shared[:_MAX_RUNS]:
            out.notes.append(f"{self._queue.name.path}: the damaged messages {first} to {end - 1} "
                             "share one range without index items to separate them: their new "
                             "units point to equal parts of it")
        if damaged.units:
            path = os.path.join(self._folder, "rows-with-units")
            surveyed.rows = with_units(surveyed, damaged.units, path)
            remove_file(path)
        return surveyed, damaged.bounds

    def _survey_with(self, surveyed: CommitLogSurvey, reader: Patched) -> CommitLogSurvey:
        """Survey the log as it will be after the recovery; ``reader`` returns repaired bytes."""
        log = replace(surveyed.log, reader=reader)
        self._out.view = FlatQueue(self._queue.name, log, self._queue.consume_queue)
        path = os.path.join(self._folder, "rows-mended")
        surveyed = survey(self._out.view, log, path)
        remove_file(path)
        return surveyed

    def _patch(self, surveyed: CommitLogSurvey, mended: Mapping[str, Sequence[OverlayPiece]],
               reasons: Sequence[str]) -> None:
        """Plan patches for ``mended`` records and wrong physical offsets."""
        by_segment = {path: list(pieces) for path, pieces in mended.items()}
        for shifted in surveyed.shifted:
            segment = surveyed.log.segment_of(shifted.position)
            if segment is None or not segment.name_ok:
                continue  # a file is moved or changed, not both
            by_segment.setdefault(segment.path, []).append(OverlayPiece.of(
                shifted.position - segment.base + PHYSICAL_OFFSET.offset,
                shifted.position.to_bytes(PHYSICAL_OFFSET.size, "big")))
        for path, pieces in by_segment.items():
            why: list[str] = []
            if path in mended:
                why += reasons[:_MAX_RUNS]
                if len(reasons) > _MAX_RUNS:
                    why.append(f"and {len(reasons) - _MAX_RUNS} more")
            if len(pieces) > len(mended.get(path, ())):
                why.append("an interrupted write was repeated: these messages contain wrong "
                           "physical offsets")
            pieces.sort(key=lambda piece: piece.at)
            self._out.act(Patch(path, tuple(pieces)),
                          "mend records" if path in mended else "put places right", len(pieces),
                          None, "; ".join(why), "place")

    def _plan_log_segments(self, surveyed: CommitLogSurvey, end: int) -> None:
        """Add the segments that the log will have after the recovery. ``end``: position after the
        last message that has a unit.
        """
        log = surveyed.log
        cut = self._cut_orphans(surveyed, end)
        for surveyed_segment in surveyed.segments:
            segment, size = surveyed_segment.segment, surveyed_segment.segment.usable
            if segment is log.segments[-1] and cut is not None:
                size = min(size, cut - segment.base)
            begin, last = (surveyed_segment.begin, surveyed_segment.end) if size else (NEVER, NEVER)
            if 0 < size < segment.usable:
                begin, last = surveyed.times(segment.base, segment.base + size)
            self._out.commit_log.append(RecoveredSegment(
                segment.base, size, begin, last, segment.mtime_ms, surveyed_segment.quirk,
                all_times=not surveyed_segment.damaged
                and bool(surveyed_segment.messages or not size)))

    def _cut_orphans(self, surveyed: CommitLogSurvey, end: int) -> int | None:
        """Plan to truncate the log at ``end``, after the last message with a unit, if this was
        requested. Return the logical offset of the truncation, or None.
        """
        log = surveyed.log
        if not log.segments or end >= log.end:
            return None
        last, out = log.segments[-1], self._out
        cut = max(end, last.base)
        if any(position >= cut for position, _ in surveyed.doubtful):
            return None
        tail = last.end - cut
        if tail == CODA_SIZE and is_coda(log.read(cut, CODA_SIZE)):
            return None
        if not (self._drop and self._changes) or not tail or not last.name_ok:
            return None
        path = os.path.join(self._folder, f"log-{last.base}")
        copy_ranges(log.reader, last.path, [(0, cut - last.base)], path)
        target = self._target(names.COMMIT_LOG, last.base)
        self._out.act(Replace(target, FileContent(path), last.mtime_ms * 1_000_000), "cut",
                      last.size, cut - last.base, "no unit points past this offset")
        if last.size > last.usable or end < last.base:
            out.notes.append(f"{self._queue.commit_log.folder}: ranges without units in earlier "
                             "segments are kept")
        return cut

    # -- the consume queue ------------------------------------------------------------------------

    def _write_units(self, units: RebuiltUnits, files: Sequence[UnitFile]) -> int:
        """Plan the changed consume queue files. Return the position after the last message that has
        a unit.
        """
        reach = 0
        try:
            with open(self._out.refs, "wb") as refs:
                for file in files:
                    reach = max(reach, self._write_file(units, file, refs))
        except OSError as error:
            raise failed(error, self._out.refs, "write to") from None
        return reach

    def _write_file(self, units: RebuiltUnits, place: UnitFile, refs: IO[bytes]) -> int:
        path = os.path.join(self._folder, f"units-{place.base}")
        segment, queue_offset = place.segment, place.start
        reach, changed, begin, end, all_stored = 0, False, NEVER, NEVER, True
        wrong, added = units.counts.wrong, units.counts.added
        # Write the units, a block at a time, and their targets to ``refs``.
        with open(path, "wb") as file:
            for block, differs in units.blocks(place.start, place.end):
                changed |= differs
                file.write(block.tobytes())
                offsets = block["commit_log_offset"].astype(np.int64)
                refs.write(offsets.tobytes())
                ends = offsets + block["size"].astype(np.int64)
                inside = (offsets >= 0) & (ends <= units.log.end)
                if inside.any():
                    reach = max(reach, int(ends[inside].max()))
                low, high, complete = units.times(queue_offset, block)
                all_stored &= complete
                if low != NEVER:
                    begin = min(begin, low)
                    end = high if end == NEVER else max(end, high)
                queue_offset += len(block)
        wrong, added = units.counts.wrong - wrong, units.counts.added - added
        size = (place.end - place.start) * UNIT_SIZE
        if not self._changes:
            size = segment.usable - segment.usable % UNIT_SIZE if segment else size
        self._out.consume_queue.append(RecoveredSegment(
            place.base, size, begin, end, segment.mtime_ms if segment else None,
            all_times=all_stored))
        # Plan the action and its reason.
        if not self._changes or (segment is not None and segment.name_ok and not changed
                                 and segment.size == size):
            remove_file(path)
            return reach
        target = self._target(names.CONSUME_QUEUE, place.base)
        if segment is None or not segment.name_ok:
            self._out.act(Create(target, FileContent(path)), "rebuild", None, size, (
                f"missing; units rebuilt from messages of the commit log: {added}"
                if segment is None else "with the right name"))
            return reach
        why = []
        if segment.size % UNIT_SIZE:
            why.append("it ends in the middle of a unit")
        if wrong:
            why.append(f"units that do not point to their message: {wrong}")
        if added:
            why.append(f"messages without a unit: {added}")
        if segment.size - segment.size % UNIT_SIZE > size:
            why.append("the last units point past the end of the commit log" if units.cut else
                       "it extends past the start of the next file")
        self._out.act(Replace(target, FileContent(path)), "rebuild" if wrong or added else "cut",
                      segment.size, size, "; ".join(why) or "its units differ from those expected")
        return reach

    def _plan_empty_files(self, units: RebuiltUnits, files: Sequence[UnitFile]) -> None:
        """Plan what to do with consume queue files that are empty or contain no kept unit."""
        used = {file.base for file in files}
        last = max(used, default=0)
        for segment in units.queue.segments:
            if segment.base in used or (not segment.name_ok and self._changes):
                continue  # a file with a wrong name is already moved aside
            if segment.size and self._changes:
                self._move_aside([segment], "none of its units points to a message")
            elif segment.base < last and self._changes:
                self._move_aside([segment], "it is empty, but later files are not: a broker would "
                                 "find a gap")
            elif segment.name_ok:
                self._out.consume_queue.append(RecoveredSegment(
                    segment.base, segment.usable - segment.usable % UNIT_SIZE, NEVER, NEVER,
                    segment.mtime_ms))
        self._out.consume_queue.sort(key=lambda segment: segment.base)


def _notes(queue: FlatQueue, surveyed: CommitLogSurvey, units: RebuiltUnits, dropped: int | None, *,
           changes: bool) -> Iterator[str]:
    """Yield notes about the parts of a queue that cannot be recovered or are kept unchanged.
    ``dropped``: logical offset from which orphans are dropped; None if they are kept.
    """
    where = f"{queue.name.topic}/{queue.name.queue_id}"
    # Report what is wrong in the commit log, segment by segment.
    if surveyed.doubtful:
        yield (f"{where}: {ambiguity(surveyed.doubtful)}; skipped unless --ambiguous keep is given")
    for segment, base in surveyed.misplaced:
        yield (f"{surveyed.log.reader.where(segment.path)}: its messages belong to a segment that "
               f"begins at {base}, but it does not fit there")
    if surveyed.damaged:
        yield (f"{where}: {surveyed.damaged} bytes of the commit log are not messages; they are "
               f"kept (from {surveyed.spans[0].offset} on)")
    # Report messages that no entry can point to, and entries that point to no message.
    if units.damaged:
        yield (f"{where}: only damaged bytes remain of {plural(units.damaged, 'queue offset')} "
               f"from {units.first_damaged} on; a broker skips their units, which point to these "
               "bytes")
    beyond = sum(part.beyond for part in surveyed.segments)
    if beyond:
        yield (f"{where}: {plural(beyond, 'message')} after the start of the next segment, where "
               "no unit can point to them")
    if surveyed.foreign:
        yield f"{where}: {plural(surveyed.foreign, 'message')} of other queues in its commit log"
    if surveyed.bad_crc:
        yield (f"{where}: {plural(surveyed.bad_crc, 'message')} with a body CRC mismatch")
    if units.counts.unknown:
        yield (f"{where}: {plural(units.counts.unknown, 'unit')} that no longer point to a "
               "complete message; they are kept")
    # A gap in the commit log means lost messages.
    for before, after in surveyed.log.gaps():
        yield (f"{where}: the commit log has a gap from {before.end} to {after.base}; the messages "
               "there are lost")
    # Report queue offsets without entries, with an upper limit.
    missing = units.missing() if changes and dropped is None else []
    for run in missing[:_MAX_RUNS]:
        yield (f"{where}: queue offsets {_range(run)} are in the commit log but get no units, "
               "because a gap separates them from the queue's other messages")
    if len(missing) > _MAX_RUNS:
        yield f"{where}: {len(missing) - _MAX_RUNS} more such ranges"
    for left, right in pairwise(units.runs):
        yield (f"{where}: units and messages at queue offsets "
               f"{_range(OffsetRun(left.end, right.start))} are missing; the gap remains")


def _range(run: OffsetRun) -> str:
    return str(run.start) if run.end - run.start == 1 else f"{run.start} to {run.end - 1}"


def remove_file(path: str) -> None:
    """Delete a scratch file that no step needs. Raises: StoreIOError."""
    try:
        os.unlink(path)
    except OSError as error:
        raise failed(error, path, "remove") from None
