"""The broker's own configuration file says to the jobs what it says to the other commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner

HERE = ("--engine", "local", "-o", "json")


@pytest.fixture
def split(golden_copy: GoldenFolder, tmp_path: Path) -> tuple[Path, Path]:
    """A store of which the log lies elsewhere, and the file that says so."""
    root = golden_copy("5.3.3/basic/store")
    shutil.move(root / "commitlog", tmp_path / "log")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={root}\nstorePathCommitLog={tmp_path / 'log'}\n")
    return root, conf


def test_verify(split: tuple[Path, Path], rmqctl: Runner) -> None:
    root, conf = split
    answer = rmqctl("pipeline", "verify", root, "--broker-conf", conf, *HERE).expect(0).json()
    assert answer["ok"]
    assert answer["coverage"]["messages"] > 0


def test_export(split: tuple[Path, Path], rmqctl: Runner, tmp_path: Path) -> None:
    root, conf = split
    done = rmqctl("pipeline", "export", root, "--broker-conf", conf, "--format", "json",
                  "--partition-by", "none", "--out", tmp_path / "out", *HERE).expect(0).json()
    assert sum(store["rows"] for store in done["stores"]) > 0
