"""The parts verify is made of: spools, units by queue offset, fingerprints of keys."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.keys import BUCKETS, KeySpool, folded
from rmqctl.ext.tiered.verify.units import SeenOffsets, TierUnits
from rmqctl.ext.tiered.verify.verify import Options
from rmqctl.formats.tiered import index
from tests.tiered import tiers
from tests.tiered.tiers import T0, Queue
from tests.tiered.verifying import categories, small, verified

ROW = np.dtype([("mark", np.uint64), ("value", np.int32)])


@pytest.mark.parametrize("memory", [1, 5_000, 1 << 30])
def test_a_spool_gives_back_what_it_got(memory: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    spool = KeySpool(ROW, memory)
    given_rows = []
    for count in (0, 1, 300, 7, 1000):
        rows = np.zeros(count, ROW)
        rows["mark"] = chance.integers(0, 1 << 64, count, dtype=np.uint64)
        rows["value"] = chance.integers(0, 1 << 30, count)
        given_rows.append(rows.copy())
        spool.add(rows)
    assert spool.count == 1308
    buckets = [spool.bucket(number) for number in range(BUCKETS)]
    spool.close()
    whole = np.concatenate(buckets)
    expected = np.concatenate(given_rows)
    assert (whole["mark"][1:] >= whole["mark"][:-1]).all()
    assert sorted(whole.tolist()) == sorted(expected.tolist())
    for number, part in enumerate(buckets):
        assert ((part["mark"] >> np.uint64(58)) == number).all()


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    spool = KeySpool(ROW, 1)
    with pytest.raises(StoreIOError, match="space"):
        spool.add(np.zeros(3, ROW))


def test_verify_with_spools_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = small(tmp_path)
    clean = verified(tier.home)
    monkeypatch.setattr(KeySpool.__init__, "__defaults__", (1,))
    assert verified(tier.home) == clean


@given(st.text(max_size=8), st.text(max_size=8))
def test_both_hash_rules_fold_to_one_number(topic: str, key: str) -> None:
    numbers = {int(folded(np.array([both_hash_], np.int64))[0])
               for both_hash_ in index.both_hashes(topic, key)}
    assert len(numbers) == 1


def test_the_lowest_hash_folds_too() -> None:
    both = folded(np.array([-(1 << 31), 0], np.int64))
    assert both[0] == both[1] == 0


@given(st.lists(st.integers(0, 1 << 40), max_size=60), st.integers(0, 1 << 15))
def test_seen_knows_exactly_what_was_added(numbers: list[int], first: int) -> None:
    seen = SeenOffsets()
    for at in range(0, len(numbers), 7):
        seen.add(np.array(numbers[at:at + 7], np.int64))
    assert seen.has(first, 300).tolist() == [number in numbers
                                             for number in range(first, first + 300)]
    for number in numbers:
        assert seen.has(number, 1)[0]


def test_a_full_block_is_still_known() -> None:
    seen = SeenOffsets()
    seen.add(np.arange(0, 3 * SeenOffsets._BITS))
    assert seen.has(0, 3 * SeenOffsets._BITS).all()
    assert not seen.has(3 * SeenOffsets._BITS, 5).any()


def test_units_by_queue_offset(tmp_path: Path, seed: int) -> None:
    queue = Queue(first=1000)
    for number in range(300):
        if number % 37 == 36:
            queue.roll_units()
        queue.put(b"x" * (number % 9), TAGS=f"t{number % 3}")
    queue.write(tmp_path)
    chance = random.Random(seed)
    with Tier.open(str(tmp_path)) as tier:
        flat = tier.queue(tiers.TOPIC, 0)
        assert flat is not None
        units = TierUnits(flat)
        wanted = [chance.randrange(900, 1400) for _ in range(200)] + [-5, 1 << 60, 1000, 1299]
        read_units = units.at(np.array(wanted, np.int64))
        for at, number in enumerate(wanted):
            unit = flat.unit(number) if 1000 <= number < 1300 else None
            assert bool(read_units.exists[at]) == (unit is not None)
            if unit is not None:
                assert (read_units.offset[at], read_units.size[at],
                        read_units.tags_code[at]) == unit
        blocks = [(start, len(rows)) for start, rows in units.blocks()]
        assert blocks == [(1000, 300)]


def test_units_around_a_missing_segment(tmp_path: Path) -> None:
    queue = Queue()
    for number in range(30):
        if number in (10, 20):
            queue.roll_units()
        queue.put()
    queue.write(tmp_path)
    queue.units_path(tmp_path, 1).unlink()
    with Tier.open(str(tmp_path)) as tier:
        flat = tier.queue(tiers.TOPIC, 0)
        assert flat is not None
        units = TierUnits(flat)
        assert [(start, len(rows)) for start, rows in units.blocks()] == [(0, 10), (20, 10)]
        read_units = units.at(np.arange(0, 40))
        assert np.flatnonzero(read_units.exists).tolist() == [*range(10), *range(20, 30)]


def test_two_tears(tmp_path: Path) -> None:
    queue = Queue()
    for number in range(12):
        if number == 3:
            queue.units[-1][1].extend(b"\xee" * 5)
        if number == 8:
            queue.units[-1][1].extend(b"\xee" * 9)
        queue.put(b"x" * number)
    queue.write(tmp_path)
    with Tier.open(str(tmp_path)) as tier:
        flat = tier.queue(tiers.TOPIC, 0)
        assert flat is not None
        units = TierUnits(flat)
        units.find_tears()
        assert [(tear.first, tear.shift) for tear in units.tears] == [(3, 5), (8, 14)]
        assert units.end == 12
        read_units = units.at(np.arange(12))
        assert read_units.offset.tolist() == [record.physical_offset for record in queue.records]
    assert T0 == queue.records[0].store_timestamp


@pytest.mark.parametrize("damaged", [False, True])
def test_more_processes_find_the_same(tmp_path: Path, damaged: bool) -> None:
    tier = small(tmp_path)
    for number in range(5):
        other = Queue(tiers.TOPIC, 10 + number)
        for _ in range(4):
            other.put(b"x" * number, KEYS="k", UNIQ_KEY=f"q{number}")
        other.write(tier.root)
    if damaged:
        for path in tier.root.rglob("COMMIT_LOG/*"):
            raw = bytearray(path.read_bytes())
            raw[30] ^= 4
            path.write_bytes(raw)
    first, two = (verified(tier.home, options=Options(jobs=jobs)) for jobs in (1, 2))
    assert first == two
    assert first.coverage.keys > 23
    assert ("tiered-record" in categories(first)) == damaged
