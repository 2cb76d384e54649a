"""Build the consume queues in RocksDB that a broker's start would leave (spec: rocksdb.md §3, §4).

A start deletes no entries. For each message that a start dispatches again, the entry at the
message's queue offset is overwritten. A start also records the last entry of each queue and the end
of the dispatched log. `rmqctl.checks.preflight` predicts the recorded values, including a broker's
errors.
"""

from __future__ import annotations

from contextlib import closing
from itertools import zip_longest

from rmqctl.broker.recovery import dispatched
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import BrokerVersion
from rmqctl.checks.preflight.types import Prediction
from rmqctl.engine.dispatch.derive import deriver_for
from rmqctl.errors import FormatError, RefusedError
from rmqctl.formats.rocksdb.consume_queue import OFFSETS, ROWS, PositionRecord
from rmqctl.repair.plan import Step
from rmqctl.repair.rebuild import rocksdb
from rmqctl.repair.rebuild.rocksdb import BuiltDatabase, DatabaseWriter
from rmqctl.repair.scratch import Scratch
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.rocksdb.database import Database
from rmqctl.store.rocksdb.queues import RocksQueues
from rmqctl.store.store import Store

_SCRATCH = "rocksdb-start"


def start_steps(store: Store, predicted: Prediction, rules: BrokerVersion, settings: Settings,
                scratch: Scratch) -> list[Step]:
    """Return the steps that replace the present database.

    The list is empty if the start would not change the database. Raises: RefusedError if a part of
    the present database cannot be read; StoreIOError, MissingExtraError.
    """
    present = store.queues.rocksdb
    try:
        database = _built(store, present, predicted, rules, settings, scratch)
        if present is not None and _same(present.database, database.folder):
            return []
    except FormatError as error:
        raise RefusedError(
            f"{store.root}: {error}: cannot predict what a broker keeps of this database; "
            "recover without --strategy broker rebuilds it") from None
    return rocksdb.steps(store.root, database, None, "")[0]


def _built(store: Store, present: RocksQueues | None, predicted: Prediction, rules: BrokerVersion,
           settings: Settings, scratch: Scratch) -> BuiltDatabase:
    noted = predicted.queues.noted
    assert noted is not None
    writer = DatabaseWriter(scratch.path(_SCRATCH), lambda _key: False)
    try:
        # All present entries stay.
        if present is not None:
            for damage in present.damage:
                raise FormatError(damage)
            writer.carry_over(present)
        least = dict(writer.first)

        # Entries of the messages that are dispatched again.
        writer.wants = None
        deriver = deriver_for(settings)
        with closing(CommitLog(predicted.log.loaded, store.log.file_size)) as log:
            for part in predicted.log.dispatch:
                for batch in dispatched(log, part, rules):
                    writer.add(deriver.derive(batch), lmq=settings.multi_dispatch)

        # The noted positions; the first entry of a queue only once it was requested.
        writer.first, writer.end = least, noted.checkpoint
        writer.last = {key: PositionRecord(place, end - 1)
                       for key, (end, place) in noted.queues.items() if end}
    finally:
        database = writer.finish()
    return database


def _same(present: Database, folder: str) -> bool:
    """Return whether a database has the same entries as the one in ``folder``."""
    with Database.open(folder) as other:
        return all(ours == theirs for family in (ROWS, OFFSETS) for ours, theirs in zip_longest(
            present.items(family), other.items(family)))
