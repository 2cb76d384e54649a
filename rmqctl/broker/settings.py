"""Broker settings that affect bytes and durability.

Names follow `MessageStoreConfig`; sizes in bytes, times in milliseconds. `resolve` determines the
settings for an existing store; `checked` validates sizes and rounds them like a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from rmqctl.broker.release import judged
from rmqctl.broker.versions import (
    NEWEST,
    BrokerVersion,
    is_release,
    version_of,
)
from rmqctl.errors import RefusedError, UsageError
from rmqctl.formats.local import (
    append_crc,
    batch_consume_queue,
    consume_queue,
    consume_queue_ext,
    delay,
)
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import Address
from rmqctl.store.broker_conf import BrokerConf
from rmqctl.store.files import StoreFile, common_size, listing, queue_size
from rmqctl.store.index.store_index import Index
from rmqctl.store.store import Store
from rmqctl.store.store_settings import MAX_INT, path_of

Host = tuple[bytes, int]
"""A host: packed IP address (4 or 16 bytes) and port."""

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LOCALHOST = bytes([127, 0, 0, 1])


def packed(address: Address) -> Host:
    """Return the packed address. The loopback address replaces a host that is not an IP address or
    is all zeros.
    """
    import socket

    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        host = socket.inet_pton(family, address.host)
    except OSError:
        host = LOCALHOST
    return host if any(host) else LOCALHOST, address.port




@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of one engine. The defaults are a broker's defaults."""

    version: str = NEWEST
    commitlog_file_size: int = 1 << 30
    consumequeue_file_size: int = consume_queue.DEFAULT_FILE_SIZE
    consumequeue_ext_file_size: int = 48 << 20
    batch_consumequeue_file_size: int = batch_consume_queue.DEFAULT_FILE_SIZE
    index_slots: int = 5_000_000
    index_max: int = 20_000_000
    message_index: bool = True
    consumequeue_ext: bool = False
    lmq: bool = False
    multi_dispatch: bool = False
    max_lmq_queues: int = 20_000
    append_properties_crc: bool = False
    message_delay_level: str = DELAY_LEVELS
    max_message_size: int = 4 << 20
    timer_precision: int = 1000
    timer_max_delay: int = 259_200_000
    role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    disk_watermark: float = 0.90
    """Used share of the commitlog's file system above which messages are rejected. 1: messages are
    never rejected.
    """
    page_cache_busy: int = 1000
    batch_topics: frozenset[str] = frozenset()
    """Topics with ``queue.type=BatchCQ`` in addition to the topics in config/topics.json."""
    broker_checks: bool = True
    """True to also do the checks that a 5.x broker does before it calls its store. False for
    messages that have already passed these checks (a replay).
    """
    cluster: str = "DefaultCluster"
    born_host: Host = (LOCALHOST, 0)
    store_host: Host = (LOCALHOST, 10911)

    flush: Literal["async", "sync"] = "async"
    sync_flush_timeout: int = 5000
    flush_interval: int = 500
    flush_least_pages: int = 4
    flush_thorough_interval: int = 10_000
    flush_consumequeue_thorough_interval: int = 60_000
    """Interval (ms) at which consume queues and index, and then the checkpoint, are flushed."""
    mapped: bool = False
    """True to write the commitlog through a memory map instead of positional writes."""
    preallocate: bool = False
    """True to create the next commitlog file in the background."""
    warm: bool = False
    """True to touch, lock and advise the pages of a new file (requires ``mapped``)."""
    transient_pool: int = 0
    """Number of buffers that hold appended data until it is committed; each has the size of one
    commitlog file.
    """

    @property
    def profile(self) -> BrokerVersion:
        return version_of(self.version)


MIN_COMMITLOG = 1 << 10
"""Minimum size of a commitlog file in bytes. A blank record, the fixed part of a record and the
longest topic need 250 bytes; the rest is for the properties and the body.
"""
MIN_EXT = consume_queue_ext.HEAD_SIZE + consume_queue_ext.END_BLANK
MIN_INDEX = 2
"""Minimum number of entries of an index file. Entry 0 is never used."""


