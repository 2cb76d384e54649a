"""The committed offsets of consumer groups, from a store or from a single file."""

from __future__ import annotations

import os

from rmqctl import vfs
from rmqctl.errors import FormatError, RefusedError
from rmqctl.formats import kinds
from rmqctl.formats.config import config_json
from rmqctl.scan.source import FileSource
from rmqctl.store.config import client_offsets
from rmqctl.store.config.config import MAX_SIZE, load_shared
from rmqctl.store.config.rows import rows_of
from rmqctl.store.store import Store

Commits = dict[tuple[str, str, int], int]
"""The committed queue offset for each (group, topic, queue id)."""
_HEAD = 4096
_MAX_QUEUE_ID = 2**31 - 1


def committed(path: str, group: str | None = None, broker: str | None = None) -> Commits:
    """Return the committed offsets of a store (its folder) or of one file.

    The file is ``consumerOffset.json``, its backup, ``lmqConsumerOffset.json``, output of `offsets
    export`, or a client's ``offsets.json``. From a client's file, only the queues of one ``broker``
    are read, for ``group`` (None: the group that its folder names).

    Raises: StoreIOError; RefusedError for other files and for files without readable content.
    """
    if vfs.isdir(path):
        with Store.open(path) as store:
            return of_store(store)
    with FileSource(path) as source:
        if source.size > MAX_SIZE:
            raise RefusedError(f"{path}: {source.size:,} bytes: too large for a file of consumer "
                               "offsets")
        data = source.read(0, source.size)
    if kinds.recognise(vfs.abspath(path).split(os.sep), data[:_HEAD], len(data)) == (
            kinds.CLIENT_OFFSETS):
        return _of_client(path, data, group or client_offsets.group_of(path), broker)
    try:
        value = config_json.parse(data).value
    except FormatError as error:
        raise RefusedError(f"{path}: {error}") from None
    if not isinstance(value, dict) or not ({"offsetTable", "lmqOffsetTable"} & value.keys()):
        raise RefusedError(f"{path}: not a file of consumer offsets: it has no offsetTable")
    faults: list[str] = []
    commits = {(row["group"], row["topic"], row["queue_id"]): row["offset"]
               for row in rows_of("lmq-offsets", value, faults) if row["group"] is not None}
    # A broker reads queue ids as ints, and does not load a file with a larger one.
    faults += [f"$.offsetTable.{topic}@{group}.{queue_id}: invalid queue id"
               for group, topic, queue_id in commits if not 0 <= queue_id <= _MAX_QUEUE_ID]
    if faults:
        raise RefusedError(f"{path}: {faults[0]}: cannot use a file with invalid entries")
    return commits


def _of_client(path: str, data: bytes, group: str | None, broker: str | None) -> Commits:
    """Return one broker's offsets in a client's file as the committed offsets of a group."""
    try:
        rows, faults, _ = client_offsets.parse(data)
    except FormatError as error:
        raise RefusedError("; ".join(filter(None, (
            f"{path}: {error}", client_offsets.instead(path))))) from None
    if faults:
        raise RefusedError(f"{path}: {faults[0]}: cannot use a file with invalid entries")
    if group is None:
        raise RefusedError(f"{path}: a client's offsets.json names no group, and its folder is not "
                           "CLIENT/GROUP: pass --group")
    brokers = sorted({row.broker for row in rows if broker in (None, row.broker)})
    if len(brokers) > 1:
        raise RefusedError(f"{path}: this client's file has queues of several brokers "
                           f"({', '.join(brokers)}), but a store belongs to one: pass --broker")
    return {(group, row.topic, row.queue_id): row.queue_offset for row in rows
            if row.broker in brokers}


def of_store(store: Store) -> Commits:
    """Return the committed offsets of an opened store.

    Raises: RefusedError if a file of offsets cannot be read.
    """
    store.layout.require(store.root, "config")
    commits: Commits = {}
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        file = load_shared(store, name)
        if file.damaged and file.used is None:
            raise RefusedError(f"{store.root}: {file.main.fault()}; no copy of it can be read")
        commits |= {(row["group"], row["topic"], row["queue_id"]): row["offset"]
                    for row in file.rows() if row["group"] is not None}
    return commits


def narrowed(offsets: Commits, group: str | None, topic: str | None) -> Commits:
    """Return the offsets of the given group and topic; None means all."""
    return {key: offset for key, offset in offsets.items()
            if group in (None, key[0]) and topic in (None, key[1])}
