"""Measure puts into a store, and compare them with a plain file.write of the same bytes.

python -m benchmarks.writing --dir DIR [--count N] [--rounds N] [--write-results]

Every measurement has its own process, on one core (including its flush thread) unless its name
says otherwise, on a new store with a broker's default sizes; the rounds are interleaved and the
best pass counts. Two times are measured: until the last message is put and dispatched to consume
queues and index (as for the engine's figures), and until the store is closed and all files are
flushed. For commands, both times include the startup and the end of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import machine, publish

MARK = "\n## Writing\n"
TOPICS, QUEUES, HOST = 3, 4, ("10.0.0.7:52011", "10.0.0.1:10911")
FIRST = 1_700_000_000_000
CONSTRUCT_MESSAGES = 20_000
ENGINE = {1024: "4.9.3 226,000, 5.3.3 206,000", 100: "4.9.3 567,000, 5.3.3 412,000"}

Pass = tuple[int, int, float | None]
"""(number of messages, bytes of their records, seconds until they were put). With None for the
seconds, the duration of the whole process counts.
"""


def filling(size: int) -> str:
    """Return the text that follows the number in a body of ``size`` characters."""
    return ("abcdefghijklmnopqrstuvwxyz0123456789 " * (size // 37 + 1))[:size - 8]


def properties(number: int) -> str:
    """Return the properties string of a message, as the put path receives it."""
    return (f"UNIQ_KEY\x017F0000011911184BFAA868CC{number:08X}\x02CLUSTER\x01DefaultCluster\x02"
            f"TAGS\x01{'ABC'[number % 3]}\x02KEYS\x01order-{number}\x02WAIT\x01true\x02")


def outgoing(count: int, size: int) -> Iterator[Any]:
    """Yield messages, created on demand as by a program."""
    from rmqctl.engine.put.message import Outgoing

    rest = filling(size).encode()
    for number in range(count):
        yield Outgoing(f"topic{number % TOPICS}", b"%08d" % number + rest, properties(number),
                       number % QUEUES, born_timestamp=FIRST + number)


def json_lines(path: Path, count: int, size: int) -> None:
    """Write the input of `append`: messages of a client."""
    rest = filling(size)
    with path.open("w") as out:
        for number in range(count):
            out.write(json.dumps({
                "topic": f"topic{number % TOPICS}", "queue_id": number % QUEUES,
                "properties": {"TAGS": "ABC"[number % 3], "KEYS": f"order-{number}",
                               "UNIQ_KEY": f"7F0000011911184BFAA868CC{number:08X}"},
                "born_timestamp": FIRST + number, "body": f"{number:08d}{rest}"}) + "\n")


# -- what is measured: each gets (folder, count, body size) ---------------------------------------


def engine(folder: Path, count: int, size: int, *, made_before: bool = False,
           by_column: bool = False, **changes: Any) -> Callable[[], Pass]:
    """Measure the Python API, with the settings in ``changes``.

    ``made_before``: create the messages before the measurement. ``by_column``: the same with
    `Engine.append_columns`.
    """
    from rmqctl.broker.settings import Settings
    from rmqctl.engine.config.create import create_store
    from rmqctl.engine.engine import Engine
    from rmqctl.engine.put.message import OutgoingList

    settings = Settings(disk_watermark=1.0, **changes)
    create_store(str(folder / "store"), settings)
    opened = Engine.open(folder / "store", settings)
    messages = list(outgoing(count, size)) if made_before else outgoing(count, size)
    columns = OutgoingList.of([*messages]) if by_column else None

    def run() -> Pass:
        written, started = 0, time.perf_counter()
        with opened:
            for group in opened.append_columns(columns) if columns is not None else ():
                assert (group.column("physical_offset") >= 0).all()
                written += int(group.column("wrote_bytes").sum())
            for result in opened.append_many(messages if columns is None else ()):
                assert result.stored
                written += result.wrote_bytes or 0
            opened.reput()
            put = time.perf_counter() - started
        return count, written, put

    return run


def command(folder: Path, count: int, size: int, *options: str) -> Callable[[], Pass]:
    """Measure ``rmqctl append`` with JSON lines in a file."""
    rmqctl = [sys.executable, "-m", "rmqctl"]
    store, source = str(folder / "store"), folder / "input.jsonl"
    json_lines(source, count, size)
    subprocess.run([*rmqctl, "init", store, "-q"], check=True, stdout=subprocess.DEVNULL)

    def run() -> Pass:
        done = subprocess.run([*rmqctl, "append", store, str(source), "-o", "json",
                               "--disk-watermark", "100%", *options],
                              check=True, stdout=subprocess.PIPE)
        document = json.loads(done.stdout)
        return document["messages"], document["bytes"], None

    return run


def plain_write(folder: Path, count: int, size: int) -> Callable[[], Pass]:
    """Measure file.write of the same bytes in pieces of 1 MiB, with an fsync."""
    piece = os.urandom(1 << 20)
    record = size + 91 + 6 + len(properties(0))
    total = count * record

    def run() -> Pass:
        with (folder / "plain").open("wb", buffering=0) as out:
            started = time.perf_counter()
            for at in range(0, total, len(piece)):
                out.write(piece[:min(len(piece), total - at)])
            put = time.perf_counter() - started
            os.fsync(out.fileno())
        return count, total, put

    return run


def construct_encoder(folder: Path, count: int, size: int) -> Callable[[], Pass]:
    """Measure building records from their construct declaration and writing them to a file."""
    import zlib

    from rmqctl.formats.local.message import CRC_MASK, MAGIC_V1, Record, build, size_of

    host = bytes([10, 0, 0, 7]), 52011
    count = min(count, CONSTRUCT_MESSAGES)  # it is equally slow for more messages

    def run() -> Pass:
        written = 0
        with (folder / "construct").open("wb") as out:
            for number, message in enumerate(outgoing(count, size)):
                raw, topic = message.properties.encode(), message.topic.encode()
                length = size_of(0, MAGIC_V1, size, len(topic), len(raw))
                out.write(build(Record(
                    length, MAGIC_V1, zlib.crc32(message.body) & CRC_MASK, message.queue_id, 0,
                    number, written, 0, FIRST, host, FIRST, host, 0, 0, message.body, topic,
                    raw)))
                written += length
        return count, written, None

    return run


MEASUREMENTS: dict[str, Callable[[Path, int, int], Callable[[], Pass]]] = {
    "file.write": plain_write,
    "construct-only encoder": construct_encoder,
    "Engine.append_many, async": engine,
    "Engine.append_many, messages made before": lambda *given: engine(*given, made_before=True),
    "Engine.append_columns, messages made before": lambda *given: engine(*given, by_column=True),
    "Engine.append_many, sync": lambda *given: engine(*given, flush="sync"),
    "Engine.append_many, mapped": lambda *given: engine(*given, mapped=True),
    "Engine.append_many, mapped, warm": lambda *given: engine(*given, mapped=True, warm=True),
    "Engine.append_many, preallocate": lambda *given: engine(*given, preallocate=True),
    "Engine.append_many, transient pool": lambda *given: engine(*given, transient_pool=2),
    "append, async": command,
    "append, async, on all cores": command,
    "append, sync": lambda *given: command(*given, "--flush", "sync"),
    "append --replay": lambda *given: command(*given, "--replay"),
}


def run_measurement(name: str, folder: Path, count: int, size: int) -> None:
    """Run a measurement in this process and print its figures."""
    if not name.endswith("on all cores"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    run = MEASUREMENTS[name](folder, count, size)
    before = os.times()
    started = time.perf_counter()
    messages, written, put = run()
    wall, after = time.perf_counter() - started, os.times()
    who = resource.RUSAGE_CHILDREN if name.startswith("append") else resource.RUSAGE_SELF
    print(json.dumps({
        "messages": messages, "bytes": written, "wall": wall, "put": put or wall,
        "cpu": sum(after[:4]) - sum(before[:4]),
        "rss": resource.getrusage(who).ru_maxrss / 1024}))


def measure(where: Path, count: int, size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the best pass of every measurement."""
    best: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name in MEASUREMENTS:
            folder = where / "writing"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.writing", "--measurement", name,
                 "--dir", str(folder),
                 "--count", str(count), "--size", str(size)],
                check=True, stdout=subprocess.PIPE)
            result = json.loads(done.stdout)
            print(f"{number + 1} {name:42} {result['messages'] / result['put']:10,.0f} messages/s",
                  file=sys.stderr)
            if name not in best or result["put"] < best[name]["put"]:
                best[name] = result
            shutil.rmtree(folder)
            os.sync()  # so the next one does not wait for pending writes
    return best


