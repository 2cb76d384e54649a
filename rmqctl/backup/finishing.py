"""Complete a copy: write the checkpoint, and lower consumer offsets beyond the end of a queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress

from rmqctl.backup.points import Point
from rmqctl.broker.view import view_of
from rmqctl.checks.verify.context import deleted
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.files.durable import remove_folder, replace_file
from rmqctl.formats.config import config_json, fastjson
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.parse_values import now_ms
from rmqctl.phrases import Phrase, counted, some_of
from rmqctl.repair.checkpoint import checkpoint_steps, facts_of
from rmqctl.repair.offsets.table import (
    MovedOffset,
    has_quoted_ids,
    moved_to,
    planned,
    queue_rows,
    with_offsets,
)
from rmqctl.repair.plan import Create, Plan, Replace
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import KINDS, NOT_LOADED, load_one
from rmqctl.store.config.rows import Row, rows_of
from rmqctl.store.store import Store

_NAMED = 3
"""Maximum number of topics that a note names."""
_OFFSETS = ("consumerOffset.json", "lmqConsumerOffset.json")
OFFSETS = tuple(os.path.join("config", file) for name in _OFFSETS for file in (name, f"{name}.bak"))
"""Paths of the files with consumer offsets."""


def finish(root: str, end: int, generation: int, is_plain: bool = True) -> int:
    """Write the checkpoint of a copied store whose log ends at ``end``. Lower each consumer offset
    beyond the end of its queue to this end, except offsets in RocksDB.

    Return the number of lowered offsets. Raises: StoreIOError.
    """
    with Store.open(root) as opened, opened.up_to(end) as store:
        files = offset_files(root) if store.layout.reads("config") else {}
        lowered = replaced_offsets(root, lowered_files(store, files))
        steps = checkpoint_steps(root, facts_of(store), generation)[0] if is_plain else []
    for step in steps:
        if isinstance(step, Create | Replace) and isinstance(step.content, bytes):
            replace_file(os.path.join(root, step.target), step.content)
    return lowered


def offset_files(root: str) -> dict[str, bytes]:
    """Return the content of the files in `OFFSETS` that can be read."""
    files: dict[str, bytes] = {}
    for name in OFFSETS:
        with suppress(StoreIOError), FileSource(os.path.join(root, name)) as source:
            files[name] = source.read(0, source.size)
    return files


def replaced_offsets(root: str, changed: Mapping[str, tuple[bytes, int]]) -> int:
    """Write files of `with_moved`; return the number of changed offsets, not counting ``.bak``."""
    for name, (content, _) in changed.items():
        replace_file(os.path.join(root, name), content)
    return sum(count for name, (_, count) in changed.items() if not name.endswith(".bak"))


def lowered_files(store: Store, files: Mapping[str, bytes]) -> dict[str, tuple[bytes, int]]:
    """Return those of ``files`` in `OFFSETS` that have an offset beyond the end of its queue, with
    these offsets lowered to this end, and how many they are. Damaged files are left as they are.
    """
    with ExitStack() as stack:
        return with_moved(files, _Ends(store, stack).ahead)


def with_moved(files: Mapping[str, bytes],
               moves: Callable[[Iterable[Row]], list[MovedOffset]]) -> dict[
                   str, tuple[bytes, int]]:
    """Return those of ``files`` in `OFFSETS` with an offset that ``moves`` changes, with the new
    offsets, and how many they are. Damaged files are left as they are.
    """
    changed: dict[str, tuple[bytes, int]] = {}
    for path in OFFSETS:
        data = files.get(path, b"")
        try:
            parsed = config_json.parse(data)
        except FormatError:
            continue
        value = parsed.value
        if not isinstance(value, dict) or any(
                oddity.kind in NOT_LOADED for oddity in parsed.oddities):
            continue
        name = os.path.basename(path).removesuffix(".bak")
        moved = moves(rows_of(KINDS[name], value, []))
        if moved:
            changed[path] = fastjson.build(with_offsets(
                name, value, moved, now_ms, quoted=has_quoted_ids(data))), len(moved)
    return changed


class _Ends:
    """The ends of a store's queues, against which consumer offsets are checked."""

    def __init__(self, store: Store, stack: ExitStack) -> None:
        self._store, self._stack, self._view = store, stack, view_of(store, "disk")
        self._configured = _configured(store) or frozenset()

    def ahead(self, rows: Iterable[Row]) -> list[MovedOffset]:
        """Return the changes that lower the offsets beyond the ends of their queues."""
        moved = []
        for row in rows:
            queue = row["topic"], row["queue_id"]
            entries = queue_rows(self._store, self._view, *queue, self._stack)
            end = entries.end if entries is not None else 0 if (
                row["topic"] in self._configured) else None
            if end is not None and row["offset"] > end and row["group"] is not None:
                moved.append(moved_to(self._store, entries, (row["group"], *queue), row["offset"],
                                      end))
        return moved


