"""info: equal to the engine on sound stores, honest on damaged and odd ones, and quick."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.view import view_of
from rmqctl.errors import NotAStoreError
from rmqctl.scan.source import BytesSource
from rmqctl.store import Store
from rmqctl.store.info import collect, inventory
from rmqctl.store.log.end import find_end, first_record, used_size
from tests.conftest import GoldenFolder
from tests.support import damage, engine
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores

CLEAN = [pytest.param(golden_store, id=golden_store.id)
         for golden_store in golden_sets.clean_stores()]
ALL = [pytest.param(golden_store, id=golden_store.id)
       for golden_store in golden_sets.golden_stores()]
JUDGED = [pytest.param(golden_store, id=golden_store.id)
          for golden_store in golden_sets.judged_stores()]


def look(root: Path, dirs: tuple[str, ...] = ("commitlog",), view: str = "disk") -> Any:
    with Store.open(root, () if dirs == ("commitlog",) else dirs) as store:
        return collect(store, view_of(store, view))


def ranges(document: Any) -> dict[tuple[str, int], tuple[int, int]]:
    return {(topic["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
            for topic in document["topics"] for queue in topic["queues"]}


@pytest.mark.parametrize("store", CLEAN)
def test_equal_to_the_engine(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    info = look(golden(store.id), store.commitlog_dirs)
    assert info["min_phy_offset"] == expect.min_physical_offset
    assert info["max_phy_offset"] == expect.max_physical_offset
    expected = {(queue.topic, queue.queue_id): (queue.min, queue.max) for queue in expect.queues}
    mine = ranges(info)
    assert {key: mine.get(key, (0, 0)) for key in expected} == expected
    assert mine.keys() <= expected.keys()
    kinds = {queue.topic: queue.kind for queue in expect.queues}
    assert all((queue["kind"] == "batch") == (kinds[topic["topic"]] == "BatchCQ")
               for topic in info["topics"] for queue in topic["queues"])
    assert info["messages"] == sum(most - least for least, most in mine.values())
    assert info["troubles"] == []
    assert not info["abort"]
    assert info["sizes"]["commitlog_file_size"] == expect.commitlog_file_size
    if any(len(list(path.iterdir())) > 1 for path in golden(store.id).glob("consumequeue/*/*")):
        assert info["sizes"]["consumequeue_file_size"] == expect.consumequeue_file_size
    if list(golden(store.id).glob("index/*")):
        assert info["sizes"]["index_slots"] == expect.index_slots
        assert info["sizes"]["index_max"] == expect.index_max
    stored = [record.store_timestamp for put in engine.puts(
        golden(store.set.id) / "input.jsonl") for record in put.stored]
    assert info["first_store_timestamp"] == min(stored)
    assert info["last_store_timestamp"] == max(stored)


@pytest.mark.parametrize("store", JUDGED)
def test_the_broker_view_ends_where_the_engine_ended(store: golden_sets.GoldenStore,
                                                     golden: GoldenFolder) -> None:
    expect = store.load_expect(golden(store.set.id))
    info = look(golden(store.id), store.commitlog_dirs, "broker")
    assert info["max_phy_offset"] == expect.max_physical_offset


@pytest.mark.parametrize("store", ALL)
def test_every_file_is_listed_and_known(store: golden_sets.GoldenStore,
                                        golden: GoldenFolder) -> None:
    root = golden(store.id)
    info = look(root, store.commitlog_dirs)
    wanted = {str(path.relative_to(root)): path.stat().st_size
              for path in root.rglob("*") if path.is_file()}
    assert {file["path"]: file["size"] for file in info["files"]} == wanted
    assert [file["path"] for file in info["files"] if file["kind"] == "other"] == []
    logs = [file for file in info["files"] if file["kind"] == "commitlog"]
    assert all(log["base_offset"] == int(log["path"][-20:]) for log in logs)
    assert {Path(log["path"]).parent.name for log in logs} <= {*store.commitlog_dirs}
    sums = {structure["kind"]: (structure["files"], structure["size"])
            for structure in info["structures"]}
    assert sum(files for files, _ in sums.values()) == len(wanted)
    assert sum(size for _, size in sums.values()) == sum(wanted.values())


def test_hints_tell_the_generation(golden: GoldenFolder) -> None:
    for store in golden_sets.clean_stores():
        version = look(golden(store.id), store.commitlog_dirs)["version"]
        assert version.startswith("5") == (store.version == "5.3.3"), (store.id, version)


# -- the end of the log --------------------------------------------------------------------------


def end_of(root: Path) -> int:
    with Store.open(root) as store:
        return find_end(store).offset


def test_records_behind_damage_count(tiny: tiny_stores.Tiny) -> None:
    first = tiny.messages[0]
    damage.zero(tiny.root, *tiny.place(first.start), len(first.raw))
    info = look(tiny.root)
    assert info["max_phy_offset"] == tiny.log_end
    assert info["first_store_timestamp"] == tiny.messages[1].record.store_timestamp


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_cut_log_ends_with_its_last_whole_record(tiny: tiny_stores.Tiny,
                                                   dispatched: bool) -> None:
    last = tiny.messages[-1]
    file, position = tiny.place(last.start)
    damage.zero(tiny.root, file, position + 20, len(last.raw) - 20)
    if not dispatched:
        damage.remove_folder(tiny.root, "consumequeue")
    assert end_of(tiny.root) == tiny.messages[-2].end


def test_garbage_behind_the_end_is_not_the_end(tiny: tiny_stores.Tiny) -> None:
    damage.garbage_tail(tiny.root, *tiny.place(tiny.log_end), seed=3)
    assert end_of(tiny.root) == tiny.log_end


def test_rows_far_ahead_do_not_lead_astray(tiny: tiny_stores.Tiny) -> None:
    unit = tiny.units[-1]
    damage.cq_set(tiny.root, tiny.unit_place(unit)[0],
                  tiny.unit_place(unit)[1] // tiny_stores.UNIT.size,
                  physical_offset=damage.HUGE)
    assert end_of(tiny.root) == tiny.log_end


def test_undispatched_records_count(tiny: tiny_stores.Tiny) -> None:
    """The queues lead to a place before the end; the walk goes on from there."""
    for unit in tiny.units[-3:]:
        file, position = tiny.unit_place(unit)
        damage.zero(tiny.root, file, position, tiny_stores.UNIT.size)
    assert end_of(tiny.root) == tiny.log_end


@pytest.mark.parametrize("zeros", [1, 3])
def test_files_laid_out_ahead(tiny: tiny_stores.Tiny, zeros: int) -> None:
    size = tiny.options.commitlog_file_size
    for number in range(2, 2 + zeros):
        damage.add_file(tiny.root, f"commitlog/{number * size:020d}", bytes(size))
    assert end_of(tiny.root) == tiny.log_end


def test_a_closed_file_ends_with_the_next_one(tiny: tiny_stores.Tiny) -> None:
    """As a broker has it: behind a blank comes the next file, used or not."""
    size = tiny.options.commitlog_file_size
    assert tiny.blanks
    second = tiny.root / f"commitlog/{size:020d}"
    second.write_bytes(bytes(size))
    damage.remove_folder(tiny.root, "consumequeue")
    assert end_of(tiny.root) == size
    second.unlink()
    assert end_of(tiny.root) == tiny.blanks[0]


def test_stores_without_a_record(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert look(tmp_path)["max_phy_offset"] == 0
    damage.add_file(tmp_path, f"commitlog/{4096:020d}", bytes(4096))
    info = look(tmp_path)
    assert (info["min_phy_offset"], info["max_phy_offset"]) == (4096, 4096)
    assert info["first_store_timestamp"] is info["last_store_timestamp"] is None
    with Store.open(tmp_path) as store:
        assert first_record(store.log) is None


def test_used_size() -> None:
    for size in (0, 1, 4096, (4 << 20) + 5):
        assert used_size(BytesSource(bytes(size))) == 0
    data = bytearray((9 << 20) + 3)
    for at in (0, 1, (4 << 20) - 1, 4 << 20, len(data) - 1):
        data[at] = 1
        assert used_size(BytesSource(bytes(data))) == at + 1


# -- odd stores ------------------------------------------------------------------------------------


def troubles(root: Path) -> dict[str, str]:
    return {finding["path"]: finding["reason"] for finding in look(root)["troubles"]}


def test_a_missing_commitlog(tiny: tiny_stores.Tiny) -> None:
    damage.remove_folder(tiny.root, "commitlog")
    assert troubles(tiny.root) == {"commitlog": "no commitlog files"}


def test_a_multi_path_log_nobody_named(golden: GoldenFolder,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folders are found by what is in them, from wherever the store is named."""
    root = golden("5.3.3/multipath/store")
    assert troubles(root) == {}
    monkeypatch.chdir(root.parent)
    assert troubles(Path("store")) == {}
    assert look(root)["layout"]["commitlog"] == "multi-path"


