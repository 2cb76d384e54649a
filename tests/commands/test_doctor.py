"""rmqctl doctor: what verify and preflight say, put together, and nothing else."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GoldenFolder, Runner

SETS = ("5.3.3/crash-crc/before", "4.9.3/crash-trunc-garbage/before",
        "5.3.3/crash-nocheckpoint/before", "5.3.3/basic/store", "4.9.3/transaction/store",
        "5.3.3/clean-nocq/before")


def diagnosis_of(rmqctl: Runner, store: Path, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = rmqctl("doctor", store, *options, "-o", "json").json()
    return document


@pytest.mark.parametrize("name", SETS)
def test_it_says_what_verify_and_preflight_say(name: str, golden: GoldenFolder,
                                               rmqctl: Runner) -> None:
    store = golden(name)
    diagnosis = diagnosis_of(rmqctl, store)
    verify, start = (rmqctl(command, store, "-o", "json") for command in ("verify", "preflight"))
    checked, predicted = verify.json(), start.json()
    counts = {(row["category"], row["severity"]): row["count"] for row in checked["counts"]
              if row["severity"] != "info"}
    assert {(row["category"], row["severity"]): row["count"]
            for row in diagnosis["damaged"]} == counts
    assert diagnosis["already_lost"] == predicted["messages_already_lost"]
    assert diagnosis["would_lose"] == predicted["messages_lost"] + (predicted["unreachable"] or 0)
    assert diagnosis["groups_affected"] == predicted["groups_affected"]
    sound = verify.code == start.code == 0
    assert diagnosis["sound"] == sound
    assert rmqctl("doctor", store).code == (0 if sound else 1)
    assert diagnosis["verdict"].startswith("sound: ") == sound
    assert bool(diagnosis["next"]) != sound


@pytest.mark.parametrize("name", [SETS[0], SETS[1], SETS[5]])
def test_each_next_command_runs_and_changes_nothing(name: str, golden_copy: GoldenFolder,
                                                    rmqctl: Runner) -> None:
    store = golden_copy(name)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    commands = [command.split()[1:] for command in diagnosis_of(rmqctl, store)["next"]]
    assert ["recover", str(store)] in commands
    for words in commands:
        if words[-1] == "COPY":
            continue
        assert rmqctl(*words).code in (0, 1)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_options_that_say_how_to_read_the_store_stay_in_the_next_commands(
        golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden(SETS[0])
    diagnosis = diagnosis_of(rmqctl, store, "--commitlog-file-size", "64KiB")
    assert all(command.endswith("--commitlog-file-size 64KiB") for command in diagnosis["next"])


def test_what_cannot_be_judged_is_said(rmqctl: Runner, golden: GoldenFolder,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    run = rmqctl("doctor", golden("5.3.3/rocksdb/store"), "-o", "json")
    assert run.code == 3
    assert run.json()["not_judged"][0]["structure"] == "consumequeue"
    assert run.json()["verdict"].startswith("sound, as far as can be judged")


@pytest.mark.parametrize("width", [80, 100])
def test_it_fits_a_terminal(width: int, golden: GoldenFolder, rmqctl: Runner) -> None:
    store = golden(SETS[0])
    page = rmqctl("doctor", store, "-o", "table", env={"COLUMNS": str(width)}).out
    too_long = [line for line in page.splitlines()
                if len(line) > width and str(store) not in line]
    assert too_long == []


@pytest.mark.parametrize("command", ["doctor", "preflight", "verify"])
def test_only_what_backup_copies_is_to_be_backed_up_first(
        command: str, golden: GoldenFolder, tmp_path: Path, rmqctl: Runner) -> None:
    """`backup` refuses an archive: to name it first would lead in a circle."""
    store = golden(SETS[0])
    first = "First copy the store: rmqctl backup STORE DEST"
    assert first in rmqctl(command, store, "-o", "plain").out
    archive = shutil.make_archive(str(tmp_path / "copy"), "tar", store.parent, store.name)
    shown = rmqctl(command, archive, "-o", "plain").out
    assert "Step 2 of 4" in shown
    assert "rmqctl backup" not in shown
