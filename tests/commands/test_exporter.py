"""exporter: metrics of stores as Prometheus reads them, once and over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from rmqctl.commands.check import exporter
from tests.conftest import GoldenFolder, Runner
from tests.support import snapshot

SOUND = "5.3.3/basic/store"


def metric(text: str, start: str) -> list[float]:
    """The values of the samples whose line starts so."""
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(start)]


def test_once_it_says_what_info_and_offsets_say(golden: GoldenFolder, rmqctl: Runner,
                                                tmp_path: Path) -> None:
    store = golden(SOUND)
    with snapshot.assert_unchanged(store):
        text = rmqctl("exporter", store, "--once").expect(0).out
    info = rmqctl("info", store, "-o", "json").json()
    assert metric(text, "rmqctl_store_messages{") == [info["messages"]]
    assert metric(text, "rmqctl_store_max_phy_offset{") == [info["max_phy_offset"]]
    assert sorted(metric(text, "rmqctl_topic_messages{")) == sorted(
        topic["messages"] for topic in info["topics"])
    # One store that is none does not stop the other, and is not passed over in silence.
    both = rmqctl("exporter", store, tmp_path, "--once").expect(3)
    assert sorted(metric(both.out, "rmqctl_store_up{")) == [0, 1]
    assert metric(both.out, "rmqctl_store_messages{") == [info["messages"]]
    assert "not a store" in both.err
    rows = rmqctl("exporter", store, "--once", "-o", "json").json()
    assert {"metric": "rmqctl_store_up", "store": str(store), "value": 1} in rows


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_over_http_it_answers_until_it_is_told_to_end(golden: GoldenFolder) -> None:
    store = golden(SOUND)
    with subprocess.Popen([sys.executable, "-m", "rmqctl", "exporter", str(store), "--listen",
                           "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ready, _, address = process.stdout.readline().strip().partition(" ")
            assert ready == "ready"
            for _ in range(2):
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
                    text = answer.read().decode()
                    assert metric(text, "rmqctl_store_up{") == [1]
            second = subprocess.run([sys.executable, "-m", "rmqctl", "exporter", str(store),
                                     "--listen", address], capture_output=True, text=True,
                                    timeout=60, check=False)
            assert second.returncode == 5
            assert f"cannot listen on {address}" in second.stderr
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize("text", ["9877", "host:", "host:99999", "a b:1", "[::1]", "http://h:1"])
def test_where_to_listen_has_a_host_and_a_port(text: str, golden: GoldenFolder,
                                               rmqctl: Runner) -> None:
    assert "expected HOST:PORT" in rmqctl("exporter", golden(SOUND), "--listen", text).expect(2).err


def test_connections_without_a_request_are_closed_for_others() -> None:
    """No more threads than connections that are kept, and each wait has an end."""
    started: list[socket.socket] = []
    answered: list[socket.socket] = []
    server = SimpleNamespace(process_request=lambda request, _: started.append(request),
                             process_request_thread=lambda request, _: answered.append(request))
    exporter.bound(server)
    pairs = [socket.socketpair() for _ in range(exporter.MAX_CONNECTIONS + 2)]
    ours, theirs = [connection for connection, _ in pairs], [other for _, other in pairs]
    for connection in ours[:-2]:
        server.process_request(connection, None)
    assert {request.gettimeout() for request in started} == {exporter.MAX_WAIT_S}
    server.process_request_thread(ours[1], None)  # has ended: there is room for another
    server.process_request(ours[-2], None)
    for other in theirs:
        other.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs[0].recv(1)
    server.process_request(ours[-1], None)  # and for none more
    assert theirs[0].recv(1) == b""
    assert started == ours
    for connection in [*ours, *theirs]:
        connection.close()
