"""What differs between the broker versions whose bytes rmqctl writes.

spec: recovery.md §8 and §15, commitlog.md §5 and §8, consumequeue.md §10.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqctl.errors import UsageError


@dataclass(frozen=True, slots=True)
class Profile:
    """One version. Sizes in bytes, capacities in buckets of a Java ``HashMap``."""

    name: str
    generation: int
    trailing_separator: bool
    """Whether a rebuilt properties string ends with 0x02."""
    map_capacity: int
    """Initial capacity of the map that properties are parsed into (its order is stored)."""
    message_v2: bool
    """Topics of more than 127 characters get a v2 record."""
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


_V493 = Profile(
    name="4.9.3", generation=4, trailing_separator=False, map_capacity=16, message_v2=False,
    stores_wait=False, ensures_unique_key=False, body_room=0, timer=False, batch_queues=False,
    multi_dispatch_any_queue=True, page_cache_busy="OS_PAGECACHE_BUSY",
    create_file_failed="CREATE_MAPEDFILE_FAILED", abort_has_pid=False,
)
_V533 = Profile(
    name="5.3.3", generation=5, trailing_separator=True, map_capacity=128, message_v2=True,
    stores_wait=True, ensures_unique_key=True, body_room=65_536, timer=True, batch_queues=True,
    multi_dispatch_any_queue=False, page_cache_busy="OS_PAGE_CACHE_BUSY",
    create_file_failed="CREATE_MAPPED_FILE_FAILED", abort_has_pid=True,
)

PROFILES: dict[str, Profile] = {one.name: one for one in (_V493, _V533)}
NEWEST = _V533.name


def profile_of(version: str) -> Profile:
    """The profile of a version. UsageError names those there are."""
    found = PROFILES.get(version)
    if found is None:
        raise UsageError(f"no profile for broker version {version!r}; there are "
                         f"{', '.join(PROFILES)}")
    return found
