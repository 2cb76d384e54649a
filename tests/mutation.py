"""Does the suite notice faults? One-line faults are put into a copy of the package, one at a time.

    python -m tests.mutation --count 60 --seed 1 --out mutants.json
    python -m tests.mutation --together mutants.json
    python -m tests.mutation --together mutants.json --exhaustive

The first line chooses faults by the seed and runs, for each, the tests of the packages it lies in
until one fails: one case of each first, then the default suite's. The second one puts all faults
which that did not notice into one copy, runs the whole default suite but Spark, and then, for each
fault alone, the tests that failed. The third one does so with every bit, length and call: what
that finds and the default suite does not is the power that a share costs. A fault nothing finds
may change nothing (a block size, a bound that is never met): it is listed, to be looked at by a
person.

A fault is one of: a comparison that is another (< for <=, == for !=), ``+`` for ``-``, ``&`` for
``|``, ``<<`` for ``>>``, a number larger by one, ``and`` for ``or``, a condition turned round.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("formats", "scan", "store", "broker", "checks", "engine", "repair", "ext/tiered")

#: Where faults of a package are looked for first: folders of tests, nearest first.
NEAREST = {
    "formats": ["formats", "scan", "engine"],
    "scan": ["scan", "store", "checks", "badinput"],
    "store": ["store", "commands", "engine", "badinput"],
    "broker": ["broker", "checks", "store", "engine", "repair"],
    "checks": ["checks", "badinput", "commands", "engine"],
    "engine": ["engine_write"],
    "repair": ["repair", "track_record"],
    "ext/tiered": ["tiered"],
}
#: One fault alone, and all together: longer than that is an endless loop.
SECONDS, SECONDS_TOGETHER = 400, 7200
_OF_A_GROUP = re.compile(r"@[\w-]+$")
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
        parts = Path(self.file).parts
        return "/".join(parts[1:3 if parts[1] == "ext" else 2])


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


def nearest(fault: Fault) -> list[str]:
    """The folders of tests to look into first."""
    wanted = [*(["tiered"] if "tiered" in Path(fault.file).parts else []), *NEAREST[fault.package]]
    return [f"tests/{name}" for name in wanted if (ROOT / "tests" / name).exists()]


@contextmanager
def put_in(faults: Sequence[Fault], copy: Path) -> Iterator[None]:
    """The copy with these faults; without them afterwards."""
    whole = {fault.file: (copy / fault.file).read_text() for fault in faults}
    for fault in faults:
        place = copy / fault.file
        lines = place.read_text().splitlines(keepends=True)
        assert lines[fault.line - 1].rstrip("\n") == fault.before, f"{fault.file} has changed"
        lines[fault.line - 1] = fault.after + "\n"
        place.write_text("".join(lines))
    try:
        yield
    finally:
        for name, text in whole.items():
            (copy / name).write_text(text)


def failures(copy: Path, tests: Sequence[str], words: argparse.Namespace, *more: str,
             seconds: int = SECONDS) -> list[str]:
    """The tests that fail; one word in place of them when the run has no end or cannot begin."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--dist",
               "loadgroup", "-n", str(words.jobs), *tests, *more,
               *(["--exhaustive"] if words.exhaustive else [])]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=seconds,
                              env=os.environ | {"PYTHONPATH": str(copy)})
    except subprocess.TimeoutExpired:
        return ["runs without end"]
    # A name ends with the group of the test, by which pytest does not find it again.
    failed = [_OF_A_GROUP.sub("", line.split(" - ")[0].split(maxsplit=1)[1])
              for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    nothing_ran = done.returncode == 5 and "--quick" not in more
    return failed or (["does not begin"] if done.returncode not in (0, 5) or nothing_ran else [])


def alone(faults: list[Fault], copy: Path, words: argparse.Namespace) -> Iterator[list[str]]:
    """For each fault by itself, the first of its nearest tests that fails."""
    for fault in faults:
        with put_in([fault], copy):
            yield (failures(copy, nearest(fault), words, "-x", "--quick")
                   or failures(copy, nearest(fault), words, "-x"))


def together(faults: list[Fault], copy: Path, words: argparse.Namespace) -> Iterator[list[str]]:
    """For each fault by itself, the first that fails of the tests which all faults make fail."""
    tests = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").iterdir()
                   if (path.name != "pipeline" and (path / "__init__.py").exists())
                   or path.name.startswith("test_"))
    with put_in(faults, copy):
        failed = failures(copy, tests, words, seconds=SECONDS_TOGETHER)
    print(f"{len(failed)} tests fail with all faults together", flush=True)
    for fault in faults:
        with put_in([fault], copy):
            yield failures(copy, failed, words, "-x") if failed else []


def main() -> int:
    """Run; the exit code is 0 whatever was found: this is a measurement, not a test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--together", type=Path, help="the faults of this file nothing noticed")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    if words.together:
        faults = [Fault(**row["fault"]) for row in json.loads(words.together.read_text())
                  if not row["noticed_by"]]
    else:
        faults = choose(words.count, words.seed, words.packages.split(","))
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="rmqctl-mutants-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(
            ".git", ".venv*", "__pycache__", "data", ".*_cache"))
        outcomes = (together if words.together else alone)(faults, copy, words)
        for number, (fault, failed) in enumerate(zip(faults, outcomes, strict=True), 1):
            noticed_by = failed[0] if failed else None
            rows.append({"fault": asdict(fault), "noticed_by": noticed_by})
            print(f"{number}/{len(faults)} {fault.file}:{fault.line}: {noticed_by}\n"
                  f"    {fault.before.strip()}\n    {fault.after.strip()}", flush=True)
            if words.out:
                words.out.write_text(json.dumps(rows, indent=1) + "\n")
    noticed = sum(bool(row["noticed_by"]) for row in rows)
    print(f"seed {words.seed}: {noticed} of {len(rows)} noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
