"""preflight's walk against a broker's own loop, written down record by record, on damaged logs."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest

from rmqctl.broker.recovery import RecoveryWalk
from rmqctl.broker.versions import VERSIONS
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.formats.local.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rmqctl.store import Sizes, Store
from tests.support.share import sample

SEEDS = range(40)
SHAPE = Sizes(index_slots=100, index_max=200)
FILE_SIZE = 32768


class _StopError(Exception):
    """Java's BufferUnderflowException and the like."""


class _Buffer:
    """A ByteBuffer: reads go on from ``at``, and throw beyond the end."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def get(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise _StopError
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, code: str) -> int:
        value: int = struct.unpack(">" + code, self.get(struct.calcsize(code)))[0]
        return value


def check(data: bytes, at: int, new: bool) -> int:
    """checkMessageAndReturnSize with CRC: size, 0 for a blank, -1 for anything it stops at."""
    try:
        return _check(_Buffer(data, at), len(data) - at, new)
    except _StopError:
        return -1


def _check(buffer: _Buffer, rest: int, new: bool) -> int:
    if new and rest <= 4:
        return -1
    total = buffer.number("i")
    if new and rest - 4 < total - 4:
        return -1
    magic = buffer.number("I")
    if magic == MAGIC_BLANK:
        return 0
    if magic not in ((MAGIC_V1, MAGIC_V2) if new else (MAGIC_V1,)) or total < 0:
        return -1
    crc, *_ = buffer.number("i"), buffer.get(4 + 4 + 8 + 8)
    flag = buffer.number("i")
    buffer.get(8 + (20 if flag & 0x10 else 8) + 8 + (20 if flag & 0x20 else 8) + 4 + 8)
    length = buffer.number("i")
    if length > 0 and (length > total or zlib.crc32(buffer.get(length)) & 0x7FFFFFFF != crc):
        return -1
    topic = buffer.number("h" if magic == MAGIC_V2 else "b")
    buffer.get(topic)
    properties = buffer.number("h")
    if properties > 0:
        buffer.get(properties)
    count = (91 + (magic == MAGIC_V2) + (12 if flag & 0x10 else 0) + (12 if flag & 0x20 else 0)
             + max(length, 0) + topic + max(properties, 0))
    return total if count == total else -1


def log_end(files: list[tuple[int, bytes]], new: bool) -> int:
    """Where the recovery's loop stops when it begins with the first of ``files``."""
    at = files[0][0]
    for base, data in files:
        at, size = base, 0
        while (size := check(data, at - base, new)) > 0:
            at += size
        if size < 0:
            return at
    return at


def damage(data: bytearray, rng: random.Random) -> None:
    """One blow: flipped bits, zeros, garbage, a page elsewhere, a stray blank, a moved record."""
    at = rng.randrange(len(data) - 64)
    kind = rng.randrange(7)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at:at + rng.randrange(1, 600)] = bytes(0)
        data.extend(bytes(FILE_SIZE - len(data)))
    elif kind == 2:
        count = min(rng.randrange(1, 600), len(data) - at)
        data[at:at + count] = rng.randbytes(count)
    elif kind == 3:
        first, other = (rng.randrange(len(data) // 4096) * 4096 for _ in range(2))
        data[first:first + 4096], data[other:other + 4096] = (data[other:other + 4096],
                                                              data[first:first + 4096])
    else:
        starts = _records(bytes(data))
        here = rng.choice(starts)
        if kind == 4:
            data[here:here + 8] = struct.pack(">iI", rng.choice([-5, 8, 100, 1 << 20]),
                                              MAGIC_BLANK)
        elif kind == 5:  # it says another place than its own
            data[here + 28:here + 36] = rng.randrange(1 << 20).to_bytes(8)
        else:
            data[here + 4:here + 8] = rng.choice([MAGIC_V1, MAGIC_V2]).to_bytes(4)
    del data[FILE_SIZE:]


def _records(data: bytes) -> list[int]:
    starts, at = [], 0
    while (size := check(data, at, new=True)) > 0:
        starts.append(at)
        at += size
    return starts or [0]


@pytest.mark.parametrize("seed", sample(SEEDS, 16, "ends of a walk"))
def test_the_walk_ends_where_a_brokers_does(golden_copy, seed: int):
    rng = random.Random(seed)
    version = list(VERSIONS)[seed % 2]
    root: Path = golden_copy(f"{version}/crash-live/before")
    for _ in range(rng.randrange(1, 4)):
        path = rng.choice(sorted((root / "commitlog").iterdir())[2:6])
        data = bytearray(path.read_bytes())
        damage(data, rng)
        path.write_bytes(data)
    paths = sorted((root / "commitlog").iterdir())
    files = [(int(path.name), path.read_bytes()) for path in paths]
    for asked in VERSIONS:
        with Store.open(root) as store:
            for number in range(len(files)):
                walk = RecoveryWalk(store.log, number, VERSIONS[asked])
                for batch in walk:
                    assert len(batch)
                assert walk.end == log_end(files[number:], asked == "5.3.3"), (asked, number)
        with Store.open(root, (), SHAPE) as store:
            prediction = preflight(store, asked)
        assert prediction.log.truncate_to is not None


@pytest.mark.parametrize("seed", range(30))
def test_any_bytes_anywhere_are_survived(golden_copy, seed: int):
    """Damage in whatever file: an answer or a plain refusal, for both versions, never a defect."""
    rng = random.Random(1000 + seed)
    version = list(VERSIONS)[seed % 2]
    kind = rng.choice(["basic", "lmq", "cqext", "delay", "transaction"])
    root: Path = golden_copy(f"{version}/{kind}/store")
    if rng.random() < 0.5:
        (root / "abort").touch()
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(rng.randrange(1, 6)):
        path = rng.choice(paths)
        data = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            part = data[at:at + rng.choice([1, 8, 20, 500])]
            data[at:at + len(part)] = rng.choice([
                bytes(len(part)), b"\xff" * len(part), rng.randbytes(len(part))])
        path.write_bytes(data)
    for asked in VERSIONS:
        with Store.open(root) as store:
            prediction = preflight(store, asked)
        assert prediction.starts == (prediction.log.truncate_to is not None
                                     and not prediction.broker.refusals)
        assert prediction.as_dict()["messages_lost"] >= 0