def checked(settings: Settings) -> tuple[Settings, list[str]]:
    """Return the settings with sizes rounded up as needed, and a sentence for each change.

    Raises: UsageError.
    """
    profile = settings.profile
    _bounded("a commitlog file", settings.commitlog_file_size, MIN_COMMITLOG)
    _bounded("a consume queue file", settings.consumequeue_file_size, 1)
    _bounded("a batch consume queue file", settings.batch_consumequeue_file_size, 1)
    _bounded("a consume queue ext file", settings.consumequeue_ext_file_size, MIN_EXT)
    for unit, count in (("slots", settings.index_slots), ("entries", settings.index_max)):
        if count < MIN_INDEX:
            raise UsageError(f"an index file has at least {MIN_INDEX} {unit}, got {count}")
    size = IndexShape(settings.index_slots, settings.index_max).file_size
    if size > MAX_INT:
        raise UsageError(f"an index file of {settings.index_slots} slots and {settings.index_max} "
                         f"entries has {size} bytes; a broker allows {MAX_INT}")
    if settings.append_properties_crc and profile.generation < _SEALING:
        raise UsageError("brokers append a CRC from 5.2.0 on; this store is for "
                         f"{settings.version}")
    try:
        delay.parse_levels(settings.message_delay_level)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return _rounded(settings)


def _bounded(setting: str, size: int, least: int) -> None:
    if size < least:
        raise UsageError(f"{setting} of {size} bytes is too small; the minimum is {least}")
    if size > MAX_INT:
        raise UsageError(f"{setting} of {size} bytes is too large; the maximum is {MAX_INT}")


