"""Where consume queues cannot be read, the number of lost messages is unknown, and no 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import run
from tests.support.layouts import layout_copy

JSON = ("-o", "json")


def without_current(root: Path) -> None:
    (root / "consumequeue/CURRENT").unlink()


def zeroed_manifest(root: Path) -> None:
    next((root / "consumequeue").glob("MANIFEST-*")).write_bytes(bytes(50))


def in_both_forms(root: Path) -> None:
    folder = root / "consumequeue/TopicA/0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").write_bytes(bytes(440))


@pytest.mark.parametrize("hurt", [without_current, zeroed_manifest, in_both_forms])
def test_no_command_says_that_nothing_is_lost(tmp_path: Path,
                                              hurt: Callable[[Path], None]) -> None:
    root = layout_copy("5.3.3/rocksdb", tmp_path)
    hurt(root)
    answer = run("doctor", root, *JSON).expect(1, 3).json()
    assert answer["already_lost"] is answer["messages_already_lost"] is None
    assert "consumequeue" in [structure["structure"] for structure in answer["not_judged"]]
    assert "nothing is lost" not in answer["verdict"]
    assert "lost messages not counted: consumequeue cannot be read" in answer["verdict"]
    assert run("preflight", root, *JSON).expect(1, 3).json()["messages_already_lost"] is None
    verified = run("verify", root, *JSON).expect(1, 3).json()
    assert verified["coverage"]["messages_already_lost"] is None
    for command in ("doctor", "preflight"):
        page = run(command, root).expect(1, 3).out
        assert "not checked: consumequeue" in " ".join(page.split())
