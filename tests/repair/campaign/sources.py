"""Sources that are no stores: what was read, exported, copied or tiered of a log once."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.repair.campaign.stores import Base
from tests.support import cli

JSON_LINES, PARQUET, LOG_FILE, TIER = "JSON lines", "Parquet", "log file", "tier"


def _options(base: Base) -> list[str]:
    return [word for name in base.dirs for word in ("--commitlog-dir", name)]


def lines(base: Base, root: Path, folder: Path, luck: random.Random) -> Path:
    """What `read` prints of it, or a part of that."""
    output = cli.run("read", root, *_options(base), "-o", "jsonl").expect(0, 1).out
    share = luck.choice((1, 1, 0.7, 0.2))
    target = folder / "messages.jsonl"
    target.write_text("".join(line for line in output.splitlines(keepends=True)
                              if luck.random() < share), encoding="utf-8")
    return target


def parquet(base: Base, root: Path, folder: Path, luck: random.Random) -> Path:
    """What `export` makes of it, or of one topic."""
    topic = ("--topic", luck.choice([record.topic.decode() for record in base.records.values()]))
    cli.run("export", root, *_options(base), *(topic if luck.random() < 0.3 else ()),
            "--out", folder / "all.parquet").expect(0, 1)
    return folder / "all.parquet"


def log_file(base: Base, root: Path, folder: Path, luck: random.Random) -> Path:
    """One file of the log, under its name or another one."""
    used = [first for first, data in base.log(root).files if any(data)]
    path = base.path(root, luck.choice(used))
    return Path(shutil.copy(path, folder / (path.name if luck.random() < 0.7 else "saved")))


def tier(base: Base, root: Path, folder: Path, _luck: random.Random) -> Path:
    """What a broker would have in a tier of it."""
    target = folder / "tier"
    target.mkdir()
    cli.run("tiered", "dispatch", root, target, *_options(base), "--broker", "b", "--no-index",
            "--metadata", folder / "tier.json")
    return target


FORMS: dict[str, Callable[[Base, Path, Path, random.Random], Path]] = {
    JSON_LINES: lines, PARQUET: parquet, LOG_FILE: log_file, TIER: tier}
"""Each takes a store of the kind ``base``, a folder, and luck; what it gives is named by --from."""
