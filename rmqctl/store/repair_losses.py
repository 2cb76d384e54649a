"""Losses of earlier repairs of a store, except losses for which the log contains fillers.

A repair notes its losses in ``.rmqctl/repairs/ID/lost.json``. Pruning the repair moves the note to
``.rmqctl/lost/ID.json``.

Another program may have written a note, so its size and content are checked. A note can only
increase the reported losses. An invalid note counts as an unknown loss.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from rmqctl import vfs
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.store_settings import FOLDER

NOTE = "lost.json"
ACTIONS_LOG = "log.jsonl"
"""The file in ``.rmqctl`` that has a line for each action of all repairs."""
REPAIRS, PRUNED = f"{FOLDER}/repairs", f"{FOLDER}/lost"
MAX_PLACES = 100
"""Maximum number of records that a note lists with their positions; further records are only
counted."""
OF_A_TIER = "tiered "
"""The prefix of the commands that repair a tier."""
_FORMAT = 1
_ID = re.compile(r"(\d{8}T\d{6}Z)-(\d{1,9})")
_MAX_NAMES, _MAX_NOTES = 100_000, 1000
_MAX_BYTES = 16 << 10
_MAX_COUNT = 1 << 53
_HEAD = 4096
_MAX_ACTIONS = 1 << 20
_MAX_WRITING = 600_000
_CONFIG = re.compile(r"config/(topics|subscriptionGroup|consumerOffset)\.json")


class LostRecord(NamedTuple):
    """The position of a record, and values that identify the record. ``crc``: CRC-32 of its first
    bytes.
    """

    offset: int
    size: int
    crc: int

    @classmethod
    def of(cls, offset: int, record: bytes) -> LostRecord:
        return cls(offset, len(record), zlib.crc32(record[:_HEAD]))


@dataclass(frozen=True, slots=True)
class RepairLoss:
    """The loss of one repair. ``messages`` and ``undecided`` are None if the repair's note is
    damaged.

    ``messages``: number of lost messages.
    ``undecided``: number of discarded records that may have been messages.
    ``time``: in ms.
    ``places``: the positions of the first lost messages.
    ``root``: the path of the store when it was repaired; None if the store is still at that path.
    """

    id: str
    time: int | None
    command: str
    messages: int | None
    undecided: int | None
    places: tuple[LostRecord, ...] = ()
    root: str | None = None

    @property
    def total(self) -> int:
        return (self.messages or 0) + (self.undecided or 0)

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "time": self.time, "command": self.command,
                "messages_lost": self.messages, "messages_undecided": self.undecided,
                "root": self.root}

    def build(self) -> bytes:
        """Return the content of the note. ``root`` must not be None."""
        return json.dumps({**self.as_dict(), "format": _FORMAT,
                           "places": [list(place) for place in self.places]}).encode() + b"\n"


class RepairLosses(NamedTuple):
    """The losses of all repairs, oldest first. ``more``: the number of further notes, which were
    not read.
    """

    losses: tuple[RepairLoss, ...] = ()
    more: int = 0

    @property
    def messages(self) -> int:
        return sum(loss.messages or 0 for loss in self.losses)

    @property
    def undecided(self) -> int:
        return sum(loss.undecided or 0 for loss in self.losses)

    @property
    def total(self) -> int:
        return self.messages + self.undecided

    def as_list(self) -> list[dict[str, Any]]:
        return [loss.as_dict() for loss in self.losses]


def repair_losses(root: str, log: CommitLog | None, end: int | None = None) -> RepairLosses:
    """Return the losses of repairs of the store at ``root``, except messages that were restored
    later.

    If ``log`` is None, return the losses of the tier at ``root``. ``end``: the offset at which a
    repair has truncated the log.
    """
    notes = sorted(_notes(root), key=lambda note: _order(note[0]))
    now = vfs.realpath(root)
    losses = []
    for repair_id, path in notes[-_MAX_NOTES:]:
        loss = _read(repair_id, path)
        if loss.command and (loss.command.startswith(OF_A_TIER) != (log is None)):
            continue  # a tier may be in the root of the store
        if loss.root == now:
            loss = replace(loss, root=None)
        loss = _still_lost(loss, log, end)
        if loss.total or loss.messages is None:
            losses.append(loss)
    return RepairLosses(tuple(losses), max(0, len(notes) - _MAX_NOTES))


def config_repairs(root: str) -> tuple[list[str], list[str]]:
    """Return (the configuration files that a repair rebuilt or mended and that were not written
    again later, those that a repair moved aside and that were created again; without pruned
    repairs). Only the newest actions are read.
    """
    rebuilt: dict[str, int] = {}
    aside: dict[str, int] = {}
    try:
        with FileSource(os.path.join(root, FOLDER, ACTIONS_LOG)) as source:
            lines = source.read(max(0, source.size - _MAX_ACTIONS), _MAX_ACTIONS).splitlines()
    except StoreIOError:
        return [], []
    for line in lines:
        if b'"config/' not in line:
            continue
        try:
            action = json.loads(line)
            if (action["state"] == "applied" and _CONFIG.fullmatch(action["target"])
                    and _ID.fullmatch(action["id"])
                    and vfs.isdir(os.path.join(root, REPAIRS, action["id"]))):
                times = {"rebuild": rebuilt, "mend": rebuilt, "move aside": aside}.get(
                    action["action"], {})
                times[action["target"]] = _count(action["time"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    written = {path: _time_of(os.path.join(root, path)) for path in {**rebuilt, **aside}}
    return ([path for path, time in sorted(rebuilt.items())
             if 0 <= time - written[path] < _MAX_WRITING],
            [path for path, time in sorted(aside.items()) if written[path] > time])


def _time_of(path: str) -> int:
    """Return the modification time of a file in ms; 0 if it does not exist. `undo` restores the
    time of the old file.
    """
    try:
        return vfs.stat(path).st_mtime_ns // 1_000_000
    except OSError:
        return 0


def pruned_notes(root: str) -> list[str]:
    """Return the ids of pruned repairs whose note still exists, oldest first."""
    return sorted((name.removesuffix(".json") for name in _names(os.path.join(root, PRUNED))
                   if _ID.fullmatch(name.removesuffix(".json"))), key=_order)


def _order(repair_id: str) -> tuple[str, int]:
    stamp, _, number = repair_id.partition("-")
    return stamp, int(number)


def _notes(root: str) -> Iterator[tuple[str, str]]:
    """Yield (id, path of the note) of each repair that was applied and not undone."""
    with_journal = set()
    for repair_id in filter(_ID.fullmatch, _names(os.path.join(root, REPAIRS))):
        folder = os.path.join(root, REPAIRS, repair_id)
        if not vfs.lexists(os.path.join(folder, "journal.jsonl")):
            continue
        with_journal.add(repair_id)
        path = os.path.join(folder, NOTE)
        if vfs.lexists(path) and not _is_undone(folder):
            yield repair_id, path
    for repair_id in pruned_notes(root):
        if repair_id not in with_journal:
            yield repair_id, os.path.join(root, PRUNED, f"{repair_id}.json")


def _names(folder: str) -> Iterable[str]:
    try:
        with vfs.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, _MAX_NAMES)]
    except OSError:
        return ()


def _is_undone(folder: str) -> bool:
    try:
        state = json.loads(_content(os.path.join(folder, "state.json")))["state"]
    except (StoreIOError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return bool(state == "undone")


def _content(path: str) -> bytes:
    with FileSource(path) as source:
        if source.size > _MAX_BYTES:
            raise StoreIOError(f"{path}: too large")
        return source.read(0, _MAX_BYTES)


def _read(repair_id: str, path: str) -> RepairLoss:
    try:
        note = json.loads(_content(path))
        if note["format"] != _FORMAT or note["id"] != repair_id:
            raise ValueError("not the note of this repair")
        return RepairLoss(
            repair_id, _count(note["time"]), _text(note["command"]),
            _count(note["messages_lost"]), _count(note["messages_undecided"]),
            tuple(LostRecord(*map(_count, place)) for place in note["places"][:MAX_PLACES]),
            _text(note["root"]))
    except (StoreIOError, ValueError, KeyError, TypeError, RecursionError):
        return RepairLoss(repair_id, None, "", None, None)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError("not a count")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _HEAD:
        raise ValueError("not a text")
    return value


def _still_lost(loss: RepairLoss, log: CommitLog | None, end: int | None) -> RepairLoss:
    """Return the loss without the records that were restored, unchanged, at their old positions."""
    if log is None:
        return loss
    back = sum(_is_back(place, log, end) for place in loss.places)
    if not back:
        return loss
    if back == len(loss.places):  # the first ones, and so all of them
        return replace(loss, messages=0, undecided=0)
    undecided = max(0, (loss.undecided or 0) - back)
    back -= (loss.undecided or 0) - undecided
    return replace(loss, messages=max(0, (loss.messages or 0) - back), undecided=undecided)


def _is_back(place: LostRecord, log: CommitLog, end: int | None) -> bool:
    if end is not None and place.offset >= end:
        return False
    try:
        located = log.locate(place.offset)
        if located is None:
            return False
        source, position = located
        return zlib.crc32(source.read(position, min(place.size, _HEAD))) == place.crc
    except StoreIOError:
        return False
