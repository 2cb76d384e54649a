"""A log in a folder that nobody named: what a broker without that setting does is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repair.accidents import bytes_of
from tests.support import cli

SETTING = "with storePathCommitLog=commitlog.old would start and lose nothing"


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store"])
@pytest.mark.parametrize("again", [False, True])
def test_a_renamed_folder(golden_copy, name: str, again: bool) -> None:
    """``again``: a broker has created an empty folder since."""
    store = golden_copy(name)
    (store / "commitlog").rename(store / "commitlog.old")
    if again:
        (store / "commitlog").mkdir()
    preflight = cli.run("preflight", str(store)).expect(0)
    assert SETTING in preflight.out.splitlines()[0]
    assert "deletes all consume queues" in preflight.err
    doctor = cli.run("doctor", str(store)).expect(0)
    assert SETTING in doctor.out.splitlines()[0]
    assert "without storePathCommitLog=commitlog.old, a broker finds no log" in doctor.out


def test_a_file_in_another_folder(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    (store / "old").mkdir()
    path = sorted((store / "commitlog").iterdir())[1]
    path.rename(store / "old" / path.name)
    for command in ("preflight", "doctor"):
        result = cli.run(command, str(store)).expect(0)
        assert "storePathCommitLog=commitlog,old would start" in result.out.splitlines()[0]
        assert "lacks" in result.out + result.err


def test_a_file_in_a_folder_of_the_log(golden_copy) -> None:
    """No broker reads it there."""
    store = golden_copy("5.3.3/basic/store")
    before = bytes_of(store)
    (store / "commitlog/old").mkdir()
    path = sorted((store / "commitlog").glob("0*"))[1]
    path.rename(store / "commitlog/old" / path.name)
    start = cli.run("preflight", str(store), "-o", "json").expect(1).json()
    assert start["messages_already_lost"] == 0
    assert start["shadowed"] > 100
    report = cli.run("verify", str(store), "-o", "json").expect(1).json()
    assert [(finding["category"], finding["severity"]) for finding in report["findings"]] == [
        ("file-name", "error")]
    assert report["coverage"]["messages"] == 600
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert [(action["action"], action["from"]) for action in plan["actions"]] == [
        ("rename", f"commitlog/old/{path.name}")]
    cli.run("verify", str(store)).expect(0)
    assert {name: data for name, data in bytes_of(store).items()
            if not name.startswith(".rmqctl")} == before


def test_a_folder_that_is_named(golden_copy, tmp_path: Path) -> None:
    store = golden_copy("5.3.3/basic/store")
    (store / "commitlog").rename(store / "commitlog.old")
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog.old\n"
                    "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=380\n")
    for options in (("--commitlog-dir", "commitlog.old"), ("--broker-conf", str(conf))):
        for command in ("preflight", "doctor"):
            result = cli.run(command, str(store), *options)
            assert "storePathCommitLog=commitlog.old" not in result.out.splitlines()[0]
            assert "finds no log" not in result.out + result.err


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store"])
@pytest.mark.parametrize("number", [1, 2, -1])
def test_a_file_in_the_root(golden_copy, name: str, number: int) -> None:
    """It is beside the log's folder."""
    store = golden_copy(name)
    before = bytes_of(store)
    path = sorted((store / "commitlog").iterdir())[number]
    path.rename(store / path.name)
    start = cli.run("preflight", str(store), "-o", "json").expect(1).json()
    assert start["messages_already_lost"] == 0
    assert start["shadowed"] > 50
    report = cli.run("verify", str(store), "-o", "json").expect(1).json()
    assert [finding["category"] for finding in report["findings"]] == ["file-name"]
    assert report["coverage"]["messages"] == 600
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert [(action["action"], action["from"]) for action in plan["actions"]] == [
        ("rename", path.name)]
    cli.run("verify", str(store)).expect(0)
    assert {name: data for name, data in bytes_of(store).items()
            if not name.startswith(".rmqctl")} == before


def test_another_file_in_the_root(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    first = min((store / "commitlog").iterdir())
    (store / first.name).write_bytes(first.read_bytes())
    (store / f"{1 << 40:020d}").write_bytes(b"x" * 65536)
    assert not [finding for finding in cli.run(
        "verify", str(store), "-o", "json").json()["findings"] if finding["severity"] == "error"]
    assert cli.run("recover", str(store), "-o", "json").expect(0).json()["actions"] == []
