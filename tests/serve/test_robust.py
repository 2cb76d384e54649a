"""Hostile and careless clients: the server answers the others all the same, and stays small."""

from __future__ import annotations

import os
import random
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqctl.ext.serve import reading
from rmqctl.ext.serve.broker import Broker, Call, Response
from rmqctl.ext.serve.consuming import positions
from rmqctl.ext.serve.dispatch import HANDLERS
from rmqctl.ext.serve.limits import Limits
from rmqctl.ext.serve.log_reader import LogReader
from rmqctl.ext.serve.remoting.codes import REQUESTS
from rmqctl.ext.serve.remoting.command import Command, read_json, write_command
from rmqctl.ext.serve.remoting.frame import FrameError
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.ext.serve.source import ServedStore
from rmqctl.formats.local.message import build, decode, size_of
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.serve.running import Running, serving
from tests.support.share import RUN


@pytest.fixture
def root(golden: GoldenFolder) -> Path:
    return golden("5.3.3/basic") / "store"


@pytest.fixture
def served(root: Path) -> Iterator[Running]:
    with serving(root) as running:
        yield running


def _wait_until(holds: Callable[[], bool]) -> None:
    due = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < due
        time.sleep(0.01)


def alive(served: Running) -> bool:
    with served.client(timeout=10) as client:
        return client.ask("GET_BROKER_CLUSTER_INFO").code == 0


@pytest.mark.parametrize("data", [
    b"\x00\x00\x00\x00" * 4, b"\x7f\xff\xff\xff\x00\x00\x00\x00", b"\xff" * 100,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04null",
    b"\x00\x00\x00\x06\x09\x00\x00\x02{}"])
def test_what_cannot_be_understood_ends_the_connection(served: Running, data: bytes) -> None:
    with socket.create_connection((served.address.host, served.address.port), 10) as client:
        client.sendall(data)
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
    assert alive(served)


def test_any_request_with_any_fields_is_answered(served: Running, root: Path) -> None:
    rng = random.Random(RUN.seed)
    with Store.open(root) as store:
        topic = next(iter(store.queues.by_key))[0]
    values = ["", "0", "1", "-1", "9" * 19, "9" * 40, "x", "true", topic, "%RETRY%g", "../x", "\0",
              "a" * 70_000, "\ud800".encode("utf-8", "replace").decode()]
    bodies = [b"", b"{}", b"[]", b"null", b"{", b'{"clientID":1}', b'{"mqSet":[1,{}]}',
              b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}']
    with served.client() as client:
        for code in sorted(HANDLERS):
            fields = REQUESTS[code].fields
            for _ in range(12):
                ext = {name: rng.choice(values) for name in fields if rng.random() < 0.9}
                answer = client.ask(code, rng.choice(bodies), **ext)
                assert answer.code >= 0
        assert client.ask(31_337).code == 3
        assert client.ask("SEND_MESSAGE_V2", b"x").code == 16
    assert alive(served)


def test_one_way_requests_are_never_answered(served: Running) -> None:
    with served.client() as client:
        client.one_way("GET_MAX_OFFSET")
        client.one_way(31_337)
        assert client.ask("GET_BROKER_CLUSTER_INFO").opaque == 3


def test_pipelined_requests_are_answered_in_order(served: Running) -> None:
    with served.client() as client:
        sent = [client.send("GET_BROKER_CLUSTER_INFO", ext={}) for _ in range(500)]
        assert [client.receive().opaque for _ in sent] == sent


