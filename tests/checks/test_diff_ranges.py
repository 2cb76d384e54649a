"""diff: what only one store still has or already has, holes, and what lies around the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.checks.diff.diff import Diff, DiffOptions
from rmqctl.store import Store
from tests.checks.diffing import (
    counts,
    diff,
    earlier,
    in_log,
    long_pair,
    pair,
    swapped,
)
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.tiny import Placed, Spec, Tiny

__all__ = ["long_pair", "pair"]

# -- ranges -------------------------------------------------------------------------------------


def test_a_slave_that_lags(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    cut = b.messages[6]
    file, position = b.place(cut.start)
    damage.zero(b.root, file, position, b.options.commitlog_file_size - position)
    run = diff(a.root, b.root)
    end = cut.start  # where the next message would go
    assert run.remarks == [f"b ends at {end}; a continues to {a.log_end}: 2 messages"]
    assert in_log(run) == [("missing-in-b", message.start) for message in a.messages[6:]]
    assert run.differences.listed[0].detail.startswith("b ends at ")
    assert [(file["store"], file["where"], file["messages"])
            for file in run.summary["outside"]] == [
                ("a", "beyond", 2)]
    by_queue = diff(a.root, b.root, "queue")
    assert sorted(in_log(by_queue)) == in_log(run)
    assert next(difference.detail for difference in by_queue.differences.listed
                if difference.queue_id == 1) == (
                    "the queue ends at 1 in b")


def test_a_log_cut_inside_a_record(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    last = b.messages[-1]
    file, position = b.place(last.start + 20)
    damage.truncate(b.root, file, position)
    run = diff(a.root, b.root)
    assert in_log(run) == [("missing-in-b", last.start)]
    assert swapped(in_log(diff(b.root, a.root))) == in_log(run)


def within(tiny: Tiny, number: int) -> list[Placed]:
    """The messages in a commitlog file."""
    size = tiny.options.commitlog_file_size
    return [message for message in tiny.messages if message.start // size == number]


def test_a_missing_file_in_the_middle(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(b.root, f"commitlog/{2048:020d}")
    run = diff(a.root, b.root)
    assert in_log(run) == [("missing-in-b", difference.start) for difference in within(a, 2)]
    assert run.differences.listed[0].detail == "no file of b covers this offset"
    assert swapped(in_log(diff(b.root, a.root))) == in_log(run)
    assert counts(run) == (10, 0, 0, 2)
    assert sorted(in_log(diff(a.root, b.root, "queue"))) == in_log(run)


def test_a_missing_file_where_the_other_log_ends(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(a.root, f"commitlog/{4096:020d}")
    damage.remove(b.root, f"commitlog/{5120:020d}")
    run = diff(a.root, b.root)
    assert in_log(run) == [*(("missing-in-a", difference.start) for difference in within(a, 4)),
                           *(("missing-in-b", difference.start) for difference in within(a, 5))]


def test_a_file_that_shrinks_meanwhile(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    second = within(b, 3)[1]
    for by in ("physical", "queue"):
        with Store.open(a.root) as left, Store.open(b.root) as right:
            run = Diff(left, right, DiffOptions(by))
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
    assert run.differences.listed[1].fields == ("total_size", "body_crc", "body")


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
    assert [(file["store"], file["where"], file["messages"])
            for file in run.summary["outside"]] == [
                ("a", "before", 2)]
    assert len(run.remarks) == 1
    assert diff(b.root, a.root, by).equal
    whole = diff(a.root, b.root, by, whole=True)
    assert in_log(whole) == [("missing-in-b", difference.start) for difference in within(a, 0)]
    assert swapped(in_log(diff(b.root, a.root, by, whole=True))) == in_log(whole)


def test_nothing_in_common(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    for number in range(6):
        damage.remove((a if number >= 3 else b).root, f"commitlog/{number * 1024:020d}")
    for by in ("auto", "physical"):
        run = diff(a.root, b.root, by)
        assert run.summary["by"] == ("queue" if by == "auto" else by)
        assert in_log(run) == [("missing-in-a", message.start) for message in a.messages[6:]]
        assert counts(run) == (0, 0, 6, 0)
        assert [file["messages"] for file in run.summary["outside"]] == [6, 6]


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


# -- around the log -----------------------------------------------------------------------------


def test_bounds_of_queues(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    damage.remove(b.root, "consumequeue/orders/0/00000000000000000060")
    damage.remove_folder(b.root, "consumequeue/bills/0")
    damage.remove(a.root, "consumequeue/orders/0/00000000000000000000")
    differences = {(difference.topic, difference.queue_id): difference
                   for difference in diff(a.root, b.root).differences.listed}
    assert differences.keys() == {("orders", 0), ("bills", 0)}
    assert differences["orders", 0].fields == ("min_offset", "max_offset")
    assert differences["orders", 0].detail == "a: min 3, max 4; b: min 0, max 3"
    assert differences["bills", 0].detail == "a: min 0, max 2; b: no such queue"


def test_another_beginning_of_a_queue(long_pair: tuple[Tiny, Tiny]) -> None:
    a, b = long_pair
    damage.remove(b.root, "consumequeue/t/0/00000000000000000000")
    (difference,) = diff(a.root, b.root).differences.listed
    assert (difference.queue_id, difference.fields) == (0, ("min_offset",))
    damage.remove(b.root, f"commitlog/{0:020d}")  # now rows may have expired there
    run = diff(a.root, b.root)
    assert run.equal
    assert run.summary["queues"] == {"compared": 2, "different": 0, "begin_differs": 2}
    assert diff(a.root, b.root, whole=True).differences.counts["queue"] == 2


def test_configuration_and_checkpoint_are_named(pair: tuple[Tiny, Tiny]) -> None:
    a, b = pair
    names = sorted(path.name for path in (a.root / "config").iterdir() if path.suffix == ".json")
    with (b.root / "config" / names[0]).open("ab") as file:
        file.write(b"}")
    (b.root / "config" / names[1]).unlink()
    (a.root / "config/topics.json.bak").write_bytes(b"whatever")
    damage.write(b.root, "checkpoint", 8, bytes(8))
    run = diff(a.root, b.root)
    assert run.equal
    assert run.summary["config"] == {"same": len(names) - 2, "different": [names[0]],
                                     "only_in_a": [names[1]], "only_in_b": []}
    assert run.summary["checkpoint"]["different"] == ["logics_msg_timestamp"]
    whole = diff(a.root, b.root, whole=True)
    assert [difference.file for difference in whole.differences.listed] == [f"config/{name}"
                                                                            for name in names[:2]]
