"""verify where the log lacks queue offsets: a broker appends later entries before their offsets."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local.consume_queue import UNIT_SIZE
from tests.adversary.writer import Header, Layout, Writer

COUNT = 30


def without(rmqctl: Any, root: Path, gone: Sequence[int]) -> Path:
    """Write a store whose queue never had the offsets ``gone``, with entries as a broker rebuilds
    them; the queue's only file.
    """
    writer = Writer(Layout(queue_file_units=40))
    for offset in range(COUNT):
        if offset not in gone:
            writer.put("orders", b"body", keys=f"k{offset}", header=Header(queue_offset=offset))
        writer.put("other", b"between")
    writer.write(root)
    shutil.rmtree(root / "consumequeue")
    rmqctl("recover", root, "--only", "consumequeue", "--consumequeue-file-size", "800", "--apply",
           "-o", "json")
    return root / "consumequeue/orders/0" / ("0" * 20)


@pytest.mark.parametrize("gone", [[5], [5, 6, 7], [3, 8, 9], [3, 4, 6, 12, 13, 14]])
def test_entries_after_gaps_are_one_warning_for_each_gap(rmqctl: Any, tmp_path: Path,
                                                         gone: list[int]) -> None:
    without(rmqctl, tmp_path / "store", gone)
    findings = rmqctl("verify", tmp_path / "store", "-o", "json").expect(0).json()["findings"]
    runs = [offset + 1 for offset in gone if offset + 1 not in gone]
    early = [sum(number < start for number in gone) for start in runs]
    assert [(finding["category"], finding["queue_offset"]) for finding in findings] == [
        ("cq-after-gap", start - by) for start, by in zip(runs, early, strict=True)]
    assert sum(finding["count"] for finding in findings) == COUNT - len(gone) - gone[0]
    answer = rmqctl("doctor", tmp_path / "store", "-o", "json").expect(0).json()
    assert (answer["sound"], answer["already_lost"], answer["would_lose"]) == (True, 0, 0)
    pytest.importorskip("rocksdict")
    plan = rmqctl("convert", tmp_path / "store", "--consumequeue", "rocksdb").expect(0)
    assert f"in orders/0 (by {len(gone)}), entries are before" in " ".join(plan.err.split())


def test_a_message_without_an_entry_is_no_gap(rmqctl: Any, tmp_path: Path) -> None:
    """The log has the queue offset: later entries are too early because an entry is missing."""
    file = without(rmqctl, tmp_path / "store", [])
    data = bytearray(file.read_bytes())
    data[5 * UNIT_SIZE:] = data[6 * UNIT_SIZE:] + bytes(UNIT_SIZE)
    file.write_bytes(data)
    findings = rmqctl("verify", tmp_path / "store", "-o", "json").expect(1).json()["findings"]
    assert "cq-after-gap" not in {finding["category"] for finding in findings}
    assert "cq-behind" in {finding["category"] for finding in findings}


@pytest.mark.parametrize("gone", [[], [5]])
def test_entries_that_change_places_are_errors(rmqctl: Any, tmp_path: Path,
                                               gone: list[int]) -> None:
    file = without(rmqctl, tmp_path / "store", gone)
    data = bytearray(file.read_bytes())
    first, second = (slice(row * UNIT_SIZE, (row + 1) * UNIT_SIZE) for row in (7, 8))
    data[first], data[second] = data[second], data[first]
    file.write_bytes(data)
    rmqctl("verify", tmp_path / "store", "-o", "json").expect(1)
