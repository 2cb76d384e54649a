"""`carve` where pieces of logs are in any order: images, fragments, wrong names, two stores in one.

What the records say of their places agrees, so they are in place and `--out` keeps the places.
"""

from __future__ import annotations

import random
import shutil
import struct
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local.message import MAGIC_BLANK
from rmqctl.repair.carve.carve import DOUBTFUL, IN_PLACE, MISPLACED
from rmqctl.repair.carve.store import size_by_ends
from tests.conftest import GoldenFolder, Runner
from tests.repair.carving import carve, places, record, saved
from tests.support import members
from tests.support.share import sample
from tests.support.stored import log_bytes

SIZE = 16 << 10
FILES = 4
SMALL = ("--index-slots", "100", "--index-max", "400", "-qq", "-o", "json")


def a_log(*, store: int = 1, time: int = 100, files: int = FILES, base: int = 0, size: int = SIZE,
          words: int = 40) -> list[bytes]:
    """The files of a log of one queue, the last with unused space."""
    values, number = [], 0
    for file in range(files):
        data = b""
        while len(data) < (size - 1000 if file < files - 1 else size // 2):
            data += record(base + file * size + len(data), b"%d " % number * words, store=store,
                           queue_offset=number, time=time + number)
            number += 1
        if file < files - 1:
            data += struct.pack(">iI", size - len(data), MAGIC_BLANK)
        values.append(data + bytes(size - len(data)))
    return values


def rebuilt(rmqctl: Runner, source: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """What `--out` says; the new stores are sound, and messages say what they said before."""
    new = source.parent / "new"
    shutil.rmtree(new, ignore_errors=True)
    document: dict[str, Any] = rmqctl("carve", source, "--out", new, *SMALL,
                                      *options).expect(code).json()
    for log in document.get("logs", [document]):
        rmqctl("verify", log["store"], "-qq").expect(0)
    return document


def test_the_files_of_a_log_in_any_order(rmqctl: Runner, tmp_path: Path) -> None:
    files = a_log()
    count = sum(len(places(file)) for file in files)
    for order in sample(permutations(range(FILES)), 6, "orders", always={(3, 2, 1, 0)}):
        image = saved(tmp_path, bytes(4096) + b"".join(files[number] for number in order))
        document = rebuilt(rmqctl, image)
        assert document["in_place"] == count, order
        assert document["physical_offsets_kept"] == document["written"] == count
        assert document["queue_offsets_renumbered"] == document["fillers"] == 0
        assert b"".join(log_bytes(tmp_path / "new", ("commitlog",)).values()) == b"".join(files)


@pytest.mark.parametrize("by", [1, 3])
def test_files_with_wrong_names(by: int, rmqctl: Runner, tmp_path: Path) -> None:
    files = a_log()
    for number, data in enumerate(files):
        folder = tmp_path / "found"
        folder.mkdir(exist_ok=True)
        saved(folder, data, f"{(number + by) % FILES * SIZE:020d}")
    document = rebuilt(rmqctl, tmp_path / "found")
    assert document["in_place"] == document["physical_offsets_kept"] == document["written"] > 100


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fragments_of_a_log(seed: int, rmqctl: Runner, tmp_path: Path) -> None:
    """What a fragment cuts in two is lost; no other message contradicts anything."""
    data = b"".join(a_log())
    cuts = [4096 * number for number in (0, 3, 5, 6, 10, 13, 16)]
    blocks = [data[start:end] for start, end in pairwise(cuts)]
    random.Random(seed).shuffle(blocks)
    image = saved(tmp_path, b"".join(blocks))
    carved = carve(image)
    intact = [base + at for base in range(0, len(data), SIZE)
              for at, size in places(data[base:base + SIZE])
              if not any(base + at < cut < base + at + size for cut in cuts)]
    assert carved.tally.misplaced == 0
    assert carved.tally.messages >= len(intact)
    document = rebuilt(rmqctl, image, code=1)
    assert document["physical_offsets_kept"] == document["written"] == carved.tally.messages


FOREIGN = {"nothing": b"", "zeros": bytes(1 << 15), "text": b"a line of another file\n" * 1500}


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("block", [4096, 16 << 10, 64 << 10])
def test_a_fragmented_file_system(block: int, foreign: str, golden: GoldenFolder,
                                  tmp_path: Path) -> None:
    """Blocks of a broker's log in any order: what they say of their places agrees."""
    files = log_bytes(golden("5.3.3/basic/store"), ("commitlog",))
    blocks = [data[at:at + block] for data in files.values() for at in range(0, len(data), block)]
    intact = sum(at // block == (at + size - 1) // block
                 for data in files.values() for at, size in places(data))
    rng = random.Random(block)
    rng.shuffle(blocks)
    image = b"".join(data + FOREIGN[foreign][:rng.randrange(8) * 4096] for data in blocks)
    carved = carve(saved(tmp_path, image))
    assert carved.tally.misplaced == carved.tally.embedded == 0
    assert carved.tally.messages >= intact > 500
    assert carved.tally.in_place > 0.8 * intact


def test_fragments_with_equal_shifts(tmp_path: Path) -> None:
    """The log goes on in its place after another part of it; that is elsewhere, too."""
    data = b"".join(a_log())
    blocks = [data[at:at + 4096] for at in range(0, len(data), 4096)]
    blocks[2:4], blocks[7:9] = blocks[7:9], blocks[2:4]
    carved = carve(saved(tmp_path, b"".join(blocks)))
    assert carved.tally.misplaced == 0


def test_records_in_a_body_are_no_fragment(tmp_path: Path) -> None:
    """The log goes on after a record without a head, and what is in it is nowhere else."""
    files = a_log(files=2, size=32 << 10)
    start = len(files[1].rstrip(b"\0"))
    body = b"".join(record(70 * SIZE + at, b"forged", store=3) for at in range(0, 5000, 500))
    carrier = record((32 << 10) + start, body)
    after = record((32 << 10) + start + len(carrier), b"the log goes on")
    log = files[0] + files[1][:start] + b"\x55" * 60 + carrier[60:] + after
    carved = carve(saved(tmp_path, log))
    forged = {message.placement for message in carved.messages if message.record.body == b"forged"}
    assert forged
    assert IN_PLACE not in forged


def test_two_stores_in_one_image(rmqctl: Runner, tmp_path: Path) -> None:
    """Each becomes a store, the older one first."""
    first, other = a_log(store=1, time=100), a_log(store=2, time=5000)
    image = saved(tmp_path, b"".join([other[2], first[3], first[0], other[0], other[3], first[2],
                                      other[1], first[1]]))
    document = rebuilt(rmqctl, image)
    count = sum(len(places(file)) for file in first)
    assert document["in_place"] == document["written"] == 2 * count
    assert document["physical_offsets_kept"] == 2 * count
    assert document["queue_offsets_renumbered"] == document["fillers"] == 0
    assert [log["written"] for log in document["logs"]] == [count, count]
    for name, files in (("1", first), ("2", other)):
        assert b"".join(log_bytes(tmp_path / "new" / name, ("commitlog",)).values()) == (
            b"".join(files))


@pytest.mark.parametrize(("name", "order", "code"), [
    ("tiered", 1, 0), ("tiered", -1, 1), ("compaction", 1, 0), ("compaction", -1, 1)])
def test_copies_beside_the_log_make_no_other_log(name: str, order: int, code: int, rmqctl: Runner,
                                                 golden: GoldenFolder, tmp_path: Path) -> None:
    """A compaction log and a tier have messages again, at places of their own."""
    root = golden(f"5.3.3/{name}/store")
    files = [path for path in sorted(root.rglob("*"))[::order] if path.is_file()]
    image = saved(tmp_path, b"".join(data + bytes(-len(data) % 4096)
                                     for data in map(Path.read_bytes, files)))
    size = (root / "commitlog" / f"{0:020d}").stat().st_size
    document = rebuilt(rmqctl, image, "--commitlog-file-size", str(size), code=code)
    before, after = (log_bytes(item, ("commitlog",)) for item in (root, tmp_path / "new"))
    assert {base: before[base] for base in after} == after
    assert "logs" not in document
    assert document["copies"] > 40
    assert document["written"] == document["physical_offsets_kept"] > 100


def test_copies_without_their_log_are_written(rmqctl: Runner, golden: GoldenFolder,
                                              tmp_path: Path) -> None:
    shutil.copytree(golden("5.3.3/tiered/store") / "tieredstore", tmp_path / "tier")
    document = rebuilt(rmqctl, tmp_path / "tier")
    assert document["copies"] == 0
    assert document["written"] == document["given"] > 100


def test_an_older_log_of_the_same_broker(rmqctl: Runner, tmp_path: Path) -> None:
    """A store was deleted and created again: every place of the log has one message."""
    size = 128 << 10
    older, newer = (b"".join(a_log(files=2, size=size, time=time, words=words))
                    for time, words in ((100, 40), (90_000, 33)))
    count = len(places(older)) + len(places(older[size:]))
    for image in (older + newer, older[size:] + newer + older[:size]):
        carved = carve(saved(tmp_path, image))
        in_place = [message.record for message in carved.messages
                    if message.placement == "in-place"]
        ends = sorted((record.physical_offset, record.physical_offset + record.total_size)
                      for record in in_place)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert len(in_place) >= count
        assert carved.tally.misplaced + len(in_place) == carved.tally.messages
        document = rebuilt(rmqctl, tmp_path / "image")
        assert document["written"] == document["physical_offsets_kept"] == carved.tally.messages
        assert len(document["logs"]) == 2
        assert "same physical offsets" in document["logs"][1]["reason"]
        for log in document["logs"]:
            rows = rmqctl("read", log["store"], "--fields", "store_timestamp,topic", "-o",
                          "jsonl").expect(0).jsonl()
            assert len({row["store_timestamp"] < 90_000 for row in rows
                        if row["topic"] == "T"}) == 1


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 3, 1)])
def test_the_files_of_a_dledger_log(order: tuple[int, ...], tmp_path: Path) -> None:
    """A mark ends each, an entry's head is before each record, the last has unused space."""
    count = len(members.write(tmp_path / "node", members.bodies(50, length=200)))
    files = [path.read_bytes() for path in sorted((tmp_path / "node/dledger-n0/data").iterdir())]
    carved = carve(saved(tmp_path, b"".join(files[number] for number in order)))
    assert len(files) == len(order)
    assert carved.tally.in_place == carved.tally.messages == count


