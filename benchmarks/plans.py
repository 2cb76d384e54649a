"""Save the plans of `recover` for the damaged stores of many seeds, and compare two revisions.

``python -m benchmarks.plans save FILE --seeds 1000`` damages the worlds of seeds 1 to 1,000
(tests/repair/campaign/worlds) and writes their plans; run by two revisions of rmqctl,
``python -m benchmarks.plans compare BEFORE AFTER`` prints the table of benchmarks/plans.md.
Each difference is counted in one class: the first of `CLASSES` that applies.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.repair.campaign.worlds import grounds, trial
from tests.support import cli, unforced

_OF_THE_LOG = frozenset({"copy", "put back", "correct", "mend record", "keep damaged", "fill",
                         "zero", "create", "remove"})
CLASSES = (
    "equal", "other words only", "refused before, planned now", "planned before, refused now",
    "fewer messages lost", "more messages lost", "fewer records undecided",
    "more records undecided", "other places of the log, as many lost",
    "other derived files or configuration")


def _plan(seed: int, base: Path) -> dict[str, Any]:
    """Return the plan of `recover` for the world of a seed; nothing is changed."""
    world = trial.world(seed)
    ground = grounds.make(base / "made", world.form, world.forged, world.number)
    work = base / "one"
    shutil.rmtree(work, ignore_errors=True)
    root = ground.copy(work / "store")
    done = trial._damaged(world, ground, root)
    sizes = ground.sizes
    result = cli.run(
        "recover", root, "-o", "json", "--commitlog-file-size", str(sizes.commitlog_file),
        "--consumequeue-file-size", str(sizes.consumequeue_file), "--index-slots",
        str(sizes.index_slots), "--index-max", str(sizes.index_max), "--max-message-size",
        str(sizes.largest_record), "--correct", world.correct,
        "--consumequeue", "rocksdb" if world.form == grounds.ROCKSDB else "file",
        *(["--keep-damaged"] if world.keep else []))
    document = result.json() if result.code in (0, 1) else {}
    text = json.dumps(document).replace(str(work), "")
    return {"seed": seed, "world": world.name, "damage": done, "exit": result.code,
            "plan": json.loads(text)}


def save(file: Path, first: int, seeds: int) -> None:
    """Write a line of JSON for each seed."""
    unforced.install()
    with tempfile.TemporaryDirectory() as folder, file.open("w", encoding="utf-8") as out:
        for seed in range(first, first + seeds):
            out.write(json.dumps(_plan(seed, Path(folder))) + "\n")


def _actions(plan: dict[str, Any], *, log: bool) -> list[tuple[Any, ...]]:
    return sorted(
        (action["action"], action["target"], action.get("offset") or -1, action.get("length") or -1)
        for action in plan.get("actions", ()) if (action["action"] in _OF_THE_LOG) is log)


def class_of(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the first of `CLASSES` that applies to the difference between two plans."""
    if before == after:
        return "equal"
    a, b = before["plan"], after["plan"]
    if not a or not b:
        return "equal" if not a and not b else (
            "refused before, planned now" if b else "planned before, refused now")
    for name, words in (("messages_lost", "messages lost"),
                        ("messages_undecided", "records undecided")):
        was, now = (_number(plan, name) for plan in (a, b))
        if was != now:
            return f"{'fewer' if now < was else 'more'} {words}"
    if _actions(a, log=True) != _actions(b, log=True):
        return "other places of the log, as many lost"
    if _actions(a, log=False) != _actions(b, log=False):
        return "other derived files or configuration"
    return "other words only"


def _number(plan: dict[str, Any], name: str) -> int:
    value = plan.get(name, 0)
    return len(value) if isinstance(value, list) else int(value or 0)


def compare(before: Path, after: Path) -> tuple[Counter[str], dict[str, list[int]]]:
    """Return (numbers of plans by class, seeds by class)."""
    counts: Counter[str] = Counter()
    seeds: dict[str, list[int]] = {}
    for a, b in zip(_read(before), _read(after), strict=True):
        if a["seed"] != b["seed"]:
            raise SystemExit(f"seed {a['seed']} is compared with {b['seed']}")
        name = class_of(a, b)
        counts[name] += 1
        seeds.setdefault(name, []).append(a["seed"])
    return counts, seeds


def _read(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def table(counts: Counter[str], seeds: dict[str, list[int]]) -> str:
    """Return the classes as Markdown, with the first seeds of each."""
    rows = ["| difference | plans | seeds |", "| --- | ---: | --- |"]
    for name in CLASSES:
        if counts[name]:
            some = [str(seed) for seed in seeds[name][:12]] if name != "equal" else []
            rows.append(f"| {name} | {counts[name]:,} | {', '.join(some)}"
                        f"{', …' if len(seeds[name]) > 12 and some else ''} |")
    return "\n".join(rows) + "\n"


def main(words: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save")
    saving.add_argument("file", type=Path)
    saving.add_argument("--seeds", type=int, default=1000)
    saving.add_argument("--seed", type=int, default=1, help="the first one")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args(words)
    if given.command == "save":
        save(given.file, given.seed, given.seeds)
    else:
        sys.stdout.write(table(*compare(given.before, given.after)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
