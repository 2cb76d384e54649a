"""Dispatch: what a broker uploads to a tier, from a local store that no broker runs on (§7).

`Dispatch.prepare` looks at every queue and completes what an earlier run left half done, `run`
uploads. The local log is read once, in windows; while one is appended and made to last (see
`rmqctl.tiered.dispatch.commit`) the next one is read. The local store is only read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rmqctl.errors import RefusedError
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.metadata import QueueEntry, TopicEntry
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.scan import malloc_tuning
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store
from rmqctl.tiered.dispatch.append_file import Growing, committing
from rmqctl.tiered.dispatch.blocks import Block
from rmqctl.tiered.dispatch.commit import Blocks, Committer, IndexRun, Stages, Window
from rmqctl.tiered.dispatch.group_commit import Rounds, is_due
from rmqctl.tiered.dispatch.local import LocalQueue
from rmqctl.tiered.dispatch.plan import (
    REFUSED,
    SKIPPED,
    STOPPED,
    UP_TO_DATE,
    UPLOADED,
    WAITING,
    Outcome,
    Start,
    Upload,
    flat_queue,
    judged,
    places,
    same_message,
)
from rmqctl.tiered.dispatch.resume import complete
from rmqctl.tiered.dispatch.resume_metadata import unknown_topic
from rmqctl.tiered.dispatch.settings import TierSettings, remember
from rmqctl.tiered.dispatch.sweep import WINDOW, Sweep
from rmqctl.tiered.files.writer import Feeder
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.flat_queue import FlatQueue, QueueName
from rmqctl.tiered.tier import Tier


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose. ``topics`` empty: all of them."""

    cluster: str
    broker: str
    topics: tuple[str, ...] = ()
    start: Start = field(default_factory=Start)
    only_due: bool = False
    restart_queue: bool = False
    window: int = WINDOW


