"""Plans over a log of many gigabytes that is mostly holes read what lies there, not the holes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Runner

SIZE, STEP = 1 << 30, 100 << 20
READ = 256 << 20
"""The most bytes a command may read; the log has 8 GiB, and there is less than 1 MiB of data."""


@pytest.fixture
def root(rmqctl: Runner, tmp_path: Path) -> Path:
    """Eight commitlog files of 1 GiB: a message, and behind it scraps with holes between them."""
    root = tmp_path / "store"
    rmqctl("init", root, "--index-slots", "100", "--index-max", "200").expect(0)
    rmqctl("write", root, "--topic", "T", "--body", "x").expect(0)
    used = 0
    for base in range(0, 8 * SIZE, SIZE):
        with (root / "commitlog" / f"{base:020d}").open("r+b" if not base else "w+b") as file:
            os.truncate(file.fileno(), SIZE)
            for at in range(STEP, SIZE, STEP):
                file.seek(at)
                file.write(b"scraps of other files")
            file.flush()
            used += os.fstat(file.fileno()).st_blocks * 512
    if used > READ // 16:
        pytest.skip("a file system without holes")
    return root


@pytest.mark.parametrize("command", [
    ("preflight",), ("verify",), ("recover",), ("recover", "--strategy", "broker")], ids=" ".join)
def test_holes_are_passed_over(rmqctl: Runner, root: Path, monkeypatch: pytest.MonkeyPatch,
                               command: tuple[str, ...]) -> None:
    read = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal read
            got = real(*args)
            read += got if isinstance(got, int) else len(got)
            return got
        return call

    for name in ("pread", "preadv"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    rmqctl(command[0], root, *command[1:]).expect(0, 1)
    assert read < READ
