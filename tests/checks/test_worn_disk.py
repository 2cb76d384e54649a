"""Places that the disk does not give: named where they are, and the rest is verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.scan.tolerant import STEP
from rmqctl.store import Store
from tests.conftest import GoldenFolder
from tests.support.worn import worn


def verified(root: Path, jobs: int = 1) -> tuple[Verification, list[tuple[str, str, int | None]]]:
    with Store.open(root) as store:
        run = Verification(store, VerifyOptions(jobs=jobs))
        return run, [(finding.category, finding.structure, finding.offset)
                     for finding in run.findings()]


SET = "5.3.3/basic/store"


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()),
               key=lambda path: path.stat().st_blocks)


@pytest.mark.parametrize(("folder", "place"), [
    ("index", lambda size: size - 2000), ("consumequeue", lambda size: size // 2),
    ("consumequeue", lambda _size: 0)], ids=["index", "queue", "start of a queue"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_worn_queue_or_index_says_nothing_of_the_log(
        folder: str, place: Callable[[int], int], jobs: int, golden_copy: GoldenFolder,
        monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy(SET)
    sound, findings = verified(root)
    assert findings == []
    path = largest(root / folder)
    start = place(path.stat().st_size)
    worn(monkeypatch, path, start, start + 512)
    run, findings = verified(root, jobs)
    assert findings == [("file-unreadable", folder, None)]
    assert run.coverage.messages == sound.coverage.messages


def test_a_worn_log_costs_what_is_near(golden_copy: GoldenFolder,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy(SET)
    sound, _ = verified(root)
    path = sorted((root / "commitlog").iterdir())[1]
    worn(monkeypatch, path, 40_000, 40_512)
    run, findings = verified(root)
    [place] = [offset for category, structure, offset in findings
               if (category, structure) == ("file-unreadable", "commitlog")]
    assert place is not None
    place -= int(path.name)
    assert 40_000 - 2 * STEP <= place <= 40_000
    assert run.coverage.bytes_total == sound.coverage.bytes_total
    assert run.coverage.bytes_damaged == path.stat().st_size - place
