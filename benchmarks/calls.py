"""Measurements that call Python instead of the command line: each takes a store's root and
returns (records, bytes of log) it went through. Imported only in the process measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import peers
from benchmarks.peers import Scan
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.scan import malloc_tuning
from rmqctl.store import Store
from rmqctl.store.files import StoreFile
from rmqctl.store.log.ranges import Range, in_order, split
from rmqctl.store.stats import Query, collect

MIB = 1 << 20


def log_files(store: Path) -> Iterator[tuple[Path, int]]:
    """(path, offset of the first byte) of the commitlog files in order."""
    for path in sorted((store / "commitlog").iterdir()):
        yield path, int(path.name)


def over_files(store: Path, scan: Callable[[Path, int], Scan]) -> Scan:
    """The scan of every file, summed up."""
    parts = [scan(path, base) for path, base in log_files(store)]
    return Scan(sum(part.records for part in parts), sum(part.bytes for part in parts))


def peer_construct(store: Path, mib: int) -> Scan:
    """Only the first `mib` MiB of the log: the speed does not depend on the length."""
    path, base = next(log_files(store))
    return peers.construct_parse(path, base, mib * MIB)


def peer_struct(store: Path) -> Scan:
    """The struct loop with the fastest CRC there is."""
    return over_files(store, peers.struct_loop)


def peer_struct_zlib(store: Path) -> Scan:
    """The struct loop with the standard library's CRC."""
    return over_files(store, lambda path, base: peers.struct_loop(path, base, zlib.crc32))


def peer_struct_fields(store: Path) -> Scan:
    """All fields of every record, by struct."""
    return over_files(store, peers.struct_fields)


@dataclass(frozen=True)
class _Walked:
    """One range walked: where its frames start and end, and what was counted in it."""

    first: int
    position: int
    records: int
    bytes: int
    bad: int


def _walk_range(part: Range[StoreFile]) -> _Walked:
    """The frame walk with the CRC of every body, over one range of a log file."""
    records = size = bad = 0
    with part.file.open() as source:
        frames = part.walk(source)
        for batch in frames:
            records += len(batch)
            size += int(batch.column("total_size").sum())
            bad += int((~batch.crc_ok()).sum())
    return _Walked(frames.first, frames.position, records, size, bad)


def walk_crc(store: Path, jobs: int) -> Scan:
    """The frame walk of the whole log, CRC of every body included."""
    malloc_tuning.keep_freed_memory()
    with Store.open(store) as opened:
        # One process reads each file as a whole; several share it in ranges with checked seams.
        size = 1 << 40 if jobs == 1 else 64 * MIB
        parts = [done for _, done in in_order(_walk_range, split(opened.log.files, size), jobs)]
    if any(part.bad for part in parts):
        raise ValueError("the bench store is damaged")
    return Scan(sum(part.records for part in parts), sum(part.bytes for part in parts))


def verify_all(store: Path, jobs: int) -> Scan:
    """Everything `rmqctl verify` checks, without the start of a process."""
    with Store.open(store) as opened:
        run = Verification(opened, VerifyOptions(jobs=jobs))
        if any(True for _ in run.findings()):
            raise ValueError("the bench store is damaged")
        return Scan(run.coverage.messages, run.coverage.bytes_in_messages)


def stats_by_topic(store: Path, jobs: int) -> Scan:
    """Messages and bytes by topic, without the start of a process."""
    with Store.open(store) as opened:
        sums = collect(opened, Query("topic"), jobs)
        return Scan(sum(one.messages for one in sums.groups().values()), sums.bytes_in_messages)
