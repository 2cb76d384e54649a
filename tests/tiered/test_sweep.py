"""Blocks that are made together are those that are made one by one, and stop at the same places."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.dispatch import blocks as dispatch_blocks
from rmqctl.ext.tiered.dispatch import blocks as sweep
from rmqctl.ext.tiered.dispatch.blocks import Block, Sweep
from rmqctl.ext.tiered.dispatch.buffer_pool import WindowBuffers
from rmqctl.ext.tiered.dispatch.local import LocalQueue
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store
from tests.support import cli
from tests.support.golden import GoldenStore, judged_stores
from tests.support.share import sample
from tests.tiered.dispatching import local_store

COLUMNS = ("total_size", "queue_id", "queue_offset", "physical_offset", "store_timestamp",
           "body_crc", "properties_length")
WINDOWS = (300, 4096, sweep.WINDOW)


def plain(block: Block) -> tuple[Any, ...]:
    """All of a block, as values."""
    batch = block.batch
    return (block.queue.topic, block.queue.queue_id, block.offset, block.base,
            bytes(block.data[:block.bytes]), block.end.tolist(), block.size.tolist(),
            block.tags.tolist(), block.begin.tolist(), block.times.tolist(),
            batch.offset.tolist(), [batch.column(name).tolist() for name in COLUMNS],
            [batch.bytes_at(number) for number in range(len(batch))])


def swept(root: Path, window: int, monkeypatch, *, together: bool) -> tuple[list[Any], list[Any]]:
    """(the blocks of a store, what could not be uploaded of its queues)."""
    monkeypatch.setattr(dispatch_blocks, "_TOGETHER", (4 << 20) if together else 0)
    with Store.open(str(root)) as store:
        view = View(store)
        queues = [LocalQueue(view, queue) for _, queue in sorted(store.queues.by_key.items())]
        places = {id(queue): 1000 * number for number, queue in enumerate(queues)}
        for queue in queues:
            queue.seek(queue.first)
        blocks: list[Any] = []
        windows = Sweep(store.log, queues, lambda connection: places[id(connection)],
                        window).windows()
        for queue in _flat(windows):
            places[id(queue.queue)] += queue.bytes
            blocks.append(plain(queue))
        faults = [(queue.topic, queue.queue_id, queue.fault) for queue in queues]
    monkeypatch.undo()
    return blocks, faults


def _flat(windows: Iterator[Iterator[Block]]) -> Iterator[Block]:
    for window in windows:
        yield from window


def assert_same(root: Path, window: int, monkeypatch) -> None:
    one_by_one = swept(root, window, monkeypatch, together=False)
    assert swept(root, window, monkeypatch, together=True) == one_by_one


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """Queues of topics whose names have one length, and of others."""
    return local_store(cli.run, tmp_path_factory.mktemp("sweep") / "store", 90,
                       topics=("T0", "T1", "Longer", "T2"))


@pytest.mark.parametrize("golden_store", sample(judged_stores(), 16, "sweep"),
                         ids=lambda golden_store: golden_store.id)
def test_golden(golden, golden_store: GoldenStore, monkeypatch):
    assert_same(golden(golden_store.id), WINDOWS[-1], monkeypatch)


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_any_size(local, window, monkeypatch):
    blocks, faults = swept(local, window, monkeypatch, together=True)
    assert sum(len(block[5]) for block in blocks) == 90
    assert not any(fault for _, _, fault in faults)
    assert_same(local, window, monkeypatch)


@pytest.mark.parametrize("number", sample(range(40), 15, "swept damage"))
def test_damaged(local, tmp_path, monkeypatch, seed, number):
    chance = random.Random(seed + number)
    root = shutil.copytree(local, tmp_path / "store")
    files = [path for top in ("commitlog", "consumequeue") for path in (root / top).rglob("*")
             if path.is_file()]
    for path in chance.sample(files, chance.randrange(1, 3)):
        data = bytearray(path.read_bytes())
        used = len(data.rstrip(b"\0")) or 1
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(used)] = chance.randrange(256)
        path.write_bytes(data)
    assert_same(root, chance.choice(WINDOWS), monkeypatch)


def test_a_row_of_another_topic_of_the_same_length(local, tmp_path, monkeypatch):
    """Only the topic's text tells."""
    root = shutil.copytree(local, tmp_path / "store")
    rows = {name: next((root / "consumequeue" / name / "0").iterdir()) for name in ("T0", "T1")}
    data = bytearray(rows["T0"].read_bytes())
    data[:20] = rows["T1"].read_bytes()[:20]
    rows["T0"].write_bytes(data)
    one_by_one = swept(root, WINDOWS[-1], monkeypatch, together=False)
    assert any(fault and "another topic" in fault.reason for _, _, fault in one_by_one[1])
    assert_same(root, WINDOWS[-1], monkeypatch)


@pytest.mark.long
def test_rows_that_claim_more_than_a_window(local, tmp_path, monkeypatch):
    """Each of them stops its queue; the room for a window is not as large as they say."""
    root = shutil.copytree(local, tmp_path / "store")
    log = next((root / "commitlog").iterdir())
    os.truncate(log, 200 << 20)
    rows = [next(path.iterdir()) for path in sorted((root / "consumequeue").glob("*/*"))]
    for path in rows[:-1]:
        data = bytearray(path.read_bytes())
        data[8:12] = (100 << 20).to_bytes(4)
        path.write_bytes(data)
    taken = []
    monkeypatch.setattr(sweep, "WindowBuffers", lambda: Noting(taken))
    blocks, faults = swept(root, 1 << 20, monkeypatch, together=True)
    assert blocks
    assert sum(fault is not None for _, _, fault in faults) >= len(rows) - 1
    assert max(taken) <= (1 << 20) + sweep.MAX_RECORD


class Noting(WindowBuffers):
    def __init__(self, taken: list[int]) -> None:
        super().__init__()
        self._taken = taken

    def take(self, size: int) -> memoryview:
        self._taken.append(size)
        return super().take(size)
