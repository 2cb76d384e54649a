"""Options of the commands that read a tier together with the broker's local store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmqctl.commands.shared.options import complete_folders
from rmqctl.commands.shared.parsing import parse_offset
from rmqctl.errors import UsageError

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.tiered.as_broker.router import Router
    from rmqctl.tiered.tier import Tier

_BOTH = "Together with a local store"
StrategyName = Literal["disable", "not-in-disk", "not-in-mem", "force"]

Local = Annotated[
    str | None,
    typer.Option(
        "--local", metavar="STORE", autocompletion=complete_folders, rich_help_panel=_BOTH,
        help="The broker's local store: it and the tier answer together, as a broker with both "
        "does.",
    ),
]
ReadStrategy = Annotated[
    StrategyName | None,
    typer.Option(
        "--strategy", rich_help_panel=_BOTH,
        help="tieredStorageLevel, with --local: who answers. disable: the local store. "
        "not-in-disk (default): the tier for what is not in the local log any more. not-in-mem: "
        "also for what is not in memory. force: the tier for everything.",
    ),
]
InMemory = Annotated[
    int | None,
    typer.Option(
        "--in-memory-from", metavar="OFFSET", parser=parse_offset, rich_help_panel=_BOTH,
        help="With --strategy not-in-mem: from this physical offset on the local log counts as "
        "in memory, which only the broker knows. Without it nothing does.",
    ),
]
AsBroker = Annotated[
    bool,
    typer.Option(
        "--as-broker",
        help="Exactly what a 5.3.3 broker answers, with what it misses and mixes up.",
    ),
]


def check_local(local: str | None, strategy: str | None, in_memory: int | None) -> None:
    """UsageError where options for a local store are given without one."""
    if local is None and (strategy is not None or in_memory is not None):
        raise UsageError("--strategy and --in-memory-from need --local STORE: without a local "
                         "store only the tier can answer")
    if in_memory is not None and strategy != "not-in-mem":
        raise UsageError("--in-memory-from goes with --strategy not-in-mem")


@contextmanager
def opened_router(out: Output, tier: Tier, local: str, strategy: str | None,
                  in_memory: int | None, broker: str | None) -> Iterator[Router]:
    """A local store and the tier as one. NotAStoreError, UsageError."""
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.query.lookup import answering_view
    from rmqctl.tiered.as_broker.local_side import LocalSide
    from rmqctl.tiered.as_broker.router import Router, Strategy

    chosen = Strategy.of(strategy or "not-in-disk")
    if chosen is Strategy.NOT_IN_MEM and in_memory is None:
        out.note("nothing of the local log is taken to be in memory: the tier answers for all it "
                 "has (--in-memory-from tells otherwise)")
    with OpenedStore.open(local) as store:
        yield Router(LocalSide(answering_view(store, "auto", 5), in_memory), tier, chosen,
                     broker=broker)
