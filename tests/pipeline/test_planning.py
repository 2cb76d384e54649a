"""Planning: nothing left out, nothing twice, and a bounded number of partitions."""

from __future__ import annotations

import os
import pickle
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from rmqctl.errors import NotAStoreError, StoreIOError, UsageError
from rmqctl.sql import planning
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.planning import plan
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.reader import LogPiece
from tests.conftest import GoldenFolder
from tests.pipeline import reading
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores
from tests.support.share import sample

TABLES = ("messages", "frames", "consumequeue", "index")


def planned(path: Path | str, table: str = "messages", **options: str):
    read_options = ReadOptions.of({"path": str(path), "table": table, **options})
    return plan(read_options, read_options.filters, cores=2)


# -- cutting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("table", TABLES)
def test_pieces_join_without_gap_or_overlap(table: str, count: int, golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    parts = planned(root, table, numPartitions=str(count))
    assert len(parts) == count
    by_file: dict[str, list] = {}
    for piece in (piece for part in parts for piece in part):
        by_file.setdefault(piece.path.path, []).append(piece)
    for pieces in by_file.values():
        assert pieces[0].start == (1 if table == "index" else 0)
        assert all(first.end == other.start for first, other in pairwise(pieces))
        if isinstance(pieces[0], LogPiece):
            assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    top = {"consumequeue": "consumequeue", "index": "index"}.get(table, "commitlog")
    there = [path for path in (root / top).rglob("*") if path.is_file()]
    assert set(by_file) == set(map(str, there))


def test_partitions_have_equal_bytes(golden: GoldenFolder) -> None:
    parts = planned(golden("5.3.3/basic/store"), numPartitions="7")
    sizes = [sum(piece.end - piece.start for piece in part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_how_many_partitions(golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden("5.3.3/basic/store")
    assert len(planned(root)) == 1
    files = len(list((root / "commitlog").iterdir()))
    monkeypatch.setattr(planning, "OPENING", 0)
    assert files * 3 < len(planned(root, splitSize="16KiB")) <= files * 4
    monkeypatch.setattr(planning, "MIN_SIZE", 1)
    whole = planned(root, splitSize="0")
    assert [len(part) for part in whole] == [1] * files
    assert {(piece.start, piece.last) for part in whole for piece in part} == {(0, True)}


def test_split_sizes() -> None:
    assert planning.split_size(1 << 30, 2) == 128 << 20
    assert planning.split_size(1, 64) == planning.MIN_SIZE
    assert planning.split_size(1 << 40, 4) == planning.MAX_SIZE
    assert (1 << 50) / planning.split_size(1 << 50, 4) < planning.MAX_PIECES + 1


def test_an_empty_store_has_one_empty_partition(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for table in TABLES:
        assert planned(tmp_path, table) == [[]]
        assert not reading.rows(tmp_path, table)


@pytest.mark.long
@pytest.mark.parametrize("table", sample(TABLES, 1, "twenty thousand files"))
def test_twenty_thousand_files(table: str, tmp_path: Path) -> None:
    """Few partitions, in seconds, whatever they weigh."""
    files = 20_000
    if table == "consumequeue":
        for queue in range(files // 4):
            folder = tmp_path / "consumequeue" / f"topic{queue % 50}" / str(queue // 50)
            folder.mkdir(parents=True)
            for number in range(4):
                _sparse(folder / f"{number * 6_000_000:020d}", 6_000_000)
    elif table == "index":
        (tmp_path / "index").mkdir()
        store = tiny_stores.build(tmp_path / "tiny")
        head = (store.root / "index" / tiny_stores.INDEX_NAME).read_bytes()
        for number in range(files // 10):  # each of them is read: its header, some entries
            (tmp_path / "index" / f"{20231114221320000 + number}").write_bytes(head)
    else:
        (tmp_path / "commitlog").mkdir()
        for number in range(files):
            _sparse(tmp_path / "commitlog" / f"{number << 20:020d}", 1 << 20)
    began = time.process_time()  # what others do on the machine is no fault of it
    parts = planned(tmp_path, table)
    took = time.process_time() - began
    assert took < 5, took
    assert sum(map(len, parts)) >= (files // 10 if table == "index" else files - 8)
    assert len(parts) < 500
    assert len(pickle.dumps(parts)) < 8 << 20


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def test_the_unused_end_of_a_log_is_one_frame(tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", "preallocated")
    pieces = [piece for part in planned(store.root, "frames", numPartitions="5") for piece in part]
    assert max(piece.path.base + piece.end for piece in pieces if piece.end) <= store.log_end
    messages = [piece for part in planned(store.root, numPartitions="5") for piece in part]
    assert {piece.path.base for piece in messages} < {piece.path.base for piece in pieces}
    for count in (1, 2, 7, 64):
        rows = reading.rows(store.root, "frames", numPartitions=str(count))
        assert sum(row["length"] for row in rows) == 4 * 1024


STORES = sample((golden_store for golden_store in golden_sets.golden_stores()
                 if golden_store.set.version == "5.3.3"), 4,
                "partitions of golden stores")


@pytest.mark.parametrize("store", STORES, ids=lambda golden_store: golden_store.id)
def test_golden_stores(store: golden_sets.GoldenStore, golden: GoldenFolder) -> None:
    """All tables, cut anywhere, are what the local readers have."""
    root = golden(store.id)
    folders = store.commitlog_dirs if store.commitlog_dirs != ("commitlog",) else ()
    options = {"commitlogDirs": ",".join(folders)} if folders else {}
    for table in TABLES:
        wanted = reading.local(root, table, folders)
        for count in ("1", "7", "64"):
            assert reading.rows(root, table, numPartitions=count, **options) == wanted, table


# -- what is left out -----------------------------------------------------------------------------


def test_offsets_choose_files_by_name(golden: GoldenFolder, seed: int) -> None:
    root = golden("5.3.3/basic/store")
    every = reading.rows(root)
    rng = random.Random(seed)
    for _ in range(6):
        start, end = sorted(rng.sample(range(every[-1]["physical_offset"] + 2000), 2))
        wanted = [message for message in every if start <= message["physical_offset"] < end]
        options = {"startPhy": str(start), "endPhy": hex(end)}
        parts = planned(root, **options)
        assert {piece.path.base for part in parts for piece in part} == {
            base for base in range(0, 1 << 20, 65536) if base < end and base + 65536 > start
            and (root / "commitlog" / f"{base:020d}").exists()}
        for count in ("1", "5"):
            assert reading.rows(root, numPartitions=count, **options) == wanted


@pytest.mark.long
def test_offsets_leave_no_frame_out(tmp_path: Path, seed: int) -> None:
    """Also of the unused end, which is looked at in one step."""
    store = tiny_stores.variant(tmp_path / "store", "preallocated")
    damage.write(store.root, store.place(store.log_end)[0], store.place(store.log_end)[1] + 200,
                 b"rest of something")
    every = reading.rows(store.root, "frames")
    assert [row["kind"] for row in every].count("damaged") == 1
    for start in range(0, 4096, 61):
        end = start + 997
        wanted = [message for message in every if start <= message["physical_offset"] < end]
        assert reading.rows(store.root, "frames", startPhy=str(start), endPhy=str(end),
                            numPartitions="3") == wanted


def test_times_choose_files(golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "CLOCK_SKEW", 0)
    root = golden("5.3.3/basic/store")
    every = reading.rows(root)
    stamps = sorted(message["store_timestamp"] for message in every)
    fewer = 0
    for since, until in ((stamps[100], stamps[200]), (stamps[-5], None), (None, stamps[3]),
                         (stamps[0], stamps[-1])):
        options = {name: str(value) for name, value in (("since", since), ("until", until))
                   if value is not None}
        wanted = [message for message in every if (since or 0) <= message["store_timestamp"]
                  <= (until or 1 << 62)]
        assert reading.rows(root, **options) == wanted
        fewer += sum(map(len, planned(root, **options))) < sum(map(len, planned(root)))
    assert fewer >= 3, "no file was left out"


@pytest.mark.long
def test_one_wrong_time_leaves_nothing_out(golden_copy: GoldenFolder,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit of a store time turned, which no CRC covers: the rest of the file is still found."""

    monkeypatch.setattr(planning, "CLOCK_SKEW", 0)
    root = golden_copy("5.3.3/basic/store")
    every = reading.rows(root)
    stamps = [message["store_timestamp"] for message in every]
    for file in sorted((root / "commitlog").iterdir()):
        first = next(message for message in every if message["physical_offset"] == int(file.name))
        at = 56 if len(first["born_host"].split(":")) == 2 else 68
        raw = file.read_bytes()[at:at + 8]
        assert int.from_bytes(raw, "big") == first["store_timestamp"]
        for bit in (2, 5):
            done = damage.flip_bit(root, f"commitlog/{file.name}", at + bit, 6)
            for since, until in ((min(stamps), max(stamps)), (stamps[-50], None),
                                 (None, stamps[50])):
                rows = reading.rows(root, **{name: str(value) for name, value in (
                    ("since", since), ("until", until)) if value is not None})
                now = reading.rows(root)
                assert rows == [message for message in now
                                if (since or 0) <= message["store_timestamp"]
                                <= (until or 1 << 62)]
            damage.undo(root, done)


def test_topics_choose_queues(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    every = reading.rows(root, "consumequeue")
    topic = every[0]["topic"]
    rows = reading.rows(root, "consumequeue", topic=topic, queueId="0,2")
    assert rows == [queue for queue in every if queue["topic"] == topic
                    and queue["queue_id"] in (0, 2)]
    assert rows
    pieces = [piece for part in planned(root, "consumequeue", topic=topic) for piece in part]
    assert {piece.topic for piece in pieces} == {topic}


def test_a_topic_that_is_no_text(tiny: tiny_stores.Tiny) -> None:
    folder = os.path.join(os.fsencode(tiny.root), b"consumequeue")
    os.rename(os.path.join(folder, b"bills"), os.path.join(folder, b"bi\xffls"))
    rows = reading.rows(tiny.root, "consumequeue", topic=os.fsdecode(b"bi\xffls"))
    assert {row["topic"] for row in rows} == {"bi\ufffdls"}
    assert len(rows) == sum(unit.topic == "bills" for unit in tiny.units)


# -- several stores, and what is no store ---------------------------------------------------------


def test_globs_and_lists(golden: GoldenFolder) -> None:
    first, second = golden("4.9.3/basic/store"), golden("5.3.3/basic/store")
    common = first.parents[2]
    for path in (f"{first},{second}", f"{common}/?.?.3/basic/store",
                 f"{first}/,{common}/*/basic/store", f"file://{first},file:{second}"):
        assert ReadOptions.of({"path": path}).stores() == [str(first), str(second)]
    assert ReadOptions.of({"paths": f'["{first}", "{second}"]'}).stores() == [
        str(first), str(second)]


def test_a_folder_with_a_star_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a*,b" / "commitlog").mkdir(parents=True)
    (tmp_path / "aXb" / "commitlog").mkdir(parents=True)
    assert ReadOptions.of({"path": f"{tmp_path}/a*,b"}).stores() == [f"{tmp_path}/a*,b"]


@pytest.mark.parametrize(("options", "words"), [
    ({}, "no path given"),
    ({"path": "x", "startPhi": "3"}, "startPhi"),
    ({"path": "x", "table": "topics"}, "messages, frames, consumequeue, index"),
    ({"path": "x", "body": "text"}, "binary or none"),
    ({"path": "x", "splitSize": "much"}, "invalid size"),
    ({"path": "x", "numPartitions": "0"}, "numPartitions=0"),
    ({"path": "x", "queueId": "-1"}, "queueId=-1"),
    ({"path": "x", "since": "yesterday"}, "invalid time"),
    ({"path": "x", "startPhy": "-3"}, "invalid offset"),
    ({"path": "x", "table": "consumequeue", "since": "0"}, "no time"),
    ({"path": "x", "table": "index", "topic": "a"}, "no topic or queue"),
])
def test_wrong_options(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ReadOptions.of(options)


def test_what_is_no_store(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", f"{tmp_path}/*"):
        with pytest.raises(NotAStoreError, match=str(path).replace("*", "")):
            planned(path)


def test_a_file_that_cannot_be_looked_at(tiny: tiny_stores.Tiny) -> None:
    damage.symlink(tiny.root, f"commitlog/{1024:020d}")
    with pytest.raises(StoreIOError, match=f"{1024:020d}"):
        planned(tiny.root)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("how", ["gone", "shorter"])
def test_a_file_that_goes_between_planning_and_reading(table: str, how: str,
                                                       tiny: tiny_stores.Tiny) -> None:
    parts = planned(tiny.root, table)
    path = Path(parts[0][-1].path.path)
    if how == "gone":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 30)
    with pytest.raises(StoreIOError, match=path.name):
        reading.read(parts, table, Filters())


def test_what_is_appended_later_is_not_read(tiny: tiny_stores.Tiny) -> None:
    for table in TABLES:
        parts = planned(tiny.root, table)
        before = reading.read(parts, table, Filters())
        for piece in (piece for part in parts for piece in part):
            with open(piece.path.path, "ab") as file:
                file.write(b"\0" * 7 + b"x" * 100)
        assert reading.read(parts, table, Filters()).equals(before), table
