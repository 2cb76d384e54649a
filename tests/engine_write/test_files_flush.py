"""Who forces the log, and when."""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import closing
from unittest import mock

import pytest

from rmqctl.engine.log.flush import FlushService, GroupCommit
from rmqctl.errors import InternalError, RefusedError, RmqctlError, StoreIOError
from tests.engine_write.files_support import ERRORS, open_log, settings


class Log:
    """A log in memory: ``sync`` takes ``delay`` seconds and may fail."""

    def __init__(self, delay: float = 0.0, failure: Exception | None = None) -> None:
        self.delay, self.failure = delay, failure
        self.position = self.synced = 0
        self.calls: list[tuple[int, int]] = []
        self.commits = 0

    def commit(self) -> None:
        self.commits += 1

    def sync(self, least_pages: int = 0) -> int:
        upto = self.position
        self.calls.append((least_pages, upto))
        time.sleep(self.delay)
        if self.failure is not None:
            raise self.failure
        self.synced = upto
        return upto


def until(condition) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.002)
    pytest.fail("it never came")


# -- group commit ----------------------------------------------------------------------------------


def test_many_waiters_share_a_sync(tmp_path):
    real, count = os.fdatasync, []

    def slow(fd):
        count.append(fd)
        time.sleep(0.01)
        return real(fd)

    log = open_log(tmp_path, commitlog_file_size=1 << 20)
    log.append([b"first"])
    log.sync()
    service = GroupCommit(log)
    append, problems, rounds, threads = threading.Lock(), [], 20, 16

    def write():
        try:
            for _ in range(rounds):
                with append:
                    log.append([b"x" * 100])
                    end = log.position
                if not service.wait(end, 10_000) or log.synced < end:
                    problems.append(end)
        except RmqctlError as error:
            problems.append(error)

    with mock.patch.object(os, "fdatasync", slow):
        started = [threading.Thread(target=write) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    service.stop()
    log.close()
    assert problems == []
    assert rounds <= len(count) <= rounds * threads // 3, "320 writes, each forced, in few syncs"
    assert log.syncs == len(count) + 1


def test_what_is_forced_already_costs_nothing():
    log = Log()
    log.position = log.synced = 100
    service = GroupCommit(log)
    assert service.wait(100, 0)
    assert service.wait(7, 0)
    assert log.calls == []
    service.stop()
    assert log.calls == [(0, 100)]


def test_one_who_comes_during_a_sync_is_served_by_the_next():
    log = Log(delay=0.05)
    service = GroupCommit(log)
    log.position = 10
    first = threading.Thread(target=service.wait, args=(10, 5000))
    first.start()
    until(lambda: log.calls)
    log.position = 20
    assert service.wait(20, 5000)
    first.join()
    assert log.calls == [(0, 10), (0, 20)]
    service.stop()


def test_time_runs_out_while_the_device_hangs():
    log = Log(delay=0.6)
    service = GroupCommit(log)
    log.position = 10
    started = time.monotonic()
    assert service.wait(10, 20) is False
    assert time.monotonic() - started < 0.5
    assert service.wait(10, 5000)
    assert len(log.calls) == 1
    service.stop()


def test_a_position_nobody_wrote_does_not_keep_it_busy():
    log = Log()
    service = GroupCommit(log)
    log.position = 10
    assert service.wait(1000, 50) is False
    assert len(log.calls) == 1
    log.position = 20
    assert service.wait(20, 5000)
    assert service.wait(15, 0)
    assert len(log.calls) == 2
    service.stop()


@pytest.mark.parametrize("error", ERRORS)
def test_every_waiter_gets_the_error_and_nothing_is_tried_again(tmp_path, error):
    log = open_log(tmp_path, commitlog_file_size=1 << 20)
    log.append([b"x"])
    log.sync()
    service = GroupCommit(log)
    log.append([b"y" * 16])
    calls, answers, gate = [], [], threading.Barrier(16)

    def fails(fd):
        calls.append(fd)
        time.sleep(0.05)
        raise OSError(error, os.strerror(error))

    def wait(number):
        gate.wait()
        try:
            answers.append(service.wait(2 + number, 10_000))
        except StoreIOError as caught:
            answers.append(str(caught))

    with mock.patch.multiple(os, fdatasync=fails, fsync=fails):
        threads = [threading.Thread(target=wait, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(calls) == 1
        assert answers == [str(service.failure)] * 16
        assert f"cannot force to disk {tmp_path}" in answers[0]
    with mock.patch.object(os, "fdatasync") as again:
        for _ in range(2):
            with pytest.raises(StoreIOError, match=errno.errorcode[error]):
                service.wait(3, 1000)
            with pytest.raises(StoreIOError):
                service.stop()
            with pytest.raises(StoreIOError):
                log.sync()
        assert not again.called
    log.close()


def test_a_defect_does_not_leave_anybody_waiting():
    log = Log(failure=ZeroDivisionError("oh"))
    service = GroupCommit(log)
    log.position = 1
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        service.wait(1, 60_000)


def test_the_end_forces_the_rest_and_refuses_what_comes_after():
    log = Log()
    service = GroupCommit(log)
    log.position = 5
    service.stop()
    service.stop()
    assert log.synced == 5
    assert service.wait(5, 0)
    with pytest.raises(RefusedError):
        service.wait(6, 1000)
    assert not [pair for pair in threading.enumerate() if pair.name == "log-group-commit"]


def test_stopping_while_somebody_waits():
    log = Log(delay=0.05)
    service = GroupCommit(log)
    log.position = 5
    answers = []
    thread = threading.Thread(target=lambda: answers.append(service.wait(5, 5000)))
    thread.start()
    until(lambda: log.calls)
    service.stop()
    thread.join()
    assert answers == [True]


# -- asynchronous flush ----------------------------------------------------------------------------


def test_least_pages_at_intervals_and_everything_now_and_then():
    log = Log()
    service = FlushService(log, settings(flush_interval=20, flush_least_pages=4,
                                         flush_thorough_interval=150))
    until(lambda: [call for call, _ in log.calls].count(0) >= 2)
    service.stop()
    least = [call for call, _ in log.calls]
    assert set(least) == {0, 4}
    assert least[0] == 4
    assert least[-1] == 0
    between = least.index(0)
    assert 1 <= between <= 8, "about seven intervals fit, fewer on a busy machine"
    assert log.commits == 0


def test_it_does_not_spin():
    log = Log()
    service = FlushService(log, settings(flush_interval=100_000))
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1
    assert log.calls == []
    service.stop()
    assert log.calls == [(0, 0)]


def test_buffers_are_committed_between_syncs():
    log = Log()
    with mock.patch("rmqctl.engine.log.flush.COMMIT_INTERVAL", 0.01):
        service = FlushService(log, settings(flush_interval=100_000, transient_pool=1))
    until(lambda: log.commits >= 3)
    assert log.calls == []
    service.stop()


@pytest.mark.parametrize("changed", [{}, {"mapped": True}, {"transient_pool": 1}], ids=str)
def test_a_real_log_is_forced_in_the_background(tmp_path, changed):
    with closing(open_log(tmp_path, flush_interval=5, flush_thorough_interval=10,
                          **changed)) as log:
        service = FlushService(log, settings(flush_interval=5, flush_thorough_interval=10,
                                             **changed))
        log.append([b"x"])
        until(lambda: log.synced == 1)
        log.append([b"y"])
        service.stop()
        assert log.synced == 2


def test_an_error_ends_it_and_is_reported():
    log = Log(failure=StoreIOError("cannot force to disk X"))
    service = FlushService(log, settings(flush_interval=1))
    until(lambda: service.failure)
    calls = len(log.calls)
    assert calls == 1
    with pytest.raises(StoreIOError, match="X"):
        service.check()
    time.sleep(0.02)
    assert len(log.calls) == calls
    with pytest.raises(StoreIOError):
        service.stop()
    assert len(log.calls) == calls
