"""`convert --commitlog`: the log of several folders in one, and the other way round."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rmqctl.store import Store
from tests.support import snapshot, tiny
from tests.support.cli import run
from tests.support.holder import held
from tests.support.tiny import DEFAULT

FOLDERS = ("first", "second")


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A store with its log in two folders of its root, by turns."""
    return tiny.build(tmp_path / "store", DEFAULT * 3, commitlog_dirs=FOLDERS,
                      index_max=64).root


def log_of(root: Path) -> dict[str, tuple[bytes, int]]:
    with Store.open(root) as store:
        return {file.name: (Path(file.path).read_bytes(), os.stat(file.path).st_mtime_ns)
                for file in store.log.files}


def test_several_folders_become_one(several: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with snapshot.assert_unchanged(several):
        answer = run("convert", several, "--commitlog", "plain", "--out", new, "-o",
                     "json").expect(0).json()
    assert sorted(os.listdir(new)) == sorted(
        {*os.listdir(several)} - {*FOLDERS, "lock"} | {"commitlog"})
    assert log_of(new) == log_of(several)
    assert answer["folders"] == {str(new / "commitlog"): len(log_of(several))}
    assert answer["broker_conf"] == {"storePathCommitLog": str(new / "commitlog")}
    assert run("info", new, "-o", "json").json()["layout"]["commitlog"] == "plain"
    run("diff", several, new).expect(0)
    run("verify", new).expect(0)


def test_one_folder_becomes_several_where_a_broker_would_put_each_file(tmp_path: Path) -> None:
    """The n-th file lies in the n-th folder by name; they are remembered, wherever they are."""
    root = tiny.build(tmp_path / "store", DEFAULT * 3, index_max=64).root
    new, far = tmp_path / "new", tmp_path / "far/log"
    with snapshot.assert_unchanged(root):
        answer = run("convert", root, "--commitlog", "multi-path", "--into", far, "--into", "log-b",
                     "--out", new, "-o", "json").expect(0).json()
    assert answer["broker_conf"] == {"storePathCommitLog": f"{far},{new / 'log-b'}"}
    for name in log_of(root):
        assert (far if int(name) // 1024 % 2 == 0 else new / "log-b").joinpath(name).exists()
    assert log_of(new) == log_of(root)
    run("diff", root, new).expect(0)
    run("verify", new).expect(0)
    run("convert", new, "--commitlog", "plain", "--out", tmp_path / "back").expect(0)
    assert log_of(tmp_path / "back") == log_of(root)
    assert run("info", tmp_path / "back", "-o", "json").json()["layout"]["commitlog"] == "plain"


def test_folders_outside_of_the_root(several: Path, tmp_path: Path) -> None:
    (several / "second").rename(tmp_path / "elsewhere")
    dirs = ("--commitlog-dir", "first", "--commitlog-dir", tmp_path / "elsewhere")
    before = {name for folder in (several / "first", tmp_path / "elsewhere")
              for name in os.listdir(folder)}
    run("convert", several, *dirs, "--commitlog", "plain", "--out", tmp_path / "new").expect(0)
    assert {*os.listdir(tmp_path / "new/commitlog")} == before


def test_files_of_one_name(several: Path, tmp_path: Path) -> None:
    """The same bytes twice are one file; which of two different ones counts is unknown."""
    name, files = min(os.listdir(several / "first")), {*log_of(several)}
    shutil.copy(several / "first" / name, several / "second" / name)
    dirs = ("--commitlog-dir", "first", "--commitlog-dir", "second")
    words = ("convert", several, *dirs, "--commitlog", "plain", "--out")
    run(*words, tmp_path / "new").expect(0)
    assert {*os.listdir(tmp_path / "new/commitlog")} == files
    (several / "second" / name).write_bytes(b"x" * 1024)
    assert "the same name" in run(*words, tmp_path / "other").expect(6).err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("into", [("a",), ("a", "a"), ("a", "a/b"), ("consumequeue", "a"),
                                  ("a,b", "c")])
def test_folders_that_cannot_be(several: Path, tmp_path: Path, into: tuple[str, ...]) -> None:
    options = [word for folder in into for word in ("--into", folder)]
    run("convert", several, "--commitlog", "multi-path", *options, "--out",
        tmp_path / "new").expect(2)
    assert not (tmp_path / "new").exists()


def test_what_is_refused(several: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    run("convert", several, "--commitlog", "plain").expect(2)
    run("convert", several, "--commitlog", "multi-path", "--out", new).expect(2)
    run("convert", several, "--commitlog", "plain", "--into", "a", "--out", new).expect(2)
    run("convert", several, "--commitlog", "plain", "--out", several / "first/new").expect(2)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    run("convert", several, "--commitlog", "plain", "--out", tmp_path / "taken").expect(6)
    with held(several):
        run("convert", several, "--commitlog", "plain", "--out", new).expect(4)
    assert not new.exists()
