"""How fast index files of a tier are fed and rearranged, and what a query for a key reads.

python -m benchmarks.tiered_index --dir DIR [--rounds N] [--write-results]

Every measurement is a process of its own; the rounds are interleaved and the best pass counts.
Files have the slots and items a broker has by default (5,000,000 and 20,000,000). `feed` puts keys
of random hashes that are known already, a commit at the end; `feed messages` takes them from
messages of 200 bytes with a unique key and one more. `compact` includes writing the result and
forcing it to disk; `copy` writes and forces as many bytes that lie in memory. The queries are for
keys of an index of 1,000,000 items, rearranged, in the page cache; every read is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import publish

MARK = "\n## Index of a tier\n"
GOAL_ITEMS_S = 5_000_000
BEGIN = 1_795_233_794_638
BLOCK = 1 << 17
FULL, MILLION = 19_999_999, 1_000_000
QUERIES = 20_000

Figures = dict[str, Any]


def _fill(folder: Path, items: int) -> Path:
    """An open file with items of random hashes, fed; the path."""
    import numpy as np

    from rmqctl.formats.tiered import index as fmt
    from rmqctl.tiered.index.keys import Keys
    from rmqctl.tiered.index.writer import IndexWriter

    draw = np.random.default_rng(items)
    with IndexWriter(str(folder), fmt.DEFAULT_SHAPE, lambda: BEGIN) as feed:
        for start in range(0, items, BLOCK):
            count = min(BLOCK, items - start)
            keys = Keys(np.arange(count), draw.integers(0, (1 << 31) - 1, count, dtype=np.int32))
            at = np.arange(start, start + count)
            feed.put_keys(keys, at * 1000, np.full(count, 1000), BEGIN + at, 1, 2)
        feed.commit()
        return Path(feed.open_file)


def _opened(where: Path, items: int) -> Path:
    """The open file of so many items, made where it is missing."""
    folder = where / f"tiered_index_{items}"
    path = folder / str(BEGIN)
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _fill(folder, items)
        (folder / "made").touch()
    return path


def feed(where: Path) -> Figures:
    """Items that are known already."""
    folder = where / "tiered_index_feed"
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    _fill(folder, 4 * MILLION)
    wall = time.perf_counter() - started
    shutil.rmtree(folder)
    return {"items": 4 * MILLION, "wall": wall}


def feed_messages(where: Path) -> Figures:
    """Messages, walked from memory; walking is not measured."""
    from rmqctl.formats.tiered import index as fmt
    from rmqctl.scan.source import BytesSource
    from rmqctl.scan.walk import Walk
    from rmqctl.tiered.index.writer import IndexWriter

    log = _messages(200_000)
    batches = list(Walk(BytesSource(log), chunk=len(log)))  # one, so its bytes stay
    assert len(batches) == 1
    folder = where / "tiered_index_feed"
    shutil.rmtree(folder, ignore_errors=True)
    items = 0
    started = time.perf_counter()
    with IndexWriter(str(folder), fmt.DEFAULT_SHAPE, lambda: BEGIN) as made:
        for batch in batches:
            items += made.put(batch, "TopicA", 1, 2)
        put = time.perf_counter() - started
        made.commit()
    wall = time.perf_counter() - started
    shutil.rmtree(folder)
    return {"items": items, "wall": wall, "note": f"{put:.3f} s without the commit"}


def _messages(count: int) -> bytes:
    import zlib

    from rmqctl.formats.local import message

    body = b"x" * 60
    crc = zlib.crc32(body) & 0x7FFFFFFF
    log = bytearray()
    for number in range(count):
        raw = f"UNIQ_KEY\x017F00000100002A9F0000{number:012X}\x02KEYS\x01order-{number % 9973}\x02"
        size = message.size_of(0, message.MAGIC_V1, len(body), 6, len(raw))
        log += message.build(message.Record(
            size, message.MAGIC_V1, crc, 2, 0, number, len(log), 0, BEGIN, (bytes(4), 1),
            BEGIN + number, (bytes(4), 2), 0, 0, body, b"TopicA", raw.encode()))
    return bytes(log)


def compact(where: Path, items: int) -> Figures:
    """Rearranging, written and forced to disk."""
    from rmqctl.scan import malloc_tuning
    from rmqctl.tiered.index import compaction

    path = _opened(where, items)
    with path.open("rb", buffering=0) as file:  # into the page cache
        while file.read(1 << 22):
            pass
    out = where / "tiered_index_compacted"
    out.unlink(missing_ok=True)
    malloc_tuning.keep_freed_memory()
    started = time.perf_counter()
    with compaction.opened(str(path)) as one:
        found = compaction.compact(one)
        compaction.write(found, str(out))
    wall = time.perf_counter() - started
    assert found.sound
    out.unlink()
    return {"items": items, "wall": wall, "note": f"{found.size / 1e6:,.0f} MB"}


def copy(where: Path, items: int) -> Figures:
    """As many bytes as the rearranged form of so many items has."""
    from rmqctl.formats.tiered import index as fmt

    size = fmt.DEFAULT_SHAPE.compacted_size(items)
    out = where / "tiered_index_compacted"
    out.unlink(missing_ok=True)
    part = os.urandom(1 << 20) * 8
    started = time.perf_counter()
    with out.open("wb", buffering=0) as file:
        for at in range(0, size, len(part)):
            file.write(part[:size - at])
        os.fsync(file.fileno())
    wall = time.perf_counter() - started
    out.unlink()
    return {"items": items, "wall": wall, "note": f"{size / 1e6:,.0f} MB"}


def query(where: Path, items: int) -> Figures:
    """Queries for keys that are there; how much is read for each."""
    from rmqctl.formats.tiered import index as fmt
    from rmqctl.scan.source import FileSource
    from rmqctl.tiered.index import compaction
    from rmqctl.tiered.index.index_file import examine

    out = where / f"tiered_index_query_{items}"
    if not out.exists():
        with compaction.opened(str(_opened(where, items))) as one:
            compaction.write(compaction.compact(one), str(out))
    reads: list[tuple[int, int]] = []
    with FileSource(str(out)) as source:
        file = examine(source.read, source.size, str(out), status="UPLOADED")
        found = [one.key_hash for _, block in file.blocks()
                 for one in map(fmt.CompactedItemRecord._make, block[::items // QUERIES].tolist())]
        random.Random(1).shuffle(found)

        def counted(position: int, length: int) -> bytes:
            reads.append((position, length))
            return source.read(position, length)

        file = examine(counted, source.size, str(out), status="UPLOADED")
        reads.clear()
        started = time.perf_counter()
        for key in found:
            if not any(True for _ in file.chain(key)):
                raise AssertionError(key)
        wall = time.perf_counter() - started
    assert len(reads) == 2 * len(found)
    assert all(length == fmt.COMPACTED_SLOT.size for _, length in reads[::2])
    longest = max(length for _, length in reads[1::2])
    return {"items": len(found), "wall": wall,
            "note": f"{len(reads) / len(found):.0f} reads each: the slot (8 bytes) and one range "
                    f"(at most {longest} bytes)"}


RUNS: dict[str, Callable[[Path], Figures]] = {
    "feed": feed,
    "feed messages": feed_messages,
    "compact 1,000,000": lambda where: compact(where, MILLION),
    "copy 1,000,000": lambda where: copy(where, MILLION),
    "compact 19,999,999": lambda where: compact(where, FULL),
    "copy 19,999,999": lambda where: copy(where, FULL),
    "query in 1,000,000": lambda where: query(where, MILLION),
}


def one(name: str, where: Path) -> None:
    """Runs one measurement here and prints its figures."""
    found = RUNS[name](where)
    found["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def measure(where: Path, rounds: int, names: list[str]) -> dict[str, Figures]:
    """The best pass of every measurement."""
    best: dict[str, Figures] = {}
    for number in range(rounds):
        for name in names:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.tiered_index", "--one", name, "--dir",
                 str(where)], check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout)
            print(f"{number + 1} {name:20} {found['items'] / found['wall']:12,.0f} a second",
                  file=sys.stderr)
            if name not in best or found["wall"] < best[name]["wall"]:
                best[name] = found
    return best


def table(found: dict[str, Figures]) -> list[str]:
    """The section of RESULTS.md."""
    lines = ["| measurement | items or queries | wall s | a second | RSS MiB | |",
             "| --- | --- | --- | --- | --- | --- |"]
    for name, each in found.items():
        rate, note = each["items"] / each["wall"], each.get("note", "")
        if name.startswith("compact"):
            note += f" (goal {GOAL_ITEMS_S:,}: {'yes' if rate >= GOAL_ITEMS_S else 'NO'})"
        lines.append(f"| {name} | {each['items']:,} | {each['wall']:.3f} | {rate:,.0f} | "
                     f"{each['rss']:.0f} | {note} |")
    return [*lines, ""]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where files may be made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(RUNS))
    parser.add_argument("--one", choices=list(RUNS))
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    if given.one:
        one(given.one, given.dir)
        return
    from benchmarks.report import machine

    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.tiered_index --dir DIR --write-results`: one process, "
              f"page cache warm, best pass. {machine()}"), ""]
    lines += table(measure(given.dir, given.rounds, given.only or list(RUNS)))
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
