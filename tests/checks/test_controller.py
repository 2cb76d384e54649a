"""Epochs of the controller mode: read, verified, compared, and cut with the log."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

import pytest

from rmqctl.formats.config import epoch
from rmqctl.formats.config.epoch import Epoch
from rmqctl.store.controller import agreement
from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.snapshot import assert_unchanged, copy_tree

EPOCHS = "epochFileCheckpoint"
HAS = [Epoch(1, 0), Epoch(2, 25077), Epoch(5, 36022)]
END = 42709


@pytest.fixture
def store(golden_copy: GoldenFolder) -> Path:
    return golden_copy("5.3.3/controller/store")


def findings_of(store: Path) -> list[tuple[str, str]]:
    findings = run("verify", store, "-o", "json").expect(0, 1).json()["findings"]
    return [(finding["category"], finding["severity"]) for finding in findings]


def test_epochs_as_the_engine_wrote_them(golden: GoldenFolder) -> None:
    store = golden("5.3.3/controller/store")
    with assert_unchanged(store):
        controller = run("info", store, "-o", "json").expect(0).json()["controller"]
        rows = run("config", store, "epochs", "-o", "json").expect(0).json()
        assert findings_of(store) == []
    assert controller["identity"] == {"cluster": "DefaultCluster", "broker_name": "broker-a",
                                      "broker_id": 1, "register_check_code": None}
    assert controller["epochs"] == rows == [
        {"epoch": epoch.epoch, "start_offset": epoch.start_offset, "end_offset": end}
        for epoch, end in zip(HAS, (25077, 36022, END), strict=True)]
    assert (store / EPOCHS).read_bytes() == epoch.build(HAS)


def test_the_engines_answers(golden: GoldenFolder) -> None:
    """The log and the queues of a store in controller mode are read as any other's."""
    store = golden("5.3.3/controller/store")
    expected = json.loads((store.parent / "expect.json").read_text())
    info = run("info", store, "-o", "json").expect(0).json()
    assert (info["min_phy_offset"], info["max_phy_offset"], info["messages"]) == (
        expected["minPhyOffset"], expected["maxPhyOffset"], expected["readableTotal"])
    ours = {(topic["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
            for topic in info["topics"] for queue in topic["queues"]}
    assert ours == {(queue["topic"], queue["queueId"]): (queue["min"], queue["max"])
                    for queue in expected["queues"]}


@pytest.mark.parametrize(("epochs", "expected"), [
    ([*HAS[:2], Epoch(5, 36023)], [("epoch-start", "error")]),       # inside of a record
    ([*HAS, Epoch(6, END)], []),                                     # nothing written since
    ([*HAS, Epoch(6, END + 1)], [("epoch-start", "error")]),
    ([Epoch(2, 0), Epoch(2, 25077)], [("epoch-file", "error")]),
    ([Epoch(1, 25077), Epoch(2, 25077)], [("epoch-file", "error")]),
    ([Epoch(1, 16278), Epoch(2, 16384)], [])])                       # a blank, a file's start
def test_epochs_against_the_log(store: Path, epochs: list[Epoch],
                                expected: list[tuple[str, str]]) -> None:
    (store / EPOCHS).write_bytes(epoch.build(epochs))
    assert findings_of(store) == expected


def test_records_above_the_confirmed_end_are_no_damage(store: Path) -> None:
    with (store / "checkpoint").open("r+b") as file:
        file.seek(32)
        file.write((25077).to_bytes(8, "big"))
    assert findings_of(store) == []


def test_the_backup_stands_in(store: Path) -> None:
    main = store / EPOCHS
    main.write_bytes(main.read_bytes().replace(b"25077", b"25078"))
    assert findings_of(store) == [("epoch-file", "warning")]
    assert "epochFileCheckpoint.bak" in run("preflight", store).expect(0).err
    shown = run("config", store, "epochs", "-o", "json").expect(1)
    assert [row["epoch"] for row in shown.json()] == [1, 2]
    assert "crc" in shown.err
    main.unlink()
    assert findings_of(store) == [("epoch-file", "warning")]
    (store / f"{EPOCHS}.bak").write_bytes(b"1\n5\n1-0\n")
    main.write_bytes(b"")
    assert findings_of(store) == [("epoch-file", "error")]
    assert "NumberFormatException" in run("preflight", store).expect(1).out


@pytest.mark.parametrize(("to", "left", "backup"), [
    (36022, HAS[:2], HAS[:2]), (36220, HAS, HAS[:2]), (25077, HAS[:1], HAS[:1]), (0, [], [])])
def test_truncate_cuts_epochs_with_the_log(store: Path, to: int, left: list[Epoch],
                                           backup: list[Epoch]) -> None:
    before = {name: (store / name).read_bytes() for name in (EPOCHS, f"{EPOCHS}.bak")}
    run("truncate", store, "--to-phy", str(to), "--apply").expect(0, 1)
    for name, kept in ((EPOCHS, left), (f"{EPOCHS}.bak", backup)):
        assert ((store / name).read_bytes() if (store / name).exists() else b"") == (
            epoch.build(kept) if kept else b""), name
    assert not [finding for finding in findings_of(store) if finding[0].startswith("epoch")]
    run("undo", store, "--yes").expect(0)
    assert {name: (store / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(("theirs", "their_end", "expected"), [
    (HAS, END, (END, 3, None)),
    (HAS, 40000, (40000, 3, None)),
    (HAS[:2], 30000, (30000, 2, None)),
    (HAS[:2], 40000, (36022, 2, None)),
    ([*HAS[:2], Epoch(5, 36000)], END, (36000, 2, 5)),
    ([*HAS[:2], Epoch(4, 36100), Epoch(6, 37000)], END, (36022, 2, None)),
    (HAS[1:], END, (END, 0, None)),  # its first epochs have expired
    ([Epoch(7, 0)], END, (None, 0, None))])
def test_the_consistent_point(theirs: list[Epoch], their_end: int,
                              expected: tuple[int | None, int, int | None]) -> None:
    assert astuple(agreement(HAS, theirs, END, their_end)) == expected
    assert astuple(agreement(theirs, HAS, their_end, END)) == expected


def test_diff_of_replicas(store: Path, tmp_path: Path) -> None:
    other = copy_tree(store, tmp_path / "b")
    run("truncate", other, "--to-phy", "36022", "--apply").expect(0, 1)
    summary = run("diff", store, other, "-o", "json").expect(1).json()["summary"]
    assert (summary["epochs"]["consistent_point"], summary["epochs"]["common"]) == (36022, 2)
    assert "according to their epochs, the logs are the same up to 36022" in summary["remarks"]
    (other / EPOCHS).write_bytes(epoch.build([HAS[0], Epoch(2, 24000)]))
    counts = run("diff", store, other, "-o", "json").expect(1).json()["counts"]
    assert {"kind": "epoch", "count": 1} in counts
    assert run("diff", store, store, "-o", "json").expect(0).json()["equal"]
