"""One queue of a tier made whole: its commit log where messages say another place than theirs, its
consume queue from the messages (tiered.md §4, §8.3, §8.4, §17.6).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rmqctl.actions import Action
from rmqctl.files.durable import failed, make_folders
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.units import CODA_SIZE, NEVER, UNIT_SIZE, is_coda
from rmqctl.repair.plan import Create, FileContent, Lost, MoveAside, Patch, Replace, Step
from rmqctl.scan.overlay import Piece
from rmqctl.tiered.flat_file import FlatFile, Segment
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.recover.closing import close_up, put_right
from rmqctl.tiered.recover.facts import HealedQueue, SegmentFacts
from rmqctl.tiered.recover.layout import Place, at_their_places, lay_out, split_names
from rmqctl.tiered.recover.messages import remarks
from rmqctl.tiered.recover.scratch import copy_ranges, forget
from rmqctl.tiered.recover.shifted import PLACE
from rmqctl.tiered.recover.survey import Survey, survey
from rmqctl.tiered.recover.units import Expected, Units


def heal(queue: FlatQueue, folder: str, known: Iterable[int], most: int, *,
         drop_orphans: bool, units: bool = True) -> HealedQueue:
    """Plans for one queue. ``folder`` (of the scratch) is for the new files; ``known`` are bases of
    consume queue files that metadata has, ``most`` the units in a file. Without ``units`` it is
    only looked at. StoreIOError.
    """
    return _Healing(queue, folder, drop_orphans=drop_orphans, changes=units).run(known, most)


class _Healing:
    def __init__(self, queue: FlatQueue, folder: str, *, drop_orphans: bool,
                 changes: bool) -> None:
        self._queue, self._folder = queue, folder
        self._drop, self._changes = drop_orphans, changes
        self._out = HealedQueue(queue.name, refs=os.path.join(folder, "refs"))
        make_folders(folder, durable=False)

    def run(self, known: Iterable[int], most: int) -> HealedQueue:
        out, queue = self._out, self._queue
        log, renamed, wrong = split_names(queue.commit_log)
        rows, odd_rows, strange = split_names(queue.consume_queue, UNIT_SIZE)
        self._aside(wrong, "another file has its place")
        self._aside(strange, "no consume queue file begins there")
        found = survey(queue, log, os.path.join(self._folder, "rows"))
        if self._changes and found.misplaced:
            log, moved = at_their_places(log, found.misplaced)
            if moved:
                found = survey(queue, log, os.path.join(self._folder, "rows"))
                renamed = [one for one in log.segments if not one.name_ok]
                self._out.view = FlatQueue(queue.name, log, rows)
        if self._changes and (strays := found.strays()):
            self._aside(strays, "no message of its own is in it, and an earlier segment reaches "
                                "over its beginning")
            log, renamed, _ = split_names(replace(log, segments=[
                one for one in log.segments if one not in strays]))
            found = survey(queue, log, os.path.join(self._folder, "rows"))
        self._rename(renamed + odd_rows)
        if self._changes and found.shifted:
            found = self._close_up(found)
            log = found.log
            self._unshift(found)
        units = Units(log, rows, Expected(found.rows))
        if self._changes:
            units.fill(before=not self._drop, behind=not self._drop)
        places = lay_out(units.runs, rows.segments, map(units.kept, rows.segments), known, most)
        if not self._changes:
            places = [one for one in places if one.segment is not None]
        end = self._write(units, places)
        self._empty(units, places)
        self._log_facts(found, log, end)
        out.notes.extend(remarks(queue, found, units, end if self._drop else None,
                                 changes=self._changes))
        if self._changes:
            out.shifted = found.shifted
            out.lost_total = units.cut
            out.lost = [Lost(queue.name.topic, queue.name.queue_id, at, one.commit_log_offset,
                             one.size, by="consumequeue") for at, one in units.lost]
        out.first = units.runs[0].start if units.runs else 0
        out.last = units.runs[-1].end if units.runs else 0
        if log.segments and len(found.rows):
            out.first = max(out.first, int(found.rows["queue_offset"][0]))
        return out

    # -- names ------------------------------------------------------------------------------------

    def _target(self, kind: str, base: int) -> str:
        name = self._queue.name
        return names.segment_path(name.cluster, name.broker, name.topic, name.queue_id, kind, base)

    def _act(self, step: Step, verb: str, before: str | int | None, after: str | int | None,
             why: str) -> None:
        self._out.steps.append(step)
        self._out.actions.append(Action(verb, step.target, before, after, why))

    def _rename(self, found: Sequence[Segment]) -> None:
        for one in found if self._changes else ():
            folder, kind = one.path.rpartition("/")[0], one.path.split("/")[-2]
            target = self._target(kind, one.base)
            if kind == names.COMMIT_LOG:
                full = os.path.abspath(self._queue.commit_log.reader.where(one.path))
                self._act(Create(target, FileContent(full, movable=False),
                                 one.mtime_ms * 1_000_000),
                          "rename", one.name, os.path.basename(target),
                          "its name is wrong: a broker would not find it")
            self._act(MoveAside(f"{folder}/{one.name}"), "move aside", one.size, None,
                      "its name is wrong")

    def _aside(self, found: Iterable[Segment], why: str) -> None:
        for one in found if self._changes else ():
            self._act(MoveAside(one.path), "move aside", one.size, None, why)

    # -- the commit log ---------------------------------------------------------------------------

    def _close_up(self, found: Survey) -> Survey:
        """The survey of the log without parts of blocks that are there twice, where that heals."""
        log, files = close_up(found, self._folder)
        if not files:
            return found
        queue = FlatQueue(self._queue.name, log, self._queue.consume_queue)
        again = survey(queue, log, os.path.join(self._folder, "rows-again"))
        forget(os.path.join(self._folder, "rows-again"))
        if sum(one.damaged for one in again.segments) >= sum(
                one.damaged for one in found.segments):
            return found
        put_right(again, files)
        for one in found.log.segments:
            if one.path in files:
                target = self._target(names.COMMIT_LOG, one.base)
                self._act(Replace(target, FileContent(files[one.path]), one.mtime_ms * 1_000_000),
                          "close up", one.size, one.usable, "a part of a block is there twice: "
                          "without it everything is where units lead")
        self._out.view = queue
        return again

    def _unshift(self, found: Survey) -> None:
        by_segment: dict[str, list[Piece]] = {}
        for one in found.shifted:
            segment = found.log.segment_of(one.position)
            if segment is None or not segment.name_ok:
                continue  # a file is moved or changed, not both
            by_segment.setdefault(segment.path, []).append(Piece.of(
                one.position - segment.base + PLACE.offset,
                one.position.to_bytes(PLACE.size, "big")))
        for path, pieces in by_segment.items():
            self._act(Patch(path, tuple(pieces)), "put places right", len(pieces), None,
                      "a block was written again behind a part of itself: these messages say "
                      "another place than theirs")

    def _log_facts(self, found: Survey, log: FlatFile, end: int) -> None:
        """``end``: behind the last byte that a unit leads to."""
        cut = self._orphans(found, log, end)
        for one in found.segments:
            segment, size = one.segment, one.segment.usable
            if segment is log.segments[-1]:
                size = min(size, cut - segment.base) if cut is not None else size
            begin, last = (one.begin, one.end) if size else (NEVER, NEVER)
            if 0 < size < segment.usable:
                begin, last = found.times(segment.base, segment.base + size)
            self._out.commit_log.append(SegmentFacts(
                segment.base, size, begin, last, segment.mtime_ms, one.quirk,
                known=not one.damaged and bool(one.messages or not size)))

    def _orphans(self, found: Survey, log: FlatFile, end: int) -> int | None:
        """The end of the log without what nothing leads to, where that is to be cut off."""
        if not log.segments or end >= log.end:
            return None
        last, out = log.segments[-1], self._out
        cut = max(end, last.base)
        tail = last.end - cut
        if tail == CODA_SIZE and is_coda(log.read(cut, CODA_SIZE)):
            return None
        if not (self._drop and self._changes) or not tail or not last.name_ok:
            return None
        path = os.path.join(self._folder, f"log-{last.base}")
        copy_ranges(log.reader, last.path, [(0, cut - last.base)], path)
        target = self._target(names.COMMIT_LOG, last.base)
        self._act(Replace(target, FileContent(path), last.mtime_ms * 1_000_000), "cut", last.size,
                  cut - last.base, "no unit leads to what lies behind")
        if last.size > last.usable or end < last.base:
            out.notes.append(f"{self._queue.commit_log.folder}: what no unit leads to in earlier "
                             "segments stays")
        return cut

    # -- the consume queue ------------------------------------------------------------------------

    def _write(self, units: Units, places: Sequence[Place]) -> int:
        """Steps for the files that change; the end of what their units lead to."""
        reach = 0
        try:
            with open(self._out.refs, "wb") as refs:
                for place in places:
                    reach = max(reach, self._file(units, place, refs))
        except OSError as error:
            raise failed(error, self._out.refs, "write to") from None
        return reach

    def _file(self, units: Units, place: Place, refs: object) -> int:
        path = os.path.join(self._folder, f"units-{place.base}")
        reach, changed, begin, end, known = 0, False, NEVER, NEVER, True
        start, wrong = place.start, 0
        before = (units.counts.wrong, units.counts.made)
        with open(path, "wb") as file:
            for block, differs in units.blocks(place.start, place.end):
                changed |= differs
                file.write(block.tobytes())
                offsets = block["commit_log_offset"].astype(np.int64)
                refs.write(offsets.tobytes())  # type: ignore[attr-defined]
                ends = offsets + block["size"].astype(np.int64)
                inside = (offsets >= 0) & (ends <= units.log.end)
                if inside.any():
                    reach = max(reach, int(ends[inside].max()))
                low, high, whole = units.times(start, block)
                known &= whole
                if low != NEVER:
                    begin = min(begin, low)
                    end = high if end == NEVER else max(end, high)
                start += len(block)
        size = (place.end - place.start) * UNIT_SIZE
        segment = place.segment
        wrong = units.counts.wrong - before[0]
        made = units.counts.made - before[1]
        if not self._changes:
            size = segment.usable - segment.usable % UNIT_SIZE if segment else size
        self._out.consume_queue.append(SegmentFacts(
            place.base, size, begin, end, segment.mtime_ms if segment else None,
            known=known))
        if not self._changes or (segment is not None and segment.name_ok and not changed
                                 and segment.size == size):
            forget(path)
            return reach
        target = self._target(names.CONSUME_QUEUE, place.base)
        if segment is None or not segment.name_ok:
            self._act(Create(target, FileContent(path)), "rebuild", None, size, (
                f"is missing; units made from messages of the commit log: {made}"
                if segment is None else "with the right name"))
        else:
            why = []
            if segment.size % UNIT_SIZE:
                why.append("it ends within a unit")
            if wrong:
                why.append(f"units that lead to no message of theirs: {wrong}")
            if made:
                why.append(f"messages without a unit: {made}")
            if segment.size - segment.size % UNIT_SIZE > size:
                why.append("units at the end lead behind the commit log" if units.cut else
                           "it is longer than up to the next one")
            self._act(Replace(target, FileContent(path)), "rebuild" if wrong or made else "cut",
                      segment.size, size, "; ".join(why) or "its units are not those there are")
        return reach

    def _empty(self, units: Units, places: Sequence[Place]) -> None:
        """Files of which no unit is left, and those that never had one."""
        used = {one.base for one in places}
        last = max(used, default=0)
        for one in units.queue.segments:
            if one.base in used or (not one.name_ok and self._changes):
                continue  # what has a wrong name is moved aside already
            if one.size and self._changes:
                self._act(MoveAside(one.path), "move aside", one.size, None,
                          "none of its units leads to a message")
            elif one.base < last and self._changes:
                self._act(MoveAside(one.path), "move aside", 0, None,
                          "it is empty, and files behind it are not: a broker would meet a gap")
            elif one.name_ok:
                self._out.consume_queue.append(SegmentFacts(
                    one.base, one.usable - one.usable % UNIT_SIZE, NEVER, NEVER, one.mtime_ms))
        self._out.consume_queue.sort(key=lambda one: one.base)
