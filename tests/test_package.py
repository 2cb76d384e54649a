"""What an installation brings besides commands: types for programs, and manual pages."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rmqctl.commands import REGISTRY
from rmqctl.commands.app.describe import parameters
from rmqctl.commands.app.lazy import load
from rmqctl.errors import ExitCode

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SPEC = importlib.util.spec_from_file_location("manpages", ROOT / "docs" / "manpages.py")
MANUAL = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MANUAL)
CONSUMER = "import rmqctl\n\nreveal_type(rmqctl.open('store'))\n"


@pytest.fixture(scope="module")
def manual() -> dict[str, str]:
    return MANUAL.pages(MANUAL.reference(), "1.2.3")


def read(page: str) -> str:
    """A page as it is read: without roff's escapes and requests."""
    text = re.sub(r"\\f[BR]|\\&", "", page).replace(r"\-", "-").replace(r"\e", "\\")
    return " ".join(line for line in text.splitlines() if not line.startswith("."))


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: spec.title)
def test_a_page_has_every_argument_and_option(manual, spec):
    page = read(manual[f"rmqctl-{'-'.join(spec.name)}.1"])
    assert f"rmqctl-{'-'.join(spec.name)} - {spec.help} " in page
    for parameter in parameters(load(spec)):
        assert f"{parameter.names[0]}" in page
        if not parameter.panel:
            assert " ".join(parameter.help.split()).replace("`", "") in page


def test_the_first_page_names_all_others_and_the_exit_codes(manual):
    page = read(manual["rmqctl.1"])
    assert len(manual) == len(REGISTRY) + 1
    for name in manual.keys() - {"rmqctl.1"}:
        assert f"{name[:-2]}(1)" in page
    for code in ExitCode:
        assert f" {int(code)} {code.meaning.replace('`', '')}" in page


def test_what_roff_would_take_for_a_request_is_text():
    assert MANUAL._inline("`.bak` of -x \\n") == r"\fB\&.bak\fR of \-x \en"
    assert MANUAL._escaped("'x") == r"\&'x"


@pytest.mark.long
def test_a_wheel_has_types_for_programs_and_the_manual(tmp_path, monkeypatch):
    """Without the kernel, which takes a compiler: mypy knows what the package in it opens."""
    building = pytest.importorskip("hatchling.builders.wheel", exc_type=ImportError)
    monkeypatch.setenv("RMQCTL_KERNEL", "python")
    (wheel,) = building.WheelBuilder(str(ROOT)).build(directory=str(tmp_path / "dist"))
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(installed)
    assert sum("/data/share/man/man1/rmqctl" in name for name in names) == len(REGISTRY) + 1
    for package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"{package}/py.typed" in names
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    # Elsewhere than in the checkout, and the wheel's package before the one that is installed.
    # What of numpy and pydantic is in it says nothing here, and takes most of the time to read.
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-numpy.*,typer.*,rich.*]\nfollow_imports = skip\n")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={settings}", "--cache-dir=/dev/null",
         program], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)})
    assert 'Revealed type is "rmqctl.api.Store"' in result.stdout, result.stdout + result.stderr
    assert result.returncode == 0
