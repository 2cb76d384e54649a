"""Files that the user names to be written: one that exists, and a link in its place.

A file is replaced as a whole where the documentation says so; all others are refused. No command
writes through a link that somebody else may have made.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from rmqctl.commands import REGISTRY
from rmqctl.commands.app.lazy import load
from rmqctl.errors import JobError, RefusedError
from rmqctl.ext.serve.consuming.positions import PositionsFile
from rmqctl.files.named import open_to_append
from tests.conftest import Runner
from tests.support import tiny as tiny_stores
from tests.tiered.tiers import Queue

READ = {
    "--commitlog-dir", "--commitlog-dir-b", "--broker-conf", "--file", "--body-file", "--key-file",
    "--redact-key", "--metadata", "--local", "--moved", "--list"}
STORES = {"--write-outside", "--to", "--scratch", "--out NEWSTORE", "--into", "--out DIR"}
"""Folders and stores, which have rules of their own: tests/commands/test_every_writer.py."""


class Case(NamedTuple):
    """How an option's file is written; ``replaces``: whether one that exists may be."""

    words: tuple[str, ...]
    replaces: bool = False
    ending: str = ""
    stdin: bytes = b""


CASES = {
    "export --out": Case(("export", "STORE", "--out", "FILE"), ending=".jsonl"),
    "report --out": Case(("report", "STORE", "--no-hash", "--out", "FILE"), ending=".html"),
    "verify --state": Case(("verify", "STORE", "--since-last", "--state", "FILE"), replaces=True),
    "verify --format-prometheus": Case(
        ("verify", "STORE", "--format-prometheus", "FILE"), replaces=True),
    "backup --format-prometheus": Case(
        ("backup", "STORE", "STORE-copy", "--format-prometheus", "FILE"), replaces=True),
    "verify --baseline": Case(("verify", "STORE", "--baseline", "FILE"), replaces=True),
    "dlq requeue --out": Case(("dlq", "requeue", "STORE", "--group", "payments", "--out", "FILE")),
    "append --on-error": Case(
        ("append", "STORE", "--on-error", "collect", "-", "FILE"), stdin=b"no message\n"),
    "delete message --certificate": Case(
        ("delete", "message", "STORE", "--key", "none", "--certificate", "FILE")),
    "delete key --certificate": Case(("delete", "key", "STORE", "none", "--certificate", "FILE")),
    "delete topic --certificate": Case(
        ("delete", "topic", "STORE", "none", "--certificate", "FILE")),
    "delete group --certificate": Case(
        ("delete", "group", "STORE", "none", "--certificate", "FILE")),
    "tiered export --out": Case(("tiered", "export", "TIER", "--out", "FILE"), ending=".jsonl"),
    "tiered compact --out": Case(("tiered", "compact", "--file", "INDEX", "--out", "FILE")),
    "pipeline export --out": Case(("pipeline", "export", "STORE", "--out", "FILE")),
    "pipeline sql --out": Case(("pipeline", "sql", "STORE", "select 1", "--out", "FILE")),
}
ELSEWHERE = {"serve --offsets", *(f"{title} --spark-log" for title in (
    "stats", "pipeline verify", "pipeline stats", "pipeline rebuild", "pipeline export",
    "pipeline sql"))}
"""Driven below: a server, and six commands with one option."""


def tier_of(folder: Path) -> Path:
    queue = Queue()
    queue.put(b"body")
    queue.write(folder / "tier")
    return folder / "tier"


def test_every_option_that_names_a_file_is_known() -> None:
    texts = set()
    for spec in REGISTRY:
        for param in load(spec).params:
            kind = str(param.metavar)
            if not param.opts[0].startswith("--") or not any(
                    word in kind for word in ("FILE", "DIR", "FOLDER", "PATH", "STORE", "OLD=")):
                continue
            if not {param.opts[0], f"{param.opts[0]} {kind}"} & (READ | STORES):
                texts.add(f"{spec.title} {param.opts[0]}")
    assert texts == {*CASES, *ELSEWHERE}


