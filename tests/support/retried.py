"""A store in which a group sent messages back and gave some up, as a broker writes them.

billing reads orders: `FIRST` failed twice and is a dead letter, `THIRD` failed once and waits in
the retry topic. A second dead letter came from the topic bills, of a message that another broker
holds. audit reads queue 0 of orders and bills; stock has no position anywhere.
"""

from __future__ import annotations

import json
from pathlib import Path

from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from tests.support import tiny
from tests.support.tiny import Spec

FIRST = "0A00000100002A9F0000000000000000"
"""The offset message id of the first message of all."""
ELSEWHERE = "0A00000200002A9F0000000000004711"
KEYS = [f"0A0000070000{number:04X}" for number in range(8)]
"""Unique keys. That of `THIRD` is number 2."""
RETRY, DLQ = "%RETRY%billing", "%DLQ%billing"


def _copy(number: int, topic: str, origin: str, **more: str) -> dict[str, str]:
    return {"UNIQ_KEY": KEYS[number], "KEYS": f"k{number}", "TAGS": "A", "RETRY_TOPIC": topic,
            "ORIGIN_MESSAGE_ID": origin, **more}


def _own(number: int) -> dict[str, str]:
    return {"UNIQ_KEY": KEYS[number], "KEYS": f"k{number}", "TAGS": "A"}


_BORN = tiny.EPOCH - 5
_DELAYED = {"REAL_TOPIC": RETRY, "REAL_QID": "0"}
SPECS = (
    Spec("orders", 0, b"first", _own(0), born_at=_BORN),
    Spec("orders", 0, b"second", _own(1)),
    Spec("orders", 1, b"third", _own(2)),
    Spec("bills", 0, b"a bill", _own(3)),
    Spec(SCHEDULE_TOPIC, 2, b"first", _copy(0, "orders", FIRST, DELAY="3", **_DELAYED),
         reconsume_times=1, born_at=_BORN),
    Spec(RETRY, 0, b"first", _copy(0, "orders", FIRST, **_DELAYED), reconsume_times=1,
         born_at=_BORN),
    Spec(RETRY, 0, b"third", _copy(2, "orders", KEYS[2], **_DELAYED), reconsume_times=1),
    Spec(DLQ, 0, b"first", _copy(0, "orders", FIRST, **_DELAYED), reconsume_times=2,
         born_at=_BORN),
    Spec(DLQ, 0, b"of another broker", _copy(4, "bills", ELSEWHERE, **_DELAYED),
         reconsume_times=16),
    Spec("orders", 0, b"fourth", _own(5)),
)
OFFSETS = {"orders@billing": {0: 2, 1: 1}, f"{RETRY}@billing": {0: 1}, "orders@audit": {0: 1},
           "bills@audit": {0: 1}}


def build(root: Path, **changes: object) -> tiny.Tiny:
    """The store at ``root``; ``changes`` are fields of `tiny.Options`."""
    built = tiny.build(root, SPECS, commitlog_file_size=4096, **changes)
    files = {"consumerOffset.json": {"offsetTable": OFFSETS},
             "subscriptionGroup.json": {"subscriptionGroupTable": {
                 name: {"groupName": name} for name in ("billing", "audit", "stock")}},
             "delayOffset.json": {"offsetTable": {3: 1}}}
    for name, value in files.items():
        (root / "config" / name).write_text(json.dumps(value))
        (root / "config" / f"{name}.bak").write_text(json.dumps(value))
    return built
