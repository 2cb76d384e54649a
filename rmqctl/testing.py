"""RocketMQ for the tests of a program: a server with an empty store, without Java.

With pytest, ``pytest_plugins = ["rmqctl.testing"]`` in ``conftest.py`` provides the fixture
`rocketmq`. In all other programs, `RocketMQ` is a context manager. Only the fixture requires
pytest.

The server is a separate process, so a client may block the interpreter while it waits. The server
ends with the block, or with the program that started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial, wraps
from queue import Empty, SimpleQueue
from typing import IO, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from rmqctl.errors import RmqctlError, UsageError
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.formats.local import properties as props
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms, parse_address
from rmqctl.store.objects import java_text, plain_body

__all__ = ["AsyncRocketMQ", "Fault", "Message", "RocketMQ"]

_START_S = 30.0
_END_S = 10.0
_TOPIC_S = 0.02
_NOT_AVAILABLE = 14
"""Code of a response after which producers retry."""
_OK = 0
_READ_AND_WRITE = 6
_NOT_OURS = "RMQCTL_"
"""Prefix of the environment variables with default values of options. These variables must not
affect the server of a test.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as stored in a topic; ``body`` is decompressed if its producer compressed it."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: dict[str, str]
    stored: int = 0
    """Store time (epoch ms)."""

    @property
    def tags(self) -> str | None:
        """Return the tag of the message."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        """Return the keys of the message."""
        return self.properties.get(props.KEYS, "").split()


class RocketMQ:
    """A name server and a broker with an empty store, which run during a ``with`` block.

    ``options``: additional options of ``rmqctl serve``.
    ``address``: address of the name server for clients, ``HOST:PORT``.
    ``grpc``: endpoint for RocketMQ 5 clients, with the option ``--grpc``.
    """

    def __init__(self, *options: str) -> None:
        self.address = self.grpc = ""
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._ordering = threading.Lock()
        self._answers: SimpleQueue[dict[str, Any]] = SimpleQueue()

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
            self._answers = SimpleQueue()
            threading.Thread(target=_read_on, args=(process.stdout, self._answers),
                             daemon=True).start()
            if not first:
                raise RmqctlError("rmqctl serve did not start; see its output on stderr")
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
        """Stop the server, and wait until its store is removed."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(OSError):
            process.terminate()
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    # -- topics and messages ------------------------------------------------------------------

    def topic(self, name: str | None = None, queues: int = 4) -> str:
        """Create a topic and return its name. ``name``: by default a unique name."""
        name = name or f"test-{uuid.uuid4().hex}"
        self._ask("UPDATE_AND_CREATE_TOPIC", topic=name, defaultTopic="TBW102",
                  readQueueNums=queues, writeQueueNums=queues, perm=_READ_AND_WRITE,
                  topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False)
        return name

    def topics(self) -> list[str]:
        """Return the names of all topics, including system topics."""
        return sorted(self._topics())

    def send(self, topic: str, body: bytes | str, *, tags: str = "", keys: str = "",
             queue_id: int = 0, delay_level: int = 0, properties: Mapping[str, str] | None = None
             ) -> None:
        """Send a message; create the topic if it does not exist. ``keys`` are separated by
        spaces.
        """
        given = {props.TAGS: tags, props.KEYS: keys, props.DELAY: str(delay_level or "")}
        sent = {name: value for name, value in given.items() if value} | dict(properties or {})
        self._ask("SEND_MESSAGE", body.encode() if isinstance(body, str) else body,
                  producerGroup="rmqctl-testing", topic=topic, defaultTopic="TBW102",
                  defaultTopicQueueNums=4, queueId=queue_id, sysFlag=0, bornTimestamp=now_ms(),
                  flag=0, properties=props.build(sent), reconsumeTimes=0, unitMode=False)

    def messages(self, topic: str) -> list[Message]:
        """Return all messages of a topic, queue by queue.
        Raises: UsageError for an unknown topic.
        """
        return self._messages(topic, dict.fromkeys(range(self._queues(topic)), 0))

    def wait_for(self, topic: str, count: int, timeout: float = 10.0) -> list[Message]:
        """Wait until a topic has ``count`` messages, and return all its messages. The topic may be
        created while waiting.
        Raises: TimeoutError.
        """
        end = time.monotonic() + timeout
        while topic not in self._topics() and time.monotonic() < end:
            time.sleep(_TOPIC_S)
        offsets, seen = dict.fromkeys(range(self._queues(topic)), 0), 0
        # Query all queues at once; each answers when it has more.
        with self._client(timeout + _END_S) as client:
            asked: dict[int, int] = {}
            while seen < count and (left := int((end - time.monotonic()) * 1000)) > 0:
                for queue_id in offsets.keys() - asked.values():
                    asked[client.send_pull(
                        topic, queue_id, offsets[queue_id], wait_ms=left)] = queue_id
                answer = client.receive()
                if answer.is_response and answer.opaque in asked:
                    if "nextBeginOffset" not in answer.ext:
                        raise RmqctlError(f"{topic}: code {answer.code}, {answer.remark}")
                    offsets[asked.pop(answer.opaque)] = int(answer.ext["nextBeginOffset"])
                    seen += sum(1 for _ in records(answer.body))
        messages = self.messages(topic)
        if len(messages) < count:
            raise TimeoutError(f"{topic} has {len(messages)} of {count} messages after {timeout} s")
        return messages

    def delayed(self) -> list[Message]:
        """Return the messages that are not due yet; ``topic`` and ``queue_id`` are those of the
        target.
        """
        levels = self._ask("GET_ALL_DELAY_OFFSET").json()["offsetTable"]
        offsets = dict.fromkeys(range(self._topics().get(props.SCHEDULE_TOPIC, 0)), 0) | {
            int(level) - 1: offset for level, offset in levels.items()}
        waiting, now = self._messages(props.SCHEDULE_TOPIC, offsets), now_ms()
        if props.TIMER_TOPIC in self._topics():
            timed = self._messages(props.TIMER_TOPIC, {0: 0})
            recalled = {message.properties.get(props.TIMER_DELETE) for message in timed}
            waiting += [message for message in timed
                        if props.TIMER_DELETE not in message.properties
                        and int(message.properties.get(props.TIMER_OUT_MS, 0)) > now
                        and f"{message.properties.get(props.REAL_TOPIC)}+"
                        f"{message.properties.get(props.UNIQUE_KEY)}" not in recalled]
        return [replace(message, topic=message.properties[props.REAL_TOPIC],
                        queue_id=int(message.properties[props.REAL_QUEUE_ID]))
                for message in waiting]

    # -- consumer groups ----------------------------------------------------------------------

    def lag(self, group: str, topic: str | None = None) -> int:
        """Return the number of messages that a group has not consumed, in one topic, or in all
        topics that it consumes.
        Raises: UsageError for an unknown group.
        """
        return sum(queue["brokerOffset"] - queue["consumerOffset"]
                   for name in self._topics_of(group, topic)
                   for queue in self._ask("GET_CONSUME_STATS", consumerGroup=group, topic=name)
                   .json()["offsetTable"].values())

    def reset(self, group: str, topic: str | None = None,
              to: Literal["earliest", "latest"] | int = "earliest") -> None:
        """Reset a group in one topic, or in all topics that it consumes.

        ``to``: the next message to consume: ``earliest``, ``latest`` (only new messages), or a time
        (ms) for the first message stored then or later. Raises: UsageError.
        """
        when = {"earliest": 0, "latest": -1}[to] if isinstance(to, str) else to
        for name in self._topics_of(group, topic):
            self._ask("INVOKE_BROKER_TO_RESET_OFFSET", topic=name, group=group, timestamp=when,
                      isForce=True)

    def dead_letters(self, group: str) -> list[Message]:
        """Return the dead letters of a group.
        Raises: UsageError for an unknown group.
        """
        topic = props.DLQ_PREFIX + group
        if topic in self._topics():
            return self.messages(topic)
        self._topics_of(group, None)
        return []

    # -- faults -------------------------------------------------------------------------------

    def refuse_sends(self, times: int | None = None, *, topic: str | None = None,
                     code: int = _NOT_AVAILABLE) -> Fault:
        """Reject the next ``times`` sends to ``topic`` (None: to any topic). Without ``times``,
        reject all sends until the fault ends. ``code``: the response code of the remoting protocol.
        """
        return self._fault(partial(self._order, "refuse_sends", times=0), "refuse_sends",
                           times=-1 if times is None else times, topic=topic, code=code)

    def slow(self, seconds: float) -> Fault:
        """Delay each response until the fault ends."""
        return self._fault(partial(self._order, "slow", ms=0), "slow", ms=seconds * 1000)

    def pause(self) -> Fault:
        """Stop reading and answering requests until `resume` or the end of the fault. Connections
        remain open.
        """
        return self._fault(self.resume, "pause")

    def resume(self) -> None:
        """End a `pause`."""
        self._order("resume")

    def stop(self) -> Fault:
        """Stop the server the way a broker is shut down. Its store is kept, and its port is free
        until `start`.
        """
        return self._fault(self.start, "stop")

    def start(self) -> None:
        """Start the server again after `stop`, at the same address."""
        self._order("start")

    def restart(self) -> None:
        """Restart the server; clients have to connect again."""
        self.stop().end()

    def _fault(self, end: Callable[[], None], order: str, **values: object) -> Fault:
        self._order(order, **values)
        return Fault(end)

    def _order(self, order: str, **values: object) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise RmqctlError("only the program that started the server can control it")
        with self._ordering, suppress(BrokenPipeError, Empty):
            process.stdin.write(json.dumps({"order": order, **values}).encode() + b"\n")
            process.stdin.flush()
            answer = self._answers.get(timeout=_START_S)
            if answer["order"] == order:
                return
            raise RmqctlError(f"{order}: {answer.get('problem', 'the server has ended')}")
        raise RmqctlError(f"{order}: no response from the server")

    # -- over the server's protocol -----------------------------------------------------------

    def _client(self, timeout: float = 10.0) -> Client:
        return Client(parse_address(self.address), timeout)

    def _ask(self, request: str, body: bytes = b"", **ext: object) -> Command:
        with self._client() as client:
            answer = client.ask(request, body, **ext)
        if answer.code != _OK:
            raise RmqctlError(f"{request}: code {answer.code}, {answer.remark}")
        return answer

    def _topics(self) -> dict[str, int]:
        """Return the number of read queues by topic."""
        table = self._ask("GET_ALL_TOPIC_CONFIG").json()["topicConfigTable"]
        return {name: config["readQueueNums"] for name, config in table.items()}

    def _queues(self, topic: str) -> int:
        topics = self._topics()
        if topic not in topics:
            raise _unknown("topic", topic, topics)
        return topics[topic]

    def _topics_of(self, group: str, topic: str | None) -> list[str]:
        """Return the topics that a group consumes, or only ``topic`` if it is given."""
        if topic is not None:
            self._queues(topic)
        topics = set(self._ask("QUERY_TOPICS_BY_CONSUMER", group=group).json()["topicList"])
        with self._client() as client:
            response = client.ask("GET_CONSUMER_CONNECTION_LIST", consumerGroup=group)
        if response.code == _OK:
            topics |= response.json()["subscriptionTable"].keys()
        groups = self._ask("GET_ALL_SUBSCRIPTIONGROUP_CONFIG").json()["subscriptionGroupTable"]
        if not topics and group not in groups:
            raise _unknown("consumer group", group, groups)
        return [topic] if topic is not None else sorted(topics & self._topics().keys())

    def _messages(self, topic: str, offsets: Mapping[int, int]) -> list[Message]:
        """Return messages of a topic. ``offsets``: the first queue offset to return, by queue
        id.
        """
        messages = []
        with self._client() as client:
            for queue_id, first in sorted(offsets.items()):
                offset = first
                while (pulled := client.pull(topic, queue_id, offset)).code == _OK:
                    messages += [Message(
                        topic, queue_id, record.queue_offset,
                        plain_body(record.sys_flag, record.body)[0],
                        props.parse(java_text(record.properties)), record.store_timestamp)
                        for record in records(pulled.body)]
                    offset = int(pulled.ext["nextBeginOffset"])
        return messages


