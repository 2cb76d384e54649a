"""The checks of everything but the log, the plain consumequeues and the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rmqctl.checks.findings import Finding
from rmqctl.checks.verify import checkpoint, compaction, config, files, small_files
from rmqctl.checks.verify.context import Context
from rmqctl.checks.verify.timer import timer
from rmqctl.store.store import Store

_SEQUENCES = {"commitlog": "commitlog", "consumequeue": "consumequeue",
              "consumequeue_ext": "consumequeue", "batchconsumequeue": "consumequeue",
              "index": "index", "timer": "timer", "compaction": "compaction"}
"""Which ``--only`` name asks for the file names and sizes of a structure."""


def small_checks(store: Store, context: Context | None, log_end: int,
                 wants: Callable[[str], bool], live: bool) -> Iterator[Finding]:
    """In the order of the structures. ``context`` is None when the log was not read."""
    for one in files.check(store):
        if wants(_SEQUENCES.get(one.structure, "store")):
            yield one
    if wants("checkpoint"):
        newest = context.result.last_store_timestamp if context else None
        yield from checkpoint.check(store, newest, log_end, live=live)
    if wants("config"):
        yield from config.check(store, live=live)
    if wants("timer"):
        yield from timer.check(store, log_end, live=live,
                               in_damage=context.in_damage if context else None)
    if wants("compaction"):
        yield from compaction.check(store, live=live)
    in_damage = context.in_damage if context else None
    for one in small_files.check(store, log_end, live=live, in_damage=in_damage):
        if wants(_SEQUENCES.get(one.structure, "store")):
            yield one
