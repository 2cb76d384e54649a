"""What an installation without the extras does: everything but Spark, Arrow and tiers by URL."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rmqctl.commands.app.exit_codes import report
from rmqctl.errors import EXTRAS, MissingExtraError
from rmqctl.installation import command_for

ROOT = Path(__file__).parents[1]
STORE = ROOT / "examples" / "store"
EVERYTHING_ELSE = """
import pkgutil, sys
for name in ("pyarrow", "fastavro", "duckdb", "pyspark", "pandas", "fsspec", "textual", "jinja2",
             "matplotlib", "rocksdict", "grpc", "uvloop"):
    sys.modules[name] = None
import rmqctl
for module in pkgutil.walk_packages(rmqctl.__path__, "rmqctl."):
    if not module.name.startswith(("rmqctl.ext.spark.", "rmqctl.ext.browse.",
                                   "rmqctl.ext.serve.grpc.", "rmqctl.export.", "rmqctl.sql.",
                                   "rmqctl.__main__")) \\
            and module.name not in ("rmqctl.scan.columns", "rmqctl.scan.tables",
                                    "rmqctl.store.queue.unit_columns",
                                    "rmqctl.store.page_columns",
                                    "rmqctl.repair.sources.read_back"):
        __import__(module.name)
from rmqctl.cli import main
store = sys.argv[1]
for words in (["verify"], ["stats", "--by", "tag"], ["read", "-o", "json"], ["info"],
              ["recover"], ["query", "key", "--topic", "TopicTest", "--key", "order-1"],
              ["pipeline", "verify", "--engine", "local"],
              ["export", "--out", "-"], ["export", "--out", "-", "--format", "csv"]):
    at = 2 if words[0] in ("query", "pipeline") else 1
    sys.argv = ["rmqctl", *words[:at], store, *words[at:]]
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    assert code in (0, 1, None), (words, code)
"""


@pytest.mark.parametrize(("missing", "words", "extra"), [
    ("pyspark", ["pipeline", "sql", STORE, "SELECT 1"], "spark"),
    ("pyspark", ["pipeline", "sql", STORE, "SELECT 1", "--dry-run"], "spark"),
    ("pyspark", ["pipeline", "verify", STORE, "--engine", "spark"], "spark"),
    ("pyspark", ["pipeline", "stats", STORE, "--engine", "spark"], "spark"),
    ("pyspark", ["pipeline", "rebuild", STORE, "--engine", "spark"], "spark"),
    ("pyspark", ["verify", STORE, "--engine", "spark"], "spark"),
    ("pyspark", ["stats", STORE, "--engine", "spark"], "spark"),
    ("pyspark", ["pipeline", "export", STORE, "--out", "OUT", "--engine", "spark"], "spark"),
    ("pyarrow", ["pipeline", "export", STORE, "--out", "OUT"], "data"),
    ("pyarrow", ["pipeline", "export", STORE, "--out", "OUT", "--format", "json"], "data"),
    ("fastavro", ["pipeline", "export", STORE, "--out", "OUT", "--format", "avro"], "data"),
    ("pyarrow", ["pipeline", "sql", STORE, "SELECT 1"], "data"),
    ("fsspec", ["tiered", "ls", "memory://tier"], "url"),
    ("grpc", ["serve", STORE, "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
              "--idle-exit", "1"], "grpc"),
    ("uvloop", ["serve", STORE, "--uvloop", "--listen", "127.0.0.1:0"], "uvloop"),
    ("fsspec", ["tiered", "verify", "s3://bucket/tier"], "url"),
    ("fsspec", ["backup", "list", "s3://bucket/backup"], "url"),
])
def test_a_missing_extra_is_said_in_a_sentence(rmqctl, monkeypatch, tmp_path, missing, words,
                                               extra):
    monkeypatch.setitem(sys.modules, missing, None)
    done = rmqctl(*(tmp_path / "out" if word == "OUT" else word for word in words))
    assert done.code == 3, done.describe()
    last = done.err.splitlines()[-1]
    assert missing in last, done.describe()
    assert command_for(extra) in last, done.describe()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("prefix", "frozen", "image", "wanted"), [
    ("/usr", False, False, "pip install 'rmqctl[data]'"),
    ("/home/me/.local/share/pipx/venvs/rmqctl", False, False,
     "pipx install --force 'rmqctl[data]'"),
    ("/home/me/.local/share/uv/tools/rmqctl", False, True, "uv tool install 'rmqctl[data]'"),
    ("/home/me/.cache/uv/archive-v0/Xy12", False, False, "uvx --from 'rmqctl[data]' rmqctl"),
    ("/opt/rmqctl", False, True, "docker build --build-arg EXTRAS=data -t rmqctl ."),
    ("/tmp/_MEI1", True, False, "make binary EXTRAS=data"),
])
def test_the_command_is_that_of_the_installation(prefix: str, frozen: bool, image: bool,
                                                 wanted: str) -> None:
    assert wanted in command_for("data", prefix=prefix, is_frozen=frozen, in_image=image)


def test_one_that_is_met_late_is_said_in_the_same_way(capsys):
    late = ModuleNotFoundError("No module named 'pyarrow.compute'", name="pyarrow.compute")
    assert report(late, []) == 3
    assert capsys.readouterr().err == f"rmqctl: error: {MissingExtraError('pyarrow')}\n"


def test_everything_else_works_without_them():
    done = subprocess.run([sys.executable, "-c", EVERYTHING_ELSE, str(STORE)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, (extra, _) in EXTRAS.items():
        package = name.removeprefix("google.")  # what is installed brings it
        assert any(line.startswith(package) for line in extras[extra])
        assert not any(line.startswith(package) for line in project["dependencies"])
    assert {"rmqctl[data]"} <= set(extras["spark"])
    assert extras["all"] == ["rmqctl[spark,tui,url,decode,report,rocksdb,grpc,uvloop]"]