def test_two_stores_with_places_of_their_own(rmqctl: Runner, tmp_path: Path) -> None:
    """Nothing shows that the other store host is the same broker."""
    first, other = a_log(), a_log(store=2, time=5000, base=20 * SIZE)
    document = rebuilt(rmqctl, saved(tmp_path, b"".join(other[::-1] + first[::-1])))
    assert document["physical_offsets_kept"] == document["written"] == document["in_place"]
    assert document["fillers"] == 0
    assert [log["reason"] for log in document["logs"]] == [None, "another store host"]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_file_is_missing(missing: int, rmqctl: Runner, tmp_path: Path) -> None:
    files = a_log()
    left = [file for number, file in enumerate(files) if number != missing]
    document = rebuilt(rmqctl, saved(tmp_path, b"".join(left[::-1])))
    assert document["physical_offsets_kept"] == document["written"] == document["in_place"] > 100
    assert document["queue_offsets_renumbered"] == 0
    lost = len(places(files[missing])) if missing else 0
    assert document["queue_fillers"] == document["fillers"] == lost


def test_a_record_that_says_it_is_far_away(rmqctl: Runner, tmp_path: Path) -> None:
    """No gap of any size is filled: what is after it has a store of its own."""
    far = record(1 << 60, b"far", queue_offset=9999, time=1)
    document = rebuilt(rmqctl, saved(tmp_path, b"".join(a_log()) + far))
    assert document["physical_offsets_kept"] == document["written"] == document["in_place"]
    assert [log["reason"] for log in document["logs"]] == [
        None, "too much is missing before it, or it is older"]
    assert len(list((tmp_path / "new" / "1" / "commitlog").iterdir())) <= FILES + 1
    (row,) = rmqctl("read", tmp_path / "new" / "2", "--where", "topic=T", "-o",
                    "jsonl").expect(0).jsonl()
    assert (row["physical_offset"], row["queue_offset"]) == (1 << 60, 9999)


