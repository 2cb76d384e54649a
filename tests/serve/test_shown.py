"""What a server shows: events each second, metrics, the screen."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmqctl.commands.shared.serve_shown import ServeOutput, overview
from rmqctl.ext.serve import figures
from rmqctl.ext.serve.figures import CountWatch
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.output import Output
from rmqctl.output.richtable import Canvas
from rmqctl.output.screen import drawn
from rmqctl.parse_values import parse_address
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving
from tests.serve.test_pull import expected

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
HOSTILE = 'g"\\\n\x1b[31m[red]'


def member(client: Client, group: str, *topics: str) -> None:
    assert client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": [{
        "groupName": group, "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]}]}).code == 0


@pytest.fixture
def store(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


def second_of(served: Running, watch: CountWatch) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    served.do(lambda: events.extend(figures.events(served.server, watch.look())))
    return events


def test_a_second_is_told_as_sums(store: Path) -> None:
    (topic, queue_id), wanted = max(expected(store).items(), key=lambda pair: len(pair[1]))
    with serving(store) as served, served.client() as client:
        watch = CountWatch(served.server)
        client.ask("GET_NAMESRV_CONFIG")
        assert second_of(served, watch) == [
            {"event": "connections", "connections": 1, "accepted": 1, "turned_away": 0,
             "broken": 0}]
        member(client, "g", topic)
        assert len(client.pull(topic, queue_id, 0, most=3, group="g").body) > 0
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic=topic, queueId=queue_id,
                   commitOffset=3)
        served.brokers[0].skipped += 2
        assert second_of(served, watch) == [
            {"event": "delivered", "broker": "broker-a", "group": "g", "topic": topic,
             "messages": 3},
            {"event": "committed", "broker": "broker-a", "group": "g", "topic": topic,
             "lag": len(wanted) - 3},
            {"event": "damaged", "broker": "broker-a", "messages": 2}]
        assert figures.lag_of(served.brokers[0], "g", topic, 0.0) is None  # there is no time left
        assert second_of(served, watch) == []
        for number in range(60):
            client.pull(topic, queue_id, 0, most=1, group=f"g{number}")
            client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=f"g{number}", topic=topic,
                       queueId=0, commitOffset=1)
        assert second_of(served, watch) == [{"event": "delivered", "messages": 60},
                                            {"event": "committed", "positions": 60}]


def test_metrics_of_many_groups_are_summed_up(store: Path, monkeypatch: pytest.MonkeyPatch
                                              ) -> None:
    monkeypatch.setattr(figures, "MAX_LABELS", 3)
    (topic, queue_id), _ = max(expected(store).items(), key=lambda pair: len(pair[1]))
    with serving(store) as served, served.client() as client:
        for name in ("g0", "*", "g1", "g2", "g3"):
            client.pull(topic, queue_id, 0, most=2, group=name)
        samples: list[figures.Sample] = []
        served.do(lambda: samples.extend(figures.samples(served.server)))
    delivered = [(labels["group"], value) for name, labels, value in samples
                 if name == "rmqctl_serve_messages_delivered_total"]
    assert delivered == [("g0", 2), ("g1", 2), ("*", 6)]
    assert {name for name, _, _ in samples} <= set(figures.HELP)


def run(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "rmqctl", "serve", "--listen", "127.0.0.1:0",
                             *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_prometheus_is_answered_and_senders_are_counted() -> None:
    with run("--temp", "--metrics", "127.0.0.1:0", "-o", "jsonl") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with Client(parse_address(ready["ready"])) as client:
            member(client, HOSTILE, "T")
            for _ in range(3):
                client.ask("SEND_MESSAGE_V2", b"body", **SEND)
            client.pull("T", 0, 0, group=HOSTILE)
            client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=HOSTILE, topic="T", queueId=0,
                       commitOffset=1)
            place = parse_address(ready["metrics"])
            silent = [socket.create_connection((place.host, place.port)) for _ in range(100)]
            with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as page:
                text = page.read().decode()
            assert ended(silent[0]) == b""
            assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 20
            for asked, answer in ((b"x" * 20_000, b""), (b"PUT /\r\n\r\n", b"HTTP/1.0 405")):
                with socket.create_connection((place.host, place.port)) as other:
                    other.sendall(asked)
                    assert ended(other)[:12] == answer
            for connection in silent[:-1]:  # the last one is there at the end
                connection.close()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    samples = {(sample.name, tuple(value for name, value in sorted(sample.labels.items())
                                   if name != "broker")): sample.value
               for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["rmqctl_serve_connections", ()] == 1
    assert samples["rmqctl_serve_messages_received_total", ("T",)] == 3
    assert samples["rmqctl_serve_messages_delivered_total", (HOSTILE, "T")] >= 1
    assert samples["rmqctl_serve_group_diff", (HOSTILE, "T")] == 2
    assert samples["rmqctl_serve_requests_total", ("SEND_MESSAGE_V2",)] == 3
    events = [json.loads(line) for line in out.splitlines()]
    assert sum(event["messages"] for event in events if event["event"] == "sent") == 3
    assert [event["lag"] for event in events if event["event"] == "committed"][-1:] == [2]


def ended(client: socket.socket) -> bytes:
    """What comes until the end of a connection."""
    client.settimeout(5)
    data = b""
    try:
        while more := client.recv(4096):
            data += more
    except ConnectionResetError:
        pass
    return data


def test_an_event_is_no_longer_than_what_a_pipe_takes_at_once() -> None:
    for name in ("\U000e0001" * 300, "\x00" * 300, "\u202e" * 300, "\ud800" * 300):
        paper = io.StringIO()
        ServeOutput(Output.open("jsonl", stdout=paper)).tell(
            event="joined", broker="broker-a", group=name, client=name)
        assert len(paper.getvalue().encode()) <= 4096
        assert json.loads(paper.getvalue())["event"] == "joined"


def test_a_port_for_metrics_that_is_not_to_be_had() -> None:
    with run("--temp", "--metrics", "203.0.113.7:1") as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 5
    assert "listen on" in err
    assert "can read the names" in err


def test_the_screen_shows_who_is_there(store: Path) -> None:
    (topic, queue_id), wanted = max(expected(store).items(), key=lambda pair: len(pair[1]))
    pages: list[str] = []
    with serving(store) as served, served.client() as client:
        watch = CountWatch(served.server)
        member(client, HOSTILE, topic)
        client.pull(topic, queue_id, 0, most=5, group=HOSTILE)
        client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=HOSTILE, topic=topic, queueId=queue_id,
                   commitOffset=5)

        def draw() -> None:
            second = watch.look()
            pages.append(drawn(lambda page: overview(
                page, served.server, second, rows=9, notes=["careful\x1b[2J"], seconds=61),
                Canvas(100, False, "utf-8")))

        served.do(draw)
    lines = [line.rstrip() for line in pages[0].splitlines()]
    assert lines[0] == f"serving on {served.address} for 1 min 1 s; Ctrl-C stops"
    assert lines[1] == "clients  1 connected, 1 accepted, 0 rejected, 0 broken"
    assert lines[3].endswith("5 in total")
    (row,) = [line for line in lines if topic in line]
    assert row.split()[-4:-1] == [topic, "1", str(len(wanted) - 5)]
    assert r"\x1b[31m[red]" in row
    assert "careful\\x1b[2J" in lines[-1]
    assert "\x1b" not in pages[0]


def test_on_a_terminal_it_draws_and_ctrl_c_ends_it(store: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "rmqctl", "serve", str(store), "--listen", "127.0.0.1:0"],
        stdin=follower, stdout=follower, stderr=follower, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    seen = b""
    end = time.monotonic() + 20
    while b"Ctrl-C stops" not in seen and time.monotonic() < end:
        seen += os.read(leader, 1 << 16)
    assert b"Ctrl-C stops" in seen
    os.write(leader, b"\x03")
    try:
        while data := os.read(leader, 1 << 16):
            seen += data
    except OSError:  # the terminal's other end is closed
        pass
    assert process.wait(20) == 0
    assert seen.startswith(b"\x1b[?1049h")
    assert b"\x1b[?1049l" in seen  # what stood there before is back
    assert b"Traceback" not in seen
    os.close(leader)
