"""The program around the commands: registration, arguments, help, exit codes, signals, streams."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import rmqctl
from rmqctl import kernel
from rmqctl.cli import main
from rmqctl.commands import EFFECTS, REGISTRY
from rmqctl.commands.app.coerce import _Coercion
from rmqctl.commands.app.lazy import load
from rmqctl.errors import ExitCode
from tests.fake_command import with_command

ROOT = Path(__file__).parents[1]
TITLES = [spec.title for spec in REGISTRY]
HEAVY = ("numpy", "pyarrow", "construct", "pandas", "rich", "tabulate", "pydantic", "pyspark")


def run(capsys, *args: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def raising(expression: str) -> str:
    return f"def command() -> None:\n    '''Fails.'''\n    raise {expression}\n"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("RMQCTL_STORE", "RMQCTL_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


# -- the registry -------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", REGISTRY, ids=TITLES)
def test_every_command_says_what_it_is_for(spec):
    assert import_module(spec.module).command.__doc__


@pytest.mark.parametrize("spec", REGISTRY, ids=TITLES)
def test_every_parameter_is_explained_and_light(spec):
    for param in load(spec).params:
        assert param.help, f"{spec.title}: {param.name} has no help"
        assert isinstance(param._runtime_param, _Coercion), (
            f"{spec.title}: {param.name} would be converted by pydantic, which is slow to load"
        )


def test_every_command_module_is_registered():
    folder = ROOT / "rmqctl" / "commands"
    joineds = {
        ".".join(("rmqctl.commands", *path.relative_to(folder).with_suffix("").parts))
        for path in folder.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "command"
    }
    assert joineds == {spec.module for spec in REGISTRY}


def test_names_are_unique_and_helps_are_one_line():
    assert len(set(TITLES)) == len(TITLES)
    for spec in REGISTRY:
        assert spec.effect in EFFECTS
        assert 10 < len(spec.help) <= 60, spec.title
        assert not spec.help.endswith(".")


def test_commands_lists_everything(capsys):
    code, out, _ = run(capsys, "commands", "-o", "json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == TITLES
    mine = rows[-1]
    assert mine["effect"] == "read-only"
    output = next(option for option in mine["options"] if "--output" in option["names"])
    assert output["choices"] == ["table", "json", "jsonl", "csv", "tsv", "markdown", "plain"]
    assert output["type"] == "choice"
    assert output["default"] is None
    assert not output["required"]


# -- help ---------------------------------------------------------------------------------------


def test_help_names_every_command(capsys):
    code, out, err = run(capsys, "--help")
    assert code == 0
    assert err == ""
    for spec in REGISTRY:
        assert re.search(rf"^  {spec.name[0]} ", out, re.MULTILINE), spec.title


def test_group_help_names_its_commands(capsys):
    code, out, _ = run(capsys, "query", "--help")
    assert code == 0
    assert all(re.search(rf"^  {word} ", out, re.MULTILINE) for word in ("key", "id", "time"))


def test_the_bare_program_shows_its_help(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out == run(capsys, "--help")[1]


@pytest.mark.parametrize("args", [["query"], ["tiered"], ["tiered", "query"]])
def test_nothing_asked_for_is_a_usage_error_with_help(capsys, args):
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: rmqctl")


def test_command_help_has_usage_effect_defaults_and_examples(capsys, monkeypatch):
    with_command(
        monkeypatch,
        'def command(store: Store, word: Annotated[str, typer.Argument(help="A word.")] = "x",'
        ' size: CommitlogFileSize = None, jobs: Jobs = 1, body: Body = "auto",'
        " output: OutputFormat = None) -> None:\n"
        "    '''Do [a] thing that takes\n    two lines.\n\n"
        "        rmqctl fake store   # stays as it is\n    '''\n",
    )
    code, out, _ = run(capsys, "help", "options", "fake")
    assert code == 0
    assert out.startswith("Usage: rmqctl fake [OPTIONS] STORE [WORD]\n")
    assert "  Do [a] thing that takes two lines.\n" in out
    assert "    rmqctl fake store   # stays as it is\n" in out
    assert "--commitlog-file-size SIZE" in out
    assert "-o, --output FORMAT" in out
    assert "[env: RMQCTL_STORE]" in out
    assert "[default: auto]" in " ".join(out.split())
    assert "Effect: read-only: opens nothing for writing" in " ".join(out.split())
    assert "\x1b" not in out


def test_version(capsys):
    assert run(capsys, "--version") == (
        0, f"rmqctl {rmqctl.__version__}\nkernel: {kernel.name()}\n", "")


def test_a_command_loads_neither_pydantic_nor_rich(tmp_path):
    source = tmp_path / "fake.py"
    source.write_text(
        "def command(store: Store, since: Since = None, tz: Zone = UTC, jobs: Jobs = 1,\n"
        "            output: OutputFormat = None, quiet: Quiet = 0) -> None:\n"
        "    '''Looks around.'''\n"
        "    open_output(output).rows([{'modules': sorted(sys.modules)}])\n"
    )
    done = fake_process(source, "store", "-o", "json", "--since", "-2h", "-q")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)[0]["modules"]) & set(HEAVY) == set()


def test_lack_of_memory_is_no_finding_and_no_defect(tiny):
    """OpenBLAS ends its process with 1 where it gets none, which would read as "findings"."""
    for limit in (60 << 20, 100 << 20, 124 << 20):
        script = (f"import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, ({limit},) * 2)\n"
                  "from rmqctl.cli import main\nsys.exit(main(sys.argv[1:]))")
        done = subprocess.run([sys.executable, "-c", script, "info", str(tiny.root)],
                              capture_output=True, text=True, cwd=ROOT)
        assert done.returncode in (0, 5), (limit, done.stderr)
        assert done.returncode == 0 or done.stderr == (
            "rmqctl: error: out of memory\n")
        assert done.returncode == 5 or limit > 60 << 20


# -- arguments ----------------------------------------------------------------------------------

ECHO = """
def command(store: Store, word: Annotated[Literal["topics", "groups"] | None,
            typer.Argument(help="Which.")] = None, since: Since = None) -> None:
    '''Echo.'''
    Output.open("json").document({"store": store, "word": word, "since": since})