@pytest.mark.parametrize("there", ["file", "link", "link to nothing"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_written_over_or_through(name: str, there: str, tiny: tiny_stores.Tiny,
                                            tmp_path: Path, rmqctl: Runner) -> None:
    case = CASES[name]
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / f"named{case.ending}"
    before = b"precious"
    if there == "file":
        path.write_bytes(before)
    else:
        path.symlink_to(victim)
        if there == "link":
            victim.write_bytes(before)
    done = rmqctl(*(word.replace("STORE", str(tiny.root)).replace("FILE", str(path)).replace(
        "INDEX", str(path)).replace("TIER", str(tier_of(tmp_path))) for word in case.words),
        stdin=case.stdin)
    if there == "file" and (not case.replaces or done.code not in (0, 1)):
        assert path.read_bytes() == before
        done.expect(*range(1, 8))
    assert victim.exists() == (there == "link")
    if there == "link":
        assert victim.read_bytes() == before
    assert len(os.listdir(shared)) == 1  # nothing temporary is left


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_written_through_a_folder_of_others(
        name: str, tiny: tiny_stores.Tiny, tmp_path: Path, rmqctl: Runner) -> None:
    case = CASES[name]
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.mkdir()
    (shared / "results").symlink_to(victim)
    path = shared / "results" / f"named{case.ending}"
    done = rmqctl(*(word.replace("STORE", str(tiny.root)).replace("FILE", str(path)).replace(
        "INDEX", str(path)).replace("TIER", str(tier_of(tmp_path))) for word in case.words),
        stdin=case.stdin)
    done.expect(*range(1, 8))
    assert "results: is a symbolic link in a folder that other users can write to" in done.err
    assert os.listdir(victim) == []


def test_positions_are_not_kept_in_a_folder_of_others(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "link").symlink_to(tmp_path)
    path = str(shared / "link" / "offsets.json")
    PositionsFile(path).load([], [])
    shared.chmod(0o1777)
    with pytest.raises(RefusedError):
        PositionsFile(path).load([], [])


@pytest.mark.parametrize("there", ["file", "link", "link to nothing"])
def test_offsets_replace_a_link_and_not_what_it_leads_to(there: str, tmp_path: Path) -> None:
    path, victim = tmp_path / "offsets.json", tmp_path / "victim"
    if there == "file":
        path.write_text("{}")
    else:
        path.symlink_to(victim)
        if there == "link":
            victim.write_text("{}")
    PositionsFile(str(path)).save({})
    assert path.is_file()
    assert not path.is_symlink()
    assert victim.exists() == (there == "link")
    if there == "link":
        assert victim.read_text() == "{}"


# -- a log that is appended to ------------------------------------------------------------------


def _spark_log(rmqctl: Runner, monkeypatch: pytest.MonkeyPatch, root: Path, log: Path) -> str:
    """What a command says whose Spark does not start, but for the log."""
    pytest.importorskip("pyspark")
    from rmqctl.ext.spark import session

    def start(_master: str, _workers: int | None, _settings: object, log: str, held: object
              ) -> None:
        os.write(open_to_append(log), b"more")
        raise JobError("Spark does not start")

    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr(session, "require_jobs", lambda: None)
    return rmqctl("pipeline", "stats", root, "--engine", "spark", "--spark-log", log).expect(
        *range(1, 8)).err


def test_spark_logs_are_appended_to(tiny: tiny_stores.Tiny, tmp_path: Path, rmqctl: Runner,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("before ")
    assert "does not start" in _spark_log(rmqctl, monkeypatch, tiny.root, log)
    assert log.read_text() == "before more"


def test_spark_logs_follow_no_link_of_others(tiny: tiny_stores.Tiny, tmp_path: Path,
                                             rmqctl: Runner, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "log").symlink_to(tmp_path / "victim")
    spark_log = _spark_log(rmqctl, monkeypatch, tiny.root, shared / "log")
    assert "is a symbolic link in a folder that other users can write to" in spark_log
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o757, 0o1777])
@pytest.mark.parametrize("target", ["", "before"])
def test_a_link_is_followed_in_a_folder_of_ones_own(mode: int, target: str, tmp_path: Path) -> None:
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "log").symlink_to(victim)
    if target:
        victim.write_text(target)
    if mode == 0o755:
        fd = open_to_append(str(folder / "log"))
        os.write(fd, b"more")
        os.close(fd)
        assert victim.read_text() == f"{target}more"
        return
    with pytest.raises(RefusedError):
        open_to_append(str(folder / "log"))
    assert victim.exists() == bool(target)
