"""preflight of DLedger stores: what both engines made of theirs, their own faults included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store.store import Store
from tests.checks.test_dledger import BODIES, checkpoint
from tests.store.test_dledger import patch, store_of
from tests.support import engine
from tests.support.cli import run
from tests.support.layouts import layout_set

NAMES = ("crash", "crash-idle", "crash-trunc", "crash-trunc-header", "crash-crc", "crash-noindex",
         "crash-nocq", "clean-nocq")
WITHOUT_ROW = {"5.3.3": {"crash-crc": 11, "crash-nocq": 0, "clean-nocq": 124}}
"""Messages of the log without a row after the start, where it is not 0 (4.9.3) or 1 (5.3.3)."""


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_the_engine_did(version: str, name: str) -> None:
    folder = layout_set(f"{version}/dledger-{name}")
    expect = engine.load(folder / "expect.json")
    with Store.open(folder / "before") as store:
        predicted = preflight(store, version)
    assert predicted.starts
    assert predicted.log.truncate_to == expect.max_physical_offset
    assert {key: end for key, end in predicted.queues.table.items() if end} == {
        f"{queue.topic}-{queue.queue_id}": queue.max for queue in expect.queues if queue.max}
    lost = WITHOUT_ROW.get(version, {}).get(name, 0 if version == "4.9.3" else 1)
    assert predicted.queues.unreachable == lost
    assert predicted.log.cut.count == 0
    with Store.open(folder / "after") as store:
        intact = sum(int(batch.crc_ok().sum()) for batch in store.log.walk())
        assert predicted.log.messages == intact
    # A second start on what the first one left changes nothing but what the fault costs anew.
    with Store.open(folder / "after") as store:
        again = preflight(store, version)
    assert again.log.truncate_to == predicted.log.truncate_to


def test_one_release_before_the_walk() -> None:
    """5.1.4 cuts nothing off an undamaged store, nor makes rows of what was committed."""
    folder = layout_set("5.3.3/dledger-crash-idle")
    with Store.open(folder / "before") as store:
        assert preflight(store, "5.1.4").queues.unreachable == 0
        assert preflight(store, "5.2.0").queues.unreachable == 1


def test_what_it_says_and_how_it_ends() -> None:
    folder = layout_set("5.3.3/dledger-crash-idle") / "before"
    result = run("preflight", folder, "--broker-version", "5.3.3").expect(1)
    assert "does not count the headers of DLedger entries" in " ".join(
        f"{result.out}{result.err}".split())
    assert f"rmqctl doctor {folder}" in result.out
    older = run("preflight", folder, "--broker-version", "4.9.3").expect(1)
    assert "would start and lose no message, but 250 index entries" in older.out
    assert run("doctor", folder, "-o", "json").expect(1).json()["would_lose"] == 1
    run("doctor", layout_set("5.3.3/dledger3") / "store").expect(0)
    missing = layout_set("5.3.3/dledger-crash-noindex") / "before"
    action, = [planned_action
               for planned_action in run("preflight", missing, "-o", "json").json()["actions"]
               if planned_action["target"] == "dledger-n0/index"]
    assert (action["action"], action["to"], action["unit"]) == ("write", 128, "entry")


def test_a_damaged_head_ends_the_log(tmp_path: Path) -> None:
    starts = store_of(tmp_path, BODIES)
    os.truncate(tmp_path / f"dledger-n0/index/{0:020d}", 167_772_160)
    checkpoint(tmp_path, 59, 59)
    patch(tmp_path, starts[50] + 8, bytes(8))
    for version in ("4.9.3", "5.3.3"):
        with Store.open(tmp_path) as store:
            predicted = preflight(store, version)
        assert (predicted.log.truncate_to, predicted.log.cut.count) == (starts[50], 10)
        assert predicted.starts
    # Two files before the last one: DLedger does not dare to.
    patch(tmp_path, starts[2] + 8, bytes(8))
    with Store.open(tmp_path) as store:
        predicted = preflight(store, "5.3.3")
        assert not predicted.starts
        assert predicted.log.truncate_to == starts[2]
        assert any("more than one file" in why for why in predicted.broker.refusals)
    patch(tmp_path, starts[2] + 8, (2).to_bytes(8))
    os.truncate(tmp_path / f"dledger-n0/index/{0:020d}", 1 << 20)
    with Store.open(tmp_path) as store:
        assert not preflight(store, "5.3.3").starts
