"""The end of a run: exit codes, the error line on stderr, signals, and closed streams."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

import typer

import rmqctl
from rmqctl.commands.app.memory import is_lack_of_memory
from rmqctl.errors import (
    EXTRAS,
    ExitCode,
    MissingExtraError,
    OtherCommandError,
    RmqctlError,
    StoreIOError,
    UsageError,
    interruption,
)
from rmqctl.output.core import say

_PACKAGE = os.path.dirname(os.path.abspath(rmqctl.__file__))
_MAX_MESSAGE = 500
own_process = False
"""True if rmqctl is the main program of this process, False if it is used as a library."""


class Terminated(BaseException):
    """Raised on SIGTERM. Not an Exception, so that no command handles it as a failure."""


_SENT_FOR: dict[type[BaseException], signal.Signals] = {
    Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
_SOON = 0.01
"""Seconds that `_again` waits before it sends the signal again."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM raise Terminated, so that ``finally`` blocks run before the exit."""
    process = os.getpid()

    def handler(_number: int, _frame: FrameType | None) -> NoReturn:
        if os.getpid() != process:  # a forked worker has nothing to clean up
            os._exit(ExitCode.TERMINATED)
        raise Terminated

    try:
        previous = signal.signal(signal.SIGTERM, handler)
    except ValueError:  # not in the main thread: another program runs this process
        yield
        return
    before, sys.unraisablehook = sys.unraisablehook, _again
    try:
        yield
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGTERM, previous)


def _again(unraisable: sys.UnraisableHookArgs) -> None:
    """Send SIGTERM or SIGINT to this process again if Python dropped the exception of the signal.

    Python drops an exception in a finaliser or in a weak reference's callback.
    """
    number = _SENT_FOR.get(unraisable.exc_type)
    if number is None:
        sys.__unraisablehook__(unraisable)
        return
    timer = threading.Timer(_SOON, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def settle_streams() -> None:
    """Make stdout and stderr accept any text, and open /dev/null for each closed standard stream.

    Without /dev/null, the next opened file would get the closed descriptor 0, 1 or 2. A library
    that writes to the stream would then write into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            with contextlib.suppress(OSError, ValueError):
                reconfigure(errors="backslashreplace")


def silence_stdout(*, discard: bool) -> None:
    """Flush stdout; if this fails, or with ``discard``, redirect stdout to /dev/null.

    Without the redirection, the interpreter would flush stdout again at exit and print an error of
    its own.
    """
    if sys.stdout is None:
        return
    if not discard:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def report(exc: BaseException, args: Sequence[str]) -> int:
    """Report on stderr the exception that ended the run, and return the exit code."""
    code, lines = _verdict(exc)
    from rmqctl.output.language import IN_ENGLISH, requested

    spoken = requested(args, os.environ)
    if any(map(spoken.lacks, lines)):
        say(f"rmqctl: {spoken.say(IN_ENGLISH)}", sys.stderr)
    for line in lines:
        say(spoken.text(line), sys.stderr)
    if lines and wants_traceback(args) and code not in (ExitCode.USAGE, ExitCode.INTERRUPTED):
        import traceback

        for line in "".join(traceback.format_exception(exc)).splitlines():
            say(line, sys.stderr)
    return int(code)


def wants_traceback(args: Sequence[str]) -> bool:
    """Return whether the user asked for tracebacks: RMQCTL_DEBUG, or -v given twice."""
    if os.environ.get("RMQCTL_DEBUG", "") not in ("", "0"):
        return True
    clusters = [a for a in args if a.startswith("-") and a[1:] and not a[1:].strip("qv")]
    return args.count("--verbose") + sum(c.count("v") for c in clusters) >= 2


def _verdict(exc: BaseException) -> tuple[ExitCode, list[str]]:
    if isinstance(exc, BrokenPipeError):
        return ExitCode.PIPE_CLOSED, []
    if isinstance(exc, KeyboardInterrupt | typer.Abort):
        return ExitCode.INTERRUPTED, ["rmqctl: interrupted"]
    if isinstance(exc, Terminated):
        return ExitCode.TERMINATED, ["rmqctl: terminated"]
    if isinstance(exc, OtherCommandError):  # the line alone, so that it can be copied
        return ExitCode.USAGE, [_error(f"{exc}; run:"), f"  {exc.command}"]
    if isinstance(exc, UsageError):
        return ExitCode.USAGE, [_error(str(exc)), *_pointer(_noted(exc))]
    if isinstance(exc, RmqctlError):
        if exc.exit_code is ExitCode.INTERNAL:
            return ExitCode.INTERNAL, _defect(exc)
        return exc.exit_code, [_error(str(exc) or type(exc).__name__)]
    if isinstance(exc, typer.TyperException):
        context = getattr(exc, "ctx", None)
        path = context.command_path if context is not None else None
        return ExitCode.USAGE, [_error(exc.format_message()), *_pointer(path)]
    if isinstance(exc, OSError):
        return ExitCode.IO, [_error(str(StoreIOError.from_oserror(exc)))]
    if is_lack_of_memory(exc):
        return ExitCode.IO, [_error("out of memory")]
    if isinstance(exc, ModuleNotFoundError) and (name := (exc.name or "").partition(".")[0]
                                                 ) in EXTRAS:
        return _verdict(MissingExtraError(name))
    if isinstance(exc, ModuleNotFoundError) and (exc.name or "").startswith("rmqctl.ext"):
        return ExitCode.NOT_A_STORE, [_error(
            f"the extension {exc.name} is required but not installed; install rmqctl again")]
    if isinstance(exc, ModuleNotFoundError) and not (exc.name or "rmqctl").startswith("rmqctl"):
        return ExitCode.FAILED, [
            _error(f"the Python package {exc.name!r} is not installed; install rmqctl again")
        ]
    stopped = interruption(exc)  # a library may wrap the exception of a signal
    if stopped is not None and stopped is not exc:
        return _verdict(stopped)
    return ExitCode.INTERNAL, _defect(exc)


def _error(message: str) -> str:
    return f"rmqctl: error: {' '.join(message.split())}"


def _noted(exc: BaseException) -> str | None:
    notes = getattr(exc, "__notes__", None)
    return str(notes[-1]) if notes else None


def _pointer(command_path: str | None) -> list[str]:
    return [f"Try '{(command_path or 'rmqctl').strip()} --help'."]


def _defect(exc: BaseException) -> list[str]:
    """Return two lines for an unexpected exception: the facts for a bug report, and the request to
    report it.
    """
    message = " ".join(str(exc).split())
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + "..."
    failure = type(exc).__name__ + (f": {message}" if message else "")
    place = _innermost(exc)
    where = f", at {place}" if place else ""
    return [
        f"rmqctl: error: a defect in rmqctl: {failure} (rmqctl {rmqctl.__version__}{where})",
        "This is a bug in rmqctl: please report it with the command. RMQCTL_DEBUG=1 shows more.",
    ]


def _innermost(exc: BaseException) -> str | None:
    """Return the deepest stack frame inside the package, such as ``rmqctl/store/files.py:120``."""
    place = None
    traceback = exc.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if name.startswith(_PACKAGE + os.sep):
            place = f"rmqctl/{os.path.relpath(name, _PACKAGE)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
