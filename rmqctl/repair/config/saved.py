"""Saved files with the offsets of consumer groups or of the delay service, from outside the store.

Such a file does not name its broker. A file is accepted if its queues exist in the store and most
of its offsets are within these queues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rmqctl.checks.verify.common import plural
from rmqctl.errors import FormatError, RefusedError, RmqctlError, UsageError
from rmqctl.formats.config import config_json
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.config.copies import why
from rmqctl.repair.plan import Action, Create, Planned, Replace, Step
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import BACKUP, FOLDER, MAX_SIZE, MISSING, NOT_LOADED, load_one
from rmqctl.store.config.rows import rows_of
from rmqctl.store.store import Store

POSITIONS, DELAYS = "consumerOffset.json", "delayOffset.json"
_FILES = ("topics.json", "subscriptionGroup.json", POSITIONS, DELAYS)
_START, _TABLE = 100, b'"offsetTable"'
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved file that replaces ``target`` (`POSITIONS` or `DELAYS`). ``positions``: for each
    entry, (topic, queue id, next queue offset).
    """

    name: str
    target: str
    data: bytes
    positions: tuple[tuple[str, int, int], ...]


def expanded(names: Iterable[str]) -> list[str]:
    """Return ``names``, with folders replaced by the configuration files that they contain.

    Folders with a log are kept. If only the backup of a file exists, the backup is returned.
    """
    paths: list[str] = []
    for name in names:
        files: list[str] = []
        if os.path.isdir(name) and not _has_log(name):
            folder = os.path.join(name, FOLDER)
            folder = folder if os.path.isdir(folder) else name
            both = [(os.path.join(folder, file), os.path.join(folder, file + BACKUP))
                    for file in _FILES]
            files = [next(filter(os.path.isfile, pair)) for pair in both
                     if any(map(os.path.isfile, pair))]
        paths += files or [name]
    return paths


def _has_log(root: str) -> bool:
    """Return whether a folder is a store with a log; the log may be in several folders or be a
    DLedger log.
    """
    if os.path.isdir(os.path.join(root, "commitlog")):
        return True
    try:
        with Store.open(root) as store:
            return bool(store.log.files)
    except RmqctlError:
        return False


def taken(names: Iterable[str], read: Callable[[str], T | None]) -> tuple[list[T], list[str]]:
    """Return (the contents of the files that ``read`` recognizes, the other ``names``)."""
    contents: list[T] = []
    others: list[str] = []
    for name in names:
        content = read(name) if os.path.isfile(name) else None
        if content is None:
            others.append(name)
        else:
            contents.append(content)
    return contents, others


def read_saved(name: str) -> Saved | None:
    """Read a saved file; return None for other kinds of files. Raises: UsageError if a broker would
    not load the file.
    """
    with FileSource(name) as source:
        if source.size > MAX_SIZE or not source.read(0, _START).lstrip().startswith(b"{"):
            return None
        data = source.read(0, source.size)
    if _TABLE not in data or _is_line(data):
        return None
    try:
        value, oddities = config_json.parse(data)
    except FormatError as error:
        raise UsageError(f"--from {name}: @{error.offset}: {error.reason}; it may be "
                         "incomplete") from None
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        return None
    is_delay = all(isinstance(offset, int) for offset in table.values())
    faults = [oddity.detail for oddity in oddities if oddity.kind in NOT_LOADED]
    rows = list(rows_of("delay" if is_delay else "offsets", value, faults))
    if faults or not rows:
        raise UsageError(f"--from {name}: {faults[0] if faults else 'contains no offsets'}")
    return Saved(name, DELAYS if is_delay else POSITIONS, data, tuple(
        (row.get("topic", SCHEDULE_TOPIC), row["queue_id"], row["offset"]) for row in rows))


def _is_line(data: bytes) -> bool:
    """Return whether the first line is a complete JSON object, as in a file of JSON lines."""
    try:
        value = config_json.parse(data.partition(b"\n")[0]).value
    except FormatError:
        return False
    return isinstance(value, dict) and "offsetTable" not in value


def saved_config(store: Store, saved: Iterable[Saved], table: Mapping[str, int]) -> tuple[
        Planned, list[str]]:
    """Return (the steps that restore lost files, notes).

    ``table``: the next queue offset of each queue in the log (by names like ``TopicTest-3``).
    Raises: RefusedError for a file of another broker.
    """
    steps: list[Step] = []
    actions: list[Action] = []
    notes: list[str] = []
    for source in saved:
        in_queues = [(topic, queue_id, offset, end)
                     for topic, queue_id, offset in source.positions
                     if (end := _end(store, table, topic, queue_id)) is not None]
        beyond = [row for row in in_queues if row[2] > row[3]]
        _refuse_foreign(source, in_queues, beyond)
        ours, target = load_one(store, source.target), f"{FOLDER}/{source.target}"
        if ours.used is not None or any(step.target == target for step in steps):
            notes.append(f"{source.name}: not needed, {target} can be read")
            continue
        if beyond:
            topic, queue_id, offset, end = beyond[0]
            notes.append(f"{source.name}: {plural(len(beyond), 'offset is', 'offsets are')} beyond "
                         f"the end of the queue, the first at {offset} of {topic}-{queue_id}"
                         f", which ends at {end}")
        steps.append((Create if ours.main.state == MISSING else Replace)(target, source.data))
        actions.append(Action(
            "copy", target, None, len(source.positions), why(source.name, ours), "entry", proof={
                "source": source.name, "positions": len(source.positions),
                "of_our_queues": len(in_queues), "beyond_end": len(beyond)}))
    return (steps, actions), notes


def _refuse_foreign(saved: Saved, in_queues: Sequence[object], beyond: Sequence[object]) -> None:
    """Raise RefusedError if most offsets are beyond the end of their queues.

    Each offset was within its queue when it was committed. A few queues may have lost their last
    entries since then.
    """
    if not in_queues and any(offset for _, _, offset in saved.positions):
        raise RefusedError(f"--from {saved.name}: has no offset for any queue of the store: it "
                           "belongs to another broker")
    if 2 * len(beyond) > len(in_queues):
        raise RefusedError(
            f"--from {saved.name}: {len(beyond)} of {plural(len(in_queues), 'offset')} for queues "
            "of the store are beyond the end of their queue: the file belongs to another broker, "
            "or is newer than the log")


def _end(store: Store, table: Mapping[str, int], topic: str, queue_id: int) -> int | None:
    """Return the end of a queue in the log or in its entries, whichever is later; None for an
    unknown queue.
    """
    queue = store.queues.readable.get((topic, queue_id))
    ends = [table.get(f"{topic}-{queue_id}"), None if queue is None else queue.disk_end]
    return max((end for end in ends if end is not None), default=None)
