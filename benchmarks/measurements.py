"""The registry: what `run.py` measures, and against what. Add a line here to measure more.

A `Command` is an rmqctl command line; `{names}` in it are filled from the store's facts: store,
and the probe message's topic, queue, queue_offset, store_timestamp, phy, key, unique_key, msg_id.
A `Call` names a function of calls.py. Standard library only: the process that starts and watches
the others has to stay small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Figures of the real engine on the same kind of machine (Java 17, page cache warm), MB (10^6) of
# log per second, per profile: the walk of the log with CRC, and consumequeue and index rebuilt.
ENGINE_MB_S = {
    "4.9.3 walk, fresh JVM": {"1k": 1500.0, "100": 730.0},
    "4.9.3 walk, hot": {"1k": 4700.0, "100": 1320.0},
    "4.9.3 rebuild": {"1k": 1080.0, "100": 320.0},
    "5.3.3 walk, fresh JVM": {"1k": 1500.0, "100": 780.0},
    "5.3.3 walk, hot": {"1k": 4300.0, "100": 1220.0},
    "5.3.3 rebuild": {"1k": 480.0, "100": 120.0},
}
ENGINE_COLUMNS = {"engine fresh": "4.9.3 walk, fresh JVM", "engine hot": "4.9.3 walk, hot"}

PEER_CONSTRUCT = "peer: construct parse"
PEER_STRUCT = "peer: struct loop, isal CRC"
PEER_FIELDS = "peer: struct, all fields"
WALK = "walk+crc, jobs=1"  # the name verify is judged against
RATIOS = {"construct": PEER_CONSTRUCT, "struct": PEER_STRUCT}  # columns: against which row


@dataclass(frozen=True)
class Goal:
    """What a measurement has to reach; a profile without a figure has no goal."""

    mb_s: dict[str, float] = field(default_factory=dict)
    mrec_s: float | None = None  # million messages a second
    process_s: float | None = None
    peak_mib: float | None = None  # resident, mapped files included
    ratio_to: dict[str, float] = field(default_factory=dict)  # name of a measurement -> times


@dataclass(frozen=True)
class Call:
    """A function of calls.py, run `times` times in one process."""

    name: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    goal: Goal = Goal()


@dataclass(frozen=True)
class Command:
    """An rmqctl command line, run in a new process each time.

    whole_log: it goes through all of the log, so a throughput is shown. discards: what it writes,
    more than the log is large, goes nowhere.
    """

    name: str
    argv: tuple[str, ...]
    whole_log: bool = False
    goal: Goal = Goal()
    discards: bool = False


Measurement = Call | Command

LOOK_UP = Goal(process_s=0.4)
STREAM_MIB = 300.0

MEASUREMENTS: tuple[Measurement, ...] = (
    Call(PEER_CONSTRUCT, "peer_construct", {"mib": 16}),
    Call("peer: struct loop, zlib CRC", "peer_struct_zlib"),
    Call(PEER_FIELDS, "peer_struct_fields"),
    Call(PEER_STRUCT, "peer_struct"),
    Call(
        WALK,
        "walk_crc",
        {"jobs": 1},
        Goal(
            mb_s={"1k": 1500.0, "100": 500.0},
            peak_mib=STREAM_MIB,
            ratio_to={PEER_CONSTRUCT: 30.0, PEER_FIELDS: 4.0},
        ),
    ),
    Call("walk+crc, jobs=2", "walk_crc", {"jobs": 2}, Goal(mb_s={"1k": 3000.0, "100": 1000.0})),
    Call(
        "verify, in process, jobs=1",
        "verify_all",
        {"jobs": 1},
        Goal(mb_s={"1k": 750.0, "100": 250.0}, peak_mib=STREAM_MIB),
    ),
    Call("verify, in process, jobs=2", "verify_all", {"jobs": 2}, Goal(peak_mib=STREAM_MIB)),
    Call("stats by topic, in process", "stats_by_topic", {"jobs": 1}, Goal(mb_s={"1k": 2000.0})),
    Command(
        "verify",
        ("verify", "{store}", "-o", "json"),
        whole_log=True,
        goal=Goal(peak_mib=STREAM_MIB, ratio_to={WALK: 0.5}),
    ),
    Command(
        "verify --jobs 2",
        ("verify", "{store}", "-o", "json", "--jobs", "2"),
        whole_log=True,
        goal=Goal(peak_mib=STREAM_MIB),
    ),
    Command(
        "recover table",
        ("recover", "table", "{store}", "-o", "json"),
        whole_log=True,
        goal=Goal(peak_mib=STREAM_MIB),
    ),
    Command(
        "stats --by topic",
        ("stats", "{store}", "--by", "topic", "-o", "json"),
        whole_log=True,
    ),
    Command(
        "read -o jsonl",
        ("read", "{store}", "-o", "jsonl"),
        whole_log=True,
        goal=Goal(mrec_s=0.3, peak_mib=STREAM_MIB),
        discards=True,
    ),
    Command(
        "query key",
        ("query", "key", "{store}", "--topic", "{topic}", "--key", "{key}", "-o", "json"),
        goal=LOOK_UP,
    ),
    Command("query id", ("query", "id", "{store}", "{msg_id}", "-o", "json"), goal=LOOK_UP),
    Command(
        "query id --unique",
        ("query", "id", "{store}", "{unique_key}", "--unique", "-o", "json"),
    ),
    Command(
        "query time",
        (
            *("query", "time", "{store}", "--topic", "{topic}", "--queue", "{queue}"),
            *("--time", "{store_timestamp}", "-o", "json"),
        ),
        goal=LOOK_UP,
    ),
    Command(
        "read one by queue offset",
        (
            *("read", "{store}", "--topic", "{topic}", "--queue", "{queue}"),
            *("--offset", "{queue_offset}", "--count", "1", "-o", "json"),
        ),
        goal=LOOK_UP,
    ),
    Command("--help", ("--help",), goal=Goal(process_s=0.3)),
)
