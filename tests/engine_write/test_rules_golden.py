"""The rules against the engine's own runs: what went in, and what it stored.

Every single put of every golden input goes through admission and rewriting; topic, queue,
properties string and the counters must be those of the engine.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.engine.put import admission
from rmqctl.engine.put.encoder import Encoder
from rmqctl.engine.put.message import BatchItem, Outgoing, OutgoingBatch, PutResult
from rmqctl.engine.put.rewrite import Rewriter, Rewritten, batch_properties
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.javahash import string_hash
from rmqctl.formats.local.message import host_bytes
from rmqctl.formats.local.properties import build
from rmqctl.formats.local.sysflag import has_consume_queue_row
from tests.conftest import GoldenFolder
from tests.support.golden import all_sets

Json = dict[str, Any]

WITH_INPUT = ["basic", "batch", "cqext", "crash-base", "delay", "ipv6", "lmq", "multipath",
              "transaction"]
SINCE_5 = ["appendcrc", "batchcq", "compaction", "tiered", "timer", "v2topic"]
SETS = [f"{golden_set.version}/{golden_set.kind}" for golden_set in all_sets()
        if golden_set.kind in WITH_INPUT
        or (golden_set.kind in SINCE_5 and golden_set.version == "5.3.3")]


def test_all_sets_with_an_input_are_here() -> None:
    assert len(SETS) == 2 * len(WITH_INPUT) + len(SINCE_5)


def lines(folder: Path, op: str = "put") -> Iterator[Json]:
    with (folder / "input.jsonl").open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            if document["op"] == op:
                yield document


def settings_of(name: str, folder: Path) -> Settings:
    text = (folder / "README.md").read_text()
    return Settings(
        version=name.split("/", maxsplit=1)[0], lmq="enableLmq=true" in text,
        multi_dispatch="enableMultiDispatch=true" in text,
        append_properties_crc="enabledAppendPropCRC=true" in text,
        batch_topics=frozenset(re.findall(r"topic\.(\S+?)=queue\.type=BatchCQ", text)))


def outgoing(line: Json, source: Json) -> Outgoing:
    return Outgoing(
        topic=source["topic"], body=base64.b64decode(line["body"]),
        properties=source["propertiesString"] or "", queue_id=source["queueId"],
        flag=line["flag"], sys_flag=source["sysFlag"],
        born_timestamp=line["bornTimestamp"], born_host=host_bytes(line["bornHost"]),
        store_timestamp=line["storeTimestamp"], store_host=host_bytes(line["storeHost"]),
        reconsume_times=line["reconsumeTimes"],
        prepared_transaction_offset=line["preparedTransactionOffset"])


def rewritten(rules: Rewriter, message: Outgoing, table: dict[tuple[str, int], int],
              settings: Settings) -> Rewritten:
    if not rules.concerns(message):
        return Rewritten(message)
    result = rules.apply(message, message.store_timestamp or 0, table,
                         lambda topic: topic in settings.batch_topics)
    assert not isinstance(result, PutResult), result.reason
    return result


@pytest.mark.parametrize("name", SETS)
def test_what_the_engine_stored(golden: GoldenFolder, name: str) -> None:
    settings = settings_of(name, golden(name))
    rules, encoder = Rewriter(settings), Encoder(settings)
    table: dict[tuple[str, int], int] = {}
    hooks = name != "5.3.3/v2topic"  # put into the store past the broker
    seen = changed = 0
    with (golden(name) / "input.jsonl").open(encoding="utf-8") as file:
        inputs = [json.loads(text) for text in file]
    for line in inputs:
        if line["op"] == "putBatch":
            key = line["topic"], line["queueId"]
            table[key] = table.get(key, 0) + line["result"]["msgNum"]
            continue
        if line["op"] != "put":
            key = line["topic"], line["queueId"]
            table[key] = table.get(key, 0) + 1
            continue
        stored = line["stored"]
        message = outgoing(line, line["storeInput"])
        assert admission.check_message(message, settings, hooks=hooks) is None
        result = rewritten(rules, message, table, settings)
        got = result.message
        seen += 1
        changed += got is not message
        assert (got.topic, got.queue_id) == (stored["topic"], stored["queueId"])
        raw = stored["propertiesString"].encode()
        if settings.append_properties_crc:
            raw = raw[:-append_crc.SIZE]
        assert encoder.properties_part(got.properties) == raw
        key = got.topic, got.queue_id
        counts = has_consume_queue_row(got.sys_flag)
        if name != "5.3.3/timer":  # there the engine puts messages of its own in between
            assert line["result"]["logicsOffset"] == (table.get(key, 0) if counts else 0)
        assert line["result"]["msgNum"] == result.message_number
        if counts:
            table[key] = table.get(key, 0) + result.message_number
        for queue in result.advancing:
            table[queue] = table.get(queue, 0) + 1
        assert admission.check_sizes(settings, len(got.body), len(raw) + encoder.reserved,
                                     stored["size"]) is None
    assert seen
    rewriting = {"4.9.3/delay", "4.9.3/lmq", "5.3.3/lmq", "5.3.3/batchcq"}
    assert bool(changed) == (name in rewriting)


def test_a_5x_broker_delays_before_the_store(golden: GoldenFolder) -> None:
    settings = Settings()
    rules = Rewriter(settings)
    changed = 0
    for line in lines(golden("5.3.3/delay")):
        given = line["storeInput"]
        got = rewritten(rules, outgoing(line, line), {}, settings).message
        assert (got.topic, got.queue_id) == (given["topic"], given["queueId"])
        assert got.properties == (given["propertiesString"] or "")
        changed += got.topic != line["topic"]
        again = rewritten(rules, got, {}, settings).message
        assert again is got
    assert changed == 90


def test_a_5x_broker_sets_timers_before_the_store(golden: GoldenFolder) -> None:
    settings = Settings()
    rules = Rewriter(settings)
    timers = 0
    for line in lines(golden("5.3.3/timer")):
        given = line["storeInput"]
        message = outgoing(line, line)
        assert rules.concerns(message) == ("TIMER_D" in message.properties)
        # The engine ran on the real clock: the time of its rewriting is not recorded.
        for earlier in range(200):
            result = rules.apply(message, line["storeTimestamp"] - earlier, {}, lambda _: False)
            assert isinstance(result, Rewritten)
            if result.message.properties == given["propertiesString"]:
                break
        assert (result.message.topic, result.message.queue_id, result.message.properties) == (
            given["topic"], given["queueId"], given["propertiesString"])
        timers += result.message.topic == "rmq_sys_wheel_timer"
        assert rewritten(rules, result.message, {}, settings).message is result.message
    assert timers > 50


@pytest.mark.parametrize("name", [golden_set for golden_set in SETS
                                  if golden_set.split("/")[1] in ("batch", "appendcrc", "v2topic")])
def test_batches(golden: GoldenFolder, name: str) -> None:
    settings = settings_of(name, golden(name))
    rules = Rewriter(settings)
    seen = 0
    for line in lines(golden(name), "putBatch"):
        seen += 1
        items = [BatchItem(base64.b64decode(message["body"]), message["propertiesString"],
                           message["flag"])
                 for message in line["messages"]]
        batch = OutgoingBatch(line["topic"], items, line["propertiesString"], line["queueId"])
        assert admission.request_size(batch) == len(base64.b64decode(line["body"]))
        assert admission.check_batch(batch, settings, hooks=name != "5.3.3/v2topic") is None
        got = rules.apply_batch(batch, 1)
        assert got == batch
        stored = [batch_properties(record.properties, batch.properties) for record in items]
        expected = [message["propertiesString"].encode() for message in line["storedList"]]
        if settings.append_properties_crc:
            expected = [data[:-append_crc.SIZE] for data in expected]
        assert stored == expected
        assert admission.check_batch_sizes(
            settings, batch, [len(batch_properties) for batch_properties in stored],
            [message["size"] for message in line["storedList"]]) is None
    assert seen


@pytest.mark.parametrize("name", SETS)
def test_the_order_of_the_engines_map(golden: GoldenFolder, name: str) -> None:
    """The driver decoded and listed the properties as the engine's own map gave them."""
    profile = settings_of(name, golden(name)).profile
    compared = 0
    for line in lines(golden(name)):
        pairs = line["properties"]
        if not pairs:
            continue
        engine = [key for key, _ in pairs]
        if not line["storeInput"]["propertiesString"]:
            continue
        compared += 1
        again = JavaMap.from_properties(build(dict(pairs)), profile.map_capacity)
        assert [key for key, _ in again.items()] == engine
        # Put in the other way round, only keys of the same bucket may change their order.
        other = JavaMap.from_properties(build(dict(reversed(pairs))), profile.map_capacity)
        assert [bucket(key, other.capacity) for key, _ in other.items()] == [
            bucket(key, again.capacity) for key in engine]
    assert compared


def bucket(key: str, capacity: int) -> int:
    value = string_hash(key) & 0xFFFFFFFF
    return (value ^ value >> 16) % capacity
