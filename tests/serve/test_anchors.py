"""`serve --offsets FILE` knows a store by records of its log, wherever it lies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqctl.ext.serve.consuming.positions import Positions, PositionsFile
from rmqctl.store.store import Store
from tests.adversary.writer import Layout, Writer

GROUP = ("g", "orders")


def made(root: Path, word: str, count: int = 40) -> Path:
    writer = Writer(Layout(log_file_size=4096, queue_file_units=100, index_slots=100,
                           index_entries=400))
    for number in range(count):
        writer.put("orders", f"{word} {number:3} ".encode() * 30)
    return writer.write(root)


def committed(file: Path, stores: Sequence[tuple[str, Path]]) -> list[int | None]:
    """What each store's group stands at by the file; then each commits 10, 20, … ."""
    names = [f"{name} {root}" for name, root in stores]
    opened = [Store.open(str(root)) for _, root in stores]
    positions = PositionsFile(str(file))
    found = positions.load(names, [store.log for store in opened])
    positions.save({name: Positions({}, {GROUP: {0: 10 * (1 + number)}})
                    for number, name in enumerate(names)})
    for store in opened:
        store.close()
    return [found[name].get(GROUP, {}).get(0) for name in names]


def test_another_order_and_another_folder(tmp_path: Path) -> None:
    file, a, b = tmp_path / "o.json", made(tmp_path / "a", "one"), made(tmp_path / "b", "two")
    assert committed(file, [("broker-a", a), ("broker-b", b)]) == [None, None]
    assert committed(file, [("broker-a", b), ("broker-b", a)]) == [20, 10]
    moved = tmp_path / "moved"
    b.rename(moved)
    assert committed(file, [("other", moved)]) == [10]
    assert len(json.loads(file.read_text())) == 2  # of both stores, none twice
    assert committed(file, [("broker-a", a), ("broker-b", moved)]) == [20, 10]


def test_another_store_at_the_same_place_begins_anew(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", made(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    shutil.rmtree(root)
    made(root, "two")
    assert committed(file, [("broker-a", root)]) == [None]


@pytest.mark.parametrize("gone", [0, -1], ids=["first", "last"])
def test_a_log_that_lost_a_file(gone: int, tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", made(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    sorted((root / "commitlog").iterdir())[gone].unlink()
    moved = root.rename(tmp_path / "moved")
    assert committed(file, [("broker-a", moved)]) == [10]


def test_a_copy_does_not_take_the_place_of_its_original(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", made(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    shutil.copytree(root, tmp_path / "copy")
    both = [("broker-b", tmp_path / "copy"), ("broker-a", root)]
    assert committed(file, both) == [None, 10]
    assert committed(file, both) == [10, 20]


def test_entries_of_older_versions_and_odd_ones(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", made(tmp_path / "a", "one")
    table = {"offsetTable": {"orders@g": {"0": 7}}}
    file.write_text(json.dumps({f"broker-a {root}": table}))
    assert committed(file, [("broker-a", root)]) == [7]
    file.write_text(json.dumps({
        "x": {**table, "records": [[-1, 100, "0"], [0, 1 << 40, "0"], "a", [0, 5], None]},
        "y": {**table, "records": 7}, "z": 5}))
    assert committed(file, [("broker-a", root)]) == [None]
    assert {"x", "y", "z"} < {*json.loads(file.read_text())}


def test_only_the_first_records_of_an_entry_are_looked_at(tmp_path: Path) -> None:
    """A file may name any number of them, each of which would be read."""
    file, root = tmp_path / "o.json", made(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    (entry,) = json.loads(file.read_text()).values()
    entry["records"] = [[0, 1 << 20, "no"]] * 1000 + entry["records"]
    file.write_text(json.dumps({"x": entry}))
    assert committed(file, [("broker-a", root)]) == [None]
