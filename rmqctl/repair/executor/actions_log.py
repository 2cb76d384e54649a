"""``STORE/.rmqctl/log.jsonl``: one line of JSON for every action that was done or taken back."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from rmqctl.errors import StoreIOError
from rmqctl.files.durable import STAGING, failed, open_file, sync, sync_folder
from rmqctl.repair.executor.journal import Journal

NAME = "log.jsonl"


def note(root: str, journal: Journal, state: str, now: int, *, maybe: bool = False) -> None:
    """Appends the actions of a repair, durably.

    ``maybe``: a run that was killed may have written some of them already; these are not written
    again. StoreIOError.
    """
    path = os.path.join(root, STAGING, NAME)
    new = not os.path.lexists(path)
    lines = [_line(now, journal, dict(action), state) for action in journal.actions]
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, "open")
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


def check(root: str) -> None:
    """StoreIOError if nothing could be noted: better refused than done and not noted."""
    path = os.path.join(root, STAGING, NAME)
    if os.path.lexists(path):
        os.close(open_file(path, os.O_RDWR | os.O_APPEND, "open"))


def _line(now: int, journal: Journal, action: dict[str, object], state: str) -> bytes:
    row = {"time": now, "id": journal.id, "command": journal.command,
           "action": action.get("action"), "target": action.get("target"),
           "from": action.get("from"), "to": action.get("to"),
           "reason": action.get("reason"), "state": state}
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def _append(fd: int, path: str, lines: Sequence[bytes]) -> None:
    data = b"".join(lines)
    try:
        size = os.fstat(fd).st_size
        # A power failure may have left half a line: it shall not spoil the next one.
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        view = memoryview(data)
        while view:
            done = os.write(fd, view)
            if not done:
                raise StoreIOError(f"cannot write to {path}: the system takes no more bytes")
            view = view[done:]
    except OSError as error:
        raise failed(error, path, "write to") from None


def _count(path: str, id: str, state: str) -> int:  # noqa: A002
    """How many whole lines there are of a repair in a state."""
    needle, count = json.dumps(id).encode(), 0
    try:
        with open(path, "rb") as file:
            for line in file:
                if needle in line and line.endswith(b"\n"):
                    try:
                        row = json.loads(line)
                        count += row["id"] == id and row["state"] == state
                    except (ValueError, KeyError, TypeError):
                        continue
    except OSError as error:
        raise failed(error, path, "read") from None
    return count
