"""Copies with O_DIRECT: every byte arrives, with few buffers, whatever the system refuses."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from rmqctl.backup import growing
from rmqctl.backup.growing import Copies
from rmqctl.errors import StoreIOError
from rmqctl.files import odirect
from rmqctl.scan.source import FileSource

SIZE = (1 << 20) + 1234


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "_LARGE", 8192)
    monkeypatch.setattr(growing, "BLOCK", 65536)
    monkeypatch.setattr(odirect, "FROM", 4096)
    monkeypatch.setattr(odirect, "_PIECE", 65536)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a hole of 256 KiB."""
    path, data = tmp_path / "file", random.Random(1).randbytes(SIZE)
    with path.open("wb") as out:
        out.write(data[:1 << 19])
        out.seek(3 << 18)
        out.write(data[3 << 18:])
    return path


def copied(file: Path, folder: Path, *ranges: tuple[int, int]) -> tuple[bytes, Copies]:
    copies = Copies(str(folder))
    with FileSource(str(file)) as source:
        for start, end in ranges or ((0, SIZE),):
            copies.grow(source, "copy", start, end)
    copies.sync()
    return (folder / "copy").read_bytes(), copies


@pytest.mark.parametrize("ranges", [[(0, SIZE)], [(0, 100_001), (100_001, SIZE)],
                                    [(0, 77_777), (77_777, 80_000), (80_000, SIZE)]])
def test_the_copy_is_equal(ranges: list[tuple[int, int]], file: Path, tmp_path: Path) -> None:
    data, copies = copied(file, tmp_path, *ranges)
    assert data == file.read_bytes()
    assert len(copies._rooms) <= odirect._WRITERS + 1, "the number of buffers is not bounded"
    used = os.stat(tmp_path / "copy").st_blocks
    assert used <= os.stat(file).st_blocks + 64, "the hole was filled"


@pytest.mark.parametrize("way", ["open", "first write", "later write", "part", "read"])
def test_what_the_system_refuses_is_copied_otherwise(
        way: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open, real_write, real_read, writes = os.open, os.pwrite, FileSource.read_into, [0]

    def open_one(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & odirect._FLAG:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real_open(path, flags, *rest, **more)

    def write(fd: int, data: Any, position: int) -> int:
        writes[0] += 1
        if way != "part" and writes[0] == {"first write": 1, "later write": 5}[way]:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real_write(fd, data[:4096 if way == "part" else None], position)

    def read(source: FileSource, buffer: memoryview, position: int) -> int:
        if position <= 200_000 < position + len(buffer):
            raise StoreIOError("unreadable")
        return real_read(source, buffer, position)

    with monkeypatch.context() as patched:
        if way == "open":
            patched.setattr(os, "open", open_one)
        elif way == "read":
            patched.setattr(FileSource, "read_into", read)
        else:
            patched.setattr(os, "pwrite", write)
        data, _copies = copied(file, tmp_path)
    assert data == file.read_bytes()


def test_a_failed_write_is_an_error(file: Path, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreIOError, match=r"copy: .*[Nn]o space left"):
            copied(file, tmp_path)
    assert copied(file, tmp_path)[0] == file.read_bytes(), "a later run goes on"


def test_blocks_are_shared_where_the_file_system_can(file: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    cloned: list[tuple[int, int]] = []

    def clone(_source: FileSource, _fd: int, position: int, length: int) -> bool:
        cloned.append((position, length))
        return True

    monkeypatch.setattr(FileSource, "clone_to", clone)
    monkeypatch.setattr(growing, "DirectCopy", None)
    assert copied(file, tmp_path, (0, 100_001), (100_001, SIZE))[0] == file.read_bytes()
    assert cloned == [(0, 4096), (102_400, 4096)]
