"""What verify says does not depend on how many threads looked, nor where the log was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import grown
from rmqctl.checks.verify.log import log_pass, ranges
from rmqctl.checks.verify.log.sound import SoundPass
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.store.store import Store
from tests.support import damage
from tests.support import golden as golden_sets
from tests.support.reads import count_reads
from tests.support.share import sample

ROOTS = ("5.3.3/basic/store", "5.3.3/crash-crc/before", "4.9.3/crash-cqahead/before",
         "4.9.3/transaction/store")


GOLDEN = [f"{golden_set.id}/store" for golden_set in golden_sets.all_sets()
          if not golden_set.is_damaged
          and golden_set.kind not in ("multipath", "dledger")]


def judged(root, **options):
    with Store.open(root) as store:
        run = Verification(store, VerifyOptions(**options))
        return [finding.as_dict() for finding in run.findings()], run.coverage.as_dict(), run.ok


@pytest.mark.parametrize("size", [777, 5_003, 40_000])
@pytest.mark.parametrize("name", ROOTS)
def test_golden_stores(name, size, golden):
    assert judged(golden(name), jobs=2, minimum_range=size) == judged(golden(name))


@pytest.mark.parametrize("size", [777, 5_003, 40_000])
def test_a_damaged_store(size, golden_copy):
    root = golden_copy("5.3.3/basic/store")
    damage.flip_bit(root, "commitlog/00000000000000065536", 40301, 0)
    damage.zero_page(root, "commitlog/00000000000000131072", 5)
    damage.flip_bit(root, "commitlog/00000000000000000000", 48092, 0)
    whole = judged(root)
    assert not whole[2]
    assert judged(root, jobs=2, minimum_range=size) == whole


@pytest.mark.parametrize("held", [0, 100_000])
@pytest.mark.parametrize("name", sample(GOLDEN, 12, "small files together"))
def test_small_files_come_together(name: str, held: int, golden_copy,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    # Messages of several shapes, and damage in several files.
    root = golden_copy(name)
    for number, file in enumerate(sorted((root / "commitlog").iterdir())[:4]):
        if number % 2:
            damage.flip_bit(root, f"commitlog/{file.name}", 9_001 + number, 3)
        else:
            damage.zero_page(root, f"commitlog/{file.name}", 2)
    together = judged(root)
    monkeypatch.setattr(log_pass, "_SMALL", -1)
    assert judged(root) == together
    monkeypatch.setattr(log_pass, "_SMALL", 1 << 30)
    monkeypatch.setattr(log_pass, "_MAX_HELD", held)
    assert judged(root) == together


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_zeros_that_are_written_out_are_read_once(jobs: int, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    # A copy without holes, of which a small part is used.
    monkeypatch.setattr(grown, "INDEX_SLOTS", 1_000)
    monkeypatch.setattr(grown, "INDEX_MAX", 4_000)
    grown.make(grown.Shape(2_000, 3, 1, 1), tmp_path / "store")
    file, zeros = tmp_path / "store" / "commitlog" / f"{0:020}", 32 << 20
    used = file.stat().st_size
    with file.open("ab") as opened:
        opened.write(bytes(zeros))
    lengths = count_reads(monkeypatch, "/commitlog/")
    with Store.open(tmp_path / "store") as store:
        run = Verification(store, VerifyOptions(jobs=jobs, minimum_range=used // 4))
        assert not [finding for finding in run.findings() if finding.is_trouble]
        assert run.coverage.bytes_total == used + zeros
    # Each of four ranges reads ahead by up to a buffer of 2 MiB.
    assert sum(lengths) < zeros + 3 * used + (12 << 20)


def test_many_queues_are_not_looked_up_by_each_of_many_short_ranges(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grown, "INDEX_SLOTS", 1_000)
    monkeypatch.setattr(grown, "INDEX_MAX", 8_000)
    monkeypatch.setattr(ranges, "MIN_RANGE", 16 << 10)
    grown.make(grown.Shape(4_000, 100, 1, 1), tmp_path / "store")
    asked: list[int] = []
    read_units = SoundPass._read_units

    def counting(sound: SoundPass, number: int, offset: int) -> bool:
        asked.append(number)
        return read_units(sound, number, offset)

    monkeypatch.setattr(SoundPass, "_read_units", counting)
    for jobs in (1, 2):
        judged(tmp_path / "store", jobs=jobs)
    assert sorted(asked) == sorted(2 * list(range(100)))
