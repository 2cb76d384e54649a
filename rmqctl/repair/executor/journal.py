"""The journal of a repair: everything needed to complete it, or to undo it, after a kill.

``STORE/.rmqctl/repairs/ID/`` contains the staged and kept files of a repair. Once everything is
staged, ``journal.jsonl`` is renamed into this folder, which commits the repair.

The journal consists of JSON lines: a header, then the plan's actions, then the steps. The header
contains the numbers of actions and steps, and the CRC-32 of all later lines. The journal never
changes again.

The progress is in ``state.json`` in the same folder. If this file is missing, the repair is
committed, but not all steps have been carried out. ``STORE/.rmqctl/log.jsonl`` has one line of JSON
for every action that was done or undone.
"""

from __future__ import annotations

import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Literal

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.aside import asides
from rmqctl.files.durable import STAGING, failed, open_file, publish, sync, sync_folder
from rmqctl.files.file_stamp import FileStamp
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.repair_losses import ACTIONS_LOG, pruned_notes

FOLDER = "repairs"
JOURNAL = "journal.jsonl"
STATE = "state.json"
_FORMAT = 1
_ID = re.compile(r"(\d{8}T\d{6}Z)-(\d{1,9})")
_MAX_HEADER = 1 << 24
# What the journal calls these fields.
_ON_DISK = {"staging_dir": "home", "backup": "kept"}
_FIELDS = {name: field_name for field_name, name in _ON_DISK.items()}

Kind = Literal["create", "replace", "patch", "move", "folder"]
StateName = Literal["interrupted", "applied", "undoing", "undone", "abandoned", "damaged", "aside"]
"""States of a repair.

* ``interrupted``: committed, but not all steps are carried out.
* ``undoing``: being undone.
* ``abandoned``: interrupted, and given up as it is.
* ``damaged``: the journal cannot be read.
* ``aside``: not a repair, see `put_aside`.
"""
Neighbours = Mapping[str, Mapping[str, tuple[int, int]]]
"""Folder -> name of a file in it -> (size, checksum of its first bytes)."""
PENDING: tuple[StateName, ...] = ("interrupted", "undoing", "damaged")


