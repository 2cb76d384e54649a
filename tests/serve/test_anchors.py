"""`serve --offsets FILE` knows a store by records of its log, wherever it lies."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.serve.consuming.positions import Positions, PositionsFile
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats import layout
from rmqctl.formats.local.message import Message, is_magic, magic_at, total_size_at
from rmqctl.store.store import Store
from tests.adversary.writer import Layout, Writer
from tests.serve.running import empty_store, serving
from tests.support.layouts import layout_set

PHYSICAL_OFFSET_AT = layout.field(Message, "physical_offset").offset
GROUP = ("g", "orders")


def built_store(root: Path, word: str, count: int = 40) -> Path:
    writer = Writer(Layout(log_file_size=4096, queue_file_units=100, index_slots=100,
                           index_entries=400))
    for number in range(count):
        writer.put("orders", f"{word} {number:3} ".encode() * 30)
    return writer.write(root)


def committed(file: Path, stores: Sequence[tuple[str, Path]], warnings: Sequence[str] = ()
              ) -> list[int | None]:
    """What each store's group stands at by the file; then each commits 10, 20, … ."""
    names = [f"{name} {root}" for name, root in stores]
    opened = [Store.open(str(root)) for _, root in stores]
    positions = PositionsFile(str(file))
    positions_read = positions.load(names, [store.log for store in opened])
    assert len(positions.warnings) == len(warnings), positions.warnings
    for text, words in zip(positions.warnings, warnings, strict=True):
        assert words in text
    positions.save({name: Positions({}, {GROUP: {0: 10 * (1 + number)}})
                    for number, name in enumerate(names)})
    for store in opened:
        store.close()
    return [positions_read[name].get(GROUP, {}).get(0) for name in names]


def test_another_order_and_another_folder(tmp_path: Path) -> None:
    file, a, b = tmp_path / "o.json", built_store(tmp_path / "a",
                                                  "one"), built_store(tmp_path / "b", "two")
    assert committed(file, [("broker-a", a), ("broker-b", b)]) == [None, None]
    assert committed(file, [("broker-a", b), ("broker-b", a)]) == [20, 10]
    moved = tmp_path / "moved"
    b.rename(moved)
    assert committed(file, [("other", moved)]) == [10]
    assert len(json.loads(file.read_text())) == 2  # of both stores, none twice
    assert committed(file, [("broker-a", a), ("broker-b", moved)]) == [20, 10]


