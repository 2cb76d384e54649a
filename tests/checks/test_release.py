"""Which release a start is judged by: one detector, and all candidates where nothing proves it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmqctl.broker.recovery import default_release
from rmqctl.broker.settings import resolve
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets

LOG_ONLY = ("commitlog", "consumequeue", "index")


def bare(root: Path, folder: Path) -> Path:
    """A copy with log, consumequeues and index alone."""
    for name in LOG_ONLY:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name)
    return folder


@pytest.mark.parametrize(("name", "version", "judged"), [
    ("topics.json", {"counter": 1, "stateVersion": 0, "timestamp": 1}, "5.3.3"),
    ("topics.json", {"counter": 1, "timestamp": 1}, "4.9.3"),
    ("topics.json.bak", {"counter": 1, "stateVersion": 0, "timestamp": 1}, "5.3.3"),
    ("subscriptionGroup.json", {"counter": 1, "stateVersion": 7, "timestamp": 1}, "5.3.3"),
    ("consumerOffset.json", {"counter": 1, "stateVersion": 0, "timestamp": 1}, "5.3.3")])
@pytest.mark.parametrize("written_by", ["4.9.3", "5.3.3"])
def test_the_configuration_proves_it(name: str, version: dict[str, int], judged: str,
                                     written_by: str, golden: GoldenFolder, rmqctl: Runner,
                                     tmp_path: Path) -> None:
    root = bare(golden(f"{written_by}/basic/store"), tmp_path / "s")
    (root / "config").mkdir()
    table = {"topics": "topicConfigTable", "subscr": "subscriptionGroupTable"}.get(
        name[:6], "offsetTable")
    (root / "config" / name).write_text(json.dumps({"dataVersion": version, table: {}}, indent=1))
    answer = rmqctl("preflight", root, "-o", "json").json()
    assert answer["version"] == {"judged_as": judged, "proven": True, "candidates": [judged]}
    assert rmqctl("doctor", root, "-o", "json").json()["version"] == answer["version"]
    with Store.open(root) as store:
        assert default_release(store) == resolve(store, {}).settings.version == judged
        assert store.generation == int(judged[0])
    hints = rmqctl("info", root, "-o", "json").json()["version_hints"]
    assert any("stateVersion" in hint["evidence"] for hint in hints)


@pytest.mark.parametrize(("name", "judged", "other"), [
    ("4.9.3/basic/store", "4.9.3", "5.1.4"), ("5.3.3/basic/store", "5.3.3", "4.9.0"),
    ("5.3.3/delay/store", "5.3.3", "4.9.0"), ("5.3.3/v2topic/store", "5.3.3", None),
    ("5.3.3/appendcrc/store", "5.3.3", None)])
def test_without_configuration_the_records_tell(name: str, judged: str, other: str | None,
                                                golden: GoldenFolder, rmqctl: Runner,
                                                tmp_path: Path) -> None:
    root = bare(golden(name), tmp_path / "s")
    answer = rmqctl("preflight", root, "-o", "json").expect(0).json()
    assert answer["version"] == {"judged_as": judged, "proven": other is None,
                                 "candidates": [judged, *filter(None, [other])]}
    assert answer["messages_lost"] == answer["messages_already_lost"] == 0
    assert rmqctl("preflight", root, "--broker-version", "4.9.3", "-o", "json").json()[
        "version"] == {"judged_as": "4.9.3", "proven": True, "candidates": ["4.9.3"]}


def test_where_it_decides_all_candidates_are_shown(golden: GoldenFolder, rmqctl: Runner,
                                                   tmp_path: Path) -> None:
    # After a clean end 4.9.3 makes missing rows again, and 5.1.4 does not.
    root = bare(golden("4.9.3/clean-nocq/before"), tmp_path / "s")
    answer = rmqctl("preflight", root, "-o", "json").expect(1).json()
    assert (answer["version"]["proven"], answer["unreachable"]) == (False, 0)
    page = rmqctl("preflight", root).expect(1).out
    assert "the broker's release is unknown: a 5.1.4 broker loses messages" in page
    rmqctl("doctor", root).expect(1)
    plan = ("recover", root, "--strategy", "broker")
    assert rmqctl(*plan).code in (0, 1)
    refused = rmqctl(*plan, "--apply", "--yes").expect(6)
    assert "--broker-version" in refused.err
    assert not (root / ".rmqctl" / "repairs").exists()
    rmqctl("preflight", root, "--broker-version", "4.9.3").expect(0)
    rmqctl(*plan, "--broker-version", "4.9.3", "--apply", "--yes").expect(0)


@pytest.mark.parametrize("store", [store for store in golden_sets.golden_stores()
                                   if store.set.id in golden_sets.COVERING
                                   and not store.set.is_damaged], ids=lambda store: store.id)
def test_no_store_of_the_engine_is_taken_for_another_ones(store: golden_sets.GoldenStore,
                                                          golden: GoldenFolder) -> None:
    with Store.open(golden(store.id)) as opened:
        assert default_release(opened) == store.version
