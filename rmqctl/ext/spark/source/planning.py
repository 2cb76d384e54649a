"""Divide stores (`rmqctl.sql.planning`) and tiers into partitions."""

from __future__ import annotations

from rmqctl.ext.spark.source.tiered import of_tier
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.planning import PlanItem, of_store, partitions
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.reader import Piece
from rmqctl.sql.schema import TIERED_MESSAGES


def plan(options: ReadOptions, filters: Filters, cores: int | None = None) -> list[list[Piece]]:
    """Return the pieces of each partition; a partition may have no pieces.

    ``filters`` are all conditions, including those in ``options``.
    Raises: NotAStoreError, StoreIOError.
    """
    return partitions(_items(options, filters), options, cores)


def estimate(options: ReadOptions) -> tuple[int, int]:
    """Return the number of partitions and the total number of bytes of a read.

    Filters from Spark are not considered.
    """
    items = _items(options, options.filters)
    return len(partitions(items, options, None)), sum(item.weight for item in items)


def _items(options: ReadOptions, filters: Filters) -> list[PlanItem]:
    if options.table != TIERED_MESSAGES:
        return [item for path in options.stores() for item in of_store(path, options, filters)]
    return [PlanItem(weight, cut) for path in options.stores()
            for weight, cut in of_tier(path, filters, orphans=options.orphans)]