def test_who_takes_no_answers_is_not_read_from(served: Running, root: Path) -> None:
    with Store.open(root) as store:
        (topic, queue_id), _ = max(store.queues.by_key.items(), key=lambda pair: pair[1].written)
    request = write_command(Command(11, 1, 0, {
        "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "subscription": "*"}))
    with socket.create_connection((served.address.host, served.address.port), 10) as client:
        client.settimeout(0.5)
        sent = 0
        with suppress(TimeoutError):
            while sent < 64 << 20:
                sent += client.send(request * 100)
        assert sent < 64 << 20
        (connection,) = served.server.connections
        assert connection.unsent < 4 << 20
        assert alive(served)
        served.do(lambda: None)
        assert connection.is_stale(time.monotonic() + 1000)
    assert alive(served)


def test_connections_are_limited_and_given_back(root: Path) -> None:
    with serving(root, limits=Limits(connections=3)) as served:
        for _ in range(300):
            socket.create_connection((served.address.host, served.address.port), 10).close()
        server = served.server
        _wait_until(lambda: server.accepted + server.turned_away == 300 and not server.connections)
        open_ones = [served.client() for _ in range(3)]
        assert all(open_one.ask("GET_BROKER_CLUSTER_INFO").code == 0 for open_one in open_ones)
        with served.client() as fourth, pytest.raises((EOFError, ConnectionError)):
            fourth.ask("GET_BROKER_CLUSTER_INFO")
        open_ones.pop().close()
        _wait_until(lambda: len(served.server.connections) == 2)
        assert alive(served)
        for open_one in open_ones:
            open_one.close()
    assert served.server.turned_away >= 1
    assert served.server.unfinished.held == 0


def test_frames_that_are_not_whole_are_held_up_to_a_limit(root: Path) -> None:
    with serving(root, limits=Limits(held=1 << 20)) as served:
        begun = struct.pack(">ii", 15 << 20, 10) + bytes(600_000)
        clients = [socket.create_connection((served.address.host, served.address.port), 10)
                   for _ in range(2)]
        clients[0].sendall(begun)
        clients[1].sendall(begun)
        ended = 0
        for client in clients:
            client.settimeout(1)
            try:
                ended += client.recv(1) == b""
            except ConnectionResetError:
                ended += 1
            except TimeoutError:
                pass
            client.close()
        assert ended == 1
        assert alive(served)


@pytest.mark.parametrize("data", [b"{" + b"a" * 300_000, b'{"' + b'\\"' * 150_000,
                                  b"[" * 300_000, b"a " * 150_000])
def test_what_is_no_json_is_refused_in_no_time(data: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(FrameError):
        read_json(data)
    assert time.process_time() - begun < 2


def test_requests_that_take_long_let_others_in(served: Running,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def slow(_broker: Broker, call: Call) -> Response:
        time.sleep(0.05)
        done.append(call)
        return Response({})

    monkeypatch.setitem(HANDLERS, 26, slow)
    with served.client() as busy, served.client() as other:
        numbers = [busy.send("GET_BROKER_CONFIG", ext={}) for _ in range(40)]
        time.sleep(0.1)
        assert other.ask("GET_BROKER_CLUSTER_INFO").code == 0
        assert len(done) < len(numbers)
        assert [busy.receive().opaque for _ in numbers] == numbers


def test_what_is_done_now_and_then_goes_on_after_an_error(
        served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str] = []
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(served.server, "problem", problems.append)
    monkeypatch.setattr(served.brokers[0], "deliver", fails)
    _wait_until(lambda: len(calls) > 2)
    assert problems == ["ZeroDivisionError: "]


def test_who_takes_nothing_gets_no_more_messages_for_pulls_that_wait(root: Path) -> None:
    with Store.open(root) as store:
        (topic, queue_id), _ = max(store.queues.by_key.items(), key=lambda pair: pair[1].written)
    with serving(root) as served, served.client() as client:
        end = client.ask("GET_MAX_OFFSET", topic=topic, queueId=queue_id).ext["offset"]
        client.send("PULL_MESSAGE", bytes(100_000), ext={
            "consumerGroup": "g", "topic": topic, "queueId": queue_id, "queueOffset": end,
            "maxMsgNums": 32, "sysFlag": 6, "suspendTimeoutMillis": 60_000, "subscription": "*"})
        (broker,) = served.brokers
        _wait_until(lambda: broker.waits.taken == 1)
        (connection,) = served.server.connections
        (waiting,) = broker.waiting[topic, queue_id]
        call = waiting.__self__.call  # type: ignore[attr-defined]
        assert not call.command.body
        assert not call.command.ext
        call.fields["queueOffset"] = 0
        served.do(connection.pause_writing)
        served.do(lambda: broker.arrived(topic, queue_id))
        answer = client.receive()
        assert (answer.code, answer.ext["nextBeginOffset"], answer.body) == (20, "0", b"")
        served.do(lambda: connection.send(Command(40, 1)))  # not kept for it
        served.do(connection.resume_writing)
        assert client.ask("GET_BROKER_CLUSTER_INFO").code == 0
        assert client.unsolicited == []
        assert broker.waits.taken == 0


def test_names_and_numbers_of_any_kind_are_kept_in_bounds(
        served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    (broker,) = served.brokers
    with served.client() as client:
        for version in ("\u00b2", "9" * 5000, "7"):
            value: dict[str, Any] = {"clientID": "c", "consumerDataSet": [{
                "groupName": "g", "subscriptionDataSet": [{"topic": "t", "subVersion": version}]}]}
            assert client.ask("HEART_BEAT", value).code == 0
        assert broker.groups.consumers["g"].subscriptions["t"].version == 7
        value = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [
            {"groupName": name} for name in ("x" * 2000, "\ud800")]}
        assert client.ask("HEART_BEAT", value).code == 0
        assert list(broker.groups.consumers) == ["g"]
        broker.groups.most = broker.groups.count
        value["consumerDataSet"] = [{"groupName": name} for name in ("g", "other")]
        broker.groups.consumers["g"].member("c").seen = 0
        assert client.ask("HEART_BEAT", value).code == 0
        assert list(broker.groups.consumers) == ["g"]
        assert broker.groups.consumers["g"].member("c").seen > 0
        for number in range(50):
            client.ask("GET_MAX_OFFSET", topic=f"none{number}", queueId=number)
        assert not any(topic.startswith("none") for topic, _ in broker.source._queues)
        broker.locks.most = 3
        locked = client.ask("LOCK_BATCH_MQ", {
            "consumerGroup": "g", "clientId": "c",
            "mqSet": [{"topic": "t", "queueId": number} for number in range(5)]})
        assert len(locked.json()["lockOKMQSet"]) == 3
    monkeypatch.setattr(positions, "_MAX_POSITIONS", 10)
    kept = positions.Positions({})
    assert kept.commit("g", "t", 0, 1)
    assert not kept.commit("g" * 5000, "t", 0, 1)


def test_rows_that_lead_nowhere_end_a_pull_in_time(root: Path, monkeypatch: pytest.MonkeyPatch
                                                   ) -> None:
    monkeypatch.setattr(LogReader, "records", lambda _self, places, _sizes: (
        memoryview(b""), np.zeros(len(places) + 1, np.int64)))
    monkeypatch.setattr(reading, "FILTER_S", -1)
    with Store.open(root) as store:
        (topic, queue_id), _ = max(store.queues.by_key.items(), key=lambda pair: pair[1].written)
    with serving(root) as served, served.client() as client:
        answer = client.pull(topic, queue_id, 0)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "1")


def test_a_store_is_looked_at_once_more_after_a_change(root: Path, tmp_path: Path) -> None:
    root = shutil.copytree(root, tmp_path / "store")
    source = ServedStore(lambda: Store.open(root), "disk", reading.PageCache())
    assert not source.refresh()
    os.utime(root / "consumequeue")
    assert [source.refresh() for _ in range(3)] == [True, True, False]
    log = max((root / "commitlog").iterdir())
    times = os.stat(log.parent)
    shutil.copy2(log, tmp_path / "same")
    os.replace(tmp_path / "same", log)
    os.utime(log.parent, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert source.refresh()
    source.close()


def test_messages_that_are_sent_back_are_counted_whatever_is_in_them(
        root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(root) as store:
        (topic, queue_id), _ = max(store.queues.by_key.items(), key=lambda pair: pair[1].written)
    with serving(root, settings=ServeSettings(retry_memory=40_000)) as served, (
            served.client()) as client:
        (broker,) = served.brokers
        raw = client.pull(topic, queue_id, 0, most=1).body
        record = replace(decode(raw), body=b"", body_crc=0, reconsume_times=-9)
        client.ask("HEART_BEAT", {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]})

        def sent_back(text: bytes, level: int = 0) -> int:
            built = build(replace(record, properties=text, total_size=size_of(
                0, record.magic, 0, len(record.topic), len(text))))
            monkeypatch.setattr(broker, "raw_at", lambda _: built)
            return client.ask("CONSUMER_SEND_MSG_BACK", offset=0, group="g", delayLevel=level).code

        assert sent_back(b"K\x01" + b"v" * 32_760) == 13
        assert sent_back(b"") == 0
        assert {sent_back(b"", 18) for _ in range(100)} == {0, 16}


_HALF = "\ud800"


def test_half_a_character_in_a_name_is_an_error_of_the_client(served: Running, root: Path) -> None:
    """JSON can write half of a surrogate pair, and UTF-8 cannot: no topic or group is named so."""
    with Store.open(root) as store:
        topic = next(iter(store.queues.by_key))[0]
    bodies = [b"", b"{}", b'{"topic":"\\ud800","consumerGroup":"\\ud800","clientId":"\\ud800"}',
              b'{"clientID":"\\ud800","consumerDataSet":[{"groupName":"\\ud800"}]}',
              (b'{"clientID":"c","consumerDataSet":[{"groupName":"\\ud800","subscriptionDataSet":['
              b'{"topic":"\\ud800","subString":"\\ud800"}]},{"groupName":"g",'
              b'"subscriptionDataSet":[{"topic":"\\ud800"}]}],"producerDataSet":['
              b'{"groupName":"\\ud800"}]}')]
    with served.client() as client:
        for code in sorted(HANDLERS):
            fields = REQUESTS[code].fields
            sound = {name: topic if "opic" in name or name == "b" else "0" for name in fields}
            for name in fields:
                for body in bodies[::4]:
                    answer = client.ask(code, body, **{**sound, name: _HALF})
                    assert answer.code >= 0
            for body in bodies:
                client.ask(code, body, **sound)
                client.ask(code, body, **dict.fromkeys(fields, _HALF))
    assert not served.failures
