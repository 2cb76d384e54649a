"""Options that the commands on tiers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.shared.options import complete_folders

if TYPE_CHECKING:
    from rmqctl.tiered.tier import Tier

_TIER = "Where and how the tier lies"

TierRoot = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="Tier root: the folder with the clusters' folders (212d6b50_DefaultCluster/), a store "
        "that has it as tieredstore/, or a URL for fsspec.",
        autocompletion=complete_folders,
        show_default=False,
    ),
]
MetadataFile = Annotated[
    str | None,
    typer.Option(
        "--metadata", metavar="FILE", rich_help_panel=_TIER,
        help="The broker's tieredStoreMetadata.json, where it is not in config/ beside DIR. The "
        "index files that are not uploaded are looked for in tiered_index_file/ of the same "
        "local root.",
    ),
]
Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="NAME", rich_help_panel=_TIER,
                 help="Only what this broker (brokerName) uploaded."),
]
TieredIndexSlots = Annotated[
    int | None,
    typer.Option(
        "--index-slots", metavar="N", min=1, rich_help_panel=_TIER,
        help="tieredStoreIndexFileMaxHashSlotNum, where no uploaded index file tells it "
        "(default 5000000).",
    ),
]
TieredIndexMax = Annotated[
    int | None,
    typer.Option(
        "--index-max", metavar="N", min=2, rich_help_panel=_TIER,
        help="tieredStoreIndexFileMaxIndexNum (default 20000000).",
    ),
]


def opened_tier(root: str, metadata: str | None, broker: str | None = None) -> Tier:
    """The tier of a command, opened for reading. NotAStoreError.

    UsageError where ``broker`` has nothing in it.
    """
    from rmqctl.errors import UsageError
    from rmqctl.tiered.tier import Tier

    tier = Tier.open(root, metadata)
    if broker is not None:
        there = {one.broker for one in tier.found.queues} | {
            owner for _, owner in tier.found.indexes}
        if broker not in there:
            tier.close()
            raise UsageError(f"{tier.name}: nothing of a broker {broker} is in it; there is "
                             f"{', '.join(sorted(there)) or 'none'}")
    return tier
