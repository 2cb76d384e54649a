"""`rmqctl diff`: outputs, options and exit codes; what is found is in tests/checks/test_diff.py."""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import damage
from tests.support.cli import MIB, Result
from tests.support.snapshot import assert_unchanged, copy_tree
from tests.support.tiny import Tiny, build

Run = Callable[..., Result]


@pytest.fixture
def pair(tiny: Tiny, tmp_path: Path) -> tuple[Path, Path]:
    """A store and its copy in which the second message's body is damaged, the fourth's head."""
    copy = tiny.moved(copy_tree(tiny.root, tmp_path / "b"))
    for changed_message, at in ((tiny.messages[1], tiny.messages[1].raw.index(b"second")),
                                (tiny.messages[3], 4)):
        file, position = copy.place(changed_message.start + at)
        damage.flip_bit(copy.root, file, position, 0)
    return tiny.root, copy.root


def test_equal_stores(tiny: Tiny, rmqctl: Run) -> None:
    result = rmqctl("diff", tiny.root, tiny.root, "-o", "json").expect(0)
    document = result.json()
    assert document["equal"] is True
    assert document["differences"] == []
    assert document["summary"]["equal"] == 8
    assert not result.err
    assert "no differences" in rmqctl("diff", tiny.root, tiny.root).expect(0).out


def test_json(pair: tuple[Path, Path], tiny: Tiny, rmqctl: Run) -> None:
    document = rmqctl("diff", *pair, "-o", "json").expect(1).json()
    assert document["equal"] is False
    assert document["differences_total"] == 2
    assert document["counts"] == [{"kind": "different", "count": 1},
                                  {"kind": "missing-in-b", "count": 1}]
    first, second = document["differences"]
    message = tiny.messages[1]
    assert {name: first[name] for name in (
        "kind", "structure", "physical_offset", "topic", "queue_id", "queue_offset", "msg_id",
        "fields")} == {
            "kind": "different", "structure": "commitlog", "physical_offset": message.start,
            "topic": "orders", "queue_id": 1, "queue_offset": 0,
            "msg_id": message.record.message_id, "fields": ["body"]}
    assert second["kind"] == "missing-in-b"
    assert second["length"] == len(tiny.messages[3].raw)
    summary = document["summary"]
    assert summary["by"] == "physical"
    assert summary["compared"] == {"from": 0, "to": tiny.log_end}
    assert summary["b"]["damaged_spans"] == 1


def test_the_other_formats(pair: tuple[Path, Path], rmqctl: Run) -> None:
    rows = rmqctl("diff", *pair, "-o", "jsonl").expect(1).jsonl()
    assert [row["kind"] for row in rows] == ["different", "missing-in-b"]
    table = list(csv.DictReader(io.StringIO(rmqctl("diff", *pair, "-o", "csv").expect(1).out)))
    assert [row["physical_offset"] for row in table] == [str(row["physical_offset"])
                                                         for row in rows]
    for name in ("plain", "table", "markdown"):
        output = rmqctl("diff", *pair, "-o", name).expect(1).out
        assert "2 differences" in output
        assert "orders/1 #0" in output
        assert "missing-in-b" in output


def test_max_differences(pair: tuple[Path, Path], rmqctl: Run) -> None:
    result = rmqctl("diff", *pair, "-o", "json", "--max-differences", "1").expect(1)
    assert len(result.json()["differences"]) == 1
    assert result.json()["differences_total"] == 2
    assert "not listed: 1 (" in result.err
    nothing = rmqctl("diff", *pair, "-o", "json", "--max-differences", "0").expect(1)
    assert nothing.json()["differences"] == []


def test_the_lag_of_a_slave_is_named(tiny: Tiny, tmp_path: Path, rmqctl: Run) -> None:
    copy = tiny.moved(copy_tree(tiny.root, tmp_path / "b"))
    last = copy.messages[-1]
    file, position = copy.place(last.start)
    damage.zero(copy.root, file, position, len(last.raw))
    result = rmqctl("diff", tiny.root, copy.root).expect(1)
    assert f"b ends at {last.start}; a continues to {tiny.log_end}: 1 message" in result.out


def test_pairing_is_chosen_and_can_be_forced(golden: GoldenFolder, rmqctl: Run) -> None:
    stores = golden("4.9.3/basic/store"), golden("5.3.3/basic/store")
    answer = rmqctl("diff", *stores, "-o", "json").expect(0).json()
    assert answer["summary"]["by"] == "queue"
    assert answer["summary"]["remarks"][0].startswith("the logs have different")
    assert rmqctl("diff", *stores, "--by", "physical", "-q").expect(1)
    assert rmqctl("diff", *stores, "--by", "queue", "--strict", "-q").expect(1)
    rmqctl("diff", *stores, "--by", "physical", "--strict").expect(2)


def test_view(golden: GoldenFolder, rmqctl: Run) -> None:
    stores = golden("4.9.3/clean-crc/before"), golden("4.9.3/clean-crc/after")
    rmqctl("diff", *stores).expect(1)
    rmqctl("diff", *stores, "--view", "broker").expect(0)


