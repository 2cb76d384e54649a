"""How fast messages are carved, beside a plain walk of the same log with the CRC of every body.

python -m benchmarks.carving --dir DIR [--rounds N] [--write-results]

Every measurement is a process of its own on one core; the rounds are interleaved and the best pass
counts. The log is that of the bench store (`make_store.py`), in the page cache; it is carved under
its own name, as a nameless image, damaged in 200 places, and from two copies (every message of the
second is a duplicate). Noise and zeros have no record in them; `heads` is hostile: each 91 bytes
claim to start a record that reaches to the end of the file. Images have the size of the log, but
`heads`, which has 16 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import publish

MARK = "\n## Carving\n"
PAGE, PIECE, HEADS = 4096, 1 << 20, 16 << 20
DAMAGES = 200
GOAL_MB_S = 800
LOG = f"{0:020d}"

Pass = tuple[int, int]
"""Messages and bytes gone through."""


def inputs(where: Path, profile: str) -> dict[str, list[Path]]:
    """The files of each measurement."""
    log = where / f"s{profile}" / "commitlog" / LOG
    made = where / "carving"
    return {"walk + CRC": [log], "carve": [log], "carve an image": [made / f"image{profile}"],
            "carve, damaged": [made / f"damaged{profile}"],
            "carve two copies": [log, made / f"copy{profile}"],
            "carve noise": [made / "noise"], "carve zeros": [made / "zeros"],
            "carve heads": [made / "heads"]}


def prepare(where: Path, profile: str) -> None:
    """Makes the store and the images that are not there yet."""
    from benchmarks.run import prepare as make_bench_store

    make_bench_store(profile, where)
    files = inputs(where, profile)
    log = files["carve"][0]
    (where / "carving").mkdir(exist_ok=True)
    for name in ("carve an image", "carve two copies"):
        if not files[name][-1].exists():
            copy(log, files[name][-1])
    if not files["carve, damaged"][0].exists():
        copy(log, files["carve, damaged"][0])
        spoil(files["carve, damaged"][0])
    size = log.stat().st_size
    if not files["carve noise"][0].exists():
        with files["carve noise"][0].open("wb") as out:
            for _ in range(size // PIECE):
                out.write(os.urandom(PIECE))
        with files["carve zeros"][0].open("wb") as out:
            for _ in range(size // PIECE):
                out.write(bytes(PIECE))
        files["carve heads"][0].write_bytes(heads(HEADS))


def copy(source: Path, target: Path) -> None:
    """The bytes of a file as another one."""
    with source.open("rb") as reading, target.open("wb") as writing:
        while part := reading.read(PIECE):
            writing.write(part)


def spoil(path: Path) -> None:
    """Pages of garbage, zeros and from elsewhere, and single bits, at random."""
    dice = random.Random(1)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for number in range(DAMAGES):
            at = dice.randrange(size // PAGE) * PAGE
            file.seek(dice.randrange(size // PAGE) * PAGE)
            new = (bytes(PAGE), dice.randbytes(PAGE), file.read(PAGE), b"\x2a")[number % 4]
            file.seek(at)
            file.write(new)


def heads(size: int) -> bytes:
    """Heads of records one behind the other, each of which reaches to the end."""
    from rmqctl.formats.local.message import MAGIC_V1, MIN_SIZE, Record, build

    data = bytearray(size)
    for at in range(0, size // 2, MIN_SIZE):
        total = size - at
        raw = bytearray(build(Record(MIN_SIZE, MAGIC_V1, 1, 0, 0, 0, 7 * at, 0, 0, (bytes(4), 0),
                                     0, (bytes(4), 0), 0, 0, b"", b"", b"")))
        raw[:4], raw[84:88] = total.to_bytes(4), (total - MIN_SIZE).to_bytes(4)
        data[at:at + MIN_SIZE] = raw
    return bytes(data)


def walk(paths: list[Path]) -> Pass:
    """The walk of a log."""
    from rmqctl.scan import malloc_tuning
    from rmqctl.scan.source import FileSource
    from rmqctl.scan.walk import Walk

    malloc_tuning.keep_freed_memory()
    records = size = 0
    for path in paths:
        with FileSource(str(path)) as source:
            size += source.size
            for batch in Walk(source):
                records += int(batch.crc_ok().sum())
    return records, size


def carve(paths: list[Path]) -> Pass:
    """Everything `rmqctl carve --summary` does, without the start of a process."""
    from rmqctl.repair.carve.carve import Carving
    from rmqctl.repair.carve.sources import inputs as sources

    with Carving(list(sources(map(str, paths), lambda *_: None))) as carving:
        for _ in carving.found():
            pass
        return carving.tally.messages, carving.tally.bytes_read


def one(name: str, where: Path, profile: str) -> None:
    """Runs one measurement here and prints its figures."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    run: Callable[[list[Path]], Pass] = walk if name.startswith("walk") else carve
    paths = inputs(where, profile)[name]
    for path in paths:  # into the page cache
        with path.open("rb", buffering=0) as file:
            while file.read(PIECE):
                pass
    started = time.perf_counter()
    messages, size = run(paths)
    print(json.dumps({"messages": messages, "bytes": size, "wall": time.perf_counter() - started,
                      "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def measure(where: Path, profile: str, rounds: int) -> dict[str, dict[str, Any]]:
    """The best pass of every measurement."""
    best: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for name in inputs(where, profile):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.carving", "--one", name, "--dir", str(where),
                 "--profile", profile], check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout)
            print(f"{number + 1} {name:20} {found['bytes'] / found['wall'] / 1e6:8,.0f} MB/s",
                  file=sys.stderr)
            if name not in best or found["wall"] < best[name]["wall"]:
                best[name] = found
    return best


def table(found: dict[str, dict[str, Any]], profile: str) -> list[str]:
    """One section of RESULTS.md."""
    plain = found["walk + CRC"]["bytes"] / found["walk + CRC"]["wall"]
    lines = [f"### Store {profile}", "",
             "| measurement | messages | wall s | MB/s | of the walk | RSS MiB |",
             "| --- | --- | --- | --- | --- | --- |"]
    for name, each in found.items():
        rate = each["bytes"] / each["wall"]
        goal = ""
        if profile == "1k" and name == "carve":
            goal = f" (goal {GOAL_MB_S}: {'yes' if rate >= GOAL_MB_S * 1e6 else 'NO'})"
        lines.append(f"| {name} | {each['messages']:,} | {each['wall']:.3f} | "
                     f"{rate / 1e6:,.0f}{goal} | {rate / plain:.2f} | {each['rss']:.0f} |")
    return [*lines, ""]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where stores may be made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", choices=("1k", "100"), action="append")
    parser.add_argument("--one")
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    profiles = given.profile or ["1k", "100"]
    if given.one:
        one(given.one, given.dir, profiles[0])
        return
    from benchmarks.report import machine

    lines = [MARK.strip("\n"), "",
             ("Made by `python -m benchmarks.carving --dir DIR --write-results`: one process, one "
              f"core, page cache warm, best pass. {machine()}"), ""]
    for profile in profiles:
        prepare(given.dir, profile)
        lines += table(measure(given.dir, profile, given.rounds), profile)
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
