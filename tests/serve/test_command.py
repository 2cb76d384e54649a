"""``rmqctl serve`` as a process: the ready line, its end, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqctl.ext.serve.remoting.client import Client
from rmqctl.parse_values import parse_address
from tests.conftest import GoldenFolder, Runner


@contextmanager
def _started(*args: str, limit: str = "unlimited") -> Iterator[subprocess.Popen[str]]:
    """The command, with files of at most ``limit`` blocks of 512 or 1024 bytes; it is gone behind
    the block, however that ends.
    """
    command = [sys.executable, "-m", "rmqctl", "serve", *args, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(["sh", "-c", f'trap "" XFSZ; ulimit -f {limit}; exec "$@"', "sh",
                           *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                          ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_ready_then_events_then_a_clean_end(golden: GoldenFolder, tmp_path: Path) -> None:
    root = golden("5.3.3/basic") / "store"
    positions = tmp_path / "positions.json"
    with _started(str(root), "-o", "jsonl", "--offsets", str(positions)) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["brokers"][0]["store"] == str(root)
        with Client(parse_address(ready["ready"])) as client:
            client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup="g", topic="t", queueId=0,
                       commitOffset=9)
            client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]})
            assert "joined" in {json.loads(process.stdout.readline())["event"] for _ in range(2)}
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "")
        assert "Traceback" not in out
    (kept,) = json.loads(positions.read_text()).values()
    assert kept["offsetTable"] == {"t@g": {"0": 9}}
    assert kept["records"]


def test_it_ends_by_itself_when_nobody_is_there(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic") / "store"
    with _started(str(root), "--idle-exit", "200ms") as process:
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert out.splitlines()[0].startswith("ready 127.0.0.1:")


def test_a_broker_has_the_name_that_its_own_configuration_says(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    for name, shown in (("b-1.x", "b-1.x"), ("b 1", "broker-a")):
        conf.write_text(f"brokerName={name}\nbrokerClusterName=C1\n")
        with _started("--temp", "--broker-conf", str(conf)) as process:
            assert process.stdout is not None
            address = parse_address(process.stdout.readline().split()[1])
            assert process.stdout.readline().split()[0] == shown
            with Client(address) as client:
                table = client.ask("GET_BROKER_CLUSTER_INFO").json()
            assert table["clusterAddrTable"] == {"C1": [shown]}
            process.terminate()
            assert process.wait(20) == 0


def test_limits_of_a_connection_are_options() -> None:
    with _started("--temp", "--max-frame", "2KiB", "--max-silence", "1",
                  "--max-connections", "2", "--max-unfinished", "1KiB") as process:
        assert process.stdout is not None
        address = parse_address(process.stdout.readline().split()[1])

        def answered(size: int) -> bool:
            with Client(address) as client:
                try:
                    return client.ask("GET_BROKER_CONFIG", b"b" * size).code == 0
                except (EOFError, ConnectionError):
                    return False

        assert answered(1500)
        assert not answered(2100)
        with Client(address) as kept, Client(address) as silent:
            for _ in range(8):  # which is longer than the other one may stay silent
                assert kept.ask("GET_BROKER_CONFIG").code == 0
                time.sleep(0.5)
            with pytest.raises((EOFError, ConnectionError)):
                silent.ask("GET_BROKER_CONFIG")
        with socket.create_connection((address.host, address.port), 10) as unfinished:
            unfinished.sendall(struct.pack(">ii", 2000, 10) + bytes(1100))
            assert unfinished.recv(1) == b""
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize(("option", "value"), [
    ("--max-frame", "100"), ("--max-unsent", "0"), ("--max-silence", "10ms"),
    ("--max-connections", "0")])
def test_limits_with_which_nothing_could_work_are_refused(option: str, value: str) -> None:
    with _started("--temp", option, value) as process:
        assert process.wait(20) == 2
        assert process.stderr is not None
        assert option in process.stderr.read()


def test_another_event_loop_serves_as_well() -> None:
    with _started("--temp", "--topic", "t", "--uvloop") as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        with Client(parse_address(ready.split()[1])) as client:
            bodies = [bytes([number]) * 100_000 for number in range(20)]
            for body in bodies:
                client.ask("SEND_MESSAGE", body, producerGroup="p", topic="t", defaultTopic="",
                           defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=0, flag=0)
            got = client.ask("PULL_MESSAGE", consumerGroup="g", topic="t", queueId=0,
                             queueOffset=0, maxMsgNums=32, sysFlag=4, subscription="*")
            assert got.code == 0
            assert bodies[0] in got.body
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert "Traceback" not in out


def test_messages_without_rows_are_told_of(golden: GoldenFolder) -> None:
    root = golden("5.3.3/crash-cqlag") / "before"
    with _started(str(root), "--idle-exit", "100ms") as process:
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "at the end of the log have no consume queue entry and are not served" in err


def test_a_disk_that_takes_no_more_ends_it() -> None:
    with _started("--temp", "-o", "jsonl", limit="800") as process:
        assert process.stdout is not None
        with Client(parse_address(json.loads(process.stdout.readline())["ready"])) as client:
            fields = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
            answers = [client.ask("SEND_MESSAGE_V2", bytes(100_000), **fields).code
                       for _ in range(20)]
        _, err = process.communicate(timeout=20)
    assert answers[-1] != 0
    assert process.returncode == 5
    assert "no more messages are accepted" in err


def test_a_store_for_a_while(golden: GoldenFolder) -> None:
    with _started("--temp", "-o", "jsonl") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with Client(parse_address(ready["ready"])) as client:
            fields = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
            assert client.ask("SEND_MESSAGE_V2", b"body", **fields).code == 0
            assert client.pull("T", 0, 0).code == 0
        assert os.path.isdir(ready["brokers"][0]["store"])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert not os.path.exists(os.path.dirname(ready["brokers"][0]["store"]))


@pytest.mark.parametrize(("args", "code", "words"), [
    ([], 2, "no STORE given"),
    (["STORE", "--temp"], 2, "cannot be combined with STORE"),
    (["no-such-store"], 3, "not a store"),
    (["STORE", "--from", "earliest", "--from-stored-offsets"], 2, "mutually exclusive"),
    (["STORE", "--from", "soon"], 2, "soon"),
    (["STORE", "--offsets", "STORE/config/x.json"], 2, "is in the store"),
    (["STORE", "--listen", "203.0.113.7:9876"], 5, "listen on")])
def test_what_is_refused(golden: GoldenFolder, rmqctl: Runner, args: list[str], code: int,
                         words: str) -> None:
    root = str(golden("5.3.3/basic") / "store")
    # No fixed port: another program may have it.
    result = rmqctl("serve", "--listen", "127.0.0.1:0", "--idle-exit", "2",
                    *(arg.replace("STORE", root) for arg in args))
    assert result.code == code, result.err
    assert words in result.err
    assert os.path.exists(root)


def test_events_that_nobody_reads_are_left_out() -> None:
    with _started("--temp", "-o", "jsonl") as process:
        assert process.stdout is not None
        with Client(parse_address(json.loads(process.stdout.readline())["ready"])) as client:
            for number in range(20):  # more than the 64 KiB that a pipe holds
                groups = [{"groupName": f"{number}-{group}-{'é' * 200}"} for group in range(20)]
                client.ask("HEART_BEAT", {"clientID": "c" * 1024, "consumerDataSet": groups})
            assert json.loads(process.stdout.readline())["event"] in ("joined", "connections")
            os.read(process.stdout.fileno(), 1 << 16)
            client.ask("HEART_BEAT", {"clientID": "d", "consumerDataSet": [{"groupName": "g"}]})
            process.send_signal(signal.SIGTERM)
            rest, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert any(json.loads(line).get("left_out") for line in rest.splitlines()[-3:])


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_it_serves_on_when_nobody_reads_its_events_any_more(kind: str) -> None:
    with _started("--temp", "-o", kind) as process:
        assert process.stdout is not None
        text = ""
        while not text.startswith("{") or text.count("{") > text.count("}"):
            text += process.stdout.readline()
        process.stdout.close()
        with Client(parse_address(json.loads(text)["ready"])) as client:
            for group in "ab":
                assert client.ask("HEART_BEAT", {
                    "clientID": "c", "consumerDataSet": [{"groupName": group}]}).code == 0
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        assert process.stderr is not None
        assert (process.returncode, process.stderr.read()) == (0, "")


def test_each_store_needs_a_port(golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    roots = [str(golden("5.3.3/basic") / "store"), str(golden("5.3.3/batch") / "store")]
    refused = rmqctl("serve", *roots, "--listen", "127.0.0.1:65535")
    refused.expect(2)
    assert "the highest port is 65535" in refused.err
