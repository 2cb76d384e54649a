"""What two stores have beside the log: queue bounds, configuration files, checkpoints."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from rmqctl.checks.diff.differences import Difference
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import BACKUP, FOLDER
from rmqctl.store.log.bounds import Bounds, View
from rmqctl.store.store import Store

Key = tuple[str, int]
_PAGE = 1 << 20


# -- queues ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueueCount:
    """Queues that were looked at, those that differ, and those that only begin elsewhere."""

    compared: int = 0
    different: int = 0
    begin_differs: int = 0


def queue_differences(a: View, b: View, count: QueueCount, *, whole: bool = False) -> Iterator[
        Difference]:
    """Queues whose consumequeues do not have the same bounds, each in its view.

    Rows expire with the log, so another beginning is only a difference when both logs begin at
    the same offset, or with ``whole``.
    """
    left, right = _bounds(a), _bounds(b)
    strict = whole or a.store.log.min_offset == b.store.log.min_offset
    for topic, queue_id in sorted({*left, *right}):
        key = topic, queue_id
        ours, theirs = left.get(key), right.get(key)
        if _is_empty(ours) and _is_empty(theirs):
            continue
        count.compared += 1
        if ours == theirs:
            continue
        fields = _fields(ours, theirs)
        if fields == ("min_offset",) and not strict:
            count.begin_differs += 1
            continue
        count.different += 1
        yield Difference("queue", "consumequeue", topic=topic, queue_id=queue_id, fields=fields,
                         detail=f"a: {_said(ours)}; b: {_said(theirs)}")


def _bounds(view: View) -> dict[Key, Bounds | str]:
    """The bounds of every queue with a folder; in words why not, where it cannot be read."""
    store = view.store
    found: dict[Key, Bounds | str] = {}
    for key, queue in store.queues.items():
        with closing(queue):  # a broker has more queues than a process may have files
            try:
                found[key] = view.bounds(queue)
            except (StoreIOError, FormatError) as error:
                found[key] = str(error)
    for key, batches in store.batch_queues.items():
        try:
            found[key] = Bounds(*batches.bounds(store.log.min_offset, view.log_end))
        except (StoreIOError, FormatError) as error:
            found[key] = str(error)
    return found


def _is_empty(bounds: Bounds | str | None) -> bool:
    return bounds is None or (isinstance(bounds, Bounds) and bounds.end == 0)


def _fields(a: Bounds | str | None, b: Bounds | str | None) -> tuple[str, ...]:
    if not isinstance(a, Bounds) or not isinstance(b, Bounds):
        return ("max_offset",)
    return ("min_offset",) * (a.first != b.first) + ("max_offset",) * (a.end != b.end)


def _said(bounds: Bounds | str | None) -> str:
    if bounds is None:
        return "no such queue"
    return bounds if isinstance(bounds, str) else f"min {bounds.first}, max {bounds.end}"


# -- configuration --------------------------------------------------------------------------------


@dataclass(slots=True)
class ConfigCount:
    """Names of configuration files by how they compare; backups are left out."""

    same: int = 0
    different: list[str] = field(default_factory=list)
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)


def compare_config(a: Store, b: Store) -> ConfigCount:
    """The files of ``config/``, by content. One that cannot be read differs."""
    ours, theirs = _config_files(a), _config_files(b)
    found = ConfigCount(only_in_a=sorted(ours - theirs), only_in_b=sorted(theirs - ours))
    for name in sorted(ours & theirs):
        if _same_content(a.path(FOLDER, name), b.path(FOLDER, name)):
            found.same += 1
        else:
            found.different.append(name)
    return found


def config_differences(found: ConfigCount) -> Iterator[Difference]:
    """One difference for each file that is not the same, or not there, on both sides."""
    for names, said in ((found.different, "not the same in a and b"),
                        (found.only_in_a, "only in a"), (found.only_in_b, "only in b")):
        for name in names:
            yield Difference("config", "config", file=f"{FOLDER}/{name}", detail=said)


def _config_files(store: Store) -> set[str]:
    try:
        with os.scandir(store.path(FOLDER)) as entries:
            return {entry.name for entry in entries if not entry.name.endswith(BACKUP)
                    and stat.S_ISREG(entry.stat().st_mode)}
    except OSError:
        return set()


def _same_content(a: str, b: str) -> bool:
    try:
        with FileSource(a) as left, FileSource(b) as right:
            if left.size != right.size:
                return False
            return all(left.read(at, _PAGE) == right.read(at, _PAGE)
                       for at in range(0, left.size, _PAGE))
    except StoreIOError:
        return False


# -- checkpoint -----------------------------------------------------------------------------------


def checkpoints(a: Store, b: Store) -> dict[str, Any]:
    """Both checkpoints (epoch ms and offsets; null where there is none), and what differs."""
    left, right = (None if one.checkpoint is None else one.checkpoint._asdict() for one in (a, b))
    names = sorted({*(left or {}), *(right or {})})
    return {"a": left, "b": right,
            "different": [name for name in names if (left or {}).get(name) != (
                right or {}).get(name)]}
