"""The checkpoint that a store should have for its log (checkpoint-and-small-files.md §1).

A checkpoint behind the log is always safe. A checkpoint that is missing, too short, zero or ahead
of the log is rebuilt. With such a checkpoint, a broker would scan all of the log after a crash, or
too little of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rmqctl.checks.preflight.missing import known_by_checkpoint
from rmqctl.engine.dispatch.index import newest_full_end
from rmqctl.errors import FormatError
from rmqctl.formats.local import checkpoint as layout
from rmqctl.formats.local import names
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.plan import Action, Create, Lost, MoveAside, Replace, Step
from rmqctl.repair.rebuild.rebuild import CONSUMEQUEUE, INDEX, Rebuilt
from rmqctl.repair.rebuild.steps import kind_of
from rmqctl.scan.source import FileSource
from rmqctl.store.files import listing
from rmqctl.store.log.end import find_end, last_dispatched
from rmqctl.store.store import Store

NAME = "checkpoint"
_MAX_SIZE = 1 << 16
_NO_OFFSET = -1
"""Value that a broker writes for an unknown physical offset."""


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """Upper limits for the fields of a valid checkpoint. Times are store times in ms; 0 if unknown.

    ``newest``: time of the newest message in the log.
    ``logics``: time of the last message with a consume queue entry.
    ``index``: end time of the newest full index file.
    ``last``: physical offset of the last message; -1 for an empty log.
    ``end``: physical offset of the end of the log.
    """

    newest: int
    logics: int
    index: int
    last: int
    end: int


def facts_of(store: Store) -> CheckpointFacts:
    """Return the facts of a store in its present state, without reading the whole log. Raises:
    StoreIOError.
    """
    log_end = find_end(store)
    index = 0
    for file in store.index.newest_first():
        if file.header.index_count >= file.shape.max_entries:
            index = file.header.end_timestamp
            break
    last = log_end.last
    return CheckpointFacts(last.store_timestamp if last is not None else 0, _last_row(store), index,
                           last.physical_offset if last is not None else -1, log_end.offset)


def _last_row(store: Store) -> int:
    """Return the store time (ms) of the last message to which a consume queue entry points; 0
    if there is none.
    """
    places = [last_dispatched(store)]
    for queue in store.queues.batch.values():
        for number in range(len(queue.files) - 1, -1, -1):
            rows = queue.used(number)
            if len(rows):
                places.append(int(rows[-1]["physical_offset"]))
                break
    for place in sorted((place for place in places if place is not None), reverse=True):
        record = store.log.record_at(place)
        if record is not None:
            return record.store_timestamp
    return 0


def facts_after(rebuilt: Rebuilt, commitlog_dirs: Iterable[str] = ()) -> CheckpointFacts:
    """Return the facts of a store after the steps of a rebuild. Raises: StoreIOError."""
    logics, index = rebuilt.logics_timestamp, rebuilt.index_timestamp
    if CONSUMEQUEUE not in rebuilt.only or rebuilt.topic is not None:
        with Store.open(rebuilt.root, commitlog_dirs) as store:
            logics = _last_row(store)
    if INDEX not in rebuilt.only:
        folder = os.path.join(rebuilt.root, INDEX)
        settings = rebuilt.settings
        paths = [file.path for file in listing(folder, names.INDEX_DIGITS).files]
        index = newest_full_end(paths, IndexShape(settings.index_slots, settings.index_max))
    return CheckpointFacts(rebuilt.newest, logics, index, rebuilt.last, rebuilt.log_end)


def lost_with_it(store: Store, facts: CheckpointFacts) -> tuple[Lost, ...]:
    """Return the lost messages that are known only from the replaced checkpoint.

    ``facts``: facts of the store after the repair. The result is empty for an empty log, which
    keeps its checkpoint, and for a DLedger member, whose checkpoint is different.

    Raises: StoreIOError.
    """
    saved = store.checkpoint
    if store.nodes or saved is None or facts.last < 0 or not saved.knows_later(
            facts.newest, store.log.min_offset):
        return ()
    latest = min(saved.physic_msg_timestamp, saved.logics_msg_timestamp)
    return (Lost(None, None, None, facts.end, None, facts.newest, latest, by=NAME),) * (
        known_by_checkpoint(store))


def checkpoint_steps(root: str, facts: CheckpointFacts, generation: int, *,
                     trust_index: bool = False) -> tuple[list[Step], list[Action]]:
    """Return (steps, actions) that correct the checkpoint of the store at ``root``, both empty for
    a valid checkpoint. Valid fields are kept.

    ``generation``: with 5, the physical offset of the last message is also filled in, as a
    5.x broker's recovery does.

    ``trust_index``: raise the index time to the newest store time. This is necessary if the abort
    file stays although the index is complete. Otherwise, a broker would discard index files newer
    than the index time.

    Raises: StoreIOError if the file cannot be read.
    """
    # The page as it is; one that is not a file or too short counts as zeros.
    path = os.path.join(root, NAME)
    kind = kind_of(root, path)
    is_file, strange = kind == "file", kind in ("folder", "other")
    data = b""
    if is_file:
        with FileSource(path) as source:
            data = source.read(0, _MAX_SIZE)
    elif facts.last < 0 and not strange:
        return [], []
    try:
        old = layout.parse(data)
        reason = ""
    except FormatError:
        old = layout.parse(data.ljust(layout.PAGE_SIZE, b"\0"))
        reason = "checkpoint is too short" if is_file else "checkpoint is missing"
    # The corrected fields, and why.
    new, wrong = _right(old, facts, generation, fresh=bool(reason))
    reason = reason or wrong
    shown_old, shown_new = _shown(old), _shown(new)
    if trust_index and new.index_msg_timestamp < facts.newest:
        new = new._replace(index_msg_timestamp=facts.newest)
        name = "index_msg_timestamp"
        if reason:
            shown_new = _shown(new)
        else:
            reason = "after an unclean shutdown a broker would discard newer index files"
            shown_old, shown_new = {name: old.index_msg_timestamp}, {name: facts.newest}
    # Bytes after the fields, or another size, alone are a reason, too.
    if not reason and (len(data) != layout.PAGE_SIZE or not layout.rest_is_zero(data)):
        reason = "checkpoint is not a 4096-byte page with zeros after its fields"
    if not reason:
        return [], []
    page = layout.build(new)
    steps: list[Step] = [Replace(NAME, page) if is_file else Create(NAME, page)]
    if strange:
        steps.insert(0, MoveAside(NAME))
        reason = "checkpoint is not a regular file"
    return steps, [Action("rebuild", NAME, shown_old if is_file else None, shown_new, reason)]


def _right(old: CheckpointRecord, facts: CheckpointFacts, generation: int, *,
           fresh: bool) -> tuple[CheckpointRecord, str]:
    """Return (the corrected checkpoint, the reason for the correction or "")."""
    # Times: not later than what they represent.
    limits = {"physic_msg_timestamp": max(0, facts.newest),
              "logics_msg_timestamp": max(0, min(facts.logics, facts.newest)),
              "index_msg_timestamp": max(0, min(facts.index, facts.newest))}
    new = old
    wrong = ""
    if facts.last >= 0 and (fresh or old.physic_msg_timestamp == old.logics_msg_timestamp == 0):
        wrong = "checkpoint is zero"
        new = old._replace(**limits)
    for name, limit in limits.items():
        if facts.last >= 0 and not 0 <= getattr(new, name) <= max(0, facts.newest):
            wrong = "checkpoint is ahead of the log" if getattr(new, name) > 0 else (
                "checkpoint has an invalid store time")
            new = new._replace(**{name: limit})
        elif getattr(new, name) < 0:  # an empty log shows no time
            wrong = "checkpoint has an invalid store time"
            new = new._replace(**{name: 0})
    # Offsets.
    confirm = new.confirm_phy_offset
    if confirm < _NO_OFFSET or (facts.last >= 0 and confirm > facts.end):
        wrong = wrong or "checkpoint is ahead of the log"
        new = new._replace(confirm_phy_offset=max(0, facts.last))
    elif wrong and generation >= 5 and not confirm:
        new = new._replace(confirm_phy_offset=max(0, facts.last))
    if new.master_flushed_offset < _NO_OFFSET:
        wrong = wrong or "checkpoint has an invalid physical offset"
        new = new._replace(master_flushed_offset=0)
    return new, wrong


def _shown(record: CheckpointRecord) -> dict[str, int]:
    """Return the fields to show, by name: the three times, and each offset that is not 0."""
    return {name: value for name, value in record._asdict().items()
            if value or name in record._fields[:layout.CLASSIC_FIELDS]}
