"""Writes topics, groups and committed offsets into a golden store, as its broker would."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

GROUP, COMMITTED = "billing", 2
TOPICS, GROUPS, OFFSETS = "topics.json", "subscriptionGroup.json", "consumerOffset.json"


def queues(root: Path) -> dict[str, int]:
    """How many queues each topic has on disk."""
    base = root / "consumequeue"
    return {topic.name: len(list(topic.iterdir())) for topic in sorted(base.iterdir())}


def version(counter: int = 1, *, five: bool) -> dict[str, int]:
    return {"counter": counter, **({"stateVersion": 0} if five else {}),
            "timestamp": 1700000000000}


def topic_table(names: Mapping[str, int], *, five: bool, counter: int = 1) -> dict[str, Any]:
    return {"dataVersion": version(counter, five=five), "topicConfigTable": {
        name: {"order": False, "perm": 6, "readQueueNums": count, "topicFilterType": "SINGLE_TAG",
               "topicName": name, "topicSysFlag": 0, "writeQueueNums": count}
        for name, count in names.items()}}


def group_table(names: Iterable[str], *, five: bool, counter: int = 1) -> dict[str, Any]:
    return {"dataVersion": version(counter, five=five), "subscriptionGroupTable": {
        name: {"brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
               "consumeFromMinEnable": True, "groupName": name, "retryMaxTimes": 16,
               "notifyConsumerIdsChangedEnable": True, "retryQueueNums": 1,
               "whichBrokerWhenConsumeSlowly": 1} for name in names}}


def offset_table(table: Mapping[str, Mapping[str, int]], *, five: bool,
                 counter: int = 1) -> dict[str, Any]:
    return {**({"dataVersion": version(counter, five=five)} if five else {}),
            "offsetTable": dict(table)}


def committed(root: Path, at: int = COMMITTED) -> dict[str, dict[str, int]]:
    """One group with an offset in every queue."""
    return {f"{topic}@{GROUP}": {str(number): at for number in range(count)}
            for topic, count in queues(root).items()}


def put(root: Path, name: str, value: Any) -> Path:
    """Write one file of ``config/``: bytes as they are, anything else as JSON."""
    path = root / "config" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else json.dumps(value, indent=1).encode())
    return path


def whole(root: Path, *, five: bool, backup: bool = False) -> Path:
    """A sound ``config/``; ``backup``: with a copy of each file as its ``.bak``."""
    put(root, TOPICS, topic_table(queues(root), five=five))
    put(root, GROUPS, group_table([GROUP], five=five))
    put(root, OFFSETS, offset_table(committed(root), five=five))
    if backup:
        for name in (TOPICS, GROUPS, OFFSETS):
            shutil.copy(root / "config" / name, root / "config" / f"{name}.bak")
    return root
