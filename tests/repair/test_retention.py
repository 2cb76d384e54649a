"""``rmqctl retention``, and `expire` by the broker's settings: what goes, and what that costs."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rmqctl.checks.preflight.around import StartEnvironment
from rmqctl.checks.preflight.disk import next_deletion
from rmqctl.repair.expire import HOUR
from rmqctl.repair.retention import Retention, retention
from rmqctl.store import Sizes, Store
from rmqctl.store.broker_conf import BrokerConf
from tests.conftest import GoldenFolder, Runner
from tests.support import roomy

NOW = 1_900_000_000_000
SIZE = 65_536


def aged(root: Path, *hours: float) -> Path:
    """The log's files were last written so many hours before `NOW`; the last number repeats."""
    for number, file in enumerate(sorted((root / "commitlog").iterdir())):
        at = NOW / 1000 - hours[min(number, len(hours) - 1)] * 3600
        os.utime(file, (at, at))
    return root


def ask(root: Path, used: float = 0.4, **conf: Any) -> Retention:
    with Store.open(root, (), Sizes(conf=BrokerConf(runtime=conf))) as store:
        return retention(store, StartEnvironment(NOW, used))


def goes(retention: Retention) -> list[str]:
    return [file.goes for file in retention.files]


def behind(root: Path, group: str = "g") -> None:
    """A group that has read nothing, and one that has read all."""
    with Store.open(root) as store:
        queues = {key: queue.written for key, queue in store.queues.by_key.items()}
    table: dict[str, dict[str, int]] = {}
    for (topic, queue), end in queues.items():
        table.setdefault(f"{topic}@{group}", {})[str(queue)] = 0
        table.setdefault(f"{topic}@done", {})[str(queue)] = end
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


@pytest.fixture
def root(golden_copy: GoldenFolder) -> Path:
    return golden_copy("5.3.3/basic/store")


@pytest.mark.parametrize(("used", "hours", "conf", "wanted"), [
    (0.4, (1,), {}, ["", "", "", "", ""]),
    (0.4, (100,), {}, ["age", "age", "age", "age", ""]),
    (0.4, (100, 100, 1), {}, ["age", "age", "", "", ""]),
    (0.4, (1, 100), {}, ["", "", "", "", ""]),
    (0.4, (100,), {"fileReservedTime": 480}, ["", "", "", "", ""]),
    (0.87, (100, 1), {}, ["age", "disk", "disk", "disk", ""]),
    (0.87, (1,), {"cleanFileForciblyEnable": False}, ["", "", "", "", ""]),
])
def test_what_goes(root: Path, used: float, hours: tuple[float, ...], conf: dict[str, Any],
                   wanted: list[str]) -> None:
    retention = ask(aged(root, *hours), used, **conf)
    assert goes(retention) == wanted
    assert retention.unread == {}
    assert any("no consumer offsets" in note for note in retention.notes) is any(wanted)
    assert retention.harmless is not retention.refuses_writes


def test_a_file_stays_as_long_as_one_before_it(root: Path) -> None:
    retention = ask(aged(root, 1, 100))
    assert [file.expires for file in retention.files] == [NOW + 71 * HOUR] * 4 + [None]
    assert all(file.written == NOW - 100 * HOUR for file in retention.files[1:])


def test_who_has_not_read_it(root: Path) -> None:
    behind(aged(root, 100, 100, 1))
    retention = ask(root)
    assert retention.unread is not None
    with Store.open(root) as store:
        count = sum(len(batch) for batch in store.log.walk(0, 2 * SIZE))
    assert retention.unread_messages == count > 0
    assert {group for group, _ in retention.unread} == {"g"}
    assert not retention.harmless
    assert any("not yet consumed expire: g," in note for note in retention.notes)
    assert any("`touch`" in note for note in retention.notes)
    assert ask(aged(root, 1)).harmless


def test_a_broker_that_rejects_messages(root: Path, rmqctl: Runner) -> None:
    aged(root, 1)
    assert ask(root, 0.92).refuses_writes
    answer = rmqctl("retention", root, "--disk-used", "0.92", "-o", "json").expect(1).json()
    assert answer["refuses_writes"] is True
    page = rmqctl("retention", root, "--disk-used", "0.92", "-o", "plain").expect(1)
    assert "the broker rejects messages" in page.out


