"""Rebuilds golden stores, and carries out the steps in the plainest way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.repair.plan import (
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Patch,
    Planned,
    Replace,
    Step,
)
from rmqctl.repair.rebuild.rebuild import CONSUMEQUEUE, Rebuilt, rebuild
from rmqctl.repair.rebuild.steps import derived_steps
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.overlay import LogPart
from rmqctl.store.store import Store
from tests.support import golden as golden_sets
from tests.support import replay

SETS = [golden_set for golden_set in golden_sets.all_sets() if not golden_set.is_damaged]
IDS = [golden_set.id for golden_set in SETS]
DERIVED = ("consumequeue", "batchconsumequeue", "index")


def parts_of(store: Path, kind: str = "") -> list[LogPart]:
    """The log of a store as it is."""
    dirs = golden_sets.MULTI_PATH if kind == "multipath" else ()
    with Store.open(store, dirs) as opened:
        return [LogPart(file.base, file.size, file.path) for file in opened.log.files]


def settings_of(folder: Path, version: str, **changes: Any) -> Settings:
    return replay.settings_of(folder, version, **changes)


def run(store: Path, settings: Settings, scratch: Scratch, kind: str = "",
        parts: Sequence[LogPart] | None = None, **more: Any) -> Rebuilt:
    """A rebuild with the settings' own batch topics."""
    return rebuild(parts if parts is not None else parts_of(store, kind), str(store), settings,
                   scratch, batch_topics=settings.batch_topics, **more)


def mend(store: Path, settings: Settings, work: Path, kind: str = "", **more: Any) -> list[str]:
    """Rebuilds and carries it out; what was done, as text."""
    with Scratch(str(work)) as scratch:
        steps, actions = planned(store, settings, scratch, kind, **more)
        carry_out(steps, store)
    return [f"{action.action} {action.target}: {action.before} -> {action.after}; {action.reason}"
            for action in actions]


def planned(store: Path, settings: Settings, scratch: Scratch, kind: str = "",
            **more: Any) -> Planned:
    """What has to change; the same where queues that the open store has just so are not made."""
    steps, actions = derived_steps(run(store, settings, scratch, kind, **more))
    dirs = golden_sets.MULTI_PATH if kind == "multipath" else ()
    with Store.open(store, dirs) as opened, Scratch() as other:
        rebuilt = run(store, settings, other, kind, opened=opened, **more)
        there = derived_steps(rebuilt)
        assert there[1] == actions
        assert _facts(there[0]) == _facts(steps)
        changed = {step.target for step in steps}
        for topic, queue in opened.queues.plain:
            folder = os.path.join(CONSUMEQUEUE, topic, str(queue))
            # Nor is it written where nothing of it changes.
            if (topic, queue) in rebuilt.next_offsets and not settings.consumequeue_ext:
                assert ((topic, queue) in rebuilt.same) != any(
                    target.startswith(folder) for target in changed), folder
                assert os.path.exists(other.path(folder)) != ((topic, queue) in rebuilt.same)
    return steps, actions


def _facts(steps: Sequence[Step]) -> list[object]:
    """The steps with the bytes that they bring."""
    return [(type(step), step.target, Path(step.content.path).read_bytes())
            if isinstance(step, Create | Replace) and isinstance(step.content, FileContent)
            else step             for step in steps]


def carry_out(steps: Sequence[Step], root: Path) -> None:
    """Each step, with no care for crashes; what goes away goes to ``ROOT/aside``."""
    for step in steps:
        path = root / step.target
        match step:
            case MakeFolder():
                path.mkdir(parents=True, exist_ok=True)
            case Create() | Replace():
                assert path.exists() == isinstance(step, Replace), step
                path.parent.mkdir(parents=True, exist_ok=True)
                assert isinstance(step.content, FileContent)
                shutil.copyfile(step.content.path, path)
            case Patch():
                data = bytearray(path.read_bytes())
                for piece in step.pieces:
                    view = bytearray(piece.size)
                    piece.read_into(memoryview(view), 0)
                    data[piece.at:piece.end] = view
                path.write_bytes(data)
            case MoveAside():
                target = root / "aside" / step.target
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)


def derived(store: Path) -> dict[str, bytes]:
    """Queue and index files with their names and bytes."""
    return {os.path.relpath(path, store): path.read_bytes()
            for folder in (*DERIVED, "consumequeue_ext")
            for path in sorted((store / folder).rglob("*")) if path.is_file()}


def unnamed(value: dict[str, bytes]) -> dict[str, bytes]:
    """The same with index files named by their order."""
    index = sorted(name for name in value if name.startswith("index/"))
    return {f"index/{index.index(name)}" if name in index else name: data
            for name, data in value.items()}
