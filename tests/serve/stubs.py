"""A client of the gRPC service: one call each, nothing by itself."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc

from rmqctl.ext.serve.grpc.protocol import MESSAGES, SERVICE, span
from tests.serve.running import Running

OK, NONE = 20000, 40401


class Stub:
    """A client with an id, of a server or an address. ``topic`` and ``group`` are those of its
    calls. ``own``: it shares its connection with no other.
    """

    def __init__(self, served: Running | str, topic: str = "", group: str = "G", name: str = "me",
                 *, own: bool = False) -> None:
        if not isinstance(served, str):
            assert served.server.proxy is not None
            served = str(served.server.proxy.address)
        self.channel = grpc.insecure_channel(
            served, [("grpc.use_local_subchannel_pool", 1)] if own else None)
        self.topic, self.group = {"name": topic}, {"name": group}
        self.metadata = (("x-mq-client-id", name),) if name else ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, method: str, timeout: float | None = 10, **fields: Any) -> Any:
        return self.channel.unary_unary(
            f"/{SERVICE}/{method}", MESSAGES[f"{method}Request"].SerializeToString,
            MESSAGES[f"{method}Response"].FromString)(
                MESSAGES[f"{method}Request"](**fields), timeout, self.metadata)

    def code(self, method: str, **fields: Any) -> int:
        return int(self.call(method, **fields).status.code)

    def receiving(self, *, timeout: float | None = 10, most: int = 32, wait: float = 0,
                  hide: float = 30, broker: str = "", tags: str = "*", kind: int = 1,
                  renew: bool = False, attempt: str = "") -> Any:
        """The stream of a ReceiveMessage."""
        return self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage", MESSAGES["ReceiveMessageRequest"].SerializeToString,
            MESSAGES["ReceiveMessageResponse"].FromString)(MESSAGES["ReceiveMessageRequest"](
                group=self.group, message_queue={"topic": self.topic, "broker": {"name": broker}},
                filter_expression={"type": kind, "expression": tags}, batch_size=most,
                invisible_duration=span(int(hide * 1000)), auto_renew=renew, attempt_id=attempt,
                long_polling_timeout=span(int(wait * 1000))), timeout, self.metadata)

    def receive(self, **wish: Any) -> tuple[int, list[Any]]:
        """(code, messages)."""
        answers = list(self.receiving(**wish))
        assert answers[0].HasField("status")
        return answers[0].status.code, [answer.message for answer in answers if answer.HasField(
            "message")]

    def got(self, **wish: Any) -> list[Any]:
        code, messages = self.receive(**wish)
        assert code == (OK if messages else NONE)
        return messages

    def ack(self, *messages: Any) -> int:
        return self.code("AckMessage", topic=self.topic, group=self.group, entries=[
            {"message_id": message.system_properties.message_id,
             "receipt_handle": message.system_properties.receipt_handle} for message in messages])

    def hide(self, message: Any, seconds: float) -> Any:
        """The message with its new handle."""
        answer = self.call(
            "ChangeInvisibleDuration", topic=self.topic, group=self.group,
            receipt_handle=message.system_properties.receipt_handle,
            invisible_duration=span(int(seconds * 1000)))
        assert answer.status.code == OK, answer
        message.system_properties.receipt_handle = answer.receipt_handle
        return message

    def message(self, body: bytes = b"hello", **system: Any) -> dict[str, Any]:
        return {"topic": self.topic, "body": body,
                "system_properties": {"message_id": "ID", "message_type": 1, **system}}

    def send(self, *messages: dict[str, Any]) -> Any:
        return self.call("SendMessage", messages=messages or (self.message(),))

    @contextmanager
    def telemetry(self, **settings: Any) -> Iterator[Any]:
        """The stream of the client's settings, which has been answered once: (answer, stream)."""
        outgoing: queue.Queue[Any] = queue.Queue()
        stream = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry", MESSAGES["TelemetryCommand"].SerializeToString,
            MESSAGES["TelemetryCommand"].FromString)(
                iter(outgoing.get, None), metadata=self.metadata)
        outgoing.put(MESSAGES["TelemetryCommand"](settings=settings))
        try:
            yield next(stream), stream
        finally:
            outgoing.put(None)
            stream.cancel()

    def consuming(self, tags: str = "*") -> Any:
        """The stream of a push consumer."""
        return self.telemetry(client_type=2, subscription={
            "group": self.group, "subscriptions": [
                {"topic": self.topic, "expression": {"type": 1, "expression": tags}}]})
