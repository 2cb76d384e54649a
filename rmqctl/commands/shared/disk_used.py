"""Option that sets the disk usage to assume when a broker's startup is predicted."""

from __future__ import annotations

from typing import Annotated

import typer


def _parsed(text: str) -> float | str:
    from rmqctl.checks.preflight.around import parse_disk_used

    return parse_disk_used(text)


DiskUsed = Annotated[str | None, typer.Option(
    "--disk-used", metavar="RATIO|ignore", parser=_parsed,
    help="Share of the disk to assume as used (0.86 or 86%); ignore: do not check the disk.")]
