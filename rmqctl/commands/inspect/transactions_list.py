"""``rmqctl transactions list``: list half messages without commit or rollback."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Annotated, Any, Literal

import typer

from rmqctl.commands.shared.messages import ReadFaults
from rmqctl.commands.shared.options import Out, StoreIndex, Zone
from rmqctl.output.units import duration_text, time_text
from rmqctl.parse_values import now_ms, parse_duration
from rmqctl.phrases import Joined, Phrase

_BRIEF = ("state", "topic", "queue_id", "transaction_id", "note")


def command(
    *,
    group: Annotated[str | None, typer.Option(
        "--group", "-g", metavar="GROUP", help="Only transactions of this producer group.")] = None,
    older_than: Annotated[int | None, typer.Option(
        "--older-than", metavar="AGE", parser=parse_duration,
        help="Only transactions older than this: 1h, 3d.")] = None,
    state: Annotated[Literal["open", "given-up"] | None, typer.Option(
        "--state", show_default=False, help="open: a broker still asks the producer. given-up: it "
                                            "no longer does.")] = None,
    count: Annotated[int | None, typer.Option(
        "--limit", metavar="N", min=0, help="At most this many transactions.")] = None,
    tz: Zone = UTC,
    store: StoreIndex,
    out: Out,
) -> None:
    """List half messages without commit or rollback.

    state: waiting (a broker asks the producer at next_check); discarded next (the next check
    discards it: too many checks, or too old); discarded (in TRANS_CHECK_MAX_TIME_TOPIC); passed
    over (checks skipped it for an unknown reason); ended before (another copy of it was ended);
    gone (the half message is not in the log). Exit code 1 unless all are waiting.

        rmqctl transactions list STORE --older-than 1h
    """
    from rmqctl.checks.transactions import COLUMNS, OPEN, WAITING, transactions

    now, faults = now_ms(), ReadFaults(out)
    with store.open() as opened:
        shown = [transaction for transaction in transactions(opened, now, faults.report)
                 if group in (None, transaction.group)
                 and (older_than is None or (transaction.age(now) or 0) > older_than)
                 and (state is None or (transaction.state in OPEN) == (state == "open"))]
    rows = (transaction.as_dict(now) for transaction in shown[:count])
    out.rows(rows if out.is_data else ({**row, "note": _note(row, tz)} for row in rows), COLUMNS,
             brief=_BRIEF, empty="no pending transactions")
    faults.has_findings |= any(transaction.state != WAITING for transaction in shown)
    faults.end()


def _note(row: Mapping[str, Any], tz: tzinfo) -> Phrase:
    """Return a human-readable note on a transaction: producer group, age, checks, next check."""
    parts = [Phrase("producer group {group}", group=row["producer_group"])
             ] if row["producer_group"] else []
    if row["age_ms"] is not None:
        parts.append(Phrase("sent {age} ago", age=duration_text(row["age_ms"])))
    parts.append(Phrase("checked {count:,} time", "checked {count:,} times", count=row["checks"]))
    if row["next_check"] is not None:
        parts.append(Phrase("next check {time}", time=time_text(row["next_check"], tz)))
    return Joined(", ", parts)
