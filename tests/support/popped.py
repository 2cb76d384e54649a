"""A store in which a group received messages by POP, as a broker leaves it.

billing received the messages of orders in deliveries of three: the first was acknowledged as a
whole; of the second one message was acknowledged, one is in the retry topic, and one is lost, as
the revive position has passed it; of the third two were acknowledged, and a broker is yet to revive
one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rmqctl.formats.local.properties import REVIVE_PREFIX, TIMER_TOPIC
from tests.support import config_tables, tiny
from tests.support.config_tables import OFFSETS, TOPICS, offset_table, put, topic_table
from tests.support.tiny import EPOCH, Spec

GROUP, TOPIC, BROKER = "billing", "orders", "broker-a"
REVIVE, RETRY = f"{REVIVE_PREFIX}DefaultCluster", f"%RETRY%{GROUP}_{TOPIC}"
POPPED, INVISIBLE_MS = EPOCH + 30_000, 60_000
KEYS = [f"0A0000070000{number:04X}" for number in range(16)]


def message(number: int, topic: str = TOPIC, **more: Any) -> Spec:
    return Spec(topic, 0, b"message %d" % number, {
        "UNIQ_KEY": KEYS[number], "KEYS": f"k{number}", "TAGS": "A",
        **more.pop("properties", {})}, **more)


def check_point(start: int, count: int = 3, **more: Any) -> Spec:
    body = {"bm": 0, "bn": BROKER, "c": GROUP, "d": list(range(count)), "it": INVISIBLE_MS,
            "n": count, "pt": POPPED + start, "q": 0, "ro": 0, "so": start, "t": TOPIC, **more}
    return noted("ck", {name: value for name, value in body.items() if value is not None})


def ack(start: int, *offsets: int, **more: Any) -> Spec:
    body = {"bn": BROKER, "c": GROUP, "pt": POPPED + start, "q": 0, "so": start, "t": TOPIC,
            "ao": offsets[0], **more}
    if len(offsets) == 1:
        return noted("ack", body)
    return noted("bAck", {**body, "ao": -1, "aol": list(offsets)})


def noted(tag: str, body: dict[str, Any] | bytes) -> Spec:
    raw = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    return Spec(REVIVE, 0, raw, {"TAGS": tag, "TIMER_DELIVER_MS": str(POPPED)})


def waiting(spec: Spec, due: int) -> Spec:
    """The same in the topic of the timer."""
    return Spec(TIMER_TOPIC, 0, spec.body, {
        **spec.properties, "REAL_TOPIC": spec.topic, "REAL_QID": "0", "TIMER_OUT_MS": str(due)})


ORDERS = tuple(message(number) for number in range(9))
RETRIED = message(4, RETRY, properties={"1ST_POP_TIME": str(POPPED + 3)}, reconsume_times=1)
SPECS = (*ORDERS, check_point(0), ack(0, 0, 1, 2), check_point(3), ack(3, 3), RETRIED,
         check_point(6), ack(6, 6), ack(6, 7), ack(6, 7))
REVIVED = 2
"""The position of the revive group: the queue offset of the last check point that it did."""


def build(root: Path, specs: tuple[Spec, ...] = SPECS, revived: int = REVIVED,
          topics: tuple[str, ...] = (TOPIC, RETRY), **changes: Any) -> tiny.Tiny:
    """The store at ``root``; ``changes`` are fields of `tiny.Options`."""
    built = tiny.build(root, specs, **{"commitlog_file_size": 8192, **changes})
    for backup in (built.root / "config").glob("*.bak"):
        backup.unlink()
    put(built.root, TOPICS, topic_table(dict.fromkeys(topics, 1), five=True))
    put(built.root, OFFSETS, offset_table({
        f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {"0": revived}, f"{TOPIC}@{GROUP}": {"0": 9}},
        five=True))
    put(built.root, config_tables.GROUPS, config_tables.group_table([GROUP], five=True))
    return built
