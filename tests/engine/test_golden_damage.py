"""The damaged golden stores: the damage that was made is named, at its offset, and nothing else.

What was done is said in each set's description and recounted here from the raw bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import engine, subject
from tests.support import golden as golden_sets
from tests.support.model import UNIT, Model

VERSIONS = ("4.9.3", "5.3.3")
AT_MESSAGE = ("crash-trunc-zero", "crash-trunc-garbage", "crash-trunc-header", "crash-crc",
              "crash-crc-prev", "clean-crc", "clean-trunc-zero")
HARMLESS = ("crash-live", "crash-noprealloc")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


def damaged_store(kind: str, version: str, golden: GoldenFolder) -> tuple[Path, engine.Expect, int]:
    """(the damaged root, the engine's answers, the first number in the description)."""
    folder = golden(f"{version}/{kind}")
    expect = engine.load(folder / "expect.json")
    number = re.search(r"\b(?:at|boundary|file|to) (\d+)", expect.description)
    return folder / "before", expect, int(number[1]) if number else -1


def entries(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """Every written consumequeue entry: (file, position, physical offset, size)."""
    for path in sorted((root / "consumequeue").rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            for at in range(0, len(data) - UNIT.size + 1, UNIT.size):
                physical, size, _ = UNIT.unpack_from(data, at)
                if size > 0:
                    yield str(path.relative_to(root)), at, physical, size


def log_places(report: subject.Report) -> list[int | None]:
    return [finding.physical_offset for finding in report.of("commitlog")
            if finding.severity != "info"]


@pytest.mark.parametrize("kind", AT_MESSAGE)
def test_the_damaged_message_is_named(kind: str, version: str, golden: GoldenFolder) -> None:
    root, expect, place = damaged_store(kind, version, golden)
    report = subject.verify(root)
    assert not report.ok
    assert log_places(report) == [place], report.text()
    assert subject.every_byte_is_accounted_for(report)
    assert report.coverage["bytes_damaged"] > 0
    if "crc" in kind:  # one flipped byte costs one record, never the rest
        puts = [record for put in engine.puts(golden(f"{version}/crash-base") / "input.jsonl")
                for record in put.stored]
        assert report.coverage["messages"] == len(puts) - 1
    else:
        assert expect.max_after_load == place


@pytest.mark.parametrize("kind", ["crash-cqahead", "crash-cqahead-file"])
def test_entries_ahead_of_the_log(kind: str, version: str, golden: GoldenFolder) -> None:
    root, expect, place = damaged_store(kind, version, golden)
    report = subject.verify(root)
    assert place >= expect.max_after_load
    ahead = [(file, at) for file, at, physical, _ in entries(root) if physical >= place]
    assert ahead
    findings = report.of("consumequeue")
    for file, at in ahead:
        assert any(finding.touches(file, (at, at + UNIT.size)) for finding in findings), (file, at)
    for finding in findings:  # and no entry that is right
        assert any(finding.touches(file, (at, at + UNIT.size)) for file, at in ahead), str(finding)
    # The log itself walks clean: all it can say is where it was cut.
    assert [(finding.category, finding.physical_offset) for finding in report.of("commitlog")] == [
        ("log-cut", expect.max_after_load)], report.text()


def test_a_consumequeue_that_lags(version: str, golden: GoldenFolder) -> None:
    root, _, _ = damaged_store("crash-cqlag", version, golden)
    _lacking(root, subject.verify(root))


def test_entries_zeroed_in_one_queue(version: str, golden: GoldenFolder) -> None:
    root, expect, _ = damaged_store("crash-cqshort", version, golden)
    queue = re.search(r"of (\S+)/(\d+) zeroed", expect.description)
    assert queue
    report = subject.verify(root)
    if not _behind(root):  # the half that was zeroed held no entries in this instance
        assert report.problems == (), report.text()
        return
    _lacking(root, report)
    assert {(finding.topic, finding.queue_id) for finding in report.of("consumequeue")} == {
        (queue[1], int(queue[2]))}


def _behind(root: Path) -> dict[tuple[str, int], int]:
    """The queues that have fewer entries than messages, and how many they have."""
    records = Model(root, "5.3.3").records
    have: dict[tuple[str, int], int] = {}
    for file, _, _, _ in entries(root):
        _, topic, queue_id, _ = file.split("/")
        have[topic, int(queue_id)] = have.get((topic, int(queue_id)), 0) + 1
    want: dict[tuple[str, int], int] = {}
    for record in records.values():
        want[record.topic, record.queue_id] = max(want.get((record.topic, record.queue_id), 0),
                                                  record.queue_offset + 1)
    return {queue: have.get(queue, 0) for queue in want if have.get(queue, 0) < want[queue]}


def _lacking(root: Path, report: subject.Report) -> None:
    """Exactly the queues that lack entries are named, at the first one lacking."""
    behind = _behind(root)
    assert behind
    first: dict[tuple[str | None, int | None], int] = {}
    for finding in report.of("consumequeue"):
        where = finding.topic, finding.queue_id
        lacking = finding.queue_offset or 0
        first[where] = min(first.get(where, lacking), lacking)
    assert first == behind, report.text()


@pytest.mark.parametrize("kind", ["crash-nocq", "clean-nocq", "crash-noindex", "clean-noindex"])
def test_a_structure_is_missing(kind: str, version: str, golden: GoldenFolder) -> None:
    root, _, _ = damaged_store(kind, version, golden)
    structure = "consumequeue" if kind.endswith("nocq") else "index"
    report = subject.verify(root)
    assert {problem.structure for problem in report.problems} <= {structure}, report.text()
    if structure == "consumequeue":
        assert report.problems, "messages without a queue entry"
    assert report.coverage["messages"] == len(Model(root, "5.3.3").records)


def test_a_file_of_the_wrong_length(version: str, golden: GoldenFolder) -> None:
    root, _, length = damaged_store("crash-shortfile", version, golden)
    short = [path for path in (root / "commitlog").iterdir() if path.stat().st_size == length]
    assert len(short) == 1
    report = subject.verify(root)
    name = f"commitlog/{short[0].name}"
    assert any(finding.file == name for finding in report.of("commitlog")), report.text()
    assert subject.every_byte_is_accounted_for(report)


@pytest.mark.parametrize("kind", HARMLESS)
def test_nothing_was_damaged(kind: str, version: str, golden: GoldenFolder) -> None:
    root, _, _ = damaged_store(kind, version, golden)
    report = subject.verify(root)
    assert report.problems == (), report.text()


@pytest.mark.parametrize("kind", ["crash-nocheckpoint", "clean-nocheckpoint",
                                  "crash-zerocheckpoint"])
def test_the_checkpoint_is_all_there_is(kind: str, version: str,
                                              golden: GoldenFolder) -> None:
    root, _, _ = damaged_store(kind, version, golden)
    report = subject.verify(root)
    assert {problem.structure for problem in report.problems} <= {"checkpoint"}, report.text()


@pytest.mark.parametrize("store", [pytest.param(golden_store, id=golden_store.id)
                                   for golden_store in golden_sets.golden_stores()
                                   if golden_store.set.is_damaged])
def test_every_byte_is_accounted_for(store: golden_sets.GoldenStore,
                                     golden: GoldenFolder) -> None:
    """Whatever was done, the sums are right and every intact record is counted."""
    root = golden(store.id)
    report = subject.verify(root)
    assert subject.every_byte_is_accounted_for(report)
    assert report.coverage["bytes_total"] == sum(
        path.stat().st_size for path in (root / "commitlog").iterdir())
    assert report.coverage["messages"] >= len(Model(root, store.version).records)


def test_dangling_index_entries_are_named(version: str, golden: GoldenFolder) -> None:
    """`clean-crc/after`: the log was cut, the index never is."""
    folder = golden(f"{version}/clean-crc")
    expect = engine.load(folder / "expect.json")
    dangling = 0
    for path in (folder / "after" / "index").iterdir():
        data = path.read_bytes()
        count = struct.unpack_from(">i", data, 36)[0]
        for number in range(1, count):
            at = 40 + 4 * expect.index_slots + 20 * number + 4
            dangling += struct.unpack_from(">q", data, at)[0] >= expect.max_physical_offset
    assert dangling == 42


@pytest.mark.parametrize("kind", ["crash-crc", "crash-cqahead", "clean-nocheckpoint"])
def test_the_command_says_what_the_library_says(kind: str, version: str,
                                                golden: GoldenFolder) -> None:
    root, _, _ = damaged_store(kind, version, golden)
    assert subject.verify_by_command(root) == subject.verify(root)