# -- the records ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step in the journal.

    ``staging_dir`` is an index in `Journal.staging_dirs`: a folder on the target's own file system.
    These are names in that folder:

    * ``staged``: the new content (create, replace) or the bytes for the target (patch).
    * ``backup``: the old file (replace, move) or the old bytes (patch).
    * ``undone``: the repair's file after an undo.

    Other fields:

    * ``spans``: (position, size) of the bytes of a patch.
    * ``folders``: folders that the step creates, outermost first.
    * ``again``: whether a later step rebuilds something at, or below, the target.
    * ``digest``: identifies the new content (create, replace) in a copy of the store, where times
      may differ.
    * ``old_digest``: identifies the old content (replace, and move of small files).
    """

    kind: Kind
    target: str
    staging_dir: int = 0
    staged: str = ""
    backup: str = ""
    undone: str = ""
    old: FileStamp | None = None
    new: FileStamp | None = None
    spans: tuple[tuple[int, int], ...] = ()
    folders: tuple[str, ...] = ()
    again: bool = False
    digest: str = ""
    old_digest: str = ""

    def as_dict(self) -> dict[str, Any]:
        values = {_ON_DISK.get(name, name): value for name, value in asdict(self).items()
                  if value or name == "kind"}
        for name in ("old", "new"):
            stamp = getattr(self, name)
            if stamp is not None:
                values[name] = [stamp.size, stamp.mtime_ns, stamp.inode]
        return values

    @classmethod
    def of(cls, raw: dict[str, Any]) -> StepRecord:
        """Parse a step from the output of `as_dict`. Raises: KeyError, TypeError, ValueError for
        other input.
        """
        given = {_FIELDS.get(name, name): value for name, value in raw.items()}
        for name in ("old", "new"):
            if name in given:
                size, mtime, inode = map(int, given[name])
                given[name] = FileStamp(size, mtime, inode)
        given["spans"] = tuple((int(position), int(size))
                               for position, size in given.get("spans", ()))
        given["folders"] = tuple(map(str, given.get("folders", ())))
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Journal:
    """A committed repair.

    * ``inode``: the inode number of the repair's folder at the commit. A different number proves
      that the store is a copy; the same number may be a coincidence.
    * ``times``: modification times (ns), before the repair, of the folders in which the repair
      changes names.
    * ``root``: the real path of the store at the commit.
    * ``neighbours``: unchanged files in those folders outside the store in which steps change
      files.
    * ``host``: the name of the machine, which is only shown.
    """

    id: str
    time: int
    command: str
    staging_dirs: tuple[str, ...]
    inode: int
    actions: tuple[Mapping[str, Any], ...] = ()
    records: tuple[StepRecord, ...] = ()
    times: Mapping[str, int] = field(default_factory=dict)
    root: str = ""
    neighbours: Neighbours = field(default_factory=dict)
    host: str = ""

    def build(self) -> bytes:
        body = b"".join(_line(action) for action in self.actions)
        body += b"".join(_line(record.as_dict()) for record in self.records)
        head = {"format": _FORMAT, "id": self.id, "time": self.time, "command": self.command,
                "actions": len(self.actions), "steps": len(self.records),
                "homes": list(self.staging_dirs), "inode": self.inode, "times": dict(self.times),
                "root": self.root, "host": self.host, "neighbours": self.neighbours,
                "crc": zlib.crc32(body)}
        return _line(head) + body

    @classmethod
    def parse(cls, data: bytes, path: str) -> Journal:
        """Parse a journal. Raises: StoreIOError for bytes that are not a complete journal."""
        try:
            first, _, body = data.partition(b"\n")
            head = _header(first)
            if zlib.crc32(body) != head["crc"]:
                raise ValueError("its checksum is wrong")
            lines = body.splitlines()
            count = int(head["actions"])
            if len(lines) != count + int(head["steps"]):
                raise ValueError("lines are missing")
            journal = cls(str(head["id"]), int(head["time"]), str(head["command"]),
                       tuple(map(str, head["homes"])), int(head["inode"]),
                       tuple(json.loads(line) for line in lines[:count]),
                       tuple(StepRecord.of(json.loads(line)) for line in lines[count:]),
                       {str(name): int(mtime) for name, mtime in head["times"].items()},
                       str(head.get("root", "")),
                       {str(folder): {str(name): (int(size), int(digest))
                                      for name, (size, digest) in files.items()}
                        for folder, files in head.get("neighbours", {}).items()},
                       str(head.get("host", "")))
            for record in journal.records:
                _refuse_strange_paths(record, len(journal.staging_dirs))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreIOError(f"{path}: the journal is damaged ({error})") from None
        return journal


def _refuse_strange_paths(record: StepRecord, further_dirs: int) -> None:
    """Raise ValueError for paths that no repair writes into its journal.

    The journal may come from someone else. A target is relative to the root, or absolute in a
    folder outside the root (`relocated` decides whether that folder belongs to the store). Kept
    files are in the repair's own folder.
    """
    own = [record.staged, record.backup, record.undone]
    if any(os.path.isabs(name) for name in own):
        raise ValueError("a path of its own folder is absolute")
    paths = [record.target, *record.folders, *filter(None, own)]
    for path in paths:
        if not path or "\0" in path or os.pardir in path.split(os.sep):
            raise ValueError(f"the path {path!r} points outside of its folder")
    if not 0 <= record.staging_dir <= further_dirs:
        raise ValueError(f"folder number {record.staging_dir} does not exist")
    if not os.path.isabs(record.target) and any(map(os.path.isabs, record.folders)):
        raise ValueError("a step in the store creates folders outside the store")


def _header(line: bytes) -> dict[str, Any]:
    """Parse the header of a journal. Raises: ValueError for any other line."""
    head = json.loads(line)
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise ValueError("unknown header format")
    return head


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


# -- paths and ids ---------------------------------------------------------------------------------


def repairs_folder(root: str) -> str:
    """Return the folder of all repairs of a store."""
    return os.path.join(root, STAGING, FOLDER)


def repair_folder(root: str, repair_id: str) -> str:
    """Return the folder of one repair."""
    return os.path.join(repairs_folder(root), repair_id)


def backup_folder(repair_id: str) -> str:
    """Return the folder of the files that a repair moved aside, relative to the store root."""
    return os.path.join(STAGING, FOLDER, repair_id)


def order(repair_id: str) -> tuple[str, int]:
    """Return a sort key that orders ids by age. Ids always increase, even if the clock is set
    back.
    """
    match = _ID.fullmatch(repair_id)
    assert match is not None
    return match[1], int(match[2])


def ids(root: str) -> list[str]:
    """Return the ids of all repairs, committed or not, oldest first. Raises: StoreIOError."""
    folder = repairs_folder(root)
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise failed(error, folder, "list") from None
    return sorted((name for name in names if _ID.fullmatch(name)), key=order)


def next_id(root: str, now: int) -> str:
    """Return an id later than all existing ids: the time ``now`` (ms) if that is later."""
    try:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now / 1000))
    except (ValueError, OverflowError, OSError):
        stamp = ""
    stamp = stamp if _ID.fullmatch(f"{stamp}-1") else "19700101T000000Z"
    earlier = sorted([*ids(root), *pruned_notes(root)], key=order)
    last = order(earlier[-1]) if earlier else ("", 0)
    return f"{stamp}-1" if stamp > last[0] else f"{last[0]}-{last[1] + 1}"


def is_committed(root: str, repair_id: str) -> bool:
    """Return whether a repair has a journal. A repair without a journal changed only its own
    folder.
    """
    return os.path.lexists(os.path.join(repair_folder(root, repair_id), JOURNAL))


# -- reading and writing --------------------------------------------------------------------------


def commit(root: str, journal: Journal) -> None:
    """Commit the repair: from now on it is carried out, whatever happens. Raises: StoreIOError."""
    folder = repair_folder(root, journal.id)
    publish(os.path.join(folder, JOURNAL), journal.build(), store=root, staging=folder)


def load(root: str, repair_id: str) -> Journal:
    """Load a journal. Raises: StoreIOError if it is damaged or cannot be read."""
    path = os.path.join(repair_folder(root, repair_id), JOURNAL)
    return Journal.parse(_read(path), path)


def set_state(root: str, repair_id: str, state: StateName, now: int,
              **more: Any) -> None:
    """Record the progress of a repair durably. Raises: StoreIOError."""
    folder = repair_folder(root, repair_id)
    publish(os.path.join(folder, STATE), _line({"state": state, "time": now, **more}),
            store=root, staging=folder)


def state_of(root: str, repair_id: str) -> tuple[StateName, Mapping[str, Any]]:
    """Return the state of a committed repair and the values recorded with it. Raises:
    StoreIOError.
    """
    path = os.path.join(repair_folder(root, repair_id), STATE)
    if not os.path.lexists(path):
        return "interrupted", {}
    try:
        raw = json.loads(_read(path))
        state = raw["state"]
        if state not in ("applied", "undoing", "undone", "abandoned"):
            raise ValueError(state)
    except (ValueError, KeyError, TypeError, RecursionError):
        return "damaged", {}
    return state, raw


def _read(path: str, most: int = -1) -> bytes:
    try:
        with open(open_file(path, os.O_RDONLY, "read"), "rb") as file:
            return file.readline(most) if most > 0 else file.read()
    except OSError as error:
        raise failed(error, path, "read") from None


# -- the list of repairs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A repair in the list of repairs.

    * ``time``: when it was made (ms).
    * ``actions``: number of actions in its plan.
    * ``files``: number of files and folders that its steps change.
    """

    id: str
    time: int | None
    command: str
    state: StateName
    actions: int
    files: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def entry(root: str, repair_id: str) -> HistoryEntry:
    """Return the entry of one committed repair. Raises: StoreIOError."""
    state, _ = state_of(root, repair_id)
    path = os.path.join(repair_folder(root, repair_id), JOURNAL)
    try:
        head = _header(_read(path, _MAX_HEADER))
        return HistoryEntry(repair_id, int(head["time"]), str(head["command"]), state,
                            int(head["actions"]), int(head["steps"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return HistoryEntry(repair_id, None, "", state if state not in PENDING else "damaged", 0, 0)


def history(root: str) -> list[HistoryEntry]:
    """Return all committed repairs of a store, oldest first. Read-only. Raises: StoreIOError."""
    return [entry(root, repair_id) for repair_id in ids(root) if is_committed(root, repair_id)]


def put_aside(root: str) -> list[HistoryEntry]:
    """Return entries for the files that were put aside, oldest first. Raises: StoreIOError.

    Files are put aside when the store is opened, and when messages are dispatched to the tier. The
    files are replaced without a plan, so the change has no journal and cannot be undone.
    """
    return [HistoryEntry(aside.path, aside.time, "", "aside", aside.files, aside.files)
            for aside in asides(root)]


def pending(root: str) -> str | None:
    """Return the id of the repair that is not finished, or not completely undone; None if all are
    finished.

    Only committed repairs count. Read-only.
    """
    for earlier in reversed(ids(root)):
        if is_committed(root, earlier) and state_of(root, earlier)[0] in PENDING:
            return earlier
    return None


def overlapping(journal: Journal, others: Iterable[Journal]) -> str | None:
    """Return the id of the first of ``others`` that changed the same file or folder as ``journal``.

    None if no repair did.
    """
    targets = {record.target for record in journal.records}
    above = {folder for target in targets for folder in _above(target)}
    for other in others:
        for record in other.records:
            if (record.target in targets or record.target in above
                    or targets.intersection(_above(record.target))):
                return other.id
    return None


def _above(target: str) -> list[str]:
    above = []
    while (target := os.path.dirname(target)) not in ("", os.sep):
        above.append(target)
    return above


def refuse_damaged(root: str, repair_id: str) -> RefusedError:
    """Return the error for a repair that cannot be completed because its journal cannot be read."""
    return RefusedError(
        f"repair {repair_id} was interrupted and its journal is damaged: its kept files are in "
        f"{repair_folder(root, repair_id)}; `rmqctl undo {root} {repair_id} --abandon` leaves "
        "everything as it is")

# -- the log of actions ---------------------------------------------------------------------------


def note_actions(root: str, journal: Journal, state: str, now: int, *, maybe: bool = False) -> None:
    """Append the actions of a repair to the log of actions, durably. Raises: StoreIOError.

    ``maybe``: whether a killed run may have written some of the lines. These are not written again.
    """
    path = os.path.join(root, STAGING, ACTIONS_LOG)
    new = not os.path.lexists(path)
    lines = [_action_line(now, journal, dict(action), state) for action in journal.actions]
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, "open")
    try:
        if maybe and not new:
            lines = lines[_count(path, journal.id, state):]
        if not lines:
            return
        _append(fd, path, lines)
        sync(fd, path, whole=True)
        if new:
            sync_folder(os.path.dirname(path))
    finally:
        os.close(fd)


def check_actions_log(root: str) -> None:
    """Raise StoreIOError if the log of actions cannot be written. Called before a repair changes
    anything.
    """
    path = os.path.join(root, STAGING, ACTIONS_LOG)
    if os.path.lexists(path):
        os.close(open_file(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW, "open"))


def _action_line(now: int, journal: Journal, action: dict[str, object], state: str) -> bytes:
    row = {"time": now, "id": journal.id, "command": journal.command,
           "action": action.get("action"), "target": action.get("target"),
           "from": action.get("from"), "to": action.get("to"),
           "unit": action.get("unit"), "offset": action.get("offset"),
           "length": action.get("length"), "reason": action.get("reason"), "state": state}
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _append(fd: int, path: str, lines: Sequence[bytes]) -> None:
    data = b"".join(lines)
    try:
        size = os.fstat(fd).st_size
        # A power failure may have left half a line, which must not spoil the next one.
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        view = memoryview(data)
        while view:
            done = os.write(fd, view)
            if not done:
                raise StoreIOError(f"cannot write to {path}: the system accepts no more bytes")
            view = view[done:]
    except OSError as error:
        raise failed(error, path, "write to") from None


def _count(path: str, repair_id: str, state: str) -> int:
    """Return the number of complete lines in the log of actions for a repair and state."""
    needle, count = json.dumps(repair_id).encode(), 0
    try:
        with open(path, "rb") as file:
            for line in file:
                if needle in line and line.endswith(b"\n"):
                    try:
                        row = json.loads(line)
                        count += row["id"] == repair_id and row["state"] == state
                    except (ValueError, KeyError, TypeError):
                        continue
    except OSError as error:
        raise failed(error, path, "read") from None
    return count
