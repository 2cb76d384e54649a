"""How many bytes each read of a file takes."""

from __future__ import annotations

import pytest

from rmqctl.scan.source import FileSource


def count_reads(monkeypatch: pytest.MonkeyPatch, part: str = "") -> list[int]:
    """The length of each read from now on; 0 for files without ``part`` in their path."""
    lengths: list[int] = []
    read_now, read_into = FileSource.read_now, FileSource.read_into

    def counting(source: FileSource, position: int, length: int) -> bytes:
        data = read_now(source, position, length)
        lengths.append(len(data) if part in source.name else 0)
        return data

    def counting_into(source: FileSource, buffer: memoryview, position: int) -> int:
        got = read_into(source, buffer, position)
        lengths.append(got if part in source.name else 0)
        return got

    monkeypatch.setattr(FileSource, "read_now", counting)
    monkeypatch.setattr(FileSource, "read_into", counting_into)
    return lengths
