"""diff: whatever is not the same is found, nothing else is, and both stores are treated alike."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks import diff_queue, diff_side
from rmqctl.checks.diff import Diff, Options
from rmqctl.formats import sysflag
from rmqctl.scan.walk import Walk
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.snapshot import copy_tree
from tests.support.tiny import DEFAULT, Placed, Spec, Tiny

CLEAN = [pytest.param(each, id=each.id) for each in golden_sets.clean_stores()]
MIRROR = {"missing-in-a": "missing-in-b", "missing-in-b": "missing-in-a",
          "damaged-in-a": "damaged-in-b", "damaged-in-b": "damaged-in-a"}
Told = tuple[str, int | None]


def diff(a: Path, b: Path, by: str = "auto", *, dirs: Sequence[str] = (),
         dirs_b: Sequence[str] | None = None, **options: Any) -> Diff:
    with Store.open(a, dirs) as left, Store.open(b, dirs if dirs_b is None else dirs_b) as right:
        run = Diff(left, right, Options(by, **options))
        run.run()
        return run


def told(run: Diff) -> list[Told]:
    return [(one.kind, one.physical_offset) for one in run.differences.kept]


def in_log(run: Diff) -> list[Told]:
    return [(one.kind, one.physical_offset) for one in run.differences.kept
            if one.structure == "commitlog"]


def swapped(found: Iterable[Told]) -> list[Told]:
    return [(MIRROR.get(kind, kind), offset) for kind, offset in found]


def counts(run: Diff) -> tuple[int, int, int, int]:
    return tuple(run.summary[name] for name in (  # type: ignore[return-value]
        "equal", "different", "missing_in_a", "missing_in_b"))


@pytest.fixture
def pair(tiny: Tiny, tmp_path: Path) -> tuple[Tiny, Tiny]:
    """The tiny store twice."""
    return tiny, tiny.moved(copy_tree(tiny.root, tmp_path / "b"))


def change(tiny: Tiny, one: Placed, at: int, bit: int = 0) -> None:
    file, position = tiny.place(one.start + at)
    damage.flip_bit(tiny.root, file, position, bit)


# -- nothing differs ----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["physical", "queue"])
@pytest.mark.parametrize("each", CLEAN)
def test_a_store_equals_itself(each: golden_sets.GoldenStore, by: str,
                               golden: GoldenFolder) -> None:
    root = golden(each.id)
    run = diff(root, root, by, dirs=each.commitlog_dirs if each.options else (), whole=True)
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
    assert run.remarks == ["1 damaged spans are alike in both"]
    assert counts(run) == (7, 0, 0, 0)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_one_log_in_one_folder_or_in_two(version: str, golden: GoldenFolder,
                                         tmp_path: Path) -> None:
    root = golden(f"{version}/multipath/store")
    one = copy_tree(root, tmp_path / "one")
    (one / "commitlog").mkdir()
    for file in [*(one / "cl1").iterdir(), *(one / "cl2").iterdir()]:
        file.rename(one / "commitlog" / file.name)
    run = diff(root, one, dirs=("cl1", "cl2"), dirs_b=("commitlog",))
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
    (found,) = run.differences.kept
    assert (found.kind, found.physical_offset, found.fields) == (
        "different", changed.start, ("body",))
    assert (found.topic, found.queue_id, found.queue_offset) == ("orders", 1, 0)
    assert found.unique_key == changed.spec.properties["UNIQ_KEY"]
    assert found.msg_id == changed.record.message_id
    assert "the body in b does not match its CRC" in found.detail
    assert counts(run) == (7, 1, 0, 0)
    assert run.differences.total == 1


@pytest.mark.parametrize("by", ["physical", "queue"])
@pytest.mark.parametrize(("text", "field"), [
    (b"KEYS\x01k1\x02", "properties.KEYS"), (b"TAGS\x01B", "properties.TAGS")])
def test_a_changed_property(by: str, text: bytes, field: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    changed = b.messages[1]
    change(b, changed, changed.raw.index(text) + 5)
    (found,) = diff(a.root, b.root, by).differences.kept
    assert found.fields == (field,)


@pytest.mark.parametrize(("at", "field"), [
    (8, "body_crc"), (16, "flag"), (40, "born_timestamp"), (50, "born_host"),
    (56, "store_timestamp"), (72, "reconsume_times")])
@pytest.mark.parametrize("by", ["physical", "queue"])
def test_a_changed_field(by: str, at: int, field: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    change(b, b.messages[2], at)
    (found,) = diff(a.root, b.root, by).differences.kept
    assert (found.kind, found.fields) == ("different", (field,))


@pytest.mark.parametrize(("at", "field"), [(64, "store_host"), (76, "prepared_transaction_offset")])
def test_where_it_is_stored_counts_when_strict(at: int, field: str,
                                               pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    change(b, b.messages[2], at)
    assert diff(a.root, b.root, "queue").equal
    for options in ({"by": "physical"}, {"by": "queue", "strict": True}):
        (found,) = diff(a.root, b.root, **options).differences.kept
        assert found.fields == (field,)


def test_a_damaged_head_costs_one_message(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    lost = b.messages[3]
    change(b, lost, 4)
    run = diff(a.root, b.root)
    (found,) = run.differences.kept
    assert (found.kind, found.physical_offset) == ("missing-in-b", lost.start)
    assert found.detail.startswith("b is damaged here: no message magic")
    assert counts(run) == (7, 0, 0, 1)
    assert run.summary["b"]["damaged_spans"] == 1
    assert run.summary["b"]["bytes_damaged"] == len(lost.raw)
    by_queue = diff(a.root, b.root, "queue")
    assert sorted(told(by_queue)) == [("damaged-in-b", lost.start), ("missing-in-b", lost.start)]


def test_damage_where_the_other_has_nothing(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    for tiny in pair:
        file, position = tiny.place(tiny.messages[3].start)
        damage.zero(tiny.root, file, position, 40)
    file, position = b.place(b.messages[3].start + 8)
    damage.write(b.root, file, position, b"other damage")
    kinds = {"damaged-in-a", "damaged-in-b"}
    assert {one.kind for one in diff(a.root, b.root).differences.kept} == kinds


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_every_flip_of_a_bit_is_found_and_costs_one_message(by: str, pair: tuple[Tiny, Tiny],
                                                            seed: int) -> None:
    a, b = pair
    rng = random.Random(seed)
    for _ in range(60):
        number = rng.randrange(len(b.messages))
        one = b.messages[number]
        at, bit = rng.randrange(len(one.raw)), rng.randrange(8)
        change(b, one, at, bit)
        run = diff(a.root, b.root, by)
        if by == "physical":
            assert in_log(run) in ([("different", one.start)], [("missing-in-b", one.start)])
            assert run.summary["equal"] == len(a.messages) - 1, (number, at, bit)
            assert in_log(diff(b.root, a.root, by)) == swapped(in_log(run))
        elif run.equal:  # what is not part of the message itself
            assert 64 <= at < 72 or 76 <= at < 84, (number, at, bit)
        change(b, one, at, bit)
    assert diff(a.root, b.root, by).equal


def records(root: Path) -> dict[int, bytes]:
    """All provable records of a log by physical offset."""
    with Store.open(root) as store:
        return {int(batch.offset[index]): batch.bytes_at(index)
                for batch in store.log.walk() for index in range(len(batch))}


def by_hand(a: dict[int, bytes], b: dict[int, bytes]) -> list[Told]:
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
@pytest.mark.parametrize("run", range(8))
def test_any_damage_on_both_sides(chunk: int, run: int, golden: GoldenFolder, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_side, "Walk", partial(Walk, chunk=chunk))
    rng = random.Random(run)
    a, b = (copy_tree(golden("4.9.3/crash-base/store"), tmp_path / name) for name in "ab")
    spoil(a, rng)
    spoil(b, rng)
    ours, theirs = records(a), records(b)
    expected = by_hand(ours, theirs)
    found = diff(a, b, "physical", most=10_000)
    messages = sorted(one for one in in_log(found) if not one[0].startswith("damaged"))
    assert messages == expected
    kinds = Counter(kind for kind, _ in expected)
    assert counts(found) == (len(ours.keys() & theirs.keys()) - kinds["different"],
                             kinds["different"], kinds["missing-in-a"], kinds["missing-in-b"])
    assert sorted(in_log(diff(b, a, "physical", most=10_000))) == sorted(swapped(in_log(found)))
    by_queue = diff(a, b, "queue", most=10_000, strict=True)
    assert counts(by_queue)[0] == counts(found)[0]
    assert by_queue.summary["a"]["messages"] == len(ours)


# -- ranges -------------------------------------------------------------------------------------


def test_a_slave_that_lags(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    cut = b.messages[6]
    file, position = b.place(cut.start)
    damage.zero(b.root, file, position, b.options.commitlog_file_size - position)
    run = diff(a.root, b.root)
    end = cut.start  # where the next message would go
    assert run.remarks == [f"b ends at {end}, a goes on to {a.log_end}: 2 messages"]
    assert in_log(run) == [("missing-in-b", one.start) for one in a.messages[6:]]
    assert run.differences.kept[0].detail.startswith("b ends at ")
    assert [(one["store"], one["where"], one["messages"]) for one in run.summary["outside"]] == [
        ("a", "behind", 2)]
    by_queue = diff(a.root, b.root, "queue")
    assert sorted(in_log(by_queue)) == in_log(run)
    assert next(one.detail for one in by_queue.differences.kept if one.queue_id == 1) == (
        "the queue ends at 1 in b")


def test_a_log_cut_inside_a_record(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    last = b.messages[-1]
    file, position = b.place(last.start + 20)
    damage.truncate(b.root, file, position)
    run = diff(a.root, b.root)
    assert in_log(run) == [("missing-in-b", last.start)]
    assert swapped(in_log(diff(b.root, a.root))) == in_log(run)


@pytest.fixture
def long_pair(tmp_path: Path) -> tuple[Tiny, Tiny]:
    """Twelve messages over six files, twice."""
    specs = [Spec("t", number % 2, bytes([number]) * 300) for number in range(12)]
    a = tiny_stores.build(tmp_path / "a", specs)
    assert len(a.files("commitlog")) == 6
    return a, a.moved(copy_tree(a.root, tmp_path / "b"))


def within(tiny: Tiny, number: int) -> list[Placed]:
    """The messages in a commitlog file."""
    size = tiny.options.commitlog_file_size
    return [one for one in tiny.messages if one.start // size == number]


def test_a_missing_file_in_the_middle(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(b.root, f"commitlog/{2048:020d}")
    run = diff(a.root, b.root)
    assert in_log(run) == [("missing-in-b", one.start) for one in within(a, 2)]
    assert run.differences.kept[0].detail == "no file of b covers this offset"
    assert swapped(in_log(diff(b.root, a.root))) == in_log(run)
    assert counts(run) == (10, 0, 0, 2)
    assert sorted(in_log(diff(a.root, b.root, "queue"))) == in_log(run)


def test_a_missing_file_where_the_other_log_ends(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(a.root, f"commitlog/{4096:020d}")
    damage.remove(b.root, f"commitlog/{5120:020d}")
    run = diff(a.root, b.root)
    assert in_log(run) == [*(("missing-in-a", one.start) for one in within(a, 4)),
                           *(("missing-in-b", one.start) for one in within(a, 5))]


def test_a_file_that_shrinks_meanwhile(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    second = within(b, 3)[1]
    for by in ("physical", "queue"):
        with Store.open(a.root) as left, Store.open(b.root) as right:
            run = Diff(left, right, Options(by))
            assert right.log.files[3].size == 1024  # as it was when the store was opened
            damage.truncate(b.root, f"commitlog/{3072:020d}", second.start - 3072)
            run.run()
        assert in_log(run) == [("missing-in-b", second.start)]
        damage.change_length(b.root, f"commitlog/{3072:020d}", 1024 - second.start + 3072)
        damage.write(b.root, f"commitlog/{3072:020d}", second.start - 3072, second.raw)
    assert diff(a.root, b.root).equal


def test_logs_that_parted(tmp_path: Path) -> None:
    """Two messages in the place of one, and then the same again."""
    overhead = len(tiny_stores.build(tmp_path / "x", [Spec("t")]).messages[0].raw)
    last = Spec("t", 1, b"last")
    a = tiny_stores.build(tmp_path / "a", [Spec("t", 1, b"first"), Spec("t", 0, b"x" * 400), last])
    b = tiny_stores.build(tmp_path / "b", [
        Spec("t", 1, b"first"), Spec("t", 0, b"y" * 100), Spec("t", 2, b"z" * (300 - overhead)),
        last])
    earlier(b, only=b.messages[3])
    run = diff(a.root, b.root, "physical")
    assert in_log(run) == [("missing-in-a", b.messages[2].start),
                           ("different", a.messages[1].start)]
    assert run.summary["equal"] == 2
    assert run.differences.kept[1].fields == ("total_size", "body_crc", "body")


def test_a_short_file(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    second = within(b, 3)[1]
    damage.truncate(b.root, f"commitlog/{3072:020d}", second.start - 3072 + 50)
    run = diff(a.root, b.root)
    assert in_log(run) == [("missing-in-b", second.start)]
    assert swapped(in_log(diff(b.root, a.root))) == in_log(run)


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_an_expired_head_is_only_mentioned(by: str, long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(b.root, f"commitlog/{0:020d}")
    run = diff(a.root, b.root, by)
    assert run.equal
    assert [(one["store"], one["where"], one["messages"]) for one in run.summary["outside"]] == [
        ("a", "before", 2)]
    assert len(run.remarks) == 1
    assert diff(b.root, a.root, by).equal
    whole = diff(a.root, b.root, by, whole=True)
    assert in_log(whole) == [("missing-in-b", one.start) for one in within(a, 0)]
    assert swapped(in_log(diff(b.root, a.root, by, whole=True))) == in_log(whole)


def test_nothing_in_common(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    for number in range(6):
        damage.remove((a if number >= 3 else b).root, f"commitlog/{number * 1024:020d}")
    run = diff(a.root, b.root)
    assert in_log(run) == [("missing-in-a", one.start) for one in a.messages[6:]]
    assert counts(run) == (0, 0, 6, 0)
    assert [one["messages"] for one in run.summary["outside"]] == [6, 6]


def test_an_empty_store(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    shutil.rmtree(b.root / "commitlog")
    for by in ("physical", "queue"):
        run = diff(a.root, b.root, by)
        assert counts(run) == (0, 0, 0, 8)
    assert diff(b.root, b.root).equal


def test_a_preallocated_file_is_no_difference(tmp_path: Path) -> None:
    a = tiny_stores.build(tmp_path / "a")
    b = tiny_stores.build(tmp_path / "b", preallocated=2)
    assert diff(a.root, b.root).equal
    assert diff(b.root, a.root).equal


def test_what_follows_a_blank_is_no_difference(tmp_path: Path) -> None:
    a = tiny_stores.build(tmp_path / "a")
    b = tiny_stores.build(tmp_path / "b", stale_blank=True)
    assert diff(a.root, b.root).equal


# -- by queue -----------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["plain", "sealed"])
def moved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Tiny, Tiny]:
    """A store, and one that has a message of another topic in front, on another host."""
    specs = [*DEFAULT, Spec("half", 0, b"p", sys_flag=sysflag.TRANSACTION_PREPARED),
             Spec("half", 0, b"q", sys_flag=sysflag.TRANSACTION_PREPARED)]
    first = Spec("first", 0, b"in front")
    a = tiny_stores.build(tmp_path / "a", specs, append_crc=request.param)
    elsewhere = [replace(one, store="[::2]:10911") for one in (first, *specs)]
    b = tiny_stores.build(tmp_path / "b", elsewhere, append_crc=request.param)
    earlier(b)
    return a, b


def earlier(tiny: Tiny, only: Placed | None = None) -> None:
    """Takes from all times the step that one more message in front has added."""
    for one in tiny.messages if only is None else [only]:
        file, position = tiny.place(one.start)
        record = one.record
        for at, value in ((40, record.born_timestamp), (56, record.store_timestamp)):
            damage.write(tiny.root, file, position + at,
                         (value - tiny_stores.STEP).to_bytes(8, "big"))


def test_a_moved_store_has_the_same_messages(moved: tuple[Tiny, Tiny]) -> None:
    a, b = moved
    run = diff(a.root, b.root)
    assert run.summary["by"] == "queue"
    assert in_log(run) == [("missing-in-a", 0)]
    assert counts(run) == (10, 0, 1, 0)
    assert counts(diff(b.root, a.root)) == (10, 0, 0, 1)
    assert counts(diff(a.root, b.root, strict=True)) == (0, 10, 1, 0)


def test_a_change_in_a_moved_store(moved: tuple[Tiny, Tiny]) -> None:
    a, b = moved
    changed = b.messages[2]
    change(b, changed, changed.raw.index(b"second"))
    found = next(one for one in diff(a.root, b.root).differences.kept if one.kind == "different")
    assert (found.physical_offset, found.physical_offset_b) == (a.messages[1].start, changed.start)
    assert found.msg_id != found.msg_id_b
    assert found.fields == ("body",)


def test_another_order_of_properties_is_the_same_message(tmp_path: Path) -> None:
    forward = {"UNIQ_KEY": "A", "KEYS": "k", "TAGS": "t"}
    stores = [tiny_stores.build(tmp_path / name, [Spec("t", 0, b"x", known)] * 3)
              for name, known in (("a", forward), ("b", dict(reversed(forward.items()))))]
    assert counts(diff(stores[0].root, stores[1].root, "queue")) == (3, 0, 0, 0)
    physical = diff(stores[0].root, stores[1].root, "physical")
    assert counts(physical) == (0, 3, 0, 0)
    assert physical.differences.kept[0].fields == ("properties",)


@pytest.mark.parametrize("block", [1, 3, 1 << 16])
def test_another_order_of_queues(block: int, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """The second log has all of one queue before the other one."""
    monkeypatch.setattr(diff_queue, "_BLOCK", block)
    specs = [Spec("t", number % 3, b"%d" % number) for number in range(60)]
    a = tiny_stores.build(tmp_path / "a", specs)
    b = tiny_stores.build(tmp_path / "b", sorted(specs, key=lambda one: one.queue_id))
    for tiny in (a, b):
        times_of_their_own(tiny)
    assert counts(diff(a.root, b.root, "queue")) == (60, 0, 0, 0)
    change(b, b.messages[30], 16)
    assert counts(diff(a.root, b.root, "queue")) == (59, 1, 0, 0)


def times_of_their_own(tiny: Tiny) -> None:
    """Times are in the order of the log; here they shall belong to the message: its body."""
    for one in tiny.messages:
        file, position = tiny.place(one.start)
        when = (tiny_stores.EPOCH + int(one.spec.body)).to_bytes(8, "big")
        damage.write(tiny.root, file, position + 40, when)
        damage.write(tiny.root, file, position + 56, when)


def test_keys_are_exact(tmp_path: Path) -> None:
    """A queue offset beyond all queues is none of the next queue's, a prepared message not the
    first one of its queue."""
    odd, first = Spec("t", 0, b"1"), Spec("t", 1, b"2")
    half = Spec("u", 0, b"3", sys_flag=sysflag.TRANSACTION_PREPARED)
    done = Spec("u", 0, b"4", sys_flag=sysflag.TRANSACTION_COMMIT)
    a = tiny_stores.build(tmp_path / "a", [odd, first, half, done])
    b = tiny_stores.build(tmp_path / "b", [first, odd, done, half])
    for tiny in (a, b):
        times_of_their_own(tiny)
        one = next(one for one in tiny.messages if one.spec is odd)
        change(tiny, one, 22)  # 1 << 40
    assert counts(diff(a.root, b.root, "queue")) == (4, 0, 0, 0)


@pytest.mark.parametrize("kept", [True, False])
def test_a_queue_that_has_expired_as_a_whole(kept: bool, tmp_path: Path) -> None:
    """Its consumequeue says so; without it nobody can know."""
    specs = [*[Spec("early", 0, b"x" * 300)] * 4, *[Spec("late", 0, b"x" * 300)] * 4]
    a = tiny_stores.build(tmp_path / "a", specs)
    b = tiny_stores.build(tmp_path / "b", specs, expired_files=2)
    if not kept:
        damage.remove_folder(b.root, "consumequeue/early")
    run = diff(a.root, b.root, "queue")
    assert run.equal is kept
    assert counts(run) == (4, 0, 0, 0 if kept else 4)
    assert [(one["where"], one["messages"]) for one in run.summary["outside"]] == [
        ("before" if kept else "behind", 4)]


def test_a_message_that_is_there_twice(pair: tuple[Tiny, Tiny]) -> None:
    """Two messages of one queue offset, as a broker that lost its table writes them."""
    a, b = pair
    again = b.messages[3]  # queue offset 1 of its queue becomes 0
    file, position = b.place(again.start + 20)
    damage.write(b.root, file, position, bytes(8))
    run = diff(a.root, b.root, "queue")
    assert sorted(in_log(run)) == [("missing-in-a", again.start), ("missing-in-b", again.start)]
    assert counts(run) == (7, 0, 1, 1)
    assert counts(diff(b.root, b.root, "queue")) == (8, 0, 0, 0)


def test_an_absurd_queue_offset(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    for at in (20, 21):  # the highest bytes of the queue offset
        change(b, b.messages[3], at, 6)
    run = diff(a.root, b.root, "queue")
    assert counts(run) == (7, 0, 1, 1)
    assert counts(diff(b.root, b.root, "queue")) == (8, 0, 0, 0)


# -- around the log -----------------------------------------------------------------------------


def test_bounds_of_queues(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    damage.remove(b.root, "consumequeue/orders/0/00000000000000000060")
    damage.remove_folder(b.root, "consumequeue/bills/0")
    damage.remove(a.root, "consumequeue/orders/0/00000000000000000000")
    found = {(one.topic, one.queue_id): one for one in diff(a.root, b.root).differences.kept}
    assert found.keys() == {("orders", 0), ("bills", 0)}
    assert found["orders", 0].fields == ("min_offset", "max_offset")
    assert found["orders", 0].detail == "a: min 3, max 4; b: min 0, max 3"
    assert found["bills", 0].detail == "a: min 0, max 2; b: no such queue"


def test_another_beginning_of_a_queue(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(b.root, "consumequeue/t/0/00000000000000000000")
    (found,) = diff(a.root, b.root).differences.kept
    assert (found.queue_id, found.fields) == (0, ("min_offset",))
    damage.remove(b.root, f"commitlog/{0:020d}")  # now rows may have expired there
    run = diff(a.root, b.root)
    assert run.equal
    assert run.summary["queues"] == {"compared": 2, "different": 0, "begin_differs": 2}
    assert diff(a.root, b.root, whole=True).differences.counts["queue"] == 2


def test_configuration_and_checkpoint_are_named(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    names = sorted(path.name for path in (a.root / "config").iterdir() if path.suffix == ".json")
    with (b.root / "config" / names[0]).open("ab") as file:
        file.write(b" ")
    (b.root / "config" / names[1]).unlink()
    (a.root / "config/topics.json.bak").write_bytes(b"whatever")
    damage.write(b.root, "checkpoint", 8, bytes(8))
    run = diff(a.root, b.root)
    assert run.equal
    assert run.summary["config"] == {"same": len(names) - 2, "different": [names[0]],
                                     "only_in_a": [names[1]], "only_in_b": []}
    assert run.summary["checkpoint"]["different"] == ["logics_msg_timestamp"]
    whole = diff(a.root, b.root, whole=True)
    assert [one.file for one in whole.differences.kept] == [f"config/{one}" for one in names[:2]]


@pytest.mark.parametrize("by", ["physical", "queue"])
def test_what_is_not_kept_is_counted(by: str, pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    for one in b.messages[:4]:
        change(b, one, 16)
    change(b, b.messages[5], 4)
    every = diff(a.root, b.root, by)
    for most in range(6):
        run = diff(a.root, b.root, by, most=most)
        assert run.differences.counts == every.differences.counts
        assert len(run.differences.kept) == min(most, every.differences.total)
        assert counts(run) == counts(every) == (3, 4, 0, 1)
