"""The program: build the typer application, run it, and turn every result or exception into an exit
code.

No large module and no command is imported here: see ``rmqctl.commands``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main

from rmqctl import __version__, kernel
from rmqctl.commands import GROUPS, REGISTRY
from rmqctl.commands.app import exit_codes
from rmqctl.commands.app.coerce import use_light_coercion
from rmqctl.commands.app.exit_codes import (
    Terminated,
    report,
    settle_streams,
    silence_stdout,
    terminable,
)
from rmqctl.commands.app.helptext import HelpRequest, common_options, formatter_of
from rmqctl.commands.app.lazy import CONTEXT_SETTINGS, CommandGroup, fill, load
from rmqctl.commands.app.memory import expect_room
from rmqctl.commands.app.targets import shown
from rmqctl.commands.app.typed import words
from rmqctl.errors import StoreIOError

_PROGRAM = "rmqctl"
_COMPLETING = "_RMQCTL_COMPLETE"
"""Name of the environment variable that the completion script of a shell sets."""
_EPILOG = (
    "Exit codes: 0 done, 1 findings, 2 usage error, 3 not a store, 4 held by another process, 5 "
    "I/O error, 6 failed, 70 internal error. 'rmqctl COMMAND --help' shows what a command does to "
    "STORE."
)


def build() -> CommandGroup:
    """Return the application with all registered commands, without importing their modules."""
    app = typer.Typer(
        name=_PROGRAM,
        cls=CommandGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=dict(CONTEXT_SETTINGS),
        epilog=_EPILOG,
    )
    app.callback()(_root)
    root = typer.main.get_command(app)
    assert isinstance(root, CommandGroup)
    root.suggest_commands = False  # `CommandGroup` suggests commands that change nothing
    use_light_coercion(root.params)
    fill(root, REGISTRY, GROUPS)
    return root


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{_PROGRAM} {__version__}\nkernel: {kernel.name()}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_show_version, is_eager=True,
            help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Inspect, verify, repair and serve Apache RocketMQ store directories without a broker.

    Something wrong? Run: rmqctl doctor STORE
    """


def main(argv: Sequence[str] | None = None, *, own_process: bool = False) -> int:
    """Run rmqctl with ``argv`` (default: the process's arguments) and return the exit code.

    No exception is raised; a traceback is printed only with RMQCTL_DEBUG=1 or -vv. ``own_process``:
    whether the process ends with this run.
    """
    exit_codes.own_process |= own_process
    if os.environ.get(_COMPLETING):
        return _complete()
    args = _spelled(list(sys.argv[1:] if argv is None else argv))
    words.set(tuple("=".join(map(shown, word.split("=", 1))) for word in args))
    settle_streams()
    try:
        with terminable():
            code = _run(args)
            _flush_stdout()
            return code
    except SystemExit as exc:  # typer leaves this way after installing completion
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except (Exception, KeyboardInterrupt, Terminated) as exc:  # noqa: BLE001  # the last resort
        code = report(exc, args)
        silence_stdout(discard=isinstance(exc, BrokenPipeError))
        return code


def _complete() -> int:
    """Print the shell completions for a command line; never fail."""
    with contextlib.suppress(SystemExit, Exception):
        build().main(args=[], prog_name=_PROGRAM)
    return 0


def _spelled(args: list[str]) -> list[str]:
    """Replace ``help COMMAND`` and ``version`` with the corresponding options."""
    if args[:1] == ["help"] and args[1:2] != ["options"]:
        return [*args[1:], "--help"]
    return ["--version"] if args == ["version"] else args


def _without_language(args: list[str]) -> list[str]:
    """Remove ``--lang`` from the arguments if no command follows. Only commands have this option,
    but the help of the program itself also accepts it.
    """
    if "--lang" not in args or not all(word.startswith("-") for word in [
            word for word, before in zip(args, ["", *args], strict=False) if before != "--lang"]):
        return args
    at = args.index("--lang")
    return args[:at] + args[at + 2:]


def _run(args: list[str]) -> int:
    root = build()
    result: Any
    request = HelpRequest(tuple(args), all_options=args[:2] == ["help", "options"])
    if request.all_options:
        args = _without_language([*args[2:], "--help"])
        if args == ["--help"]:
            with root.make_context(_PROGRAM, [], resilient_parsing=True, obj=request) as ctx:
                typer.echo(common_options(formatter_of(ctx), map(load, REGISTRY)))
            return 0
    try:
        with root.make_context(_PROGRAM, _without_language(args), obj=request) as ctx:
            expect_room()
            if os.environ.get(kernel.VARIABLE):  # report a required kernel that is missing
                kernel.chosen()
            result = root.invoke(ctx)
    except typer.Exit as exc:
        result = exc.exit_code
    return int(result) if isinstance(result, int) and not isinstance(result, bool) else 0


def _flush_stdout() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise StoreIOError.from_oserror(exc, "standard output", "write to") from exc
