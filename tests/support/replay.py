"""The golden sets' inputs as what the engine takes, and their configuration as settings."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.message import BatchItem, MappedRecord, Outgoing, OutgoingBatch
from rmqctl.formats.local.consume_queue import UNIT_SIZE
from rmqctl.formats.local.message import Record, host_bytes

KINDS = ("basic", "delay", "transaction", "ipv6", "batch", "lmq", "cqext", "v2topic", "batchcq",
         "appendcrc", "multipath", "crash-base")
"""The kinds whose whole input went through the put path."""

_INTEGERS = {
    "mappedFileSizeCommitLog": "commitlog_file_size",
    "mappedFileSizeConsumeQueue": "consumequeue_file_size",
    "mappedFileSizeConsumeQueueExt": "consumequeue_ext_file_size",
    "mapperFileSizeBatchConsumeQueue": "batch_consumequeue_file_size",
    "maxHashSlotNum": "index_slots",
    "maxIndexNum": "index_max",
}
_SWITCHES = {
    "enableLmq": "lmq",
    "enableMultiDispatch": "multi_dispatch",
    "enableConsumeQueueExt": "consumequeue_ext",
    "enabledAppendPropCRC": "append_properties_crc",
}


def config_of(folder: Path) -> dict[str, str]:
    """The ``Config: {…}`` line of a set's README."""
    result = re.search(r"Config: \{(.*)\}", (folder / "README.md").read_text())
    assert result, folder
    # Values may hold commas: a new item begins where a name and "=" follow one.
    items = re.split(r", (?=[\w.]+=)", result[1])
    return dict(item.split("=", 1) for item in items)


def settings_of(folder: Path, version: str, **changes: Any) -> Settings:
    """The engine's settings for a golden set."""
    config = config_of(folder)
    given: dict[str, Any] = {ours: int(config[theirs]) for theirs, ours in _INTEGERS.items()
                             if theirs in config}
    given |= {ours: config[theirs] == "true" for theirs, ours in _SWITCHES.items()
              if theirs in config}
    size = given.get("consumequeue_file_size")
    if size:
        given["consumequeue_file_size"] = -(-size // UNIT_SIZE) * UNIT_SIZE
    given["batch_topics"] = frozenset(
        name.removeprefix("topic.") for name, value in config.items()
        if name.startswith("topic.") and value == "queue.type=BatchCQ")
    fixed = {"version": version, "disk_watermark": 1.0, "broker_checks": False}
    return Settings(**{**fixed, **given, **changes})


def inputs(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of a set's input, in put order."""
    with (folder / "input.jsonl").open() as lines:
        for line in lines:
            yield json.loads(line)


def outgoing(given: dict[str, Any], bit_map: bytes | None = None) -> Outgoing | OutgoingBatch:
    """What reached ``putMessage`` for one line, with the recorded clock and hosts."""
    shared: dict[str, Any] = {
        "born_timestamp": given["bornTimestamp"], "born_host": host_bytes(given["bornHost"]),
        "store_timestamp": given["storeTimestamp"], "store_host": host_bytes(given["storeHost"]),
        "reconsume_times": given["reconsumeTimes"],
    }
    if given["op"] == "putBatch":
        return OutgoingBatch(
            given["topic"], [BatchItem(base64.b64decode(message["body"]),
                                       message["propertiesString"] or "", message["flag"])
                             for message in given["messages"]],
            given["propertiesString"] or "", given["queueId"], given["sysFlag"], **shared)
    reached = given["storeInput"]
    return Outgoing(
        reached["topic"], base64.b64decode(given["body"]), reached["propertiesString"] or "",
        reached["queueId"], given["flag"], reached["sysFlag"],
        prepared_transaction_offset=given["preparedTransactionOffset"], filter_bit_map=bit_map,
        **shared)


def recorded(given: dict[str, Any], bit_maps: Mapping[int, bytes | None]) -> Iterator[Record]:
    """The stored records of one line; bodies come from what was put."""
    bodies = [base64.b64decode(message["body"]) for message in given.get("messages") or [given]]
    for stored, body in zip(given.get("storedList") or [given["stored"]], bodies, strict=True):
        yield MappedRecord(
            stored["size"], int(stored["magic"], 16), stored["bodyCRC"], stored["queueId"],
            stored["flag"], stored["queueOffset"], stored["phyOffset"], stored["sysFlag"],
            stored["bornTimestamp"], host_bytes(stored["bornHost"]), stored["storeTimestamp"],
            host_bytes(stored["storeHost"]), stored["reconsumeTimes"],
            stored["preparedTransactionOffset"], body, stored["topic"].encode(),
            (stored["propertiesString"] or "").encode(), bit_maps.get(stored["phyOffset"]))


def replayed(folder: Path) -> list[dict[str, Any]]:
    """The lines of a set that are puts."""
    return [input_text for input_text in inputs(folder) if input_text["op"] in ("put", "putBatch")]


TREES = ("commitlog", "cl1", "cl2", "consumequeue", "consumequeue_ext", "batchconsumequeue")


def contents(store: Path) -> dict[str, bytes]:
    """The log, queue and index files of a store; index files are named by their order."""
    data = {}
    for tree in TREES:
        for path in sorted((store / tree).rglob("*")):
            if path.is_file():
                data[str(path.relative_to(store))] = path.read_bytes()
    for number, path in enumerate(sorted((store / "index").glob("*"))):
        data[f"index/{number}"] = path.read_bytes()
    return data
