"""Measurements that call Python instead of the command line: each takes a store's root and
returns (records, bytes of log) it went through. Imported only in the process measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import peers
from benchmarks.peers import Scan

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
