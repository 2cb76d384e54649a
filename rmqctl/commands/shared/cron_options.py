"""Options for a check that runs by itself: what it speaks up for, and how it leaves the disk to
others.
"""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.errors import UsageError
from rmqctl.output import Output
from rmqctl.parse_values import parse_size
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.verify.baseline import Baseline

_CRON = "For cron"
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""The number of ioprio_set(2), for which libc has no function."""
_THIS_PROCESS, _IDLE = 1, 3 << 13
_LONGEST = 1.0


@dataclass(frozen=True, kw_only=True)
class CronOptions(OptionGroup):
    """What suits a check that runs by itself."""

    fail_on: Annotated[Literal["error", "warning"], typer.Option(
        "--fail-on", rich_help_panel=_CRON, help="What makes the exit code 1: errors alone, or "
        "warnings too.")] = "warning"
    baseline: Annotated[str | None, typer.Option(
        "--baseline", metavar="FILE", rich_help_panel=_CRON, help="Findings in this file are "
        "known: they are counted, and neither listed nor a failure.")] = None
    update_baseline: Annotated[bool, typer.Option(
        "--update-baseline", rich_help_panel=_CRON, help="Write what is found into the file of "
        "--baseline: it is known from then on.")] = False
    quiet_if_ok: Annotated[bool, typer.Option(
        "--quiet-if-ok", rich_help_panel=_CRON, help="Print nothing where the exit code is 0.",
    )] = False
    limit_rate: Annotated[int | None, typer.Option(
        "--limit-rate", metavar="SIZE", parser=parse_size, rich_help_panel=_CRON, help="Read at "
        "most so many bytes a second, with one thread (50MiB).")] = None
    idle: Annotated[bool, typer.Option(
        "--idle", rich_help_panel=_CRON, help="Read when no other process wants the disk (the "
        "idle class of Linux, as ionice -c3).")] = False

    def check(self, *, since_last: bool) -> None:
        """UsageError for what does not go together."""
        if self.update_baseline and self.baseline is None:
            raise UsageError("--update-baseline: name the file with --baseline")
        if self.baseline is not None and since_last:
            raise UsageError("--baseline and --since-last cannot be used together: what is known "
                             "is judged by a look at everything")
        if self.limit_rate == 0:
            raise UsageError("--limit-rate 0: nothing would ever be read")

    def known(self, root: str, store: str | None) -> Baseline | None:
        """The known findings; none yet where they are to be written for the first time. ``store``:
        its name in a list about several.
        """
        from rmqctl.checks.verify.baseline import Baseline

        if self.baseline is None:
            return None
        if self.update_baseline and not os.path.lexists(self.baseline):
            return Baseline(root, store=store)
        return Baseline.load(self.baseline, root, store)

    def slowed(self, out: Output, advance: Callable[[int], None]) -> Callable[[int], None]:
        """What tells of progress, and waits where it goes on too fast."""
        if self.idle and not use_idle_disk():
            out.warn(Phrase("--idle: this system knows no idle class for the disk"))
        return advance if self.limit_rate is None else at_rate(advance, self.limit_rate)

    def settle(self, out: Output, baselines: Sequence[Baseline]) -> None:
        """Writes what is known from now on, or says what is gone."""
        from rmqctl.checks.verify.baseline import save

        gone = sum(baseline.gone for baseline in baselines)
        if self.update_baseline and self.baseline is not None:
            out.note(Phrase("{file}: {findings} known from now on", file=self.baseline,
                            findings=counted(save(self.baseline, baselines), "finding")))
        elif gone and not self.quiet_if_ok:
            out.note(Phrase("{findings} not found again (--update-baseline)",
                            findings=counted(gone, "known finding")))


def at_rate(advance: Callable[[int], None], rate: int) -> Callable[[int], None]:
    """``advance`` that waits until so many bytes may have been read, at ``rate`` bytes/s."""
    begin, done = time.monotonic(), 0

    def advanced(amount: int) -> None:
        nonlocal done
        advance(amount)
        done += amount
        while (early := begin + done / rate - time.monotonic()) > 0:
            time.sleep(min(early, _LONGEST))

    return advanced


def use_idle_disk() -> bool:
    """Asks the system to read for this process when nobody else does; False where it cannot."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is None or not hasattr(os, "sched_getaffinity"):  # Linux alone
        return False
    done: int = ctypes.CDLL(None, use_errno=True).syscall(number, _THIS_PROCESS, 0, _IDLE)
    return done == 0