def test_a_hole_in_the_log(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    files = sorted(path.name for path in (root / "commitlog").iterdir())
    damage.remove(root, f"commitlog/{files[1]}")
    reasons = troubles(root)
    assert reasons["commitlog"] == (f"no file covers physical offsets {int(files[1])} to "
                                    f"{int(files[2])}")


@pytest.mark.parametrize("file", ["commitlog/00000000000000001024", "checkpoint", "config",
                                  "consumequeue/orders/0/00000000000000000000", "index",
                                  "lock", "abort"])
@pytest.mark.parametrize("make", [damage.fifo, damage.directory, damage.symlink_to_itself],
                         ids=lambda make: make.__name__)
def test_things_that_are_no_files(tiny: tiny_stores.Tiny, file: str, make: Any) -> None:
    if (tiny.root / file).is_dir():
        damage.remove_folder(tiny.root, file)
        damage.add_file(tiny.root, file)
    (tiny.root / file).touch()
    make(tiny.root, file)
    info = look(tiny.root)
    if make is not damage.directory:
        assert file in {finding["path"] for finding in info["troubles"]}
    assert ranges(info)[("bills", 0)] == (0, 2)


def test_folders_in_a_circle(tiny: tiny_stores.Tiny) -> None:
    (tiny.root / "consumequeue" / "orders" / "again").symlink_to(tiny.root)
    with Store.open(tiny.root) as store:
        items, problems = inventory(store)
    assert len({item.path for item in items}) == len(items)
    assert problems == []


def test_a_link_to_all_of_a_disk_is_not_walked(tiny: tiny_stores.Tiny, tmp_path: Path) -> None:
    deep = tmp_path / "disk" / "home" / "somebody"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"1")
    (tmp_path / "disk" / "0").write_bytes(b"1")
    (tiny.root / "consumequeue" / "orders" / "9").symlink_to(tmp_path / "disk")
    with Store.open(tiny.root) as store:
        paths = {item.path for item in inventory(store)[0]}
    assert "consumequeue/orders/9/0" in paths
    assert not [path for path in paths if "somebody" in path]