"""
ECHO_ID = """
def command(store: Store, msg_id: Annotated[str, typer.Argument(help="Id.")]) -> None:
    '''Echo.'''
    Output.open("json").document({"store": store, "id": msg_id})
"""


@pytest.mark.parametrize(
    ("args", "environment", "expected"),
    [
        (["S"], None, {"store": "S", "word": None}),
        ([], "E", {"store": "E", "word": None}),
        (["S"], "E", {"store": "S", "word": None}),
        (["S", "topics"], "E", {"store": "S", "word": "topics"}),
        (["topics"], "E", {"store": "E", "word": "topics"}),
        (["topics"], None, {"store": "topics", "word": None}),
        (["topics", "groups"], "E", {"store": "topics", "word": "groups"}),
        (["--since", "now", "topics"], "E", {"store": "E", "word": "topics"}),
    ],
)
def test_the_environment_stands_in_for_store(capsys, monkeypatch, args, environment, expected):
    with_command(monkeypatch, ECHO)
    if environment:
        monkeypatch.setenv("RMQCTL_STORE", environment)
    code, out, err = run(capsys, "fake", *args)
    assert code == 0, err
    assert json.loads(out).items() >= expected.items()


def test_the_environment_stands_in_for_store_before_a_required_argument(capsys, monkeypatch):
    with_command(monkeypatch, ECHO_ID)
    monkeypatch.setenv("RMQCTL_STORE", "E")
    assert json.loads(run(capsys, "fake", "A0")[1]) == {"store": "E", "id": "A0"}
    assert json.loads(run(capsys, "fake", "S", "A0")[1]) == {"store": "S", "id": "A0"}
    code, _, err = run(capsys, "fake")
    assert code == 2
    assert "MSG_ID" in err.upper()


def test_a_missing_store_names_the_variable(capsys, monkeypatch):
    with_command(monkeypatch, ECHO)
    code, out, err = run(capsys, "fake")
    assert (code, out) == (2, "")
    assert err == (
        "rmqctl: error: Missing argument 'STORE': name a store, or set RMQCTL_STORE\n"
        "Try 'rmqctl fake --help'.\n"
    )


@pytest.mark.parametrize("args", [["--since", "-2h"], ["--since=-2h"]])
def test_a_relative_time_is_a_value_and_no_option(capsys, monkeypatch, args):
    with_command(monkeypatch, ECHO)
    code, out, err = run(capsys, "fake", "S", *args)
    assert code == 0, err
    assert json.loads(out)["since"] == "-2h"


@pytest.mark.parametrize(
    ("args", "expected_text"),
    [
        (["reed"], "Did you mean 'read'"),
        (["query", "keys"], "Did you mean 'key'"),
        (["tired", "ls"], "Did you mean 'tiered'"),
        (["no-such-thing"], "No such command 'no-such-thing'"),
        (["--frobnicate"], "No such option: --frobnicate"),
        (["commands", "--outptu", "json"], "--output"),
        (["commands", "-o", "xml"], "expected one of table, json, jsonl, csv, tsv, markdown"),
        (["commands", "surplus"], "surplus"),
        (["commands", "-o"], "requires an argument"),
    ],
)
def test_usage_errors(capsys, args, expected_text):
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert expected_text in err
    assert err.startswith("rmqctl: error: ")
    assert "--help'." in err


@pytest.mark.parametrize("spec", [spec for spec in REGISTRY if len(spec.name) == 1
                                  or spec.name[0] in ("tiered", "query")],
                         ids=lambda spec: spec.title)
def test_a_typing_error_is_never_answered_with_what_changes_a_store(capsys, spec):
    changing = {other.name[-1] for other in REGISTRY if other.effect == "mutates"
                and other.name[:-1] == spec.name[:-1]}
    *group, word = spec.name
    for typed in (word[:-1], word + word[-1], word[0] + word[2:], f"{word[1]}{word[0]}{word[2:]}"):
        if typed in {other.name[len(group)] for other in REGISTRY
                     if list(other.name[:len(group)]) == group}:
            continue
        code, out, err = run(capsys, *group, typed, "STORE")
        assert (code, out) == (2, "")
        assert f"No such command {typed!r}" in err
        assert not changing & set(re.findall(r"'([a-z-]+)'", err.partition("Did you mean")[2]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--commitlog-file-size", "12 parsecs"),
        ("--jobs", "many"),
        ("--jobs", "-1"),
        ("--jobs", "99999999999999999999999"),
        ("--tz", "Mars/Olympus"),
        ("--from-phy", "0xZZ"),
        ("--where", "nonsense"),
        ("--body", "rot13"),
        ("--sample", "200%"),
        ("--queue", "2147483648"),
    ],
)
def test_bad_values_name_their_option(capsys, monkeypatch, option, value):
    with_command(
        monkeypatch,
        "def command(size: CommitlogFileSize = None, jobs: Jobs = 1, tz: Zone = UTC,\n"
        "    phy: FromPhy = None, where: Where = None, body: Body = 'auto',\n"
        "    sample: Sample = None, queue: Queue = None) -> None:\n    '''Nothing.'''\n",
    )
    code, out, err = run(capsys, "fake", option, value)
    assert (code, out) == (2, "")
    assert f"Invalid value for '{option}'" in err
    assert err.count("\n") == 2


def test_values_arrive_parsed(capsys, monkeypatch):
    with_command(
        monkeypatch,
        "def command(size: CommitlogFileSize = None, tz: Zone = UTC, phy: FromPhy = None,\n"
        "    where: Where = None, dirs: CommitlogDirs = None, quiet: Quiet = 0) -> None:\n"
        "    '''Echo.'''\n"
        "    Output.open('json').document({'size': size, 'tz': str(tz), 'phy': phy,\n"
        "        'where': where, 'dirs': dirs, 'quiet': quiet})\n",
    )
    _, out, _ = run(
        capsys, *"fake --commitlog-file-size 64KiB --tz +08:00 --from-phy 0x10 -qq".split(),
        *"--where topic=T --where keys= --commitlog-dir a --commitlog-dir b".split(),
    )  # fmt: skip
    assert json.loads(out) == {
        "size": 65536, "tz": "UTC+08:00", "phy": 16, "quiet": 2, "dirs": ["a", "b"],
        "where": [["topic", "=", "T"], ["keys", "=", ""]],
    }  # fmt: skip
    assert json.loads(run(capsys, "fake")[1]) == {
        "size": None, "tz": "UTC", "phy": None, "quiet": 0, "dirs": None, "where": None,
    }  # fmt: skip


def test_a_group_may_run_a_command_under_its_own_name(capsys, monkeypatch):
    with_command(
        monkeypatch,
        "def command(store: Store, apply: Annotated[bool, typer.Option('--apply', help='Do.')]"
        " = False) -> None:\n    '''All.'''\n"
        "    Output.open('json').document({'all': store, 'apply': apply})\n",
        name="mend",
        mend_table="def command(store: Store) -> None:\n    '''One.'''\n"
        "    Output.open('json').document({'table': store})\n",
    )
    assert json.loads(run(capsys, "mend", "S", "--apply")[1]) == {"all": "S", "apply": True}
    assert json.loads(run(capsys, "mend", "--apply", "S")[1]) == {"all": "S", "apply": True}
    assert json.loads(run(capsys, "mend", "table", "S")[1]) == {"table": "S"}
    _, out, _ = run(capsys, "mend", "--help")
    assert "--apply" in out
    assert "table  The fake mend table" in out


# -- exit codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "code", "expected_text"),
    [
        ("RmqctlError('no such topic')", 6, "rmqctl: error: no such topic"),
        ("RefusedError('too long')", 6, "rmqctl: error: too long"),
        ("UsageError('--a excludes --b')", 2, "rmqctl: error: --a excludes --b"),
        ("NotAStoreError('x: no commitlog')", 3, "rmqctl: error: x: no commitlog"),
        ("UnsupportedError('timer v9')", 3, "rmqctl: error: timer v9"),
        ("StoreHeldError('held by process 42')", 4, "rmqctl: error: held by process 42"),
        ("StoreIOError('x: gone')", 5, "rmqctl: error: x: gone"),
        (
            "FormatError('not a magic', file='f/0', offset=4096, path='header.magic')",
            3,
            "rmqctl: error: f/0 @4096 field header.magic: not a magic",
        ),
        (
            f"PermissionError({errno.EACCES}, 'denied', '/s/0')",
            5,
            "rmqctl: error: /s/0: permission denied (EACCES)",
        ),
        (
            f"OSError({errno.ENOSPC}, 'full', '/s/0')",
            5,
            "rmqctl: error: /s/0: no space left on the device (ENOSPC)",
        ),
        ("OSError('odd')", 5, "rmqctl: error: odd"),
        ("MemoryError()", 5, "rmqctl: error: out of memory"),
        ("ImportError('x.so: failed to map segment from shared object')", 5, "out of memory"),
        ("RuntimeError(\"can't start new thread\")", 5, "out of memory"),
        ("ImportError('numpy did not load') from ImportError('libx: Cannot allocate memory')", 5,
         "out of memory"),
        ("ModuleNotFoundError('x', name='lz4')", 6, "'lz4' is not installed"),
        ("KeyboardInterrupt()", 130, "rmqctl: interrupted"),
        ("typer.Abort()", 130, "rmqctl: interrupted"),
        ("BrokenPipeError()", 141, ""),
        ("typer.Exit(1)", 1, ""),
        ("typer.Exit()", 0, ""),
        ("InternalError('impossible')", 70, "a defect in rmqctl: InternalError: impossible"),
        ("KeyError('x')", 70, "a defect in rmqctl: KeyError: 'x'"),
        ("RecursionError('deep')", 70, "a defect in rmqctl: RecursionError: deep"),
        ("AssertionError()", 70, "a defect in rmqctl: AssertionError (rmqctl"),
        ("RmqctlError('a\\nb\\x1b[31m')", 6, "rmqctl: error: a b\\x1b[31m"),
        ("RmqctlError('name \\udcff')", 6, "rmqctl: error: name \\udcff"),
    ],
)
def test_exit_codes(capsys, monkeypatch, expression, code, expected_text):
    with_command(monkeypatch, raising(expression))
    monkeypatch.setattr("rmqctl.cli.silence_stdout", lambda *, discard: None)
    got, out, err = run(capsys, "fake")
    assert (got, out) == (code, "")
    assert expected_text in err
    assert bool(expected_text) == bool(err)
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


def test_a_returned_code_is_the_exit_code(capsys, monkeypatch):
    with_command(monkeypatch, "def command() -> int:\n    '''Counts.'''\n    return 1\n")
    assert run(capsys, "fake")[0] == 1


def test_a_defect_asks_for_a_report_with_what_it_needs(capsys, monkeypatch):
    with_command(monkeypatch, "def command() -> None:\n    '''Bad.'''\n    parse_size(None)\n")
    code, _, err = run(capsys, "fake")
    first, second = err.splitlines()
    assert code == 70
    assert re.search(rf"\(rmqctl {re.escape(rmqctl.__version__)}, at rmqctl/\S+\.py:\d+\)$", first)
    assert "at rmqctl/parse_values.py:" in first
    assert "report" in second


@pytest.mark.parametrize(
    ("variable", "args", "shown"),
    [
        ("1", [], True),
        ("0", [], False),
        ("", [], False),
        ("", ["-vv"], True),
        ("", ["-v", "-v"], True),
        ("", ["-qvv"], True),
        ("", ["-v"], False),
        ("", ["--verbose", "--verbose"], True),
    ],
)
def test_a_traceback_only_when_asked_for(capsys, monkeypatch, variable, args, shown):
    with_command(
        monkeypatch,
        "def command(verbose: Verbose = 0, quiet: Quiet = 0) -> None:\n"
        "    '''Bad.'''\n    raise KeyError('x')\n",
    )
    monkeypatch.setenv("RMQCTL_DEBUG", variable)
    code, _, err = run(capsys, "fake", *args)
    assert code == 70
    assert ("Traceback (most recent call last)" in err) == shown


def test_the_numbers_of_the_exit_codes_are_fixed():
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0, "FINDINGS": 1, "USAGE": 2, "NOT_A_STORE": 3, "HELD": 4, "IO": 5, "FAILED": 6,
        "INTERNAL": 70, "INTERRUPTED": 130, "PIPE_CLOSED": 141, "TERMINATED": 143,
    }  # fmt: skip
    assert all(code.meaning for code in ExitCode)


# -- processes: signals and streams -------------------------------------------------------------


def fake_command_line(source: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "tests.fake_command", str(source), *args]


def fake_process(source: Path, *args: str, **options) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": 60, "cwd": ROOT} | options
    return subprocess.run(fake_command_line(source, *args), **options)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_signals_end_at_a_safe_point(tmp_path, number, code):
    source = tmp_path / "fake.py"
    source.write_text(
        "def command() -> None:\n    '''Sleeps.'''\n"
        "    out = Output.open('jsonl')\n"
        "    def rows():\n"
        "        yield {'n': 1}\n        yield FLUSH\n        time.sleep(60)\n"
        "    try:\n        out.rows(rows())\n"
        "    finally:\n        out.note('tidied up')\n"
    )
    with subprocess.Popen(
        fake_command_line(source), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == '{"n": 1}\n'
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.splitlines()[0] == "rmqctl: tidied up"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["TERM", "INT"]
)
def test_signals_end_threads_in_the_midst_of_their_work(tmp_path, number, code):
    """Tasks that would read for ever, as from a large log."""
    source, data = tmp_path / "fake.py", tmp_path / "data"
    data.write_bytes(b"data")
    source.write_text(
        "def work(task):\n"
        "    from rmqctl.scan.source import FileSource\n"
        f"    with FileSource({str(data)!r}) as source:\n"
        "        os.write(1, b'%d\\n' % task)\n"
        "        while source.read(0, 4):\n            time.sleep(0.001)\n"
        "def command() -> None:\n    '''Works.'''\n"
        "    from rmqctl.store.log.ranges import Threads\n"
        "    list(Threads(3).run(work, range(9)))\n"
        "    print('partial')\n"
    )
    with subprocess.Popen(
        fake_command_line(source), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert {process.stdout.readline() for _ in range(3)} == {"0\n", "1\n", "2\n"}
            process.send_signal(number)
            started = time.monotonic()
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()  # one that does not end would hold the tests up for ever
    assert (process.returncode, out) == (code, "")
    assert err == ("rmqctl: interrupted\n" if code == 130 else "rmqctl: terminated\n")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(("limit", "most"), [
    ("100000 100000\n", 1), ("150000 100000", 2), ("max 100000", 3), ("", 3), ("1 0", 3),
    ("-1 100000", 1), (None, 3)])
def test_jobs_are_the_cores_of_the_process_and_its_container(limit, most, tmp_path, monkeypatch):
    from rmqctl.commands.shared import options

    file = tmp_path / "cpu.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(options, "_CPU_LIMIT", str(file))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 7})
    assert options.worker_count(0) == most
    assert options.worker_count(5) == 5


@pytest.mark.parametrize("fmt", ["jsonl", "json", "csv", "plain", "markdown", "table"])
def test_a_reader_that_leaves_is_no_error(tmp_path, fmt):
    source = tmp_path / "fake.py"
    source.write_text(
        "def command(output: OutputFormat = None) -> None:\n    '''Much.'''\n"
        "    open_output(output).rows({'n': n, 'text': 'x' * 50} for n in range(10**9))\n"
    )
    with subprocess.Popen(
        fake_command_line(source, "-o", fmt), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(timeout=30) == 141
    assert err == ""


ONE_ROW = (
    "def command(output: OutputFormat = None) -> None:\n    '''One.'''\n"
    "    open_output(output).rows([{'text': 'h\\u00e9 \\udcff', 'fd': os.open('/', 0)}])\n"
)


@pytest.mark.parametrize("fmt", ["json", "csv", "plain"])
def test_a_closed_stdout_is_an_io_error(tmp_path, fmt):
    source = tmp_path / "fake.py"
    source.write_text(ONE_ROW)
    command = fake_command_line(source, "-o", fmt)
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command],
        stderr=subprocess.PIPE, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stderr == "rmqctl: error: cannot write to standard output: it is closed\n"


def test_closed_descriptors_are_not_given_to_files(tmp_path):
    source = tmp_path / "fake.py"
    source.write_text(ONE_ROW)
    command = fake_command_line(source, "-o", "json")
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh", *command],
        stdout=subprocess.PIPE, text=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["fd"] > 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("fmt", ["json", "csv", "plain", "table"])
def test_a_full_device_is_an_io_error(tmp_path, fmt):
    source = tmp_path / "fake.py"
    source.write_text(ONE_ROW)
    with open("/dev/full", "w") as full:
        done = fake_process(source, "-o", fmt, stdout=full, stderr=subprocess.PIPE,
                            capture_output=False)  # fmt: skip
    assert done.returncode == 5
    assert done.stderr == (
        "rmqctl: error: cannot write to standard output: no space left on the device (ENOSPC)\n"
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_locale_takes_any_text(tmp_path, encoding):
    source = tmp_path / "fake.py"
    source.write_text(ONE_ROW)
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C", "PYTHONUTF8": "0"}
    for fmt in ("json", "csv", "plain", "table", "markdown"):
        done = fake_process(source, "-o", fmt, env=environment, text=False)
        assert done.returncode == 0, done.stderr
        # Formats for programs are UTF-8 whatever the locale says.
        is_utf8 = fmt in ("json", "csv") or encoding == "utf-8"
        text = done.stdout.decode("utf-8" if is_utf8 else encoding)
        assert ("é" in text) == (is_utf8 or encoding == "latin-1"), fmt
        assert "\\udcff" in text


# -- completion ---------------------------------------------------------------------------------


def complete(line: str, cwd: Path = ROOT) -> list[str]:
    words = line.split(" ")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_RMQCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "rmqctl"], env=environment, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_completion_of_commands():
    assert complete("rmqctl que") == ["query"]
    assert complete("rmqctl query k") == ["key"]
    assert "--output" in complete("rmqctl commands --o")
    assert complete("rmqctl commands -o json") == ["json", "jsonl"]


def test_completion_of_store_gives_folders(tmp_path, monkeypatch):
    (tmp_path / "store-a" / "commitlog").mkdir(parents=True)
    (tmp_path / "store-file").write_text("")
    assert complete("rmqctl info st", tmp_path) == ["store-a/"]
    assert complete("rmqctl info store-a/", tmp_path) == ["store-a/commitlog/"]


@pytest.mark.parametrize(("line", "offered"), [
    ("rmqctl read store --topic or", ["orders"]),
    ("rmqctl query key store -t b", ["bills"]),
    ("rmqctl recover store --only consumequeue --topic bil", ["bills"]),
    ("rmqctl impact store --group ", ["billing"]),
    ("rmqctl offsets store -g b", ["billing"]),
    ("rmqctl offsets reset store --group x", []),
    ("rmqctl explain cq-missing-", ["cq-missing-entry"]),
    ("rmqctl read nowhere --topic o", []),
    ("rmqctl read --topic o", []),
])
def test_completion_of_names(tiny, line, offered):
    tiny.root.rename(tiny.root.parent / "store")
    assert complete(line, tiny.root.parent) == offered


@pytest.mark.parametrize("harm", [
    lambda config: config.write_text("{" * 5000),
    lambda config: config.write_text('{"offsetTable": 7}'),
    lambda config: config.write_bytes(b"\xff\x00"),
    lambda config: os.truncate(config, 1 << 40),
    lambda config: config.unlink() or os.mkfifo(config),
    lambda config: config.unlink() or config.mkdir(),
], ids=["nested", "number", "bytes", "huge", "pipe", "folder"])
def test_completion_says_nothing_of_what_is_wrong(tiny, harm):
    tiny.root.rename(tiny.root.parent / "store")
    harm(tiny.root.parent / "store" / "config" / "consumerOffset.json")
    assert complete("rmqctl impact store --group none", tiny.root.parent) == []
    assert complete("rmqctl read store --topic orde", tiny.root.parent) == ["orders"]


def test_completion_opens_no_large_file(tiny):
    store = tiny.root.parent / "store"
    tiny.root.rename(store)
    for folder in ("commitlog", "consumequeue", "index"):
        for file in (store / folder).rglob("*"):
            if file.is_file():
                file.unlink()
                os.mkfifo(file)  # whoever opens it waits for ever
    assert complete("rmqctl read store --topic orde", store.parent) == ["orders"]


def test_completion_can_be_shown_and_installed(tmp_path):
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    for option, expected_text in (("--show-completion", "_RMQCTL_COMPLETE"),
                                  ("--install-completion", "")):
        done = subprocess.run(
            [sys.executable, "-m", "rmqctl", option, "bash"],
            env=environment, cwd=ROOT, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert expected_text in done.stdout
    assert "_RMQCTL_COMPLETE" in (tmp_path / ".bash_completions" / "rmqctl.sh").read_text()


@pytest.mark.parametrize("words", [("version",), ("-V",)])
def test_other_spellings_of_the_version(capsys, words: tuple[str, ...]) -> None:
    assert run(capsys, *words) == run(capsys, "--version")


def test_help_as_a_word(capsys) -> None:
    assert run(capsys, "help") == run(capsys, "--help")
    assert run(capsys, "help", "verify") == run(capsys, "verify", "--help")
    assert "rmqctl doctor STORE" in "".join(run(capsys, "--help")[1].splitlines()[:8])


def test_the_help_of_a_command_is_short(rmqctl) -> None:
    """Its own options, and no more than two screens of 80 columns and 50 lines."""
    long = {}
    for spec in REGISTRY:
        lines = rmqctl(*spec.name, "--help", env={"COLUMNS": "80"}).expect(0).out.splitlines()
        options = sum(line.lstrip().startswith("-") for line in lines)
        if options > 18 or len(lines) > 100:
            long[" ".join(spec.name)] = options, len(lines)
        assert "Common options: rmqctl help options" in lines
    assert long == {}


def test_help_options_shows_what_the_help_of_a_command_leaves_out(rmqctl) -> None:
    common = rmqctl("help", "options").expect(0).out
    for spec in REGISTRY:
        short = rmqctl(*spec.name, "--help").expect(0).out
        whole = rmqctl("help", "options", *spec.name).expect(0).out
        for word in re.findall(r"^  (?:-\w, )?(--[\w-]+)", whole, re.MULTILINE):
            assert word == "--help" or word in short + common, (spec.name, word)
    assert "--broker-conf FILE" in rmqctl("help", "options", "recover").out
    assert "--broker-conf FILE" not in rmqctl("recover", "--help").out


def test_options_without_effect_are_accepted_and_hidden(rmqctl, tiny_base) -> None:
    plan = rmqctl("recover", tiny_base.root, "-o", "json").expect(0)
    for words, note in ((["--dry-run"], "--dry-run has no effect"),
                        (["--fillers", "topic"], "--fillers topic has no effect")):
        same = rmqctl("recover", tiny_base.root, "-o", "json", *words).expect(0)
        assert note in same.err
        assert same.json() == plan.json()
    shown = rmqctl("help", "options", "recover").out + rmqctl("help", "options", "serve").out
    assert not re.search(r"--dry-run|--from-stored-offsets|in-place\|topic", shown)


def test_explain_takes_the_only_name_that_begins_so(capsys) -> None:
    assert run(capsys, "explain", "torn") == run(capsys, "explain", "torn-tail")
    assert run(capsys, "explain", "cq-")[0] == 2
