"""What a command loads before it works: start-up is nearly all of a short run's time.

Modules are counted instead of seconds, which depend on the machine and on who else uses it.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmqctl import cli
from rmqctl.__main__ import run
from rmqctl.commands import REGISTRY
from tests.fake_command import with_command

ROOT = Path(__file__).parents[1]
HEAVY = ("numpy", "pyarrow", "construct", "pandas", "rich", "tabulate", "pydantic", "pyspark",
         "textual")
POOLS = ("multiprocessing", "concurrent.futures", "logging", "socket", "asyncio")
"""What comes with a pool of processes."""
SELDOM = ("numpy.ma", "fractions", "decimal", "email", "ctypes.util", "tempfile", "unittest")
OTHERS = r"rmqctl\.(engine|ext|export|sql|repair\.(recover|salvage|rebuild))"
SCRIPT = """
import sys
import time
from rmqctl.__main__ import run
sys.argv[0] = "rmqctl"
code = run()
sys.stderr.write("\\n" + " ".join(sys.modules))
sys.exit(code)
"""


def loaded(*args: object, codes: tuple[int, ...] = (0,)) -> set[str]:
    """The modules that a process of rmqctl has at its end."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, args)],
                          capture_output=True, text=True, cwd=ROOT)
    assert done.returncode in codes, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_modules_for_rare_cases_are_executed_at_first_use():
    script = """
import threading
from rmqctl.__main__ import run
sys.argv = ["rmqctl", "--version"]
run()
import hashlib, numpy, pdb
print("md5" in vars(hashlib), "Pdb" in vars(pdb), hasattr(pdb, "none"), "Pdb" in vars(pdb),
      file=sys.stderr)
digests = []
both = [threading.Thread(target=lambda: digests.append(hashlib.md5(b"").hexdigest()[:4]))
        for _ in range(2)]
for thread in both: thread.start()
for thread in both: thread.join()
print(digests, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", f"import sys\n{script}"], capture_output=True,
                          text=True, cwd=ROOT)
    assert done.stderr.splitlines() == ["False False False True", "['d41d', 'd41d']"]


def ours(modules: set[str]) -> int:
    return sum(name.startswith("rmqctl") for name in modules)


@pytest.mark.parametrize("words", ["--help", "query --help", "--version", "tiered --help"])
def test_help_loads_no_library_and_no_command(words):
    modules = loaded(*words.split())
    assert modules & {*HEAVY, *POOLS, *SELDOM} == set()
    assert not modules & {spec.module for spec in REGISTRY}
    assert not {name for name in modules if re.match(r"rmqctl\.(formats|scan|store)", name)}
    assert ours(modules) <= 29


@pytest.mark.parametrize(("words", "most"), [
    ("query key STORE --topic TopicTest --key k -o json", 127),
    ("query id STORE 0A00000100002A9F0000000000000000 -o json", 104),
    ("query time STORE --topic TopicTest --queue 0 --time 0 -o json", 132),
    ("query offset STORE --phy 0 -o json", 104),
    ("read STORE --topic TopicTest --queue 0 --offset 0 -o json", 127),
    ("read STORE --limit 1 -o json", 125),
    ("stats STORE --by topic -o json", 227),
    ("info STORE -o json", 162),
    ("verify STORE -o json", 257),
])
def test_a_command_loads_what_it_needs(tiny, words, most):
    modules = loaded(*(tiny.root if word == "STORE" else word for word in words.split()),
                     codes=(0, 1))
    assert "numpy" in modules
    assert modules & {*HEAVY, *POOLS, *SELDOM} == {"numpy", "construct"}
    assert not {name for name in modules if re.match(OTHERS, name)}
    assert ours(modules) <= most


def test_browse_loads_no_screen_without_a_terminal(tiny):
    modules = loaded("browse", tiny.root, codes=(2,))
    assert modules & {"numpy", "construct", "textual"} == set()


def test_no_look_for_cycles_before_the_command_runs(monkeypatch):
    states = []
    with_command(monkeypatch, "def command() -> None:\n    '''Looks.'''\n    look()\n")
    monkeypatch.setattr(sys.modules["rmqctl_fake_fake"], "look",
                        lambda: states.append(gc.isenabled()), raising=False)
    build = cli.build

    def watched():
        states.append(gc.isenabled())
        return build()

    monkeypatch.setattr(cli, "build", watched)
    monkeypatch.setattr(sys, "argv", ["rmqctl", "fake"])
    try:
        assert run() == 0
        assert states == [False, True]
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.long
def test_start_up_is_fast():
    """The bound is the promise made to cron; the aim is half of it."""

    def seconds(*args: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "rmqctl", *args], stdout=subprocess.DEVNULL,
                       check=True, cwd=ROOT)
        return time.perf_counter() - begin

    assert min(seconds("--help") for _ in range(5)) < 0.3
    assert min(seconds("query", "--help") for _ in range(5)) < 0.3