def test_a_link_beside_the_folders_of_a_store_is_not_followed(tiny: tiny_stores.Tiny,
                                                              tmp_path: Path) -> None:
    """What is there may be unreadable, and is not of the store."""
    (tmp_path / "disk" / "0").mkdir(parents=True)
    (tmp_path / "disk" / "0" / "file").write_bytes(b"1")
    (tiny.root / "deep").mkdir()
    for link in ("extra", "deep/extra"):
        (tiny.root / link).symlink_to(tmp_path / "disk")
    with Store.open(tiny.root) as store:
        items, problems = inventory(store)
    assert not [item.path for item in items if "extra" in item.path]
    assert sorted((os.path.relpath(problem.path, tiny.root), problem.reason, problem.unreadable)
                  for problem in problems) == [
        (link, "link to a folder; not read", True) for link in ("deep/extra", "extra")]


def test_a_linked_commitlog(tiny: tiny_stores.Tiny, tmp_path: Path) -> None:
    """As on brokers whose log has a disk of its own."""
    (tiny.root / "commitlog").rename(tmp_path / "disk")
    (tiny.root / "commitlog").symlink_to(tmp_path / "disk")
    info = look(tiny.root)
    assert info["max_phy_offset"] == tiny.log_end
    assert sum(file["kind"] == "commitlog" for file in info["files"]) == 2


def test_a_log_outside_the_root(tiny: tiny_stores.Tiny, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    (tiny.root / "commitlog").rename(disk)
    info = look(tiny.root, (str(disk),))
    assert info["max_phy_offset"] == tiny.log_end
    assert [file["path"] for file in info["files"] if file["kind"] == "commitlog"] == [
        str(disk / name) for name in ("0" * 20, f"{1024:020d}")]


@pytest.mark.parametrize(("content", "pid"), [(b"", None), (b"4711", 4711), (b"xyz", None)])
def test_the_abort_file(tiny: tiny_stores.Tiny, content: bytes, pid: int | None) -> None:
    damage.add_file(tiny.root, "abort", content)
    info = look(tiny.root)
    assert (info["abort"], info["abort_pid"]) == (True, pid)


@pytest.mark.parametrize("size", [0, 17, 24, 40])
def test_a_short_checkpoint(tiny: tiny_stores.Tiny, size: int) -> None:
    damage.truncate(tiny.root, "checkpoint", size)
    info = look(tiny.root)
    assert (info["checkpoint"] is None) == (size < 24)
    assert ("checkpoint" in {finding["path"] for finding in info["troubles"]}) == (size < 24)


def test_more_queues_than_files_may_be_open(tmp_path: Path) -> None:
    tiny = tiny_stores.build(tmp_path / "store", [
        tiny_stores.Spec(f"topic-{number:03d}", 0, b"x") for number in range(200)],
        commitlog_file_size=1 << 16)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        infos = [look(tiny.root, view=view) for view in ("disk", "broker")]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [info["messages"] for info in infos] == [200, 200]
    assert [info["troubles"] for info in infos] == [[], []]


@pytest.mark.parametrize("view", ["disk", "broker"])
def test_each_folder_of_queues_is_listed_once(view: str, golden: GoldenFolder,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    scan = os.scandir

    def noting(path: str) -> Any:
        listed.append(os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", noting)
    look(golden("5.3.3/basic/store"), view=view)
    queues = [path for path in listed if "/consumequeue/" in path]
    assert len(queues) > 10
    assert sorted(queues) == sorted(set(queues))


def test_a_folder_that_is_no_store_says_where_one_is(tmp_path: Path) -> None:
    (tmp_path / "copies" / "a" / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "b" / "commitlog").mkdir(parents=True)
    (tmp_path / "b" / "notes").mkdir()
    with pytest.raises(NotAStoreError, match=r"did you mean \S+/copies/a/store\?$"):
        Store.open(tmp_path / "copies")
    with pytest.raises(NotAStoreError, match=r"did you mean \S+/b\?$"):
        Store.open(tmp_path)  # the other one lies too deep
    with pytest.raises(NotAStoreError, match=r"it is inside the store \S+/b$"):
        Store.open(tmp_path / "b" / "notes")