class Dispatch:
    """One run. ``open_feeder`` gives a feeder of the tier; two are used, one by each half.

    ``clock`` gives ms; ``advance`` is told the bytes that were gone through, ``stopping`` is asked
    between two windows whether to end there.
    """

    def __init__(self, store: Store, tier: Tier, open_feeder: Callable[[], Feeder],
                 metadata_path: str, home: str, settings: TierSettings, options: Options,
                 clock: Callable[[], int], *, advance: Callable[[int], None] = lambda _: None,
                 stopping: Callable[[], bool] = lambda: False) -> None:
        self.store, self.tier, self.options, self.settings = store, tier, options, settings
        self.metadata = tier.metadata
        self.metadata_path, self.home = metadata_path, home
        self.uploads: list[Upload] = []
        self.outcomes: list[Outcome] = []
        self.stopped = self.restarted = False
        self._now, self._advance, self._stopping = clock, advance, stopping
        self._view = View(store)
        self._log_feeder, self._rows_feeder = open_feeder(), open_feeder()

    def close(self) -> None:
        """Gives the files back."""
        self._log_feeder.close()
        self._rows_feeder.close()

    # -- what there is to do ----------------------------------------------------------------------

    def prepare(self) -> None:
        """Decides for each queue; completes and creates. The metadata is saved. StoreIOError,
        RefusedError (metadata that would lose something when it is written anew).
        """
        self._refuse_metadata()
        remember(self._rows_feeder, self.settings)
        chosen = self.options
        found = places(self.store, chosen.cluster, chosen.broker, list(chosen.topics))
        for topic, number in found.batch:
            self.outcomes.append(Outcome(
                topic, number, status=SKIPPED,
                reason="a batch consumequeue: rmqctl uploads plain ones only"))
        for key in found.queues:
            local = LocalQueue(self._view, self.store.queues[key])
            outcome = Outcome(*key)
            self.outcomes.append(outcome)
            self._prepare(local, outcome)
        Committer(self.metadata, self.metadata_path, self.home, self._now).save()

    def _refuse_metadata(self) -> None:
        where = self.tier.metadata_path or self.metadata_path
        if self.tier.metadata_error is not None:
            raise RefusedError(f"{self.tier.metadata_error}; `rmqctl tiered recover` rebuilds it")
        if self.metadata.old:
            raise RefusedError(f"{where} is of a broker 5.1.0 or 5.1.1, which is not written; "
                               "`rmqctl tiered recover` makes today's of it")
        if self.metadata.faults:
            one = self.metadata.faults[0]
            raise RefusedError(f"{where}: {one.path}: {one.reason}; it would be lost when the file "
                               "is written anew; see `rmqctl tiered recover`")
        self._refuse_unknown(where)

    def _refuse_unknown(self, where: str) -> None:
        """Refuses where metadata was lost or is an old one: topics would get other ids, and what
        is in the index would be of topics it is not of. It is saved before a message goes.
        """
        broker = self.options.cluster, self.options.broker
        # Looked at apart: what the tier itself remembers is to be what is there after `prepare`.
        there = Tier(self.tier.reader, None, None).found
        topic = unknown_topic((queue for name, queue in there.queues.items()
                               if (name.cluster, name.broker) == broker), self.metadata)
        if topic is not None:
            says = "does not know" if os.path.lexists(where) else "is missing, so nothing knows"
            raise RefusedError(f"{where} {says} the topic {topic}, which is in the tier; "
                               "`rmqctl tiered recover` finds its id in the index")

    def _prepare(self, local: LocalQueue, outcome: Outcome) -> None:
        name = QueueName(self.options.cluster, self.options.broker, local.topic, local.queue_id)
        flat = flat_queue(self._rows_feeder, name)
        done = complete(self._rows_feeder, flat, self.metadata, self.settings.consume_queue_limit,
                        self._now, same_message(local))
        outcome.completed = done.units
        tiered = bool(flat.consume_queue.segments)
        verdict = (REFUSED, done.fault) if done.fault is not None else None
        if verdict is None and tiered:
            verdict = judged(local, flat.commit_offset)
        if verdict is not None and verdict[0] == REFUSED and self.options.restart_queue:
            self._restart(flat)
            flat, tiered, verdict = flat_queue(self._rows_feeder, name), False, None
        outcome.start = outcome.end = flat.commit_offset if tiered else 0
        if verdict is not None:
            outcome.status, outcome.reason = verdict
            return
        current = flat.commit_offset if tiered else self.options.start.offset(self._view, local)
        outcome.start = outcome.end = current
        if current == local.end and (not tiered and self.options.start.time is None):
            return
        self._enter(name)
        if not tiered:
            self._forget_gone(flat)
        local.seek(current)
        log, rows = (self._growing(feeder, name, one) for feeder, one in (
            (self._log_feeder, flat.commit_log), (self._rows_feeder, flat.consume_queue)))
        if log.path is None:
            log.start(0)
        if rows.path is None:
            rows.start(current * UNIT_SIZE)
        for one in (log, rows):
            committing(one.feeder, one.dirty())()
            for entry in one.changes():
                self.metadata.put_segment(entry)
        self.uploads.append(Upload(local, flat, log, rows, Rounds(self.settings),
                                   self.metadata.topics[local.topic].topic_id, outcome,
                                   first_base=log.end, next_base=log.end))

    def _growing(self, feeder: Feeder, name: QueueName, flat: FlatFile) -> Growing:
        log = flat.kind == names.COMMIT_LOG
        limit = self.settings.commit_log_max if log else self.settings.consume_queue_limit
        return Growing(feeder, name, flat, limit,
                       self.metadata.segments[flat.kind].get(name.path, {}), self._now)

    def _enter(self, name: QueueName) -> None:
        """Makes metadata know the topic and the queue."""
        found = self.metadata
        if name.topic not in found.topics:
            found.serial += 1
            found.topics[name.topic] = TopicEntry(found.serial, name.topic,
                                                  update_timestamp=self._now())
        table = found.queues.setdefault(name.topic, {})
        if name.queue_id not in table:
            table[name.queue_id] = QueueEntry(name.topic, name.broker, name.queue_id,
                                              update_timestamp=self._now())

    def _restart(self, flat: FlatQueue) -> None:
        """Moves a tiered queue's files aside. What the index has of them stays."""
        self.restarted = True
        for one in (flat.consume_queue, flat.commit_log):
            for segment in one.segments:
                self._rows_feeder.put_aside(segment.path)

    def _forget_gone(self, flat: FlatQueue) -> None:
        """What metadata says of files of a queue that begins anew, and are not there any more."""
        for one in (flat.commit_log, flat.consume_queue):
            there = {segment.base for segment in one.segments}
            table = self.metadata.segments[one.kind].get(flat.name.path, {})
            for base in [base for base in table if base not in there]:
                del table[base]

    # -- uploading --------------------------------------------------------------------------------

    def run(self, index: IndexRun | None = None) -> None:
        """Uploads what is to be uploaded. StoreIOError: what was committed stays."""
        malloc_tuning.keep()
        malloc_tuning.calm()
        by_local = {id(one.local): one for one in self.uploads}
        sweep = Sweep(self.store.log, [one.local for one in self.uploads],
                      lambda local: by_local[id(local)].next_base, self.options.window)
        commit = Committer(self.metadata, self.metadata_path, self.home, self._now)

        def append(taken: Blocks) -> Window:
            if index is not None:
                index.intend(taken)
            return self._append_all(taken)

        with Stages(append, commit, index) as stages:
            for blocks in sweep.windows():
                taken = self._taken(by_local, blocks)
                stages.submit(taken)
                self._advance(sum(block.bytes for _, block in taken))
                if self._stopping():
                    self.stopped = True
                    break
        if index is not None:
            index.commit()
        for one in self.uploads:
            self._end(one)

    def _taken(self, by_local: dict[int, Upload], blocks: Iterator[Block]) -> Blocks:
        """What of a window is uploaded."""
        found = []
        for block in blocks:
            upload = by_local[id(block.queue)]
            block = self._cut(upload, block)  # noqa: PLW2901
            if len(block):
                upload.next_base += block.bytes
                found.append((upload, block))
        return found

    def _append_all(self, taken: Blocks) -> Window:
        """Appends a window to the commit logs."""
        window = Window(taken)
        paths: list[str] = []
        for upload, block in taken:
            self._append(upload, block)
            window.entries += upload.log.changes()
            paths += upload.log.dirty()
        window.sync = committing(self._log_feeder, paths)
        return window

    def _cut(self, upload: Upload, block: Block) -> Block:
        """What of a block is uploaded; notes where rounds begin in it."""
        queue, count = upload.local, len(block)
        long = block.size > self.settings.commit_log_max
        if long.any():
            count = int(long.argmax())
            queue.stop(block.offset + count,
                       f"the message has {int(block.size[count])} bytes, a commit log segment at "
                       f"most {self.settings.commit_log_max}: a broker would try for ever")
        starts = upload.rounds.starts(block.size[:count])
        if self.options.only_due:
            times, now = block.times, self._now()
            for at in starts:
                waiting = queue.end - block.offset - at
                if not is_due(self.settings, int(times[at]), waiting, now):
                    queue.finish()
                    upload.outcome.status = WAITING
                    count = at
                    break
        block.rounds = [one for one in starts if one < count]
        return block if count == len(block) else block.head(count)

    def _append(self, upload: Upload, block: Block) -> None:
        """Appends a block to the commit log, rolled for age before rounds as a broker does."""
        log, times, view = upload.log, block.times, memoryview(block.data)
        pieces = sorted({0, *block.rounds})
        for first, last in zip(pieces, [*pieces[1:], len(block)], strict=True):
            if first in block.rounds and log.is_old(self.settings.rolling_interval,
                                              self.settings.rolling_min_size, self._now()):
                log.roll()
            begin = int(block.end[first - 1]) if first else 0
            log.append(view[begin:int(block.end[last - 1])], block.end[first:last] - begin,
                       times[first:last])

    def _end(self, upload: Upload) -> None:
        outcome, fault = upload.outcome, upload.local.fault
        if fault is not None:
            outcome.status = STOPPED
            outcome.reason = f"queue offset {fault.queue_offset}: {fault.reason}"
        elif outcome.end < upload.local.end and outcome.status in (UPLOADED, UP_TO_DATE):
            outcome.status = WAITING