def table(results: dict[str, dict[str, float]], size: int) -> list[str]:
    """Return a section of RESULTS.md."""
    plain = results["file.write"]
    plain_rate = plain["bytes"] / plain["put"]
    lines = [f"### Bodies of {size} bytes", "",
             f"The real engine, one thread, async flush: {ENGINE[size]} messages/s.", "",
             ("| measurement | messages/s | MB/s | of file.write | until forced, messages/s | "
              "CPU us a message | RSS MiB |"), "| --- | --- | --- | --- | --- | --- | --- |"]
    for name, figures in results.items():
        rate = figures["bytes"] / figures["put"]
        lines.append(
            f"| {name} | {figures['messages'] / figures['put']:,.0f} | {rate / 1e6:.0f} | "
            f"{rate / plain_rate:.2f} | {figures['messages'] / figures['wall']:,.0f} | "
            f"{figures['cpu'] / figures['messages'] * 1e6:.1f} | {figures['rss']:.0f} |")
    return [*lines, ""]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="where stores may be made")
    parser.add_argument("--count", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measurement", choices=sorted(MEASUREMENTS))
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    if given.measurement:
        run_measurement(given.measurement, given.dir, given.count, given.size)
        return
    about = ("Made by `python -m benchmarks.writing --dir DIR --write-results`: "
             f"{given.count:,} messages, {TOPICS} topics of {QUEUES} queues, UNIQ_KEY, one key "
             "and tags, dispatch included, everything on one core unless it says so; best pass. "
             "\"until forced\": to the end of close, all of it on disk. Commands from the start "
             "of their process to its end. "
             f"{machine()}")
    lines = [MARK.strip("\n"), "", about, ""]
    for size in (1024, 100):
        lines += table(measure(given.dir, given.count, size, given.rounds), size)
    print("\n".join(lines))
    if given.write_results:
        publish(MARK, lines)


if __name__ == "__main__":
    main()
