"""What a broker's cleaner deletes after the start, against the limits of 4.9.3 and 5.3.3."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.preflight.around import StartEnvironment, around, around_in_use, parse_disk_used
from rmqctl.checks.preflight.disk import HOUR, Rules
from rmqctl.checks.preflight.effects import DiskUse
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import UsageError
from rmqctl.store import Sizes, Store
from rmqctl.store.broker_conf import BrokerConf
from tests.conftest import GoldenFolder, Runner
from tests.support import roomy

RELEASES = ("4.9.3", "5.3.3")
FILES = 5
"""Of the log of each basic set."""


def at(release: str) -> str:
    return f"{release}/basic/store"


def ask(root: Path, release: str, used: float, hours: float = 1, **conf: Any) -> Prediction:
    """A start ``hours`` after the log files were written last."""
    names = sorted((root / "commitlog").iterdir())
    now = max(file.stat().st_mtime_ns for file in names) // 1_000_000 + int(hours * HOUR)
    sizes = Sizes(conf=BrokerConf(runtime=conf))
    with Store.open(root, (), sizes) as store:
        return preflight(store, release, machine=StartEnvironment(now, used))


def disk(prediction: Prediction) -> DiskUse:
    assert prediction.broker.disk is not None
    return prediction.broker.disk


# -- how full the disk is ------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("used", "files", "refuses"), [
    (0.0, 0, False), (0.75, 0, False), (0.8, 0, False), (0.85, 0, False), (0.851, 4, False),
    (0.90, 4, False), (0.901, 4, True), (0.96, 4, True), (1.0, 4, True)])
def test_the_disk_is_full(golden: GoldenFolder, release: str, used: float, files: int,
                          refuses: bool) -> None:
    prediction = ask(golden(at(release)), release, used)
    assert (disk(prediction).deletes_files, prediction.broker.refuses_writes) == (files, refuses)
    assert prediction.harmless is (not files)
    assert prediction.log.cut.count == 0
    messages = [loss.count for loss in prediction.other_losses]
    assert messages == ([disk(prediction).deletes_messages] if files else [])
    assert not prediction.recovers


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["basic", "lmq", "transaction"])
def test_the_messages_of_the_files_that_go_are_counted(golden: GoldenFolder, release: str,
                                                       name: str) -> None:
    """A message may have a row in several queues, or in none."""
    root = golden(f"{release}/{name}/store")
    last = max(int(file.name) for file in (root / "commitlog").iterdir())
    with Store.open(root) as store:
        before = sum(len(batch) for batch in store.log.walk(0, last))
        total = sum(len(batch) for batch in store.log.walk())
    assert disk(ask(root, release, 0.9)).deletes_messages == before < total


def test_the_messages_are_read_where_no_row_tells(golden_copy: GoldenFolder) -> None:
    root = golden_copy(at("4.9.3"))
    deletes_messages = disk(ask(root, "4.9.3", 0.9)).deletes_messages
    os.rename(root / "consumequeue", root / "elsewhere")
    assert disk(ask(root, "4.9.3", 0.9)).deletes_messages == deletes_messages


def test_no_more_goes_than_it_takes(golden_copy: GoldenFolder,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """The cleaner measures again after each 10 files."""
    root = golden_copy(at("5.3.3"))
    size = 65_536

    def small(path: Any) -> os.statvfs_result:
        real = roomy.statvfs(path)
        return os.statvfs_result((size, size, 100, 14, 14, *tuple(real)[5:]))

    for number in range(5, 40):
        (root / "commitlog" / f"{number * size:020d}").write_bytes(bytes(size))
    monkeypatch.setattr(os, "statvfs", small)
    with Store.open(root) as store:
        rules = Rules.of(store, _version("5.3.3"))
        from rmqctl.checks.preflight import disk as module

        files = store.log.files[:-1]
        assert module._first_minutes(store, rules, files, 0, None)[:2] == (10, 0.86)


def _version(release: str) -> Any:
    from rmqctl.broker.versions import version_of

    return version_of(release)


# -- the limits are the broker's -----------------------------------------------------------------


@pytest.mark.parametrize(("release", "conf", "used", "files", "refuses"), [
    ("5.3.3", {"diskSpaceCleanForciblyRatio": 70}, 0.8, 4, False),
    ("5.3.3", {"diskSpaceCleanForciblyRatio": 99}, 0.86, 4, False),
    ("5.3.3", {"diskSpaceWarningLevelRatio": 80}, 0.82, 4, True),
    ("5.3.3", {"diskSpaceWarningLevelRatio": 10}, 0.34, 0, False),
    ("4.9.3", {"diskSpaceCleanForciblyRatio": 70}, 0.8, 0, False),
    ("4.9.3", {"diskSpaceWarningLevelRatio": 80}, 0.82, 0, False),
    # 4.9.3 deletes only beyond diskMaxUsedSpaceRatio, though it rejects messages.
    ("4.9.3", {"diskMaxUsedSpaceRatio": 95}, 0.92, 0, True),
    ("5.3.3", {"diskMaxUsedSpaceRatio": 95}, 0.92, 4, True),
    ("5.3.3", {"cleanFileForciblyEnable": False}, 0.92, 0, True)])
def test_limits(golden: GoldenFolder, release: str, conf: Mapping[str, Any], used: float,
                files: int, refuses: bool) -> None:
    prediction = ask(golden(at(release)), release, used, **conf)
    assert (disk(prediction).deletes_files, prediction.broker.refuses_writes) == (files, refuses)


# -- files that are too old ----------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("hours", "conf", "files"), [
    (71, {}, 0), (73, {}, 4), (142, {"fileReservedTime": 480}, 0),
    (142, {"fileReservedTime": 72}, 4), (49, {"fileReservedTime": 48}, 4)])
def test_files_that_expire_are_no_loss(golden_copy: GoldenFolder, release: str, hours: int,
                                       conf: Mapping[str, Any], files: int) -> None:
    root = golden_copy(at(release))
    written = time.time()
    for file in (root / "commitlog").iterdir():
        os.utime(file, (written, written))
    prediction = ask(root, release, 0.4, hours, **conf)
    assert disk(prediction).expires_files == files
    assert prediction.harmless
    notes = [note for note in prediction.notes if "fileReservedTime" in note
             and "deleteWhen=04" in note]
    assert bool(notes) is bool(files)


def test_doctor_and_preflight_say_what_expires(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    """Of a copy that was restored with its times."""
    root = golden_copy(at("5.3.3"))
    for file in (root / "commitlog").iterdir():
        os.utime(file, (0, 0))
    expected_text = re.compile(
        r"4 log files \([0-9,]+ messages\) older than fileReservedTime=72 h: "
                               "the broker deletes them in the hour of deleteWhen=04")
    for name in ("doctor", "preflight"):
        done = rmqctl(name, root, "--disk-used", "0.4")
        assert expected_text.search(" ".join((done.out + done.err).split())), name


def test_expired_files_go_at_once_on_a_disk_that_is_nearly_full(golden: GoldenFolder) -> None:
    prediction = ask(golden(at("5.3.3")), "5.3.3", 0.8, 200, deleteWhen="02;14")
    assert disk(prediction).expires_at_once
    assert disk(prediction).delete_when == "02;14"
    assert "1 minute after startup" in "".join(prediction.notes)
    assert prediction.harmless


def test_the_first_young_file_keeps_all_that_follow(golden_copy: GoldenFolder) -> None:
    root = golden_copy(at("4.9.3"))
    files = sorted((root / "commitlog").iterdir())
    written = time.time()
    for number, file in enumerate(files):
        age = 0 if number in (2, FILES - 1) else 100 * 3600
        os.utime(file, (written - age, written - age))
    assert disk(ask(root, "4.9.3", 0.4)).expires_files == 2


# -- which disks are judged ----------------------------------------------------------------------


def test_what_is_given_wins(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(at("5.3.3"))
    for given, code in (("0.86", 1), ("91%", 1), ("0.5", 0), ("ignore", 0)):
        answer = rmqctl("preflight", root, "--disk-used", given, "-o", "json").expect(code).json()
        assert answer["refuses_writes"] is (given == "91%")
    rmqctl("preflight", root, "--disk-used", "much").expect(2)
    rmqctl("doctor", root, "--disk-used", "86%").expect(1)


@pytest.mark.parametrize("text", ["", "-1", "1.1", "101%", "nan", "full"])
def test_a_ratio_that_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_disk_used(text)


def test_a_read_only_copy_is_not_judged(golden: GoldenFolder, monkeypatch: pytest.MonkeyPatch,
                                        rmqctl: Runner) -> None:
    def read_only(path: Any) -> os.statvfs_result:
        real = tuple(roomy.statvfs(path))
        return os.statvfs_result((*real[:3], 0, 0, *real[5:8], os.ST_RDONLY, *real[9:]))

    monkeypatch.setattr(os, "statvfs", read_only)
    answer = rmqctl("preflight", golden(at("5.3.3")), "-o", "json").expect(0).json()
    assert answer["disk"]["not_judged"] == "read-only copy"
    assert not answer["refuses_writes"]


def test_doctor_judges_the_disk_of_a_store_in_use(golden_copy: GoldenFolder) -> None:
    root = golden_copy(at("5.3.3"))
    with Store.open(root) as store:
        assert not around_in_use(store).no_disk
    (root / "lock").unlink()
    with Store.open(root) as store:
        assert around_in_use(store).no_disk
        assert not around_in_use(store, 0.9).no_disk
        assert not around(store).no_disk
    with Store.open(root, (), Sizes(conf=BrokerConf(path="broker.conf"))) as store:
        assert not around_in_use(store).no_disk
