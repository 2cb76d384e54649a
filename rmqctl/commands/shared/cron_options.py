"""Options for scheduled checks: which findings to report, and how fast to read."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.errors import UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output import Output
from rmqctl.parse_values import parse_size
from rmqctl.phrases import Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.verify.baseline import Baseline

_CRON = "Scheduled runs"
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""Number of the system call ioprio_set(2) by CPU architecture; libc has no function for it."""
_THIS_PROCESS, _IDLE = 1, 3 << 13
_MAX_SLEEP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class CronOptions(OptionGroup):
    """Options for scheduled checks."""

    fail_on: Annotated[Literal["error", "warning"], typer.Option(
        "--fail-on", rich_help_panel=_CRON,
        help="Lowest severity that makes the exit code 1.")] = "warning"
    baseline: Annotated[str | None, typer.Option(
        "--baseline", metavar="FILE", rich_help_panel=_CRON,
        help="Baseline file: findings listed in it are counted, but not printed, "
             "and cause no failure.")] = None
    update_baseline: Annotated[bool, typer.Option(
        "--update-baseline", rich_help_panel=_CRON,
        help="Write the findings to the --baseline file, so that later runs accept them.")] = False
    quiet_if_ok: Annotated[bool, typer.Option(
        "--quiet-if-ok", rich_help_panel=_CRON, help="Print nothing if the exit code is 0.",
    )] = False
    limit_rate: Annotated[int | None, typer.Option(
        "--limit-rate", metavar="SIZE", parser=parse_size, rich_help_panel=_CRON,
        help="Read at most this many bytes per second, with one thread (50MiB).")] = None
    idle: Annotated[bool, typer.Option(
        "--idle", rich_help_panel=_CRON,
        help="Read only when no other process uses the disk (Linux idle class, like ionice "
             "-c3).")] = False

    def check(self, *, since_last: bool) -> None:
        """Raise UsageError for options that cannot be combined."""
        if self.update_baseline and self.baseline is None:
            raise UsageError("--update-baseline requires --baseline FILE")
        if self.baseline is not None and since_last:
            raise UsageError("--baseline and --since-last are mutually exclusive: a baseline needs "
                             "a full check")
        if self.limit_rate == 0:
            raise UsageError("--limit-rate must be greater than 0")

    def accepted(self, root: str, store: str | None) -> Baseline | None:
        """Return the baseline: the set of accepted findings. Return None without ``--baseline``.
        With ``--update-baseline``, a missing file is an empty baseline.

        ``store``: the store's name if several stores are checked.
        """
        from rmqctl.checks.verify.baseline import Baseline

        if self.baseline is None:
            return None
        if self.update_baseline and not os.path.lexists(self.baseline):
            return Baseline(root, store=store)
        return Baseline.load(self.baseline, root, store)

    def slowed(self, out: Output, advance: Callable[[int], None]) -> Callable[[int], None]:
        """Return ``advance``, slowed to ``--limit-rate``; set the idle priority for ``--idle``."""
        if self.idle and not use_idle_disk():
            out.warn(Phrase("--idle has no effect: this system has no idle class for the disk"))
        return advance if self.limit_rate is None else at_rate(advance, self.limit_rate)

    def settle(self, out: Output, baselines: Sequence[Baseline]) -> None:
        """With ``--update-baseline``, write the baseline file; otherwise print the number of
        accepted findings that no longer occur.
        """
        from rmqctl.checks.verify.baseline import save

        gone = sum(baseline.gone for baseline in baselines)
        if self.update_baseline and self.baseline is not None:
            out.note(Phrase("{file}: {findings} accepted from now on", file=self.baseline,
                            findings=counted(save(self.baseline, baselines), "finding")))
        elif gone and not self.quiet_if_ok:
            out.note(Phrase("{findings} no longer found (remove with --update-baseline)",
                            findings=counted(gone, "accepted finding")))


def at_rate(advance: Callable[[int], None], rate: int) -> Callable[[int], None]:
    """Return a function that calls ``advance``, then waits until the average read rate is at most
    ``rate`` bytes per second.
    """
    begin, done = time.monotonic(), 0

    def advanced(amount: int) -> None:
        nonlocal done
        advance(amount)
        done += amount
        while (early := begin + done / rate - time.monotonic()) > 0:
            time.sleep(min(early, _MAX_SLEEP_S))

    return advanced


def use_idle_disk() -> bool:
    """Set the idle I/O priority of this process: it then reads only while no other process uses the
    disk. Return False if the system does not support this.
    """
    number = _IOPRIO_SET.get(platform.machine())
    if number is None or not hasattr(os, "sched_getaffinity"):  # only on Linux
        return False
    done: int = ctypes.CDLL(None, use_errno=True).syscall(number, _THIS_PROCESS, 0, _IDLE)
    return done == 0