class Fault:
    """An injected fault, which lasts until the end of a ``with`` block or until `end` is called."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.end)


def _unknown(kind: str, name: str, names: Iterable[str]) -> UsageError:
    similar = get_close_matches(name, names)
    return UsageError(f"no such {kind}: {name}" + (
        f"; similar: {', '.join(similar)}" if similar else ""))


def _read_on(events: IO[bytes], answers: SimpleQueue[dict[str, Any]]) -> None:
    """Read the server's output until it ends. Put its replies to commands into ``answers``."""
    with events:
        for line in events:
            if (event := json.loads(line)).get("event") == "order":
                answers.put(event)
    answers.put({"order": None})


# The same for programs that use asyncio -----------------------------------------------------------

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _twin(method: Callable[Concatenate[RocketMQ, _P], _T]
          ) -> Callable[Concatenate[AsyncRocketMQ, _P], Coroutine[Any, Any, _T]]:
    @wraps(method)
    async def run(self: AsyncRocketMQ, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await asyncio.to_thread(method, self.server, *args, **kwargs)

    return run


class AsyncRocketMQ:
    """`RocketMQ` with awaitable methods: ``async with AsyncRocketMQ() as server``."""

    def __init__(self, *options: str) -> None:
        self.server = RocketMQ(*options)

    @property
    def address(self) -> str:
        """Return the address of the name server for clients."""
        return self.server.address

    @property
    def grpc(self) -> str:
        """Return the endpoint of RocketMQ 5 clients."""
        return self.server.grpc

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.server.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    close = _twin(RocketMQ.close)
    topic = _twin(RocketMQ.topic)
    topics = _twin(RocketMQ.topics)
    send = _twin(RocketMQ.send)
    messages = _twin(RocketMQ.messages)
    wait_for = _twin(RocketMQ.wait_for)
    delayed = _twin(RocketMQ.delayed)
    lag = _twin(RocketMQ.lag)
    reset = _twin(RocketMQ.reset)
    dead_letters = _twin(RocketMQ.dead_letters)
    refuse_sends = _twin(RocketMQ.refuse_sends)
    slow = _twin(RocketMQ.slow)
    pause = _twin(RocketMQ.pause)
    resume = _twin(RocketMQ.resume)
    stop = _twin(RocketMQ.stop)
    start = _twin(RocketMQ.start)
    restart = _twin(RocketMQ.restart)


try:
    import pytest
except ImportError:
    pass
else:
    @pytest.fixture(scope="session")
    def rocketmq() -> Iterator[RocketMQ]:
        """Provide a server for all tests of a run; under pytest-xdist one per worker."""
        with RocketMQ() as server:
            yield server
