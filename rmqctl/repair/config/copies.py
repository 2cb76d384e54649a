"""Copy lost files of ``config/`` from another store of the same log.

A file is lost if neither the file nor its ``.bak`` can be loaded: a broker would start without its
content. The file that a broker would load from the other store is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rmqctl.checks.metadata.copies import newer_offsets
from rmqctl.checks.metadata.tables import OFFSETS
from rmqctl.errors import StoreIOError
from rmqctl.repair.plan import Action, Create, Planned, Replace, Step
from rmqctl.repair.sources.opening import LogSource
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import EMPTY, FOLDER, MISSING, ConfigFile, load, load_one
from rmqctl.store.store import Store

_KINDS = {
    "topics": "", "groups": "", "filters": "", "orders": "", "mappings": "", "modes": "",
    "offsets": "later messages are delivered again",
    "lmq-offsets": "later messages are delivered again",
    "delay": "later messages are delivered again",
}
"""Kinds of files that are copied, each with the consequence of copying an older file."""


def lost_config(store: Store, sources: Iterable[LogSource]) -> Planned:
    """Return the steps that restore lost configuration files, each from the first source that has
    it.
    """
    steps: list[Step] = []
    actions: list[Action] = []
    done: set[str] = set()
    for source in sources:
        other = source.store
        if other is None or not (store.layout.reads("config") and other.layout.reads("config")):
            continue
        for theirs in load(other)[0]:
            ours = load_one(store, theirs.name)
            content = None if theirs.name in done or ours.used is not None else _content(
                other, theirs)
            if content is None:
                continue
            done.add(theirs.name)
            target = f"{FOLDER}/{theirs.name}"
            steps.append((Create if ours.main.state == MISSING else Replace)(target, content))
            actions.append(Action("copy", target, None, theirs.entries, why(source.name, ours),
                                  "entry", proof=_proof(source, theirs)))
    return steps, actions


def newer_offsets_of(store: Store, sources: Iterable[LogSource], taken: Planned) -> list[str]:
    """Return notes on sources that have greater consumer offsets than this store. Which offsets are
    right is unknown.

    ``taken``: plan for the lost files that are copied from sources.
    """
    origins = {action.proof["source"] for action in taken[1]
               if action.proof and action.target == f"{FOLDER}/{OFFSETS}"}
    stores = [source for source in sources if source.store is not None]
    ours = next((source.store for source in stores if source.name in origins), store)
    notes = (newer_offsets(ours or store, source.store, source.name)
            for source in stores if source.store is not None)
    return [note for note in notes if note is not None]


def _content(store: Store, file: ConfigFile) -> bytes | None:
    """Return the bytes of the file or backup that a broker loads; None if missing, empty or
    damaged.
    """
    if file.kind not in _KINDS or file.used is None or not file.entries or file.faults:
        return None
    try:
        with FileSource(store.path(file.used.path)) as source:
            return source.read(0, source.size)
    except StoreIOError:
        return None


def why(name: str, ours: ConfigFile) -> str:
    """Return the reason why a file of this store is replaced by the file of the source ``name``."""
    state = "missing" if ours.main.state == MISSING else (
        "empty" if ours.main.state == EMPTY else "unreadable")
    older = _KINDS[ours.kind]
    return f"{state}, no usable backup; from {name}" + (f": {older}" if older else "")


def _proof(source: LogSource, theirs: ConfigFile) -> dict[str, Any]:
    assert theirs.used is not None
    return {"source": source.name, "file": theirs.used.path, "entries": theirs.entries,
            "data_version": theirs.data_version}
