"""Make the items of erased messages unreachable in the index files of a tier below the store.

An item cannot be removed, because the name of each uploaded file follows from the size of the
previous file. Instead, its topic id is set to an id that no topic has, and its key hash to the
number of its slot. Chains and slots do not change.

For a deleted topic, its folder and metadata in the tier are removed, as a broker does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from rmqctl.errors import FormatError, RefusedError
from rmqctl.files.durable import STAGING
from rmqctl.formats.kinds import TIERED_INDEX, from_path
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.repair.erase.elsewhere import OtherCopies, files_below
from rmqctl.repair.plan import Action, Changes, Patch, Replace
from rmqctl.repair.targets import target
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import FOLDER
from rmqctl.store.store import Store

_BLOCK = 1 << 16
_ID = fmt.ITEM.field("topic_id").offset
_WHY = "entries of erased messages"

ItemKeys = dict[int, set[tuple[int, int, int]]]
"""By offset in a queue's commit log: (key hash, queue id, size) of each index item for
this offset.
"""


def drop_items(store: Store, copies: OtherCopies) -> Changes:
    """Make the index items of the tier records in ``copies`` unreachable. Raises: StoreIOError."""
    changes, wanted = Changes(), _wanted(copies)
    if not wanted:
        return changes
    for path in files_below(store.root):
        parts = os.path.relpath(path, store.root).split(os.sep)
        if from_path(parts) != TIERED_INDEX or parts[0] == STAGING or os.path.islink(path):
            continue
        name = target(store, path)
        try:
            with FileSource(path) as source:
                pieces, count = _pieces(path, source, wanted)
        except FormatError as error:
            changes.notes.append(f"{name}: {error.reason}; its entries stay; run `rmqctl tiered "
                                 "recover` first")
            continue
        if pieces:
            changes.act(Patch(name, tuple(pieces)), "drop", count, count - len(pieces), _WHY,
                        "entry")
    return changes


def topic_folders(store: Store, topics: Sequence[str]) -> list[tuple[str, str]]:
    """Return (topic, folder) for each folder of a topic in a tier below the store."""
    return [(name, os.path.join(folder, name))
            for folder, folders, _ in os.walk(store.root)
            if names.parse_cluster(os.path.basename(os.path.dirname(folder)))
            and os.path.relpath(folder, store.root).split(os.sep)[0] != STAGING
            for name in sorted(folders) if name in topics
            and not os.path.islink(os.path.join(folder, name))]


def drop_metadata(store: Store, folders: Sequence[tuple[str, str]]) -> Changes:
    """Remove topics from the metadata of the tier. Raises: RefusedError if the metadata
    is damaged.
    """
    changes = Changes()
    gone = {f"{os.path.basename(os.path.dirname(path))}/{topic}" for topic, path in folders}
    for name in (f"{FOLDER}/{names.METADATA_NAME}", f"{FOLDER}/{names.METADATA_NAME}.bak"):
        if not gone or not os.path.isfile(store.path(name)):
            continue
        with FileSource(store.path(name)) as source:
            data = source.read(0, source.size)
        try:
            metadata = meta.read(data)
        except FormatError as error:
            if name.endswith(".bak"):
                continue
            raise RefusedError(f"{name}: {error.reason}; repair it first (`rmqctl tiered "
                               "recover`)") from None
        if metadata.faults or metadata.old:
            raise RefusedError(f"{name} is damaged, or from 5.1.0 or 5.1.1; repair it first "
                               "(`rmqctl tiered recover`)")
        for table in metadata.segments.values():
            for key in [key for key in table if key.rpartition("/")[0] in gone]:
                del table[key]
        for topic in {topic for topic, _ in folders}:
            left = {number: queue for number, queue in metadata.queues.pop(topic, {}).items()
                    if f"{queue.broker_name}/{topic}" not in gone}
            if left:
                metadata.queues[topic] = left
            elif metadata.topics.pop(topic, None):
                changes.actions.append(Action("remove", name, topic, None, "deleted"))
        if (new := meta.build(metadata)) != data:
            changes.steps.append(Replace(name, new))
    return changes


def _wanted(copies: OtherCopies) -> ItemKeys:
    wanted: ItemKeys = {}
    for path, records in copies.files.items():
        *_, queue_id, folder, name = path.split(os.sep)[-3:]
        segment = names.parse_segment(name)
        if folder != names.COMMIT_LOG or segment is None or not queue_id.isdecimal():
            continue
        for at, raw, record in records:
            wanted.setdefault(segment[0] + at, set()).update(
                (key_hash, int(queue_id), len(raw)) for key_hash in _hashes(record))
    return wanted


def _hashes(record: Record) -> Iterator[int]:
    """Yield the key hashes under which a tier's index may have a message."""
    topic = record.topic.decode("utf-8", "replace")
    properties = props.parse(record.properties.decode("utf-8", "replace"))
    keys = {properties.get(props.UNIQUE_KEY), *(properties.get(props.KEYS) or "").split(" ")}
    for key in keys:
        yield from () if key is None else fmt.both_hashes(topic, key)


def _pieces(path: str, source: FileSource, wanted: ItemKeys) -> tuple[list[OverlayPiece], int]:
    """Return (the pieces of an index file to change, number of items in the file). Raises:
    FormatError, StoreIOError.
    """
    size = source.size
    if not size:
        return [], 0
    header = fmt.HEADER.decode(source.read(0, fmt.HEADER.size))
    if not any(header):  # created, without any item
        return [], 0
    is_open = os.path.basename(os.path.dirname(path)) == names.LOCAL_INDEX_FOLDER
    if header.magic not in fmt.MAGICS or header.item_count < 0:
        raise FormatError("its header is damaged")
    # 5.1.x keeps the compacted form among the open ones.
    shape = None
    if is_open:
        with suppress(FormatError):
            shape = fmt.open_shape_of(source.read, size, header)
    unit = fmt.ITEM if shape is not None else fmt.COMPACTED_ITEM
    first = 1 if shape is not None and not shape.old else 0
    shape = shape or fmt.compacted_shape(header, size)
    offsets = np.array(sorted(wanted), np.int64)
    pieces = []
    for start in range(0, header.item_count, _BLOCK):
        begin = shape.items_at + (first + start) * unit.size
        items = unit.array(source.read(begin, min(
            _BLOCK, header.item_count - start) * unit.size))
        for row in np.flatnonzero(np.isin(items["commit_log_offset"], offsets)).tolist():
            item = items[row]
            key_hash = int(item["key_hash"])
            if (key_hash, int(item["queue_id"]), int(item["size"])) in wanted[
                    int(item["commit_log_offset"])] and item["topic_id"] != fmt.NO_TOPIC:
                empty = ((key_hash % shape.slots) << 32) | 0xFFFFFFFF
                pieces.append(OverlayPiece.of(begin + row * unit.size,
                                              empty.to_bytes(_ID + 4, "big")))
    return pieces, header.item_count
