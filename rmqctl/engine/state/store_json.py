"""Writes ``STORE/.rmqctl/store.json``: the configuration a store was made for."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rmqctl.engine.config.settings import Settings
from rmqctl.files.durable import publish
from rmqctl.store.store_settings import CURRENT_FORMAT, FORMAT, KEYS, LOG_FOLDERS, path_of


def content(settings: Settings, commitlog_dirs: Iterable[str] = ()) -> bytes:
    """The text of the file; `rmqctl.store.store_settings` reads it."""
    values: dict[str, object] = {FORMAT: CURRENT_FORMAT}
    values |= {name: getattr(settings, name) for name in KEYS if name != LOG_FOLDERS}
    if folders := list(commitlog_dirs):
        values[LOG_FOLDERS] = folders
    return (json.dumps(values, indent=2) + "\n").encode()


def write(root: str, settings: Settings, commitlog_dirs: Iterable[str] = ()) -> None:
    """Writes the file of the store at ``root``, durably and at once. StoreIOError."""
    publish(path_of(root), content(settings, commitlog_dirs), store=root)
