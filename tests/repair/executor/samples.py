"""A small store, and a plan for it in which every kind of step occurs."""

from __future__ import annotations

import os
import random
from pathlib import Path

from rmqctl.files.durable import make_folders
from rmqctl.repair.executor.executor import Applied, Repair
from rmqctl.repair.plan import (
    Action,
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Patch,
    Plan,
    Replace,
)
from rmqctl.scan.overlay import OverlayPiece

LAST_YEAR = 1_700_000_000_123_456_789
FILES = {"commitlog/00000000000000000000": 9000, "commitlog/00000000000000009000": 9000,
         "commitlog/00000000000000018000": 9000, "consumequeue/T/0/00000000000000000000": 600,
         "consumequeue/T/1/00000000000000000000": 600, "consumequeue/U/0/00000000000000000000": 600,
         "index/20261121000000000": 900, "checkpoint": 4096, "abort": 0}
ACTIONS = (Action("fill", "commitlog/00000000000000000000", None, 3, "damage"),
           Action("move aside", "commitlog/00000000000000018000", 9000, None, "beyond the end"),
           Action("rebuild", "consumequeue/T", "äöü \ud800", None, "two\nlines"))


def make(root: Path) -> Path:
    """The store, with old times everywhere and a mode of its own for one file."""
    chance = random.Random(7)
    for name, size in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))
    (root / "consumequeue/T/0/00000000000000000000").chmod(0o640)
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(LAST_YEAR, LAST_YEAR + number * 1_000_000_007))
    return root


def plan(root: Path, scratch: Path) -> Plan:
    """Every kind of step, of content and of piece; what is movable lies in ``scratch``."""
    make_folders(str(scratch), durable=False)
    for name in ("moved", "copied"):
        (scratch / name).write_bytes(name.encode() * 100)
    steps = (
        Patch("commitlog/00000000000000000000",
              (OverlayPiece(100, 3000, ((5, b"head"), (2990, b"tail"))),
               OverlayPiece.of(8000, b"more" * 30))),
        Patch("commitlog/00000000000000009000",
              (OverlayPiece(5000, 6000, ((3990, b"across" * 9),)),)),
        MoveAside("commitlog/00000000000000018000"),
        MoveAside("consumequeue/U"),
        Create("consumequeue/U/0/00000000000000000000", b"rebuilt" * 20),
        Replace("consumequeue/T/0/00000000000000000000", FileContent(str(scratch / "moved"))),
        Replace("consumequeue/T/1/00000000000000000000",
                FileContent(str(scratch / "copied"), movable=False), LAST_YEAR),
        MakeFolder("consumequeue/V/3"),
        Create("consumequeue/W/1/00000000000000000000", OverlayPiece(0, 9000, ((5000, b"sparse"),)),
               LAST_YEAR + 5),
        MoveAside("index/20261121000000000"),
        Create("index/20261121000000000", b"anew"),
        Replace("checkpoint", b"c" * 4096),
        MoveAside("abort"),
    )
    return Plan("recover", str(root), ACTIONS, steps)


def done(root: Path) -> bool:
    """Whether the plan has been carried out."""
    return not (root / "abort").exists()


def repair(root: Path, complete: str | None = None) -> Applied | None:
    """As a command does it: what was interrupted is completed, then the plan is made and applied
    if there is something to do."""
    with Repair(str(root), "recover", complete=complete) as held:
        if done(root):
            return held.finished
        scratch = Path(held.scratch_folder)
        return held.apply(plan(root, scratch))
