"""What is read of a large store elsewhere: bytes, requests, and no wrong end for their sake."""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl import vfs
from rmqctl.files.remote.ends import search
from rmqctl.files.remote.ranges import RangeCache
from rmqctl.formats.local import index_file
from rmqctl.formats.local.index_file import DEFAULT_SHAPE, ENTRY, SLOT, HeaderRecord
from tests.conftest import Runner

TOPIC, KEY, QUEUES, COUNT = "orders", "k", 3, 12_000
SIZE, TIME = 700, 1_700_000_000_000
QUEUE_FILE, LOG_FILE = 6_000_000, 256 << 20
MANY = 60


def built(root: Path, queues: int, log_file: int = LOG_FILE) -> Any:
    """Write the log and the consume queues of a sound store with files of the default sizes, most
    of which are holes; return the physical offsets of its messages.
    """
    number = np.arange(COUNT)
    properties = f"KEYS\1{KEY}\2".encode()
    body = bytes(SIZE - 88 - 3 - len(TOPIC) - len(properties)).replace(b"\0", b"x")
    log = np.zeros(COUNT, np.dtype({
        "names": ["size", "magic", "crc", "queue", "offset", "place", "born", "stored", "length",
                  "rest"],
        "formats": [">i4", ">u4", ">u4", ">i4", ">i8", ">i8", ">i8", ">i8", ">i4",
                    f"V{SIZE - 88}"],
        "offsets": [0, 4, 8, 12, 20, 28, 40, 56, 84, 88], "itemsize": SIZE}))
    log["size"], log["magic"], log["crc"] = SIZE, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF
    log["queue"], log["offset"], log["place"] = number % queues, number // queues, number * SIZE
    log["born"] = log["stored"] = TIME + number
    log["length"] = len(body)
    log["rest"] = np.void(body + bytes([len(TOPIC)]) + TOPIC.encode()
                          + len(properties).to_bytes(2) + properties)
    data = log.tobytes()
    for base in range(0, len(data), log_file):
        written(root / "commitlog" / f"{base:020}", data[base:base + log_file], log_file)
    for queue in range(queues):
        rows = np.zeros(COUNT // queues, [("place", ">i8"), ("size", ">i4"), ("tag", ">i8")])
        rows["place"], rows["size"] = log["place"][number % queues == queue], SIZE
        written(root / "consumequeue" / TOPIC / str(queue) / f"{0:020}", rows.tobytes(),
                QUEUE_FILE)
    return log["place"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an index."""
    root = tmp_path_factory.mktemp("large")
    number, places = np.arange(COUNT), built(root, QUEUES)
    entries = np.zeros(COUNT + 1, ENTRY.dtype())
    entries["key_hash"][1:] = index_file.key_hash(TOPIC, KEY)
    entries["physical_offset"][1:], entries["previous"][1:] = places, number
    path = root / "index" / "20231114221320000"
    written(path, index_file.build_header(HeaderRecord(
        TIME, TIME + COUNT - 1, 0, int(places[-1]), 1, COUNT + 1)), DEFAULT_SHAPE.file_size)
    with path.open("r+b") as file:
        slot = DEFAULT_SHAPE.slot_of(index_file.key_hash(TOPIC, KEY))
        os.pwrite(file.fileno(), SLOT.build(index_file.SlotRecord(COUNT)),
                  DEFAULT_SHAPE.slot_position(slot))
        os.pwrite(file.fileno(), entries.tobytes(), DEFAULT_SHAPE.entry_position(0))
    return root


def written(path: Path, data: bytes, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.truncate(path, size)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    vfs.unmount_all()
    yield
    vfs.unmount_all()


def reader_of(url: str) -> Any:
    return vfs._trees[url].reader


@pytest.mark.parametrize(("command", "most", "requests"), [
    (["info"], 640 << 10, 420), (["offsets"], 512 << 10, 300),
    (["query", "key", "--topic", TOPIC, "--key", KEY, "--max", "3"], 512 << 10, 300),
    (["read", "--limit", "1"], 7 << 20, 8)], ids=["info", "offsets", "query", "read"])
def test_what_is_read(command: list[str], most: int, requests: int, large: Path,
                      rmqctl: Runner) -> None:
    words = command[:2] if command[0] == "query" else command[:1]
    rest = command[len(words):]
    here = rmqctl(*words, large, *rest, "-o", "json").expect(0)
    url = f"file://{large}"
    there = rmqctl(*words, url, *rest, "-o", "json").expect(0)
    reader = reader_of(url)
    assert reader.requested <= most
    assert reader.requests <= requests
    if command[0] == "info":
        assert there.json()["topics"] == here.json()["topics"]
        assert there.json()["max_phy_offset"] == here.json()["max_phy_offset"]
    else:
        assert there.out == here.out
    assert ("found by sampling" in there.err.replace("\n", " ")) == (command[0] != "read")


@pytest.mark.parametrize("expired", [0, 2])
def test_what_many_queues_take(expired: int, tmp_path: Path, rmqctl: Runner,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    """A few KiB for each, wherever their messages are in the log."""
    built(tmp_path, MANY, 3000 * SIZE)
    for path in sorted((tmp_path / "commitlog").iterdir())[:expired]:
        path.unlink()
    # Queues end long before the log does.
    for number in range(0, MANY, 2):
        path = tmp_path / "consumequeue" / TOPIC / str(number) / f"{0:020}"
        os.truncate(path, (150 + number) * 20)
        os.truncate(path, QUEUE_FILE)
    asked = Counter[str]()
    once = RangeCache._once

    def counting(self: RangeCache, path: str, start: int, end: int, *, check: bool) -> bytes:
        asked[path.partition("/")[0]] += end - start
        return once(self, path, start, end, check=check)

    monkeypatch.setattr(RangeCache, "_once", counting)
    reads = []
    for place in (str(tmp_path), f"file://{tmp_path}"):
        done = rmqctl("info", place, "--view", "disk", "-o", "json").expect(0).json()
        reads.append([done[name] for name in ("topics", "min_phy_offset", "max_phy_offset")])
    assert reads[0] == reads[1]
    assert asked["consumequeue"] <= MANY * (5376 if expired else 3584)
    assert asked["commitlog"] <= 576 << 10


def holes() -> Iterator[tuple[int, int]]:
    """Places of a queue, each with the bytes there that a disk may lose: pages and sectors."""
    end = COUNT // QUEUES * 20
    yield from ((place, 4096) for place in range(0, end, 8192))
    yield from ((place, count * 512) for place in range(end // 512 * 512 - 4096, end, 1024)
                for count in (1, 2, 3, 5, 8))


def test_no_zeroed_page_or_sector_of_a_queue_hides_entries(large: Path) -> None:
    path = large / "consumequeue" / TOPIC / "0" / f"{0:020}"
    sound = path.read_bytes()
    for place, size in holes():
        for end in (COUNT // QUEUES * 20, place + size + 20):
            data = bytearray(sound)
            data[place:place + size] = bytes(size)
            data[end:] = bytes(len(data) - end)
            number = answered(search(len(data), 40, has_holes=False), data)
            assert number is None or len(data.rstrip(b"\0")) <= number, (place, size, end)


@pytest.mark.parametrize("used", [0, 1, 39, 40, 41, 319, 320, 321, 4159, 4160, 4161, 123_456,
                                  999_999, 5_998_000, 5_999_000, 5_999_999, 6_000_000])
@pytest.mark.parametrize("grain", [40, 4096])
def test_any_end_is_found(used: int, grain: int) -> None:
    data = bytearray(b"\1" * used + bytes(6_000_000 - used))
    end = answered(search(len(data), grain, has_holes=grain == 4096), data)
    if end is None:
        assert grain == 4096
        assert used > 5_995_000
    else:
        assert used <= end < used + 20


def answered(asking: Any, data: bytearray) -> int | None:
    places = next(asking)
    while True:
        assert all(0 <= start < end <= len(data) for start, end in places)
        try:
            places = asking.send([bytes(data[start:end]) for start, end in places])
        except StopIteration as done:
            return None if done.value is None else int(done.value)
