"""Builds the stores of the cases beside it: ``make.py`` starts with ``from storekit import ...``.

Everything is written below the folder that is the only argument of ``make.py``; the store is
``store`` in it. Functions are named as those of other collections of such cases, so that a case
can be copied from one to another.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

OUT = Path(sys.argv[1]).resolve()
STORE = OUT / "store"
ARCHIVES = Path(__file__).resolve().parents[1]
_UNIT = struct.Struct(">qiq")
_written_by = ["4.9.3"]


def golden(name: str, to: str = "store") -> Path:
    """Unpack the store of a golden set ("5.3.3/basic"), with its modification times."""
    _written_by[0] = name.split("/", maxsplit=1)[0]
    archive, prefix = ARCHIVES / "golden" / f"{name}.tar.xz", f"{Path(name).name}/store"
    with tempfile.TemporaryDirectory(dir=OUT) as scratch, tarfile.open(archive) as packed:
        # Python 3.11.2 knows no filters, and later ones warn without one.
        chosen: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        packed.extractall(scratch, [member for member in packed if member.name == prefix
                                    or member.name.startswith(f"{prefix}/")], **chosen)
        (Path(scratch) / prefix).rename(OUT / to)
    return OUT / to


def appended(messages: Iterable[Mapping[str, Any]], store: Path = STORE) -> None:
    """A new store of a 5.3.3 broker with messages as they reached its put path."""
    _written_by[0] = "5.3.3"
    lines = OUT / "messages.jsonl"
    lines.write_text("".join(json.dumps(message) + "\n" for message in messages))
    sizes = ("--commitlog-file-size", "64KiB", "--index-slots", "100", "--index-max", "400")
    for words in (("init", store, *sizes), ("append", store, lines, "--replay")):
        subprocess.run([sys.executable, "-m", "rmqctl", *words, "-q"], check=True,
                       stdout=subprocess.DEVNULL)
    lines.unlink()


def put(path: str, data: object, store: Path = STORE) -> None:
    """Write a file of the store: bytes as they are, anything else as JSON."""
    place = store / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data if isinstance(data, bytes) else json.dumps(data, indent=1).encode())


def get(path: str, store: Path = STORE) -> bytes:
    return (store / path).read_bytes()


def cut(path: str, length: int, store: Path = STORE) -> None:
    os.truncate(store / path, length)


def zero(path: str, start: int, end: int, store: Path = STORE) -> None:
    with (store / path).open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


def files(folder: str, store: Path = STORE) -> list[str]:
    """The files in a folder of the store, sorted; the paths are relative to the store."""
    return [f"{folder}/{path.name}" for path in sorted((store / folder).iterdir())
            if path.is_file()]


def queues(store: Path = STORE) -> dict[str, int]:
    """How many consume queues each topic has on disk."""
    return {topic.name: len(list(topic.iterdir()))
            for topic in sorted((store / "consumequeue").iterdir())}


def entries(path: str, store: Path = STORE) -> list[tuple[int, int, int]]:
    """The entries of a consume queue file: (physical offset, size, tags code)."""
    return list(_UNIT.iter_unpack(get(path, store)))


def _data_version() -> dict[str, int]:
    five = {"stateVersion": 0} if _written_by[0].startswith("5") else {}
    return {"counter": 1, **five, "timestamp": 1700000000000}


def topic_table(names: Mapping[str, int]) -> dict[str, Any]:
    return {"dataVersion": _data_version(), "topicConfigTable": {
        name: {"order": False, "perm": 6, "readQueueNums": count, "topicFilterType": "SINGLE_TAG",
               "topicName": name, "topicSysFlag": 0, "writeQueueNums": count}
        for name, count in names.items()}}


def group_table(names: Iterable[str]) -> dict[str, Any]:
    return {"dataVersion": _data_version(), "subscriptionGroupTable": {
        name: {"brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
               "consumeFromMinEnable": True, "groupName": name, "retryMaxTimes": 16,
               "notifyConsumerIdsChangedEnable": True, "retryQueueNums": 1,
               "whichBrokerWhenConsumeSlowly": 1} for name in names}}


def offset_table(table: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    version = {"dataVersion": _data_version()} if _written_by[0].startswith("5") else {}
    return {**version, "offsetTable": dict(table)}


def whole_config(group: str = "g1", at: int = 2, store: Path = STORE) -> None:
    """A sound ``config/``: every topic, and one group with an offset in every queue."""
    names = queues(store)
    put("config/topics.json", topic_table(names), store)
    put("config/subscriptionGroup.json", group_table([group]), store)
    put("config/consumerOffset.json", offset_table(
        {f"{topic}@{group}": {str(number): at for number in range(count)}
         for topic, count in names.items()}), store)


def file_times(hours_ago: float, store: Path = STORE) -> None:
    """Set the modification times of the commit log and the consume queues."""
    moment = time.time() - hours_ago * 3600
    for part in ("commitlog", "consumequeue"):
        for path in (store / part).rglob("*"):
            if path.is_file():
                os.utime(path, (moment, moment))