def test_another_store_at_the_same_place_begins_anew(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    shutil.rmtree(root)
    built_store(root, "two")
    assert committed(file, [("broker-a", root)], ["starts without"]) == [None]
    # The store that was there before still has its own.
    shutil.rmtree(root)
    built_store(root, "one")
    assert committed(file, [("broker-a", root)]) == [10]


@pytest.mark.parametrize("gone", [0, -1], ids=["first", "last"])
def test_a_log_that_lost_a_file(gone: int, tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    sorted((root / "commitlog").iterdir())[gone].unlink()
    moved = root.rename(tmp_path / "moved")
    assert committed(file, [("broker-a", moved)]) == [10]


def test_a_dledger_log_that_lost_its_first_file(tmp_path: Path) -> None:
    file = tmp_path / "o.json"
    root = shutil.copytree(layout_set("5.3.3/dledger3") / "store", tmp_path / "a")
    committed(file, [("broker-a", root)])
    next(root.glob(f"dledger-n?/data/{0:020d}")).unlink()
    assert committed(file, [("broker-b", root.rename(tmp_path / "moved"))]) == [10]


def test_a_copy_does_not_take_the_place_of_its_original(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    shutil.copytree(root, tmp_path / "copy")
    both = [("broker-b", tmp_path / "copy"), ("broker-a", root)]
    assert committed(file, both, ["is a copy"]) == [None, 10]
    assert committed(file, both) == [10, 20]
    # In another order the paths tell them apart; where both were moved nothing does.
    assert committed(file, [("broker-a", tmp_path / "copy"), ("broker-b", root)]) == [10, 20]
    moved = [("broker-a", root.rename(tmp_path / "x")),
             ("broker-b", (tmp_path / "copy").rename(tmp_path / "y"))]
    before = file.read_bytes()
    for stores in (moved, moved[:1]):
        with pytest.raises(UsageError, match="cannot be determined"):
            committed(file, stores)
    assert file.read_bytes() == before


def test_two_copies_of_a_store_that_the_file_knows_by_another_place(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    shutil.copytree(root, tmp_path / "x")
    root.rename(tmp_path / "y")
    with pytest.raises(UsageError, match="cannot be determined"):
        committed(file, [("broker-a", tmp_path / "x"), ("broker-b", tmp_path / "y")])
    assert committed(file, [("broker-a", tmp_path / "x")]) == [10]


def test_a_store_that_grew_and_lost_its_oldest_files(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one", 20)
    committed(file, [("broker-a", root)])
    shutil.rmtree(root)
    grown = built_store(tmp_path / "moved", "one", 40)
    next(iter(sorted((grown / "commitlog").iterdir()))).unlink()
    assert committed(file, [("broker-a", grown)]) == [10]


def test_a_log_of_which_nothing_is_left_that_the_file_knows(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    for path in sorted((root / "commitlog").iterdir()):
        data = bytearray(path.read_bytes())
        moved, at = int(path.name) + (1 << 20), 0
        while is_magic(magic_at(data, at)):
            struct.pack_into(">q", data, at + PHYSICAL_OFFSET_AT, moved + at)
            at += total_size_at(data, at)
        path.write_bytes(data)
        path.rename(path.with_name(f"{moved:020}"))
    before = file.read_bytes()
    with pytest.raises(UsageError, match="cannot be determined"):
        committed(file, [("broker-a", root)])
    assert file.read_bytes() == before


def test_an_empty_store_is_known_once_it_has_messages(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", empty_store(tmp_path / "a")
    settings = ServeSettings(writable=True, offsets=str(file))
    with serving(root, settings=settings) as running, running.client() as client:
        assert client.ask(
            "SEND_MESSAGE", b"x" * 1000, producerGroup="p", topic="orders", defaultTopic="TBW102",
            defaultTopicQueueNums=4, queueId=0, sysFlag=0, bornTimestamp=1, flag=0, properties="",
            reconsumeTimes=0).code == 0
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic="orders", queueId=0,
                   commitOffset=1)
    (entry,) = json.loads(file.read_text()).values()
    assert entry["records"]
    assert committed(file, [("other", root.rename(tmp_path / "moved"))]) == [1]


def test_entries_of_older_versions(tmp_path: Path) -> None:
    """They name the store by its path alone."""
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    table = {"offsetTable": {"orders@g": {"0": 7}}}
    file.write_text(json.dumps({f"broker-a {root}": table}))
    assert committed(file, [("broker-a", root)]) == [7]
    file.write_text(json.dumps({f"broker-b {root}": table}))
    assert committed(file, [("broker-a", root)]) == [7]
    file.write_text(json.dumps({f"broker-a {root}": table}))
    moved = root.rename(tmp_path / "moved")
    assert committed(file, [("broker-a", moved)], [f"those of broker-a {root}"]) == [None]


def test_entries_of_others(tmp_path: Path) -> None:
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    table = {"offsetTable": {"orders@g": {"0": 7}}}
    file.write_text(json.dumps({
        "x": {**table, "records": [[-1, 100, "0"], [0, 1 << 40, "0"], "a", [0, 5], None]},
        "y": {**table, "records": 7}}))
    assert committed(file, [("broker-a", root)], ["those of x, y"]) == [None]
    assert {"x", "y"} < {*json.loads(file.read_text())}
    for value in ({**table, "dataVersion": {}}, {"x": 5}, [1], {"x": {"offsetTable": 5}}):
        file.write_text(json.dumps(value))  # the first one is a broker's consumerOffset.json
        with pytest.raises(FormatError, match="serve --offsets"):
            committed(file, [("broker-a", root)])
        assert json.loads(file.read_text()) == value


def test_only_the_first_records_of_an_entry_are_looked_at(tmp_path: Path) -> None:
    """A file may name any number of them, each of which would be read."""
    file, root = tmp_path / "o.json", built_store(tmp_path / "a", "one")
    committed(file, [("broker-a", root)])
    (entry,) = json.loads(file.read_text()).values()
    entry["records"] = [[0, 1 << 20, "no"]] * 1000 + entry["records"]
    file.write_text(json.dumps({"x": entry}))
    assert committed(file, [("broker-a", root)], ["starts without"]) == [None]
