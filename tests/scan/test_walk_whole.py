"""A walk whose batches go on over damage: the same frames, in few batches and with few reads."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rmqctl.scan.frames import Batch
from rmqctl.scan.source import BytesSource
from rmqctl.scan.walk import Walk
from tests.scan.test_walk import BASE, log

COLUMNS = ("total_size", "queue_offset", "body_start", "topic_length", "store_host.port")


class Counting(BytesSource):
    """Counts what is read of it."""

    calls = read_bytes = 0

    def read(self, position: int, length: int) -> bytes:
        self.calls += 1
        data = super().read(position, length)
        self.read_bytes += len(data)
        return data

    def read_into(self, buffer: memoryview, position: int) -> int:
        self.calls += 1
        got = super().read_into(buffer, position)
        self.read_bytes += got
        return got


def damaged(seed: int, count: int, damages: int) -> bytes:
    chance = random.Random(seed)
    data = bytearray(log([chance.randbytes(chance.randrange(40)) for _ in range(count)]))
    for _ in range(damages):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def columns(batch: Batch) -> np.ndarray:
    """Of each message its place, what its columns say, whether its body is intact."""
    return np.column_stack([batch.offset, *map(batch.column, COLUMNS), batch.crc_ok()])


@pytest.mark.parametrize("chunk", [300, 5000, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_frames_come_in_fewer_batches(seed: int, chunk: int) -> None:
    source = BytesSource(damaged(seed, 120, 25), BASE)

    def frames(*, whole: bool) -> tuple[list, list, int]:
        walk, rows, spans, batches = Walk(source, chunk=chunk, whole=whole), [], [], 0
        for batch in walk:
            array = columns(batch)
            # Places in the buffer differ with what a buffer begins with.
            array[:, 1 + COLUMNS.index("body_start")] -= batch.start
            rows += array.tolist()
            spans += batch.spans
            batches += 1
        assert walk.position == source.size
        return rows, spans, batches

    single, in_one_batch = frames(whole=False), frames(whole=True)
    assert in_one_batch[:2] == single[:2]
    assert in_one_batch[2] <= single[2]
    if chunk > source.size:
        assert in_one_batch[2] == 1 < single[2]


@pytest.mark.parametrize("chunk", [300, 1 << 20])
def test_some_rows_of_a_whole_batch_keep_their_columns(chunk: int) -> None:
    source = BytesSource(damaged(7, 80, 12), BASE)
    for batch in Walk(source, chunk=chunk, whole=True):
        kept = np.flatnonzero(np.arange(len(batch)) % 3 == 1)
        assert (columns(batch.select(kept)) == columns(batch)[kept]).all()


@pytest.mark.parametrize("damages", [100, 400])
def test_damage_is_judged_from_what_the_walk_has_read(damages: int) -> None:
    source = Counting(damaged(3, 1000, damages), BASE)
    spans = [span for batch in Walk(source, whole=True) for span in batch.spans]
    assert len(spans) > damages // 8
    assert (source.calls, source.read_bytes) == (1, source.size)
