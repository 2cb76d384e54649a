"""Logs of several queues, some bodies with forged frames in them, and a few holes: whatever is left
of entries, no forged frame is given, and no intact message is missing that is not counted.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.hostile import FORGED
from tests.adversary.writer import Layout, Put, Writer, frame, framed
from tests.support.cli import run
from tests.support.share import RUN

OPTIONS = ("--index-slots", "101", "--index-max", "2000", "-o", "json")
Holes = list[tuple[int, int]]


def written(chance: random.Random) -> tuple[Writer, list[Put], list[Put]]:
    """A log, its messages, and those that hold frames of their own queue with the next offsets."""
    rows = chance.random() < 0.3
    writer = Writer(Layout(
        log_file_size=chance.choice([16, 64, 256]) << 10, with_queues=rows, index_slots=101,
        with_index=rows and chance.random() < 0.5, index_entries=2000))
    topics, queues = chance.randint(1, 3), chance.randint(1, 4)
    puts, evil = [], []
    for number in range(chance.randint(40, 300)):
        topic, queue = f"t{chance.randrange(topics)}", chance.randrange(queues)
        if chance.random() < 0.06:
            first = max(writer.next_offset.get((topic, queue), 0) + chance.randint(-1, 3), 0)
            frames = [frame(topic, FORGED + b" %d" % more, first + more, queue_id=queue,
                            properties={"UNIQ_KEY": "F"}) for more in range(chance.randint(1, 12))]
            evil.append(writer.put(
                topic, framed(frames, before=b"x" * chance.choice([0, 20, 100, 600]),
                              after=chance.choice([b"", b"y" * 40])),
                queue_id=queue, properties_raw=b"UNIQ_KEY\x01F\x02", row=chance.random() < 0.7))
            puts.append(evil[-1])
        else:
            puts.append(writer.put(topic, b"o%d " % number * chance.randint(1, 120),
                                   queue_id=queue, keys=f"k{number}"))
    return writer, puts, evil


def hurt(writer: Writer, evil: list[Put], chance: random.Random) -> Holes:
    """Zeros or noise, most of it over the heads of those that hold frames."""
    holes: Holes = []
    size = writer.layout.log_file_size
    for _ in range(chance.randint(1, 4)):
        if evil and chance.random() < 0.6:
            at = max(chance.choice(evil).physical - chance.choice([0, 0, 40]), 0)
            length = chance.choice([88, 100, 120, 512])
        else:
            at, length = chance.randrange(writer.end - 100), chance.choice([88, 512, 4096])
        length = min(length, size - at % size, writer.end - at)
        if not any(at in range(base, base + len(raw)) and at + length <= base + len(raw)
                   for base, raw in writer.log.items()):
            continue  # behind the blank of a file
        writer.patch(at, bytes(length) if chance.random() < 0.8 else chance.randbytes(length))
        holes.append((at, length))
    return holes


def check(store: Path, puts: list[Put], holes: Holes, undecided: int, text: str) -> None:
    whole = {put.physical for put in puts if not any(
        put.physical < at + length and at < put.end for at, length in holes)}
    put = {message.physical for message in puts}
    rows: dict[int, dict[str, Any]] = {
        row["physical_offset"]: row for row in run("read", store, "-o", "jsonl").jsonl()}
    forged = [place for place, row in rows.items()
              if place not in put and FORGED.decode() in str(row["body"])]
    assert not forged, f"{text}: frames in bodies were given at {forged}; {holes}"
    missing = whole - rows.keys()
    assert len(missing) <= undecided, f"{text}: {len(missing)} intact messages are missing; {holes}"


@pytest.mark.long
def test_no_forged_frame_and_no_loss_that_is_not_counted(seed: int, tmp_path: Path) -> None:
    for number in range(150 if RUN.exhaustive else 4):
        chance = random.Random(seed + number)
        writer, puts, evil = written(chance)
        holes = hurt(writer, evil, chance)
        store = writer.write(tmp_path / str(number))
        verdict = run("verify", store, "-o", "json").expect(0, 1).json()
        check(store, puts, holes, verdict["coverage"]["messages_undecided"],
              f"seed {seed + number}, before")
        done = run("recover", store, *OPTIONS, "--ambiguous", "leave-out", "--apply",
                   "--yes").expect(0, 1).json()
        check(store, puts, holes, done["messages_undecided"], f"seed {seed + number}, recovered")
