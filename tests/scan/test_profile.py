"""What a profile says of a log is what verify counts, however the log was cut."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.formats.local.message import decode
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO
from rmqctl.scan.profile import KINDS, MAX_STEPS, MESSAGES, STEPS, LogProfile, Timeline
from rmqctl.store import Store
from tests.conftest import GoldenFolder

SETS = ("5.3.3/crash-crc/before", "4.9.3/crash-trunc-garbage/before", "5.3.3/basic/store")


def profiled(store: Store, jobs: int = 1, minimum: int = 1) -> tuple[LogProfile, Verification]:
    run = Verification(store, VerifyOptions(None, jobs, minimum, profile=True))
    list(run.findings())
    assert run.profile is not None
    return run.profile, run


@pytest.mark.parametrize("name", SETS)
def test_a_profile_says_what_verify_counts(name: str, golden: GoldenFolder) -> None:
    with Store.open(golden(name)) as store:
        profile, run = profiled(store)
        cover = run.coverage
        sums = dict(zip(KINDS, profile.cells.sum(axis=1).tolist(), strict=True))
        assert sums == {MESSAGES: cover.bytes_in_messages, BLANK: cover.bytes_blank,
                        ZERO: cover.bytes_zero, DAMAGED: cover.bytes_damaged}
        assert profile.cells.sum(axis=0)[:-1].tolist() == [profile.cell] * (
            profile.cells.shape[1] - 1)
        assert sum(count for count, _ in profile.times.steps.values()) == cover.messages
        queues = Counter[tuple[bytes, int]]()
        times = Counter[int]()
        for batch in store.log.walk():
            for number in np.flatnonzero(batch.crc_ok()).tolist():
                record = decode(batch.bytes_at(number))
                queues[record.topic, record.queue_id] += 1
                times[record.store_timestamp // profile.times.step] += 1
        assert {key: sums.messages for key, sums in profile.queues.groups().items()} == queues
        assert {step: count for step, (count, _) in profile.times.steps.items()} == times


@pytest.mark.parametrize("name", SETS[:2])
def test_a_profile_does_not_depend_on_how_the_log_was_cut(name: str, golden: GoldenFolder) -> None:
    with Store.open(golden(name)) as store:
        profile, _ = profiled(store)
        many, _ = profiled(store, jobs=3)
        assert (profile.cells == many.cells).all()
        assert profile.times.steps == many.times.steps
        assert profile.queues.groups() == many.queues.groups()


def test_a_store_without_a_log_has_an_empty_profile(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with Store.open(tmp_path) as store:
        profile, _ = profiled(store)
    assert not profile.cells.any()
    assert not profile.times.steps


def test_steps_grow_and_odd_times_are_counted_apart() -> None:
    times = Timeline()
    start = 1_700_000_000_000
    times.add(np.array([-5, 0, start, 1 << 62]), np.array([1, 1, 7, 1]))
    assert (times.elsewhere, times.step, times.steps) == (3, 1, {start: (1, 7)})
    generator = np.random.default_rng(3)
    years = generator.integers(1_400_000_000_000, 4_000_000_000_000, 50_000)
    times.add(years, np.ones(len(years), np.int64))
    assert len(times.steps) <= MAX_STEPS
    assert sum(count for count, _ in times.steps.values()) == 50_001
    other = Timeline()
    other.add(np.array([start]), np.array([7]))
    other.merge(times)
    assert other.step == times.step
    assert times.steps[start // times.step][0] + 1 == other.steps[start // times.step][0]
    assert all(after % before == 0 for before, after in pairwise(STEPS))


def test_damage_that_leads_beyond_the_log_ends_with_it() -> None:
    profile = LogProfile(4096, 8192)
    profile.fill(DAMAGED, 8000, 1 << 40)
    profile.fill(DAMAGED, 0, 5000)
    assert profile.cells[KINDS.index(DAMAGED)].sum() == 904 + profile.cells.shape[1] * (
        profile.cell) + 4096 - 8000
