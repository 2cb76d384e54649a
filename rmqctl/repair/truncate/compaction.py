"""Truncate the compaction logs of a store whose queues are truncated (spec: timer-and-others-5x.md
§2).

A broker serves a compacted topic only from its compaction log. If this log were not truncated, the
broker would still serve the messages beyond the new end of the queue. It would not add new messages
that have the same queue offsets, because the index of the compaction log already contains these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rmqctl.formats.config import config_json
from rmqctl.formats.local.compaction import UNIT, UNIT_SIZE
from rmqctl.repair.plan import Action, Changes, MoveAside, Patch, Replace
from rmqctl.repair.targets import cut_files, target
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import load_beside
from rmqctl.store.files import StoreFile, listing
from rmqctl.store.log.end import used_size
from rmqctl.store.queue.batch_queue import valid
from rmqctl.store.queue.compaction import compacted_queues
from rmqctl.store.store import Store

_FOLDER, _LOG, _QUEUE, _POSITIONS = "compaction", "compactionLog", "compactionCq", (
    "position-checkpoint")


def cut_compaction(store: Store, ends: Mapping[QueueKey, int]) -> Changes:
    """Remove from the compaction logs the messages at or after the end of their queue.

    ``ends``: for each queue to truncate, its next queue offset. Raises: StoreIOError.
    """
    cut = Changes()
    for topic in listing(store.path(_FOLDER, _LOG)).folders:
        for number in compacted_queues(store, topic):
            if (topic, number) in ends:
                _cut_queue(cut, store, topic, number, ends[topic, number])
    _cut_positions(cut, store, ends)
    return cut


def _cut_queue(cut: Changes, store: Store, topic: str, number: int, end: int) -> None:
    index, log = (listing(store.path(_FOLDER, part, topic, str(number))).files
                  for part in (_QUEUE, _LOG))
    first_gone = _first_beyond(index, end)
    if first_gone is None:
        return
    # Index and log are pairs of files; a broker starts with whole pairs only.
    which, row, place = first_gone
    for file in reversed(index[which + bool(row):]):
        cut.steps.append(MoveAside(target(store, file.path)))
    if row:
        with FileSource(index[which].path) as source:
            used = used_size(source)
        cut.steps.append(Patch(target(store, index[which].path), (
            OverlayPiece(row * UNIT_SIZE, used - row * UNIT_SIZE),)))
    cut.steps += cut_files(store, log, place if row else index[which].base)
    cut.actions.append(Action("truncate", f"{_FOLDER}/{_LOG}/{topic}/{number}", log[-1].end if log
                              else place, place, "copies of removed messages"))


def _first_beyond(index: list[StoreFile], end: int) -> tuple[int, int, int] | None:
    """Return the first entry at or after a queue offset; None if no such entry exists. An entry is
    (index of its file, index of the entry in the file, position of its message in the compaction
    log).
    """
    for which, file in enumerate(index):
        with FileSource(file.path) as source:
            rows = UNIT.array(source.read(0, source.size // UNIT_SIZE * UNIT_SIZE))
        beyond = np.flatnonzero(valid(rows) & (rows["msg_base_offset"] >= end))
        if len(beyond):
            row = int(beyond[0])
            return which, row, int(rows["physical_offset"][row])
    return None


def _cut_positions(cut: Changes, store: Store, ends: Mapping[QueueKey, int]) -> None:
    """Reduce compacted offsets that are beyond the end of their queue to the last queue offset."""
    value = load_beside(store, _FOLDER, _POSITIONS).main.value
    table = value.get("queueOffsetMap") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(table, dict):
        return
    last = {f"{topic}_{number}": end - 1 for (topic, number), end in ends.items()}
    changed = {name: min(position, last.get(name, position)) if isinstance(position, int)
               else position for name, position in table.items()}
    ahead = sum(changed[name] != table[name] for name in table)
    if ahead:
        cut.act(Replace(f"{_FOLDER}/{_POSITIONS}", config_json.build(
            {**value, "queueOffsetMap": changed})), "set back", ahead, 0,
            "is ahead of its queues", "queue")
        cut.notes.append("a compaction dropped older messages in favor of newer messages that are "
                         "now removed: the older messages are still in the commitlog, but no "
                         "broker serves them")
