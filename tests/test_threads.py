"""No thread outlives the interpreter: who starts threads, and what ends them when nobody did."""

from __future__ import annotations

import ast
import os
import signal as signals
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.scan.ending import Stream
from rmqctl.sql import session as local_sql
from rmqctl.sql.session import QuerySession
from rmqctl.store.log.threads import Behind
from tests.conftest import GoldenFolder
from tests.support.source import PACKAGE, nodes, together, trees

BASIC = "5.3.3/basic/store"
TASKS = Path("/proc/self/task")
STARTERS = {"Thread", "Timer", "InheritableThread", "ThreadPoolExecutor", "start_http_server",
            "from_batches", "run_worker", "to_thread", "run_in_executor"}
#: What starts threads, or has threads of others run Python, by module; and what ends them.
ENDED = {
    ("sql/interrupting.py", "Thread"): "joined when the query's session ends",
    ("backup/remote.py", "ThreadPoolExecutor"): "closing, and grow waits for what is on its way",
    ("api.py", "from_batches"): "ending.Stream, and a table that is made at once",
    ("ext/browse/tree.py", "run_worker"): "textual ends its workers, asyncio.run its executor",
    ("ext/browse/widgets.py", "run_worker"): "the same",
    ("ext/browse/working.py", "run_worker"): "the same",
    ("ext/browse/app.py", "run_worker"): "the same",
    ("commands/app/exit_codes.py", "Timer"): "10 ms, and only Python in it",
    ("commands/check/exporter.py", "start_http_server"): "joined, and _Stores.end",
    ("commands/shared/serve_shown.py", "to_thread"): "asyncio.run ends its executor",
    ("testing.py", "to_thread"): "asyncio.run ends its executor",
    ("engine/log/flush.py", "Thread"): "stop, else ending.note",
    ("engine/log/log_files.py", "Thread"): "close, else ending.note",
    ("output/progress.py", "Thread"): "joined when the progress ends",
    ("output/screen.py", "ThreadPoolExecutor"): "shutdown when the screen is left",
    ("backup/backup.py", "ThreadPoolExecutor"): "shutdown when the log is copied",
    ("files/remote/threads.py", "Thread"): "daemons: a server that stalls must hold up nothing",
    ("export/columns.py", "from_batches"): "a table that is made at once",
    ("export/gather.py", "from_batches"): "a table that is made at once",
    ("sql/session.py", "from_batches"): "DuckDB's threads end with the session",
    ("ext/spark/pool.py", "InheritableThread"): "joined, once Spark has cancelled the job",
    ("ext/spark/pool.py", "Thread"): "joined",
    ("ext/spark/source/runs.py", "from_batches"): "a table that is made at once",
    ("ext/serve/producing/writing.py", "run_in_executor"): "asyncio.run ends its executor",
    ("ext/serve/server.py", "ThreadPoolExecutor"): "Python joins them",
    ("ext/serve/server.py", "run_in_executor"): "Python joins them",
    ("ext/payloads/limits.py", "Thread"): "ends when it is idle; only Python in it",
    ("store/log/threads.py", "Thread"): "joined by who asks for results, else ending.note",
    ("testing.py", "Thread"): "only Python in it, and it ends with the process that it reads from",
    ("testing.py", "Timer"): "cancelled",
    ("ext/tiered/dispatch/dispatch.py", "ThreadPoolExecutor"): "shutdown, else Python joins them",
    ("ext/tiered/files/writer.py", "ThreadPoolExecutor"): "shutdown, else Python joins them",
}


def called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@together
def test_it_is_known_of_all_threads_what_ends_them() -> None:
    texts = {(str(path.relative_to(PACKAGE)), called(node))
             for path, tree in trees().items() for node in nodes(tree)
             if called(node) in STARTERS}
    assert texts == set(ENDED)


def ended(script: str) -> list[str]:
    """The lines that a script prints, up to the end of its interpreter."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_results_that_nobody_took_to_the_end() -> None:
    """As where an exception, or a cycle of objects, keeps what asked for them."""
    assert ended("""
import threading
from rmqctl.scan import stopping
from rmqctl.store.log.threads import parallel
begun = threading.Semaphore(0)
def work(number):
    if number:
        begun.release()
        try:
            while True:
                stopping.check()
        finally:
            print("ended", number)
results = parallel(work, range(5), 3)
next(results)
for _ in range(2):
    begun.acquire()
print("over")
""")[0] == "over"


@pytest.mark.parametrize("interrupted", [False, True])
def test_all_that_is_noted_is_ended(interrupted: bool) -> None:
    lines = ended(f"""
import threading
from rmqctl.scan import ending
class Worker:
    def __init__(self):
        self.over, self.first = threading.Event(), {interrupted}
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()
        ending.note(self)
    def work(self):
        self.over.wait()
        print("ended")
    def end(self):
        if self.first:
            self.first = False
            raise KeyboardInterrupt
        self.over.set()
        self.thread.join()
