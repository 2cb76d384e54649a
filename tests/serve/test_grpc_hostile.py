"""Clients of RocketMQ 5 that send what they should not, or take nothing."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc

from rmqctl.broker.settings import Settings as StoreSettings
from rmqctl.engine.config.create import create_store
from rmqctl.ext.serve.consuming import popping
from rmqctl.ext.serve.grpc import consuming, server, sessions
from rmqctl.ext.serve.grpc.protocol import MESSAGES, SERVICE
from rmqctl.ext.serve.limits import Limits
from tests.serve.running import Running, serving, until
from tests.serve.stubs import NONE, OK, Stub
from tests.serve.test_grpc import BAD_HANDLE, bodies, root, served, stub, written

__all__ = ["root", "served", "stub", "written"]  # fixtures
BAD_REQUEST, BUSY = 40000, 42900


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x0a\x04\x12\x02\xc3\x28"])
def test_what_is_no_message_is_refused_and_no_defect(stub: Stub, data: bytes) -> None:
    def calling(kind: str, method: str, answer: str) -> Any:
        return getattr(stub.channel, kind)(f"/{SERVICE}/{method}", None,
                                           MESSAGES[answer].FromString)

    assert calling("unary_unary", "QueryRoute", "QueryRouteResponse")(
        data, 10, stub.metadata).status.code == BAD_REQUEST
    (answer,) = calling("unary_stream", "ReceiveMessage", "ReceiveMessageResponse")(
        b"\xff" + data, 10, stub.metadata)
    assert answer.status.code == BAD_REQUEST
    (answer,) = calling("stream_stream", "Telemetry", "TelemetryCommand")(
        iter([b"\xff" + data]), 10, stub.metadata)
    assert answer.status.code == BAD_REQUEST


def test_small_requests_do_not_make_much_work(written: Running) -> None:
    with Stub(written, "T") as stub:
        assert stub.code("AckMessage", topic=stub.topic, group=stub.group,
                         entries=[{}] * 2000) == BAD_REQUEST
        large = "x" * 70_000
        for settings in ({"message_group": large}, {"tag": large}, {"keys": [large]}):
            assert stub.send(stub.message(**settings)).status.message.endswith("are too large")
        assert stub.send(stub.message(message_group="x" * 30_000)).status.code == OK


def test_an_answer_does_not_repeat_what_is_large(stub: Stub) -> None:
    large = "x" * 5000
    for method in ("QueryRoute", "QueryAssignment"):
        for wish in ({"topic": stub.topic | {"resource_namespace": large}},
                     {"topic": stub.topic, "endpoints": {"addresses": [{"host": large}]}}):
            assert stub.code(method, **wish) == BAD_REQUEST


def test_a_queue_with_a_huge_number_is_not_counted_up_to(tmp_path: Path) -> None:
    create_store(tmp_path / "store", StoreSettings(version="5.3.3", index_slots=100, index_max=400))
    (tmp_path / "store" / "consumequeue" / "HUGE" / "2147483646").mkdir(parents=True)
    with serving(tmp_path / "store") as served:
        assert served.brokers[0].require_topic("HUGE").read_queues == 1 << 16


def test_handles_make_no_room_for_what_they_name(stub: Stub, served: Running) -> None:
    for number in range(20):
        stub.group = {"name": f"G{number}"}
        assert stub.code("AckMessage", topic=stub.topic, group=stub.group,
                         entries=[{"receipt_handle": "broker-a 0 0 0 0"}]) == BAD_HANDLE
    assert not served.brokers[0].pops._all


def test_of_those_who_wait_for_the_same_one_hears_of_news(written: Running,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = popping.GroupDeliveries.take
    monkeypatch.setattr(popping.GroupDeliveries, "take",
                        lambda *args: (looks.append(1), real(*args))[1])  # type: ignore[func-returns-value]
    with Stub(written, "T") as stub:
        waiting = []
        for _ in range(8):  # in line one behind the other
            waiting.append(stub.receiving(wait=60, most=1))
            until(lambda: len(looks) == len(waiting) + 1)  # each once, and the first of them again
        for number in range(3):
            stub.send(stub.message(b"%d" % number))
        until(lambda: written.brokers[0].delivered["G", "T"] == 3)
        assert len(looks) <= 9 + 3 * 3
        waiting[-1].cancel()
        stub.send(*(stub.message(b"many") for _ in range(4)))
        got = [response.message.body for call in waiting[:-1] for response in call
               if response.HasField("message")]
        assert sorted(got) == [b"0", b"1", b"2", *[b"many"] * 4]


def test_a_request_is_not_kept_while_it_waits(written: Running) -> None:
    with Stub(written, "T") as stub:
        waiting = stub.receiving(wait=10)
        until(lambda: bool(written.brokers[0].waiting))
        assert not [object_ for object_ in gc.get_objects()
                    if isinstance(object_, MESSAGES["ReceiveMessageRequest"])]
        waiting.cancel()


def test_who_looks_for_long_is_answered_in_time(written: Running, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    looks: list[int] = []
    monkeypatch.setattr(popping.GroupDeliveries, "take",  # there is always more
                        lambda *_: (looks.append(1), ([], 1))[1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(consuming, "_LOOK_S", 0.3)
    with Stub(written, "T") as stub, written.client() as remoting:
        waiting = [stub.receiving(wait=wait) for wait in (0, 0, 0.6)]
        begun = time.monotonic()
        for _ in range(20):
            remoting.ask("GET_NAMESRV_CONFIG")
        assert [next(message).status.code for message in waiting] == [NONE] * 3
        assert 0.3 < time.monotonic() - begun < 3
        assert len(looks) < 100  # others have their turn between two of them


def test_connections_are_counted(root: Path) -> None:
    with serving(root, grpc=True, limits=Limits(connections=3)) as served, ExitStack() as stack:
        assert served.server.proxy is not None
        address = served.server.proxy.address
        idle = [stack.enter_context(socket.create_connection((address.host, address.port)))
                for _ in range(3)]
        assert all(connection.recv(1) for connection in idle)  # the server speaks first
        # Each connection has a client of its own, which waits for messages.
        busy = [stack.enter_context(Stub(served, bodies(root)[0], f"G{number}", own=True))
                for number in range(3)]
        waiting = [connection.receiving(wait=10, tags="none") for connection in busy]
        until(lambda: [connection.calls for connection in served.server.pipes] == [1]
              * 3)  # idle ones gave way
        with Stub(served, bodies(root)[0], own=True) as stub, pytest.raises(grpc.RpcError):
            stub.code("QueryRoute", topic=stub.topic, timeout=1)
        for connection in waiting:
            connection.cancel()
        with Stub(served, bodies(root)[0], own=True) as stub:
            until(lambda: answers(stub))


def answers(stub: Stub) -> bool:
    try:
        return stub.code("QueryRoute", topic=stub.topic, timeout=1) == OK
    except grpc.RpcError:
        return False


# -- streams of clients -------------------------------------------------------------------------


def test_a_stream_on_which_nothing_is_said_ends(served: Running, monkeypatch: pytest.MonkeyPatch
                                                ) -> None:
    monkeypatch.setattr(server, "_READ_S", 0.2)
    with Stub(served, "T") as stub:
        stream = stub.channel.stream_stream(
            f"/{SERVICE}/Telemetry", MESSAGES["TelemetryCommand"].SerializeToString,
            MESSAGES["TelemetryCommand"].FromString)(endless(), 8, stub.metadata)
        assert [response.status.code for response in stream] == [BAD_REQUEST]


def endless() -> Any:
    time.sleep(4)
    yield MESSAGES["TelemetryCommand"]()


def test_settings_that_nobody_takes_are_not_piled_up(served: Running,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TAKEN_S", 0.3)
    with Stub(served, "T") as stub:
        wanted = MESSAGES["TelemetryCommand"](settings={
            "publishing": {"topics": [{"name": "x" * 1_000_000}]}})
        stream = stub.channel.stream_stream(
            f"/{SERVICE}/Telemetry", MESSAGES["TelemetryCommand"].SerializeToString,
            MESSAGES["TelemetryCommand"].FromString)(iter([wanted] * 50), 8, stub.metadata)
        assert served.server.proxy is not None
        by_client = served.server.proxy._endpoint.sessions.by_client
        until(lambda: any(session.streams for session in by_client.values()))
        until(lambda: not any(session.streams for session in by_client.values()))
        assert len(list(stream)) < 50


def test_settings_count_by_what_they_take(served: Running, monkeypatch: pytest.MonkeyPatch
                                          ) -> None:
    with Stub(served, "T") as stub:
        with stub.telemetry(publishing={"topics": [{}] * 10_001}) as (answer, _):
            assert answer.status.code == BUSY
        monkeypatch.setattr(sessions, "MAX_BYTES", 90_000)
        with stub.telemetry(publishing={"topics": [{}] * 1000}) as (answer, _):
            assert answer.status.code == BUSY
        with stub.telemetry(publishing={"topics": [{}] * 800}) as (answer, _):
            assert answer.status.code == OK
        with stub.telemetry(publishing={"topics": [{}] * 700}) as (answer, _):
            assert answer.status.code == OK
        assert stub.code("NotifyClientTermination") == OK
        assert served.server.proxy is not None
        assert served.server.proxy._endpoint.sessions._size == 0


def test_many_clients_that_are_gone_do_not_hold_others_up(served: Running,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = served.server.proxy
    assert proxy is not None
    by_client = proxy._endpoint.sessions.by_client
    real = sessions.Sessions.leave

    def slow(of: sessions.Sessions, client_id: str) -> None:
        time.sleep(0.011)
        real(of, client_id)

    for number in range(6):
        with Stub(served, "T", name=f"c{number}") as stub, stub.consuming():
            pass
    until(lambda: all(not session.streams for session in by_client.values()))
    monkeypatch.setattr(sessions.Sessions, "leave", slow)
    monkeypatch.setattr(sessions, "AWAY_S", 0.0)
    left: list[int] = []
    served.do(lambda: (proxy.expire(), left.append(len(by_client))))  # type: ignore[func-returns-value]
    assert 0 < left[0] < 6
    until(lambda: not by_client)


def test_few_clients_share_a_connection(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STREAMS_OF_CLIENTS", 2)
    ended = threading.Event()

    def settings() -> Iterator[Any]:
        yield MESSAGES["TelemetryCommand"](settings={"subscription": {"group": {"name": "G"}}})
        ended.wait(10)

    streams: list[Any] = []

    def opened(channel: Any, name: str) -> int:
        streams.append(channel.stream_stream(
            f"/{SERVICE}/Telemetry", MESSAGES["TelemetryCommand"].SerializeToString,
            MESSAGES["TelemetryCommand"].FromString)(
                settings(), 10, [("x-mq-client-id", name)]))
        return int(next(streams[-1]).status.code)

    proxy = served.server.proxy
    assert proxy is not None
    with Stub(served) as stub, grpc.insecure_channel(
            str(proxy.address), [("grpc.use_local_subchannel_pool", 1)]) as other:
        assert [opened(stub.channel, f"c{number}") for number in range(3)] == [OK, OK, BUSY]
        assert opened(other, "d") == OK
        ended.set()
        until(lambda: not proxy._streams)
        assert opened(stub.channel, "c4") == OK


def test_one_address_has_its_part_of_the_streams(root: Path) -> None:
    with serving(root, grpc=True, limits=Limits(connections=4, part=0.5)) as served, Stub(
            served, bodies(root)[0]) as stub, stub.consuming():
        with Stub(served, "T", name="c2") as other, other.consuming(), Stub(
                served, "T", name="c3") as third, third.telemetry(
                subscription={"group": {"name": "G"}}) as (answer, _):
            assert answer.status.code == BUSY
        proxy = served.server.proxy
        assert proxy is not None
        until(lambda: proxy._clients.taken == 1)


def test_a_client_that_is_gone_while_it_is_written_to_is_no_defect(served: Running) -> None:
    assert served.server.proxy is not None
    served.server.proxy._judged("ReceiveMessage", grpc.aio.InternalError("execute_batch"))
    assert not served.failures
