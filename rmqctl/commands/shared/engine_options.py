"""Options of the commands that write into a store: the configuration its broker has.

What is not given is what the store was made for (``.rmqctl/store.json``), else what its files
say, else a broker's default.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.shared.parsing import parse_size
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.engine.config.settings import Settings

_BROKER = "The broker's configuration"

Version = Literal["4.9.3", "5.3.3"]
BrokerVersion = Annotated[
    Version | None,
    typer.Option(
        "--broker-version",
        metavar="VERSION",
        help="Write the bytes of this version; for a store that remembers none, the newest.",
        rich_help_panel=_BROKER,
    ),
]
ConsumequeueExt = Annotated[
    bool | None,
    typer.Option(
        "--consumequeue-ext/--no-consumequeue-ext",
        help="enableConsumeQueueExt: write ConsumeQueueExt units.",
        rich_help_panel=_BROKER,
    ),
]
ConsumequeueExtFileSize = Annotated[
    int | None,
    typer.Option(
        "--consumequeue-ext-file-size",
        metavar="SIZE",
        parser=parse_size,
        help="Size of a ConsumeQueueExt file (mappedFileSizeConsumeQueueExt).",
        rich_help_panel=_BROKER,
    ),
]
BatchConsumequeueFileSize = Annotated[
    int | None,
    typer.Option(
        "--batch-consumequeue-file-size",
        metavar="SIZE",
        parser=parse_size,
        help="Size of a batch consumequeue file (5.x).",
        rich_help_panel=_BROKER,
    ),
]
Lmq = Annotated[
    bool | None,
    typer.Option("--lmq/--no-lmq", help="enableLmq: light message queues.",
                 rich_help_panel=_BROKER),
]  # fmt: skip
MultiDispatch = Annotated[
    bool | None,
    typer.Option(
        "--multi-dispatch/--no-multi-dispatch",
        help="enableMultiDispatch: a message also goes to the queues its INNER_MULTI_DISPATCH "
        "names.",
        rich_help_panel=_BROKER,
    ),
]
AppendCrc = Annotated[
    bool | None,
    typer.Option(
        "--append-crc/--no-append-crc",
        help="enabledAppendPropCRC: append a CRC of the record to its properties (5.2.0+).",
        rich_help_panel=_BROKER,
    ),
]
DelayLevels = Annotated[
    str | None,
    typer.Option(
        "--delay-levels",
        metavar="LEVELS",
        help="messageDelayLevel: the delays of the levels, as in '1s 5s 10s 1m'.",
        rich_help_panel=_BROKER,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="NAME", help="brokerClusterName  [default: DefaultCluster]",
        rich_help_panel=_BROKER,
    ),
]  # fmt: skip
FlushMode = Annotated[
    Literal["async", "sync"],
    typer.Option(
        "--flush",
        help="sync: each answer comes after the message is on the disk (many share one fsync); "
        "async: in the background, as a broker does by default.",
        rich_help_panel=_BROKER,
    ),
]


_WRITING = "How the commitlog is written"
Mapped = Annotated[
    bool,
    typer.Option(
        "--mapped",
        help="Through a memory map, as a broker does, instead of positional writes.",
        rich_help_panel=_WRITING,
    ),
]
Warm = Annotated[
    bool,
    typer.Option(
        "--warm",
        help="With --mapped: touch, lock (mlock) and announce (madvise) the pages of a new file.",
        rich_help_panel=_WRITING,
    ),
]
Preallocate = Annotated[
    bool,
    typer.Option(
        "--preallocate",
        help="Make the next file ahead, in the background.",
        rich_help_panel=_WRITING,
    ),
]
TransientPool = Annotated[
    int,
    typer.Option(
        "--transient-pool",
        metavar="N",
        min=0,
        help="Gather messages in N buffers of a file's size and commit them from there "
        "(transientStorePoolEnable; not with --flush sync).",
        rich_help_panel=_WRITING,
    ),
]


def parse_watermark(text: str | float) -> float:
    """The share of a disk above which puts are refused: ``90%`` up to ``100%`` (never)."""
    if isinstance(text, int | float):
        return float(text)
    number = text.strip().removesuffix("%").strip()
    if number.isascii() and number.replace(".", "", 1).isdigit() and 0 < float(number) <= 100:
        return float(number) / 100
    raise UsageError(f"{text!r} is not a share of the disk; write 90%, or 100% for no limit")


Watermark = Annotated[
    float | None,
    typer.Option(
        "--disk-watermark",
        metavar="PERCENT",
        parser=parse_watermark,
        help="Refuse messages while the log's disk is fuller than this; 100% never does  "
        "[default: 90%]",
        rich_help_panel=_BROKER,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only say what would be done; nothing is changed."),
]


def settings_from(store_root: str, *, commitlog_dirs: Iterable[str] | None = None,
                  files: bool = True, **given: Any) -> Settings:
    """The settings to write into a store with; ``given`` are fields of `Settings`, None: not given.

    See `rmqctl.engine.config.resolve.resolve` for what wins, for ``files``, and for the errors.
    """
    from rmqctl.engine.config.resolve import resolve

    return resolve(os.fspath(store_root), given, commitlog_dirs or (), files=files)


def new_settings(**given: Any) -> Settings:
    """The settings of a store that is yet to be made: what is given, else a broker's defaults."""
    from rmqctl.engine.config.settings import Settings

    return Settings(**{name: value for name, value in given.items() if value is not None})
