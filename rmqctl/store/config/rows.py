"""The configuration files as rows (spec: checkpoint-and-small-files.md §4.2).

A row generator gets the decoded file and a list of faults. An entry of the wrong shape is omitted
and added to the faults. Columns are the names of the file's fields in snake_case. Fields that only
newer releases have are the last columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from rmqctl.formats.local import delay
from rmqctl.formats.timer.timer_check import TimerCheckRecord

Row = dict[str, Any]
Faults = list[str]
MAX_FAULTS = 20

SECTIONS: dict[str, tuple[str, ...]] = {
    "topics": ("topics",),
    "groups": ("groups",),
    "offsets": ("offsets", "lmq-offsets"),
    "delay": ("delay",),
    "filters": ("filters",),
    "orders": ("orders",),
    "mappings": ("mappings",),
    "modes": ("modes",),
    "metrics": ("timer-metrics", "transaction-metrics"),
    "timer": ("timer",),
    "tiered": ("tiered",),
    "other": ("other",),
}
"""For each section of `rmqctl config`: the kinds of files that it shows."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "topics": ("topic", "read_queue_nums", "write_queue_nums", "perm", "perm_bits", "order",
               "topic_filter_type", "topic_sys_flag", "attributes", "source"),
    "groups": ("group", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable",
               "consume_message_orderly", "retry_queue_nums", "retry_max_times", "broker_id",
               "which_broker_when_consume_slowly", "notify_consumer_ids_changed_enable",
               "group_sys_flag", "consume_timeout_minute", "attributes", "forbidden", "source"),
    "offsets": ("group", "topic", "queue_id", "offset", "source"),
    "delay": ("level", "queue_id", "delay_ms", "offset", "source"),
    "filters": ("topic", "consumer_group", "expression_type", "expression", "dead", "born_time",
                "dead_time", "client_version", "bloom_filter_data", "source"),
    "orders": ("topic", "group", "queue_id", "offsets", "pop_time", "invisible_time",
               "last_consume_time", "ack_mask", "next_visible", "consume_counts", "attempt_id",
               "source"),
    "mappings": ("topic", "total_queues", "global_queue_id", "current", "bname", "queue_id", "gen",
                 "logic_offset", "start_offset", "end_offset", "time_of_start", "time_of_end",
                 "epoch", "scope", "source"),
    "modes": ("topic", "consumer_group", "mode", "pop_share_queue_num", "source"),
    "metrics": ("metric", "topic", "count", "time_stamp", "source"),
    "timer": (*TimerCheckRecord._fields, "source"),
    "tiered": ("table", "key", "path", "base_offset", "size", "status", "create_timestamp",
               "begin_timestamp", "end_timestamp", "seal_timestamp", "source"),
    "other": ("key", "value", "source"),
}

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PERM = ((4, "R"), (2, "W"), (1, "X"))
PRIORITY = 8
_LONG = 1 << 63


@lru_cache(maxsize=1024)
def snake(name: str) -> str:
    """Return a camelCase name in snake_case: ``readQueueNums`` as ``read_queue_nums``."""
    return _HUMP.sub("_", name).lower()


def perm_text(bits: int) -> str:
    """Return permissions as brokers print them, for example ``RW-``: read, write, inherit; then P
    for priority (5.x).
    """
    text = "".join(letter if bits & bit else "-" for bit, letter in _PERM)
    return text + "P" if bits & PRIORITY else text


def rows_of(kind: str, value: Any, faults: Faults) -> Iterator[Row]:
    """Yield the rows of a decoded file of this kind; add entries of the wrong shape to
    ``faults``.
    """
    return _READERS[kind](value, faults)


def _fault(faults: Faults, path: str, value: Any, wanted: str) -> None:
    if len(faults) < MAX_FAULTS:
        names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean",
                 int: "a number", float: "a fraction", type(None): "null"}
        got = names.get(type(value), "another type")
        faults.append(f"{path[:200]}: expected {wanted}, got {got}")


def table(value: Any, path: str, faults: Faults) -> Mapping[str, Any]:
    """Return a JSON object; an empty object for null and for values of other types."""
    if isinstance(value, dict):
        return value
    if value is not None:
        _fault(faults, path, value, "an object")
    return {}


