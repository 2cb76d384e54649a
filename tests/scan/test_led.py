"""Many damaged records in one buffer are judged as each would be by itself."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rmqctl.formats.local.message import fixed_field
from rmqctl.scan.damage.led import Led
from rmqctl.scan.frames import Span
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder

SETS = ("5.3.3/basic", "5.3.3/transaction", "5.3.3/ipv6", "5.3.3/v2topic", "4.9.3/batch")
FIELDS = ("total_size", "magic", "physical_offset", "sys_flag", "body_length", "body_crc")
Frames = list[Span | tuple[int, int]]


def damage(log: Path, frames: Frames, seed: int) -> None:
    """Damages a share of the records, in each field that matters, by a bit, bytes or zeros."""
    chance = random.Random(seed)
    share = chance.choice([0.15, 0.3, 0.6])
    for path in sorted(log.iterdir()):
        with path.open("r+b") as file:
            for frame in frames:
                at = -1 if isinstance(frame, Span) else frame[0] - int(path.name)
                if isinstance(frame, Span) or not 0 <= at < path.stat().st_size or (
                        chance.random() > share):
                    continue
                field = fixed_field(chance.choice(FIELDS))
                place = at + chance.choice([field.offset + chance.randrange(field.size),
                                            chance.randrange(frame[1])])
                file.seek(place)
                old = file.read(1)[0]
                new = chance.choice([bytes([old ^ 1 << chance.randrange(8)]), bytes(8),
                                     chance.randbytes(4), bytes(chance.randrange(1, frame[1]))])
                file.seek(place)
                file.write(new)


def frames_of(store: Path, *, whole: bool, part: float = 1) -> tuple[Frames, list[
        tuple[int, int]]]:
    """What walks find in the files of a log, or in the first ``part`` of each."""
    frames: Frames = []
    passed: list[tuple[int, int]] = []
    with Store.open(str(store)) as opened:
        for number, file in enumerate(opened.log.files):
            with opened.log.source(number) as source:
                walked = Walk(source, end=int(file.size * part), whole=whole)
                for batch in walked:
                    frames += zip(batch.offset.tolist(), batch.column("total_size").tolist(),
                                  strict=True)
                    frames += batch.spans
                passed += walked.passed.stretches()
    return sorted(frames, key=lambda frame: frame.offset if isinstance(frame, Span)
                  else frame[0]), passed


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Span]:
    """Damaged records that were judged by their rows alone."""
    spans: list[Span] = []
    real = Led.span

    def span(self: Led, position: int) -> Span | None:
        real_span = real(self, position)
        spans.extend([] if real_span is None else [real_span])
        return real_span

    monkeypatch.setattr(Led, "span", span)
    return spans


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SETS)
def test_many_damaged_records_are_judged_as_one_would_be(
        golden_copy: GoldenFolder, monkeypatch: pytest.MonkeyPatch, judged: list[Span], name: str,
        seed: int) -> None:
    store = golden_copy(name) / "store"
    sound, _ = frames_of(store, whole=True)
    damage(store / "commitlog", sound, seed)
    ways = [(whole, part) for whole in (True, False) for part in (1, 0.3)]
    led = [frames_of(store, whole=whole, part=part) for whole, part in ways]
    assert judged
    # Without any answer of its own, each record is classified by itself.
    monkeypatch.setattr(Led, "span", lambda *_: None)
    assert led == [frames_of(store, whole=whole, part=part) for whole, part in ways]


def test_entries_that_claim_everything_take_little_memory() -> None:
    """Entries are not to be trusted: each claims the rest of the buffer."""
    data = random.Random(1).randbytes(1 << 20)
    places = np.arange(0, len(data) - 1000, 17)
    source: Any = SimpleNamespace(base=0, witness=SimpleNamespace(
        rows=lambda _start, _end: (places, len(data) - places)))
    tracemalloc.start()
    led = Led(source, memoryview(data), 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not len(led.lost)
    assert peak < 64 << 20
