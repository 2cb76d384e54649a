"""The offsets that groups have committed, of a store or of a file that is taken by itself."""

from __future__ import annotations

import os

from rmqctl.errors import FormatError, RefusedError
from rmqctl.formats.config import config_json
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import MAX_SIZE, load_one
from rmqctl.store.config.rows import rows_of
from rmqctl.store.store import Store

Commits = dict[tuple[str, str, int], int]
"""Queue offsets by (group, topic, queue id)."""


def committed(path: str) -> Commits:
    """The offsets in a store, by its folder, or in one file: ``consumerOffset.json``, its backup,
    ``lmqConsumerOffset.json``, or what `offsets export` has printed.

    RefusedError where it is none of these, or nothing in it can be read; StoreIOError.
    """
    if os.path.isdir(path):
        with Store.open(path) as store:
            return of_store(store)
    with FileSource(path) as source:
        if source.size > MAX_SIZE:
            raise RefusedError(f"{path}: {source.size:,} bytes are no file of consumer offsets")
        data = source.read(0, source.size)
    try:
        value = config_json.parse(data).value
    except FormatError as error:
        raise RefusedError(f"{path}: {error}") from None
    if not isinstance(value, dict) or not ({"offsetTable", "lmqOffsetTable"} & value.keys()):
        raise RefusedError(f"{path}: no file of consumer offsets: it has no offsetTable")
    faults: list[str] = []
    found = {(row["group"], row["topic"], row["queue_id"]): row["offset"]
             for row in rows_of("lmq-offsets", value, faults) if row["group"] is not None}
    if faults:
        raise RefusedError(f"{path}: {faults[0]}: what is odd there cannot be taken over")
    return found


def of_store(store: Store) -> Commits:
    """The offsets of an opened store. RefusedError where a file of them cannot be read."""
    store.layout.require(store.root, "config")
    found: Commits = {}
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        file = load_one(store, name)
        if file.damaged and file.used is None:
            raise RefusedError(f"{store.root}: {file.main.fault()}; no copy of it can be read")
        found |= {(row["group"], row["topic"], row["queue_id"]): row["offset"]
                  for row in file.rows() if row["group"] is not None}
    return found


def narrowed(offsets: Commits, group: str | None, topic: str | None) -> Commits:
    """Those of one group, and in one topic, where these are given."""
    return {key: offset for key, offset in offsets.items()
            if group in (None, key[0]) and topic in (None, key[1])}
