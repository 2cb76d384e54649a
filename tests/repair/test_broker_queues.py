"""``--strategy broker`` on wild rows and misplaced records, against the broker's own algorithm."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

import pytest

from rmqctl.broker.versions import VERSIONS
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.repair.broker import plan_broker
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.scratch import Scratch
from rmqctl.store import Sizes, Store
from tests.repair.queue_model import Broker, units
from tests.support.share import sample

UNIT_FILE = 440
SIZES = {"index_slots": 100, "index_max": 200, "consumequeue_file_size": UNIT_FILE}
KINDS = ("crash-live", "crash-cqlag", "crash-cqahead", "crash-zerocheckpoint", "crash-trunc-zero",
         "clean-nocheckpoint", "clean-trunc-zero", "clean-crc")
WILD = (-1, -5, 0, 1, 1 << 31, 1 << 40, (1 << 63) - 1, -1 << 63)
PLACE = 28
"""Where in a record its physical offset stands."""


@pytest.mark.parametrize("seed", sample(range(30), 12, "queues of a broker"))
def test_it_leaves_the_queues_as_a_broker_does(golden_copy, seed: int):
    judge(golden_copy, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("start", range(30, 330, 20))
def test_many_more(golden_copy, start: int):
    for seed in range(start, start + 20):
        judge(golden_copy, seed)


def judge(golden_copy, seed: int) -> None:
    rng = random.Random(seed)
    version = list(VERSIONS)[seed % 2]
    root = golden_copy(f"{version}/{rng.choice(KINDS)}/before")
    for _ in range(rng.randrange(1, 4)):
        harm(root, rng)
    model = Broker(root, UNIT_FILE)
    clock = itertools.count(1_800_000_000_000, 7)
    with (Repair(str(root), "recover") as repair,
          Store.open(root, (), Sizes(None, UNIT_FILE, 100, 200)) as store,
          Scratch(repair.scratch_folder) as scratch):
        prediction = preflight(store, version)
        repair.apply(plan_broker(store, version, scratch, lambda: next(clock), given=SIZES,
                                 prediction=prediction))
    assert prediction.log.start_file is not None
    assert prediction.log.truncate_to is not None
    model.start(version == "5.3.3", prediction.broker.recovery == "normal",
                int(Path(prediction.log.start_file).name), prediction.log.truncate_to)
    assert prediction.starts == (version == "4.9.3" or not any(
        queue.refuses for queue in model.queues.values()))
    if not prediction.starts:
        return
    for (topic, queue_id), queue in model.queues.items():
        folder = root / "consumequeue" / topic / str(queue_id)
        assert (units(folder) if folder.is_dir() else {}) == queue.files
        assert prediction.queues.table.get(f"{topic}-{queue_id}", 0) == queue.end


def harm(root: Path, rng: random.Random) -> None:
    """A row that leads anywhere, rows that are zero, or a record that says another place."""
    queues = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
    kind = rng.randrange(4)
    if kind < 3:
        path = rng.choice(queues)
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data) // 20) * 20
        if kind == 2:
            data[at:] = bytes(len(data) - at)
        else:
            struct.pack_into(">q", data, at, rng.choice((*WILD, *rng.sample(range(1 << 18), 2))))
            if rng.random() < 0.3:
                struct.pack_into(">i", data, at + 8, rng.choice((1, -1, 0, 0x7FFFFFFF, 300)))
    else:
        path = rng.choice(sorted((root / "commitlog").iterdir())[-3:])
        data = bytearray(path.read_bytes())
        numbers, at = [], 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                break
            numbers.append(at)
            at += size
        if not numbers:
            return
        at = rng.choice(numbers)
        struct.pack_into(">q", data, at + PLACE, rng.choice(
            (*WILD, int(path.name) + at + 1, rng.randrange(1 << 18))))
    path.write_bytes(data)
