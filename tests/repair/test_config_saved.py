"""``recover --from consumerOffset.json``: positions that were saved elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.test_lost import SIZES
from tests.repair.test_config_repair import CONFIG, DAMAGE, JSON, hurt, plan, read, store_of
from tests.support import snapshot
from tests.support.cli import run

POSITIONS, DELAYS = "consumerOffset.json", "delayOffset.json"
FILES = (POSITIONS, DELAYS, "topics.json", "subscriptionGroup.json")


def refused(store: Path, source: Path, code: int = 6) -> str:
    return run("recover", store, *SIZES, *JSON, "--from", source).expect(code).err


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("more", [(), CONFIG], ids=["whole", "config"])
def test_positions_are_taken(tmp_path: Path, how: str, more: tuple[str, ...]) -> None:
    store = store_of(tmp_path)
    source = Path(shutil.copy(store / "config" / POSITIONS, tmp_path / "saved.json"))
    whole = source.read_bytes()
    hurt(store / "config" / POSITIONS, how)
    wanted = (*more, "--from", source)
    with snapshot.assert_unchanged(store, source):
        planned = plan(store, *wanted)
    action = next(planned_action for planned_action in planned["actions"]
                  if planned_action["target"] == f"config/{POSITIONS}")
    assert action["action"] == "copy"
    assert action["proof"] == {"source": str(source), "positions": 5, "of_our_queues": 5,
                               "beyond_end": 0}
    plan(store, *wanted, "--apply")
    assert (store / "config" / POSITIONS).read_bytes() == whole
    again = plan(store, *wanted)
    assert again["actions"] == []
    assert any("not needed" in note for note in again["notes"])


@pytest.mark.parametrize("below", ["config", "."])
def test_a_folder_with_configuration_only(tmp_path: Path, below: str) -> None:
    store = store_of(tmp_path)
    (store / "config" / DELAYS).unlink()  # nothing was ever delayed in this store
    before = {name: read(store, name) for name in FILES if (store / "config" / name).exists()}
    saved = tmp_path / "saved" / below
    saved.mkdir(parents=True)
    for name in before:
        shutil.copy(store / "config" / name, saved / (
            f"{name}.bak" if name == POSITIONS else name))
        hurt(store / "config" / name, "zeros")
    plan(store, "--from", tmp_path / "saved", "--apply")
    for name, value in before.items():
        now = read(store, name)
        for table in ("offsetTable", "topicConfigTable", "subscriptionGroupTable"):
            assert {**now.get(table, {}), **value.get(table, {})} == now.get(table, {}), name


def test_those_of_another_broker(tmp_path: Path) -> None:
    store, source = store_of(tmp_path), tmp_path / "saved.json"
    (store / "config" / POSITIONS).unlink()

    def saved(table: dict[str, Any], **more: Any) -> Path:
        source.write_text(json.dumps({"offsetTable": table, **more}))
        return source

    assert "no offset for any queue of the store" in refused(
        store, saved({"others@billing": {"0": 4}}))
    far = {str(queue): 10**6 for queue in range(3)}
    assert "are beyond the end of their queue" in refused(store, saved({"orders@billing": far}))
    assert "no offset for any queue of the store" in refused(
        store, saved({"2": 7}))  # nothing was delayed
    assert "contains no offsets" in refused(store, saved({}), 2)
    assert "expected an integer" in refused(
        store, saved({"orders@billing": {"0": "x"}}), 2)
    source.write_text('{"offsetTable":{"orders@billing":{0:1')
    assert "may be incomplete" in refused(store, source, 2)
    # One of several: this queue has lost its end.
    planned = plan(store, "--from", saved({"orders@billing": {"0": 1, "1": 2, "2": 10**6}}))
    assert any("1 offset is beyond the end of the queue" in note for note in planned["notes"])
    run("recover", store, *SIZES, "--only", "index", "--from", source).expect(2)


def test_lines_with_such_a_word_are_messages(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    source = tmp_path / "messages.jsonl"
    text = run("read", store, "-o", "jsonl").expect(0).out
    source.write_text(text.replace('"properties": {', '"properties": {"offsetTable":"x",', 1))
    assert "offsetTable" in source.read_text()
    assert plan(store, "--from", source)["actions"] == []
