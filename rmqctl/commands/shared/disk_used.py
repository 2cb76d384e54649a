"""The option of commands that predict a broker's start: how full its disk is."""

from __future__ import annotations

from typing import Annotated

import typer


def _parsed(text: str) -> float | str:
    from rmqctl.checks.preflight.around import parse_disk_used

    return parse_disk_used(text)


DiskUsed = Annotated[str | None, typer.Option(
    "--disk-used", metavar="RATIO|ignore", parser=_parsed,
    help="Share of the disk in use (0.86 or 86%), instead of the file system's; ignore: do not "
    "judge the disk.")]
