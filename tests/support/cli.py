"""Runs rmqctl the two ways it is used: in this process, and as a process of its own.

Both give a `Result` and refuse a traceback on the way: whatever was done to the input, a user
must never see one.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from tests.support import forking

QUIET_ENV = {"NO_COLOR": "1", "COLUMNS": "1000", "LINES": "50", "TERM": "dumb", "TZ": "UTC",
             "LC_ALL": "C.UTF-8", "RMQCTL_LANG": "en"}
DROPPED_ENV = ("RMQCTL_STORE", "FORCE_COLOR")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave."""

    args: tuple[str, ...]
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """stdout as one JSON value."""
        return json.loads(self.out)

    def jsonl(self) -> list[Any]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    def expect(self, *codes: int) -> Result:
        """Itself; fails with both streams shown unless the exit code is one of ``codes``."""
        assert self.code in codes, self.describe()
        return self

    def recovered(self) -> Any:
        """What `recover -o json` says; its exit code is 1 exactly where messages are lost."""
        document = self.json()
        lost = document.get("messages_lost_total", len(document["messages_lost"]))
        self.expect(1 if lost else 0)
        return document

    def describe(self) -> str:
        return (f"rmqctl {' '.join(self.args)} -> {self.code}\n"
                f"--- stdout\n{self.out[-4000:]}\n--- stderr\n{self.err[-4000:]}")


def _checked(result: Result) -> Result:
    assert "Traceback (most recent call last)" not in result.out + result.err, result.describe()
    assert result.code != 70, result.describe()
    return result


def run(*args: str | os.PathLike[str], env: Mapping[str, str] | None = None,
        stdin: bytes = b"") -> Result:
    """``rmqctl ARGS`` in this process."""
    from rmqctl.cli import main

    _keep_commands()
    words = tuple(os.fspath(word) for word in args)
    out, err = _stream(), _stream()
    with _process_state(words, env, stdin), redirect_stdout(out), redirect_stderr(err):
        code = _exit_code(main, words)
    for stream in (out, err):
        stream.flush()
    return _checked(Result(words, code, _text(out), _text(err)))


@cache
def _keep_commands() -> None:
    """Commands are built once, where a process of its own builds one: that takes 7 ms a run."""
    from rmqctl import cli as program
    from rmqctl.commands.app import lazy

    build, load = program.build, lazy.load
    built = cache(lambda *_registered: build())
    loaded = cache(lambda spec, _command: load(spec))
    program.build = lambda: built(program.REGISTRY, program.GROUPS)
    lazy.load = lambda spec: loaded(spec, import_module(spec.module).command)


def _exit_code(main: Callable[..., Any], words: tuple[str, ...]) -> int:
    try:
        given = main(list(words)) if inspect.signature(main).parameters else main()
    except SystemExit as stop:
        given = stop.code
    if given is None:
        return 0
    assert isinstance(given, int), f"exit code {given!r}"
    return given


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode("utf-8", "backslashreplace")


@contextmanager
def _process_state(words: tuple[str, ...], env: Mapping[str, str] | None,
                   stdin: bytes) -> Iterator[None]:
    """argv, stdin and environment as a fresh process would have them."""
    saved = sys.argv, sys.stdin, dict(os.environ)
    sys.argv = ["rmqctl", *words]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    for name in DROPPED_ENV:
        os.environ.pop(name, None)
    os.environ.update(QUIET_ENV | dict(env or {}))
    try:
        yield
    finally:
        sys.argv, sys.stdin, environment = saved
        os.environ.clear()
        os.environ.update(environment)


def run_process(*args: str | os.PathLike[str], env: Mapping[str, str] | None = None,
                stdin: bytes = b"", timeout: float = 60, memory: int | None = None,
                cwd: str | os.PathLike[str] | None = None, fresh: bool = False) -> Result:
    """``rmqctl ARGS`` as a process of its own; ``memory`` bounds the address space in bytes.

    Forked from a warm process, or with ``fresh`` a new interpreter: ``python -m rmqctl``.
    Running into ``timeout`` (seconds) fails the test: nothing in rmqctl may hang.
    """
    words = tuple(os.fspath(word) for word in args)
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED_ENV}
    environment |= QUIET_ENV | dict(env or {})
    if fresh:
        limit = None if memory is None else lambda: resource.setrlimit(
            resource.RLIMIT_AS, (memory, memory))
        done = subprocess.run([sys.executable, "-m", "rmqctl", *words], input=stdin,
                              capture_output=True, timeout=timeout, cwd=cwd, preexec_fn=limit,
                              check=False, env=environment)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = forking.run(words, environment, stdin, timeout, memory,
                                     None if cwd is None else os.fspath(cwd))
    return _checked(Result(words, code, out.decode(errors="backslashreplace"),
                           err.decode(errors="backslashreplace")))