def test_what_contradicts_is_misplaced(rmqctl: Runner, tmp_path: Path) -> None:
    files = a_log()
    at = places(files[1])[20][0]
    second = record(SIZE + at, b"another message at the same place", time=7)
    alien = record(90 * SIZE, b"in the middle of a log", time=8)
    cut, size = places(files[2])[30]
    interrupted = files[2][:cut] + alien + files[2][cut + len(alien):]
    carved = carve(saved(tmp_path, files[3] + files[1] + interrupted + second + files[0]))
    assert carved.offsets(MISPLACED) == [2 * SIZE + cut, 3 * SIZE]
    assert carved.tally.doubtful == 0 or size > len(alien)
    document = rebuilt(rmqctl, tmp_path / "image", code=1)
    assert document["physical_offsets_kept"] == document["written"]
    assert [log["written"] for log in document["logs"]] == [document["written"] - 2, 2]
    document = rebuilt(rmqctl, tmp_path / "image", "--no-misplaced", code=1)
    assert "logs" not in document


def test_the_body_of_a_record_without_a_head_is_no_fragment(tmp_path: Path) -> None:
    """The log does not go on after it: the frames in it may be messages, or not."""
    files = a_log()
    body = b"".join(record(77 * SIZE + at, b"forged", store=3) for at in range(0, 5000, 500))
    carrier = record(3 * SIZE + len(files[3].rstrip(b"\0")), b"look: " + body + b"that was it")
    log = files[0] + files[3].rstrip(b"\0")
    for gone in (60, 100):
        carved = carve(saved(tmp_path, log + b"\x55" * gone + carrier[gone:]))
        forged = {message.placement for message in carved.messages
                  if message.record.body == b"forged"}
        assert forged == {DOUBTFUL}
        assert carved.tally.in_place == len(places(files[0])) + len(places(files[3]))


