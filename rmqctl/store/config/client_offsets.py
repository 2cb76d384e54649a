"""The offsets.json that a broadcasting consumer keeps on its own machine, read as its client does.

In the client (LocalFileOffsetStore), the file is CLIENT/GROUP/offsets.json below
``~/.rocketmq_offsets``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.config import config_json, object_keys
from rmqctl.formats.kinds import bare_name
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import BACKUP, MAX_SIZE
from rmqctl.store.config.rows import Faults, number, table

_ENTRY = re.compile(rb'\{([^{}]{1,4096})\}\s*:\s*(\d{1,19})(?=[\s,}])')
"""Pattern of a complete entry (key and number) anywhere in the file."""


class ClientOffset(NamedTuple):
    """The offset of one queue; ``queue_offset`` is the next queue offset that the consumer
    reads.
    """

    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class ClientOffsets(NamedTuple):
    """The content of an offsets.json file; ``faults`` names entries with a wrong structure."""

    rows: list[ClientOffset]
    faults: Faults
    oddities: list[config_json.Oddity]


def _key(value: Any) -> str:
    broker, topic, queue_id = object_keys.queue_of(value)
    return json.dumps((topic, broker, queue_id), ensure_ascii=False)


def parse(data: bytes) -> ClientOffsets:
    """Parse the bytes of an offsets.json.

    Raises: FormatError with offset and JSON path.
    """
    value, oddities = config_json.parse(data, _key)
    if not isinstance(value, dict) or not isinstance(value.get("offsetTable"), dict):
        raise FormatError("not an object with an offsetTable", offset=0, path="$.offsetTable")
    faults: Faults = []
    rows = []
    for key, offset in table(value["offsetTable"], "$.offsetTable", faults).items():
        position = number(offset, f"$.offsetTable.{key}", faults)
        try:
            topic, broker, queue_id = json.loads(key)
        except ValueError:
            faults.append(f"$.offsetTable.{key[:200]}: the key is not a queue")
            continue
        if position is not None:
            rows.append(ClientOffset(topic, broker, queue_id, position))
    return ClientOffsets(rows, faults, oddities)


def readable(data: bytes) -> list[ClientOffset]:
    """Return the complete entries of a damaged file, each parsed by itself."""
    entries = {}
    for key, offset in _ENTRY.findall(data):
        try:
            broker, topic, queue_id = object_keys.queue_of(json.loads(b"{" + key + b"}"))
        except (ValueError, RecursionError, FormatError):
            continue
        entries[topic, broker, queue_id] = ClientOffset(topic, broker, queue_id, int(offset))
    return list(entries.values())


def build(rows: Iterable[ClientOffset]) -> str:
    """Return the content of an offsets.json with these offsets, in the form that a client reads."""
    entries = (json.dumps({"brokerName": row.broker, "queueId": row.queue_id, "topic": row.topic})
               + f":{row.queue_offset}" for row in rows)
    return '{"offsetTable":{\n' + ",\n".join(entries) + "\n}}"


def group_of(path: str) -> str | None:
    """Return the group that the path of an offsets.json names (CLIENT/GROUP, with CLIENT as
    ``IP@NAME``); None for any other path.
    """
    *_, client, group, name = ["", "", *vfs.abspath(path).split(os.sep)]
    return group if "@" in client and bare_name(name) == "offsets.json" else None


def instead(path: str) -> str:
    """Return a sentence that describes how a client reacts if it cannot read the file.

    Return "" if the file is a backup.
    """
    if path.endswith(BACKUP):
        return ""
    backup = path + BACKUP
    if not vfs.exists(backup) or not vfs.getsize(backup):
        return (f"{backup} is missing or empty: the client starts without offsets, at its "
                "consumeFromWhere")
    try:
        with FileSource(backup) as source:
            rows = parse(source.read(0, min(source.size, MAX_SIZE))).rows
    except FormatError as error:
        return (f"{backup} is damaged, too ({error}): the client does not start (readLocalOffset "
                "Exception) until both files are moved away; then it starts without offsets. "
                f"`rmqctl offsets export {shlex.quote(path)}` prints those that can be read")
    except StoreIOError as error:
        return str(error)
    return f"the client reads {backup} instead, which is intact (queues: {len(rows)})"
