"""The checks of small structures, by the structure they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmqctl.checks.findings import Finding
from rmqctl.checks.results import RangeResult
from rmqctl.store.store import Store


def deleted_topics(store: Store) -> frozenset[str]:
    """Topics that have messages but no configuration; empty when that cannot be told."""
    return frozenset()


def small_checks(store: Store, result: RangeResult, log_end: int,
                 wants: Callable[[str], bool], live: bool) -> Iterator[Finding]:
    """Everything but the log, the plain consumequeues and the index."""
    yield from ()
