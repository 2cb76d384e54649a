"""Index items made from the messages: every key of the golden tier is found again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rmqctl.ext.tiered.index.index_file import TierIndexFile, uploaded
from rmqctl.ext.tiered.read import by_key
from rmqctl.ext.tiered.read.by_key import IndexFiles
from rmqctl.ext.tiered.recover.index import LOST, IndexedItems, build_files, mixed
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import metadata as meta
from tests.conftest import GoldenFolder
from tests.support import cli
from tests.tiered import recovering

BASES = (0, 5524, 11076, 16628)


def items(root: Path) -> set[tuple[int, ...]]:
    """(hash, topic id, queue, offset, size) of all uploaded items."""
    rows: set[tuple[int, ...]] = set()
    with Tier.open(str(root / "tieredstore")) as tier:
        for _, flat in tier.indexes():
            for file in uploaded(flat):
                assert isinstance(file, TierIndexFile)
                for _, block in file.blocks():
                    rows.update(row[:5] for row in block.tolist())
    return rows


@pytest.mark.parametrize("base", BASES)
def test_one_file_lost(root, base):
    before = items(root)
    (root / recovering.INDEX / recovering.name_of(base)).unlink()
    assert items(root) < before
    plan = recovering.recovered(root)
    assert items(root) == before
    assert plan["actions"][0]["action"] == "rebuild"


def test_all_of_it_lost(root):
    before = items(root)
    shutil.rmtree(root / recovering.INDEX)
    plan = recovering.recover(root)
    assert any("--only index" in segment for segment in plan["notes"])
    recovering.recovered(root, "--only", "index", "--index-slots", "64", "--index-max", "180")
    assert items(root) == before
    metadata = meta.parse((root / recovering.METADATA).read_bytes())
    table = metadata.segments["INDEX"]["broker-a/rmq_sys_INDEX/0"]
    assert len(table) == 4  # 609 items, 179 in a file
    assert sorted(table) == [0, 5552, 11104, 16656]
    assert len({segment.begin_timestamp for segment in table.values()}) == 4
    for segment in table.values():
        path = root / recovering.INDEX / recovering.name_of(segment.base_offset)
        header = fmt.HEADER.decode(path.read_bytes())
        assert path.stat().st_size == segment.size
        assert (header.begin_timestamp, header.end_timestamp) == (segment.begin_timestamp,
                                                                  segment.end_timestamp)
        assert header.magic == fmt.END_MAGIC


@pytest.mark.parametrize("lost", ["one", "all"])
def test_the_engines_queries(root, golden, lost):
    """Every item the engine finds for a key in all of time is found again."""
    if lost == "one":
        (root / recovering.INDEX / recovering.name_of(5524)).unlink()
        recovering.recover(root)
    else:
        shutil.rmtree(root / recovering.INDEX)
        recovering.recover(root, "--only", "index", "--index-slots", "64")
    expect = json.loads((golden("5.3.3/tiered") / "expect.json").read_text())
    seen = 0
    with Tier.open(str(root / "tieredstore")) as tier, IndexFiles.open(tier) as files:
        for query in expect["extra"]["indexQueries"]:
            wanted = query["items(topicId:queueId:offset:size:timeDiff)"]
            if query["begin"] > 0 or len(wanted) >= query["max"]:
                continue
            compacted_item_records = by_key.items_as_broker(files, query["topic"], query["key"],
                                                            query["max"],
                                                            query["begin"], query["end"])
            assert {text.rpartition(":")[0] for text in wanted} == {
                f"{item.topic_id}:{item.queue_id}:{item.commit_log_offset}:{item.size}"
                for item in compacted_item_records}
            seen += len(wanted)
    assert seen > 8


def test_local_files_count(golden_copy: GoldenFolder):
    root = golden_copy(recovering.LIVE)
    assert recovering.recover(root)["actions"] == []
    shutil.rmtree(root / "tiered_index_file")
    plan = recovering.recovered(root)
    assert plan["actions"][0]["reason"].endswith(": 73")


@pytest.mark.parametrize(("at", "data"), [
    (0, b"\0\0\0\0"), (24, b"\xff\xff\xff\xff"), (24, b"\0\0\0\x09"), (28, b"\x11" * 80),
    (28 + 8 * 64, b"\x7f\xff\xff\xff")])
def test_damaged(root, at, data):
    before = items(root)
    path = root / recovering.INDEX / recovering.name_of(5524)
    content = bytearray(path.read_bytes())
    content[at:at + len(data)] = data
    path.write_bytes(content)
    plan = recovering.recovered(root)
    assert plan["actions"][0]["action"] == "move aside"
    assert items(root) == before


def test_cut_short(root):
    before = items(root)
    path = root / recovering.INDEX / recovering.name_of(16628)
    path.write_bytes(path.read_bytes()[:-40])
    recovering.recovered(root)
    assert items(root) == before


def test_false_items_are_a_reason(root):
    """They lead to nothing: the file is made anew, and has what it had."""
    before = items(root)
    path = root / recovering.INDEX / recovering.name_of(0)
    data = bytearray(path.read_bytes())
    data[-14:-6] = (1 << 40).to_bytes(8)
    path.write_bytes(data)
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["move aside", "rebuild", "update"]
    assert items(root) == before


def test_expired_index_files_do_not_come_back(root):
    cli.run("tiered", "expire", root / "tieredstore", "--older-than", "0s", "--now",
            "1795233890000", "--apply", "-o", "json").expect(0)
    assert recovering.recover(root)["actions"] == []


def test_without_the_brokers_root(root, tmp_path):
    """Where local index files may be that are not known, nothing counts as lost."""
    (root / recovering.INDEX / recovering.name_of(0)).unlink()
    alone = tmp_path / "tier"
    shutil.copytree(root / "tieredstore", alone)
    shutil.copytree(root / "config", alone / "config")
    answer = cli.run("tiered", "recover", alone, "-o", "json").expect(0).json()
    assert [action["action"] for action in answer["actions"]] == ["rebuild", "update"]


# -- the parts ------------------------------------------------------------------------------------


def test_known_items_in_runs(tmp_path, seed, monkeypatch):
    """Many more than one run holds; none is taken for another."""
    monkeypatch.setattr("rmqctl.ext.tiered.recover.index._RUN", 1000)
    chosen = np.random.default_rng(seed)
    count = 5000
    columns = [chosen.integers(0, high, count) for high in (1 << 31, 50, 8, 1 << 40)]

    class File:
        def blocks(self):
            array = np.zeros(count, fmt.COMPACTED_ITEM.dtype())
            for name, value in zip(("key_hash", "topic_id", "queue_id", "commit_log_offset"),
                                   columns, strict=True):
                array[name] = value
            for at in range(0, count, 300):
                yield at, array[at:at + 300]

    indexed_items = IndexedItems(str(tmp_path))
    indexed_items.add(File())  # type: ignore[arg-type]
    assert indexed_items.has(mixed(*columns)).all()
    for number in range(4):
        others = list(columns)
        others[number] = columns[number] + 1
        assert indexed_items.has(mixed(*others)).mean() < 0.01


def test_files_of_many_items(tmp_path, seed, monkeypatch):
    """Against the places worked out one by one."""
    monkeypatch.setattr("rmqctl.ext.tiered.recover.index.MAX_ITEMS", 400)
    chosen = np.random.default_rng(seed)
    lost = np.zeros(1000, LOST)
    lost["key_hash"] = chosen.integers(0, 200, 1000)
    lost["offset"] = np.arange(1000) * 100
    lost["size"] = 100
    lost["store_time"] = 1_700_000_000_000 + chosen.integers(0, 3, 1000) * 1500
    shape = fmt.TieredIndexShape(37, 1 << 20)
    used = {1_700_000_000_000}
    seen = []
    for path, size, begin, end in build_files(lost, shape, used, str(tmp_path)):
        data = Path(path).read_bytes()
        assert len(data) == size
        header = fmt.HEADER.decode(data)
        assert (header.begin_timestamp, header.end_timestamp) == (begin, end)
        assert header.item_count <= 400
        position, busy = shape.items_at, 0
        for slot in range(37):
            place = fmt.COMPACTED_SLOT.decode(data, 28 + 8 * slot)
            assert place.position == position
            busy += place.length > 0
            before = None
            for at in range(position, position + place.length, 28):
                item = fmt.COMPACTED_ITEM.decode(data, at)
                assert item.key_hash % 37 == slot
                order = (item.time_diff, item.commit_log_offset)
                assert before is None or order < before
                before = order
                row = lost[item.commit_log_offset // 100]
                assert (row["store_time"] - begin) // 1000 == item.time_diff >= 0
                assert row["key_hash"] == item.key_hash
                seen.append(item.commit_log_offset)
            position += place.length
        assert position == size
        assert busy == header.slot_count
    assert sorted(seen) == lost["offset"].tolist()
    assert len(used) == 4


def test_old_form(tmp_path):
    """As 5.1 writes: times in ms, all slots in the header, a seal at the end."""
    lost = np.zeros(3, LOST)
    lost["key_hash"], lost["offset"], lost["size"] = [8, 1, 8], [0, 100, 200], 100
    lost["store_time"] = [1000, 2500, 3999]
    shape = fmt.TieredIndexShape(7, 40, old=True)
    ((path, size, begin, _),) = build_files(lost, shape, set(), str(tmp_path))
    data = Path(path).read_bytes()
    header = fmt.HEADER.decode(data)
    assert (begin, header.slot_count, header.item_count) == (1000, 7, 3)
    assert fmt.compacted_shape(header, size).old
    assert data[-4:] == fmt.BEGIN_MAGIC.to_bytes(4)
    assert [fmt.COMPACTED_SLOT.decode(data, 28 + 8 * slot).position for slot in range(7)] == [
        0, 84, 0, 0, 0, 0, 0]
    assert [(index_item.commit_log_offset, index_item.time_diff)
            for index_item in fmt.COMPACTED_ITEM.decode_all(
                data[84:-4])] == [(200, 2999), (100, 1500), (0, 0)]


@pytest.mark.parametrize("ours", [True, False])
def test_an_interrupted_dispatch_indexes_what_it_uploaded(root, ours):
    """Else what it still has to index would be there twice; a broker that went on has not."""
    (root / recovering.INDEX / recovering.name_of(0)).unlink()
    queues = {"TP_user_Topic": {"0": [3, 102 if ours else 101], "1": [62, 62]},
              "TP_pay_Event5": {"0": [87, 87], "1": [49, 49]}}
    note = root / ".rmqctl/tiered-index.json"
    note.parent.mkdir()
    note.write_text(json.dumps({"format": 1, "tier": "DefaultCluster/broker-a",
                                "position": [0, 0], "queues": queues}))
    plan = recovering.recover(root, apply=False)
    assert any("tiered dispatch" in note for note in plan["notes"]) is ours
    assert any(action["action"] == "rebuild" for action in plan["actions"]) is not ours


def test_a_local_file_of_other_bytes(golden_copy: GoldenFolder):
    """What it had comes from the messages; how many slots, other files say."""
    root = golden_copy(recovering.LIVE)
    (local,) = (path for path in (root / "tiered_index_file").iterdir() if path.is_file())
    local.write_bytes(b"\x01" * 100)
    plan = recovering.recovered(root)
    assert plan["actions"][0]["target"] == str(local)
    assert plan["actions"][0]["action"] == "move aside"
    assert plan["actions"][1]["reason"].endswith(": 73")


def test_a_local_file_may_have_items_where_no_slots_are_known(golden_copy: GoldenFolder):
    root = golden_copy(recovering.LIVE)
    shutil.rmtree(root / recovering.INDEX)
    (local,) = (path for path in (root / "tiered_index_file").iterdir() if path.is_file())
    local.write_bytes(b"\x01" * 100)
    plan = recovering.recover(root, "--only", "queues,index")
    assert not any(action["action"] == "rebuild" for action in plan["actions"])
    assert any("--only index" in note for note in plan["notes"])
    plan = recovering.recovered(root, "--index-slots", "64")
    assert plan["actions"][0]["action"] == "move aside"
    assert plan["actions"][1]["reason"].endswith(": 609")


def test_the_tiers_notes_tell_the_layout(root):
    """Where no index file is left, but metadata has some, all of it is made anew."""
    before = items(root)
    shutil.rmtree(root / recovering.INDEX)
    note = root / "tieredstore/.rmqctl/tier.json"
    note.parent.mkdir()
    note.write_text(json.dumps({"format": 1, "commit_log_max": 1 << 30,
                                "consume_queue_max": 1000, "index_slots": 64, "index_max": 180}))
    plan = recovering.recovered(root)
    assert [action["action"] for action in plan["actions"]] == ["rebuild"] * 4 + ["update"]
    assert items(root) == before
    path = root / recovering.INDEX / recovering.name_of(0)
    assert path.stat().st_size == 28 + 8 * 64 + 28 * 179


def test_a_local_file_tells_the_layout(golden_copy: GoldenFolder):
    root = golden_copy(recovering.LIVE)
    before = items(root)
    shutil.rmtree(root / recovering.INDEX)
    recovering.recovered(root)
    assert items(root) == before
    path = root / recovering.INDEX / recovering.name_of(0)
    assert fmt.compacted_shape(fmt.HEADER.decode(path.read_bytes()),
                               path.stat().st_size).slots == 64