def test_fillers_of_a_sealed_log_are_sealed(rmqctl: Runner, golden: GoldenFolder,
                                            tmp_path: Path) -> None:
    """A broker that demands the property __CRC32# ends its log at a message without."""
    files = list(log_bytes(golden("5.3.3/appendcrc/store"), ("commitlog",)).values())
    data = bytearray(b"".join(files))
    data[8192:11192] = bytes(3000)
    document = rebuilt(rmqctl, saved(tmp_path, bytes(data)), code=1)
    assert document["physical_offsets_kept"] == document["written"] > 200
    rows = rmqctl("read", tmp_path / "new", "-o", "jsonl").expect(0).jsonl()
    fillers = [row for row in rows if "RMQCTL" in row["properties"]]
    assert len(fillers) == document["fillers"] > document["queue_fillers"] > 0
    assert all("__CRC32#" in row["properties"] for row in rows)


def test_the_size_of_files_by_their_ends() -> None:
    assert size_by_ends([]) is None
    assert size_by_ends([SIZE * number for number in (1, 2, 5)]) == SIZE
    assert size_by_ends([(7 << 30), (9 << 30)]) == 1 << 30
    assert size_by_ends([SIZE * number for number in (3, 4, 9)] + [12345]) == SIZE
    assert size_by_ends([999]) is None
