"""What differs between the broker versions that rmqctl follows: the one place that knows.

spec: recovery.md §8 and §15, commitlog.md §5 and §8, consumequeue.md §7 and §10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rmqctl.errors import UsageError

VersionName = Literal["4.9.3", "5.3.3"]
AnswersLike = Literal["5.3.3", "4.9.3"]
"""The same, the newest first: what an option's help shows."""


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """One version. Sizes in bytes, capacities in buckets of a Java ``HashMap``."""

    name: str
    generation: int

    # What it writes.
    trailing_separator: bool
    """Whether a rebuilt properties string ends with 0x02."""
    map_capacity: int
    """Initial capacity of the map that properties are parsed into (its order is stored)."""
    message_v2: bool
    """Topics of more than 127 characters get a v2 record; an older broker's log ends at one."""
    stores_wait: bool
    """``WAIT`` stays in the stored string of a plain put."""
    ensures_unique_key: bool
    body_room: int
    """What a record may have beyond ``max_message_size``; then the body is limited by itself."""
    timer: bool
    batch_queues: bool
    multi_dispatch_any_queue: bool
    """Multi-dispatch also allots offsets to queues that are no LMQ."""
    page_cache_busy: str
    create_file_failed: str
    abort_has_pid: bool

    # How it starts.
    blank_must_fit: bool
    """A blank which names more than the rest of its file is damage (5.3.2+)."""
    skips_folders: bool
    deletes_empty_last: bool
    normal_by_queues: bool
    """After a clean end the walk starts by the consumequeues and dispatches what lies beyond
    them (5.3.2+); else it starts with the third file from the end and dispatches nothing."""
    reput_from_queues: bool
    """What the consumequeues lack at the end is dispatched after recovery (4.5.1 to 4.9.x)."""
    delay_levels_late: bool
    """Recovery does not know the delay levels yet (4.9.2 to 4.9.8)."""
    keeps_confirm: bool
    empty_queue_file_fails: bool
    """A queue that goes on with a later file and has no row in it keeps the broker from
    starting (5.0.0+; apache/rocketmq#9728)."""

    # How it answers.
    nearest_in_time: bool
    """The offset at a time is that of the row nearest in time; a boundary since 5.1.1."""


VERSIONS: dict[str, BrokerVersion] = {one.name: one for one in (
    BrokerVersion(
        name="4.9.3", generation=4, trailing_separator=False, map_capacity=16, message_v2=False,
        stores_wait=False, ensures_unique_key=False, body_room=0, timer=False,
        batch_queues=False, multi_dispatch_any_queue=True, page_cache_busy="OS_PAGECACHE_BUSY",
        create_file_failed="CREATE_MAPEDFILE_FAILED", abort_has_pid=False, blank_must_fit=False,
        skips_folders=False, deletes_empty_last=False, normal_by_queues=False,
        reput_from_queues=True, delay_levels_late=True, keeps_confirm=False,
        empty_queue_file_fails=False, nearest_in_time=True),
    BrokerVersion(
        name="5.3.3", generation=5, trailing_separator=True, map_capacity=128, message_v2=True,
        stores_wait=True, ensures_unique_key=True, body_room=65_536, timer=True,
        batch_queues=True, multi_dispatch_any_queue=False, page_cache_busy="OS_PAGE_CACHE_BUSY",
        create_file_failed="CREATE_MAPPED_FILE_FAILED", abort_has_pid=True, blank_must_fit=True,
        skips_folders=True, deletes_empty_last=True, normal_by_queues=True,
        reput_from_queues=False, delay_levels_late=False, keeps_confirm=True,
        empty_queue_file_fails=True, nearest_in_time=False),
)}
NEWEST: VersionName = "5.3.3"


def version_of(name: str) -> BrokerVersion:
    """The version with this name. UsageError names those there are."""
    version = VERSIONS.get(name)
    if version is None:
        raise UsageError(f"no profile for broker version {name!r}; there are "
                         f"{', '.join(VERSIONS)}")
    return version


def version_for(generation: int) -> BrokerVersion:
    """The version whose rules stand for a generation (4, 5) when nobody names one."""
    return next(one for one in VERSIONS.values() if one.generation == generation)
