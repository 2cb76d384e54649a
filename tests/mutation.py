"""Does the suite notice faults? One-line faults are put into a copy of the package, one at a time.

    python -m tests.mutation --count 60 --seed 1 --out mutants.json
    python -m tests.mutation --again mutants.json --exhaustive

The first line chooses faults by the seed and runs, for each, the tests of the packages it lies in
until one fails, then the rest of the default suite but Spark. The second one runs what the first
did not notice with every bit, length and call: what that finds and the default suite does not is
the power that a share costs. A fault nothing finds may change nothing (a block size, a bound that
is never met): it is listed, to be looked at by a person.

A fault is one of: a comparison that is another (< for <=, == for !=), ``+`` for ``-``, ``&`` for
``|``, ``<<`` for ``>>``, a number larger by one, ``and`` for ``or``, a condition turned round.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("formats", "scan", "store", "broker", "checks", "engine", "repair", "tiered")

#: Where faults of a package are looked for first: folders of tests, nearest first.
NEAREST = {
    "formats": ["formats", "scan", "engine"],
    "scan": ["scan", "store", "checks", "badinput"],
    "store": ["store", "commands", "engine", "badinput"],
    "broker": ["broker", "checks", "store", "engine", "repair"],
    "checks": ["checks", "badinput", "commands", "engine"],
    "engine": ["engine_write"],
    "repair": ["repair", "track_record"],
    "tiered": ["tiered"],
}
LAST = ["track_record", "test_transcripts.py", "test_cli.py", "commands", "repair", "engine_write",
        "tiered", "checks", "store", "engine", "badinput", "scan", "formats"]
SECONDS = 900
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One line that is another: ``file`` below the project, ``line`` from 1, both texts."""

    file: str
    line: int
    before: str
    after: str

    @property
    def package(self) -> str:
        return Path(self.file).parts[1]


def faults_of(path: Path) -> Iterator[Fault]:
    """Every fault that can be put into a module; docstrings and annotations are left alone."""
    source = path.read_text()
    lines = source.splitlines()
    for node in _expressions(ast.parse(source)):
        changed = _changed(node)
        if changed is None or node.lineno != node.end_lineno:
            continue
        old = lines[node.lineno - 1]
        raw = old.encode()
        new = (raw[:node.col_offset] + b"(" + ast.unparse(changed).encode() + b")"
               + raw[node.end_col_offset:]).decode()
        if new != old:
            yield Fault(str(path.relative_to(ROOT)), node.lineno, old, new)


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions in the bodies of functions, without annotations and texts put together."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef):
            for statement in outer.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp
                                  | ast.Constant):
                        yield node


def _changed(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        if any(isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant)
                                                   and isinstance(part.value, str))
               for part in (node.left, node.right)):
            return None
        return ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(SWAPPED[type(node.op)](), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return ast.Constant(node.value + 1)
    return None


def choose(count: int, seed: int, packages: Sequence[str]) -> list[Fault]:
    """The same number of faults for each package, each in a module of its own where that goes."""
    chance = random.Random(seed)
    chosen: list[Fault] = []
    for number, package in enumerate(packages):
        share = count // len(packages) + (number < count % len(packages))
        modules = sorted((ROOT / "rmqctl" / package).rglob("*.py"))
        chance.shuffle(modules)
        taken: list[Fault] = []
        while len(taken) < share and modules:
            for module in modules:
                possible = [fault for fault in faults_of(module) if fault not in taken]
                if possible and len(taken) < share:
                    taken.append(chance.choice(possible))
        chosen += taken
    return chosen


def tests_for(fault: Fault) -> list[list[str]]:
    """Two lists of tests: the nearest, then all others but Spark's."""
    folder = Path(fault.file).parts[2]
    wanted = [*(["tiered"] if folder == "tiered" else []), *NEAREST[fault.package]]
    nearest = [name for name in wanted if (ROOT / "tests" / name).exists()]
    rest = [name for name in LAST if name not in nearest]
    return [[f"tests/{name}" for name in names] for names in (nearest, rest)]


def try_fault(fault: Fault, copy: Path, words: argparse.Namespace) -> tuple[str, float]:
    """("noticed" by the named test, "not noticed" or "too slow"; seconds) for one fault."""
    place = copy / fault.file
    whole = place.read_text()
    lines = whole.splitlines(keepends=True)
    assert lines[fault.line - 1].rstrip("\n") == fault.before, f"{fault.file} has changed"
    lines[fault.line - 1] = fault.after + "\n"
    place.write_text("".join(lines))
    begun = time.monotonic()
    try:
        for tests in tests_for(fault)[:1 if words.nearest else 2]:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
                       "--dist", "loadgroup", "-n", str(words.jobs), *tests,
                       *(["--exhaustive"] if words.exhaustive else [])]
            done = subprocess.run(command, cwd=copy,
                                  capture_output=True, text=True, timeout=SECONDS,
                                  env=os.environ | {"PYTHONPATH": str(copy)})
            if done.returncode:
                failed = [line for line in done.stdout.splitlines()
                          if line.startswith(("FAILED", "ERROR"))]
                name = failed[0].split(" - ")[0] if failed else done.stdout[-200:]
                return f"noticed: {name}", time.monotonic() - begun
        return "not noticed", time.monotonic() - begun
    except subprocess.TimeoutExpired:
        return "noticed: runs without end", time.monotonic() - begun
    finally:
        place.write_text(whole)


def main() -> int:
    """Run; the exit code is 0 whatever was found: this is a measurement, not a test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--again", type=Path, help="the faults of this file nothing noticed")
    parser.add_argument("--nearest", action="store_true", help="only the tests of its packages")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    if words.again:
        faults = [Fault(**row["fault"]) for row in json.loads(words.again.read_text())
                  if row["outcome"] == "not noticed"]
    else:
        present = [name for name in words.packages.split(",") if (ROOT / "rmqctl" / name).is_dir()]
        faults = choose(words.count, words.seed, present)
    rows = []
    with tempfile.TemporaryDirectory(prefix="rmqctl-mutants-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(
            ".git", ".venv*", "__pycache__", "data", ".*_cache"))
        for number, fault in enumerate(faults, 1):
            outcome, seconds = try_fault(fault, copy, words)
            rows.append({"fault": asdict(fault), "outcome": outcome, "seconds": round(seconds, 1)})
            print(f"{number}/{len(faults)} {seconds:5.0f} s {fault.file}:{fault.line}: {outcome}\n"
                  f"    {fault.before.strip()}\n    {fault.after.strip()}", flush=True)
            if words.out:
                words.out.write_text(json.dumps(rows, indent=1) + "\n")
    noticed = sum(row["outcome"] != "not noticed" for row in rows)
    print(f"seed {words.seed}: {noticed} of {len(rows)} faults noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
