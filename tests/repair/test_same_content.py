"""Files are compared by what is in them: holes are not read, wherever they begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.files.sparse import same_content
from tests.support.reads import count_reads

SIZE, PAGE = 6 << 20, 4096


def sparse(path: Path, parts: dict[int, bytes], size: int = SIZE) -> str:
    with path.open("wb") as file:
        file.truncate(size)
        for position, data in parts.items():
            file.seek(position)
            file.write(data)
    return str(path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read gives."""
    return count_reads(monkeypatch)


def test_no_hole_is_read(tmp_path: Path, read: list[int]) -> None:
    parts = {0: b"a" * 100, 3 << 20: b"b" * 5000}
    assert same_content(sparse(tmp_path / "a", parts), sparse(tmp_path / "b", parts))
    assert sum(read) <= 2 * 4 * PAGE


@pytest.mark.parametrize(("other", "same"), [
    ({0: b"a" * 100, 3 << 20: b"b" * 4999 + b"c"}, False),
    ({0: b"a" * 100}, False),
    ({0: b"a" * 100, 3 << 20: b"b" * 5000, 5 << 20: b"\1"}, False),
    ({0: b"a" * 100, PAGE: bytes(2 << 20), 3 << 20: b"b" * 5000}, True),
    ({0: b"a" * 100 + bytes((3 << 20) - 100) + b"b" * 5000}, True),
])
def test_holes_are_zeros(tmp_path: Path, other: dict[int, bytes], *, same: bool) -> None:
    text = sparse(tmp_path / "a", {0: b"a" * 100, 3 << 20: b"b" * 5000})
    assert same_content(text, sparse(tmp_path / "b", other)) == same
    assert same_content(str(tmp_path / "b"), text) == same


def test_another_size_is_another_file(tmp_path: Path) -> None:
    assert not same_content(sparse(tmp_path / "a", {}), sparse(tmp_path / "b", {}, SIZE + 1))
