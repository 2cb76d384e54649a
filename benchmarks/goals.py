"""The measurements of `run.py` and their goals. Standard library only, because the process that
starts and monitors the measured processes must stay small.

A `Work` is a function of calls.py or an rmqctl command line. ``{names}`` in a command line are
filled from the store's facts: store, damaged (a copy with wrong bytes), log, and the probe
message's topic, queue, queue_offset, store_timestamp, phy, key, unique_key, msg_id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GB_S, K_S, M_S, SECONDS, CPU = ("GB/s", "k messages/s", "M/s", "s", "s of CPU")
FACTOR = {GB_S: 1e9, K_S: 1e3, M_S: 1e6}
COUNT = 400_000
ITEMS = 10_000_000
PEAK_MIB = 200.0
PEAK = "peak memory of all above"
ONE_K, SMALL = "1k", "100"
BODY = {ONE_K: 1024, SMALL: 100}

Figures = dict[str, tuple[float, ...]]
"""For each store: the figure on one core, optionally followed by the figure with two threads."""


@dataclass(frozen=True)
class Work:
    """A measurement: a row of the table for each store of ``goal``, or for both stores.

    ``goal``: the figure to reach; with ``beside`` (name, factor), it is relative to another row.
    Figures in seconds must be lower, others higher. ``engine``: the Java engine's figure on one
    core. ``is_peer``: another program is measured, so its memory is not compared with the goal.
    """

    name: str
    unit: str
    call: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    argv: str = ""
    goal: Figures = field(default_factory=dict)
    beside: tuple[str, float] | None = None
    engine: dict[str, float] = field(default_factory=dict)
    stores: tuple[str, ...] = (ONE_K, SMALL)
    exits: tuple[int, ...] = (0,)
    is_peer: bool = False


def _peer(name: str, call: str, /, **arguments: Any) -> Work:
    return Work(name, GB_S, call, arguments, is_peer=True)


def _look_up(name: str, argv: str) -> Work:
    return Work(name, CPU, argv=argv, goal={ONE_K: (0.2,), SMALL: (0.2,)})


COPY, DAMAGED = "peer: plain copy, forced", "verify of a damaged store"

# The engine's figures: 4.9.3 with Java 17 on the same kind of machine, with a warm cache.
WORKS: tuple[Work, ...] = (
    Work("peer: cat", GB_S, argv="!cat {log}", is_peer=True),
    Work("peer: openssl dgst -sha256", GB_S, argv="!openssl dgst -sha256 {log}", is_peer=True),
    _peer("peer: construct parse", "peer", name="construct"),
    _peer("peer: struct, all fields", "peer", name="fields"),
    _peer("peer: struct loop, zlib CRC", "peer", name="struct, zlib"),
    _peer("peer: struct loop, isal CRC", "peer", name="struct"),
    _peer(COPY, "copy"),
    Work("walk + CRC", GB_S, "walk_crc", goal={ONE_K: (10, 16), SMALL: (5, 8)},
         engine={ONE_K: 4.7, SMALL: 1.32}),
    Work("verify, in process", GB_S, "verify", goal={ONE_K: (4, 6), SMALL: (1.5, 2.5)}),
    Work("verify, a command", SECONDS, argv="verify {store} -o json", goal={ONE_K: (0.7,)}),
    Work("rebuild of consumequeue and index", GB_S, "rebuild",
         goal={ONE_K: (2.5, 4), SMALL: (1, 1.5)}, engine={ONE_K: 1.08, SMALL: 0.32}),
    Work(DAMAGED, SECONDS, argv="verify {damaged} -o json", exits=(1,)),
    Work("recover of it, a plan", SECONDS, argv="recover {damaged} -o json", exits=(0, 1),
         beside=(DAMAGED, 2)),
    *(Work(f"stats by {by}", GB_S, "stats", {"by": by}, goal={ONE_K: (8,), SMALL: (3,)})
      for by in ("topic", "tag", "key")),
    Work("Engine.append_many, dispatched", K_S, "append_many", {"size": BODY, "count": COUNT},
         goal={ONE_K: (350,), SMALL: (700,)}, engine={ONE_K: 226, SMALL: 567}),
    Work("Engine.append_columns, dispatched", K_S, "append_columns",
         {"size": BODY, "count": COUNT}, goal={ONE_K: (500,), SMALL: (1000,)},
         engine={ONE_K: 226, SMALL: 567}),
    Work("append from JSON lines, a command", K_S, "append", {"size": BODY, "count": COUNT},
         goal={ONE_K: (200,), SMALL: (250,)}),
    Work("read -o jsonl, a command", K_S, argv="read {store} -o jsonl",
         goal={ONE_K: (300,), SMALL: (300,)}),
    Work("export to Parquet, 10 columns, no bodies", M_S, "export", {"ten": True},
         goal={ONE_K: (5,), SMALL: (5,)}),
    Work("the same, not compressed", M_S, "export", {"ten": True, "compression": "none"}),
    Work("export to Parquet, all with bodies", GB_S, "export", {"ten": False},
         goal={ONE_K: (1,), SMALL: (1,)}),
    Work("the same, not compressed", GB_S, "export", {"ten": False, "compression": "none"}),
    Work("carve an image of noise", GB_S, "carve", {"noise": True}, goal={ONE_K: (5,)},
         stores=(ONE_K,)),
    Work("carve an image of records", GB_S, "carve", {"noise": False},
         goal={ONE_K: (4,), SMALL: (4,)}),
    Work("tier dispatch with index, forced", GB_S, "dispatch",
         goal={ONE_K: (0.6,), SMALL: (0.6,)}, beside=(COPY, 0.9)),
    Work("tier index compaction, forced", M_S, "compact", {"items": ITEMS},
         goal={ONE_K: (15,)}, stores=(ONE_K,)),
    _look_up("query key", "query key {store} --topic {topic} --key {key} -o json"),
    _look_up("query id", "query id {store} {msg_id} -o json"),
    _look_up("query time", "query time {store} --topic {topic} --queue {queue}"
                           " --time {store_timestamp} -o json"),
    _look_up("read --offset", "read {store} --topic {topic} --queue {queue}"
                              " --offset {queue_offset} --limit 1 -o json"),
    Work("--help", CPU, argv="--help", goal={ONE_K: (0.1,)}, stores=(ONE_K,)),
)
