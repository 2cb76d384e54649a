"""Pulls with an SQL92 filter: what passes, what is refused, what takes long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqctl.ext.serve import reading
from rmqctl.ext.serve.remoting.client import Client, records
from rmqctl.formats.local import properties
from tests.conftest import GoldenFolder
from tests.serve.running import serving

TOPIC, QUEUE = "TP_fraud_Topic", 0


@pytest.fixture
def client(golden: GoldenFolder) -> Iterator[Client]:
    root: Path = golden("5.3.3/basic") / "store"
    with serving(root) as running, running.client() as client:
        yield client


def pulled(client: Client, expression: str, kind: str = "SQL92") -> tuple[list[int], int]:
    """The queue offsets that pass, and the number of pulls up to the queue's end."""
    queue_offsets, at, pulls = [], 0, 0
    while (answer := client.pull(TOPIC, QUEUE, at, expression=expression, kind=kind)).code != 19:
        assert answer.code in {0, 20}
        queue_offsets += [record.queue_offset for record in records(answer.body)]
        assert int(answer.ext["nextBeginOffset"]) > at
        at, pulls = int(answer.ext["nextBeginOffset"]), pulls + 1
    return queue_offsets, pulls


def tags(client: Client) -> dict[int, str | None]:
    """The tag of each message, by queue offset."""
    tags_by_offset: dict[int, str | None] = {}
    while len(tags_by_offset) < 107:
        for record in records(client.pull(TOPIC, QUEUE, len(tags_by_offset)).body):
            tags_by_offset[record.queue_offset] = properties.parse(record.properties.decode()).get(
                "TAGS")
    return tags_by_offset


def test_messages_that_pass(client):
    listed_tags = tags(client)
    with_tag = [offset for offset, tag in listed_tags.items() if tag is not None]
    assert 0 < len(with_tag) < len(listed_tags)
    assert pulled(client, "TAGS IS NOT NULL")[0] == with_tag
    result = next(tag for tag in listed_tags.values() if tag is not None and "'" not in tag)
    assert pulled(client, f"TAGS = '{result}' OR TAGS IS NULL")[0] == [
        offset for offset, tag in listed_tags.items() if tag in {result, None}]
    assert pulled(client, "TAGS > 5 OR TRUE")[0] == [
        offset for offset in listed_tags
        if listed_tags[offset] is None]  # a tag that is no number fails


def test_what_is_no_filter_is_refused_by_its_place(client):
    refused = client.pull(TOPIC, QUEUE, 0, expression="TAGS =", kind="SQL92")
    assert refused.code == 23
    assert "at character 7" in refused.remark
    assert client.pull(TOPIC, QUEUE, 0, expression="x", kind="XPATH").code == 23
    for text, code in (("a = 1", 0), ("a >", 23)):
        body = {"clientId": "c", "group": "g", "subscriptionData": {
            "topic": TOPIC, "subString": text, "expressionType": "SQL92"}}
        assert client.ask("CHECK_CLIENT_CONFIG", body).code == code


def test_a_filter_that_takes_long_gives_what_it_has(client, monkeypatch):
    expression = "TAGS IS NULL"
    numbers, pulls = pulled(client, expression)
    monkeypatch.setattr(reading, "FILTER_S", -1.0)
    slow, more = pulled(client, expression)
    assert slow == numbers
    assert more == 107 // 16 + 1 > pulls
