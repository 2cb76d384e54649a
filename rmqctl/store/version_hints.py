"""Which broker may have written a store: what speaks for it (spec: versions.md).

A store does not name its version. Each hint is something only some releases write; a store that
was upgraded bears the marks of several.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import abort, properties, sysflag
from rmqctl.formats.local.message import MAGIC_V2, Record
from rmqctl.store.config.config import load_one
from rmqctl.store.store import Store

_SEPARATOR = properties.PROPERTY_SEPARATOR.encode()
_CRC = properties.CRC32.encode()

_MARKS = (
    ("config/consumerFilter.json", (4, 1, 0)),
    ("lock", (4, 2, 0)),
    ("config/lmqConsumerOffset.json", (4, 9, 2)),
    ("abort.bak", (5, 0, 0)),
    ("timerwheel", (5, 0, 0)),
    ("timerlog", (5, 0, 0)),
    ("config/timercheck", (5, 0, 0)),
    ("batchconsumequeue", (5, 0, 0)),
    ("config/topicQueueMapping.json", (5, 0, 0)),
    ("config/consumerOrderInfo.json", (5, 0, 0)),
    ("epochFileCheckpoint", (5, 0, 0)),
    ("compaction", (5, 1, 0)),
    ("brokerIdentity", (5, 1, 1)),
    ("config/tieredStoreMetadata.json", (5, 1, 1)),
)


@dataclass(frozen=True, slots=True)
class Hint:
    """``versions`` that do such a thing, in words, and the ``evidence``; ``since`` the first."""

    versions: str
    evidence: str
    since: tuple[int, int, int] = (4, 0, 0)


def hints(store: Store, records: Iterable[Record]) -> list[Hint]:
    """Every hint in a store; ``records`` are a few of its messages (the first, the last)."""
    known_hints = [*_marks(store), *_small_files(store)]
    for record in records:
        known_hints += [hint for hint in _record(record)
                        if hint.versions not in {known.versions for known in known_hints
                                                 if known.evidence == hint.evidence}]
    return known_hints


def summary(found_hints: Iterable[Hint]) -> str:
    """One phrase: ``5.2.0 or later``, ``4.2.0 or later; no mark of 5.x``."""
    since = max((hint.since for hint in found_hints), default=(4, 0, 0))
    text = f"{_text(since)} or later"
    return text if since >= (5,) else f"{text}; no mark of 5.x"


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _since(version: tuple[int, int, int], evidence: str) -> Hint:
    return Hint(f"{_text(version)} or later", evidence, version)


def _marks(store: Store) -> Iterator[Hint]:
    for name, since in _MARKS:
        if os.path.lexists(store.path(*name.split("/"))):
            yield _since(since, f"{name} is there")


def _small_files(store: Store) -> Iterator[Hint]:
    checkpoint = store.checkpoint
    if checkpoint is not None and checkpoint.confirm_phy_offset:
        yield _since((5, 1, 1), "the checkpoint has a confirmPhyOffset")
    elif checkpoint is not None and checkpoint.master_flushed_offset:
        yield _since((5, 0, 0), "the checkpoint has a masterFlushedOffset")
    if store.has_abort:
        try:
            pid = abort.parse(store.read_small("abort", most=64))
        except (StoreIOError, FormatError):
            pass
        else:
            yield (Hint("4.x", "the abort file is empty") if pid is None else
                   _since((5, 0, 0), "the abort file holds a process id"))
    if store.layout.config != "json":
        yield _since((5, 3, 2) if store.layout.config == "rocksdb-v2" else (5, 1, 4),
                     "topics and groups are in RocksDB")
        return
    version = load_one(store, "topics.json").data_version
    if version is not None and "state_version" in version:
        yield _since((5, 0, 0), "topics.json has a stateVersion")


def _record(record: Record) -> Iterator[Hint]:
    if record.magic == MAGIC_V2:
        yield _since((5, 1, 0), "a message has the v2 magic")
    if record.sys_flag & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6):
        yield _since((4, 6, 0), "a message has an IPv6 host")
    if record.sys_flag & (sysflag.NEED_UNWRAP | sysflag.INNER_BATCH):
        yield _since((5, 0, 0), "a message is an inner batch")
    if record.sys_flag & sysflag.COMPRESSED and record.sys_flag & sysflag.COMPRESSION_MASK:
        yield _since((4, 9, 4), "a message names its compression")
    if _CRC in record.properties:
        yield _since((5, 2, 0), "a message has an appended CRC")
    elif record.properties.endswith(_SEPARATOR):
        yield Hint("4.0 to 4.9.0, or 5.2.0 and later",
                   "the properties of a message end with a separator")
    elif record.properties:
        yield Hint("4.9.1 to 5.1.4",
                   "the properties of a message end without a separator", (4, 9, 1))