def number(value: Any, path: str, faults: Faults) -> int | None:
    """Return a 64-bit integer, which may be given as text; None, with a fault, for any other
    value.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if -_LONG <= value < _LONG:
            return value
        _fault(faults, path, value, "a 64-bit number")
        return None
    if isinstance(value, str):
        try:
            return delay.java_int(value, 64)
        except ValueError:
            pass
    _fault(faults, path, value, "an integer")
    return None


def _inner(value: Any, name: str, faults: Faults) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (path, key, object) for each entry in a file's table ``name``."""
    for key, entry in table(value.get(name), f"$.{name}", faults).items():
        path = f"$.{name}.{key}"
        if isinstance(entry, dict):
            yield path, key, entry
        else:
            _fault(faults, path, entry, "an object")


def _bean(entry: Mapping[str, Any], *hidden: str) -> Row:
    return {snake(key): value for key, value in entry.items() if key not in hidden}


def _topics(value: Any, faults: Faults) -> Iterator[Row]:
    for path, name, entry in _inner(value, "topicConfigTable", faults):
        bits = entry.get("perm")
        perm = number(bits, f"{path}.perm", faults) if bits is not None else None
        yield {"topic": name,
               "read_queue_nums": entry.get("readQueueNums"),
               "write_queue_nums": entry.get("writeQueueNums"),
               "perm": None if perm is None else perm_text(perm), "perm_bits": perm,
               **_bean(entry, "topicName", "readQueueNums", "writeQueueNums", "perm")}


def _groups(value: Any, faults: Faults) -> Iterator[Row]:
    forbidden = table(value.get("forbiddenTable"), "$.forbiddenTable", faults)
    for _, name, entry in _inner(value, "subscriptionGroupTable", faults):
        row = {"group": name, **_bean(entry, "groupName")}
        if name in forbidden:
            row["forbidden"] = forbidden[name]
        yield row


def split_key(key: str) -> tuple[str, str | None]:
    """Return (topic, group) of ``topic@group``; the group is None if the key is not such a pair."""
    parts = key.split("@")
    return (parts[0], parts[1]) if len(parts) == 2 else (key, None)


def _queue_offsets(value: Any, name: str, faults: Faults) -> Iterator[Row]:
    for path, key, entry in _inner(value, name, faults):
        topic, group = split_key(key)
        for queue, offset in entry.items():
            queue_id = number(queue, f"{path}.{queue}", faults)
            consumed = number(offset, f"{path}.{queue}", faults)
            if queue_id is not None and consumed is not None:
                yield {"group": group, "topic": topic, "queue_id": queue_id, "offset": consumed}


def _offsets(value: Any, faults: Faults) -> Iterator[Row]:
    yield from _queue_offsets(value, "offsetTable", faults)


def _lmq_offsets(value: Any, faults: Faults) -> Iterator[Row]:
    yield from _queue_offsets(value, "offsetTable", faults)
    for key, offset in table(value.get("lmqOffsetTable"), "$.lmqOffsetTable", faults).items():
        topic, group = split_key(key)
        consumed = number(offset, f"$.lmqOffsetTable.{key}", faults)
        if consumed is not None:
            yield {"group": group, "topic": topic, "queue_id": 0, "offset": consumed}


def _delay(value: Any, faults: Faults) -> Iterator[Row]:
    for key, offset in table(value.get("offsetTable"), "$.offsetTable", faults).items():
        level = number(key, f"$.offsetTable.{key}", faults)
        level_offset = number(offset, f"$.offsetTable.{key}", faults)
        if level is not None and level_offset is not None:
            yield {"level": level, "queue_id": level - 1,
                   "delay_ms": delay.DEFAULT_LEVELS.get(level), "offset": level_offset}


def _filters(value: Any, faults: Faults) -> Iterator[Row]:
    for path, topic, entry in _inner(value, "filterDataByTopic", faults):
        groups = table(entry.get("groupFilterData"), f"{path}.groupFilterData", faults)
        for group, data in groups.items():
            if isinstance(data, dict):
                yield {"topic": topic, "consumer_group": group,
                       **_bean(data, "topic", "consumerGroup")}
            else:
                _fault(faults, f"{path}.groupFilterData.{group}", data, "an object")


