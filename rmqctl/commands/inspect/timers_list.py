"""``rmqctl timers list``: list timed messages that are not delivered yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.shared.options import Out, StoreQueues, Topic, Zone
from rmqctl.errors import ExitCode
from rmqctl.output.units import time_text
from rmqctl.parse_values import now_ms

if TYPE_CHECKING:
    from rmqctl.store import Store as OpenedStore

_BRIEF = ("due", "state", "topic", "physical_offset", "keys")


def command(
    *,
    topic: Topic = None,
    state: Annotated[Literal["pending", "lost"] | None, typer.Option(
        "--state", show_default=False,
        help="pending: only messages that a broker will deliver. lost: only messages that will "
             "never be delivered.")] = None,
    count: Annotated[int | None, typer.Option(
        "--limit", metavar="N", min=0, help="At most this many messages.")] = None,
    tz: Zone = UTC,
    store: StoreQueues,
    out: Out,
) -> None:
    """List timed messages that are not delivered yet, in due order.

    state: pending; not in the timer log yet (startup adds it); overdue (by more than 7 days:
    startup skips it); unreachable (no slot of the timer wheel points to it); missing in the timer
    log; gone (not in the commitlog). Messages with a delay level are not listed. Exit code 1 if a
    message will never be delivered; `recover` rebuilds the timer wheel and the timer log.

        rmqctl timers list STORE --topic orders --state lost
    """
    from rmqctl.checks.pending_timers import COLUMNS, NEVER

    states: Counter[str] = Counter()
    with store.open() as opened:
        out.rows(_rows(opened, topic, state, count, states), COLUMNS, brief=_BRIEF,
                 empty="no timed messages", render=dict.fromkeys(
                     ("due", "store_timestamp"), lambda value: time_text(value, tz)))
    if sum(states[name] for name in NEVER):
        raise typer.Exit(int(ExitCode.FINDINGS))


def _rows(store: OpenedStore, topic: str | None, state: str | None, count: int | None,
          states: Counter[str]) -> Iterator[dict[str, Any]]:
    from rmqctl.checks.pending_timers import NEVER, pending_timers

    shown = 0
    for row in pending_timers(store, now_ms()):
        if topic not in (None, row["topic"]) or (
                state is not None and (row["state"] in NEVER) != (state == "lost")):
            continue
        states[row["state"]] += 1
        shown += 1
        if count is None or shown <= count:
            yield row
