"""Options and arguments that several commands share, as annotated types.

A command writes ``store: Store``, ``output: OutputFormat = None`` and so has the same names, help
and parsing as every other one. Values arrive parsed: sizes and offsets as int, the zone as tzinfo.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.parsing import (
    FieldValue,
    parse_field_value,
    parse_offset,
    parse_percent,
    parse_size,
    parse_zone,
)
from rmqctl.formats import bodies
from rmqctl.output import Output

STORE_VARIABLE = "RMQCTL_STORE"

# Panels of the help: what is particular to a command comes first, what all have comes last.
_OUTPUT = "Output"
_STORE = "Where and how the store lies"


def complete_folders(incomplete: str) -> Iterator[str]:
    """Directories that ``incomplete`` may become, for the shell."""
    head, tail = os.path.split(incomplete)
    try:
        with os.scandir(head or ".") as entries:
            names = sorted(e.name for e in entries if e.name.startswith(tail) and e.is_dir())
    except OSError:
        return
    for name in names:
        if not name.startswith(".") or tail.startswith("."):
            yield os.path.join(head, name) + "/"


# -- where ------------------------------------------------------------------------------------

# No existence check by typer: the library says what is wrong with a path, with its exit code.
Store = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        envvar=STORE_VARIABLE,
        help="Store root: the folder that holds commitlog/, consumequeue/, index/, config/.",
        autocompletion=complete_folders,
        show_default=False,
    ),
]

CommitlogDirs = Annotated[
    list[str] | None,
    typer.Option(
        "--commitlog-dir",
        metavar="DIR",
        help="A folder of a multi-path commitlog, relative to STORE or absolute; repeatable.",
        autocompletion=complete_folders,
        rich_help_panel=_STORE,
    ),
]

CommitlogFileSize = Annotated[
    int | None,
    typer.Option(
        "--commitlog-file-size",
        metavar="SIZE",
        parser=parse_size,
        help="Size of a commitlog file, instead of what the files say.",
        rich_help_panel=_STORE,
    ),
]

ConsumequeueFileSize = Annotated[
    int | None,
    typer.Option(
        "--consumequeue-file-size",
        metavar="SIZE",
        parser=parse_size,
        help="Size of a consumequeue file, instead of what the files say.",
        rich_help_panel=_STORE,
    ),
]

IndexSlots = Annotated[
    int | None,
    typer.Option(
        "--index-slots",
        metavar="N",
        min=1,
        help="Hash slots of an index file, instead of what the files say.",
        rich_help_panel=_STORE,
    ),
]

IndexMax = Annotated[
    int | None,
    typer.Option(
        "--index-max",
        metavar="N",
        min=1,
        help="Entries an index file has room for, instead of what the files say.",
        rich_help_panel=_STORE,
    ),
]

# -- what -------------------------------------------------------------------------------------

Topic = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Topic.")]
RequiredTopic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Topic.")]
Queue = Annotated[
    int | None, typer.Option("--queue", metavar="N", min=0, max=(1 << 31) - 1, help="Queue id.")
]
RequiredQueue = Annotated[
    int, typer.Option("--queue", metavar="N", min=0, max=(1 << 31) - 1, help="Queue id.")
]

Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Stored at this time or later: epoch ms, ISO-8601, or relative (-2h, -7d).",
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Stored at this time or earlier."),
]
Zone = Annotated[
    tzinfo,
    typer.Option(
        "--tz",
        metavar="ZONE",
        parser=parse_zone,
        help="Zone of times given without one and of times shown: UTC, local, +08:00, "
        "Asia/Shanghai.",
    ),
]

FromPhy = Annotated[
    int | None,
    typer.Option(
        "--from-phy", metavar="OFFSET", parser=parse_offset, help="From this physical offset on."
    ),
]
ToPhy = Annotated[
    int | None,
    typer.Option(
        "--to-phy", metavar="OFFSET", parser=parse_offset, help="Up to before this physical offset."
    ),
]
Where = Annotated[
    list[FieldValue] | None,
    typer.Option(
        "--where",
        metavar="FIELD=VALUE",
        parser=parse_field_value,
        help="Only messages whose field has this value; repeatable, all must hold.",
    ),
]
Sample = Annotated[
    float | None,
    typer.Option(
        "--sample", metavar="PERCENT", parser=parse_percent, help="Look at a share only: 10%."
    ),
]

if TYPE_CHECKING:
    BodyForm = str
else:
    BodyForm = Literal[tuple(bodies.FORMS)]
Body = Annotated[
    BodyForm,
    typer.Option(
        "--body",
        help="How bodies are shown: as text where they are UTF-8 and else in base64 (auto), "
        "always one way, or not at all.",
    ),
]
_CODECS = f"{', '.join(bodies.CODEC_NAMES[:-1])} or {bodies.CODEC_NAMES[-1]}"
Decompress = Annotated[
    bool,
    typer.Option("--decompress", help=f"Undo {_CODECS} where the sys_flag says so."),
]

Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", "-j", metavar="N", min=0, help="Processes to work with; 0 is one per CPU."
    ),
]

# -- how it is shown --------------------------------------------------------------------------

Format = Literal["table", "json", "jsonl", "csv", "tsv", "markdown", "plain"]
OutputFormat = Annotated[
    Format | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="How data is written; table on a terminal, else plain, unless given.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    int,
    typer.Option(
        "--quiet",
        "-q",
        count=True,
        help="No notes and no progress; twice: no warnings either.",
        rich_help_panel=_OUTPUT,
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="Say more on stderr; twice: a traceback should rmqctl itself fail.",
        rich_help_panel=_OUTPUT,
    ),
]
NoProgress = Annotated[
    bool,
    typer.Option("--no-progress", help="No progress bar.", rich_help_panel=_OUTPUT),
]


def open_output(
    output: Format | None, quiet: int = 0, verbose: int = 0, no_progress: bool = False
) -> Output:
    """The output of a command from the four options every command has."""
    return Output.open(output, quiet=quiet, verbose=verbose, no_progress=no_progress)


def worker_count(jobs: int) -> int:
    """Processes to start for ``--jobs``: 0 means one per CPU this process may use."""
    if jobs:
        return jobs
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
