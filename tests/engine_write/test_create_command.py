"""``rmqctl init`` as a user meets it: the document, the codes, and what the readers say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import VERSIONS
from rmqctl.commands.shared.engine_options import (
    new_settings,
    parse_watermark,
    settings_from,
)
from rmqctl.commands.write.topic_create import parse_perm
from rmqctl.errors import UsageError
from tests.conftest import Runner
from tests.engine_write.faults import failing
from tests.support import snapshot

SIZES = ("--commitlog-file-size", "64KiB", "--consumequeue-file-size", "390", "--index-slots",
         "100", "--index-max", "400")


def test_what_was_made(tmp_path: Path, rmqctl: Runner) -> None:
    root = tmp_path / "store"
    done = rmqctl("init", root, *SIZES, "--broker-version", "4.9.3", "--lmq", "-o",
                  "json").expect(0)
    answer = done.json()
    assert answer == {
        "store": str(root), "version": "4.9.3", "commitlog_file_size": 65536,
        "consumequeue_file_size": 400, "consumequeue_ext_file_size": 48 << 20,
        "batch_consumequeue_file_size": 13_800_000, "index_slots": 100, "index_max": 400,
        "consumequeue_ext": False, "lmq": True, "multi_dispatch": False,
        "append_properties_crc": False, "message_delay_level": Settings().message_delay_level,
        "commitlog_dirs": ["commitlog"], "dry_run": False}
    assert "400 bytes, not 390" in done.err
    remembered = json.loads((root / ".rmqctl" / "store.json").read_text())
    assert remembered.items() >= {key: answer[key] for key in remembered if key in answer}.items()
    assert settings_from(str(root)) == new_settings(
        version="4.9.3", commitlog_file_size=65536, consumequeue_file_size=400, index_slots=100,
        index_max=400, lmq=True)


@pytest.mark.parametrize("version", sorted(VERSIONS))
@pytest.mark.parametrize("folders", [(), ("--commitlog-dir", "a", "--commitlog-dir", "b/c")])
def test_the_readers_find_nothing_wrong(tmp_path: Path, rmqctl: Runner, version: str,
                                        folders: tuple[str, ...]) -> None:
    root = tmp_path / "store"
    rmqctl("init", root, *folders, "--broker-version", version).expect(0)
    rmqctl("topic", "create", root, "orders").expect(0)
    with snapshot.assert_unchanged(root):
        answer = rmqctl("verify", root, "-o", "json").expect(0).json()
        assert (answer["ok"], answer["findings"]) == (True, [])
        assert rmqctl("info", root, "-o", "json").expect(0).json()["max_phy_offset"] == 0
        assert rmqctl("read", root, "-o", "jsonl").expect(0, 1).jsonl() == []
        assert rmqctl("recover", "table", root, "-o", "json").expect(0).json() == {}
        assert rmqctl("config", root, "-o", "json").expect(0).json()[0]["state"] == "ok"
        assert rmqctl("stats", root).expect(0)


def test_a_dry_run_makes_nothing(tmp_path: Path, rmqctl: Runner) -> None:
    done = rmqctl("init", tmp_path / "store", "--dry-run", *SIZES, "-o", "json").expect(0)
    assert done.json()["dry_run"]
    assert "dry run" in done.err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").touch()
    rmqctl("init", tmp_path, "--dry-run").expect(6)


@pytest.mark.parametrize(("words", "code", "expected_text"), [
    (["--commitlog-file-size", "1000"], 2, "the minimum is 1024"),
    (["--commitlog-file-size", "2GiB"], 2, "too large"),
    (["--commitlog-file-size", "big"], 2, "--commitlog-file-size"),
    (["--consumequeue-file-size", "0"], 2, "too small"), (["--index-slots", "1"], 2, "at least 2"),
    (["--index-max", "0"], 2, "at least 2"), (["--broker-version", "5"], 2, "4.0.0 to 5.4.0"),
    (["--delay-levels", "x"], 2, "delay level 1"), (["--commitlog-dir", ".."], 2, "store itself"),
    (["--append-crc", "--broker-version", "4.9.3"], 2, "5.2.0")])
def test_what_cannot_be(tmp_path: Path, rmqctl: Runner, words: list[str], code: int,
                        expected_text: str) -> None:
    assert expected_text in rmqctl("init", tmp_path / "store", *words).expect(code).err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it(tmp_path: Path, rmqctl: Runner) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert "notes.txt" in rmqctl("init", tmp_path).expect(6).err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert "not a folder" in rmqctl("init", tmp_path / "notes.txt").expect(6).err


def test_out_of_space(tmp_path: Path, rmqctl: Runner) -> None:
    with failing(8):
        done = rmqctl("init", tmp_path / "store")
    assert "no space left" in done.expect(5).err
    rmqctl("init", tmp_path / "store").expect(0)


@pytest.mark.long
def test_killed_at_any_moment(tmp_path: Path, rmqctl: Runner) -> None:
    """A real SIGKILL, at moments spread over the run: the next run completes or finds it whole."""
    script = ("import sys\nfrom rmqctl.engine.config.create import create_store\n"
              "from rmqctl.broker.settings import Settings\nprint('go', flush=True)\n"
              "create_store(sys.argv[1], Settings())\n")
    outcomes = set()
    for number in range(12):
        root = tmp_path / f"store{number}"
        with subprocess.Popen([sys.executable, "-c", script, root],
                              stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(number * 0.0015)
            process.kill()
        outcomes.add(rmqctl("init", root).expect(0, 6).code)
        assert (root / ".rmqctl" / "store.json").exists()
        assert not (root / ".rmqctl" / "init").exists()
        assert rmqctl("verify", root, "-o", "json").expect(0).json()["findings"] == []
    assert outcomes


# -- the shared options ---------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "share"), [("90%", 0.9), ("100", 1.0), ("0.5 %", 0.005),
                                             (0.75, 0.75)])
def test_watermarks(text: str | float, share: float) -> None:
    assert parse_watermark(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0", "101%", "-1", "x", "1e1", "1.2.3", "²"])
def test_no_watermarks(text: str) -> None:
    with pytest.raises(UsageError):
        parse_watermark(text)


@pytest.mark.parametrize(("text", "perm"), [("2", 2), ("4", 4), ("6", 6), ("w", 2), ("r", 4),
                                            ("rw", 6), ("WR", 6), ("RW-", 6), ("R--", 4),
                                            ("-W-", 2), (6, 6)])
def test_permissions(text: str | int, perm: int) -> None:
    assert parse_perm(text) == perm


@pytest.mark.parametrize("text", ["", "-", "0", "1", "7", "8", "x", "rr", "rwx", "-2", "---"])
def test_no_permissions(text: str) -> None:
    with pytest.raises(UsageError):
        parse_perm(text)


def test_relative_folders_are_kept_relative(tmp_path: Path, rmqctl: Runner,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rmqctl("init", "store", "--commitlog-dir", os.path.join(tmp_path, "store", "cl1")).expect(0)
    (tmp_path / "store").rename(tmp_path / "moved")
    rmqctl("verify", "moved").expect(0)
    assert json.loads((tmp_path / "moved/.rmqctl/store.json").read_text())["commitlog_dirs"] == [
        "cl1"]
