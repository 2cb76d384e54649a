"""Salvage of a damaged copy and everything its result must be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rmqctl.broker.recovery import recover_log
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import version_for
from rmqctl.checks.findings import INFO, Finding
from rmqctl.checks.verify.verify import Verification
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.formats.local.consume_queue import FILLER
from rmqctl.repair.plan import Create, MoveAside, Patch
from rmqctl.repair.salvage.salvage import Salvage, salvage
from rmqctl.scan.overlay import LogPart, OverlayPiece
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.repair.damage import Whole, intact

IGNORED = frozenset({"index-missing"})
UNPROVABLE = frozenset({"header-reconsume-times", "header-flag-bits", "property-crc-missing"})
"""Nothing says what such a field was: in a damaged message it stays, and the plan says so."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many messages were intact, how many salvage and a broker keep of them; ``restored``:
    damaged ones that salvage brought back to the byte."""

    intact: int
    kept: int
    broker: int
    restored: int
    lost: int


def apply(root: Path, result: Salvage) -> None:
    """The steps of a salvage, carried out in a copy of the store."""
    for step in result.steps:
        path = root / step.target
        if isinstance(step, Create):
            assert isinstance(step.content, OverlayPiece)
            assert not path.exists()
            path.write_bytes(content(step.content))
            assert step.mtime_ns is not None
        elif isinstance(step, MoveAside):
            path.unlink()
        else:
            assert isinstance(step, Patch)
            with path.open("r+b") as opened:
                for piece in step.pieces:
                    opened.seek(piece.at)
                    opened.write(content(piece))


def content(piece: OverlayPiece) -> bytes:
    size = bytearray(piece.size)
    piece.read_into(memoryview(size), 0)
    return bytes(size)


def records(parts: Sequence[LogPart]) -> dict[int, bytes]:
    """All records of a log that a broker would reach, and nothing else but its blanks."""
    bytes_ats = {}
    open_end = False
    for part in parts:
        with part.open() as source:
            for batch in Walk(source):
                if len(batch):
                    assert not open_end, "a message beyond the end of the log"
                    assert (batch.crc_ok() | (batch.column("body_length") == 0)).all()
                for at in range(len(batch)):
                    bytes_ats[int(batch.offset[at])] = batch.bytes_at(at)
                for span in batch.spans:
                    assert span.kind in ("blank", "zero"), span
                    open_end |= span.kind == "zero"
    return bytes_ats


def rebuild(root: Path, result: Salvage, settings: Settings) -> Dispatcher:
    """Consumequeues and index of the store at ``root`` made anew from the salvaged log."""
    for name in ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    batch_topics = settings.batch_topics
    dispatcher = Dispatcher(str(root), settings, lambda: 1_700_000_000_000,
                            lambda topic: topic in batch_topics)
    for part in result.parts:
        with part.open() as source:
            for batch in Walk(source):
                if len(batch):
                    start = int(batch.start[0])
                    end = int(batch.start[-1] + batch.column("total_size")[-1])
                    dispatcher.dispatch(batch.data[start:end].tobytes(), batch.base + start)
    dispatcher.flush()
    dispatcher.close()
    return dispatcher


def rows_of(root: Path) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Queue offset -> (place, size) of every queue, batch queues too (each offset of a batch)."""
    result: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
    with Store.open(root) as store:
        for key, queue in store.queues.by_key.items():
            rows = result.setdefault(key, {})
            for at, page in queue.pages(queue.first_index, queue.disk_end):
                for number, row in enumerate(page.tolist()):
                    if row[:2] != FILLER[:2] and row[1] > 0:
                        rows[at + number] = row[:2]
            queue.close()
        for key, batch in store.queues.batch.items():
            rows = result.setdefault(key, {})
            for row in batch.all_used():
                for offset in range(int(row["batch_size"])):
                    rows[int(row["msg_base_offset"]) + offset] = (
                        int(row["physical_offset"]), int(row["size"]))
    return result


def is_of_damaged(finding: Finding, whole: Whole, still: Collection[int]) -> bool:
    """Whether a finding is about a message that was not intact before."""
    return not any(number <= (finding.offset or 0) < number + whole.records[number].total_size
                   for number in still)


def check(root: Path, whole: Whole, original_rows: dict[tuple[str, int], dict[int, tuple[
        int, int]]], settings: Settings, commitlog_dirs: Sequence[str] = (),
        **options: str) -> Outcome:
    """Salvages the damaged store at ``root`` in place and asserts all that must hold."""
    generation = settings.profile.generation
    still = intact(whole, root, commitlog_dirs)
    by_broker = 0
    with Store.open(root, commitlog_dirs) as store:
        end = recover_log(store, version_for(generation)).end
        by_broker = sum(1 for message in still
                        if message + whole.records[message].total_size <= end)
        result = salvage(store, generation, **options)  # type: ignore[arg-type]
        again = salvage(store, generation, **options)  # type: ignore[arg-type]
    assert again == result
    there = records(result.parts)
    missing = sorted(message for message in still if there.get(message) != whole.raw(
        message, whole.records[message].total_size))
    # What nothing proves to be a message is left out, and counted.
    assert len(missing) <= result.ambiguous, missing
    still = [message for message in still if message not in missing]
    restored = sum(1 for name, record in whole.records.items() if name not in still
                   and there.get(name) == whole.raw(name, record.total_size))
    if there:
        last = max(there)
        assert result.log_end >= last + len(there[last])
    apply(root, result)
    dispatcher = rebuild(root, result, settings)
    # The entries of a message whose properties are lost and not marked are kept by `recover` alone.
    complete = not (missing or result.unmarked)
    assert not complete or (dispatcher.gaps, dispatcher.refused, dispatcher.unplaceable) == (0, 0,
                                                                                             0)
    rows = rows_of(root)
    for key, mine in original_rows.items() if complete else ():
        for offset, place in mine.items():
            if place[0] in still:
                assert rows[key][offset] == place, (key, offset, place)
    for key, mine in rows.items() if complete else ():
        offsets = np.array(sorted(mine))
        assert (np.diff(offsets) == 1).all(), (key, offsets)
        if original_rows.get(key):
            assert offsets[0] <= min(original_rows[key])
        for physical, size in mine.values():
            assert len(there[physical]) == size
    with Store.open(root, commitlog_dirs) as store:
        assert recover_log(store, version_for(generation)).end in (result.log_end, max(
            (name + len(raw) for name, raw in there.items()), default=result.log_end))
        findings = [finding for finding in Verification(store).findings()
                    if finding.severity != INFO
                    and finding.structure in ("commitlog", "consumequeue", "index")
                    and finding.category not in IGNORED and not (
                        finding.category in UNPROVABLE and is_of_damaged(finding, whole, still))]
    assert not (findings and complete), findings
    assert {os.path.dirname(step.target) for step in result.steps} <= {"commitlog", "cl1", "cl2"}
    return Outcome(len(still), len(still), by_broker, restored, len(result.lost))
