"""Lost messages counted from what the pass of `verify` has kept: as many as `preflight` counts, and
the log is not read again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rmqctl.checks.preflight import preflight as module
from rmqctl.checks.preflight.from_pass import known_from
from rmqctl.checks.preflight.gaps import DamagedBytes
from rmqctl.checks.preflight.missing import missing
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support.cli import run
from tests.support.reads import count_reads

USUAL = ("5.3.3/basic/store", "4.9.3/basic/store", "5.3.3/crash-base/store",
         "4.9.3/crash-cqlag/before")
START, BODY = 4, 88


def records(store: Path) -> list[tuple[Path, int, int]]:
    """(file, position, size) of each message of a sound log."""
    places = []
    with Store.open(store) as opened:
        for file in opened.log.files:
            for batch in opened.log.walk(file.base, file.end):
                places += [(Path(file.path), int(place) - file.base, int(size)) for place, size in
                           zip(batch.offset, batch.column("total_size"), strict=True)]
    return places


def flip(file: Path, position: int, bit: int = 0) -> None:
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes([byte ^ 1 << bit]))


def bodies(store: Path, every: int) -> int:
    hit = records(store)[every // 2::every]
    for file, position, _ in hit:
        flip(file, position + BODY)
    return len(hit)


def sizes(store: Path, every: int) -> int:
    hit = records(store)[every // 2::every]
    for file, position, _ in hit:
        flip(file, position + 3, 6)
    return len(hit)


def queues_of(store: Path, every: int) -> int:
    """Messages that say another queue offset, or another queue, which may have no file."""
    for number, (file, position, _) in enumerate(records(store)[every // 2::every]):
        flip(file, position + (27, 15, 12)[number % 3], number % 5)
    return 0


def properties(store: Path, every: int) -> int:
    for file, position, size in records(store)[every // 2::every]:
        flip(file, position + size - 1, 1)
    return 0


def anywhere(store: Path, every: int) -> int:
    chance, count = random.Random(every), 0
    for file, position, size in records(store)[::every]:
        flip(file, position + chance.randrange(size), chance.randrange(8))
        count += 1
    return count


def a_page(store: Path, every: int) -> int:
    for file, position, _ in records(store)[every::10 * every][:2]:
        with file.open("r+b") as opened:
            opened.seek(position // 512 * 512)
            opened.write(bytes(512))
    return 0


def rows(store: Path, every: int) -> int:
    for file in sorted(store.glob("consumequeue/*/*/*"))[::2]:
        flip(file, 20 * (every % 3) + 7, 4)
    return bodies(store, 3 * every)


def the_end(store: Path, every: int) -> int:
    file, position, size = records(store)[-every]
    data = file.read_bytes()
    file.write_bytes(data[:position + size // 2] + bytes(len(data) - position - size // 2))
    return 0


DAMAGE: tuple[Callable[[Path, int], int], ...] = (
    bodies, sizes, queues_of, properties, anywhere, a_page, rows, the_end)


def verified(opened: Store, jobs: int = 1) -> Verification:
    verification = Verification(opened, VerifyOptions(jobs=jobs, minimum_range=1 << 16))
    for _ in verification.findings():
        pass
    return verification


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda function: function.__name__)
@pytest.mark.parametrize("store", USUAL)
def test_as_many_are_lost_as_a_start_finds(golden: GoldenFolder, tmp_path: Path, store: str,
                                           damage: Callable[[Path, int], int]) -> None:
    root = snapshot.copy_tree(golden(store), tmp_path / "store")
    damage(root, 17)
    with Store.open(root) as opened:
        seen = verified(opened).seen
        assert seen is not None
        assert known_from(opened, seen) in (None, preflight(opened).account.known_lost)


@pytest.mark.parametrize(("store", "damage"), [
    (store, damage) for store in USUAL for damage in (bodies, sizes, queues_of, properties)
    if damage is not queues_of or store.startswith("5.3.3/basic")],
    ids=lambda param: getattr(param, "__name__", param))
def test_the_pass_says_enough_of_usual_damage(golden: GoldenFolder, tmp_path: Path, store: str,
                                              damage: Callable[[Path, int], int]) -> None:
    root = snapshot.copy_tree(golden(store), tmp_path / "store")
    damage(root, 11)
    with Store.open(root) as opened:
        parts = [known_from(opened, seen) for jobs in (1, 3)
                 if (seen := verified(opened, jobs).seen) is not None]
    assert parts[0] is not None
    assert parts == [parts[0]] * 2


def test_the_log_is_not_read_again(golden: GoldenFolder, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    root = snapshot.copy_tree(golden("5.3.3/basic/store"), tmp_path / "store")
    count = bodies(root, 5)
    with Store.open(root) as opened:
        seen = verified(opened).seen
        of_log = count_reads(monkeypatch, "/commitlog/")
        monkeypatch.setattr(module, "preflight", None)  # what would walk the log
        assert missing(opened, damaged=True, seen=seen).known_lost == count
        used = seen.last_record_end or 0
    assert sum(of_log) < max(used // 8, 128 << 10)


@pytest.mark.parametrize("store", ["4.9.3/basic/store", "5.3.3/basic/store"])
def test_no_more_is_lost_than_was_damaged(golden: GoldenFolder, tmp_path: Path,
                                          store: str) -> None:
    # A start of 4.x after a clean end goes over the last files twice.
    root = snapshot.copy_tree(golden(store), tmp_path / "store")
    count = bodies(root, 7)
    answer = run("preflight", root, "-o", "json").json()
    checked = run("verify", root, "-o", "json").json()
    assert count - 2 <= answer["messages_already_lost"] <= count
    assert checked["coverage"]["messages_already_lost"] == answer["messages_already_lost"]


@pytest.mark.parametrize("seed", range(3))
def test_bytes_of_damage_are_summed(seed: int) -> None:
    chance = random.Random(seed)
    borders = sorted(chance.sample(range(300), 2 * chance.randrange(1, 20)))
    starts, ends = (np.array(borders[first::2], np.int64) for first in (0, 1))
    inside = {place for start, end in zip(starts, ends, strict=True) for place in range(start, end)}
    damage = DamagedBytes(starts, ends)
    for low in range(0, 310, 7):
        for high in range(0, 310, 11):
            assert damage.within(low, high) == sum(low <= place < high for place in inside)
    assert DamagedBytes(starts[:0], ends[:0]).within(0, 1 << 62) == 0


SOUND = ("5.3.3/basic/store", "4.9.3/basic/store", "5.3.3/transaction/store", "5.3.3/v2topic/store",
         "5.3.3/ipv6/store", "4.9.3/transaction/store")


def stopped(golden: GoldenFolder, tmp_path: Path, store: str) -> Path:
    """A copy of a store as a clean stop leaves it."""
    root = snapshot.copy_tree(golden(store), tmp_path / "store")
    (root / "abort").unlink(missing_ok=True)
    return root


@pytest.mark.parametrize("damage", [None, *DAMAGE], ids=lambda param: getattr(
    param, "__name__", "sound"))
@pytest.mark.parametrize("store", SOUND)
def test_a_start_is_predicted_from_the_pass_as_from_walks(
        golden: GoldenFolder, tmp_path: Path, store: str,
        damage: Callable[[Path, int], int] | None) -> None:
    root = stopped(golden, tmp_path, store)
    if damage is not None:
        damage(root, 17)
    with Store.open(root) as opened, Store.open(root) as again:
        prediction = preflight(opened, seen=verified(opened).seen)
        walked = preflight(again)
    assert prediction.as_dict() == walked.as_dict()
    assert prediction.account == walked.account


@pytest.mark.parametrize("store", SOUND[:2])
def test_a_sound_log_is_read_once(golden: GoldenFolder, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    root = stopped(golden, tmp_path, store)
    with Store.open(root) as opened:
        seen = verified(opened).seen
        assert seen is not None
        read = count_reads(monkeypatch, "commitlog")
        preflight(opened)
        whole = sum(read)
        read.clear()
        preflight(opened, seen=seen)
        assert sum(read) < whole / 2
