"""``tiered compact``: what becomes of local index files, of metadata and of half-done uploads."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from rmqctl.errors import RefusedError
from rmqctl.ext.tiered.files.opening import open_reader, open_writer
from rmqctl.ext.tiered.index import compacted_form, compaction
from rmqctl.ext.tiered.index.writer import TierIndexWriter
from rmqctl.files.lock import StoreLock
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import Metadata, SegmentEntry, parse
from tests.engine_write.faults import broken, failing, out_of_space
from tests.support.deaths import MODES
from tests.tiered.index_model import Clock
from tests.tiered.test_compact_form import DONE, INDEX, LIVE, model
from tests.tiered.test_index_writer import feed_all, some

OWNER = ("DefaultCluster", "broker-a")
SHAPE = fmt.TieredIndexShape(64, 180)
LAST = "fe0d8e0400000000000000016628"


def segments(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / INDEX).iterdir()}


def entries(store: Path) -> dict[int, SegmentEntry]:
    raw = (store / "config" / names.METADATA_NAME).read_bytes()
    return parse(raw).segments[names.INDEX]["broker-a/rmq_sys_INDEX/0"]


def local(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "tiered_index_file").iterdir() if path.is_file())


def stands_as_the_engine_left_it(store: Path, golden) -> None:
    assert segments(store) == segments(golden(DONE))
    assert local(store) == []
    ours, theirs = ((root / "config" / names.METADATA_NAME).read_bytes()
                    for root in (store, golden(DONE)))
    assert re.sub(rb'"createTimestamp":\d+', b"", ours) == re.sub(
        rb'"createTimestamp":\d+', b"", theirs)


def fed(store: Path, seed: int) -> list[str]:
    """More files behind the golden one; the paths of all."""
    with TierIndexWriter(str(store / "tiered_index_file"), SHAPE, Clock(1_795_300_000_000)) as feed:
        feed_all(feed, some(random.Random(seed), 300))
        feed.commit()
        return [*feed.full_files(), feed.open_file]


# -- what a clean shutdown does -------------------------------------------------------------------

def test_only_full_files_go_if_asked_for(golden_copy, golden, rmqctl) -> None:
    store = golden_copy(LIVE)
    before = segments(store)
    rmqctl("tiered", "compact", store, "--full").expect(0)
    assert (segments(store), local(store)) == (before, ["1795233794638"])
    (row,) = rmqctl("tiered", "compact", store, "-o", "json").expect(0).json()
    assert row["segment"] == f"{INDEX.removeprefix('tieredstore/')}/{LAST}"
    assert (row["status"], row["items"], row["base_offset"], row["bytes"]) == (
        "uploaded", 73, 16628, 2584)
    stands_as_the_engine_left_it(store, golden)
    (kept,) = store.glob(".rmqctl/aside/*/tiered_index_file/*")
    assert kept.read_bytes() == (
        golden(LIVE) / "tiered_index_file" / "1795233794638").read_bytes()
    assert rmqctl("tiered", "compact", store, "--all", "-o", "json").expect(0).json() == []


def test_a_rehearsal_changes_nothing(golden, rmqctl) -> None:
    store = golden(LIVE)  # a change to it would fail the run
    (row,) = rmqctl("tiered", "compact", store / "tieredstore", "--all", "--dry-run", "-o",
                    "json").expect(0).json()
    assert (row["status"], row["base_offset"], row["bytes"]) == ("uploaded", 16628, 2584)


def test_many_files_go_one_behind_the_other(golden_copy, rmqctl, seed) -> None:
    store = golden_copy(LIVE)
    paths = fed(store, seed)
    assert len(paths) > 2
    planned = rmqctl("tiered", "compact", store, "--full", "--dry-run", "-o",
                     "json").expect(0).json()
    rows = rmqctl("tiered", "compact", store, "--full", "-o", "json").expect(0).json()
    assert planned == rows
    assert [row["file"] for row in rows] == paths[:-1]
    assert local(store) == [Path(paths[-1]).name]
    base = 16628
    store_segments = segments(store)
    for row in rows:
        name = Path(row["segment"]).name
        assert row["base_offset"] == base == names.parse_segment(name)[0]
        entry = entries(store)[base]
        header = fmt.HEADER.decode(store_segments[name])
        assert (entry.size, entry.begin_timestamp, entry.end_timestamp, entry.status) == (
            len(store_segments[name]), header.begin_timestamp, header.end_timestamp, 0)
        assert header.begin_timestamp == int(Path(row["file"]).name)
        base += row["bytes"]
    assert len(store_segments) == 3 + len(rows)


def test_files_without_items_only_go_aside(golden_copy, rmqctl) -> None:
    store = golden_copy(LIVE)
    rmqctl("tiered", "compact", store, "--all").expect(0)
    TierIndexWriter(str(store / "tiered_index_file"), SHAPE, Clock(1_795_300_000_000)).close()
    before = segments(store)
    (row,) = rmqctl("tiered", "compact", store, "--all", "-o", "json").expect(0).json()
    assert (row["status"], row["segment"]) == ("empty", None)
    assert (segments(store), local(store)) == (before, [])


def test_lost_ways_are_found_by_the_hashes(golden_copy, golden, rmqctl) -> None:
    store = golden_copy(LIVE)
    path = store / "tiered_index_file" / "1795233794638"
    raw = bytearray(path.read_bytes())
    raw[28:28 + 64 * 8] = bytes(64 * 8)
    path.write_bytes(raw)
    done = rmqctl("tiered", "compact", store, "--all", "--index-slots", "64", "-o", "json")
    assert "did not reach all items" in done.expect(0).err
    assert done.json()[0]["chains_sound"] is False
    stands_as_the_engine_left_it(store, golden)


# -- what is refused ------------------------------------------------------------------------------

def test_a_running_broker(golden_copy, rmqctl) -> None:
    store = golden_copy(LIVE)
    with StoreLock(store):
        rmqctl("tiered", "compact", store, "--all").expect(4)
        rmqctl("tiered", "compact", store, "--all", "--dry-run").expect(0)
    assert local(store) == ["1795233794638"]


def test_no_home_no_owner_no_tier(golden_copy, rmqctl, tmp_path) -> None:
    store = golden_copy(LIVE)
    alone = tmp_path / "alone"
    alone.mkdir()
    (store / "tieredstore").rename(alone / "tier")
    assert "--metadata" in rmqctl("tiered", "compact", alone / "tier").expect(2).err
    metadata = store / "config" / names.METADATA_NAME
    rmqctl("tiered", "compact", alone / "tier", "--metadata", metadata, "--all").expect(0)
    assert local(store) == []
    shutil.copytree(alone / "tier" / "212d6b50_DefaultCluster" / "broker-a",
                    alone / "tier" / "212d6b50_DefaultCluster" / "broker-b")
    result = rmqctl("tiered", "compact", alone / "tier", "--metadata", metadata).expect(2)
    assert "broker-b of DefaultCluster" in result.err
    rmqctl("tiered", "compact", alone / "tier", "--metadata", metadata, "--broker",
           "broker-a").expect(0)
    rmqctl("tiered", "compact", tmp_path / "alone").expect(3)
    rmqctl("tiered", "compact").expect(2)
    rmqctl("tiered", "compact", store, "--out", "x").expect(2)


@pytest.mark.parametrize("what", ["shorter", "longer", "gone", "unknown"])
def test_tier_and_metadata_that_do_not_fit(golden_copy, rmqctl, what) -> None:
    store = golden_copy(LIVE)
    last = max((store / INDEX).iterdir(), key=lambda path: names.parse_segment(path.name)[0])
    if what == "gone":
        last.unlink()
    elif what == "unknown":
        shutil.copy(last, last.with_name(names.build_segment(16628)))
    else:
        last.write_bytes(last.read_bytes()[:-28] if what == "shorter"
                         else last.read_bytes() + bytes(28))
    before = segments(store)
    for more in ((), ("--dry-run",)):
        report = rmqctl("tiered", "compact", store, "--all", *more).expect(6)
        assert "tiered recover" in report.err
    assert (segments(store), local(store)) == (before, ["1795233794638"])


def test_unreadable_metadata_is_not_written_over(golden_copy, rmqctl) -> None:
    store = golden_copy(LIVE)
    metadata = store / "config" / names.METADATA_NAME
    metadata.write_bytes(b"{ half of")
    assert "recover" in rmqctl("tiered", "compact", store, "--all").expect(6).err
    assert metadata.read_bytes() == b"{ half of"


def test_damage_of_the_file_is_reported(golden_copy, rmqctl) -> None:
    store = golden_copy(LIVE)
    path = store / "tiered_index_file" / "1795233794638"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert str(path) in rmqctl("tiered", "compact", store, "--all").expect(3).err
    assert local(store) == ["1795233794638"]


# -- half done ------------------------------------------------------------------------------------

def upload(root: Path, metadata: Metadata, path: Path) -> compaction.Uploaded:
    writer = open_writer(str(root))
    try:
        with compacted_form.opened(str(path), 4, 50) as file:
            return compaction.upload(writer, metadata, *OWNER, file, 77)
    finally:
        writer.close()


@pytest.fixture
def open_index(tmp_path) -> tuple[Path, Path, bytes]:
    """(tier root, an open file, its rearranged form)."""
    random_model = model(random.Random(1), 4, 50, 30)
    path = tmp_path / "1000000"
    path.write_bytes(random_model.data)
    return tmp_path / "tier", path, random_model.compacted()


def segment(root: Path, base: int = 0) -> Path:
    return root / names.segment_path(*OWNER, names.INDEX_TOPIC, 0, names.INDEX, base)


@pytest.mark.parametrize("left", ["nothing", "no bytes", "a part", "other bytes", "all"])
def test_what_a_killed_run_left(open_index, left) -> None:
    root, path, whole = open_index
    target = segment(root)
    if left != "nothing":
        target.parent.mkdir(parents=True)
        target.write_bytes({"no bytes": b"", "a part": whole[:100],
                            "other bytes": whole[:40] + b"x" + whole[41:], "all": whole}[left])
    metadata = Metadata()
    done = upload(root, metadata, path)
    assert target.read_bytes() == whole
    assert done.status == ("completed" if left == "all" else "uploaded")
    assert (done.moved_to is not None) == (left in ("a part", "other bytes"))
    if done.moved_to is not None:
        assert (root / done.moved_to).is_file()
    entry = metadata.segments[names.INDEX]["broker-a/rmq_sys_INDEX/0"][0]
    assert (entry.size, entry.create_timestamp, entry.begin_timestamp) == (len(whole), 77, 1000000)
    again = upload(root, metadata, path)
    assert (again.status, again.base) == ("known", 0)
    assert [other.name for other in target.parent.iterdir()] == [target.name]


def test_an_entry_of_a_killed_broker_is_taken_over(open_index) -> None:
    root, path, whole = open_index
    metadata = Metadata()
    metadata.put_segment(SegmentEntry("broker-a/rmq_sys_INDEX/0", 2, 0, create_timestamp=5))
    assert upload(root, metadata, path).base == 0
    entry = metadata.segments[names.INDEX]["broker-a/rmq_sys_INDEX/0"][0]
    assert (entry.size, entry.create_timestamp) == (len(whole), 5)


def test_a_segment_of_another_file_is_not_replaced(open_index) -> None:
    root, path, whole = open_index
    target = segment(root)
    target.parent.mkdir(parents=True)
    other = whole[:4] + (999).to_bytes(8, "big") + whole[12:]
    target.write_bytes(other)
    with pytest.raises(RefusedError, match=r"index file from 1970-01-01T00:00:00\.999Z"):
        upload(root, Metadata(), path)
    metadata = Metadata()
    metadata.put_segment(SegmentEntry("broker-a/rmq_sys_INDEX/0", 2, 0, size=len(whole) - 28,
                                      begin_timestamp=1000000))
    with pytest.raises(RefusedError, match="uploaded as"):
        upload(root, metadata, path)
    assert target.read_bytes() == other


def test_parts_and_another_provider(open_index, monkeypatch, tmp_path) -> None:
    """A part is only valid until the next: whoever keeps it must copy it."""
    _, path, whole = open_index
    monkeypatch.setattr(compacted_form, "PART_ITEMS", 7)
    for url in (f"memory://compact-{os.getpid()}", f"file://{tmp_path}/behind"):
        metadata = Metadata()
        with closing(open_writer(url)) as writer, compacted_form.opened(
                str(path), 4, 50) as file:
            done = compaction.upload(writer, metadata, *OWNER, file, 77)
            assert writer.read(done.path, 0, len(whole) + 1) == whole
        with closing(open_reader(url)) as reader:
            assert reader.read(done.path, 0, len(whole) + 1) == whole


@pytest.mark.long
def test_a_kill_at_every_call(golden_copy, golden, rmqctl, crasher, tmp_path) -> None:
    whole = golden_copy(LIVE)
    store = tmp_path / "store"
    killed = at = 0
    seen = set()
    while True:
        at += 1
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(whole, store)
        died, _, _ = crasher.run("tiered", "compact", store, "--all", at=at,
                                 mode=MODES[at % len(MODES)], folder=tmp_path)
        if not died:
            break
        killed += 1
        for row in rmqctl("tiered", "compact", store, "--all", "-o", "json").expect(0, 1).json():
            seen.add(row["status"])
        stands_as_the_engine_left_it(store, golden)
    assert killed > 20
    assert seen == {"uploaded", "completed", "known"}


@pytest.mark.long
@pytest.mark.parametrize("error", [out_of_space, broken])
def test_an_error_at_every_other_call(golden_copy, golden, rmqctl, tmp_path, error) -> None:
    whole = golden_copy(LIVE)
    store = tmp_path / "store"
    failed = 0
    for at in range(error is broken, 1000, 2):
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(whole, store)
        with failing(at, error) as counter:
            code = rmqctl("tiered", "compact", store, "--all").expect(0, 5).code
        failed += code == 5
        if code == 5:
            rmqctl("tiered", "compact", store, "--all").expect(0, 1)
        stands_as_the_engine_left_it(store, golden)
        if not counter.failed:
            break
    assert failed > 10


# -- one file -------------------------------------------------------------------------------------

def test_only_the_rearranged_form(golden, rmqctl, tmp_path) -> None:
    path = golden(LIVE) / "tiered_index_file" / "1795233794638"
    args = ("tiered", "compact", "--file", path, "--out", tmp_path / "new", "-o", "json")
    assert rmqctl(*args, "--dry-run").expect(0).json()["bytes"] == 2584
    assert not (tmp_path / "new").exists()
    document = json.loads(rmqctl(*args).expect(0).out)
    assert (document["items"], document["slots"], document["chains_sound"]) == (73, 64, True)
    assert (tmp_path / "new").read_bytes() == segments(golden(DONE))[LAST]
    rmqctl(*args).expect(5)
    rmqctl("tiered", "compact", "--file", tmp_path / "new", "--out", tmp_path / "more").expect(3, 6)
    rmqctl("tiered", "compact", "--file", tmp_path / "none", "--out", tmp_path / "more").expect(5)
