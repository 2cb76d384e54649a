"""Test a program that uses RocketMQ: pytest starts a server for it, without Java."""

from __future__ import annotations

import json

import pytest

from rmqctl.errors import RmqctlError
from rmqctl.testing import RocketMQ, rocketmq  # noqa: F401 - the fixture, for the tests below


def place_order(server: str, topic: str, number: int) -> None:
    """Stand-in for the tested program, which would create a producer for this name server."""
    client = RocketMQ()
    client.address = server
    client.send(topic, json.dumps({"order": number}), tags="new", keys=f"order-{number}")


def test_an_order_is_sent(rocketmq: RocketMQ) -> None:  # noqa: F811 - pytest takes it by its name
    topic = rocketmq.topic()
    place_order(rocketmq.address, topic, 7)
    (message,) = rocketmq.messages(topic)
    assert json.loads(message.body) == {"order": 7}
    assert (message.tags, message.keys) == ("new", ["order-7"])


def test_an_order_that_the_broker_refuses(rocketmq: RocketMQ) -> None:  # noqa: F811
    topic = rocketmq.topic()
    with rocketmq.refuse_sends(topic=topic), pytest.raises(RmqctlError):
        place_order(rocketmq.address, topic, 8)
    place_order(rocketmq.address, topic, 8)
    assert len(rocketmq.wait_for(topic, 1)) == 1


def test_another_topic_is_empty(rocketmq: RocketMQ) -> None:  # noqa: F811
    assert rocketmq.messages(rocketmq.topic()) == []
