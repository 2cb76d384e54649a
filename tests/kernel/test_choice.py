"""Which kernel is used: what is there, what is asked for, and what is said about it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rmqctl import kernel
from rmqctl.errors import UnsupportedError, UsageError
from rmqctl.ext.spark.session import package_zip
from rmqctl.kernel import constants
from tests.support.kernels import compiled_only, using

ROOT = Path(__file__).parents[2]


def test_the_constants_are_those_of_the_declarations() -> None:
    assert constants.PXI.read_text() == constants.text(), "python -m rmqctl.kernel.constants"


def test_python_is_used_where_it_is_asked_for() -> None:
    with using("python"):
        assert kernel.active() is None
        assert kernel.name() == "python"


@compiled_only
def test_compiled_is_used_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("compiled", ""):
        with using(wanted):
            assert kernel.active() is not None
            assert kernel.name() == "compiled"


def test_without_a_compiled_module_python_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rmqctl.kernel.compiled", None)
    with using(""):
        assert kernel.active() is None
        assert kernel.name() == "python"
    with using("compiled"), pytest.raises(UnsupportedError, match="has no compiled kernel"):
        kernel.active()


@compiled_only
def test_a_module_of_another_source_is_not_used(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = kernel.chosen()
    assert module is not None
    folder = Path(kernel.__file__).parent
    for changed in kernel.sources(folder):
        for source in kernel.sources(folder):
            (tmp_path / source.name).write_bytes(source.read_bytes())
        (tmp_path / changed.name).write_bytes(changed.read_bytes() + b"\n")
        monkeypatch.setattr(module, "SOURCE", kernel.source_digest(tmp_path))
        with using(""):
            assert kernel.active() is None
        with using("compiled"), pytest.raises(UnsupportedError, match="other sources"):
            kernel.active()


def test_another_word_is_refused(rmqctl) -> None:
    with using("fast"), pytest.raises(UsageError, match="python or compiled"):
        kernel.active()
    done = rmqctl("commands", env={"RMQCTL_KERNEL": "fast"}).expect(2)
    assert "RMQCTL_KERNEL must be python or compiled, not 'fast'" in done.err


def test_a_command_says_at_once_that_the_kernel_is_missing(
        rmqctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rmqctl.kernel.compiled", None)
    done = rmqctl("commands", env={"RMQCTL_KERNEL": "compiled"}).expect(3)
    assert done.out == ""
    assert "has no compiled kernel" in done.err


def test_version_says_which(rmqctl_process) -> None:
    shown = rmqctl_process("--version", env={"RMQCTL_KERNEL": "python"}).expect(0).out
    assert shown.splitlines()[1:] == ["kernel: python"]
    assert re.fullmatch(r"rmqctl \S+\nkernel: (python|compiled)\n",
                        rmqctl_process("--version").expect(0).out)


def test_both_builds_give_the_same_answers_to_commands(rmqctl_process, golden) -> None:
    store = golden("5.3.3/crash-crc/before")
    for command in (("verify", store, "-o", "json"), ("read", store, "-o", "jsonl"),
                    ("stats", store, "--by", "topic", "-o", "json")):
        first, second = (rmqctl_process(*command, env={"RMQCTL_KERNEL": text})
                         for text in ("python", ""))
        assert (first.code, first.out) == (second.code, second.out), command


def kernel_of(archive: Path, *more: Path) -> str:
    """Which kernel the package in an archive has, as a worker of Spark's would load it."""
    places = [f"./{archive.name}", *map(str, more)]
    words = (f"import os, sys; sys.path[:0] = {places!r}; import rmqctl; os.chdir('/'); "
             "from rmqctl import kernel; print(kernel.name(), kernel.__file__)")
    name, file = subprocess.run(
        [sys.executable, "-I", "-S", "-c", words], text=True, check=True, capture_output=True,
        cwd=archive.parent, env={}).stdout.split(maxsplit=1)
    assert file.startswith(str(archive))
    return name


@compiled_only
def test_a_package_in_an_archive_takes_the_kernel_from_beside_it(tmp_path: Path) -> None:
    archive = Path(package_zip(str(tmp_path)))
    assert kernel_of(archive) == "python"
    module = kernel.chosen()
    assert module is not None
    shutil.copy(str(module.__file__), tmp_path)
    assert kernel_of(archive) == "compiled"
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr("rmqctl/kernel/another.pxi", "\n")
    assert kernel_of(archive) == "python"


@compiled_only
def test_a_package_in_an_archive_takes_the_kernel_of_an_installation(tmp_path: Path) -> None:
    module = kernel.chosen()
    assert module is not None
    installed = tmp_path / "site" / "rmqctl" / "kernel"
    installed.mkdir(parents=True)
    shutil.copy(str(module.__file__), installed)
    archive = Path(package_zip(str(tmp_path)))
    assert kernel_of(archive, tmp_path / "site") == "compiled"


@pytest.mark.exhaustive
@pytest.mark.long
def test_it_installs_without_a_compiler_and_with_one(tmp_path: Path) -> None:
    """Wheels, by pip as a user has it: pure without a compiler, else with the kernel in it."""
    import os

    def wheel(name: str, **environment: str) -> Path:
        folder = tmp_path / name
        subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet",
                        "--wheel-dir", folder, ROOT], check=True, env=os.environ | environment)
        return next(folder.iterdir())

    without = wheel("without", CC="/nonexistent/cc", RMQCTL_KERNEL="")
    assert without.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(without).namelist() if name.endswith(".so")]
    if subprocess.run(["cc", "--version"], capture_output=True, check=False).returncode == 0:
        compiled = wheel("with", RMQCTL_KERNEL="compiled")
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        assert f"-{tag}-{tag}-" in compiled.name
        assert [name for name in zipfile.ZipFile(compiled).namelist() if name.endswith(".so")]


def test_wheels_of_other_platforms_are_tested_with_what_is_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["environment"] == {kernel.VARIABLE: "compiled"}
    suites = [word for word in settings["test-command"].split() if word.endswith(".py")]
    assert suites
    for name in (*suites, *settings["test-sources"]):
        assert (ROOT / name).exists(), name
