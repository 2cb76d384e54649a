"""Write checkpoint, lock and the JSON files of config/ in a broker's JSON dialect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.layout import CHECKPOINT, CHECKPOINT_SIZE
from benchmarks.plan import Plan

READ_WRITE = 6  # perm bits of a topic
GROUPS = {"billing": 0.9, "audit-trail": 0.5}  # consumer group -> share of a queue consumed


def write_small_files(plan: Plan, index_timestamp: int, store: Path) -> None:
    """Write the files. ``index_timestamp``: end time (ms) of the newest full index file, or 0."""
    last = int(plan.store_timestamp[-1])
    checkpoint = np.array((last, last, index_timestamp, 0, 0), dtype=CHECKPOINT)
    (store / "checkpoint").write_bytes(checkpoint.tobytes().ljust(CHECKPOINT_SIZE, b"\0"))
    (store / "lock").write_text("lock", encoding="ascii")
    config = store / "config"
    config.mkdir()
    version = {"counter": 1, "stateVersion": 0, "timestamp": int(plan.store_timestamp[0])}
    topics = {name: topic_config(name, plan.options.queues) for name in sorted(plan.topics)}
    write_json(config / "topics.json", {"dataVersion": version, "topicConfigTable": topics})
    offsets = {"dataVersion": version, "offsetTable": consumer_offsets(plan)}
    write_json(config / "consumerOffset.json", offsets)


def topic_config(name: str, queues: int) -> dict[str, Any]:
    """Return an entry of topics.json as written by 5.x."""
    return {
        "attributes": {},
        "order": False,
        "perm": READ_WRITE,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def consumer_offsets(plan: Plan) -> dict[str, dict[int, int]]:
    """Return, for each `topic@group` and queue id, the next offset to consume."""
    table: dict[str, dict[int, int]] = {}
    for topic, queue, members in plan.queue_groups():
        for group, share in GROUPS.items():
            table.setdefault(f"{topic}@{group}", {})[queue] = int(len(members) * share)
    return table


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write JSON with tabs, no space after colons, and numeric keys without quotes."""
    text = json.dumps(value, indent="\t", separators=(",", ":"))
    path.write_text(re.sub(r'"(\d+)":', r"\1:", text), encoding="utf-8")
