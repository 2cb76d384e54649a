"""The broker versions that may have written a store, and the evidence (spec: versions.md).

No file of a store contains the broker's version. A hint is data that only some releases write. An
upgraded store has hints of several releases. `info` shows the hints; everything else uses
`evidence`.

In this module, ``store`` is a `rmqctl.store.store.Store`, which itself uses this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from rmqctl import vfs
from rmqctl.errors import FormatError, RmqctlError, StoreIOError
from rmqctl.formats.local import abort, properties, sysflag
from rmqctl.formats.local.message import MAGIC_V2, Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.features import (
    BATCH_QUEUES,
    COMPRESSION,
    FEATURES,
    LONG_TOPICS,
    MAX_V1_TOPIC,
    PROPERTY_CRC,
    release_numbers,
)

_SEPARATOR = properties.PROPERTY_SEPARATOR.encode()
_CRC = properties.CRC32.encode()
_FIVE = (5, 0, 0)
_SEPARATED, _UNSEPARATED = "4.0 to 4.9.0, or 5.2.0 and later", "4.9.1 to 5.1.4"
_SAMPLED = 8
_LATEST = 1 << 42
"""Upper bound (ms) of the times in a valid checkpoint."""
_VERSIONED = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
_DATA_VERSION = re.compile(rb'"dataVersion"\s*:\s*\{([^{}]*)\}')
_MAX_CONFIG_SIZE = 64 << 20


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint of the broker's version.

    ``versions``: text that names the releases that write such data.
    ``evidence``: text that describes the data.
    ``since``: the first of these releases.
    ``four``: whether ``since`` is a 4.x release.
    """

    versions: str
    evidence: str
    since: tuple[int, int, int] = (4, 0, 0)
    four: bool = False


@dataclass(frozen=True, slots=True)
class VersionEvidence:
    """The generation (4 or 5) of the brokers that wrote a store.

    ``proven``: whether only brokers of that generation write such files.
    ``other``: if not proven, a release of the other generation that also writes such files.
    """

    generation: int
    proven: bool
    other: str | None = None


def evidence(store: Any) -> VersionEvidence:
    """Return the generation of the brokers that wrote a store. Never raises.

    Data that only 5.x writes proves 5.x. If older data exists, too, the store was upgraded. If the
    files prove nothing, the properties of a few records are examined.
    """
    of_files = [*_marks(store), *_small_files(store)]
    if any(hint.since >= _FIVE for hint in of_files):
        return VersionEvidence(5, proven=True)
    if any(hint.four for hint in of_files):
        return VersionEvidence(4, proven=True)
    sampled = [hint for record in _sample(store) for hint in _record(record)]
    if any(hint.since >= _FIVE for hint in sampled):
        return VersionEvidence(5, proven=True)
    if any(hint.versions == _SEPARATED for hint in sampled):
        return VersionEvidence(5, proven=False, other="4.9.0")
    return VersionEvidence(4, proven=False, other="5.1.4" if any(
        hint.versions == _UNSEPARATED for hint in sampled) else "5.3.3")


def _sample(store: Any) -> Iterator[Record]:
    """Yield the first record of the first log file and of each of the last log files."""
    with suppress(RmqctlError):
        files = store.log.files
        for file in (*files[:1], *files[1:][-_SAMPLED:]):
            with suppress(RmqctlError):
                record = store.log.record_at(file.base)
                if record is not None:
                    yield record


def hints(store: Any, records: Iterable[Record]) -> list[Hint]:
    """Return all hints in a store; ``records``: a few of its messages, from its first and last
    files.
    """
    known_hints = [*_marks(store), *_small_files(store)]
    for record in records:
        known_hints += [hint for hint in _record(record)
                        if hint.versions not in {other.versions for other in known_hints
                                                 if other.evidence == hint.evidence}]
    return known_hints


def summary(found_hints: Iterable[Hint]) -> str:
    """Summarize hints in a phrase, for example ``5.2.0 or later`` or ``4.2.0 or later; no sign of
    5.x``.
    """
    since = max((hint.since for hint in found_hints), default=(4, 0, 0))
    text = f"{_text(since)} or later"
    return text if since >= (5,) else f"{text}; no sign of 5.x"


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _since(version: tuple[int, int, int], evidence: str) -> Hint:
    return Hint(f"{_text(version)} or later", evidence, version)


def _of(feature: str, evidence: str) -> Hint:
    return _since(release_numbers(FEATURES[feature].since), evidence)


def _marks(store: Any) -> Iterator[Hint]:
    for feature in FEATURES.values():
        for name in feature.marks:
            if vfs.lexists(store.path(*name.split("/"))):
                yield _since(release_numbers(feature.since), f"{name} exists")
    with suppress(OSError, ValueError), vfs.scandir(store.path("consumequeue")) as entries:
        if any(len(entry.name.encode("utf-8", "surrogateescape")) > MAX_V1_TOPIC
               for entry in entries):
            yield _of(LONG_TOPICS, "a topic has more than 127 characters")


def _small_files(store: Any) -> Iterator[Hint]:
    checkpoint = store.checkpoint
    if checkpoint is not None and not all(0 <= when < _LATEST for when in checkpoint[:3]):
        checkpoint = None  # damaged: its other fields prove nothing
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
            yield (Hint("4.x", "the abort file is empty", four=True) if pid is None else
                   _since((5, 0, 0), "the abort file contains a process id"))
    if store.layout.config != "json":
        yield _of(store.layout.config, "topics and groups are in RocksDB")
        return
    yield from _data_versions(store)


def _data_versions(store: Any) -> Iterator[Hint]:
    """Yield hints from the data versions in configuration files: 5.x writes a stateVersion into
    each of them.
    """
    without = None
    for name in _VERSIONED:
        for path in (f"config/{name}", f"config/{name}.bak"):
            try:
                match = _DATA_VERSION.search(store.read_small(path, most=_MAX_CONFIG_SIZE))
            except (StoreIOError, FormatError):
                continue
            if match is not None and b'"stateVersion"' in match[1]:
                yield _since((5, 0, 0), f"{name} has a stateVersion")
                return
            if match is not None:
                without = without or name
    if without is not None:
        yield Hint("4.x", f"{without} has no stateVersion", four=True)


def _record(record: Record) -> Iterator[Hint]:
    if record.magic == MAGIC_V2:
        yield _of(LONG_TOPICS, "a message has the v2 magic")
    if record.sys_flag & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6):
        yield _since((4, 6, 0), "a message has an IPv6 host")
    if record.sys_flag & (sysflag.NEED_UNWRAP | sysflag.INNER_BATCH):
        yield _of(BATCH_QUEUES, "a message is an inner batch")
    if record.sys_flag & sysflag.COMPRESSED and record.sys_flag & sysflag.COMPRESSION_MASK:
        yield _of(COMPRESSION, "a message states its compression type")
    if _CRC in record.properties:
        yield _of(PROPERTY_CRC, "a message has an appended CRC")
    elif record.properties.endswith(_SEPARATOR):
        yield Hint(_SEPARATED,
                   "the properties of a message end with a separator")
    elif record.properties:
        yield Hint(_UNSEPARATED,
                   "the properties of a message end without a separator", (4, 9, 1))
