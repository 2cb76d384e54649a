"""Generate a complete, intact store directory of a given size, reproducible by its seed.

    python benchmarks/make_store.py --profile 1k --out DIR [--log-size 1GiB] [--seed 1]

The files are those of a 5.3 broker after a clean shutdown. About 1 % of the bodies imitate records,
magics or blanks. The program prints a JSON object that describes the store and a message to search
("probe").
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks.commitlog import LogWriter
from benchmarks.consumequeue import Rows, write_queue
from benchmarks.index import IndexEntries, write_index
from benchmarks.layout import GIB, KIB, MESSAGE_HEADER, MIB, file_name
from benchmarks.options import PROFILES, Options
from benchmarks.plan import Plan, make_plan
from benchmarks.smallfiles import write_small_files

UNITS = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB}


def make_store(options: Options, store: Path) -> dict[str, Any]:
    """Create the store in a new directory; return a description of its content."""
    plan = make_plan(options)
    store.mkdir(parents=True)
    entries = IndexEntries.concatenate(LogWriter(plan).write(store / "commitlog"))
    for topic, queue, members in plan.queue_groups():
        rows = Rows(plan.phy[members], plan.size[members], plan.tags_code[members])
        where = store / "consumequeue" / topic / str(queue)
        write_queue(rows, options.consumequeue_file_size, where)
    full_until = write_index(entries, options.index_slots, options.index_max, store / "index")
    write_small_files(plan, full_until, store)
    return {
        "records": len(plan),
        "log_bytes": plan.end,
        "index_entries": len(entries),
        "options": {field.name: getattr(options, field.name) for field in fields(options)},
        "probe": probe(plan, store),
    }


def probe(plan: Plan, store: Path) -> dict[str, Any]:
    """Return a message with a key from the middle of the log, which the query benchmarks search
    for.
    """
    middle = len(plan) // 2
    number = middle + int(np.argmax(plan.keys[middle:] > 0))
    phy, size = int(plan.phy[number]), int(plan.size[number])
    base = phy - phy % plan.options.commitlog_file_size
    with (store / "commitlog" / file_name(base)).open("rb") as log:
        log.seek(phy - base)
        record = log.read(size)
    header = np.frombuffer(record, dtype=MESSAGE_HEADER, count=1)
    tail = record[header.nbytes + int(plan.body_length[number]) :]
    values = dict(re.findall(rb"(KEYS|UNIQ_KEY)\x01([^\x02]*)\x02", tail))
    host = header["store_ip"].tobytes() + header["store_port"].tobytes()
    return {
        "topic": plan.topics[plan.topic[number]],
        "queue": int(plan.queue[number]),
        "queue_offset": int(plan.queue_offset[number]),
        "store_timestamp": int(plan.store_timestamp[number]),
        "phy": phy,
        "key": values.get(b"KEYS", b"").decode().partition(" ")[0],
        "unique_key": values[b"UNIQ_KEY"].decode(),
        "msg_id": (host + header["physical_offset"].tobytes()).hex().upper(),
    }


def parse_size(text: str) -> int:
    """Parse a size such as `64KiB`, `1GiB`, `1.5g` or `1000`. Return bytes."""
    match = re.fullmatch(r"([\d.]+)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"not a size: {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def parse_options(arguments: list[str] | None) -> tuple[Options, Path]:
    """Return (the options of the command line, the directory to create)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="1k")
    parser.add_argument("--out", type=Path, required=True, help="directory to make")
    parser.add_argument("--log-size", type=parse_size, help="default: the profile's")
    for name, kind, meaning in (
        ("body-length", int, "mean bytes of a body; default: the profile's"),
        ("seed", int, ""),
        ("topics", int, ""),
        ("queues", int, "queues of each topic"),
        ("adversarial", float, "share of bodies that imitate records"),
        ("commitlog-file-size", parse_size, ""),
        ("consumequeue-file-size", parse_size, ""),
        ("index-slots", int, ""),
        ("index-max", int, ""),
    ):
        default = getattr(Options, name.replace("-", "_"), None)
        text = meaning + (f" (default {default})" if default is not None else "")
        parser.add_argument(f"--{name}", type=kind, help=text.strip())
    given = vars(parser.parse_args(arguments))
    profile = PROFILES[given.pop("profile")]
    out = given.pop("out")
    options = Options(profile.body_length, profile.log_size)
    return replace(options, **{k: v for k, v in given.items() if v is not None}), out


def main(arguments: list[str] | None = None) -> None:
    """Create the store that the command line requests."""
    options, out = parse_options(arguments)
    json.dump(make_store(options, out), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
