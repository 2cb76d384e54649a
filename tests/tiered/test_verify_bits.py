"""tiered verify against any damage: every bit, every length, any bytes, and what cannot be read.

Which bits of the small tier something contradicts is judged here field by field: a message's head
has no checksum, so nobody can see a turned bit in ``flag``; one in ``queue_id`` contradicts the
folder. What is provable must be found, and nothing may end in a traceback.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.formats.local.message import Message
from rmqctl.formats.local.trace import trace
from rmqctl.formats.tiered import index
from tests.conftest import Runner
from tests.support import damage
from tests.support.cli import MIB
from tests.support.share import sample
from tests.tiered.tiers import Queue, segment_name
from tests.tiered.verifying import Small, categories, verified

UNPROVABLE = {"flag", "sys_flag", "born_timestamp", "born_host.address", "born_host.port",
              "store_timestamp", "store_host.address", "store_host.port", "reconsume_times",
              "prepared_transaction_offset"}
"""Fields of a message that nothing in a tier contradicts in each of their bits. Times narrower
than those of the metadata are what a crash leaves."""


def log_places(queue: Queue, number: int) -> Iterator[int]:
    """The bytes of a segment of the log in which every bit is provable."""
    base, data = queue.logs[number]
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at:at + 4])
        for part in trace(Message, bytes(data[at:at + size])):
            if part.name not in UNPROVABLE:
                yield from range(at + part.at, at + part.at + len(part.raw))
        at += size
    assert at == len(data)
    assert base >= 0


def local_places(tier: Small) -> list[int]:
    """The same of the open index file: all but its end time, item 0 and what is not used yet."""
    end = index.HEADER.field("end_timestamp")
    shape = index.TieredIndexShape(tier.local.slots, tier.local.max_items)
    used = shape.item_position(len(tier.local.items) + 1)
    return [at for at in range(used) if not end.offset <= at < end.offset + end.size
            and not shape.items_at <= at < shape.item_position(1)]


def provable(tier: Small) -> dict[Path, list[int]]:
    first, second = tier.queues
    places_by_file = {first.log_path(tier.root, number): list(log_places(first, number))
                      for number in range(2)}
    places_by_file[second.log_path(tier.root)] = list(log_places(second, 0))
    for queue in tier.queues:
        for number, (_, data) in enumerate(queue.units):
            places_by_file[queue.units_path(tier.root, number)] = list(range(len(data)))
    places_by_file[tier.index_path] = list(range(len(tier.uploaded.compacted())))
    places_by_file[tier.local_path] = local_places(tier)
    return places_by_file


def files_of(tier: Small) -> list[Path]:
    return [path for path in sorted(tier.home.rglob("*")) if path.is_file()]


def missed(tier: Small, bits: dict[Path, list[tuple[int, int]]]) -> list[tuple[str, int, int]]:
    """Flips that verify found nothing wrong with."""
    values = []
    for path, places in bits.items():
        data = path.read_bytes()
        for at, bit in places:
            raw = bytearray(data)
            raw[at] ^= 1 << bit
            path.write_bytes(raw)
            if verified(tier.home).ok:
                values.append((str(path.relative_to(tier.home)), at, bit))
        path.write_bytes(data)
    assert verified(tier.home).ok
    return values


@pytest.mark.long
def test_provable_bits(tier: Small, seed: int) -> None:
    chance = random.Random(seed)
    bits = {path: [(at, chance.randrange(8)) for at in sorted(
        chance.sample(places, min(len(places), 24)))] for path, places in provable(tier).items()}
    assert missed(tier, bits) == []


@pytest.mark.exhaustive
def test_every_provable_bit(tier: Small) -> None:
    bits = {path: [(at, bit) for at in places for bit in range(8)]
            for path, places in provable(tier).items()}
    assert sum(map(len, bits.values())) > 10_000
    assert missed(tier, bits) == []


def test_no_bit_of_any_file_ends_in_a_traceback(tier: Small, seed: int) -> None:
    chance = random.Random(seed)
    for path in files_of(tier):
        data = path.read_bytes()
        for _ in range(min(12, len(data))):
            raw = bytearray(data)
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            path.write_bytes(raw)
            verified(tier.home)
        path.write_bytes(data)


def lengths(tier: Small, path: Path, chance: random.Random | None) -> list[int]:
    """Lengths of a file at which something is missing. Of an open index file nobody can tell how
    much place it had for further items.
    """
    shape = index.TieredIndexShape(tier.local.slots, tier.local.max_items)
    size = (shape.item_position(len(tier.local.items) + 1) if path == tier.local_path
            else len(path.read_bytes()))
    every = list(range(size))
    return every if chance is None or size <= 12 else sorted(chance.sample(every, 12))


def check_lengths(tier: Small, chance: random.Random | None) -> None:
    for path in files_of(tier):
        data = path.read_bytes()
        for size in lengths(tier, path, chance):
            path.write_bytes(data[:size])
            verify_result = verified(tier.home)
            assert not verify_result.ok, (path, size)
        path.write_bytes(data)


def test_truncated_files(tier: Small, seed: int) -> None:
    check_lengths(tier, random.Random(seed))


@pytest.mark.exhaustive
def test_every_length(tier: Small) -> None:
    check_lengths(tier, None)


@pytest.mark.long
def test_any_bytes_in_any_file(tier: Small, seed: int) -> None:
    chance = random.Random(seed)
    for path in files_of(tier):
        data = path.read_bytes()
        for size in sample((0, 1, 20, 91, 3000), 2, f"sizes of {path.name}"):
            for raw in (chance.randbytes(size), bytes(size), b"\xff" * size,
                        (data * 400)[:size] if data else b"", data + chance.randbytes(size)):
                path.write_bytes(raw)
                verified(tier.home)
        path.write_bytes(data)


def test_pieces_swapped_between_files(tier: Small, seed: int) -> None:
    chance = random.Random(seed)
    paths = [path for path in files_of(tier) if path.stat().st_size]
    for _ in range(40):
        first, other = chance.sample(paths, 2)
        data = first.read_bytes()
        part = other.read_bytes()
        at, start = chance.randrange(len(data)), chance.randrange(len(part))
        size = chance.randrange(1, 200)
        first.write_bytes(data[:at] + part[start:start + size] + data[at + size:])
        verified(tier.home)
        first.write_bytes(data)


HUGE = (0x7FFFFFFF, -0x80000000, 0x7FFFFFFFFFFFFFFF, -0x8000000000000000, 1 << 62, 0)


@pytest.mark.parametrize("value", sample(HUGE, 2, "huge numbers in a tier"))
def test_huge_numbers_everywhere(tier: Small, value: int) -> None:
    wide = struct.pack(">q", value)
    narrow = wide if abs(value) <= 1 << 31 else struct.pack(">i", value >> 32)
    for path, step in ((tier.queues[0].units_path(tier.root), 4), (tier.index_path, 12),
                       (tier.local_path, 20), (tier.queues[0].log_path(tier.root), 20)):
        data = path.read_bytes()
        for at in range(0, min(len(data), 240) - 8, 2 * step):
            for part in (wide, narrow[-4:]):
                path.write_bytes(data[:at] + part + data[at + len(part):])
                verified(tier.home)
        path.write_bytes(data)


def test_huge_names_and_gaps(tier: Small) -> None:
    folder = tier.queues[0].units_path(tier.root).parent
    for base in ((1 << 63) - 1, (1 << 63) - 20, 1 << 62):
        path = folder / segment_name(base)
        path.write_bytes(bytes(40))
        assert {"tiered-gap", "tiered-metadata-entry"} <= categories(verified(tier.home))
        path.unlink()
    folder = tier.queues[0].log_path(tier.root).parent
    path = folder / segment_name((1 << 63) - 1)
    path.write_bytes(b"x" * 100)
    assert "tiered-gap" in categories(verified(tier.home))


@pytest.mark.long
def test_sparse_files_take_little_memory_and_time(tier: Small, rmqctl_process: Runner) -> None:
    with tier.queues[0].log_path(tier.root, 1).open("r+b") as file:
        file.truncate(1 << 33)
    with tier.queues[1].units_path(tier.root).open("r+b") as file:
        file.truncate(20 << 20)
    with tier.local_path.open("r+b") as file:
        file.truncate(1 << 33)
    rmqctl_process("tiered", "verify", tier.home, "-o", "json", memory=700 * MIB,
                   timeout=60).expect(1)


def test_strange_files(tier: Small) -> None:
    """Folders, links to nowhere, pipes and sockets where files belong."""
    path = tier.queues[0].log_path(tier.root, 1)
    data = path.read_bytes()
    path.unlink()
    path.mkdir()
    assert "tiered-stray" in categories(verified(tier.home))
    path.rmdir()
    path.symlink_to(tier.home / "nowhere")
    assert not verified(tier.home).ok
    path.unlink()
    os.mkfifo(path)
    assert not verified(tier.home).ok
    path.unlink()
    path.write_bytes(data)
    tier.metadata_path.unlink()
    os.mkfifo(tier.metadata_path)
    tier.local_path.unlink()
    os.mkfifo(tier.local_path)
    assert not verified(tier.home).ok


@pytest.mark.skipif(not damage.can_deny(), reason="root may read everything")
@pytest.mark.parametrize("which", ["log", "units", "index", "local", "folder"])
def test_no_permission(tier: Small, which: str) -> None:
    path = {"log": tier.queues[0].log_path(tier.root), "index": tier.index_path,
            "units": tier.queues[0].units_path(tier.root), "local": tier.local_path,
            "folder": tier.queues[0].log_path(tier.root).parent}[which]
    path.chmod(0)
    try:
        assert "file-unreadable" in categories(verified(tier.home))
    finally:
        path.chmod(0o755)


def test_reading_that_fails(tier: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error in any one read costs a part, and is told."""
    from rmqctl.errors import StoreIOError
    from rmqctl.scan.source import FileSource

    read, read_into = FileSource.read, FileSource.read_into
    calls = 0
    failing = -1

    def counted(method):
        def wrapped(self, *words):
            nonlocal calls
            calls += 1
            if calls - 1 == failing:
                raise StoreIOError(f"cannot read {self.name}: input/output error")
            return method(self, *words)
        return wrapped

    monkeypatch.setattr(FileSource, "read", counted(read))
    monkeypatch.setattr(FileSource, "read_into", counted(read_into))
    clean = verified(tier.home)
    total = calls
    assert total > 15
    for failing in range(total):
        calls = 0
        verify_result = verified(tier.home)
        if verify_result.ok:  # it was a second look at a header: everything was read all the same
            assert verify_result == clean, failing
        else:
            assert "file-unreadable" in categories(verify_result), failing


@pytest.mark.parametrize("field", ["position", "length"])
@pytest.mark.parametrize("value", [28 * 58_363_073, 28, 28 * 3, 0, -28, 5])
def test_a_damaged_slot_stands_alone(tier: Small, field: str, value: int) -> None:
    """It is held against itself and its neighbour at the most, whatever it says."""
    layout, shape = index.COMPACTED_SLOT, index.TieredIndexShape(
        tier.uploaded.slots, tier.uploaded.max_items)
    part = layout.field(field)
    data = bytearray(tier.index_path.read_bytes())
    place = shape.slot_position(1) + part.offset
    raw = value.to_bytes(part.size, "big", signed=True)
    if data[place:place + part.size] == raw:
        pytest.skip("it says so already")
    data[place:place + part.size] = raw
    tier.index_path.write_bytes(data)
    findings = [finding for finding in verified(tier.home).findings
                if finding.category == "tiered-index-slot"]
    assert 1 <= len(findings) <= 2