workers = [Worker(), Worker()]
""")
    assert lines == ["ended", "ended"]


def test_who_reads_a_stream_is_waited_for() -> None:
    inside, go = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        inside.set()
        go.wait()
        yield 2
        yield 3

    stream, taken = Stream(items()), list[int]()
    reader = threading.Thread(target=lambda: taken.extend(stream))
    reader.start()
    inside.wait()
    last = threading.Thread(target=stream.end)
    last.start()
    assert last.is_alive()
    go.set()
    last.join()
    reader.join()
    assert taken in ([1, 2], [1, 2, 3])  # who waits for a lock has no turn
    assert list(stream) == []


def test_a_thread_behind_works_in_order_one_item_at_a_time() -> None:
    done, within = list[int](), threading.Semaphore(1)

    def work(item: int) -> None:
        assert within.acquire(blocking=False)
        assert threading.current_thread() is not threading.main_thread()
        done.append(item)
        within.release()

    before = threading.active_count()
    behind = Behind(work)
    for item in range(50):
        behind.put(item)
        assert len(done) >= item
    behind.settle()
    assert done == list(range(50))
    behind.end()
    behind.end()
    assert threading.active_count() == before


def test_a_thread_behind_keeps_nothing_that_is_done() -> None:
    class Item:
        pass

    behind = Behind[Item](lambda item: None)
    item = Item()
    kept = weakref.ref(item)
    behind.put(item)
    del item
    behind._slot._done.acquire()  # type: ignore[union-attr]  # done, and nobody asked
    behind._slot._done.release()  # type: ignore[union-attr]
    assert kept() is None
    behind.end()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("waits", [False, True])
def test_what_fails_behind_fails_the_next_call(error: type[BaseException], waits: bool) -> None:
    done = list[int]()

    def work(item: int) -> None:
        if item == 1:
            raise error
        done.append(item)

    behind = Behind(work)
    behind.put(0)
    behind.put(1)
    with pytest.raises(error):
        behind.settle() if waits else behind.put(2)
    behind.settle()  # it is raised once
    behind.end()
    assert done == [0]


def test_without_threads_the_caller_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    done = list[int]()
    behind = Behind(done.append)
    for item in range(3):
        behind.put(item)
        assert done[-1] == item
    behind.end()


def test_a_thread_behind_that_nobody_ended() -> None:
    """As where a second interrupt arrives while an export is removed."""
    assert ended("""
import threading, time
from rmqctl.store.log.threads import Behind
begun = threading.Event()
def work(item):
    begun.set()
    time.sleep(0.2)
    print("done", item)
behind = Behind(work)
behind.put(1)
begun.wait()
""") == ["done 1"]


@pytest.mark.skipif(not TASKS.exists(), reason="the system does not show threads")
@pytest.mark.parametrize(("text", "rows"), [
    ("select count(*) from messages", None),
    ("select topic from messages", 1),
    ("select a.topic from messages a join messages b using (topic)", 1),
    ("select count(*) from messages where keys = 'x'", None),
    ("select cast(tags as int) from messages", None),
    ("select nothing from messages", None),
])
def test_a_query_leaves_no_thread(golden: GoldenFolder, text: str, rows: int | None) -> None:
    """However it ends: Arrow's pool, where it is used, would read on."""
    before = set(TASKS.iterdir())
    kept: list[Any] = []  # what a traceback keeps
    try:
        with QuerySession([str(golden(BASIC))]) as session:
            answer = session.ask(text)
            kept.append(answer)
            for number, _ in enumerate(answer.rows, 1):
                if number == rows:
                    break
    except Exception as error:  # noqa: BLE001  # that and what it refers to is left
        kept.append(error)
    assert set(TASKS.iterdir()) <= before


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_within_a_table_is_no_error_of_the_query(
        golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch, signal: type[BaseException]) -> None:
    def interrupted(*_: object) -> Iterator[Any]:
        raise signal
        yield

    monkeypatch.setattr(local_sql.QuerySession, "_of_files", interrupted)
    with pytest.raises(signal), QuerySession([str(golden(BASIC))]) as session:
        list(session.ask("select topic from messages").rows)


def test_a_signal_while_a_table_is_registered_is_no_error_of_the_query(
        golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python runs a signal's handler in the first step that DuckDB lets it do."""
    received = signals.getsignal(signals.SIGTERM)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signals.SIGTERM)

    signals.signal(signals.SIGTERM, stop)
    try:
        with QuerySession([str(golden(BASIC))]) as session:
            monkeypatch.setattr(local_sql, "Stream", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.ask("select topic from messages")
    finally:
        signals.signal(signals.SIGTERM, received)


_STOPPED = """
import os, signal, sys, threading
from rmqctl.sql.session import QuerySession

def stop(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, stop)
with QuerySession([sys.argv[1]]) as session:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    try:
        list(session.ask("select sum(range) from range(1000000000000)").rows)
    except KeyboardInterrupt:
        print("stopped")
print(signal.set_wakeup_fd(-1), threading.active_count())
"""


@pytest.mark.long
def test_a_signal_ends_what_a_query_computes(golden: GoldenFolder) -> None:
    """In minutes of computing DuckDB runs no step of Python, which runs the handler."""
    done = subprocess.run([sys.executable, "-c", _STOPPED, str(golden(BASIC))],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["stopped", "-1 1"]
