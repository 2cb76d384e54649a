"""``rmqctl tiered dispatch``: what goes up, from where on, and what stays below."""

from __future__ import annotations

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.ext.tiered.dispatch import dispatch
from rmqctl.ext.tiered.dispatch.blocks import Sweep
from rmqctl.ext.tiered.files.settings import PLACE
from rmqctl.files.lock import StoreLock
from rmqctl.formats.local import consume_queue
from rmqctl.store.store import Store
from tests.engine_write.durable import new_store
from tests.support import cli, snapshot
from tests.tiered.dispatching import (
    BROKER,
    METADATA,
    SMALL,
    WHEN,
    assert_consistent,
    assert_metadata,
    dispatched,
    index_items,
    local_store,
    opened,
    put,
    record,
    segments,
    statuses,
    streams,
    wanted_items,
)

COUNT = 120


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    return local_store(cli.run, tmp_path_factory.mktemp("first") / "store", COUNT)


@pytest.fixture
def store(first, tmp_path) -> Path:
    return shutil.copytree(first, tmp_path / "store")


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "tier"


def test_everything_goes_up(rmqctl, store, root):
    done = dispatched(rmqctl, store, root, *SMALL, "--verify-after")
    assert done["messages"] == done["checked"]["messages"] == COUNT
    assert (done["cluster"], done["broker"]) == ("DefaultCluster", "broker-a")
    assert set(statuses(done).values()) == {"uploaded"}
    assert assert_consistent(store, root) == {(f"T{n % 3}", n // 3): (0, 20) for n in range(6)}
    assert_metadata(store, root)
    assert index_items(store, root, 16, 40) == wanted_items(store, root)
    assert done["index_items"] == sum(wanted_items(store, root).values())
    assert done["index_files"] > 3


def test_the_local_messages_stay_as_they_are(rmqctl, store, root, tmp_path):
    home = tmp_path / "home"
    shutil.rmtree(store / ".rmqctl", ignore_errors=True)
    with snapshot.assert_unchanged(store):
        dispatched(rmqctl, store, root, "--metadata", home / METADATA)
    assert (home / "tiered_index_file").is_dir()
    assert json.loads((root / PLACE).read_text())["commit_log_max"] == 1 << 30


@pytest.mark.long
def test_in_steps_it_is_the_same(rmqctl, tmp_path, root):
    """Segments roll where they roll when everything goes at once."""
    store = local_store(rmqctl, tmp_path / "store", 20)
    for number in range(20, 200, 45):
        dispatched(rmqctl, store, root, *SMALL, "--verify-after")
        put(rmqctl, store, number, 45)
    done = dispatched(rmqctl, store, root)  # the sizes are remembered
    assert set(statuses(done).values()) == {"uploaded"}
    dispatched(rmqctl, store, tmp_path / "other", *SMALL, "--metadata",
               tmp_path / "home" / METADATA)
    assert segments(root) == segments(tmp_path / "other")
    assert_metadata(store, root)
    assert index_items(store, root, 16, 40) == wanted_items(store, root)
    again = dispatched(rmqctl, store, root)
    assert (again["messages"], set(statuses(again).values())) == (0, {"up to date"})


@pytest.mark.parametrize("window", [200, 1000, 5000])
def test_any_window_gives_the_same(rmqctl, store, root, tmp_path, monkeypatch, window):
    dispatched(rmqctl, store, tmp_path / "other", *SMALL, "--metadata",
               tmp_path / "home" / METADATA)
    monkeypatch.setattr(dispatch, "Sweep", partial(Sweep, window=window))
    dispatched(rmqctl, store, root, *SMALL)
    assert segments(root) == segments(tmp_path / "other")
    assert index_items(store, root, 16, 40) == wanted_items(store, root)


def test_one_topic(rmqctl, store, root):
    done = dispatched(rmqctl, store, root, "--topic", "T1")
    assert {topic for topic, _ in statuses(done)} == {"T1"}
    dispatched(rmqctl, store, root)
    assert len(assert_consistent(store, root)) == 6
    assert index_items(store, root) == wanted_items(store, root)
    stderr = rmqctl("tiered", "dispatch", store, root, "--topic", "nope").expect(2).err
    assert "no topic nope" in stderr


def test_topics_of_the_broker_never_go_up(rmqctl, tmp_path, root):
    store = local_store(rmqctl, tmp_path / "store", 30,
                        topics=("T0", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "broker-a", "%RETRY%g"))
    done = dispatched(rmqctl, store, root)
    assert {topic for topic, _ in statuses(done)} == {"T0", "%RETRY%g"}
    stderr = rmqctl("tiered", "dispatch", store, root, "--topic", "rmq_sys_x").expect(2).err
    assert "never tiered" in stderr


def test_the_start_of_a_queue(rmqctl, store, root, tmp_path):
    """At a time; at a broker's two minutes, what is older is never uploaded."""
    at = WHEN + 60_500
    done = dispatched(rmqctl, store, root, "--start", str(at))
    with Store.open(store) as local:
        for flat_queue in done["queues"]:
            queue = local.queues.find(flat_queue["topic"], flat_queue["queue_id"])
            times = [local.log.record_at(int(unit["physical_offset"])).store_timestamp
                     for unit in queue.units(0, 20)]
            assert flat_queue["from"] == sum(time < at for time in times)
    assert_consistent(store, root)
    other = tmp_path / "other"
    home = ("--metadata", str(tmp_path / "home" / METADATA))
    now = ("--now", str(WHEN + (COUNT + 60) * 1000))
    done = dispatched(rmqctl, store, other, "--start", "broker", *now, *home)
    assert done["messages"] == 60
    done = dispatched(rmqctl, store, tmp_path / "third", "--start", "broker", "--metadata",
                      tmp_path / "home3" / METADATA)
    assert (done["messages"], set(statuses(done).values())) == (0, {"up to date"})
    put(rmqctl, store, COUNT, 12)
    done = dispatched(rmqctl, store, tmp_path / "third", "--metadata",
                      tmp_path / "home3" / METADATA)
    assert [(queue["from"], queue["to"]) for queue in done["queues"]] == [(20, 22)] * 6


def test_only_what_is_due(rmqctl, store, root):
    """The oldest pending message decides, or how many there are."""
    quiet = ("--only-due", "--now", str(WHEN + 20_000))
    done = dispatched(rmqctl, store, root, *quiet)
    assert (done["messages"], set(statuses(done).values())) == (0, {"waiting"})
    done = dispatched(rmqctl, store, root, *quiet, "--group-commit-count", "8")
    # 20 wait: rounds of 8 are due while more than 8 wait.
    assert {(queue["to"], queue["status"]) for queue in done["queues"]} == {(16, "waiting")}
    late = ("--only-due", "--now", str(WHEN + 200_000))
    done = dispatched(rmqctl, store, root, *late)
    assert {(queue["from"], queue["to"], queue["status"]) for queue in done["queues"]} == {
        (16, 20, "uploaded")}
    assert_consistent(store, root)


def test_an_old_segment_is_ended_before_a_round(rmqctl, store, root):
    rolling = ("--rolling-interval", "1h", "--rolling-min-size", "1000", "--group-commit-count",
               "4")
    dispatched(rmqctl, store, root, *rolling)
    assert_consistent(store, root)
    assert_metadata(store, root)
    with opened(store, root) as tier:
        for queue in tier.queues():
            sizes = [segment.size for segment in queue.commit_log.segments]
            assert len(sizes) > 2
            assert all(size >= 1000 for size in sizes[:-1])


def test_a_message_that_fits_in_no_segment_stops_its_queue(rmqctl, tmp_path, root):
    """A broker tries it for ever."""
    store = local_store(rmqctl, tmp_path / "store", 12)
    source = tmp_path / "big"
    source.write_bytes(record(12, body="y" * 5000))
    rmqctl("append", store, source, "--as-recorded").expect(0)
    put(rmqctl, store, 13, 12)
    done = dispatched(rmqctl, store, root, *SMALL, code=1)
    status_by_name = statuses(done)
    assert status_by_name.pop(("T0", 0)) == "stopped"
    assert set(status_by_name.values()) == {"uploaded"}
    reason = next(queue["reason"] for queue in done["queues"] if queue["reason"])
    assert reason.startswith("queue offset 2: the message has 51")
    assert assert_consistent(store, root)["T0", 0] == (0, 2)
    done = dispatched(rmqctl, store, root, "--commitlog-max-size", "1MiB")
    assert statuses(done)["T0", 0] == "uploaded"
    assert_consistent(store, root)


def test_a_round_takes_at_least_one_message(rmqctl, store, root):
    dispatched(rmqctl, store, root, "--group-commit-size", "1")
    assert assert_consistent(store, root)["T0", 0] == (0, 20)


# -- damage ---------------------------------------------------------------------------------------

def local_unit(store: Path, topic: str, queue_id: int, number: int) -> consume_queue.UnitRecord:
    with Store.open(store) as local:
        unit = local.queues.find(topic, queue_id).unit(number)
        assert unit is not None
        return unit


def poke(store: Path, physical: int, data: bytes) -> None:
    with Store.open(store) as local:
        file = local.log.file_of(physical)
    with open(file.path, "r+b") as log:
        log.seek(physical - file.base)
        log.write(data)


@pytest.mark.parametrize(("at", "data", "word"), [
    (0, b"\0\0\0\x70", "no intact record at this offset"),
    (4, b"\0\0\0\0", "no intact record at this offset"),
    (12, b"\0\0\0\x63", "another queue"), (20, b"\0\0\0\0\0\0\0\x63", "another queue offset"),
    (28, b"\0\0\0\0\0\0\0\x63", "no intact record at this offset"), (95, b"?", "body CRC mismatch"),
    (-8, b"?", "")])
def test_a_damaged_message_ends_its_queue_there(rmqctl, store, root, at, data, word):
    unit = local_unit(store, "T1", 1, 7)
    poke(store, unit.physical_offset + (at if at >= 0 else unit.size + at), data)
    if not word:  # a letter of the properties: nothing protects these
        dispatched(rmqctl, store, root, *SMALL)
        return
    done = dispatched(rmqctl, store, root, *SMALL, code=1)
    status_by_name = statuses(done)
    assert status_by_name.pop(("T1", 1)) == "stopped"
    assert set(status_by_name.values()) == {"uploaded"}
    reason = next(queue["reason"] for queue in done["queues"] if queue["reason"])
    assert f"queue offset 7: physical offset {unit.physical_offset}: " in reason
    assert word in reason
    assert assert_consistent(store, root)["T1", 1] == (0, 7)
    again = dispatched(rmqctl, store, root, code=1)
    assert (again["messages"], statuses(again)["T1", 1]) == (0, "stopped")


@pytest.mark.parametrize("row", [
    consume_queue.ZERO, consume_queue.FILLER, consume_queue.UnitRecord(1 << 40, 100, 0),
    consume_queue.UnitRecord(100, 100, 0), consume_queue.UnitRecord(-5, 100, 0),
    consume_queue.UnitRecord((1 << 63) - 9, 100, 0), consume_queue.UnitRecord(10, -1, 0),
    consume_queue.UnitRecord(10, (1 << 31) - 1, 0)])
def test_a_damaged_row_ends_its_queue_there(rmqctl, store, root, row):
    path = store / "consumequeue" / "T2" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20 * 5:20 * 6] = consume_queue.build(row)
    path.write_bytes(data)
    done = dispatched(rmqctl, store, root, code=1)
    status_by_name = statuses(done)
    assert status_by_name.pop(("T2", 0)) == "stopped"
    assert set(status_by_name.values()) == {"uploaded"}
    with opened(store, root) as tier:
        assert tier.queue("T2", 0).commit_offset == 5


def test_a_log_file_that_is_missing(rmqctl, tmp_path, root):
    store = local_store(rmqctl, tmp_path / "store", 200)
    files = sorted((store / "commitlog").iterdir())
    assert len(files) > 2
    files[1].unlink()
    done = dispatched(rmqctl, store, root, code=1)
    assert set(statuses(done).values()) == {"stopped"}
    assert all("in a missing file" in queue["reason"] or "queue offset" in queue["reason"]
               for queue in done["queues"])


# -- a tier and a store that do not fit -----------------------------------------------------------

def test_a_queue_that_expired_meanwhile_is_not_destroyed(rmqctl, tmp_path, root):
    """A broker deletes all of the tiered queue here."""
    store = local_store(rmqctl, tmp_path / "store", 60)
    dispatched(rmqctl, store, root)
    before = streams(store, root)
    put(rmqctl, store, 60, 400)
    for path in sorted((store / "commitlog").iterdir())[:3]:
        path.unlink()
    done = dispatched(rmqctl, store, root, code=1)
    assert set(statuses(done).values()) == {"refused"}
    assert "--restart-queue" in done["queues"][0]["reason"]
    assert streams(store, root) == before
    done = dispatched(rmqctl, store, root, "--restart-queue", "--topic", "T0", "--verify-after")
    assert set(statuses(done).values()) == {"uploaded"}
    after = streams(store, root)
    assert {key for key in before if after[key] == before[key]} == {
        key for key in before if key[0] != "T0"}
    assert all(after["T0", n, "COMMIT_LOG"][0] == 0 for n in (0, 1))
    assert_metadata(store, root)
    kept = [path for path in (root / ".rmqctl").rglob("*") if path.is_file()]
    assert {path.read_bytes() for path in kept if path.parent.name == "COMMIT_LOG"} == {
        before["T0", n, "COMMIT_LOG"][1] for n in (0, 1)}


def test_a_tier_that_is_ahead_is_left_alone(rmqctl, store, root, tmp_path):
    dispatched(rmqctl, store, root)
    other = local_store(rmqctl, tmp_path / "shorter", 30)
    (other / "config").mkdir(exist_ok=True)
    shutil.copy(store / METADATA, other / METADATA)
    before = segments(root)
    done = dispatched(rmqctl, other, root)
    assert set(statuses(done).values()) == {"skipped"}
    assert segments(root) == before


def test_a_tier_with_metadata_elsewhere_needs_its_name(rmqctl, store, tmp_path):
    root = tmp_path / "home" / "tier"
    dispatched(rmqctl, store, root, "--metadata", tmp_path / "home" / METADATA)
    stderr = rmqctl("tiered", "dispatch", store, root).expect(2).err
    assert "--metadata" in stderr


def test_metadata_that_cannot_be_read_is_not_replaced(rmqctl, store, root):
    dispatched(rmqctl, store, root)
    (store / METADATA).write_bytes(b"{broken")
    stderr = rmqctl("tiered", "dispatch", store, root).expect(6).err
    assert "tiered recover" in stderr
    assert (store / METADATA).read_bytes() == b"{broken"


def test_a_store_named_twice_has_its_tier_inside(rmqctl, store):
    dispatched(rmqctl, store, store)
    assert_consistent(store, store / "tieredstore")
    assert dispatched(rmqctl, store, store)["messages"] == 0


def test_who_the_broker_is(rmqctl, store, root):
    stderr = rmqctl("tiered", "dispatch", store, root).expect(2).err
    assert "--broker" in stderr
    assert not root.exists()
    dispatched(rmqctl, store, root)
    assert rmqctl("tiered", "dispatch", store, root, "-o", "json").expect(0).json()[
        "broker"] == "broker-a"
    rmqctl("tiered", "dispatch", store, root, "--broker", "a/b").expect(2)


def test_the_controllers_file_names_the_broker(rmqctl, store, root):
    (store / "brokerIdentity").write_bytes(b"east#broker-z#1")
    done = rmqctl("tiered", "dispatch", store, root, "-o", "json").expect(0).json()
    assert (done["cluster"], done["broker"]) == ("east", "broker-z")


def test_nobody_else_may_hold_store_or_tier(rmqctl, store, root, tmp_path):
    home = ("--metadata", tmp_path / "home" / METADATA)
    with StoreLock(store):
        rmqctl("tiered", "dispatch", store, root, *BROKER, *home).expect(4)
    dispatched(rmqctl, store, root, *home)
    with StoreLock(root):
        rmqctl("tiered", "dispatch", store, root, *BROKER, *home).expect(4)


def test_a_store_on_a_read_only_disk(rmqctl, store, root, tmp_path, monkeypatch):
    def refused(self) -> None:
        if self.root == str(store):
            raise StoreIOError("cannot open lock: Read-only file system")
        real(self)

    real = StoreLock.acquire
    monkeypatch.setattr(StoreLock, "acquire", refused)
    done = dispatched(rmqctl, store, root, "--metadata", tmp_path / "home" / METADATA)
    assert done["messages"] == COUNT


@pytest.mark.long
def test_a_dry_run_changes_nothing(rmqctl, store, root):
    with snapshot.assert_unchanged(store):
        done = dispatched(rmqctl, store, root, "--dry-run")
    assert not root.exists()
    assert done["messages"] == COUNT
    real = dispatched(rmqctl, store, root)
    assert [done[key] for key in ("messages", "bytes", "queues")] == [
        real[key] for key in ("messages", "bytes", "queues")]
    with snapshot.assert_unchanged(store), snapshot.assert_unchanged(root):
        done = dispatched(rmqctl, store, root, "--dry-run")
    assert done["messages"] == 0


def test_rows_for_programs(rmqctl, store, root):
    rows = rmqctl("tiered", "dispatch", store, root, *BROKER, "-o", "jsonl").expect(0).jsonl()
    assert len(rows) == 6
    assert set(rows[0]) == {"topic", "queue_id", "from", "to", "messages", "bytes", "completed",
                            "status", "reason"}
    text = rmqctl("tiered", "dispatch", store, root).expect(0).out
    assert "up to date" in text


def test_extended_units_give_their_tags(rmqctl, tmp_path, root):
    """The tier has the tags' hash, not the address of a local extension unit."""
    store = new_store(rmqctl, tmp_path / "store")
    source = tmp_path / "lines"
    source.write_bytes(b"".join(record(n) for n in range(30)))
    rmqctl("append", store, source, "--as-recorded", "--consumequeue-ext").expect(0)
    assert local_unit(store, "T0", 0, 0).tags_code < -(1 << 31)
    dispatched(rmqctl, store, root)
    plain = local_store(rmqctl, tmp_path / "plain", 30)
    dispatched(rmqctl, plain, tmp_path / "other")
    assert segments(root) == segments(tmp_path / "other")
    shutil.rmtree(store / "consumequeue_ext")  # then the message tells
    dispatched(rmqctl, store, tmp_path / "third", "--metadata", tmp_path / "home" / METADATA)
    assert segments(root) == segments(tmp_path / "third")


def test_the_index_catches_up_after_runs_without_it(rmqctl, store, root):
    """What was uploaded without index is left so, and said; nothing is there twice."""
    dispatched(rmqctl, store, root, "--topic", "T0", "--no-index")
    assert not os.path.exists(store / "tiered_index_file")
    dispatched(rmqctl, store, root)
    counts, wanted = index_items(store, root), wanted_items(store, root)
    assert set(counts.values()) == {1}
    assert {key for key in wanted if key not in counts} == {key for key in wanted
                                                            if key[1] == "T0"}
    put(rmqctl, store, COUNT, 30)
    dispatched(rmqctl, store, root, "--no-index", "--topic", "T1")
    done = rmqctl("tiered", "dispatch", store, root)
    assert "stay unindexed" in done.err
    assert set(index_items(store, root).values()) == {1}
