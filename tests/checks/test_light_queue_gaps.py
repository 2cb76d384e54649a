"""verify on light queues: offsets that a broker gave away and never used are no damage (#8693),
rows that are missing are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import damage
from tests.track_record import anatomy, build, stores


@pytest.fixture
def gap(golden, tmp_path) -> Path:
    case = stores.find("8693")
    return build.build(case, golden(case.base), tmp_path / "gap")


def light_file(root: Path) -> str:
    """The first file of the light queue with the most rows."""
    queues = [queue for folder, queue in anatomy.queues(root).items() if "%LMQ%" in folder]
    return max(queues, key=lambda queue: len(anatomy.rows(root, *queue)))[0]


@pytest.mark.parametrize("options", [
    (), ("--jobs", "2"), ("--sample", "50%", "--seed", "1"), ("--sample", "30%", "--seed", "5")])
def test_rows_behind_the_gap_stand_too_early_and_are_right(gap: Path, rmqctl, options):
    result = rmqctl("verify", gap, *options, "-o", "json")
    assert result.expect(0).json()["findings"] == []


def test_a_row_missing_besides_is_found(gap: Path, rmqctl):
    """All rows of the queue move up by one place more than offsets were given away."""
    file = light_file(gap)
    damage.cq_missing(gap, file, 1)
    findings = rmqctl("verify", gap, "-o", "json").expect(1).json()["findings"]
    queue = Path(file).parts[1]
    assert {finding["topic"] for finding in findings} == {queue}
    assert any(finding["severity"] == "error" for finding in findings)


@pytest.mark.parametrize("kind", ["cq_missing", "cq_wrong_offset", "cq_wrong_size",
                                  "cq_wrong_tag", "cq_duplicate"])
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_harm_to_a_light_queue_without_a_gap_is_found(golden_copy, rmqctl, version, kind):
    root = golden_copy(f"{version}/lmq/store")
    assert rmqctl("verify", root, "-o", "json").expect(0).json()["findings"] == []
    getattr(damage, kind)(root, light_file(root), 4)
    findings = rmqctl("verify", root, "-o", "json").expect(1).json()["findings"]
    assert any(finding["severity"] == "error" for finding in findings)


def test_a_wrong_tag_behind_the_gap_is_found(gap: Path, rmqctl):
    file = light_file(gap)
    rows = len(anatomy.rows(gap, file))
    damage.cq_wrong_tag(gap, file, rows - 1)
    findings = rmqctl("verify", gap, "-o", "json").expect(1).json()["findings"]
    assert [finding["category"] for finding in findings] == ["cq-wrong-tag"]
    assert findings[0]["queue_offset"] == rows - 1