def test_the_disk_is_not_judged(root: Path, rmqctl: Runner) -> None:
    answer = rmqctl("retention", root, "--disk-used", "ignore", "-o", "json").json()
    assert answer["disk"]["used_ratio"] is None
    assert answer["outlook"] is None
    assert "ignore" in answer["no_outlook"]


@pytest.mark.parametrize("blocks", [200, 1_000, 10_000])
def test_the_outlook(root: Path, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """Held against a day by day account of a disk of ``blocks`` times 64 KiB."""
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(
        (SIZE, SIZE, blocks, blocks // 2, blocks // 2, *tuple(roomy.statvfs(path))[5:])))
    with Store.open(aged(root, 1)) as store:
        outlook = retention(store, StartEnvironment(NOW)).outlook
    assert outlook is not None
    assert outlook.since < outlook.until
    entire, rate = blocks * SIZE, outlook.bytes_per_day
    used = (blocks - blocks // 2) * SIZE
    beside = used - sum(min(file.stat().st_blocks * 512, SIZE)
                        for file in (root / "commitlog").iterdir())
    for name, share in (("expire_ratio", 0.75), ("clean_ratio", 0.85), ("full", 1.0)):
        reached = outlook.reached_in[name]
        peak = beside + rate * (72 / 24 + 1) + SIZE
        assert (reached is None) == (peak <= share * entire)
        if reached:
            assert used + rate * reached / 24 == pytest.approx(
                share * entire, abs=rate / 24 * 0.06)

    def most(hours: int) -> float:
        return (beside + rate * (hours / 24 + 1) + SIZE) / entire

    best = outlook.reserved_hours
    assert outlook.levels_off_at == pytest.approx(most(72), abs=0.001)
    assert best == 0 or most(best) <= 0.75
    assert most(best + 1) > 0.75


@pytest.mark.parametrize(("kind", "hours", "ratio"), [
    ("5.3.3/dledger", 73, 0.70), ("5.3.3/rocksdb", 72, 0.75), ("4.9.3/multipath", 72, 0.75)])
def test_other_logs(golden: GoldenFolder, kind: str, hours: int, ratio: float) -> None:
    with Store.open(golden(f"{kind}/store")) as store:
        retention_at_start = retention(store, StartEnvironment(NOW, 0.4))
    assert (retention_at_start.rules.reserved_hours,
            retention_at_start.rules.expire_ratio) == (hours, ratio)
    assert goes(retention_at_start) == ["age"] * (len(retention_at_start.files) - 1) + [""]
    assert retention_at_start.unread == {}


def test_queues_that_cannot_be_read(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    root = aged(golden_copy("5.3.3/rocksdb/store"), 1)
    for manifest in (root / "consumequeue").glob("MANIFEST*"):
        manifest.unlink()
    words = ("retention", root, "--disk-used", "88%", "-o", "json")
    answer = rmqctl(*words).expect(3).json()
    assert (answer["unread"], answer["unread_messages"]) == (None, None)
    assert answer["files"][0]["goes"] == "disk"


def test_no_rate_without_messages(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    retention = ask(tmp_path)
    assert retention.outlook is None
    assert "a minute" in retention.no_outlook


def test_a_copy_without_its_times(root: Path) -> None:
    assert any("copied without its time" in note for note in ask(aged(root, 1)).notes)


@pytest.mark.parametrize(("text", "hours", "files"), [
    ("listenPort=1\n", 100, 4), ("listenPort=1\n", 71, 0), ("fileReservedTime=48\n", 49, 4),
    ("fileReservedTime=480\n", 100, 0)])
def test_expire_follows_the_settings(root: Path, rmqctl: Runner, tmp_path: Path, text: str,
                                     hours: float, files: int,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqctl.commands.repair.expire.now_ms", lambda: NOW)
    conf = tmp_path / "broker.conf"
    conf.write_text(text)
    plan = rmqctl("expire", aged(root, hours), "--broker-conf", conf, "-o", "json").expect(0).json()
    gone = [action for action in plan["actions"] if action["target"].startswith("commitlog")]
    assert len(gone) == files
    assert any("fileReservedTime" in note and "release 5." in note for note in plan["notes"])


def test_settings_are_named(root: Path, rmqctl: Runner, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=48\ndeleteWhen=03;05\n")
    answer = rmqctl("retention", root, "--broker-conf", conf, "-o", "json").json()
    assert answer["settings"]["fileReservedTime"] == "fileReservedTime=48"
    assert answer["settings"]["deleteWhen"] == "deleteWhen=03;05"
    assert "not set (default applies)" in answer["settings"]["diskMaxUsedSpaceRatio"]
    assert (answer["reserved_hours"], answer["delete_when"]) == (48, "03;05")


@pytest.mark.parametrize(("when", "deletes"), [("04:00", False), ("4,16", False), ("25", True),
                                             (";", True)])
def test_what_is_no_hour(when: str, deletes: bool, root: Path, rmqctl: Runner,
                         tmp_path: Path) -> None:
    """A cleaner that fails at deleteWhen deletes nothing; an hour that never comes is no error."""
    conf = tmp_path / "broker.conf"
    conf.write_text(f"deleteWhen={when}\n")
    words = ("--broker-conf", conf, "-o", "json", "--disk-used")
    full = rmqctl("retention", root, *words, "86%").json()
    assert full["next_run"] is None
    assert bool(full["disk"]["deletes_files"]) is deletes
    assert any("the cleaner fails" in note for note in full["notes"]) is not deletes
    notes = rmqctl("preflight", root, *words, "86%").json()["notes"]
    assert any("the cleaner fails" in note for note in notes) is not deletes
    outlook = rmqctl("retention", root, *words, "40%").json()["outlook"]
    assert outlook["reached_in"]["expire_ratio"] is not None
    assert outlook["reserved_hours"] == 0
    assert (outlook["levels_off_at"] == 1.0) is not deletes


@pytest.mark.parametrize(("when", "now", "zone", "wanted"), [
    ("04", "2026-11-28T21:10:00+00:00", "UTC", "2026-11-29T04:00:00+00:00"),
    ("04", "2026-11-28T03:59:59+00:00", "UTC", "2026-11-28T04:00:00+00:00"),
    ("04", "2026-11-28T04:10:30+00:00", "UTC", "2026-11-28T04:10:30+00:00"),  # at once
    ("04;16", "2026-11-28T05:00:00+00:00", "UTC", "2026-11-28T16:00:00+00:00"),
    ("04", "2026-11-28T21:10:00+00:00", "Asia/Shanghai", "2026-11-30T04:00:00+08:00"),
    ("4;", "2026-11-28T21:10:00+00:00", "UTC", "2026-11-29T04:00:00+00:00"),
    # The hour that a change of clocks skips comes a day later.
    ("02", "2026-03-29T00:30:00+01:00", "Europe/Berlin", "2026-03-30T02:00:00+02:00"),
    ("25", "2026-11-28T21:10:00+00:00", "UTC", None),
    ("night", "2026-11-28T21:10:00+00:00", "UTC", None),
    ("x;04", "2026-11-28T21:10:00+00:00", "UTC", None),
    ("04;;16", "2026-11-28T05:00:00+00:00", "UTC", "2026-11-29T04:00:00+00:00"),
])
def test_when_expired_files_go_next(when: str, now: str, zone: str, wanted: str | None) -> None:
    moment = int(datetime.fromisoformat(now).timestamp() * 1000)
    number = next_deletion(when, moment, ZoneInfo(zone))
    assert number == (None if wanted is None else
                      int(datetime.fromisoformat(wanted).timestamp() * 1000))


@pytest.mark.parametrize("when", ["04;;16", "04;16h"])
def test_hours_after_one_that_is_none(when: str, root: Path, rmqctl: Runner,
                                      tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"deleteWhen={when}\n")
    for command in ("retention", "preflight"):
        notes = rmqctl(command, root, "--broker-conf", conf, "-o", "json").json()["notes"]
        assert any("only in the hours listed before it (04)" in note for note in notes)


def test_the_next_time_is_shown(root: Path, rmqctl: Runner) -> None:
    behind(root)
    words = ("retention", root, "--disk-used", "ignore", "--tz", "Asia/Shanghai")
    answer = rmqctl(*words, "-o", "json").expect(0, 1).json()
    assert datetime.fromtimestamp(answer["next_run"] / 1000, ZoneInfo("Asia/Shanghai")).hour == 4
    assert "+08:00" in next(line for line in rmqctl(*words).out.splitlines()
                            if line.startswith("next deletion hour"))
