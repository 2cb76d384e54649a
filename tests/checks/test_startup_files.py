"""Files beside topics, groups and offsets that a 5.x broker must be able to read at startup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.formats.config import epoch
from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.config_tables import put

FILES = ("topicQueueMapping.json", "consumerOrderInfo.json", "timermetrics", "consumerFilter.json")


def start(root: Path, version: str, code: int) -> bool:
    answer = run("preflight", root, "--broker-version", version, "-o", "json").expect(code).json()
    return bool(answer["starts"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("main", [b"", bytes(200), b'{"a":{"b'], ids=["empty", "zeros", "cut"])
def test_a_file_that_a_broker_can_read_in_no_way(name: str, main: bytes,
                                                 golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    put(root, name, main)
    put(root, f"{name}.bak", bytes(200))
    assert not start(root, "5.3.3", 1)
    run("recover", root, "--broker-version", "5.3.3", "--apply", "--yes").expect(0)
    assert start(root, "5.3.3", 0)
    assert run("doctor", root, "--broker-version", "5.3.3", "-o", "json").expect(0).json()["sound"]
    assert not (root / "config" / name).exists()


@pytest.mark.parametrize("name", FILES[:3])
def test_older_brokers_do_not_read_what_is_new(name: str, golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    put(root, name, bytes(64))
    put(root, f"{name}.bak", bytes(64))
    assert start(root, "4.9.3", 0)


@pytest.mark.parametrize(("data", "starts"), [
    (b"", False), (bytes(20), False), (b"2\n", False), (b"2\nx\n1-0\n", False),
    (b"1\n0\na-0\n", False), (b"9\n0\n1-0\n", True), (b"1\n5\n1-0\n", True),
    (b"1\n0\n\xff-0\n", True)])
def test_only_an_exception_of_the_right_kind_leads_to_the_backup(
        data: bytes, starts: bool, golden_copy: GoldenFolder) -> None:
    assert (epoch.stops_broker(data) is None) == starts
    root = golden_copy("5.3.3/controller/store")
    shutil.copy(root / "epochFileCheckpoint", root / "epochFileCheckpoint.bak")
    (root / "epochFileCheckpoint").write_bytes(data)
    assert start(root, "5.3.3", 0 if starts else 1) == starts


@pytest.mark.parametrize("mode", ["true", "false", None])
def test_only_the_controller_mode_opens_the_epoch_file(
        mode: str | None, golden_copy: GoldenFolder, tmp_path: Path) -> None:
    root = golden_copy("5.3.3/controller/store")
    (root / "epochFileCheckpoint").write_bytes(b"")
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=16384\nmappedFileSizeConsumeQueue=380\n"
                    "maxHashSlotNum=100\nmaxIndexNum=400\n"
                    + (f"enableControllerMode={mode}\n" if mode else ""))
    answer = run("preflight", root, "--broker-version", "5.3.3", "--broker-conf", conf, "-o",
                 "json").json()
    assert answer["starts"] == (mode != "true")


@pytest.mark.parametrize("main", [b"", b"3\n22", b"0\n0\n", b"9\n0\n1-0\n", None])
def test_a_good_backup_of_the_epochs_is_restored(main: bytes | None,
                                                 golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/controller/store")
    file, backup = root / "epochFileCheckpoint", root / "epochFileCheckpoint.bak"
    whole = file.read_bytes()
    backup.write_bytes(whole)
    if main is None:
        file.unlink()
    else:
        file.write_bytes(main)
    assert f"rmqctl recover {root}" in run("doctor", root, "-o", "json").expect(1).json()["next"]
    run("recover", root, "--apply", "--yes").expect(0)
    assert file.read_bytes() == whole
    assert run("doctor", root, "-o", "json").expect(0).json()["sound"]


@pytest.mark.parametrize("backup", [b"2\n0\n5-36022\n2-25077\n", b"1\n0\n7-9000000\n", b"", b"x"])
def test_a_backup_that_is_wrong_as_well_is_not(backup: bytes, golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/controller/store")
    (root / "epochFileCheckpoint").write_bytes(b"")
    (root / "epochFileCheckpoint.bak").write_bytes(backup)
    assert run("recover", root, "-o", "json").expect(0).json()["actions"] == []
