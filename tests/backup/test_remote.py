"""Backups at a URL: what is restored from them is what a backup in a folder gives."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from rmqctl import api
from rmqctl.backup.backup import Source
from rmqctl.backup.objects import Objects, check, read_points
from rmqctl.backup.remote import back_up, restore
from rmqctl.errors import NotAStoreError, RefusedError, StoreHeldError, StoreIOError
from rmqctl.files.remote.files import RemoteFiles
from tests.backup import test_backup as local
from tests.backup.test_backup import (
    LAYOUTS,
    SOUND,
    findings,
    folders_of,
    growing,
    messages,
)
from tests.conftest import GoldenFolder, Runner
from tests.support import damage, golden, snapshot
from tests.support.layouts import layout_set
from tests.support.share import sample

_NOW = 1_750_000_000_000
_numbers = itertools.count()
Growing = Callable[[int, int], Path]
__all__ = ["growing"]


@pytest.fixture
def url() -> str:
    return f"memory://backup-{os.getpid()}-{next(_numbers)}/a"


def run(store: Path, url: str, now: int = _NOW, keep: int | None = None, dirs: Any = ()) -> Any:
    return back_up(Source(str(store), dirs), url, lambda: now, "1.0.0", keep=keep)[0]


def names(url: str, folder: str = "log") -> set[str]:
    with Objects(url) as objects:
        return set(objects.find(folder))


def alike(store: Path, other: Path, config: bool = True) -> None:
    """Both have the same messages, files, offsets, and a broker starts on them alike."""
    assert messages(store) == messages(other)
    assert findings(store) == findings(other)
    with api.open(store) as one, api.open(other) as two:
        assert one.preflight().messages_lost == two.preflight().messages_lost == 0
        assert [row.as_dict() for row in one.offsets()] == [row.as_dict() for row in two.offsets()]
        queues = [{key: (queue.first_index, queue.disk_end) for key, queue in
                   opened._store.queues.items()} for opened in (one, two)]
        assert queues[0] == queues[1]
    files = [{path.relative_to(root): path.read_bytes() for path in root.rglob("*")
              if path.is_file() and (config or "config" not in path.parts)
              and path.name not in ("checkpoint", "lock", "LOCK")
              and path.parent.name not in ("index", "consumequeue")}
             for root in (store, other)]
    assert files[0].keys() == files[1].keys()
    assert [path for path in files[0] if files[0][path] != files[1][path]] == []


@pytest.mark.parametrize("one", sample(SOUND, 2, "remote backups", always=lambda one: one.id in (
    "5.3.3/batchcq/store", "5.3.3/lmq/store")), ids=lambda one: one.id)
def test_a_golden_store(one: golden.GoldenStore, golden: GoldenFolder, tmp_path: Path,
                        url: str) -> None:
    root = golden(one.id)
    dirs = folders_of(one, root)
    with snapshot.assert_unchanged(root):
        run(root, url, dirs=dirs)
    local.run(root, tmp_path / "backup", dirs=dirs)
    restore(url, str(tmp_path / "new"))
    local.restore(str(tmp_path / "backup"), str(tmp_path / "like"))
    alike(tmp_path / "new", tmp_path / "like")
    if rows := messages(root, dirs):
        at = rows[len(rows) // 2]["physical_offset"]
        restore(url, str(tmp_path / "half"), offset=at)
        local.restore(str(tmp_path / "backup"), str(tmp_path / "like half"), offset=at)
        alike(tmp_path / "half", tmp_path / "like half")
    assert list(check(url, read_points(url))) == []


@pytest.mark.parametrize("name", sample(LAYOUTS, 2, "layouts of remote backups", always=lambda n: (
    n == "5.3.3/rocksdb")))
def test_other_layouts(name: str, tmp_path: Path, url: str) -> None:
    root = layout_set(name) / "store"
    run(root, url)
    restore(url, str(tmp_path / "new"))
    assert messages(tmp_path / "new") == messages(root)
    assert findings(tmp_path / "new") <= findings(root)
    with api.open(tmp_path / "new") as new, api.open(root) as old:
        assert new.preflight().messages_lost == 0
        assert new._store.layout.consumequeue == (
            "file" if "double" in name else old._store.layout.consumequeue)
