#!/usr/bin/env python3
"""Builds stores in the states users of Apache RocketMQ reported: ``build.py DIR [NAME…]``.

``NAME`` is a store's name or its issue's number; without one all are built, each in
``DIR/NAME``. They are made from the golden archives, and are the same every time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import golden, snapshot
from tests.track_record import stores
from tests.track_record.case import Case


def build(case: Case, source: Path, target: Path) -> Path:
    """The store of ``case`` at ``target`` (which must not exist), from an unpacked golden root."""
    newest = max(path.stat().st_mtime_ns for path in source.rglob("*"))
    snapshot.copy_tree(source, target)
    case.make(target)
    # What was written just now is as old as the rest: expiry and a broker's time look-up ask.
    for path in (target, *target.rglob("*")):
        if path.stat().st_mtime_ns > newest:
            os.utime(path, ns=(newest, newest))
    return target


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="build.py", description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=Path, help="where the stores go; it is made")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a store, or an issue's number")
    chosen = parser.parse_args(arguments)
    try:
        cases = [stores.find(name) for name in chosen.names] or list(stores.ALL.values())
    except KeyError as error:
        parser.error(f"no such store: {error.args[0]}; there are {', '.join(stores.ALL)}")
    for case in cases:
        if (chosen.dir / case.name).exists():
            parser.error(f"{chosen.dir / case.name} is there already")
    chosen.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unpacked = unpacker(Path(folder))
        for case in cases:
            print(build(case, unpacked(case.base), chosen.dir / case.name))
    return 0


def unpacker(base: Path) -> Callable[[str], Path]:
    """``unpacker(folder)("4.9.3/basic/store")``: a golden root, unpacked under ``folder``."""
    def unpacked(name: str) -> Path:
        root, rest = golden.split(name)
        return golden.unpack(root, base) / rest

    return unpacked


if __name__ == "__main__":
    sys.exit(main())
