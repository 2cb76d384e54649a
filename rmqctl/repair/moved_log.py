"""Whole files of the log that a repair did away with as a broker's start does, and still keeps."""

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
"""The action of a broker's start; `truncate` and `expire`, which were meant, move aside."""


class MovedLog(NamedTuple):
    """The repair, how many files of the log's end it keeps, and whether nothing that it changed is
    another now, so that undoing it takes back nothing else.
    """

    id: str
    files: int
    as_it_was: bool


def moved_log(store: Store) -> MovedLog | None:
    """The newest repair that moved files from the end of the log aside, which are missing there
    now; None where there is none, or its journal cannot be read. Looks only.
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
