"""Logs with nothing around them, files by themselves and images: no frame of a body is given as a
message, and no message is lost to the fear of that.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.hostile import BODIES, FILE_SIZE, PLACES, Case, Hostile, build
from tests.adversary.writer import Layout, Writer, frame
from tests.support.cli import run
from tests.support.share import sample


def alone(store: Path, folder: Path) -> list[Path]:
    """The log's files without their store."""
    shutil.copytree(store / "commitlog", folder)
    return sorted(folder.iterdir())


def dumped(files: list[Path]) -> list[dict[str, Any]]:
    return [row for file in files for row in run("dump", file, "-o", "jsonl").jsonl()]


def check_dump(store: Hostile, files: list[Path]) -> int:
    """How many intact messages are left out; as many at least are said to be undecided."""
    rows = dumped(files)
    given = {row["physical_offset"] for row in rows if row["type"] == "message"}
    assert given <= {put.physical for put in store.puts}
    text = "".join(row["error"]["reason"] for row in rows if row["type"] == "damaged")
    undecided = sum(map(int, re.findall(r"(\d+) intact records? from", text)))
    left_out = len({message.physical for message in store.intact} - given)
    assert left_out <= undecided
    return left_out


@pytest.mark.parametrize(("body", "place"), sample(product(BODIES, PLACES), 9, "zeroed heads",
                                                   always=lambda name: name == ("blank", "middle")))
def test_nothing_is_left_of_the_head(body: str, place: str, tmp_path: Path) -> None:
    store = build(tmp_path / "store", Case(body, place, "zeros", "nothing"))
    check_dump(store, alone(store.folder, tmp_path / "alone"))


def test_dump_says_what_it_cannot_tell(tmp_path: Path) -> None:
    store = build(tmp_path / "store", Case("chain", "middle", "zeros", "nothing"))
    rows = dumped(alone(store.folder, tmp_path / "alone"))
    reasons = [row["error"]["reason"] for row in rows if row["type"] == "damaged"]
    assert len(reasons) == 1
    assert "9 intact records from physical offset" in reasons[0]
    assert "carve --embedded" in reasons[0]


def several(damage: str, folder: Path, *, torn: bool = False) -> Hostile:
    """Messages of which every tenth is damaged, the others intact."""
    writer = Writer(Layout(log_file_size=FILE_SIZE, with_queues=False, with_index=False), seed=3)
    puts = [writer.put("orders", b"message %d " % number * 9, queue_id=number % 4,
                       keys=f"k{number}") for number in range(90)]
    chance, hit = random.Random(5), puts[7::10]
    for message in hit:
        if damage == "zeros":
            writer.patch(message.physical, bytes(message.size))
        elif damage == "noise":
            writer.patch(message.physical, chance.randbytes(message.size))
        elif damage == "head":  # all before the length of the body
            writer.patch(message.physical, bytes(84))
        elif damage == "body":
            writer.flip(message.body_at, 3)
        else:
            writer.flip(message.physical + {"size": 2, "magic": 5, "place": 34}[damage], 2)
    damaged = {message.physical for message in hit}
    if torn:
        writer.tear(puts[-1].physical + 60)
        damaged.add(puts[-1].physical)
    writer.write(folder)
    return Hostile(folder, tuple(puts), hit[0], frozenset(damaged))


@pytest.mark.parametrize("damage", ["zeros", "noise", "head", "body", "size", "magic", "place"])
def test_messages_between_damaged_ones_are_kept(damage: str, tmp_path: Path) -> None:
    """The log is shorter than a record may be: all may be the body of one that is gone."""
    store = several(damage, tmp_path / "store")
    left_out = check_dump(store, alone(store.folder, tmp_path / "alone"))
    assert not left_out or damage in ("zeros", "noise")


def test_much_damage_costs_no_time_of_its_own(tmp_path: Path) -> None:
    """Frames with other bytes between them: each is a run, and all between them damage."""
    def seconds(count: int) -> float:
        file = tmp_path / f"{count}" / "00000000000000000000"
        file.parent.mkdir()
        raw = bytearray(b"\1" * 100)
        for number in range(count):
            raw += b"\1" * 120 + frame("t", b"body", number).at(len(raw) + 120)
        file.write_bytes(raw)
        begin = time.process_time()
        run("dump", file, "--kind", "commitlog", "-o", "jsonl").expect(0, 1)
        return time.process_time() - begin

    few, many = seconds(100), seconds(500)
    assert many < 15 * few + 1
