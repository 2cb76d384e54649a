"""Measurements of Python calls. Each function prepares its work and returns the function to
time, which returns the amount of work done. Imported only in the measured process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import peers, writing
from rmqctl.scan import malloc_tuning

MIB = 1 << 20
PIECE = 4 * MIB
TEN = ("physical_offset", "total_size", "topic", "queue_id", "queue_offset", "store_timestamp",
       "born_timestamp", "sys_flag", "tags", "reconsume_times")


@dataclass(frozen=True)
class Where:
    """The store to measure, a folder for results, and the number of threads."""

    store: Path
    scratch: Path
    jobs: int = 1

    def log_files(self) -> Iterator[tuple[Path, int]]:
        """Yield (path, offset of the first byte) of the commitlog files in order."""
        for path in sorted((self.store / "commitlog").iterdir()):
            yield path, int(path.name)

    def fresh(self, name: str) -> Path:
        """Return a new empty folder."""
        folder = self.scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


@dataclass(frozen=True)
class Done:
    """The work done by a call: number of records (messages, items) and bytes. ``seconds``: the time
    to report; None: the time of the whole call.
    """

    records: int
    bytes: int
    seconds: float | None = None


Run = Callable[[], Done]


# -- peers ----------------------------------------------------------------------------------------


def peer(where: Where, name: str) -> Run:
    """Parse the log with one of the programs in peers.py."""
    scan: Callable[[Path, int], peers.Scan] = {
        "construct": partial(peers.construct_parse, limit=16 * MIB),  # equally slow for the rest
        "struct": peers.struct_loop,
        "struct, zlib": partial(peers.struct_loop, crc32=zlib.crc32),
        "fields": peers.struct_fields}[name]
    files = [*where.log_files()][:1 if name == "construct" else None]

    def run() -> Done:
        parts = [scan(path, base) for path, base in files]
        return Done(sum(part.records for part in parts), sum(part.bytes for part in parts))

    return run


def copy(where: Where) -> Run:
    """Copy the log to a single file and flush it."""
    folder = where.fresh("copy")

    def run() -> Done:
        size = 0
        with (folder / "log").open("wb") as out:
            for path, _ in where.log_files():
                with path.open("rb", buffering=0) as log:
                    while part := log.read(PIECE):
                        size += out.write(part)
            out.flush()
            os.fdatasync(out.fileno())
        return Done(0, size)

    return run


# -- reading --------------------------------------------------------------------------------------


def walk_crc(where: Where) -> Run:
    """Scan all frames of the log and check the CRC of every body."""
    from rmqctl.store import Store
    from rmqctl.store.log.ranges import in_order, split

    malloc_tuning.keep_freed_memory()
    # A single thread reads complete files; several threads share ranges with checked borders.
    size = 1 << 40 if where.jobs == 1 else 64 * MIB

    def run() -> Done:
        with Store.open(where.store) as opened:
            parts = [done for _, done in in_order(_walk, split(opened.log.files, size), where.jobs)]
        assert not any(part.bad for part in parts)
        return Done(sum(part.records for part in parts), sum(part.bytes for part in parts))

    return run


@dataclass(frozen=True)
class _Walked:
    """Result for a scanned range: its first physical offset, its end, and counts of its frames."""

    first: int
    position: int
    records: int
    bytes: int
    bad: int


def _walk(part: Any) -> _Walked:
    """Scan the frames of a range of a log file and check the CRC of every body."""
    records = size = bad = 0
    with part.file.open() as source:
        frames = part.walk(source)
        for batch in frames:
            records += len(batch)
            size += int(batch.column("total_size").sum())
            bad += int((~batch.crc_ok()).sum())
    return _Walked(frames.first, frames.position, records, size, bad)


def verify(where: Where) -> Run:
    """Run all checks of `rmqctl verify`."""
    from rmqctl.checks.verify.verify import Verification, VerifyOptions
    from rmqctl.store import Store

    def run() -> Done:
        with Store.open(where.store) as opened:
            checked = Verification(opened, VerifyOptions(jobs=where.jobs))
            assert not any(True for _ in checked.findings())
            return Done(checked.coverage.messages, checked.coverage.bytes_in_messages)

    return run


def stats(where: Where, by: str) -> Run:
    """Count messages and bytes by a field."""
    from rmqctl.store import Store
    from rmqctl.store.stats import Query, collect

    def run() -> Done:
        with Store.open(where.store) as opened:
            sums = collect(opened, Query(by), where.jobs)
            sums.groups()
            total = sums.total
            assert total
            return Done(total.messages, sums.bytes_in_messages)

    return run


def carve(where: Where, noise: bool) -> Run:
    """Run `rmqctl carve --summary` on an image: the log under another file name, or noise."""
    from rmqctl.repair.carve.carve import Carving
    from rmqctl.repair.carve.sources import inputs

    log, _ = next(where.log_files())
    image = where.fresh("carve") / "image"
    if noise:
        with image.open("wb") as out:
            for _ in range(0, max(log.stat().st_blocks * 512, PIECE), PIECE):
                out.write(os.urandom(PIECE))
    else:
        os.link(log, image)

    def run() -> Done:
        with Carving([*inputs([str(image)], lambda *_: None)]) as carving:
            for _ in carving.pages():
                pass
            assert bool(carving.tally.messages) != noise
            return Done(carving.tally.messages,
                        carving.tally.bytes_read if noise else carving.tally.bytes_in_messages)

    return run


def export(where: Where, ten: bool, compression: str | None = None) -> Run:
    """Run `rmqctl pipeline export --engine local --partition-by none`: Parquet, flushed to disk."""
    from rmqctl.export.export import export as write
    from rmqctl.export.plan import plan
    from rmqctl.export.spec import Export
    from rmqctl.store.log.ranges import Threads
    from rmqctl.store.query.select import Selection

    spec = Export.of(fields=TEN if ten else None, partition_by=(), compression=compression)
    out = where.fresh("export") / "out"

    def run() -> Done:
        plans = plan([str(where.store)], Selection(), where.jobs)
        done = write(plans, spec, str(out), Threads(where.jobs))
        return Done(sum(store.messages for store in done.stores),
                    sum(store.used for store in plans))

    return run


# -- writing --------------------------------------------------------------------------------------


def rebuild(where: Where) -> Run:
    """Rebuild consumequeue and index from the log into new files, without a flush."""
    from rmqctl.broker.settings import Settings
    from rmqctl.repair.rebuild.rebuild import rebuild as make
    from rmqctl.repair.scratch import Scratch
    from rmqctl.scan.overlay import LogPart
    from rmqctl.store import Store

    folder = where.fresh("rebuild")
    with Store.open(where.store) as opened:
        parts = [LogPart(file.base, file.size, file.path) for file in opened.log.files]
    size = sum(path.stat().st_blocks * 512 for path, _ in where.log_files())

    def run() -> Done:
        with Scratch(str(folder), "rebuilding") as scratch:
            rebuilt = make(parts, str(where.store), Settings(), scratch, jobs=where.jobs)
            return Done(rebuilt.messages, size)

    return run


def append_many(where: Where, size: int, count: int) -> Run:
    """Run `Engine.append_many` until everything is dispatched; the final flush is not timed."""
    return _put(writing.engine(where.fresh("append"), count, size))


def append_columns(where: Where, size: int, count: int) -> Run:
    """Run `Engine.append_columns` like `append_many`, on lists that exist before."""
    return _put(writing.engine(where.fresh("append"), count, size, by_column=True))


def append(where: Where, size: int, count: int) -> Run:
    """Run `rmqctl append` on JSON lines; the time is that of the complete process."""
    return _put(writing.command(where.fresh("append"), count, size))


def _put(run: Callable[[], writing.Pass]) -> Run:
    return lambda: Done(*run())


def dispatch(where: Where) -> Run:
    """Run `rmqctl tiered dispatch` including the index; flush its files to disk."""
    from rmqctl.ext.tiered.dispatch.request import Request
    from rmqctl.ext.tiered.dispatch.session import dispatch as upload
    from rmqctl.parse_values import now_ms

    target = where.fresh("tier")
    request = Request(str(where.store), str(target / "tier"), broker="b", index=True,
                      metadata=str(target / "config" / "tieredStoreMetadata.json"))

    def run() -> Done:
        done = upload(request, now_ms)
        assert not done.is_fault
        return Done(sum(outcome.messages for outcome in done.outcomes),
                    sum(outcome.bytes for outcome in done.outcomes))

    return run


def compact(where: Where, items: int) -> Run:
    """Compact an index file of a tier, write it and flush it."""
    import numpy as np

    from rmqctl.ext.tiered.index import compacted_form
    from rmqctl.ext.tiered.index.keys import BatchKeys
    from rmqctl.ext.tiered.index.writer import TierIndexWriter
    from rmqctl.formats.tiered.index import DEFAULT_SHAPE

    folder = where.fresh("index")
    draw, begin = np.random.default_rng(items), 1_795_233_794_638
    with TierIndexWriter(str(folder), DEFAULT_SHAPE, lambda: begin) as feed:
        for start in range(0, items, 1 << 17):
            at = np.arange(start, min(start + (1 << 17), items))
            keys = BatchKeys(at - start, draw.integers(0, (1 << 31) - 1, len(at), dtype=np.int32))
            feed.put_keys(keys, at * 1000, np.full(len(at), 1000), begin + at, 1, 2)
        feed.commit()
        path = str(feed.open_file)
    with open(path, "rb", buffering=0) as file:  # load it into the page cache
        while file.read(PIECE):
            pass
    malloc_tuning.keep_freed_memory()

    def run() -> Done:
        with compacted_form.opened(path) as file:
            compacted = compacted_form.compact(file)
            compacted_form.write(compacted, str(folder / "compacted"))
        assert compacted.sound
        return Done(items, compacted.size)

    return run


# -- what commands are measured on ------------------------------------------------------------


def copy_with_damage(store: Path, target: Path, places: int = 20) -> None:
    """Copy a store and overwrite bytes at some positions of the copied log."""
    import random

    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(store), str(target)], check=True)
    chance = random.Random(4)
    for path in sorted((target / "commitlog").iterdir()):
        with path.open("r+b") as log:
            size = path.stat().st_blocks * 512
            for _ in range(places):
                at = chance.randrange(size // 20, size - size // 20)
                log.seek(at)
                byte = log.read(1)[0]
                log.seek(at)
                log.write(bytes([byte ^ 0x40]))
