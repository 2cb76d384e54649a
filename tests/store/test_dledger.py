"""A DLedger log as a store has it: followed while it grows, its index as a witness, tolerant."""

from __future__ import annotations

from pathlib import Path

from rmqctl.formats import dledger
from rmqctl.store.log.follow import Follower
from rmqctl.store.problems import Problem
from rmqctl.store.store import Store
from tests.scan.test_entries import HEAD, entry
from tests.support.cli import run

SIZE = 4096


def log_of(bodies: list[bytes]) -> tuple[dict[int, bytes], list[int]]:
    """Files by their base, and where each entry begins."""
    files, starts, at = {0: b""}, [], 0
    for number, body in enumerate(bodies):
        raw = entry(number, at, body)
        if len(files[at - at % SIZE]) + len(raw) + 8 > SIZE:
            base = at - at % SIZE
            files[base] += dledger.build_end(base + SIZE - at)
            at = base + SIZE
            files[at] = b""
            raw = entry(number, at, body)
        starts.append(at)
        files[at - at % SIZE] += raw
        at += len(raw)
    return files, starts


def store_of(folder: Path, bodies: list[bytes], *, index: bool = True) -> list[int]:
    files, starts = log_of(bodies)
    data = folder / "dledger-n0/data"
    data.mkdir(parents=True, exist_ok=True)
    for base, raw in files.items():
        (data / f"{base:020d}").write_bytes(raw.ljust(SIZE, b"\0"))
    if index:
        units = b"".join(dledger.INDEX_UNIT.build(dledger.IndexUnitRecord(
            1, at, len(entry(number, at, bodies[number])), number, 1))
            for number, at in enumerate(starts))
        (folder / "dledger-n0/index").mkdir(exist_ok=True)
        (folder / f"dledger-n0/index/{0:020d}").write_bytes(units)
    return starts


def patch(folder: Path, at: int, raw: bytes) -> None:
    with (folder / f"dledger-n0/data/{at - at % SIZE:020d}").open("r+b") as file:
        file.seek(at % SIZE)
        file.write(raw)


def test_it_is_followed(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 20 for number in range(60)]
    starts = store_of(tmp_path, bodies[:10])
    problems: list[Problem] = []
    clock = iter(range(100))
    follower = Follower([str(tmp_path / "dledger-n0/data")], 0, problems.append,
                        lambda: next(clock))
    seen = [record.physical_offset for record in follower.poll()]
    assert seen == [start + HEAD for start in starts]
    # Half of the next entry, then all of it and many more, over the borders of files.
    starts = store_of(tmp_path, bodies[:11])
    patch(tmp_path, starts[10] + HEAD + 60, bytes(200))
    assert list(follower.poll()) == []
    starts = store_of(tmp_path, bodies)
    seen += [record.physical_offset for record in follower.poll()]
    assert seen == [start + HEAD for start in starts]
    assert problems == []
    assert len(list((tmp_path / "dledger-n0/data").iterdir())) > 2


def test_the_index_leads_on_behind_damaged_heads(tmp_path: Path) -> None:
    """Nothing else tells where the next entry begins: in a body lies one that names its place."""
    bodies = [b"a" * 40, b"", b"c" * 40, b"d" * 40]
    at = len(entry(0, 0, bodies[0]))
    bodies[1] = entry(1, at + HEAD + 88, b"forged" * 9)
    starts = store_of(tmp_path, bodies)
    patch(tmp_path, starts[1], bytes(HEAD + 40))
    rows = run("read", tmp_path, "-o", "jsonl").expect(1).jsonl()
    assert [row["physical_offset"] - HEAD for row in rows] == [starts[0], *starts[2:]]
    finding, = [reported_finding for reported_finding in run(
        "verify", tmp_path, "--only", "commitlog", "-o", "json").expect(1).json()["findings"]
        if reported_finding["category"] in ("record-damaged", "zero-gap")]
    assert (finding["offset"], finding["length"]) == (starts[1], starts[2] - starts[1])


def test_a_range_from_anywhere_begins_with_an_entry(tmp_path: Path) -> None:
    bodies = [b"%d" % number * 20 for number in range(40)]
    starts = store_of(tmp_path, bodies)
    with Store.open(tmp_path) as store:
        for place in range(0, starts[-1] + HEAD, 37):
            first = next(int(batch.offset[0]) for batch in store.log.walk(place) if len(batch))
            assert first == next(start for start in starts if start + HEAD >= place) + HEAD
            seen = [int(offset) for batch in store.log.walk(0, place) for offset in batch.offset]
            assert seen == [start + HEAD for start in starts if start + HEAD < place]
