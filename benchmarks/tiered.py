"""How fast a local store is uploaded to a tier, beside a copy of its log and a plain loop.

python -m benchmarks.tiered --dir DIR [--rounds N] [--write-results]

Every measurement is a process of its own; the rounds are interleaved and the best pass counts. The
store is the bench store of 1 KiB bodies (`make_store.py`), its log in the page cache; the tier is
made beside it. Everything is forced to disk. `copy` writes the bytes of the log into one file;
`loop` uploads the same tier as plain Python does it, a message at a time with struct, without any
check and without index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import publish

MARK = "\n## Dispatch to a tier\n"
GOAL_MB_S = 300
PIECE = 4 << 20
LOG = f"{0:020d}"
UNIT = struct.Struct(">qiq")
PLACE = struct.Struct(">q")
AT = 28
MB = 1e6


def copy(store: Path, target: Path) -> tuple[int, int]:
    """The log as one file, forced."""
    done = 0
    with (store / "commitlog" / LOG).open("rb", buffering=0) as log, target.open("wb") as out:
        while part := log.read(PIECE):
            done += out.write(part)
        os.fdatasync(out.fileno())
    return 0, done


def loop(store: Path, target: Path) -> tuple[int, int]:
    """Message by message, with struct; 4096 of a queue at a time are written and forced."""
    from rmqctl.formats.tiered.names import segment_path

    messages = size = 0
    with (store / "commitlog" / LOG).open("rb", buffering=0) as log:
        for queue in sorted((store / "consumequeue").glob("*/*")):
            files = []
            for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
                path = target / segment_path("DefaultCluster", "b", queue.parent.name,
                                             int(queue.name), kind, 0)
                path.parent.mkdir(parents=True)
                files.append(path.open("wb", buffering=0))
            at = 0
            units = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
            for start in range(0, len(units), UNIT.size * 4096):
                rows: list[bytes] = []
                block: list[bytearray] = []
                for physical, length, tags in UNIT.iter_unpack(
                        units[start:start + UNIT.size * 4096]):
                    if not length:
                        break
                    record = bytearray(os.pread(log.fileno(), length, physical))
                    PLACE.pack_into(record, AT, at)
                    block.append(record)
                    rows.append(UNIT.pack(at, length, tags))
                    at += length
                for file, data in zip(files, (b"".join(block), b"".join(rows)), strict=True):
                    file.write(data)
                    os.fdatasync(file.fileno())
                messages += len(rows)
            size += at
            for file in files:
                file.close()
    return messages, size


def dispatch(store: Path, target: Path, *, index: bool) -> tuple[int, int]:
    """What `rmqctl tiered dispatch` does, without the start of a process."""
    from rmqctl.parse_values import now_ms
    from rmqctl.tiered.dispatch.request import Request
    from rmqctl.tiered.dispatch.session import dispatch as upload

    done = upload(Request(str(store), str(target / "tier"), broker="b", index=index,
                          metadata=str(target / "config" / "tieredStoreMetadata.json")),
                  now_ms)
    assert not done.is_fault
    return (sum(one.messages for one in done.outcomes), sum(one.bytes for one in done.outcomes))


RUNS: dict[str, Callable[[Path, Path], tuple[int, int]]] = {
    "copy": copy,
    "loop": loop,
    "dispatch, no index": lambda store, target: dispatch(store, target, index=False),
    "dispatch": lambda store, target: dispatch(store, target, index=True),
}


def one(name: str, where: Path) -> None:
    """Runs one measurement here and prints its figures."""
    store, target = where / "s1k", where / "tiered-made"
    shutil.rmtree(target, ignore_errors=True)
    if name == "copy":
        where.joinpath("tiered-copy").unlink(missing_ok=True)
        target = where / "tiered-copy"
    else:
        target.mkdir()
    with (store / "commitlog" / LOG).open("rb", buffering=0) as file:  # into the page cache
        while file.read(PIECE):
            pass
    os.sync()
    started, cpu = time.perf_counter(), time.process_time()
    messages, size = RUNS[name](store, target)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"messages": messages, "bytes": size, "wall": wall, "cpu": cpu,
                      "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    shutil.rmtree(target, ignore_errors=True)
    where.joinpath("tiered-copy").unlink(missing_ok=True)


def measure(where: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """The best pass of every measurement."""
    best: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for name in RUNS:
            done = subprocess.run([sys.executable, "-m", "benchmarks.tiered", "--one", name,
                                   "--dir", str(where)], check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout)
            print(f"{number + 1} {name:20} {found['bytes'] / found['wall'] / MB:8,.0f} MB/s, "
                  f"{found['cpu']:.1f} s of CPU", file=sys.stderr)
            if name not in best or found["wall"] < best[name]["wall"]:
                best[name] = found
    return best


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """The section of RESULTS.md."""
    plain, slow = (found[name]["bytes"] / found[name]["wall"] for name in ("copy", "loop"))
    lines = [("| measurement | messages | wall s | CPU s | MB/s | of the copy | of the loop "
              "| RSS MiB |"), "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, each in found.items():
        rate = each["bytes"] / each["wall"]
        goal = ""
        if name.startswith("dispatch"):
            goal = f" (goal {GOAL_MB_S}: {'yes' if rate >= GOAL_MB_S * MB else 'NO'})"
        lines.append(f"| {name} | {each['messages']:,} | {each['wall']:.3f} | {each['cpu']:.2f} | "
                     f"{rate / MB:,.0f}{goal} | {rate / plain:.2f} | {rate / slow:.2f} | "
                     f"{each['rss']:.0f} |")
    return [*lines, ""]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where stores may be made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one")
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    if given.one:
        one(given.one, given.dir)
        return
    from benchmarks.report import machine
    from benchmarks.run import prepare

    prepare("1k", given.dir)
    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.tiered --dir DIR --write-results`: the bench store of "
              f"1 GiB, page cache warm, best pass. {machine()}"), "",
             *table(measure(given.dir, given.rounds))]
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
