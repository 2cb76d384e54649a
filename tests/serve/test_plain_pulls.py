"""Plain pulls, which take a short way: to the same answers as by the whole one."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.serve import reading
from rmqctl.ext.serve.broker import Broker, Buffer, Response
from rmqctl.ext.serve.consuming import plain, pulling
from rmqctl.ext.serve.consuming.groups import Group
from rmqctl.ext.serve.consuming.subscriptions import Subscription
from rmqctl.ext.serve.dispatch import answer
from rmqctl.ext.serve.remoting.codes import CODE_OF
from rmqctl.ext.serve.remoting.command import Command, read_command, response_head, write_command
from rmqctl.ext.serve.remoting.frame import FrameReader
from rmqctl.ext.serve.serving import RequestedStore, ServeSettings, open_brokers
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support.kernels import KERNELS, compiled_only, using
from tests.support.share import RUN

PULL, LITE = CODE_OF["PULL_MESSAGE"], CODE_OF["LITE_PULL_MESSAGE"]


class Taker:
    """A connection that keeps its answers."""

    peer, local_host = "127.0.0.1:4000", "127.0.0.1"
    is_full = False

    def __init__(self) -> None:
        self.at_end: set[Any] = set()
        self.host = "h"
        self.answers: list[bytes] = []

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        self.answers.append(b"".join(parts))
        assert len(self.answers[-1]) == size

    def reply(self, request: Command, response: Response) -> None:
        body = b"".join(response.parts)
        self.answers.append(response_head(request.opaque, response.code, response.ext or {},
                                          response.remark, len(body)) + body)

    def send(self, command: Command) -> None: ...

    ask = None


def opened(root: Path) -> Broker:
    broker = open_brokers([RequestedStore(str(root), lambda: Store.open(str(root)))],
                          ServeSettings(),
                          lambda **_: None)[0][0]
    broker.failed = lambda _name, error: pytest.fail(repr(error))
    group = Group("known")
    group.subscribe([Subscription(topic, "TagA || TagB" if number % 2 else "*")
                     for number, topic in enumerate(broker.source.topics)])
    broker.groups.consumers["known"] = group
    return broker


async def answered(broker: Broker, frames: list[bytes], *, short: bool) -> list[bytes]:
    """The answers to requests that come a few at a time."""
    taker, reader = Taker(), FrameReader()
    for at in range(0, len(frames), 5):
        reader.feed(b"".join(frames[at:at + 5]))
        while True:
            if not short or not broker.pulls.take_all(taker, reader, time.monotonic() + 9):
                frame = reader.next()
                if frame is None:
                    break
                answer(broker, taker, read_command(frame))  # type: ignore[arg-type]
        await asyncio.sleep(0)
    for end in list(taker.at_end):
        end()
    return taker.answers


def pull(number: int, code: int = PULL, flag: int = 0, **fields: object) -> bytes:
    wanted = {"consumerGroup": "g", "topic": "TopicTest", "queueId": 0, "queueOffset": 0,
              "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
              "subscription": "*", "subVersion": 0} | fields
    return write_command(Command(code, number, flag, {
        name: str(value) for name, value in wanted.items() if value is not None}))


def some_pulls(broker: Broker, count: int) -> list[bytes]:
    source = random.Random(RUN.seed)
    pick = source.choice
    queues = [(topic, queue_id) for topic, topic_name in broker.source.topics.items()
              for queue_id in range(topic_name.read_queues)]
    pulls = []
    for number in range(count):
        topic, queue_id = pick(queues)
        end = broker.queue(topic, queue_id).end
        fields: dict[str, object] = {
            "topic": topic, "queueId": queue_id, "sysFlag": pick([4, 4, 5, 7]),
            "queueOffset": source.randrange(max(end, 1)), "commitOffset": source.randrange(99),
            "maxMsgNums": pick([32, 32, 3]), "subscription": pick(["*", "*", "TagA"]),
            "suspendTimeoutMillis": pick([0, 5000]), "consumerGroup": pick(["g", "known"])}
        if number % 4 == 0:  # something that is seldom, or wrong
            fields |= pick([
                {"queueOffset": pick([-1, end, end + 1, 1 << 62, "x", 1 << 70])},
                {"sysFlag": pick([0, 1, 2, 3])}, {"topic": "none"}, {"queueId": pick([-1, 99])},
                {"maxMsgNums": pick([0, -1, 100_000])}, {"commitOffset": pick([None, -1])},
                {"subscription": pick(["a || ", "TAGS is not null", "é"])},
                {"expressionType": pick(["SQL92", "TAG", "x"]), "subscription": "a > 5"},
                {"maxMsgBytes": pick([1, 3000])}, {"subVersion": 1 << 40}, {"sysFlag": None},
                {"brokerName": 'x"y'}, {"consumerGroup": "x" * 900}])
        code = pick([PULL, PULL, LITE, CODE_OF["GET_MAX_OFFSET"]])
        pulls.append(pull(number, code, pick([0, 0, 0, 0, 2]), **fields))
    return pulls


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["4.9.3/basic", "5.3.3/lmq", "5.3.3/batchcq"])
def test_plain_pulls_lead_to_the_same_answers(
        golden: GoldenFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
        kernel: str) -> None:
    monkeypatch.setattr(reading, "FILTER_S", 60.0)
    root = tmp_path / "store"
    shutil.copytree(golden(name) / "store", root)
    first = min((root / "commitlog").iterdir())
    data = bytearray(first.read_bytes())
    for place in range(9000, len(data.rstrip(b"\0")), 9973):
        data[place] ^= 1
    first.write_bytes(data)
    with using(kernel):
        values = []
        for short in (False, True):
            broker = opened(root)
            frames = some_pulls(broker, 600)
            answers = asyncio.run(answered(broker, frames, short=short))
            values.append((answers, broker.requests, broker.delivered, broker.delivered_bytes,
                           broker.skipped, broker.positions.committed, broker.waits.taken))
            broker.close()
    whole, short_way = values
    assert short_way == whole
    assert len(whole[0]) > 300
    assert whole[2]


@compiled_only
def test_a_pull_that_came_before_takes_the_short_way(
        golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    broker, real = opened(golden("5.3.3/basic") / "store"), pulling.response_to
    monkeypatch.setattr(pulling, "response_to", lambda *args: (whole.append(1), real(*args))[1])
    topic = next(topic for topic in broker.source.topics if broker.queue(topic, 0).end > 9)
    frames = [pull(number, topic=topic, queueOffset=number % 9) for number in range(20)]
    assert len(asyncio.run(answered(broker, frames, short=True))) == 20
    assert not whole
    # What was true when it came first may have changed since.
    broker.source.topics[topic].perm = 2
    assert b'"code":16' in asyncio.run(answered(broker, frames[:1], short=True))[0]
    broker.source.topics[topic].perm = 6
    broker.source.groups["g"] = {"consume_enable": False}
    assert b'"code":16' in asyncio.run(answered(broker, frames[:1], short=True))[0]
    broker.close()


@compiled_only
def test_only_so_many_requests_are_remembered(
        golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_MAX_KEPT", 4)
    broker = opened(golden("5.3.3/basic") / "store")
    frames = [pull(number, consumerGroup=f"g{number % 7}") for number in range(30)]
    assert len(asyncio.run(answered(broker, frames, short=True))) == 30
    assert len(broker.pulls._pulls) == 4
    broker.close()
