"""``rmqctl tiered commit``, and what dispatch completes: every half-done state there is."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.files.reader import PosixReader
from rmqctl.ext.tiered.flat_file import FlatQueue
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.names import COMMIT_LOG, CONSUME_QUEUE
from tests.support import cli, snapshot
from tests.tiered.dispatching import (
    METADATA,
    SMALL,
    assert_consistent,
    assert_metadata,
    dispatched,
    index_items,
    local_store,
    opened,
    put,
    segments,
    streams,
    wanted_items,
)

COUNT = 48
KEY = ("T1", 0)


@pytest.fixture(scope="module")
def fed(tmp_path_factory) -> Path:
    """A folder with ``store`` and what was uploaded of it, in ``store/tier``."""
    folder = tmp_path_factory.mktemp("fed")
    store = local_store(cli.run, folder / "store", COUNT)
    dispatched(cli.run, store, store / "tier", *SMALL)
    return store


@pytest.fixture
def store(fed, tmp_path) -> Path:
    return shutil.copytree(fed, tmp_path / "store")


def queue_of(store: Path) -> FlatQueue:
    with opened(store, store / "tier") as tier:
        queue = tier.queue(*KEY)
        assert queue is not None
        return queue


def last(store: Path, kind: str) -> Path:
    queue = queue_of(store)
    flat = queue.commit_log if kind == COMMIT_LOG else queue.consume_queue
    return store / "tier" / flat.segments[-1].path


def commit(store: Path, *more: str, code: int = 0) -> cli.Result:
    return cli.run("tiered", "commit", store / "tier", "--metadata", store / METADATA, *more,
                   "-o", "json").expect(code)


def lose_units(store: Path, count: int) -> None:
    """As if the last units had not been written: segments of them are gone, too."""
    queue = queue_of(store)
    end = (queue.commit_offset - count) * 20
    for segment in queue.consume_queue.segments:
        path = store / "tier" / segment.path
        if segment.base >= end and segment.base:
            path.unlink()
        else:
            os.truncate(path, min(segment.size, end - segment.base))


def test_nothing_is_half_done(store, rmqctl):
    before = (store / METADATA).read_bytes()
    with snapshot.assert_unchanged(store / "tier"):
        assert commit(store).json() == []
    assert (store / METADATA).read_bytes() == before


def test_golden_tiers_are_whole(golden_copy):
    for state in ("store", "store-live"):
        copy = golden_copy(f"5.3.3/tiered/{state}")
        tier = copy / "tieredstore"
        before = segments(tier), (copy / METADATA).read_bytes()
        assert cli.run("tiered", "commit", tier, "-o", "json").expect(0).json() == []
        assert (segments(tier), (copy / METADATA).read_bytes()) == before


@pytest.mark.parametrize("how", ["commit", "dispatch"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_messages_without_units_get_them(store, fed, count, how):
    lose_units(store, count)
    assert queue_of(store).commit_offset == 8 - count
    if how == "commit":
        row, = commit(store).json()
        assert (row["units_added"], row["bytes_cut"]) == (count, 0)
    else:
        done = dispatched(cli.run, store, store / "tier")
        assert {queue["completed"] for queue in done["queues"]} == {0, count}
        assert done["messages"] == 0
    assert segments(store / "tier") == segments(fed / "tier")
    assert_metadata(store, store / "tier")
    assert index_items(store, store / "tier", 16, 40) == wanted_items(store, store / "tier")


@pytest.mark.parametrize("extra", [1, 7, 19, 20 * 2 + 13])
@pytest.mark.parametrize("how", ["commit", "dispatch"])
def test_a_torn_unit_is_cut_off(store, fed, extra, how):
    """A broker appends behind it: everything after is garbage (§8.4)."""
    lose_units(store, 4)
    path = last(store, CONSUME_QUEUE)
    path.write_bytes(path.read_bytes() + b"\x7f" * (extra % 20))
    if how == "commit":
        row, = commit(store).json()
        assert (row["units_added"], row["bytes_cut"]) == (4, extra % 20)
        assert (store / "tier" / row["kept"][0]).read_bytes() == b"\x7f" * (extra % 20)
    else:
        dispatched(cli.run, store, store / "tier")
    assert segments(store / "tier") == segments(fed / "tier")


@pytest.mark.parametrize("cut", [1, 40, 95])
@pytest.mark.parametrize("how", ["commit", "dispatch"])
def test_a_torn_message_is_cut_off_and_uploaded_again(store, fed, cut, how):
    """The bytes are those of an undisturbed upload: nothing shifts, nothing is twice."""
    path = last(store, COMMIT_LOG)
    size = path.stat().st_size
    lose_units(store, 2)
    os.truncate(path, size - cut)
    if how == "commit":
        row, = commit(store).json()
        assert row["units_added"] == 1
        assert row["bytes_cut"] > 0
        assert_consistent(store, store / "tier")
    done = dispatched(cli.run, store, store / "tier")
    assert done["messages"] == 1
    assert segments(store / "tier") == segments(fed / "tier")
    assert_metadata(store, store / "tier")


def test_a_message_of_another_store_is_an_orphan(store):
    """Whole, and continuing the queue, but not what the local store has: it gets no unit."""
    lose_units(store, 1)
    path = last(store, COMMIT_LOG)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"message ")  # a digit of its body, and the CRC with it
    data[at + 9:at + 10] = b"?"
    path.write_bytes(data)
    before = queue_of(store).commit_log.end
    done = dispatched(cli.run, store, store / "tier")
    assert (done["messages"], {queue["completed"] for queue in done["queues"]}) == (1, {0})
    queue = queue_of(store)
    assert queue.unit(7).commit_log_offset == before
    assert_consistent(store, store / "tier")


def test_duplicates_in_the_middle_stay(store):
    """As a broker leaves it after a crash: the same messages again, behind the first ones."""
    lose_units(store, 3)
    queue = queue_of(store)
    end = queue.unit(4).commit_log_offset + queue.unit(4).size
    orphans = queue.commit_log.read(end, queue.commit_log.end - end)
    assert len(orphans) > 300
    done = commit(store).json()
    assert done[0]["units_added"] == 3
    before = streams(store, store / "tier")
    put(cli.run, store, COUNT, 60)
    dispatched(cli.run, store, store / "tier")
    after = streams(store, store / "tier")
    for key, (start, data) in before.items():
        assert (after[key][0], after[key][1][:len(data)]) == (start, data)
    assert_consistent(store, store / "tier")


def test_units_that_lead_nowhere_are_not_built_upon(store):
    path = last(store, COMMIT_LOG)
    os.truncate(path, path.stat().st_size - 100)
    before = segments(store / "tier")
    row, = commit(store, code=1).json()
    assert row["status"] == "refused"
    assert "tiered recover" in row["reason"]
    put(cli.run, store, COUNT, 12)
    done = dispatched(cli.run, store, store / "tier", code=1)
    assert [queue["status"] for queue in done["queues"]].count("refused") == 1
    after = segments(store / "tier")
    assert {name: data for name, data in after.items() if "/T1/0/" in name} == {
        name: data for name, data in before.items() if "/T1/0/" in name}


@pytest.mark.parametrize("lost", ["sizes", "times", "entries", "queues"])
def test_metadata_says_again_what_the_files_are(store, lost):
    """What a kill between file and metadata leaves (and 5.3.0 without one, #8532)."""
    metadata = meta.parse((store / METADATA).read_bytes())
    good = metadata.copy()
    for kind in (COMMIT_LOG, CONSUME_QUEUE):
        for table in metadata.segments[kind].values():
            for base, replaceds_by_base in list(table.items()):
                if lost == "sizes":
                    table[base] = replace(replaceds_by_base,
                                          size=max(replaceds_by_base.size - 20, 0))
                elif lost == "times":
                    table[base] = replace(replaceds_by_base, begin_timestamp=(1 << 63) - 1)
                elif lost == "entries":
                    del table[base]
    if lost == "queues":
        metadata.queues.clear()
    (store / METADATA).write_bytes(meta.build(metadata))
    assert len(commit(store).json()) == 6
    parsed_metadata = assert_metadata(store, store / "tier")
    for kind in (COMMIT_LOG, CONSUME_QUEUE):
        for path, table in good.segments[kind].items():
            for base, replaceds_by_base in table.items():
                mine = parsed_metadata.segments[kind][path][base]
                assert (mine.size, mine.begin_timestamp, mine.end_timestamp) == (
                    replaceds_by_base.size, replaceds_by_base.begin_timestamp,
                    replaceds_by_base.end_timestamp)


def test_a_dry_run_changes_nothing(store):
    lose_units(store, 2)
    path = last(store, CONSUME_QUEUE)
    path.write_bytes(path.read_bytes() + b"xyz")
    with snapshot.assert_unchanged(store):
        row, = commit(store, "--dry-run").json()
    assert (row["units_added"], row["bytes_cut"]) == (2, 3)
    commit(store)
    assert_consistent(store, store / "tier")


def test_what_there_is_no_tier_of(tmp_path, store):
    (tmp_path / "empty").mkdir()
    assert "the tier is empty" in cli.run("tiered", "commit", tmp_path / "empty").expect(0).err
    cli.run("tiered", "commit", tmp_path / "nothing").expect(3)
    (store / METADATA).unlink()
    (store / f"{METADATA}.bak").unlink(missing_ok=True)
    assert "--metadata" in cli.run("tiered", "commit", store / "tier").expect(2).err


@pytest.mark.parametrize("kind", [COMMIT_LOG, CONSUME_QUEUE])
@pytest.mark.parametrize("how", ["commit", "dispatch"])
def test_a_segment_that_outlived_the_end_of_the_one_before(tmp_path, kind, how):
    """A power failure: the next segment had reached the disk, the end of this one had not."""
    store = local_store(cli.run, tmp_path / "store", 12)
    tier = store / "tier"
    dispatched(cli.run, store, tier, *SMALL, "--no-index")
    before = (store / METADATA).read_bytes()
    put(cli.run, store, 12, 108)
    dispatched(cli.run, store, tier, *SMALL, "--no-index")
    wanted = segments(tier)
    queue = queue_of(store)
    flat = queue.commit_log if kind == COMMIT_LOG else queue.consume_queue
    lost = flat.segments[len(flat.segments) // 2 - 1]
    os.truncate(tier / lost.path, lost.size - 7)
    if kind == COMMIT_LOG:  # then nothing of the consume queue was written, either
        for segment in queue.consume_queue.segments:
            os.truncate(tier / segment.path, 40 if not segment.base else 0)
    (store / METADATA).write_bytes(before)
    with snapshot.assert_unchanged(tier):
        row, = [queue for queue in commit(store, "--dry-run").json() if queue["bytes_cut"]]
    if how == "commit":
        assert row["bytes_cut"] == sum(
            queue["bytes_cut"] for queue in commit(store).json())
        assert_consistent(store, tier)
    dispatched(cli.run, store, tier, *SMALL, "--no-index")
    assert segments(tier) == wanted
    assert_metadata(store, tier)


def test_a_gap_that_metadata_knows_nothing_of_is_no_power_failure(store):
    """Something was damaged long ago: what lies behind is not taken away."""
    queue = queue_of(store)
    segment = queue.consume_queue.segments[0]
    os.truncate(store / "tier" / segment.path, segment.size - 20)
    before = segments(store / "tier")
    row, = commit(store, code=1).json()
    assert "units are missing" in row["reason"]
    assert segments(store / "tier") == before


def test_other_sizes_than_before_are_said(store):
    put(cli.run, store, COUNT, 12)
    done = cli.run("tiered", "dispatch", store, store / "tier", "--commitlog-max-size", "1MiB")
    assert "1048576, was 3000" in done.expect(0).err
    assert_consistent(store, store / "tier")


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
def test_what_cannot_be_looked_at_is_not_whole(golden_copy, rmqctl, monkeypatch, how):
    root = golden_copy("5.3.3/tiered/store")
    listed = PosixReader.list

    def refusing(self, folder):
        if folder.endswith(f"/{CONSUME_QUEUE}"):
            raise StoreIOError(f"cannot list {folder}: permission denied (EACCES)")
        return listed(self, folder)

    monkeypatch.setattr(PosixReader, "list", refusing)
    assert "cannot list" in rmqctl("tiered", "commit", root, *how).expect(5).err


def test_a_dry_run_refuses_what_the_run_refuses(golden_copy, rmqctl):
    root = golden_copy("5.3.3/tiered/store")
    (root / "config" / "tieredStoreMetadata.json").write_bytes(b"{")
    for how in ([], ["--dry-run"]):
        assert "recover" in rmqctl("tiered", "commit", root, *how).expect(6).err


def test_nothing_to_commit_is_no_failure(tmp_path: Path) -> None:
    """Nothing was uploaded yet."""
    (tmp_path / "tier" / "config").mkdir(parents=True)
    done = cli.run("tiered", "commit", tmp_path / "tier", "-o", "json")
    assert (done.code, done.json()) == (0, [])
    assert cli.run("tiered", "commit", tmp_path / "nowhere").code == 3
