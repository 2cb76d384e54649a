"""The log over its files: rolling, laying out ahead, what is left after a fault."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from rmqctl.engine import small_files
from rmqctl.engine.log import log_files as creating
from rmqctl.engine.log.log_files import LogFiles, is_all_zero
from rmqctl.engine.small_files import CheckpointFile
from rmqctl.errors import InternalError, RefusedError, RmqctlError, StoreIOError
from rmqctl.files.lock import StoreLock
from rmqctl.store.files import listing
from tests.engine_write.files_support import (
    ERRORS,
    FILE_SIZE,
    failing,
    open_log,
    put,
    settings,
    whole,
)
from tests.support.golden import all_sets
from tests.support.share import examples, sample

WAYS = {"channel": {}, "mapped": {"mapped": True}, "warm": {"mapped": True, "warm": True},
        "pool of one": {"transient_pool": 1}, "pool of three": {"transient_pool": 3}}
SETTINGS = [pytest.param({**way, "preallocate": ahead}, id=f"{name}{' ahead' * ahead}")
            for name, way in WAYS.items() for ahead in (False, True)]
MULTI_PATH = [golden_set for golden_set in all_sets() if golden_set.kind == "multipath"]
BLANK = bytes.fromhex("cbd43194")


def layout_of(messages: list[bytes]) -> bytes:
    """What a log of these messages looks like, by the broker's rule."""
    data = b""
    for message in messages:
        room = FILE_SIZE - len(data) % FILE_SIZE if data else FILE_SIZE
        if len(message) + 8 > room:
            data += (room.to_bytes(4) + BLANK).ljust(room, b"\0")
        data += message
    return data.ljust(-(-len(data) // FILE_SIZE) * FILE_SIZE, b"\0")


@limits(max_examples=examples(15))
@given(sizes=st.lists(st.integers(1, 4000), max_size=25),
       actions=st.lists(st.sampled_from(["", "", "sync", "commit", "reopen"]), max_size=25))
@pytest.mark.parametrize("changed", SETTINGS)
def test_every_way_leaves_a_brokers_log(tmp_path_factory, changed, sizes, actions):
    folder = tmp_path_factory.mktemp("log") / "commitlog"
    messages = [bytes([number % 255 + 1]) * size for number, size in enumerate(sizes)]
    log = open_log(folder, **changed)
    try:
        for number, message in enumerate(messages):
            at = put(log, message)
            assert log.position == at + len(message)
            action = actions[number] if number < len(actions) else ""
            if action == "sync":
                assert log.sync() == log.synced == log.position
            elif action == "commit":
                log.commit()
            elif action == "reopen":
                end = log.position
                log.sync()
                log.remove_unused()
                log.close()
                log = open_log(folder, end, **changed)
                assert log.position == end
        assert log.sync() == log.position
        log.remove_unused()
    finally:
        log.close()
    assert whole(folder) == layout_of(messages)
    assert [file.base for file in log.files] == [file.base for file in listing(str(folder)).files]


@pytest.mark.parametrize("changed", SETTINGS)
def test_rules_of_rolling(tmp_path, changed):
    with closing(open_log(tmp_path / "log", 3 * FILE_SIZE, **changed)) as log:
        assert (log.position, log.room(), log.current) == (3 * FILE_SIZE, FILE_SIZE, None)
        assert not (tmp_path / "log").exists()
        log.start_at(5 * FILE_SIZE)
        with pytest.raises(RefusedError):
            log.start_at(5)
        log.append([b"abc"])
        assert (log.position, log.room()) == (5 * FILE_SIZE + 3, FILE_SIZE - 3)
        with pytest.raises(InternalError):
            log.start_at(0)
        with pytest.raises(InternalError, match="before the file is full"):
            log.roll()
        with pytest.raises(InternalError):
            log.append([bytes(FILE_SIZE - 2)])
        log.close_with_blank()
        assert (log.position, log.room()) == (6 * FILE_SIZE, 0)
        with pytest.raises(InternalError):
            log.close_with_blank()
        log.roll()
        assert (log.position, log.room()) == (6 * FILE_SIZE, FILE_SIZE)
        assert log.synced == 5 * FILE_SIZE
        assert log.sync() == 6 * FILE_SIZE
        log.remove_unused()
    with pytest.raises(InternalError):
        log.append([b"x"])
    assert sorted(os.listdir(tmp_path / "log")) == [f"{n * FILE_SIZE:020d}" for n in (5, 6)]


def test_a_message_may_leave_exactly_the_blank(tmp_path):
    with closing(open_log(tmp_path)) as log:
        log.append([b"x" * (FILE_SIZE - 8)])
        log.close_with_blank()
        log.roll()
    assert whole(tmp_path) == b"x" * (FILE_SIZE - 8) + b"\0\0\0\x08" + BLANK + bytes(FILE_SIZE)


# -- opening ---------------------------------------------------------------------------------------


def test_a_log_is_opened_in_the_middle_and_old_bytes_behind_stay(tmp_path):
    (tmp_path / f"{0:020d}").write_bytes(b"a" * FILE_SIZE)
    with closing(open_log(tmp_path, 10)) as log:
        log.append([b"bbb"])
        log.close_with_blank()
    assert whole(tmp_path) == (b"a" * 10 + b"bbb" + (FILE_SIZE - 13).to_bytes(4) + BLANK
                               + b"a" * (FILE_SIZE - 21))


def test_the_end_at_the_border_of_a_file(tmp_path):
    (tmp_path / f"{0:020d}").write_bytes(b"a" * FILE_SIZE)
    with closing(open_log(tmp_path, FILE_SIZE)) as log:
        assert (log.current, log.position, log.room()) == (None, FILE_SIZE, FILE_SIZE)
        log.append([b"b"])
    with closing(open_log(tmp_path, FILE_SIZE)) as log:
        assert log.current is not None
        assert (log.position, log.current.wrote) == (FILE_SIZE, 0)
    assert whole(tmp_path) == b"a" * FILE_SIZE + b"b" + bytes(FILE_SIZE - 1)


@pytest.mark.parametrize("end", [5 * FILE_SIZE, FILE_SIZE + 1, 2 * FILE_SIZE, 7 * FILE_SIZE + 1])
def test_ends_that_cannot_be(tmp_path, end):
    for base in (0, 3 * FILE_SIZE):
        (tmp_path / f"{base:020d}").write_bytes(bytes(FILE_SIZE))
    with pytest.raises(RefusedError, match="cannot append at"):
        open_log(tmp_path, end)


def test_two_files_of_one_name(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / f"{0:020d}").write_bytes(bytes(FILE_SIZE))
    files = [file for folder in folders for file in listing(str(folder)).files]
    with pytest.raises(RefusedError, match="same name"):
        LogFiles([str(folder) for folder in folders], settings(), 0, files)


def test_a_first_file_of_the_wrong_length_is_not_touched(tmp_path):
    (tmp_path / f"{0:020d}").write_bytes(b"a" * 100)
    with pytest.raises(RefusedError, match="has 100 bytes, not"):
        open_log(tmp_path, 50)
    assert (tmp_path / f"{0:020d}").read_bytes() == b"a" * 100


# -- several folders -------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_files_are_placed_as_in_the_golden_stores(golden, tmp_path, ahead):
    for golden_set in MULTI_PATH:
        store = golden(f"{golden_set.id}/store")
        expected = {str(file.relative_to(store)) for file in store.glob("cl?/*")}
        size = next(store.glob("cl1/*")).stat().st_size
        root = tmp_path / golden_set.version
        log = LogFiles([str(root / "cl2"), str(root / "cl1")],
                       settings(commitlog_file_size=size, preallocate=ahead), 0)
        for number in range(len(expected)):
            if number:
                log.close_with_blank()
                log.roll()
            log.append([b"x"])
        log.remove_unused()
        log.close()
        assert {str(file.relative_to(root)) for file in root.glob("cl?/*")} == expected


def test_a_full_folder_gets_no_file(tmp_path):
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    log = LogFiles([a, b], settings(), 0)
    with closing(log), mock.patch("rmqctl.engine.log.log_files.full_folders", return_value={a}):
        log.append([b"x"])
    assert (os.path.exists(a), os.listdir(b)) == (False, [f"{0:020d}"])


# -- laying out ahead ------------------------------------------------------------------------------


def wait_for(path: Path) -> None:
    for _ in range(1000):
        if path.exists():
            return
        threading.Event().wait(0.005)
    pytest.fail(f"{path} never came")


def test_the_next_file_is_there_while_the_log_is_open_and_after_a_crash(tmp_path):
    log = open_log(tmp_path, preallocate=True)
    log.append([b"x"])
    ahead = tmp_path / f"{FILE_SIZE:020d}"
    wait_for(ahead)
    log.close()  # without remove_unused: as after a crash
    assert whole(tmp_path) == b"x" + bytes(2 * FILE_SIZE - 1)
    for changed in ({}, {"preallocate": True}, {"mapped": True}):
        with closing(open_log(tmp_path, 1, **changed)) as log:
            log.close_with_blank()
            log.roll()
            assert log.position == FILE_SIZE
            assert Path(log.current.path) == ahead
            assert [file.base for file in log.files] == [0, FILE_SIZE]
            log.remove_unused()
        assert sorted(os.listdir(tmp_path)) == [f"{0:020d}", f"{FILE_SIZE:020d}"]


def test_opening_alone_lays_nothing_out(tmp_path):
    (tmp_path / f"{0:020d}").write_bytes(bytes(FILE_SIZE))
    log = open_log(tmp_path, 5, preallocate=True)
    log.append([b"x"])
    log.remove_unused()
    log.close()
    assert len(os.listdir(tmp_path)) == 1


def test_a_clean_end_removes_what_was_not_used_and_nothing_else(tmp_path):
    log = open_log(tmp_path, preallocate=True)
    log.append([b"x"])
    ahead = tmp_path / f"{FILE_SIZE:020d}"
    wait_for(ahead)
    far = tmp_path / f"{9 * FILE_SIZE:020d}"
    far.write_bytes(bytes(FILE_SIZE))
    log.remove_unused()
    assert not ahead.exists()
    assert far.exists()
    log.close()


def test_a_file_laid_out_ahead_that_got_data_is_never_removed(tmp_path):
    log = open_log(tmp_path, preallocate=True)
    log.append([b"x"])
    ahead = tmp_path / f"{FILE_SIZE:020d}"
    wait_for(ahead)
    with ahead.open("r+b") as file:
        file.write(b"not ours")
    with pytest.raises(InternalError, match="not empty"):
        log.remove_unused()
    log.close()
    assert ahead.read_bytes() == b"not ours".ljust(FILE_SIZE, b"\0")


@pytest.mark.parametrize("ahead", [False, True])
def test_a_next_file_with_data_is_refused_and_left(tmp_path, ahead):
    for base, content in ((0, bytes(FILE_SIZE)), (FILE_SIZE, b"data".rjust(FILE_SIZE, b"\0"))):
        (tmp_path / f"{base:020d}").write_bytes(content)
    with closing(open_log(tmp_path, 0, preallocate=ahead)) as log:
        log.append([b"x"])
        log.close_with_blank()
        for _ in range(2):
            with pytest.raises(RefusedError, match="contains data"):
                log.roll()
            assert (log.position, log.room()) == (FILE_SIZE, 0)
        log.remove_unused()
    assert (tmp_path / f"{FILE_SIZE:020d}").read_bytes() == b"data".rjust(FILE_SIZE, b"\0")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("changed", SETTINGS)
def test_a_roll_that_fails_can_be_tried_again(tmp_path, changed, error):
    with closing(open_log(tmp_path, **changed)) as log:
        with (mock.patch.object(creating, "new_file",
                                side_effect=StoreIOError("no space")),
              pytest.raises(StoreIOError, match="no space")):
            log.append([b"a"])
        assert (log.current, log.position) == (None, 0)
        log.append([b"a"])
        if log._allocator is not None:
            wait_for(tmp_path / f"{FILE_SIZE:020d}")
        log.close_with_blank()
        log.commit()
        log.roll()
        log.append([b"b"])
        if log._allocator is not None:
            wait_for(tmp_path / f"{2 * FILE_SIZE:020d}")
        log.close_with_blank()
        log.commit()
        if log._allocator is None:
            with (failing(1, error, ("open", "link", "ftruncate"), for_ever=True),
                  pytest.raises(StoreIOError, match=str(tmp_path))):
                log.roll()
            assert (log.position, log.room()) == (2 * FILE_SIZE, 0)
        log.roll()
        assert log.sync() == log.position == 2 * FILE_SIZE
        log.remove_unused()
    assert len(whole(tmp_path)) == 3 * FILE_SIZE


def test_what_failed_in_the_background_comes_when_the_file_is_needed(tmp_path):
    real, fails = creating.Maker.next, []

    def following(self, path, base):
        if base == FILE_SIZE and len(fails) < 2:
            fails.append(threading.current_thread().name)
            raise StoreIOError("no space for it")
        return real(self, path, base)

    with (mock.patch.object(creating.Maker, "next", following),
          closing(open_log(tmp_path, preallocate=True)) as log):
        log.append([b"a"])
        log.close_with_blank()
        while not log._allocator._created:
            threading.Event().wait(0.005)
        with pytest.raises(StoreIOError, match="no space for it"):
            log.roll()
        assert (log.position, log.room()) == (FILE_SIZE, 0)
        log.roll()  # there is room now
        log.append([b"b"])
        log.remove_unused()
    assert fails == ["log-ahead"] * 2
    assert whole(tmp_path)[FILE_SIZE:FILE_SIZE + 1] == b"b"


def test_a_defect_in_the_background_is_an_answer_too(tmp_path):
    with (mock.patch.object(creating.Maker, "next", side_effect=ZeroDivisionError),
          closing(open_log(tmp_path, preallocate=True)) as log,
          pytest.raises(InternalError, match="ZeroDivisionError")):
        log.append([b"a"])


# -- commit and sync -------------------------------------------------------------------------------


def test_files_are_forced_in_order_and_closed_when_full(tmp_path):
    with closing(open_log(tmp_path)) as log:
        for _ in range(3):
            log.append([b"x"])
            log.close_with_blank()
            log.roll()
        log.append([b"x"])
        assert log.synced == 0
        before = len(os.listdir("/proc/self/fd"))
        assert log.sync() == 3 * FILE_SIZE + 1
        assert log.syncs == 4
        assert len(os.listdir("/proc/self/fd")) == before - 3
        assert log.sync() == 3 * FILE_SIZE + 1
        assert log.syncs == 4


def test_an_error_stops_the_order(tmp_path):
    with closing(open_log(tmp_path)) as log:
        log.append([b"x"])
        log.close_with_blank()
        log.roll()
        log.append([b"x"])
        with failing(1, errno.EIO, ("fsync",)), pytest.raises(StoreIOError):
            log.sync()
        assert log.synced == 0
        with pytest.raises(StoreIOError):
            log.sync()
        assert log.synced == 0


def test_least_pages(tmp_path):
    with closing(open_log(tmp_path, commitlog_file_size=1 << 20)) as log:
        log.append([b"x" * 4095])
        assert log.sync(1) == 0
        log.append([b"x"])
        assert log.sync(2) == 0
        assert log.sync(1) == 4096
        log.append([b"x" * 4095])
        assert log.sync(1) == 4096
        assert log.sync() == 8191
        log.close_with_blank()
        assert log.sync(1000) == 1 << 20


def test_a_pool_takes_several_files_before_it_has_to_commit(tmp_path):
    with closing(open_log(tmp_path, transient_pool=2)) as log:
        seen = []
        for _ in range(4):
            log.append([b"x"])
            log.close_with_blank()
            log.roll()
            seen.append([is_all_zero(file.path) for file in log.files[:-1]])
        assert seen == [[True], [False, True], [False, False, True], [False, False, False, True]]
    assert whole(tmp_path)[3 * FILE_SIZE:3 * FILE_SIZE + 1] == b"x"


def test_no_pool_with_synchronous_flush(tmp_path):
    with closing(open_log(tmp_path, transient_pool=2, flush="sync")) as log:
        log.append([b"x"])
        assert not is_all_zero(log.files[0].path)


def test_appending_and_forcing_at_the_same_time(tmp_path):
    for changed in ({}, {"mapped": True}, {"transient_pool": 2, "preallocate": True}):
        folder = tmp_path / "-".join(changed) / "log"
        log = open_log(folder, **changed)
        done = threading.Event()
        problems = []

        def force(log=log, done=done, problems=problems):
            last = 0
            try:
                while not done.is_set():
                    now = log.sync()
                    if now < last:
                        problems.append((last, now))
                    last = now
            except RmqctlError as error:
                problems.append(error)

        thread = threading.Thread(target=force)
        thread.start()
        messages = [bytes([n % 255 + 1]) * (n * 37 % 3000 + 1) for n in range(300)]
        for message in messages:
            put(log, message)
        done.set()
        thread.join()
        log.sync()
        log.remove_unused()
        log.close()
        assert problems == []
        assert whole(folder) == layout_of(messages)


# -- everything at once, with a fault at every call ------------------------------------------------


def run(root: Path, changed: dict, acknowledged: list[tuple[int, bytes]]) -> None:
    """An engine's life; what is forced is acknowledged."""
    with StoreLock(root):
        small_files.create_abort(str(root), 1)
        checkpoint = CheckpointFile(root, 5)
        log = open_log(root / "commitlog", **changed)
        try:
            for number in range(6):
                data = bytes([number + 1]) * 3000
                at = put(log, data)
                log.sync()
                acknowledged.append((at, data))
            checkpoint.advance(physic=7)
            checkpoint.flush()
            log.remove_unused()
            small_files.remove_abort(str(root))
        finally:
            log.close()


@pytest.mark.parametrize(("changed", "for_ever", "error"), sample(itertools.product(
    ({}, {"mapped": True}, {"preallocate": True}, {"transient_pool": 1}), (False, True),
    (errno.ENOSPC, errno.EIO)), 7, "faults of the log"))
def test_a_fault_at_any_call_leaves_a_whole_store(tmp_path, changed, error, for_ever):
    for number in range(1, 200):
        root = tmp_path / str(number)
        root.mkdir()
        acknowledged: list[tuple[int, bytes]] = []
        with failing(number, error, for_ever=for_ever) as faults, suppress(StoreIOError):
            run(root, changed, acknowledged)
        if (root / "commitlog").exists():
            log = whole(root / "commitlog")
            for at, data in acknowledged:
                assert log[at:at + len(data)] == data
        else:
            assert not acknowledged
        clean = not (root / "abort").exists()
        assert not clean or len(acknowledged) in (0, 6)
        if not faults.fired:
            assert number > 30
            assert len(acknowledged) == 6
            return
    pytest.fail("never ran without a fault")
