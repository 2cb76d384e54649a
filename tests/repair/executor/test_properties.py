"""Random plans over random small trees: undo brings back, twice is once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqctl.errors import RefusedError
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import history
from rmqctl.repair.plan import Create, FileContent, MakeFolder, MoveAside, Patch, Plan, Replace
from rmqctl.scan.overlay import OverlayPiece
from tests.repair.accidents import bytes_of, differences, state, undo_all
from tests.repair.executor.conftest import MEMORY
from tests.support.share import examples

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/".join(["index", *parts]))
DATA = st.binary(max_size=40)
TIMES = st.none() | st.integers(0, 2_000_000_000_000_000_000)


@st.composite
def pieces(draw):
    at, out = 0, []
    for _ in range(draw(st.integers(1, 3))):
        at += draw(st.integers(0, 20))
        parts, end = [], 0
        for data in draw(st.lists(st.binary(min_size=1, max_size=9), max_size=3)):
            end += draw(st.integers(0, 9))
            parts.append((end, data))
            end += len(data)
        size = end + draw(st.integers(0, 9))
        out.append(OverlayPiece(at, size, tuple(parts)))
        at += size
    return tuple(out)


CONTENT = DATA | DATA.map(lambda data: ("file", data)) | st.builds(
    lambda size, data: OverlayPiece(0, size + len(data), ((size, data),) if data else ()),
    st.integers(0, 5000), DATA)
STEPS = st.lists(st.one_of(
    st.builds(Create, PATHS, CONTENT, TIMES), st.builds(Replace, PATHS, CONTENT, TIMES),
    st.builds(Patch, PATHS, pieces()), st.builds(MoveAside, PATHS), st.builds(MakeFolder, PATHS)),
    min_size=1, max_size=6)
TREES = st.dictionaries(PATHS, st.none() | DATA, max_size=7)


def build(root: Path, tree: dict[str, bytes | None]) -> None:
    (root / "index").mkdir(parents=True)
    for name, data in tree.items():
        path = root / name
        if any((root / text).is_file() for text in [name, *map(str, Path(name).parents)]):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            path.mkdir(exist_ok=True)
        elif not path.exists():
            path.write_bytes(data)
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(1, 1_600_000_000_000_000_000 + number))


def contents(steps, folder: Path):
    """The steps with what is to come from a file in a file."""
    out = []
    for number, step in enumerate(steps):
        content = getattr(step, "content", None)
        if isinstance(content, tuple):
            path = folder / str(number)
            path.write_bytes(content[1])
            out.append(type(step)(step.target, FileContent(str(path), movable=bool(number % 2)),
                                  step.mtime_ns))
        else:
            out.append(step)
    return tuple(out)


@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(TREES, STEPS, STEPS)
def test_undo_brings_everything_back(tree, first, second):
    base = Path(tempfile.mkdtemp(prefix="rmqctl-test-",
                                 dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    try:
        root, scratch = base / "store", base / "scratch"
        build(root, tree)
        scratch.mkdir()
        states = [state(root)]
        for given_steps in (first, second):
            steps = contents(_sound(root, given_steps), scratch)
            plan = Plan("test", str(root), (), steps)
            with Repair(str(root), "test") as held:
                done = held.apply(plan)
                after = bytes_of(root)
                if done.already:
                    assert not differences(state(root), states[-1])
                    continue
                states.append(state(root))
                if not any(isinstance(getattr(step, "content", None), FileContent)
                           for step in steps):
                    assert held.apply(plan).already
                    assert bytes_of(root) == after
        for entry in reversed(history(str(root))):
            states.pop()
            with Repair(str(root), "undo") as held:
                assert held.undo(entry.id).id == entry.id
                assert held.undo(entry.id).already
            assert not differences(state(root), states[-1])
        assert len(states) == 1
        assert undo_all(root) == 0
    finally:
        shutil.rmtree(base)


def _sound(root: Path, steps):
    """The steps that can be carried out one after the other."""
    from rmqctl.errors import InternalError
    from rmqctl.repair.executor.check_plan import check

    out = []
    for step in steps:
        try:
            check(str(root), [*out, step])
        except (RefusedError, InternalError):
            continue
        out.append(step)
    return out
