"""Messages for a certain time: they come when they are due, also after the server was killed, and
what it leaves is what a broker of 5.x leaves.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmqctl.broker.settings import BrokerConfig, resolve
from rmqctl.errors import RefusedError
from rmqctl.ext.serve.producing import opening, timer_files, timing
from rmqctl.ext.serve.producing.timer_files import OpenTimerFiles
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from rmqctl.formats.timer.timer_log import UNIT_SIZE
from rmqctl.store.store import Store
from tests.conftest import Runner
from tests.serve.running import Running, empty_store, serving
from tests.serve.test_writable import pulled, sent

TIMERS = "rmq_sys_wheel_timer"
WRITABLE = ServeSettings(writable=True)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    empty_store(tmp_path / "store")
    monkeypatch.setattr(timer_files, "_LOG_FILE", 40 * UNIT_SIZE)

    def quick(store: Store, given: dict[str, object]) -> BrokerConfig:
        resolved = resolve(store, given)
        return replace(resolved, settings=replace(resolved.settings, timer_precision=100))

    monkeypatch.setattr(opening, "resolve", quick)
    return tmp_path / "store"


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root, settings=WRITABLE) as running:
        yield running


def at(seconds: float) -> str:
    return f"TIMER_DELIVER_MS\x01{int((time.time() + seconds) * 1000)}"


def waited(client: Client, number: int, topic: str = "orders") -> list[bytes]:
    """The bodies in queue 0, as soon as there are so many."""
    for _ in range(60):
        bodies = [record.body for record in pulled(client, topic)]
        if len(bodies) >= number:
            break
        time.sleep(0.1)
    return bodies


def test_messages_come_when_they_are_due(root: Path, rmqctl: Runner) -> None:
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        begun = time.time()
        for text in ("TIMER_DELAY_MS\x011000", "TIMER_DELAY_SEC\x011", at(0.4),
                     "TIMER_DELAY_SEC\x01-1", "TIMER_DELAY_SEC\x0190", "TIMER_DELAY_SEC\x01200000"):
            assert sent(client, "orders", text.encode(), text=f"KEYS\x01k\x02{text}").code == 0
        assert waited(client, 1) == [b"TIMER_DELAY_SEC\x01-1"]
        assert waited(client, 2)[1].startswith(b"TIMER_DELIVER_MS")
        assert set(waited(client, 4)[2:]) == {b"TIMER_DELAY_MS\x011000", b"TIMER_DELAY_SEC\x011"}
        assert 0.9 <= time.time() - begun < 5
        parsed_properties = properties.parse(pulled(client, "orders")[-1].properties.decode())
        assert {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} < set(parsed_properties)
        assert (parsed_properties["REAL_TOPIC"], parsed_properties["REAL_QID"]) == ("orders", "0")
    rmqctl("verify", str(root)).expect(0)


def test_what_was_recalled_does_not_come(served: Running) -> None:
    with served.client() as client:
        handles = [sent(client, "orders", b"%d" % number, text=f"UNIQ_KEY\x01K{number}\x02{at(0.8)}"
                        ).ext["recallHandle"] for number in range(3)]
        answer = client.ask("RECALL_MESSAGE", topic="orders", recallHandle=handles[1],
                            producerGroup="P")
        assert (answer.code, answer.ext["msgId"]) == (0, "K1")
        assert sorted(waited(client, 2)) == [b"0", b"2"]
        for topic, handle, code in (("orders", handles[0], 604), ("others", handles[0], 17),
                                    ("orders", "x", 604), ("orders", "", 604),
                                    ("orders", "djEgb3JkZXJzIGIgMSAC", 604),
                                    ("orders", "djEg" + "ICAg" * 100_000, 604)):
            assert client.ask("RECALL_MESSAGE", topic=topic, recallHandle=handle).code == code
        for group in ("P\x02TIMER_DEL_UNIQKEY\x01orders+K0", "P\x01", "\ud800"):  # none is a value
            assert client.ask("RECALL_MESSAGE", topic="orders", recallHandle=handles[0],
                              producerGroup=group).code in (1, 604)
        time.sleep(0.2)
        assert sorted(waited(client, 2)) == [b"0", b"2"]


def test_nothing_is_lost_or_comes_twice_when_the_server_is_killed(root: Path) -> None:
    """The store is copied while it is served, as a kill would leave it."""
    copy = root.parent / "copy"
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        for number in range(100):  # more than a file of the log takes
            assert sent(client, "orders", b"%d" % number, text=at(0.2 if number < 3 else 1.5)
                        ).code == 0
        assert len(waited(client, 3)) == 3

        def snapshot() -> None:
            served.server._save()
            shutil.copytree(root, copy)

        served.do(snapshot)
    assert len(os.listdir(copy / "timerlog")) > 1
    with serving(copy, settings=WRITABLE) as served, served.client() as client:
        assert sorted(map(int, waited(client, 100))) == list(range(100))
    with serving(copy, settings=WRITABLE) as served, served.client() as client:
        time.sleep(0.3)
        assert len(pulled(client, "orders")) == 100


def test_a_long_wait_takes_several_rounds(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_files, "_WINDOW", 1)
    with served.client() as client:
        sent(client, "orders", b"x", text=at(0.7))
        assert waited(client, 1) == [b"x"]
        parsed_properties = properties.parse(pulled(client, "orders")[0].properties.decode())
        assert int(parsed_properties["TIMER_ROLL_TIMES"]) >= 1
        assert len(pulled(client, TIMERS)) == 1 + int(parsed_properties["TIMER_ROLL_TIMES"])


def test_what_strangers_put_into_the_timer_topic_does_no_harm(served: Running) -> None:
    now = int(time.time() * 1000)
    with served.client() as client:
        for text in ("", "TIMER_OUT_MS\x01x", f"TIMER_OUT_MS\x01{now}", "TIMER_OUT_MS\x01-5",
                     f"TIMER_OUT_MS\x01{1 << 62}", *(
                         f"TIMER_OUT_MS\x01{now}\x02REAL_QID\x01{queue}\x02REAL_TOPIC\x01{topic}"
                         for topic, queue in ((TIMERS, 0), ("../x", 0), ("a", -1), ("a", 1 << 40),
                                              ("SCHEDULE_TOPIC_XXXX", 0)))):
            assert sent(client, TIMERS, b"x", text=text).code == 0
        sent(client, "orders", b"good", text=at(0.2))
        assert waited(client, 1) == [b"good"]
        assert len(pulled(client, TIMERS)) == 11


def test_a_moment_that_is_under_way_is_finished_at_the_end(
        root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_AT_ONCE", 2)
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        due = int(time.time() * 10 + 8) * 100
        for number in range(50):
            sent(client, "orders", b"%d" % number, text=f"TIMER_DELIVER_MS\x01{due}")
        monkeypatch.setattr(timing.Timers, "_go_on", lambda _self: None)
        waited(client, 1)
    with serving(root, settings=WRITABLE) as served, served.client() as client:
        time.sleep(0.3)
        assert sorted(map(int, waited(client, 50))) == list(range(50))


def units(root: Path, end: int) -> OpenTimerFiles:
    files = OpenTimerFiles(Store.open(root), 1000)
    assert files.end == end
    return files


def test_slots_that_a_crash_left_behind_are_led_to_their_units(root: Path) -> None:
    open_timer_files = units(root, 0)
    moment = open_timer_files.moment(int(time.time() * 1000)) + 60_000
    for number in range(90):
        open_timer_files.add(moment + number % 2 * 1000, moment - 60_000, number * 100, 100, 0,
                             deletes=False)
    open_timer_files.keep()
    open_timer_files.close()
    wheel, end = root / "timerwheel", open_timer_files.end

    def places(files: OpenTimerFiles, when: int) -> list[int]:
        return [unit.physical_offset for _, unit in files.units(when, files.newest(when))]

    def check(change: Callable[[], object], left: int) -> None:
        change()
        files = OpenTimerFiles(Store.open(root), 1000)
        for odd in (0, 1):
            assert places(files, moment + odd * 1000) == [
                number * 100 for number in reversed(range(left)) if number % 2 == odd]
        files.close()

    check(lambda: wheel.write_bytes(bytes(wheel.stat().st_size)), 90)
    last = root / "timerlog" / max(os.listdir(root / "timerlog"))

    def torn() -> None:
        data = bytearray(last.read_bytes())
        data[(end - int(last.name)) - UNIT_SIZE:] = bytes(
            len(data) - (end - int(last.name)) + UNIT_SIZE)
        last.write_bytes(data)

    check(torn, 89)

    def dirty() -> None:  # a unit that is none, and old ones behind it
        data = bytearray(last.read_bytes())
        place = end - int(last.name) - UNIT_SIZE
        data[place:place + 3 * UNIT_SIZE] = b"\xfe" * UNIT_SIZE + data[:2 * UNIT_SIZE]
        last.write_bytes(data)

    check(dirty, 89)
    kept = last.read_bytes()
    files = OpenTimerFiles(Store.open(root), 1000)
    files.add(moment + 1000, moment - 60_000, 8900, 100, 0, deletes=False)
    files.close()
    check(lambda: None, 90)
    assert last.read_bytes() == kept
    assert b"\xfe" * (UNIT_SIZE - 20) in kept
    wheel.write_bytes(b"short")
    with pytest.raises(RefusedError, match="a broker does not start"):
        OpenTimerFiles(Store.open(root), 1000)
