"""Any single field of the head that says where a message lies, whose it is and how long it is,
overwritten with any value: all other fields, the body's CRC and what stands around leave one
solution.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.adversary.writer import Layout, Writer, field_places
from tests.support.cli import run
from tests.support.share import RUN, sample

OPTIONS = ("--index-slots", "16", "--index-max", "256", "-o", "json")
LENGTHS = ("total_size", "magic", "physical_offset", "body_length", "topic_length",
           "properties_length")
TOLD_BY_ENTRIES = ("queue_id", "queue_offset")
Value = Callable[[random.Random, int], bytes]
VALUES: dict[str, Value] = {
    "all ones": lambda _, width: b"\xff" * width, "zeros": lambda _, width: bytes(width),
    "noise": lambda chance, width: chance.randbytes(width)}


def log_of(store: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((store / "commitlog").iterdir())]


@pytest.mark.parametrize(("field", "value", "derived", "long_topic", "last"), sample([
    (field, value, derived, long_topic, last)
    for field, value, derived, long_topic, last in product(
        (*LENGTHS, *TOLD_BY_ENTRIES), VALUES, (True, False), (False, True), (False, True))
    # Without entries only another record behind it tells the size; queues nothing tells.
    if derived or not (last or field in TOLD_BY_ENTRIES)], 40, "header fields"))
def test_one_field_is_set_right(field: str, value: str, derived: bool, long_topic: bool,
                                last: bool, tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=16 << 10, index_slots=16, index_entries=256,
                           with_queues=derived, with_index=derived))
    topic = "orders" * (30 if long_topic else 1)  # more than 127 bytes: version 2
    puts = [writer.put(topic, b"order %d " % number * 9, queue_id=number % 2, tags="a",
                       keys=f"o{number}") for number in range(40)]
    whole = log_of(writer.write(tmp_path / "whole"))
    one = puts[-1 if last else 20]
    at, width = field_places(one.raw)[field]
    chance = random.Random(RUN.number(f"{field} {value}"))
    writer.patch(one.physical + at, VALUES[value](chance, width))
    store = writer.write(tmp_path / "store")
    if log_of(store) == whole:
        pytest.skip("it had that value")
    run("recover", store, *OPTIONS, "--apply", "--yes").expect(0)
    assert log_of(store) == whole
    assert run("verify", store, *OPTIONS).expect(0).json()["ok"]
