"""A tail that may be as long as a log file is kept and cleared in little memory."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path

import pytest

from rmqctl.engine import opening
from rmqctl.files.aside import AsideFolder
from rmqctl.store.store import Store
from tests.conftest import Runner

MIB = 1 << 20
TORN = 40 * MIB + 12345


@pytest.fixture
def torn(rmqctl: Runner, tmp_path: Path) -> tuple[Path, int]:
    """A store whose log ends at the offset, with a long torn tail behind it."""
    root = tmp_path / "store"
    rmqctl("init", root, "--commitlog-file-size", "64MiB").expect(0)
    done = rmqctl("write", root, "--topic", "T", "--body", "x", "--auto-create-topic", "-o",
                  "json").expect(0).json()
    end = done["physical_offset"] + done["wrote_bytes"]
    with log_of(root).open("r+b") as file:
        file.seek(end)
        for number in range(TORN // MIB + 1):
            block = bytes([1 + number % 200]) * MIB
            file.write(block[:max(0, TORN - number * MIB)])
    return root, end


def log_of(root: Path) -> Path:
    return next((root / "commitlog").iterdir())


def digest(path: Path, start: int, length: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(length)).hexdigest()


def test_a_tail_is_cleared_in_bounded_memory(torn: tuple[Path, int]) -> None:
    root, end = torn
    before = digest(log_of(root), end, TORN)
    with Store.open(root) as store:
        tracemalloc.start()
        try:
            opening.clear_torn_tail(store, end, AsideFolder(str(root)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 16 * MIB
    kept, = root.glob(f".rmqctl/aside/*/commitlog/*.at-{end}")
    assert kept.stat().st_size == TORN
    assert digest(kept, 0, TORN) == before
    with log_of(root).open("rb") as file:
        file.seek(end)
        assert not file.read().strip(b"\0")
    assert log_of(root).stat().st_size == 64 * MIB


def test_killed_halfway_the_head_of_the_tail_is_still_there(
        torn: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says to what the rest belongs. The next opening goes on with it."""
    root, end = torn
    written: list[int] = []

    def write_all(fd: int, data: bytes, position: int, path: str) -> None:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(position)
        os.pwrite(fd, data, position)

    with Store.open(root) as store:
        monkeypatch.setattr(opening, "write_all", write_all)
        with pytest.raises(KeyboardInterrupt):
            opening.clear_torn_tail(store, end, AsideFolder(str(root)))
        monkeypatch.undo()
        assert written == sorted(written, reverse=True)
        with log_of(root).open("rb") as file:
            file.seek(end)
            assert file.read(8) == b"\1" * 8
        opening.clear_torn_tail(store, end, AsideFolder(str(root)))
    with log_of(root).open("rb") as file:
        file.seek(end)
        assert not file.read().strip(b"\0")
