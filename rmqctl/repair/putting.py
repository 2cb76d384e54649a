"""Plan to append messages to a store, with their queue and index entries, as the engine does.

The engine creates the records. Its dispatcher adds queue and index entries to copies of the files
in a scratch folder. The plan contains the differences. The store must have been closed cleanly, and
all its messages must have entries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from rmqctl.engine.config.topics import NAME, Topics
from rmqctl.engine.dispatch.derive import Derived, deriver_for
from rmqctl.engine.dispatch.reput import Dispatcher
from rmqctl.engine.input.append_stream import DryRunLog, next_offsets
from rmqctl.engine.log.log_files import place
from rmqctl.engine.opening import catch_up_start, dispatched_to, examine, recorded_runs
from rmqctl.engine.put.cursor import RecordRun, joined
from rmqctl.engine.put.message import Outgoing, PutResult, PutResults
from rmqctl.engine.put.put import PutPath
from rmqctl.errors import FormatError, RefusedError
from rmqctl.files.durable import make_folders
from rmqctl.formats import layout
from rmqctl.formats.config import fastjson
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import MAGIC_BLANK, Blank, decode
from rmqctl.formats.local.names import build_offset
from rmqctl.repair.broker_config import Configured
from rmqctl.repair.config.convert import replaced
from rmqctl.repair.plan import Action, Changes, Create, FileContent, Patch, Replace, Step
from rmqctl.repair.rebuild import rocksdb
from rmqctl.repair.rebuild.steps import compare
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import target
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Batch, records_from
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.config.config import FOLDER, MISSING, load_one
from rmqctl.store.files import listing
from rmqctl.store.objects import java_text
from rmqctl.store.store import Store

_APPEND = "append"
_PLAIN, _BATCH, _EXT, _INDEX = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index")
_SCRATCH = "rocksdb-put"
_BLANK = layout.reader(Blank)
_PAGE, _BLOCK = 1 << 12, 1 << 20


class Puts(Changes):
    """The changes that append messages to a store. ``clock`` returns the time in epoch ms.

    Raises: UnsupportedError; RefusedError if the store must first be repaired.
    """

    def __init__(self, store: Store, configuration: Configured, scratch: Scratch,
                 clock: Callable[[], int]) -> None:
        super().__init__()
        store.layout.require_writable(store.root, made_anew=True)
        self.store, self.settings, self.scratch = store, configuration.settings, scratch
        self.topics = Topics(store.root, configuration.settings, clock)
        self._batch, self._clock = configuration.batch_topics, clock
        settings = configuration.settings
        state = examine(store, settings.profile)
        start = catch_up_start(state, dispatched_to(store, settings.profile))
        if not state.clean or state.cut_off or any(
                run.last_row for run in recorded_runs(store, start, state.end)):
            raise RefusedError(
                f"{store.root}: the store was not closed cleanly, or consume queue entries are "
                "missing; nothing is appended. Run `rmqctl recover` first")
        self.end = state.end
        self._path = PutPath(
            settings, DryRunLog(state, store.log, settings.commitlog_file_size),
            next_offsets(store, settings, state), self._is_batch, clock, lambda: None)

    def _is_batch(self, topic: str) -> bool:
        return self.settings.profile.batch_queues and topic in self._batch

    def put(self, messages: Sequence[Outgoing], why: str) -> list[PutResult]:
        """Plan the append of all messages, or of none if any message is rejected. Return a result
        for each message. May be called only once.
        """
        results = PutResults()
        written = self._path.put(messages, results)
        runs = list(joined(written))
        if runs and all(result.stored for result in results):
            self._log(runs, why)
            self._derived([_batch(run) for run in runs], why)
        return results

    # -- the log ------------------------------------------------------------------------------

    def _log(self, runs: Sequence[RecordRun], why: str) -> None:
        """Add the records, and a blank record at the end of each file that is too full for the next
        record.
        """
        log, size, end = self.store.log, self.settings.commitlog_file_size, self.end
        pieces: dict[int, list[OverlayPiece]] = {}
        for run in runs:
            if run.base > end:
                room = run.base - end
                pieces.setdefault(end // size * size, []).append(
                    OverlayPiece.of(end % size, _BLANK.pack(room, MAGIC_BLANK)))
            data = bytes(run.data)
            pieces.setdefault(run.base // size * size,
                              []).append(OverlayPiece.of(run.base % size, data))
            end = run.base + len(data)
        for base, file_pieces in pieces.items():
            file = log.file_of(base)
            last = min(end, base + size)
            if file is not None:
                self.act(Patch(target(self.store, file.path), tuple(file_pieces)), _APPEND,
                         max(self.end, base), last, why, "")
                continue
            path = os.path.join(place(self.store.log_folders, base, size), build_offset(base))
            parts = tuple((piece.at, data) for piece in file_pieces for _, data in piece.parts)
            self.act(Create(target(self.store, path), OverlayPiece(0, size, parts)), _APPEND, None,
                     last,
                     why, "")

    # -- what follows from it -----------------------------------------------------------------

    def _derived(self, batches: Sequence[Batch], why: str) -> None:
        keys = sorted({key for batch in batches for key in _queues_of(batch, self.settings.lmq)})
        in_files = self.store.layout.consumequeue != "rocksdb"
        self._copy_in(keys)
        dispatcher = Dispatcher(
            self.scratch.root, self.settings, self._clock, self._is_batch,
            wanted=keys.__contains__, rows=in_files)
        deriver = deriver_for(self.settings)
        derived = [deriver.derive(batch) for batch in batches]
        try:
            before = dispatcher.next_offsets()
            for entries in derived:
                dispatcher.apply(entries)
            after = dispatcher.next_offsets()
        finally:
            dispatcher.close()
        if not in_files:
            self._rocksdb(derived, why)
        for topic, queue_id in keys if in_files else ():
            for structure in (_PLAIN, _BATCH, _EXT):
                folder = os.path.join(structure, topic, str(queue_id))
                key = topic, queue_id
                self._compared(folder, before.get(key) if structure != _EXT else None,
                               after.get(key) if structure != _EXT else None, why)
        self._compared(_INDEX, None, None, why)

    def _copy_in(self, keys: Iterable[QueueKey]) -> None:
        """Copy into ``scratch`` the last files of queues and index, and all extension files, which
        are needed to compute addresses.
        """
        make_folders(self.scratch.path(_PLAIN), durable=False)
        folders = [(_INDEX, self.store.index.listing.files[-1:])]
        for topic, queue_id in keys:
            for structure, last in ((_PLAIN, -2), (_BATCH, -2), (_EXT, 0)):
                folder = os.path.join(structure, topic, str(queue_id))
                folders.append((folder, listing(self.store.path(folder)).files[last:]))
        for folder, files in folders:
            for file in files:
                self.scratch.copy_in(self.store.root, os.path.join(folder, file.name))

    def _compared(self, folder: str, before: int | None, after: int | None, why: str) -> None:
        steps = compare(self.store.root, self.scratch.root, folder, lambda _: True)
        if steps:
            self.steps += [_patched(self.store.root, step) for step in steps]
            self.actions.append(Action("add rows" if folder != _INDEX else "add entries",
                                       folder, before, after, why))

    def _rocksdb(self, derived: Sequence[Derived], why: str) -> None:
        present = self.store.queues.rocksdb
        writer = rocksdb.DatabaseWriter(self.scratch.path(_SCRATCH), lambda _key: False)
        try:
            if present is not None:
                for damage in present.damage:
                    raise FormatError(damage)
                writer.carry_over(present)
            writer.wants, least = None, dict(writer.first)
            for entries in derived:
                writer.add(entries, lmq=self.settings.multi_dispatch)
            writer.first = least  # a broker notes it at the first request
        except FormatError as error:
            raise RefusedError(f"{self.store.root}: {error}: cannot add entries to consume queues "
                               "that are partly unreadable") from None
        finally:
            database = writer.finish()
        steps, actions = rocksdb.steps(self.store.root, database, None, why)
        self.steps += steps
        self.actions += actions

    # -- topics -------------------------------------------------------------------------------

    def create_topics(self, names: Iterable[str], why: str) -> None:
        """Add topics with one queue to config/topics.json, as a broker does for retry topics."""
        new = {name: self.topics.bean(name, 1) for name in names if self.topics.get(name) is None}
        if not new or not self.topics.exists:
            return
        file = load_one(self.store, NAME)
        value = self.topics.changed({**self.topics.table, **new})
        path = os.path.join(FOLDER, NAME)
        if file.main.database:
            path = file.main.path
            self.steps += replaced(self.store, {NAME: value}, self.scratch)
        else:
            data = fastjson.build(value)
            self.steps.append(Create(path, data) if file.main.state == MISSING else
                              Replace(path, data))
        self.actions += [Action("create", path, None, name, why) for name in sorted(new)]


def _batch(run: RecordRun) -> Batch:
    data = np.frombuffer(run.data, np.uint8)
    return records_from(data, run.base, 0, len(data))


def _queues_of(batch: Batch, lmq: bool) -> Iterator[QueueKey]:
    """Yield the queues in which a batch of records has entries."""
    for start, size in zip(batch.start.tolist(), batch.column("total_size").tolist(), strict=True):
        record = decode(batch.data[start:start + size].tobytes())
        yield os.fsdecode(record.topic), record.queue_id
        for name, _ in props.further_rows(props.parse(java_text(record.properties))):
            yield name, 0 if lmq and name.startswith(props.LMQ_PREFIX) else record.queue_id


def _patched(root: str, step: Step) -> Step:
    """Return a step that writes only the pages that differ. If the size of the file changes, return
    ``step`` unchanged.
    """
    if not isinstance(step, Replace) or not isinstance(step.content, FileContent):
        return step
    pieces: list[OverlayPiece] = []
    with FileSource(os.path.join(root, step.target)) as old, FileSource(step.content.path) as new:
        if old.size != new.size:
            return step
        position = 0
        while (position := min(old.next_data(position), new.next_data(position))) < new.size:
            position -= position % _PAGE
            was, now = old.read(position, _BLOCK), new.read(position, _BLOCK)
            if was != now:
                pieces += [OverlayPiece.of(position + at, now[at:at + _PAGE])
                           for at in range(0, len(now), _PAGE)
                           if was[at:at + _PAGE] != now[at:at + _PAGE]]
            position += len(now)
    return Patch(step.target, tuple(pieces))