def _rounded(settings: Settings) -> tuple[Settings, list[str]]:
    notes = []
    for name, unit, meaning in (
            ("consumequeue_file_size", consume_queue.UNIT_SIZE, "consume queue"),
            ("batch_consumequeue_file_size", batch_consume_queue.UNIT_SIZE, "batch consume queue")):
        asked = getattr(settings, name)
        size = -(-asked // unit) * unit
        if size != asked:
            _bounded(f"a {meaning} file", size, unit)
            notes.append(f"a {meaning} file gets {size} bytes, not {asked}: its size must be a "
                         f"multiple of {unit} bytes")
            settings = replace(settings, **{name: size})
    return settings, notes


_NAMES = frozenset(field.name for field in fields(Settings))
_SHAPE = ("index_slots", "index_max")
_SEALING = 5
"""The first generation of brokers that can append a CRC to the properties."""
Origin = Literal["given", "remembered", "shown", "files", "default"]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of a store's broker, and the origin of each value.

    ``index_unknown``: the reason why the number of slots and entries of the existing index files is
    unknown, or "".
    """

    settings: Settings
    origin: Mapping[str, Origin]
    index_unknown: str = ""


def resolve(store: Store, given: Mapping[str, Any], *, shown: Mapping[str, Any] | None = None,
            files: bool = True) -> BrokerConfig:
    """Return the configuration for an opened store. Each value comes from the first of these
    sources that has it:

    * ``given`` (names of `Settings`; None: not given), except sizes in ``store.sizes.conf`` that
      contradict the files
    * numbers of slots and entries that existing index files prove
    * ``store.json``
    * ``shown`` (values determined from the store)
    * the sizes of the store's files, if ``files`` is true
    * a broker's defaults

    Raises: UsageError for an unknown version; RefusedError if ``store.json`` is unreliable, because
    guessed sizes could ruin the store.
    """
    chosen = {name: value for name, value in given.items()
              if value is not None and not store.sizes.is_refuted(name, value)}
    file = store.config.recorded
    if file.notes:
        raise RefusedError(f"{file.notes[0]}; refusing to write while the store's settings are "
                           "unknown (repair or remove this file)")
    remembered = {name: value for name, value in file.values.items() if name in _NAMES}
    version = remembered.get("version")
    if "version" not in chosen and version is not None and not is_release(version):
        raise RefusedError(f"{path_of(store.root)}: {version!r} is not a release that this rmqctl "
                           "knows; pass --broker-version")
    if not set(_SHAPE) <= chosen.keys() | remembered.keys():
        remembered = {name: value for name, value in remembered.items() if name not in _SHAPE}
    sizes = _sizes_of_files(store, remembered.keys() | chosen.keys()) if files else {}
    index_unknown = ""
    if files and not set(_SHAPE) <= chosen.keys():
        shape, index_unknown = _shape_of_files(store, chosen)
        if shape:  # the content of the files proves it, a note does not
            sizes |= {name: size for name, size in shape.items() if name not in chosen}
            remembered = {name: value for name, value in remembered.items() if name not in _SHAPE}
    values: dict[str, Any] = {}
    origin: dict[str, Origin] = dict.fromkeys(_NAMES, "default")
    # Continue with the properties of the existing log; a store without a log has none.
    begun: dict[str, Any] = {}
    if files and store.log.files:
        begun = {"version": judged(store).release, "append_properties_crc": _is_sealed(store)}
    layers: tuple[tuple[Origin, Mapping[str, Any]], ...] = (
        ("files", sizes), ("shown", {**begun, **(shown or {})}), ("remembered", remembered),
        ("given", chosen))
    for where, layer in layers:
        values |= layer
        origin |= dict.fromkeys(layer, where)
    settings = Settings(**values)
    if settings.profile.generation < _SEALING and origin["append_properties_crc"] == "shown":
        settings = replace(settings, append_properties_crc=False)
    return BrokerConfig(settings, origin, index_unknown)


def _is_sealed(store: Store) -> bool:
    """Return whether the newest readable file of the log begins with a message with an appended
    CRC.

    If so, new messages also need an appended CRC: a broker with forceVerifyPropCRC truncates the
    log at a message without such a CRC.
    """
    raws = (store.log.raw_at(file.base) for file in reversed(store.log.files))
    raw = next((raw for raw in raws if raw is not None), None)
    return raw is not None and append_crc.verify(raw) is True


def _sizes_of_files(store: Store, excluded: Container[str]) -> dict[str, int]:
    """Return the sizes determined from the files of a store, without the ``excluded`` names."""
    looks: dict[str, Callable[[], int | None]] = {
        "commitlog_file_size": lambda: common_size(store.log.files),
        "consumequeue_file_size": lambda: queue_size(
            (queue.files for queue in store.queues.by_key.values()), consume_queue.UNIT_SIZE),
        "batch_consumequeue_file_size": lambda: queue_size(
            (queue.files for queue in store.queues.batch.values()),
            batch_consume_queue.UNIT_SIZE),
        "consumequeue_ext_file_size": lambda: queue_size(ext_files(store), 1)}
    sizes = {name: look() for name, look in looks.items() if name not in excluded}
    return {name: size for name, size in sizes.items() if size is not None}


def _shape_of_files(store: Store, chosen: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """Return the numbers of slots and entries in the index files ({} if unknown), and the reason
    why they are unknown.
    """
    shape, why = Index(store, chosen.get("index_slots"), chosen.get("index_max"),
                       current=True).shape()
    return ({} if shape is None else dict(zip(_SHAPE, shape, strict=True))), why


_NAMED = {
    "commitlog_file_size": "mappedFileSizeCommitLog",
    "consumequeue_file_size": "mappedFileSizeConsumeQueue",
    "batch_consumequeue_file_size": "mapperFileSizeBatchConsumeQueue",
    "consumequeue_ext_file_size": "mappedFileSizeConsumeQueueExt",
    "index_slots": "maxHashSlotNum", "index_max": "maxIndexNum"}


def contradictions(store: Store, conf: BrokerConf) -> list[str]:
    """Return a sentence for each contradiction between a broker's configuration file and a store.
    The store must have been opened without this file.
    """
    layout = store.layout
    texts = []
    if layout.reads("commitlog") and layout.reads("consumequeue"):
        texts = [f"{_NAMED[name]}={conf.values[name]}, but the files have {size}"
                 for name, size in {**_sizes_of_files(store, ()),
                                    **_shape_of_files(store, {})[0]}.items()
                 if conf.values.get(name, size) != size]
    if conf.store_type == "defaultRocksDB" and layout.consumequeue == "file":
        texts.append("storeType=defaultRocksDB, but the consume queues are files")
    elif layout.consumequeue == "rocksdb" and conf.store_type in (None, "default"):
        texts.append(f"storeType={conf.store_type or 'default (it is not set)'}, but the consume "
                     "queues are in RocksDB")
    is_dledger = layout.is_dledger
    if conf.dledger and not is_dledger and not conf.dledger_paths:
        texts.append("enableDLegerCommitLog=true, but this is not a DLedger log")
    elif is_dledger and not conf.dledger:
        texts.append("enableDLegerCommitLog is not true, but this is a DLedger log")
    if not conf.multi_path and layout.commitlog == "multi-path":
        texts.append("storePathCommitLog does not name several folders, but the log is in "
                     f"{', '.join(store.log_folders)}")
    return [f"{conf.path} and the store differ: {text}" for text in texts]


def ext_files(store: Store) -> Iterator[list[StoreFile]]:
    """Yield, for each queue with a folder in consumequeue_ext, the files in it."""
    top = store.path("consumequeue_ext")
    for topic in listing(top).folders:
        for queue in listing(store.path("consumequeue_ext", topic)).folders:
            yield listing(store.path("consumequeue_ext", topic, queue)).files
