"""Digests: equal for equal content wherever it is stored, different after any change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rmqctl.formats.local import message
from rmqctl.scan import digests
from rmqctl.scan.frames import Array
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from tests.support import tiny as tiny_stores
from tests.support.tiny import Placed

SPECS = [replace(spec, topic="x" * 200) if number == 2 else spec
         for number, spec in enumerate(tiny_stores.DEFAULT)]
V6 = "[2001:db8::1]:10911"


def of(placed: Placed, raw: bytes | None = None) -> tuple[Array, Array]:
    """(content, whole) of one record, as it lies or with other bytes."""
    (batch,) = Walk(BytesSource(raw or placed.raw, placed.start))
    return digests.content(batch), digests.whole(batch)


def stored(folder: Path, **changes: object) -> tuple[Placed, ...]:
    return tiny_stores.build(folder, SPECS, commitlog_file_size=2048, **changes).messages


@pytest.mark.parametrize("sealed", [False, True])
def test_content_does_not_know_where_it_is_stored(sealed: bool, tmp_path: Path) -> None:
    here = stored(tmp_path / "a", append_crc=sealed)
    moved = [tiny_stores.Spec("front", 0, b"in front"),
             *(replace(spec, store=V6, prepared_at=77) for spec in SPECS)]
    there = tiny_stores.build(tmp_path / "b", moved, commitlog_file_size=2048,
                              append_crc=sealed).messages[1:]
    for first, other in zip(here, there, strict=True):
        record = replace(other.record, born_timestamp=first.record.born_timestamp,
                         store_timestamp=first.record.store_timestamp)
        content, whole = of(other, message.build(record))
        assert content == of(first)[0]
        assert whole != of(first)[1]


def test_a_last_separator_says_nothing(tmp_path: Path) -> None:
    record = stored(tmp_path / "a")[0]
    cut = replace(record.record, properties=record.record.properties[:-1],
                  total_size=record.record.total_size - 1)
    assert of(record, message.build(cut))[0] == of(record)[0]


@pytest.mark.parametrize("number", range(len(SPECS)))
def test_any_other_change_shows(number: int, tmp_path: Path) -> None:
    record = stored(tmp_path / "a")[number]
    head = message.variant(0, record.record.magic)
    content, whole = of(record)
    place = {*range(64, 72), *range(76, 84)}  # store host, prepared transaction offset
    key = {*range(12, 16), *range(20, 28)}  # what messages are paired by
    topic = record.raw.index(record.record.topic, head.head_size + len(record.record.body))
    key |= set(range(topic, topic + len(record.record.topic)))
    tried = 0
    for at in range(len(record.raw)):
        raw = bytearray(record.raw)
        raw[at] ^= 0x04
        batches = list(Walk(BytesSource(bytes(raw), record.start)))
        if not batches or not len(batches[0]):
            continue  # no record any more
        tried += 1
        rows, changed = of(record, bytes(raw))
        assert changed != whole
        assert (rows == content) == (at in place | key), at
    assert tried > len(record.raw) // 2


def test_v6_addresses_count_in_full(tmp_path: Path) -> None:
    spec = replace(SPECS[0], born="[2001:db8::7]:52011")
    message = tiny_stores.build(tmp_path / "a", [spec]).messages[0]
    seen = {int(of(message)[0][0])}
    for at in range(48, 64):
        raw = bytearray(message.raw)
        raw[at] ^= 1
        seen.add(int(of(message, bytes(raw))[0][0]))
    assert len(seen) == 17
    assert of(message)[0].dtype == np.uint64
