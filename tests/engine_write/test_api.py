"""The engine as a library: many threads, and the states in which a store takes nothing."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.engine.engine import Engine
from rmqctl.engine.log.flush import GroupCommit
from rmqctl.engine.put.message import Outgoing, OutgoingList, PutColumns
from rmqctl.errors import RefusedError, StoreHeldError, StoreIOError
from rmqctl.files import disk_usage
from rmqctl.store.store import Store
from tests.conftest import Runner
from tests.engine_write.durable import assert_whole, new_store
from tests.engine_write.test_engine_faults import failing
from tests.support import snapshot
from tests.support.replay import contents

THREADS = 16
VERSIONS = ("4.9.3", "5.3.3")


@pytest.fixture
def root(tmp_path: Path, rmqctl: Runner) -> Path:
    return new_store(rmqctl, tmp_path / "store")


def settings(**changes: object) -> Settings:
    return Settings(**{"commitlog_file_size": 16 << 10, "consumequeue_file_size": 400,
                       "index_slots": 50, "index_max": 200, "disk_watermark": 1.0, **changes})


def message(number: int) -> Outgoing:
    return Outgoing(f"T{number % 3}", b"message %d" % number, f"KEYS\1k{number}\2", number % 2)


def places(root: Path) -> dict[int, int]:
    """Physical offset and number of every message in the log."""
    numbers = {}
    with Store.open(root) as store:
        for batch in store.log.walk(0, store.log.end):
            for at in range(len(batch)):
                record = store.log.record_at(int(batch.offset[at]))
                numbers[int(batch.offset[at])] = int(record.body.split()[1])
    return numbers


class SlowDisk:
    """Every fsync takes a while, as on a disk; counts those of the log."""

    def __init__(self, seconds: float = 0.003) -> None:
        self.count = 0
        self._seconds, self._real = seconds, os.fdatasync

    def __call__(self, fd: int) -> None:
        self.count += 1
        time.sleep(self._seconds)
        self._real(fd)


@pytest.mark.parametrize("version", VERSIONS)
def test_many_threads_share_their_fsyncs(root, rmqctl, version):
    count = 40
    slow = SlowDisk()
    with mock.patch.object(os, "fdatasync", slow), Engine.open(
            root, settings(version=version, flush="sync")) as engine:
        def puts(thread: int) -> dict[int, int]:
            out = {}
            for number in range(thread * count, thread * count + count):
                result = engine.put(message(number))
                assert result.status == "PUT_OK"
                assert engine.log.synced >= result.physical_offset + result.wrote_bytes
                out[result.physical_offset] = number
            return out

        with ThreadPoolExecutor(THREADS) as pool:
            put_results = [*pool.map(puts, range(THREADS))]
        forced = slow.count
    merged = {place: number for put_result in put_results for place, number in put_result.items()}
    assert len(merged) == THREADS * count
    assert places(root) == merged
    # One fsync for each message would be 640.
    assert 0 < forced < THREADS * count / 3
    assert_whole(rmqctl, root, [])


def test_threads_in_groups_while_others_flush_and_read(root, rmqctl):
    with Engine.open(root, settings()) as engine:
        stop = threading.Event()

        def disturb() -> None:
            while not stop.is_set():
                engine.flush()
                engine.reput()

        other = threading.Thread(target=disturb)
        other.start()

        def puts(thread: int) -> int:
            group = [message(thread * 100 + number) for number in range(100)]
            return sum(put_result.stored for put_result in engine.append_many(group))

        try:
            with ThreadPoolExecutor(4) as pool:
                assert sum(pool.map(puts, range(8))) == 800
        finally:
            stop.set()
            other.join(20)
    assert sorted(places(root).values()) == list(range(800))
    assert_whole(rmqctl, root, [])


def test_columns_are_put_like_messages(root, rmqctl, tmp_path):
    count = 3000
    given = OutgoingList.by_column(
        topic=[f"t{number % 3}" for number in range(count)],
        body=[b"%d" % number for number in range(count)],
        properties=["KEYS\x01a\x02" if number % 7 else "DELAY\x013\x02" for number in range(count)],
        queue_id=[-1 if number == 5 else number % 2 for number in range(count)],
        born_timestamp=[7] * count, store_timestamp=[1_700_000_000_000] * count)
    other = snapshot.copy_tree(root, tmp_path / "other")
    fixed = {"wall_clock": lambda: 1_700_000_000_000}
    with Engine.open(root, settings(), **fixed) as engine:
        one_by_one = list(engine.append_many(given))
    with Engine.open(other, settings(), **fixed) as engine:
        groups = list(engine.append_columns(given))
    for name in PutColumns.NAMES:
        values = [getattr(result, name) for result in one_by_one]
        assert np.concatenate([group.column(name) for group in groups]).tolist() == [
            -1 if value is None else value for value in values]
    assert groups[0].alone[5] == one_by_one[5]
    assert not one_by_one[5].stored
    assert {group.status for group in groups} == {"PUT_OK"}
    assert contents(root) == contents(other)
    assert_whole(rmqctl, root, [])


def test_columns_have_the_same_length():
    with pytest.raises(ValueError, match="different lengths"):
        OutgoingList.by_column(["t"], [b"x", b"y"])
    with pytest.raises(TypeError, match="unknown field: tags"):
        OutgoingList.by_column(["t"], [b"x"], tags=["a"])


def test_closing_while_others_put(root, rmqctl):
    """Each put is either stored or refused; what was called stored is there, nothing else is."""
    wait = GroupCommit.wait

    def late(*args):
        time.sleep(0.02)
        return wait(*args)

    for round_ in range(5):
        engine = Engine.open(root, settings(flush="sync"))
        before = places(root)
        stored: list[int] = []

        def puts(thread: int, engine=engine, stored=stored, base=round_ * 100_000) -> None:
            with contextlib.suppress(RefusedError):
                for number in range(base + thread * 1000, base + thread * 1000 + 1000):
                    result = engine.put(message(number))
                    if not result.stored:
                        assert result.status == "SERVICE_NOT_AVAILABLE"
                        return
                    assert result.status == "PUT_OK"
                    stored.append(number)

        threads = [threading.Thread(target=puts, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.01 + round_ * 0.01)
        # Between appending and waiting for the disk a thread may be held up for long.
        with mock.patch.object(GroupCommit, "wait", late):
            time.sleep(0.02)
            engine.close()
            for thread in threads:
                thread.join(20)
        assert not engine.failed
        now = places(root)
        assert sorted(number for place, number in now.items() if place not in before) == sorted(
            stored)
        assert not (root / "abort").exists()
    assert_whole(rmqctl, root, [])


# -- a store that takes nothing -------------------------------------------------------------------


@pytest.mark.parametrize(("version", "status"), [("4.9.3", "OS_PAGECACHE_BUSY"),
                                                 ("5.3.3", "OS_PAGE_CACHE_BUSY")])
def test_busy_while_a_put_holds_the_lock(root, rmqctl, version, status):
    """Who comes while a put hangs is answered at once; the one that hangs goes on well."""
    hangs, go_on = threading.Event(), threading.Event()
    with Engine.open(root, settings(version=version, page_cache_busy=50)) as engine:
        assert engine.put(message(0)).stored
        real = engine.log.append

        def append(parts):
            hangs.set()
            assert go_on.wait(20)
            real(parts)

        with mock.patch.object(engine.log, "append", append), ThreadPoolExecutor(1) as pool:
            first = pool.submit(engine.put, message(1))
            assert hangs.wait(20)
            time.sleep(0.1)
            busy = engine.put(message(2))
            several = engine.put_many([message(3), message(4)])
            go_on.set()
            assert first.result(20).stored
        assert (busy.status, busy.physical_offset) == (status, None)
        assert [put_result.status for put_result in several] == [status] * 2
        assert "lock" in busy.reason
        assert engine.put(message(5)).stored
    assert list(places(root).values()) == [0, 1, 5]
    assert_whole(rmqctl, root, [])


def test_a_slave_takes_nothing(root):
    with snapshot.assert_unchanged(root), Engine.open(root, settings(role="SLAVE")) as engine:
        results = engine.put_many([message(0), message(1)])
        assert [put_result.status for put_result in results] == ["SERVICE_NOT_AVAILABLE"] * 2
        assert [put_result.status for put_result in engine.append_many([message(0)])] == [
            "SERVICE_NOT_AVAILABLE"]
        assert "slave" in results[0].reason


def test_a_disk_beyond_the_watermark(root, rmqctl):
    """Looked at from time to time; puts go on when there is room again."""
    ratio = [0.95]
    with mock.patch.object(disk_usage, "used_ratio", side_effect=lambda _: ratio[0]):
        with snapshot.assert_unchanged(root), Engine.open(
                root, settings(disk_watermark=0.9)) as engine:
            refused = engine.put(message(0))
            assert refused.status == "SERVICE_NOT_AVAILABLE"
            assert "disk" in refused.reason
            ratio[0] = 0.5
            assert engine.put(message(0)).status == "SERVICE_NOT_AVAILABLE"  # just looked
        with mock.patch("rmqctl.files.disk_usage._SECONDS", 0), Engine.open(
                root, settings(disk_watermark=0.9)) as engine:
            assert engine.put(message(0)).stored
            ratio[0] = 0.91
            assert engine.put(message(1)).status == "SERVICE_NOT_AVAILABLE"
            ratio[0] = 0.9
            assert engine.put(message(1)).stored
        ratio[0] = 0.99
        done = rmqctl("write", root, "--topic", "T1", "--body", "x", "-o", "json").expect(6)
        assert done.json()["status"] == "SERVICE_NOT_AVAILABLE"
        rmqctl("write", root, "--topic", "T1", "--body", "message 2", "--disk-watermark",
               "100%").expect(0)
    assert_whole(rmqctl, root, [])


def test_a_closed_engine(root):
    engine = Engine.open(root, settings())
    assert engine.put(message(0)).stored
    engine.close()
    with snapshot.assert_unchanged(root):
        assert engine.put(message(1)).status == "SERVICE_NOT_AVAILABLE"
        for call in (engine.flush, engine.reput):
            with pytest.raises(RefusedError, match="closed"):
                call()
        engine.close()


def test_two_engines_in_one_process(root):
    with Engine.open(root, settings()) as engine:
        assert engine.put(message(0)).stored
        with pytest.raises(StoreHeldError):
            Engine.open(root, settings())
        assert engine.put(message(1)).stored
    with Engine.open(root, settings()) as engine:
        assert engine.put(message(2)).stored
    assert list(places(root).values()) == [0, 1, 2]


def test_opening_and_closing_touches_nothing(root):
    with Engine.open(root, settings()) as engine:
        engine.put(message(0))
    with snapshot.assert_unchanged(root), Engine.open(root, settings()) as engine:
        engine.flush()
        engine.reput()
        assert engine.put_many([]) == []


# -- after a failure ------------------------------------------------------------------------------


def test_a_failed_engine_takes_nothing_more_and_leaves_its_mark(root, rmqctl):
    engine = Engine.open(root, settings(flush="sync"))
    assert engine.put(message(0)).stored
    with failing(1), pytest.raises(StoreIOError):
        engine.put(message(1))
    assert engine.failed
    with pytest.raises(RefusedError, match="recover it"):
        engine.put(message(2))
    engine.close()
    assert (root / "abort").exists()
    with Engine.open(root, settings()) as engine:
        assert engine.recovered
        assert engine.put(message(3)).stored
    assert list(places(root).values()) == [0, 3]
    assert_whole(rmqctl, root, [])


def test_a_flush_that_failed_is_not_called_good_later(root):
    """The system tells of a failed fsync once; nobody may be told that all is well afterwards."""
    engine = Engine.open(root, settings(flush="sync"))
    assert engine.put(message(0)).stored

    def broken(fd):
        raise OSError(5, "broken")

    with mock.patch.object(os, "fdatasync", broken), pytest.raises(StoreIOError):
        engine.put(message(1))
    for _ in range(2):
        with pytest.raises(RefusedError):
            engine.put(message(2))
    with pytest.raises(RefusedError):
        engine.flush()
    engine.close()
    assert (root / "abort").exists()


def test_a_background_flush_that_failed_is_reported_soon(root):
    """Nobody waits for an asynchronous flush: the next put has to say it."""
    engine = Engine.open(root, settings(flush_interval=10, flush_least_pages=0))
    assert engine.put(message(0)).stored

    def broken(fd):
        raise OSError(5, "broken")

    def put_for_long():
        for _ in range(2000):
            engine.put(message(0))
            time.sleep(0.005)

    with mock.patch.object(os, "fdatasync", broken), mock.patch.object(os, "fsync", broken):
        with pytest.raises(StoreIOError, match="force to disk .*commitlog"):
            put_for_long()
        with pytest.raises(StoreIOError):
            engine.close()
    assert (root / "abort").exists()
    with Engine.open(root, settings()) as again:  # its lock was given back all the same
        assert again.put(message(1)).stored


def test_a_flush_that_takes_too_long(root, rmqctl):
    """FLUSH_DISK_TIMEOUT: the message is in the log, and may yet be on disk."""
    with Engine.open(root, settings(flush="sync", sync_flush_timeout=20)) as engine:
        assert engine.put(message(0)).stored
        with mock.patch.object(os, "fdatasync", SlowDisk(0.2)):
            late = engine.put(message(1))
        assert late.status == "FLUSH_DISK_TIMEOUT"
        assert late.stored
    assert list(places(root).values()) == [0, 1]
    assert_whole(rmqctl, root, [])


def test_single_puts_are_dispatched_together(root, monkeypatch):
    """A round of dispatch has a cost of its own: one for each message would be a crawl."""
    calls = []
    real = Dispatcher.dispatch
    monkeypatch.setattr(Dispatcher, "dispatch", lambda self, data, *more: (
        calls.append(len(data)), real(self, data, *more)))
    with Engine.open(root, settings()) as engine:
        for number in range(300):
            assert engine.put(message(number)).stored
    assert len(calls) == len(list((root / "commitlog").iterdir()))
    assert sorted(places(root).values()) == list(range(300))
