"""Determine two facts about earlier repairs that matter to the next repair:

* whether a repair still keeps complete log files that it moved aside because a broker's startup
  would delete them;
* whether repairs created the consume queues.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from rmqctl.errors import RmqctlError
from rmqctl.formats.local import names
from rmqctl.repair.executor.journal import history
from rmqctl.repair.executor.relocated import load_here
from rmqctl.repair.executor.undo import preview
from rmqctl.store.store import Store

_DELETED = "delete"
"""Action for files that a broker's startup would delete. `truncate` and `expire`, which remove
files on purpose, use another action.
"""


class MovedLog(NamedTuple):
    """A repair that moved files at the end of the log aside.

    ``files``: number of these files. ``as_it_was``: whether nothing has changed the repair's files
    since then. If so, `undo` reverts only the repair.
    """

    id: str
    files: int
    as_it_was: bool


def moved_log(store: Store) -> MovedLog | None:
    """Return the newest repair that moved files at the end of the log aside, if these files are
    still missing. None if no such repair exists, or if its journal cannot be read.
    """
    folders = {os.path.realpath(folder) for folder in store.log_folders}
    end = store.log.files[-1].base if store.log.files else -1
    with suppress(RmqctlError):
        for entry in reversed(history(store.root)):
            if entry.state != "applied":
                continue
            journal, _ = load_here(store.root, entry.id)
            deleted = {action.get("target") for action in journal.actions
                       if action.get("action") == _DELETED}
            paths = [os.path.join(store.root, record.target) for record in journal.records
                     if record.kind == "move" and record.target in deleted]
            files = [path for path in paths if os.path.realpath(os.path.dirname(path)) in folders
                     and (names.parse_offset(os.path.basename(path)) or 0) > end
                     and not os.path.lexists(path)]
            if files:
                return MovedLog(entry.id, len(files), not preview(store.root, entry.id).changed)
    return None


def created_queues(store: Store) -> bool:
    """Return whether repairs created all consume queue files, and no broker has started since then
    (the abort file is older). Such files do not show which form the broker uses.
    """
    files = {os.path.relpath(file.path, store.root) for queue in store.queues.plain.values()
             for file in queue.files}
    with suppress(RmqctlError, OSError):
        begun = os.stat(store.path("abort")).st_mtime * 1000
        for entry in reversed(history(store.root) if files else ()):
            if entry.state == "applied" and (entry.time or 0) >= begun:
                files -= {record.target for record in load_here(store.root, entry.id)[0].records
                          if record.kind == "create"}
                if not files:
                    return True
    return False
