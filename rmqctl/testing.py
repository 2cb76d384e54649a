"""RocketMQ for the tests of a program: a server of its own with an empty store, without Java.

With pytest, ``pytest_plugins = ["rmqctl.testing"]`` in ``conftest.py`` brings the fixture
`rocketmq`; elsewhere `RocketMQ` is a context manager. The server is a process, so that clients
which hold the interpreter while they wait can be tested, too. It ends with the block, and when the
program that started it ends, however that ends. pytest is needed for the fixture alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Self

from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.formats.local import properties as props
from rmqctl.parse_values import now_ms, parse_address
from rmqctl.store.objects import java_text, plain_body

__all__ = ["Message", "RocketMQ"]

_START_S = 30.0
_END_S = 10.0
_FOUND = 0
_READ_AND_WRITE = 6
_NOT_OURS = "RMQCTL_"
"""Defaults of options from the environment are not those of a test's server."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it lies in a topic; ``body`` is unpacked where its producer packed it."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: dict[str, str]

    @property
    def tags(self) -> str | None:
        """The message's tag."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        """The message's keys."""
        return self.properties.get(props.KEYS, "").split()


class RocketMQ:
    """A name server and broker with an empty store, from ``with`` on until its end.

    ``options``: more of those that ``rmqctl serve`` has. ``address``: what clients take as their
    name server, ``HOST:PORT``; ``grpc``: the endpoint of clients of RocketMQ 5, where ``--grpc`` is
    one of the options.
    """

    def __init__(self, *options: str) -> None:
        self.address = self.grpc = ""
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environ = {name: value for name, value in os.environ.items()
                   if not name.startswith(_NOT_OURS)}
        self._process = process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", "rmqctl", "serve", "--temp", "--listen", "127.0.0.1:0",
             "--end-with-stdin", "-o", "jsonl", *self._options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        late = threading.Timer(_START_S, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            threading.Thread(target=_read_on, args=(process.stdout,), daemon=True).start()
            if not first:
                raise RmqctlError("rmqctl serve did not start; what it said is on stderr")
            ready = json.loads(first)
            self.address, self.grpc = ready["ready"], ready["grpc"] or ""
        except BaseException:
            self.close()
            raise
        finally:
            late.cancel()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server, and waits until its store is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()

    # -- topics and messages ------------------------------------------------------------------

    def topic(self, name: str | None = None, queues: int = 4) -> str:
        """Makes a topic; its name, one that nobody else has where none is given."""
        name = name or f"test-{uuid.uuid4().hex}"
        self._ask("UPDATE_AND_CREATE_TOPIC", topic=name, defaultTopic="TBW102",
                  readQueueNums=queues, writeQueueNums=queues, perm=_READ_AND_WRITE,
                  topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False)
        return name

    def topics(self) -> list[str]:
        """The names of all topics, those of the system among them."""
        return sorted(self._ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"])

    def send(self, topic: str, body: bytes | str, *, tags: str = "", keys: str = "",
             queue_id: int = 0) -> None:
        """Sends a message; a topic that is not there is made. ``keys`` are parted by spaces."""
        known = {name: value for name, value in ((props.TAGS, tags), (props.KEYS, keys)) if value}
        self._ask("SEND_MESSAGE", body.encode() if isinstance(body, str) else body,
                  producerGroup="rmqctl-testing", topic=topic, defaultTopic="TBW102",
                  defaultTopicQueueNums=4, queueId=queue_id, sysFlag=0, bornTimestamp=now_ms(),
                  flag=0, properties=props.build(known), reconsumeTimes=0, unitMode=False)

    def messages(self, topic: str) -> list[Message]:
        """All messages of a topic, queue by queue; none where there is no such topic."""
        found = []
        table = self._ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"]
        with self._client() as client:
            for queue_id in range(table.get(topic, {}).get("readQueueNums", 0)):
                offset = 0
                while (pulled := client.pull(topic, queue_id, offset)).code == _FOUND:
                    found += [Message(
                        topic, queue_id, record.queue_offset,
                        plain_body(record.sys_flag, record.body)[0],
                        props.parse(java_text(record.properties)))
                        for record in records(pulled.body)]
                    offset = int(pulled.ext["nextBeginOffset"])
        return found

    def _client(self) -> Client:
        return Client(parse_address(self.address))

    def _ask(self, request: str, body: bytes = b"", **ext: object) -> Command:
        with self._client() as client:
            answer = client.ask(request, body, **ext)
        if answer.code != _FOUND:
            raise RmqctlError(f"{request}: code {answer.code}, {answer.remark}")
        return answer


def _read_on(events: IO[bytes]) -> None:
    """Takes what the server says, until its end."""
    with events:
        for _ in events:
            pass


try:
    import pytest
except ImportError:
    pass
else:
    @pytest.fixture(scope="session")
    def rocketmq() -> Iterator[RocketMQ]:
        """A server for all tests of a run; under pytest-xdist each worker has its own."""
        with RocketMQ() as server:
            yield server