def test_logs_in_several_folders(tmp_path: Path, rmqctl: Run) -> None:
    root = build(tmp_path / "one").root
    two = build(tmp_path / "two", commitlog_dirs=("cl1", "cl2")).root
    b = ["--commitlog-dir-b", "cl1", "--commitlog-dir-b", "cl2"]
    both = ["--commitlog-dir", "cl1", "--commitlog-dir", "cl2"]
    rmqctl("diff", root, two).expect(0)  # found by themselves
    rmqctl("diff", root, two, *b).expect(0)
    rmqctl("diff", two, two, *both).expect(0)
    rmqctl("diff", two, root, *both, "--commitlog-dir-b", "commitlog").expect(0)


def test_store_from_the_environment(pair: tuple[Path, Path], rmqctl: Run) -> None:
    a, b = pair
    answer = rmqctl("diff", b, "-o", "json", env={"RMQCTL_STORE": str(a)}).expect(1).json()
    assert (answer["summary"]["a"]["store"], answer["summary"]["b"]["store"]) == (str(a), str(b))
    rmqctl("diff", b).expect(2)


def test_no_store(tiny: Tiny, tmp_path: Path, rmqctl: Run) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    for stores in ((tiny.root, nothing), (nothing, tiny.root), (tiny.root, tmp_path / "absent")):
        rmqctl("diff", *stores).expect(3)


def test_a_held_store_is_a_moving_picture(tiny: Tiny, rmqctl_process: Run) -> None:
    with (tiny.root / "lock").open("r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        result = rmqctl_process("diff", tiny.root, tiny.root).expect(0)
    assert "holds store a" in result.err
    assert "holds store b" in result.err


def test_nothing_is_written_and_little_is_kept(golden: GoldenFolder, tmp_path: Path,
                                               rmqctl_process: Run) -> None:
    a, b = golden("5.3.3/crash-crc-prev/before"), copy_tree(
        golden("5.3.3/crash-crc-prev/after"), tmp_path / "b")
    with assert_unchanged(a, b):
        for by in ("physical", "queue"):
            rmqctl_process("diff", a, b, "--by", by, memory=2048 * MIB).expect(1)


def test_differences_that_follow_each_other_are_one_row(golden: GoldenFolder, rmqctl: Run) -> None:
    pair = [golden("5.3.3/crash-crc/before"), golden("5.3.3/crash-trunc-header/after")]
    listed = rmqctl("diff", *pair, "-o", "json").expect(1).json()["differences"]
    missing = [difference for difference in listed if difference["kind"] == "missing-in-b"]
    assert len(missing) == 17
    page = rmqctl("diff", *pair, "-o", "plain").expect(1).out
    rows = [line for line in page.splitlines() if line.startswith("missing-in-b")]
    end = missing[-1]["physical_offset"] + missing[-1]["length"]
    assert len(rows) == 1
    assert f"{missing[0]['physical_offset']} to {end}" in rows[0]
    assert "4 queues of TP_bill_Event9, TP_pay_Topic" in rows[0]
    assert "17 messages" in rows[0]


def test_what_next_looks_at_the_damaged_store(pair: tuple[Path, Path], rmqctl: Run) -> None:
    answer = rmqctl("diff", *pair, "-o", "json").expect(1).json()
    assert answer["next"] == [f"rmqctl verify {pair[1]}"]
    assert answer["next"][0] in rmqctl("diff", *pair).expect(1).out
    assert rmqctl("diff", pair[0], pair[0], "-o", "json").expect(0).json()["next"] == []


def test_only_offsets_differ(golden: GoldenFolder, tmp_path: Path, rmqctl: Run) -> None:
    """The layout of a JSON file is no difference, and the offsets are what to look at next."""
    store, copy = (copy_tree(golden("4.9.3/basic/store"), tmp_path / name) for name in "ab")
    topic = next((store / "consumequeue").iterdir()).name
    path = copy / "config/consumerOffset.json"
    for root in (store, copy):
        (root / "config").mkdir(exist_ok=True)
    path.write_text(f'{{"offsetTable":{{"{topic}@billing":{{0:5,1:4}}}}}}')
    table = {"offsetTable": {f"{topic}@billing": {"0": 5, "1": 4}}}
    (store / "config/consumerOffset.json").write_text(json.dumps(table, indent=2))
    assert rmqctl("diff", store, copy, "--whole", "-o", "json").expect(0).json()["next"] == []
    path.write_text(path.read_text().replace("0:5", "0:3"))
    wanted = [f"rmqctl offsets diff {copy} {store}"]
    assert rmqctl("diff", copy, store, "-o", "json").expect(0).json()["next"] == wanted
    assert rmqctl("diff", copy, store, "--whole", "-o", "json").expect(1).json()["next"] == wanted
    result = rmqctl("offsets", "diff", copy, store).expect(1)
    assert f"rmqctl offsets import {copy} {store} --max" in result.err
    plan = rmqctl("offsets", "import", copy, store, "--max").expect(0)
    assert "unread only in this store" in " ".join(plan.err.split())
    assert "offsets import" not in rmqctl("offsets", "diff", store, copy).expect(1).err
