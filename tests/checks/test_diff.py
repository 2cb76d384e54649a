"""diff: whatever is not the same is found, nothing else is, and both stores are treated alike."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from rmqctl.checks.diff import differences
from rmqctl.scan.walk import Walk
from rmqctl.store import Store
from tests.checks.diffing import Brief, brief, change, counts, diff, in_log, pair, swapped
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support.share import sample
from tests.support.snapshot import copy_tree
from tests.support.tiny import Tiny

__all__ = ["pair"]
CLEAN = [pytest.param(golden_store, id=golden_store.id)
         for golden_store in golden_sets.clean_stores()]


# -- nothing differs ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["physical", "queue"])
@pytest.mark.parametrize("golden_store", CLEAN)
def test_a_store_equals_itself(golden_store: golden_sets.GoldenStore, by: str,
                               golden: GoldenFolder) -> None:
    root = golden(golden_store.id)
    run = diff(root, root, by, dirs=golden_store.commitlog_dirs if golden_store.options
               else (), whole=True)
    assert run.equal
    assert not run.remarks
    equal, *rest = counts(run)
    assert rest == [0, 0, 0]
    assert equal == run.summary["a"]["messages"] == run.summary["b"]["messages"] > 0


@pytest.mark.parametrize("by", ["physical", "queue"])
@pytest.mark.parametrize("name", ["crash-crc", "crash-trunc-garbage", "crash-trunc-header"])
def test_a_damaged_store_equals_itself(name: str, by: str, golden: GoldenFolder) -> None:
    root = golden(f"4.9.3/{name}/before")
    assert diff(root, root, by).equal


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_the_same_damage_is_no_difference(by: str, pair: tuple[Tiny, Tiny]) -> None:
    for tiny in pair:
        file, position = tiny.place(tiny.messages[1].start)
        damage.zero(tiny.root, file, position, 30)
    run = diff(pair[0].root, pair[1].root, by)
    assert run.equal
    assert run.summary["damaged_alike"] == 1
    assert run.remarks == ["the same damage in both: 1 span"]
    assert counts(run) == (7, 0, 0, 0)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_one_log_in_one_folder_or_in_two(version: str, golden: GoldenFolder,
                                         tmp_path: Path) -> None:
    root = golden(f"{version}/multipath/store")
    path = copy_tree(root, tmp_path / "one")
    (path / "commitlog").mkdir()
    for file in [*(path / "cl1").iterdir(), *(path / "cl2").iterdir()]:
        file.rename(path / "commitlog" / file.name)
    run = diff(root, path, dirs=("cl1", "cl2"), dirs_b=("commitlog",))
    assert run.equal
    assert run.summary["by"] == "physical"


def test_two_versions_of_the_engine_stored_the_same(golden: GoldenFolder) -> None:
    """The same puts into 4.9.3 and 5.3.3: other offsets, other hosts, the same messages."""
    run = diff(golden("4.9.3/basic/store"), golden("5.3.3/basic/store"))
    assert run.equal
    assert run.summary["by"] == "queue"
    assert counts(run) == (600, 0, 0, 0)


# -- before and after the engine's recovery -----------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize(("kind", "expected"), [
    ("clean-crc", {"queue": 1}), ("clean-nocheckpoint", {}), ("clean-nocq", {"queue": 6}),
    ("clean-noindex", {}), ("crash-cqlag", {"queue": 6}), ("crash-live", {}),
    ("crash-trunc-garbage", {}), ("crash-trunc-header", {}), ("crash-trunc-zero", {}),
    ("crash-crc-prev", {"missing-in-b": 42, "queue": 5})])
def test_before_and_after_recovery(version: str, kind: str, expected: dict[str, int],
                                   golden: GoldenFolder) -> None:
    before, after = (golden(f"{version}/{kind}/{state}") for state in ("before", "after"))
    run = diff(before, after)
    assert run.summary["by"] == "physical"
    assert dict(run.differences.counts) == expected
    back = diff(after, before)
    assert sorted(in_log(back)) == sorted(swapped(in_log(run)))
    assert diff(before, after, "queue").differences.counts == run.differences.counts
    if not kind.endswith(("nocq", "cqlag")):
        assert diff(before, after, view="broker").equal


# -- one thing is changed -----------------------------------------------------------------------


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_a_changed_body(by: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    changed = b.messages[1]
    change(b, changed, changed.raw.index(b"second"))
    run = diff(a.root, b.root, by)
    (difference,) = run.differences.listed
    assert (difference.kind, difference.physical_offset, difference.fields) == (
        "different", changed.start, ("body",))
    assert (difference.topic, difference.queue_id, difference.queue_offset) == ("orders", 1, 0)
    assert difference.unique_key == changed.spec.properties["UNIQ_KEY"]
    assert difference.msg_id == changed.record.message_id
    assert difference.detail == ("body CRC mismatch in b; body of 11 bytes, different from "
                                 "byte 0 on: 7365636f6e642062 / 7265636f6e642062")
    assert counts(run) == (7, 1, 0, 0)
    assert run.differences.total == 1


@pytest.mark.parametrize("by", ["physical", "queue"])
@pytest.mark.parametrize(("text", "field"), [
    (b"KEYS\x01k1\x02", "properties.KEYS"), (b"TAGS\x01B", "properties.TAGS")])
def test_a_changed_property(by: str, text: bytes, field: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    changed = b.messages[1]
    change(b, changed, changed.raw.index(text) + 5)
    (difference,) = diff(a.root, b.root, by).differences.listed
    assert difference.fields == (field,)


@pytest.mark.parametrize(("at", "field"), [
    (8, "body_crc"), (16, "flag"), (40, "born_timestamp"), (50, "born_host"),
    (56, "store_timestamp"), (72, "reconsume_times")])
@pytest.mark.parametrize("by", ["physical", "queue"])
def test_a_changed_field(by: str, at: int, field: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    change(b, b.messages[2], at)
    (difference,) = diff(a.root, b.root, by).differences.listed
    assert (difference.kind, difference.fields) == ("different", (field,))


@pytest.mark.parametrize(("at", "field"), [(64, "store_host"), (76, "prepared_transaction_offset")])
def test_where_it_is_stored_counts_when_strict(at: int, field: str,
                                               pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    change(b, b.messages[2], at)
    assert diff(a.root, b.root, "queue").equal
    for options in ({"by": "physical"}, {"by": "queue", "strict": True}):
        (difference,) = diff(a.root, b.root, **options).differences.listed
        assert difference.fields == (field,)


def test_a_damaged_head_costs_one_message(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    lost = b.messages[3]
    change(b, lost, 4)
    run = diff(a.root, b.root)
    (difference,) = run.differences.listed
    assert (difference.kind, difference.physical_offset) == ("missing-in-b", lost.start)
    assert difference.detail.startswith("b is damaged here: invalid magic")
    assert counts(run) == (7, 0, 0, 1)
    assert run.summary["b"]["damaged_spans"] == 1
    assert run.summary["b"]["bytes_damaged"] == len(lost.raw)
    by_queue = diff(a.root, b.root, "queue")
    assert sorted(brief(by_queue)) == [("damaged-in-b", lost.start), ("missing-in-b", lost.start)]


def test_damage_where_the_other_has_nothing(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    for tiny in pair:
        file, position = tiny.place(tiny.messages[3].start)
        damage.zero(tiny.root, file, position, 40)
    file, position = b.place(b.messages[3].start + 8)
    damage.write(b.root, file, position, b"other damage")
    kinds = {"damaged-in-a", "damaged-in-b"}
    assert {difference.kind for difference in diff(a.root, b.root).differences.listed} == kinds


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_every_flip_of_a_bit_is_found_and_costs_one_message(by: str, pair: tuple[Tiny, Tiny],
                                                            seed: int) -> None:
    a, b = pair
    rng = random.Random(seed)
    for _ in range(60):
        number = rng.randrange(len(b.messages))
        message = b.messages[number]
        at, bit = rng.randrange(len(message.raw)), rng.randrange(8)
        change(b, message, at, bit)
        run = diff(a.root, b.root, by)
        if by == "physical":
            assert in_log(run) in ([("different", message.start)],
                                   [("missing-in-b", message.start)])
            assert run.summary["equal"] == len(a.messages) - 1, (number, at, bit)
            assert in_log(diff(b.root, a.root, by)) == swapped(in_log(run))
        elif run.equal:  # what is not part of the message itself
            assert 64 <= at < 72 or 76 <= at < 84, (number, at, bit)
        change(b, message, at, bit)
    assert diff(a.root, b.root, by).equal


def records(root: Path) -> dict[int, bytes]:
    """All provable records of a log by physical offset."""
    with Store.open(root) as store:
        return {int(batch.offset[index]): batch.bytes_at(index)
                for batch in store.log.walk() for index in range(len(batch))}


def by_hand(a: dict[int, bytes], b: dict[int, bytes]) -> list[Brief]:
    """The differences of two logs in the simplest words."""
    out = [("missing-in-b", offset) for offset in a.keys() - b.keys()]
    out += [("missing-in-a", offset) for offset in b.keys() - a.keys()]
    out += [("different", offset) for offset in a.keys() & b.keys() if a[offset] != b[offset]]
    return sorted(out)


def spoil(root: Path, rng: random.Random) -> None:
    """A few changes of any kind anywhere in the log."""
    files = sorted(str(path.relative_to(root)) for path in (root / "commitlog").iterdir())
    for _ in range(rng.randrange(5)):
        file = rng.choice(files)
        size = (root / file).stat().st_size
        at = rng.randrange(size)
        match rng.randrange(6):
            case 0:
                damage.zero(root, file, at, min(rng.randrange(1, 3000), size - at))
            case 1:
                damage.write(root, file, at, rng.randbytes(min(rng.randrange(1, 300), size - at)))
            case 2:
                damage.truncate(root, file, at)
            case 3 if size > 8192:
                damage.swap_pages(root, file, 0, 1)
            case _:
                damage.flip_bit(root, file, at, rng.randrange(8))
        if (root / file).stat().st_size < 8192:
            files.remove(file)


@pytest.mark.parametrize("chunk", [600, 5000, 2 << 20])
@pytest.mark.parametrize("run", sample(range(8), 3, "damage on both sides"))
def test_any_damage_on_both_sides(chunk: int, run: int, golden: GoldenFolder, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "Walk", partial(Walk, chunk=chunk))
    rng = random.Random(run)
    a, b = (copy_tree(golden("4.9.3/crash-base/store"), tmp_path / name) for name in "ab")
    spoil(a, rng)
    spoil(b, rng)
    ours, theirs = records(a), records(b)
    expected = by_hand(ours, theirs)
    difference_report = diff(a, b, "physical", most=10_000)
    messages = sorted(place for place in in_log(difference_report)
                      if not place[0].startswith("damaged"))
    assert messages == expected
    kinds = Counter(kind for kind, _ in expected)
    assert counts(difference_report) == (len(ours.keys() & theirs.keys()) - kinds["different"],
                                         kinds["different"], kinds["missing-in-a"],
                                         kinds["missing-in-b"])
    assert sorted(in_log(diff(b, a, "physical",
                              most=10_000))) == sorted(swapped(in_log(difference_report)))
    by_queue = diff(a, b, "queue", most=10_000, strict=True)
    assert counts(by_queue)[0] == counts(difference_report)[0]
    assert by_queue.summary["a"]["messages"] == len(ours)


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_what_is_not_kept_is_counted(by: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    for message in b.messages[:4]:
        change(b, message, 16)
    change(b, b.messages[5], 4)
    every = diff(a.root, b.root, by)
    for most in range(6):
        run = diff(a.root, b.root, by, most=most)
        assert run.differences.counts == every.differences.counts
        assert len(run.differences.listed) == min(most, every.differences.total)
        assert counts(run) == counts(every) == (3, 4, 0, 1)
