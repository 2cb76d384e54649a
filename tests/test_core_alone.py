"""The core without the extensions: its tests pass, and a command without its extension says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin_run import AREAS

ROOT = Path(__file__).parents[1]
STORE = ROOT / "examples" / "store"
EXTENSIONS = sorted(path.name for path in (ROOT / "rmqctl" / "ext").iterdir()
                    if (path / "__init__.py").exists())
SAMPLE = ("tests/test_exit_codes.py", "tests/store/test_stats.py", "tests/commands/test_doctor.py",
          "tests/commands/test_verify.py", "tests/repair/test_truncate.py",
          "tests/checks/test_missing.py")
NOT_CORE = (*(folder for folders in AREAS.values() for folder in folders), "tests/browse/",
            # these look at the source, the documentation or the installation as a whole
            "tests/test_docs.py", "tests/test_examples.py", "tests/test_imports.py",
            "tests/test_package.py", "tests/test_startup.py", "tests/test_threads.py",
            "tests/test_run.py", "tests/test_core_alone.py", "tests/test_extras.py",
            "tests/test_words.py", "tests/test_languages.py", "tests/test_project.py",
            "tests/repair/test_nothing_deleted.py")


@pytest.fixture
def without(tmp_path: Path) -> Path:
    """A copy of the project without ``rmqctl/ext``."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("rmqctl", "tests", "examples", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "README.zh-CN.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.rmtree(tmp_path / "rmqctl" / "ext")
    return tmp_path


def suite(folder: Path, *words: str) -> int:
    """Run the copy's tests, none of which may fail; return how many passed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.support.core_alone", "-p",
         "no:cacheprovider", *words], capture_output=True, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout[-2000:]
    return int(passed[1])


@pytest.mark.long
def test_some_of_the_cores_tests_pass_without_extensions(without):
    assert suite(without, "--quick", "--", *SAMPLE) > 40


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_cores_tests_pass_without_extensions(without):
    ignored = [f"--ignore={name.rstrip('/')}" for name in NOT_CORE]
    assert suite(without, *ignored, "tests") > 1000


@pytest.mark.parametrize("words", [
    ("serve", STORE, "--listen", "127.0.0.1:0"), ("tiered", "ls", STORE),
    ("report", STORE, "--out", "OUT"), ("read", STORE, "--decode", "json"),
    ("pipeline", "sql", STORE, "SELECT 1"), ("verify", STORE, "--engine", "spark")],
    ids=lambda words: words[0])
def test_a_missing_extension_is_said_in_a_sentence(rmqctl, monkeypatch, tmp_path, words):
    for name in EXTENSIONS:
        for module in [*sys.modules]:
            if module.startswith(f"rmqctl.ext.{name}"):
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, f"rmqctl.ext.{name}", None)
    done = rmqctl(*(tmp_path / "out" if word == "OUT" else word for word in words))
    assert done.code == 3, done.describe()
    assert re.fullmatch(r"rmqctl: error: the extension rmqctl\.ext(\.\w+)* is required but not "
                        r"installed; install rmqctl again\n", done.err), done.describe()
    assert (done.out, list(tmp_path.iterdir())) == ("", [])


def test_the_core_needs_no_extension(rmqctl, monkeypatch):
    """Nor do the help and the list of commands."""
    monkeypatch.setitem(sys.modules, "rmqctl.ext", None)
    for words in (["verify"], ["stats"], ["read", "--limit", "1"], ["info"], ["recover"],
                  ["doctor"], ["undo", "--list"]):
        rmqctl(words[0], STORE, *words[1:]).expect(0, 1)
    for command in ("serve", "report", "browse"):
        rmqctl(command, "--help").expect(0)
