"""Metrics for monitoring: contents of a store and the lag of its consumers.

Like `info` and `offsets`, this module reads only the ends of files and the configuration. So
metrics can be collected every minute while a broker is running.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from rmqctl.broker.view import view_of
from rmqctl.errors import RmqctlError, UnsupportedError
from rmqctl.files.disk_usage import free_bytes
from rmqctl.store.config.offsets import Lag
from rmqctl.store.info import collect
from rmqctl.store.store import Store

HELP = {
    "rmqctl_store_up": "1: the store could be read.",
    "rmqctl_store_messages": "Messages with a consume queue entry.",
    "rmqctl_store_min_phy_offset": "First physical offset of the commitlog.",
    "rmqctl_store_max_phy_offset": "End of the commitlog.",
    "rmqctl_store_last_message_timestamp_seconds": "Store time of the newest message.",
    "rmqctl_store_abort": "1: the abort file exists.",
    "rmqctl_store_held": "1: a process holds the lock.",
    "rmqctl_store_troubles": "Files and entries that could not be read.",
    "rmqctl_store_bytes": "Bytes on the disk by structure.",
    "rmqctl_store_free_bytes": "Free bytes on the disk of the store.",
    "rmqctl_topic_messages": "Messages of a topic that have a consume queue entry.",
    "rmqctl_group_diff": "Messages a group has not consumed; negative: its offset is beyond the "
    "end.",
    "rmqctl_store_timestamp_seconds": "Time of this reading.",
}
Sample = tuple[str, Mapping[str, str], float]


def measured(stores: Sequence[tuple[str, Callable[[], Store]]],
             failed: Callable[[RmqctlError], None]) -> dict[
                 str, list[tuple[Mapping[str, str], float]]]:
    """Return, for each metric in `HELP`, its samples (labels and value) from all stores.

    Only one store is open at a time. ``failed`` receives the error of a store that cannot be read.
    """
    samples_of: dict[str, list[tuple[Mapping[str, str], float]]] = {name: [] for name in HELP}
    for name, opens in stores:
        label = {"store": name}
        try:
            with opens() as store:
                samples = list(_of(store, label))
        except RmqctlError as error:
            failed(error)
            samples = [("rmqctl_store_up", label, 0)]
        for metric, labels, value in samples:
            samples_of[metric].append((labels, value))
    return samples_of


def _of(store: Store, label: dict[str, str]) -> Iterator[Sample]:
    # The store, then structures, topics and groups.
    view = view_of(store, "disk")
    facts = collect(store, view)
    yield "rmqctl_store_up", label, 1
    for metric, value in (
            ("messages", facts["messages"]), ("min_phy_offset", facts["min_phy_offset"]),
            ("max_phy_offset", facts["max_phy_offset"]),
            ("abort", int(facts["abort"])), ("held", int(facts["lock"]["held"])),
            ("troubles", len(facts["troubles"])), ("free_bytes", free_bytes(store.root)),
            ("timestamp_seconds", time.time())):
        if value is not None:
            yield f"rmqctl_store_{metric}", label, value
    if facts["last_store_timestamp"] is not None:
        yield ("rmqctl_store_last_message_timestamp_seconds", label,
               facts["last_store_timestamp"] / 1000)
    for structure in facts["structures"]:
        yield ("rmqctl_store_bytes", {**label, "structure": structure["kind"]},
               structure["allocated"])
    for topic in facts["topics"]:
        yield "rmqctl_topic_messages", {**label, "topic": topic["topic"]}, topic["messages"]
    # How far groups are behind, by topic.
    behind = Counter[tuple[str, str]]()
    with suppress(UnsupportedError):  # offsets in an unsupported form
        for row in Lag(store, view).rows():
            if row["group"] and row["diff"] is not None:
                behind[row["group"], row["topic"]] += row["diff"]
    for (group, topic), diff in behind.items():
        yield "rmqctl_group_diff", {**label, "group": group, "topic": topic}, diff