def _orders(value: Any, faults: Faults) -> Iterator[Row]:
    for path, key, entry in _inner(value, "table", faults):
        topic, group = split_key(key)
        for queue, info in entry.items():
            if not isinstance(info, dict):
                _fault(faults, f"{path}.{queue}", info, "an object")
                continue
            # The first offset is absolute, the others count from it.
            steps = info.get("o")
            offsets = None
            if isinstance(steps, list) and all(type(step) is int for step in steps):
                offsets = [steps[0] + (step if index else 0) for index, step in enumerate(steps)]
            yield {"topic": topic, "group": group,
                   "queue_id": number(queue, f"{path}.{queue}", faults), "offsets": offsets,
                   "pop_time": info.get("popTime"), "invisible_time": info.get("i"),
                   "last_consume_time": info.get("l"), "ack_mask": info.get("cm"),
                   "next_visible": info.get("ot"), "consume_counts": info.get("oc"),
                   "attempt_id": info.get("a")}


def _mappings(value: Any, faults: Faults) -> Iterator[Row]:
    for path, topic, entry in _inner(value, "topicQueueMappingInfoMap", faults):
        current = table(entry.get("currIdMap"), f"{path}.currIdMap", faults)
        hosted = table(entry.get("hostedQueues"), f"{path}.hostedQueues", faults)
        for queue, segments in hosted.items():
            if not isinstance(segments, list):
                _fault(faults, f"{path}.hostedQueues.{queue}", segments, "a list")
                continue
            for segment_number, segment in enumerate(segments):
                where = f"{path}.hostedQueues.{queue}[{segment_number}]"
                yield {"topic": topic, "total_queues": entry.get("totalQueues"),
                       "global_queue_id": number(queue, where, faults),
                       "current": segment_number == len(segments) - 1 and queue in current,
                       **_bean(table(segment, where, faults)),
                       "epoch": entry.get("epoch"), "scope": entry.get("scope")}


def _modes(value: Any, faults: Faults) -> Iterator[Row]:
    for path, topic, entry in _inner(value, "messageRequestModeMap", faults):
        for group, mode in entry.items():
            yield {"topic": topic, "consumer_group": group,
                   **_bean(table(mode, f"{path}.{group}", faults), "topic", "consumerGroup")}


def _metrics(name: str) -> Callable[[Any, Faults], Iterator[Row]]:
    def read(value: Any, faults: Faults) -> Iterator[Row]:
        for _, topic, entry in _inner(value, name, faults):
            yield {"metric": name, "topic": topic, **_bean(entry)}
    return read


def _timer(value: Any, _: Faults) -> Iterator[Row]:
    yield value._asdict()


def _tiered(value: Any, faults: Faults) -> Iterator[Row]:
    for name, tables in value.items():
        if not isinstance(tables, dict) or name == "dataVersion":
            continue
        for _, key, entry in _inner(value, name, faults):
            nested = [value for value in entry.values() if isinstance(value, dict)]
            if nested and len(nested) == len(entry):
                for part in nested:
                    yield {"table": name, "key": key, **_bean(part)}
            else:
                yield {"table": name, "key": key, **_bean(entry)}


def _other(value: Any, _: Faults) -> Iterator[Row]:
    for key, entry in value.items():
        if key != "dataVersion":
            yield {"key": key, "value": entry}


_READERS: dict[str, Callable[[Any, Faults], Iterator[Row]]] = {
    "topics": _topics,
    "groups": _groups,
    "offsets": _offsets,
    "lmq-offsets": _lmq_offsets,
    "delay": _delay,
    "filters": _filters,
    "orders": _orders,
    "mappings": _mappings,
    "modes": _modes,
    "timer-metrics": _metrics("timingCount"),
    "transaction-metrics": _metrics("transactionCount"),
    "timer": _timer,
    "tiered": _tiered,
    "other": _other,
}
