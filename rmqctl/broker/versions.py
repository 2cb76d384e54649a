"""All differences between the broker versions that rmqctl imitates.

Two versions, the profiles, are imitated completely and tested against files written by these
brokers. Any other release uses the profile of its line, with the known differences at startup.
`DIFFERENCES` contains all known differences, including those that rmqctl does not cover.

spec: versions.md, recovery.md §2-§8 and §15, commitlog.md §5 and §8, consumequeue.md §7 and §10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """The rules of one version. Sizes in bytes, capacities in buckets of a Java ``HashMap``."""

    name: str
    generation: int

    # What the broker writes.
    trailing_separator: bool
    """True if a rebuilt properties string ends with 0x02."""
    map_capacity: int
    """Initial capacity of the map into which properties are parsed. Properties are stored in the
    order of this map.
    """
    message_v2: bool
    """True if messages of topics with more than 127 characters are stored as v2 records. An older
    broker truncates the log at a v2 record.
    """
    stores_wait: bool
    """True if the property ``WAIT`` of a single message is stored."""
    ensures_unique_key: bool
    body_room: int
    """Number of bytes by which a record may exceed ``max_message_size``. If not 0, the body alone
    must not exceed ``max_message_size``.
    """
    timer: bool
    batch_queues: bool
    multi_dispatch_any_queue: bool
    """True if multi-dispatch also assigns offsets to queues that are not LMQs."""
    page_cache_busy: str
    abort_has_pid: bool

    # How the broker starts.
    blank_must_fit: bool
    """True if a blank record that is longer than the rest of its file counts as damage (5.3.2+)."""
    skips_folders: bool
    deletes_empty_last: bool
    normal_by_queues: bool
    """True if recovery after a clean stop starts at the end of the consume queues and dispatches
    later messages (5.3.2+). If False, recovery starts with the third-last file and dispatches
    nothing.
    """
    reput_from_queues: bool
    """True if messages without an entry at the end of consume queues are dispatched after recovery
    (4.5.1 to 4.9.x).
    """
    delay_levels_late: bool
    """True if recovery runs before the delay levels are loaded (4.9.2 to 4.9.8)."""
    clamps_delay_offsets: bool
    """True if a startup moves the offsets in ``delayOffset.json`` to within the bounds of their
    queues (4.9.2+).
    """
    keeps_confirm: bool
    walks_dledger: bool
    """True if the broker scans the records of a DLedger log after an unclean stop, and dispatches
    them (5.2.0+).
    """
    rocksdb_queues: bool
    """True if the broker supports consume queues in RocksDB (5.2.0+)."""
    property_crc: bool
    """True if the broker can append a CRC to records, and supports forceVerifyPropCRC (5.2.0+)."""
    property_crc_of_zero: bool
    """True if the broker accepts a record whose appended CRC is 0 (5.3.2+)."""
    empty_queue_file_fails: bool
    """True if the broker does not start when the last of several files of a queue has no entries
    (5.0.0+; apache/rocketmq#9728).
    """

    # How the broker answers.
    nearest_in_time: bool
    """True if a search by time returns the offset of the entry nearest in time (before 5.1.1).
    Later releases return the offset of the first or last entry with this time.
    """

    # Settings of its configuration.
    forces_property_crc: bool = False
    """True if the broker truncates the log at a record whose appended CRC is missing or does not
    match (forceVerifyPropCRC). Such a broker does not check the body CRC.
    """


VERSIONS: dict[str, BrokerVersion] = {version.name: version for version in (
    BrokerVersion(
        name="4.9.3", generation=4, trailing_separator=False, map_capacity=16, message_v2=False,
        stores_wait=False, ensures_unique_key=False, body_room=0, timer=False,
        batch_queues=False, multi_dispatch_any_queue=True, page_cache_busy="OS_PAGECACHE_BUSY",
        abort_has_pid=False, blank_must_fit=False,
        skips_folders=False, deletes_empty_last=False, normal_by_queues=False,
        reput_from_queues=True, delay_levels_late=True, clamps_delay_offsets=True,
        keeps_confirm=False, walks_dledger=False, rocksdb_queues=False,
        property_crc=False, property_crc_of_zero=False,
        empty_queue_file_fails=False, nearest_in_time=True),
    BrokerVersion(
        name="5.3.3", generation=5, trailing_separator=True, map_capacity=128, message_v2=True,
        stores_wait=True, ensures_unique_key=True, body_room=65_536, timer=True,
        batch_queues=True, multi_dispatch_any_queue=False, page_cache_busy="OS_PAGE_CACHE_BUSY",
        abort_has_pid=True, blank_must_fit=True,
        skips_folders=True, deletes_empty_last=True, normal_by_queues=True,
        reput_from_queues=False, delay_levels_late=False, clamps_delay_offsets=True,
        keeps_confirm=True, walks_dledger=True, rocksdb_queues=True,
        property_crc=True, property_crc_of_zero=True,
        empty_queue_file_fails=True, nearest_in_time=False),
)}
NEWEST = "5.3.3"

RELEASES = (
    "4.0.0", "4.1.0", "4.2.0", "4.3.0", "4.3.1", "4.3.2", "4.4.0", "4.5.0", "4.5.1", "4.5.2",
    "4.6.0", "4.6.1", "4.7.0", "4.7.1", "4.8.0", "4.9.0", "4.9.1", "4.9.2", "4.9.3", "4.9.4",
    "4.9.5", "4.9.6", "4.9.7", "4.9.8", "5.0.0", "5.1.0", "5.1.1", "5.1.2", "5.1.3", "5.1.4",
    "5.2.0", "5.3.0", "5.3.1", "5.3.2", "5.3.3", "5.3.4", "5.4.0")
"""Every released version, ascending."""


@dataclass(frozen=True, slots=True)
class ReleaseDifference:
    """A difference between the releases ``first`` to ``last`` and the profile of their line.

    ``rules``: fields of `BrokerVersion` with other values. If empty, rmqctl does not cover the
    difference.
    """

    first: str
    last: str
    words: str
    rules: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def holds_for(self, release: str) -> bool:
        return _numbers(self.first) <= _numbers(release) <= _numbers(self.last)


DIFFERENCES = (
    ReleaseDifference("4.0.0", "4.3.1",
                      "after an unclean shutdown it accepts a record whose lengths do "
                      "not add up; after a clean shutdown it truncates no consume queue"),
    ReleaseDifference("4.0.0", "4.4.0", "loading silently stops at a file of the wrong size"),
    ReleaseDifference("4.0.0", "4.4.0",
                      "missing consume queue entries are not recreated after a clean shutdown",
                      {"reput_from_queues": False}),
    ReleaseDifference("4.9.2", "4.9.2", "loading silently stops at a file of the wrong size"),
    ReleaseDifference("4.0.0", "4.9.1",
                      "recovery creates entries of delayed messages with their delivery "
                      "time, and delay offsets outside their queues are not corrected",
                      {"delay_levels_late": False, "clamps_delay_offsets": False}),
    ReleaseDifference("5.0.0", "5.0.0",
                      "it truncates the log at a v2 record, and does not start with a "
                      "folder in the commitlog", {"message_v2": False, "skips_folders": False}),
    ReleaseDifference("5.0.0", "5.1.0",
                      "a query by time returns the offset of the entry with the nearest time",
                      {"nearest_in_time": True}),
    ReleaseDifference("5.0.0", "5.1.4",
                      "after an unclean shutdown it does not check the records of a "
                      "DLedger log",
                      {"walks_dledger": False}),
    ReleaseDifference("5.0.0", "5.1.4", "it has no consume queues in RocksDB", {
        "rocksdb_queues": False}),
    ReleaseDifference("5.0.0", "5.1.4", "it has no forceVerifyPropCRC", {"property_crc": False}),
    ReleaseDifference("5.0.0", "5.3.1",
                      "with forceVerifyPropCRC it truncates the log at an appended CRC "
                      "of 0",
                      {"property_crc_of_zero": False}),
    ReleaseDifference("5.0.0", "5.1.2", "it does not start with an empty last file",
                      {"deletes_empty_last": False}),
    ReleaseDifference("5.0.0", "5.3.1",
                      "after a clean shutdown it checks the log from the third-last "
                      "file on and creates no entries", {"normal_by_queues": False}),
    ReleaseDifference("5.0.0", "5.3.1",
                      "an end-of-file record longer than the rest of its file ends the "
                      "file",
                      {"blank_must_fit": False}),
    ReleaseDifference("5.3.4", "5.4.0",
                      "rmqctl does not know what changed between 5.3.3 and this release"),
)


def release_of(text: str) -> str:
    """Return the release with the name ``text``, such as ``5.1.4``, ``v4.9.3`` or ``4.9`` (the
    newest 4.9.x).

    Raises: UsageError.
    """
    wanted = text.strip().lower().removeprefix("rocketmq-all-").removeprefix("v")
    wanted = wanted.removesuffix("-incubating").removesuffix("-release")
    if wanted in RELEASES:
        return wanted
    if re.fullmatch(r"[0-9]+\.[0-9]+", wanted):
        line = [name for name in RELEASES if name.startswith(f"{wanted}.")]
        if line:
            return line[-1]
    raise UsageError(f"{text!r} is not a RocketMQ release that rmqctl knows; expected "
                     f"{RELEASES[0]} to {RELEASES[-1]}, or a line such as 4.9 for its newest "
                     "release")


def is_release(name: object) -> bool:
    """Return whether a name is the exact name of a released version."""
    return name in RELEASES


@cache
def version_of(release: str) -> BrokerVersion:
    """Return the rules of a release: its own profile, or the profile of its line with the
    `DIFFERENCES`.

    Raises: UsageError.
    """
    release = release_of(release)
    profile = VERSIONS.get(release) or version_for(int(release[0]))
    rules: dict[str, Any] = {}
    for difference in _differences(release):
        rules |= difference.rules
    return replace(profile, **rules) if rules else profile


def profile_note(release: str) -> str | None:
    """Return a sentence that names the profile used for a release, and the differences; None if the
    release is a profile.
    """
    if release in VERSIONS:
        return None
    followed = [difference.words for difference in _differences(release) if difference.rules]
    other = [difference.words for difference in _differences(release) if not difference.rules]
    return (f"a {release} broker follows the rules of {version_of(release).name}"
            + (f"; except: {'; '.join(followed)}" if followed else "")
            + (f"; not covered: {'; '.join(other)}" if other else ""))


def _differences(release: str) -> Iterator[ReleaseDifference]:
    return (difference for difference in DIFFERENCES if difference.holds_for(release)
            and release not in VERSIONS)


def is_from(release: str, first: str) -> bool:
    """Return whether ``release`` is ``first`` or later."""
    return _numbers(release) >= _numbers(first)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def version_for(generation: int) -> BrokerVersion:
    """Return the version whose rules are used for a generation (4 or 5) if no release is known."""
    return next(version for version in VERSIONS.values() if version.generation == generation)
