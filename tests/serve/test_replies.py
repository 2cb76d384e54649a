"""Replies to requests: handed to the producer that asked, and kept in the reply topic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.ext.serve.producing import replying
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.ext.serve.remoting.codes import PUSH_REPLY_MESSAGE_TO_CLIENT
from rmqctl.ext.serve.remoting.command import RESPONSE, Command, write_command
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.formats.local import properties
from tests.serve.running import Running, empty_store, serving
from tests.serve.test_writable import pulled

REPLIES = "DefaultCluster_REPLY_TOPIC"
SHORT = {"a": "PG_REPLY", "b": REPLIES, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 7,
         "j": 0, "k": False, "m": False}
LONG = dict(zip(("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId",
                 "sysFlag", "bornTimestamp", "flag", "reconsumeTimes", "unitMode", "batch"),
                SHORT.values(), strict=True))
TEXT = properties.build({"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "MSG_TYPE": "reply"})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    with serving(empty_store(tmp_path / "store"), settings=ServeSettings(writable=True)) as running:
        yield running


def join(client: Client) -> None:
    assert client.ask("HEART_BEAT", {"clientID": "asker", "consumerDataSet": [],
                                     "producerDataSet": [{"groupName": "PG"}]}).code == 0


@pytest.mark.parametrize(("request_name", "fields", "text"), [
    ("SEND_REPLY_MESSAGE_V2", SHORT, "i"), ("SEND_REPLY_MESSAGE", LONG, "properties")])
def test_a_reply_reaches_who_asked(served: Running, request_name: str, fields: dict[str, object],
                                   text: str) -> None:
    with served.client() as asker, served.client() as other:
        join(asker)
        number = other.send(request_name, b"an answer", ext={**fields, text: TEXT})
        response = asker.receive()
        assert (response.code, response.body) == (PUSH_REPLY_MESSAGE_TO_CLIENT, b"an answer")
        assert {name: response.ext[name] for name in ("topic", "producerGroup", "flag", "queueId",
                                                      "unitMode", "bornTimestamp")} == {
                "topic": REPLIES, "producerGroup": "PG_REPLY", "flag": "7", "queueId": "0",
                "unitMode": "false", "bornTimestamp": "1"}
        parsed_properties = properties.parse(response.ext["properties"])
        assert parsed_properties.pop("PUSH_REPLY_TIME").isdigit()
        assert {"MSG_REGION", "TRACE_ON"} < set(parsed_properties)
        assert properties.parse(TEXT).items() < parsed_properties.items()
        assert response.ext["storeHost"].count(":") == response.ext["bornHost"].count(":") == 1
        asker.socket.sendall(write_command(Command(0, response.opaque, RESPONSE)))
        answer = other.receive()
        assert (answer.opaque, answer.code, answer.ext["queueOffset"]) == (number, 0, "0")
        (kept,) = pulled(other, REPLIES)
        assert (kept.body, properties.parse(kept.properties.decode())) == (b"an answer",
                                                                           parsed_properties)


def test_who_asked_is_not_here_or_says_nothing(served: Running, monkeypatch: pytest.MonkeyPatch
                                               ) -> None:
    monkeypatch.setattr(replying, "PATIENCE_S", 0.1)
    with served.client() as asker, served.client() as other:
        for text, remark in ((TEXT, "channel of <asker> not found"),
                             ("", "[REPLY_TO_CLIENT] is null")):
            answer = other.ask("SEND_REPLY_MESSAGE_V2", b"x", **SHORT, i=text)
            assert answer.code == 1
            assert remark in (answer.remark or "")
        join(asker)
        answer = other.ask("SEND_REPLY_MESSAGE_V2", b"x", **SHORT, i=TEXT)
        assert (answer.code, answer.remark) == (1, "push reply message to asker fail.")
        assert len(pulled(other, REPLIES)) == 1
