"""``rmqctl expire``: remove expired files as the broker's cleaner would."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.applying import ApplyOptions
from rmqctl.commands.shared.options import ListedOut, StoreQueues, Zone
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import now_ms, parse_duration, parse_size, show_times_in

if TYPE_CHECKING:
    from rmqctl.repair.scratch import Scratch


def command(
    *,
    older_than: Annotated[int | None, typer.Option(
        "--older-than", metavar="AGE", parser=parse_duration,
        help="Expire log files last written longer ago than this: 72h, 7d, 1d12h "
             "(fileReservedTime; default 72h).")] = None,
    keep_bytes: Annotated[int | None, typer.Option(
        "--keep-bytes", metavar="SIZE", parser=parse_size,
        help="Also expire the oldest log files until at most SIZE of log is left.")] = None,
    free: Annotated[int | None, typer.Option(
        "--free", metavar="SIZE", parser=parse_size,
        help="Expire the oldest log files until the expired files occupy SIZE on disk.")] = None,
    apply: ApplyOptions,
    store: StoreQueues,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Remove expired files by a broker's cleanup rules.

    Log files expire oldest first, by modification time; the last one stays. Consume queue, timer
    and index files follow when nothing needs them. A log file expires if any given option applies
    to it. Without options, fileReservedTime decides (--broker-conf or the release's default), at
    any disk usage. Unread, delayed and half messages cause warnings. Files are moved aside for
    `rmqctl undo`; `rmqctl undo STORE --prune 0h` frees the space. `rmqctl retention` previews a
    broker's cleanup.

        rmqctl expire STORE --broker-conf broker.conf
        rmqctl expire STORE --older-than 7d --keep-bytes 100GiB --apply --yes
    """
    from rmqctl.checks.impact import Impact
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.repair.expire import ExpiryLimits, expire
    from rmqctl.repair.retention import expire_by_settings
    from rmqctl.repair.truncate.truncate import WRITES

    show_times_in(tz)
    limits, now = ExpiryLimits(older_than, keep_bytes, free), now_ms()

    def propose(_: Scratch) -> plan_page.Proposal:
        with store.open() as opened:
            expiry = (expire_by_settings(opened, now) if limits == ExpiryLimits() else
                      expire(opened, now, limits))
        count = sum(expiry.rows.values())
        return plan_page.Proposal(
            expiry.plan,
            {"min_phy_offset": expiry.min_after, "min_phy_offset_before": expiry.min_before,
             "bytes": expiry.bytes, "messages_expired": count, "expired_by_topic": expiry.rows},
            {"log starts at": f"{expiry.min_after} (now {expiry.min_before})",
             "messages": count_text(count),
             "files": f"{count_text(len(expiry.plan.actions))} ({size_text(expiry.bytes)})"},
            impact=Impact(count, topics=expiry.rows) if count else None)

    applying.run(out, store.root, "expire", propose, apply, folders=store.folders,
                 writes=WRITES, made_anew=True)
