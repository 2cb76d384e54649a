"""A small blocking client for tests and measurements: one connection, one request at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any, Self

from rmqctl.ext.serve.remoting.codes import CODE_OF
from rmqctl.ext.serve.remoting.command import (
    ONE_WAY,
    Command,
    read_command,
    write_command,
    write_json,
)
from rmqctl.ext.serve.remoting.frame import FrameError, FrameReader
from rmqctl.ext.serve.remoting.signing import ACCESS_KEY, SIGNATURE, signature
from rmqctl.formats.local.message import Record, decode
from rmqctl.parse_values import Address


class Client:
    """A connection to a server, to be used as a context manager."""

    def __init__(self, address: Address, timeout: float = 10.0,
                 keys: tuple[str, str] | None = None) -> None:
        """``keys``: the access key and the secret with which requests are signed."""
        self.socket = socket.create_connection((address.host, address.port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader()
        self._opaque = 0
        self._keys = keys
        self.unsolicited: list[Command] = []
        """Requests that the server has sent to this client."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def send(self, request: str | int, body: bytes | dict[str, Any] = b"", *,
             ext: Mapping[str, object], flag: int = 0) -> int:
        """Send a request, given by name or code. Return the request's number (``opaque``)."""
        self._opaque += 1
        code = CODE_OF[request] if isinstance(request, str) else request
        fields = {name: _text(value) for name, value in ext.items()}
        data = write_json(body) if isinstance(body, dict) else body
        if self._keys is not None:
            fields[ACCESS_KEY], secret = self._keys
            fields[SIGNATURE] = signature(fields, data, secret).decode()
        self.socket.sendall(write_command(Command(code, self._opaque, flag, fields, body=data)))
        return self._opaque

    def one_way(self, request: str | int, **ext: object) -> None:
        """Send a one-way request, which gets no response."""
        self.send(request, flag=ONE_WAY, ext=ext)

    def receive(self) -> Command:
        """Return the next command from the server. Raises: EOFError if the server closed the
        connection.
        """
        while True:
            frame = self._frames.next()
            if frame is not None:
                return read_command(frame)
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._frames.feed(data)

    def ask(self, request: str | int, body: bytes | dict[str, Any] = b"", **ext: object) -> Command:
        """Send a request, and return its response."""
        return self._answer(self.send(request, body, ext=ext))

    def _answer(self, opaque: int) -> Command:
        while True:
            command = self.receive()
            if command.is_response and command.opaque == opaque:
                return command
            self.unsolicited.append(command)

    def pull(self, topic: str, queue_id: int, offset: int, **options: Any) -> Command:
        """Send a pull with the options of `send_pull`, and return its response."""
        return self._answer(self.send_pull(topic, queue_id, offset, **options))

    def send_pull(self, topic: str, queue_id: int, offset: int, *, most: int = 32,
                  group: str = "rmqctl", expression: str = "*", kind: str = "TAG", wait_ms: int = 0
                  ) -> int:
        """Send a pull that contains a filter and waits for messages for up to ``wait_ms``. Return
        the request's number (``opaque``).
        """
        return self.send("PULL_MESSAGE", ext={
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": offset,
            "maxMsgNums": most, "sysFlag": 4 | (2 if wait_ms else 0), "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms, "subscription": expression, "subVersion": 0,
            "expressionType": kind})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def records(body: bytes) -> Iterator[Record]:
    """Yield the messages in the body of a response. Raises: FrameError."""
    at = 0
    while at < len(body):
        record = decode(body, at)
        if record.total_size <= 0:
            raise FrameError("a record without a size")
        yield record
        at += record.total_size