def topics_without_configuration(store: Store) -> tuple[str, ...] | None:
    """Return the topics that have queues but no configuration.

    Return None if the configuration cannot be read. Also return None if the queues are in RocksDB,
    where the broker itself removes queues of such topics.
    """
    configured = _configured(store)
    return None if configured is None else tuple(sorted({
        topic for topic, _ in store.queues.readable if _is_unknown(topic, configured)}))


def without_deleted(root: str, point: Point, end: int) -> list[str]:
    """Remove the queues of topics that were deleted from the store before a point, even though the
    log before ``end`` still contains messages of these topics. Return notes.
    """
    if point.log_end > end:
        return []
    with Store.open(root) as store:
        gone = deleted_topics(store, point)
    for topic in gone:
        for structure in ("consumequeue", "consumequeue_ext"):
            if os.path.isdir(folder := os.path.join(root, structure, topic)):
                remove_folder(folder)
    note = (f"{counted(len(gone), 'topic')} had been deleted from the store "
            f"({some_of(gone, _NAMED)}): the messages are restored, the consume queues are not")
    return [note] if gone else []


def deleted_topics(store: Store, point: Point) -> list[str]:
    """Return the topics that were deleted from the store before a point but still have queues."""
    gone: list[str] = []
    configured = None if point.unconfigured is None else _configured(store)
    for (topic, _), queue in store.queues.readable.items() if configured is not None else ():
        if topic not in gone and topic not in (point.unconfigured or ()) and (
                _is_unknown(topic, configured or frozenset())) and (
                len(units := queue.units(queue.first_index, 1))) and (
                int(units["physical_offset"][0]) < point.log_end):
            gone.append(topic)
    return gone


def _configured(store: Store) -> frozenset[str] | None:
    """Return the topics that have a configuration; None if these topics are unknown."""
    if store.layout.config == "rocksdb-v2" or store.layout.consumequeue == "rocksdb" or (
            not store.layout.reads("config")):
        return None
    table = (load_one(store, "topics.json").value or {}).get("topicConfigTable")
    return frozenset(table) if isinstance(table, dict) and table else None


def _is_unknown(topic: str, configured: frozenset[str]) -> bool:
    return deleted(topic, configured) and not topic.startswith(LMQ_PREFIX)


def lowered_offsets(store: Store, scratch: Scratch) -> tuple[Plan, int]:
    """Return (a plan that lowers consumer offsets to the end of their queues, number of lowered
    offsets). Damaged files are not changed. Raises: StoreIOError.
    """
    ahead: list[MovedOffset] = []
    nothing = Plan("restore", store.root)
    if not store.layout.reads("config"):
        return nothing, 0
    with ExitStack() as stack:
        ends = _Ends(store, stack)
        for name in _OFFSETS:
            file = load_one(store, name)
            if file.used is not None:
                ahead += ends.ahead(file.rows())
    if not ahead:
        return nothing, 0
    try:
        why = Phrase("beyond the end of the copied queue")
        return planned(store, "restore", ahead, ahead, lambda _: why, [], now_ms,
                       scratch).plan, len(ahead)
    except RefusedError:
        return nothing, 0
