"""What a repair keeps and writes anew is not more open than what it replaces."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): stat.S_IMODE(path.lstat().st_mode)
            for path in (root, *root.rglob("*"))}


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    """A store whose log, queues, index and checkpoint all have something to be repaired."""
    root = golden_copy("5.3.3/basic/store")
    log = sorted((root / "commitlog").iterdir())[1]
    _poke(log, 200)
    queues = sorted((root / "consumequeue").glob("*/*/0*"))
    _poke(queues[0], 5)
    shutil.rmtree(queues[-1].parent)
    queues[-2].rename(queues[-2].with_name("stray"))
    _poke(next((root / "index").iterdir()), 60)
    _poke(root / "checkpoint", 3)
    return root


def _poke(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff\x13")


@pytest.mark.parametrize("undone", [False, True])
def test_a_private_store_stays_private(rmqctl: Runner, root: Path, undone: bool) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    was = modes(root)
    rmqctl("recover", root, "--apply", "--yes").expect(0, 1)
    if undone:
        rmqctl("undo", root, "--yes").expect(0)
        assert {name: mode for name, mode in modes(root).items() if ".rmqctl" not in name} == was
    assert {name: oct(mode) for name, mode in modes(root).items() if mode & 0o077} == {}


def test_private_files_in_open_folders(rmqctl: Runner, root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
    was = modes(root)
    rmqctl("recover", root, "--apply", "--yes").expect(0, 1)
    for name, mode in modes(root).items():
        if name in was or "/bytes/" in name or "/aside/" in name:
            assert mode & 0o077 == 0 or (root / name).is_dir(), name
    assert {name: mode for name, mode in modes(root).items() if name in was} == {
        name: mode for name, mode in was.items() if (root / name).exists()}


def test_writing_into_a_private_store(rmqctl: Runner, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    root = tmp_path / "private" / "store"
    rmqctl("init", root, "--index-slots", "100", "--index-max", "200").expect(0)
    rmqctl("write", root, "--topic", "T", "--body", "x").expect(0)
    assert {name: oct(mode) for name, mode in modes(root).items() if mode & 0o077} == {}
