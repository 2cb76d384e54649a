"""What a broker has in its configuration, as far as it decides about bytes and durability.

Names follow `MessageStoreConfig`; sizes in bytes, times in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rmqctl.engine.config.profile import NEWEST, Profile, profile_of
from rmqctl.formats.local import batch_consume_queue, consume_queue

Host = tuple[bytes, int]
"""Packed address (4 or 16 bytes) and port."""

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LOCALHOST = bytes([127, 0, 0, 1])


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration of one engine. The defaults are a broker's."""

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
    """Share of the commitlog's file system in use above which puts are refused; 1 never."""
    page_cache_busy: int = 1000
    batch_topics: frozenset[str] = frozenset()
    """Topics with ``queue.type=BatchCQ`` besides those of config/topics.json."""
    broker_checks: bool = True
    """Also the checks a 5.x broker makes before its store is asked; off for what has passed
    them once (a replay)."""
    cluster: str = "DefaultCluster"
    born_host: Host = (LOCALHOST, 0)
    store_host: Host = (LOCALHOST, 10911)

    flush: Literal["async", "sync"] = "async"
    sync_flush_timeout: int = 5000
    flush_interval: int = 500
    flush_least_pages: int = 4
    flush_thorough_interval: int = 10_000
    flush_consumequeue_thorough_interval: int = 60_000
    """How often consumequeues, index and then the checkpoint are forced."""
    mapped: bool = False
    """Write the commitlog through a memory map instead of positional writes."""
    preallocate: bool = False
    """Create the next commitlog file in the background."""
    warm: bool = False
    """Touch, lock and advise the pages of a new mapped file (needs ``mapped``)."""
    transient_pool: int = 0
    """Buffers of one file size each that take the appends before they are committed; 0: none."""

    @property
    def profile(self) -> Profile:
        return profile_of(self.version)
