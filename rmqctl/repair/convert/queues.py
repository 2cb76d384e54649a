"""``convert``: rebuild consume queues from the log in another form.

The new form is files instead of RocksDB, or the reverse. If a broker writes both forms, only the
files are kept. The old form is moved aside completely. Only one thing is copied from it: the end of
each queue whose messages have all expired. A note says which settings of the broker must change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import field
from typing import Any, Literal

from rmqctl.broker.settings import Settings
from rmqctl.checks.verify.common import plural
from rmqctl.checks.verify.verify import Verification, VerifyOptions
from rmqctl.errors import RefusedError
from rmqctl.files.durable import failed, make_folders
from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local import names
from rmqctl.formats.local.consume_queue import FILLER, UNIT_SIZE, UnitRecord
from rmqctl.formats.local.message import MIN_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase, some_of
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import (
    Action,
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Plan,
    Planned,
    Step,
    Watch,
)
from rmqctl.repair.rebuild import rocksdb
from rmqctl.repair.rebuild.derived_range import log_as_it_is
from rmqctl.repair.rebuild.rebuild import CONSUMEQUEUE, log_size, rebuild
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.derived import QueueKey, is_queue_name
from rmqctl.store.layout import DATABASE_FILE
from rmqctl.store.queue.consume_queue import ConsumeQueue
from rmqctl.store.store import Sizes, Store

COMMAND = "convert"
WRITES = ("commitlog",)
"""Structures that must have a writable form. Consume queues are not among them, because they are
rebuilt completely.
"""
Form = Literal["file", "rocksdb"]
_EXT = "consumequeue_ext"
_MAX_NAMED = 3
_TO_ROCKSDB = (
    "a broker reads these consume queues with storeType=defaultRocksDB (5.2.0 or later), and then "
    "also keeps topics, groups and consumer offsets in RocksDB. At its first start, it reads only "
    "JSON files whose dataVersion counter is higher than its own. The counter of "
    "consumerOffset.json often is not higher; groups then lose their offsets")
_TWICE = "a broker with rocksdbCQDoubleWriteEnable starts a new database beside the files"
_TO_FILES = ("a broker reads these consume queues with storeType=default, and topics, groups and "
             "consumer offsets from the JSON files in config/: make sure that these are up to date")
FORM_NOTES = frozenset({_TO_ROCKSDB, _TWICE, _TO_FILES})
"""Notes on the settings that a broker needs to read the new form."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of a conversion.

    ``to``: the new form of the consume queues. ``given``: values by field name of `Settings`; None
    for a value that is not given.
    """

    to: Form
    jobs: int = 1
    commitlog_dirs: Sequence[str] = ()
    sizes: Sizes = field(default_factory=Sizes)
    given: Mapping[str, Any] = field(default_factory=dict)


def plan_convert(root: str, scratch: Scratch, options: ConvertOptions, watch: Watch) -> Plan:
    """Return the plan for the store at ``root``; it is empty if the consume queues already have the
    new form.

    New files are built in ``scratch``, which must exist until the plan is applied.

    Raises: NotAStoreError; UnsupportedError for a layout that cannot be converted; RefusedError for
    a damaged log, or for queues of a kind that the new form does not support; StoreIOError.
    """
    # Nothing to do, or a conversion that would lose something.
    with Store.open(root, options.commitlog_dirs, options.sizes) as store:
        store.layout.require_writable(root, WRITES)
        if store.layout.consumequeue == options.to:
            return Plan(COMMAND, root, notes=(
                f"the consume queues are already in the form {options.to}",))
        if store.layout.consumequeue == "double" and options.to == "file":
            return _without_copy(store)
        _refuse(store, options.to)
        configuration = configured(store, options.given, into_files=options.to == "file")
        parts = log_as_it_is(store)
        before = sum(queue.disk_end - queue.first_index for queue in store.queues.by_key.values())
        # The queues in the other form, from the log.
        with watch("rebuilding", log_size(parts)) as done:
            if options.to == "rocksdb":
                database = rocksdb.make(
                    parts, root, configuration.settings, scratch, store.queues.by_key,
                    jobs=options.jobs, progress=done, recreated=True)
                steps, actions = rocksdb.steps(root, database, before,
                                               "converts files to a database")
                if os.path.isdir(os.path.join(root, _EXT)):
                    steps.append(MoveAside(_EXT))
                    actions.append(Action("move aside", _EXT, None, None,
                                          "a database has no extension units"))
                table = database.ends
            else:
                rebuilt = rebuild(parts, root, configuration.settings, scratch, only={CONSUMEQUEUE},
                                  jobs=options.jobs, progress=done, opened=store, twins=False)
                table = rebuilt.next_offsets | keep_ends(
                    store, rebuilt.next_offsets, scratch.path(CONSUMEQUEUE), configuration.settings)
                steps, actions = _in_files(scratch, before, table)
        # The plan, with the next queue offsets.
        form_notes = ([*_gaps(store), _TO_ROCKSDB] if options.to == "rocksdb" else [_TO_FILES])
        return Plan(COMMAND, root, tuple(actions), tuple(steps), topic_queue_table={
            f"{topic}-{queue_id}": end for (topic, queue_id), end in sorted(table.items())},
            notes=(*configuration.notes, *form_notes))


def _gaps(store: Store) -> list[Phrase]:
    """Return a note on the queues whose last entry in files is not at the queue offset that its
    message has. A database has it there, after a gap.
    """
    moved = []
    for (topic, queue_id), queue in store.queues.by_key.items():
        with closing(queue):
            last = queue.disk_end - 1
            unit = queue.unit(last)
        record = None if unit is None else store.log.record_at(unit.physical_offset, unit.size)
        if record is not None and record.queue_offset > last:
            moved.append(f"{topic}/{queue_id} (by {record.queue_offset - last:,})")
    return [Phrase(
        "in {queues}, entries are before the queue offsets of their messages. A database has them "
        "at these offsets, so groups that have read further receive messages again",
        queues=some_of(moved, _MAX_NAMED))] if moved else []


def _refuse(store: Store, to: Form) -> None:
    """Raise RefusedError if the log is damaged, or if the new form does not support batch
    queues.
    """
    if to == "rocksdb" and store.queues.batch:
        raise RefusedError(f"{store.root}: batch consume queues cannot be stored in RocksDB")
    refuse_damage(store)


def refuse_damage(store: Store) -> None:
    """Raise RefusedError if the log is damaged."""
    findings = Verification(store, VerifyOptions(only=frozenset({"commitlog"}))).findings()
    # With --apply, this process holds the store, and writes no record.
    is_ours = store.lock.pid == os.getpid()
    for finding in findings:
        is_torn = is_ours and finding.category == "in-progress"
        if finding.is_trouble or is_torn:
            detail = "at its end" if is_torn else finding.detail
            raise RefusedError(f"{store.root}: the log is damaged ({detail}); repair it first "
                               "(`rmqctl recover`)")


def _without_copy(store: Store) -> Plan:
    """Return the plan that keeps the consume queues in files and moves their copy in
    RocksDB aside.
    """
    store.layout.require(store.root, CONSUMEQUEUE)
    names = sorted(name for name in os.listdir(store.path(CONSUMEQUEUE))
                   if DATABASE_FILE.fullmatch(name))
    size = sum(os.path.getsize(store.path(CONSUMEQUEUE, name)) for name in names)
    action = Action("move aside", CONSUMEQUEUE, size, None, f"the copy in RocksDB "
                    f"({plural(len(names), 'file')}); the queues in files stay", "byte")
    return Plan(COMMAND, store.root, (action,),
                tuple(MoveAside(os.path.join(CONSUMEQUEUE, name)) for name in names),
                notes=(_TWICE,))


def _in_files(scratch: Scratch, before: int, table: Mapping[QueueKey, int]) -> Planned:
    """Return (steps, actions) that replace a database with the queue files of the scratch
    folder.
    """
    top = scratch.path(CONSUMEQUEUE)
    steps: list[Step] = [MoveAside(CONSUMEQUEUE), MakeFolder(CONSUMEQUEUE)]
    for folder, below, files in os.walk(top):
        below.sort()
        where = os.path.join(CONSUMEQUEUE, os.path.relpath(folder, top))
        steps += [Create(os.path.join(where, name), FileContent(os.path.join(folder, name)))
                  for name in sorted(files)]
    return steps, [Action("rebuild", CONSUMEQUEUE, before, before,
                          f"converts a database to files for {plural(len(table), 'queue')}", "row")]


def keep_ends(store: Store, ends: Mapping[QueueKey, int], top: str,
              settings: Settings) -> dict[QueueKey, int]:
    """Preserve the ends of queues that have no messages left in the log. Such queues are not in
    ``ends``.

    For each of them, write a file below ``top`` that ends where the queue ended. Return the next
    queue offsets.

    Raises: StoreIOError.
    """
    kept: dict[QueueKey, int] = {}
    for key, queue in store.queues.by_key.items():
        last = None if key in ends or not is_queue_name(key[0]) else rocksdb.expired_position(
            queue, store.log.min_offset)
        if last is not None:
            unit = _last_unit(queue, last.queue_offset) or UnitRecord(
                last.physical_offset, MIN_SIZE, 0)  # points to an expired message, as before
            _write_end(os.path.join(top, key[0], str(key[1])), last.queue_offset, unit,
                       settings.consumequeue_file_size)
            kept[key] = last.queue_offset + 1
    return kept


def _last_unit(queue: ConsumeQueue, queue_offset: int) -> UnitRecord | None:
    unit = queue.unit(queue_offset)
    return unit if unit is not None and unit.is_valid else None


def _write_end(folder: str, queue_offset: int, unit: UnitRecord, file_size: int) -> None:
    """Write the last file of a queue: padding entries, then the entry ``unit``, after which a
    broker continues.
    """
    start = names.file_start(layout.byte_offset(queue_offset), file_size)
    path = os.path.join(folder, names.build_offset(start))
    fillers = (layout.byte_offset(queue_offset) - start) // UNIT_SIZE
    make_folders(folder, durable=False)
    try:
        with open(path, "xb") as file:
            file.write(layout.build(FILLER) * fillers + layout.build(unit))
            file.truncate(file_size)
    except OSError as error:
        raise failed(error, path, "write") from None
