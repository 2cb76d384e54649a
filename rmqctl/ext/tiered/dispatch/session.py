"""Run a dispatch or its dry run, from the request to the result: names, settings, locks, index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from rmqctl.errors import UsageError
from rmqctl.ext.tiered.dispatch.dispatch import Dispatch, DispatchOptions
from rmqctl.ext.tiered.dispatch.index import IndexFolder, IndexRun
from rmqctl.ext.tiered.dispatch.local import LocalQueue
from rmqctl.ext.tiered.dispatch.plan import (
    REFUSED,
    STOPPED,
    UPLOADED,
    WAITING,
    Outcome,
    broker_of,
    flat_queue,
    is_due,
    queues_to_upload,
    same_message,
    why_not_continued,
)
from rmqctl.ext.tiered.dispatch.request import (
    DispatchObserver,
    DispatchTarget,
    ReadBack,
    Request,
    Result,
    locate,
    read_back,
    verify_all,
)
from rmqctl.ext.tiered.dispatch.resume import plan_resume
from rmqctl.ext.tiered.files.locking import locked
from rmqctl.ext.tiered.files.metadata_file import note_path
from rmqctl.ext.tiered.files.opening import open_writer
from rmqctl.ext.tiered.files.settings import TierSettings, recall, resolve
from rmqctl.ext.tiered.flat_file import FlatQueue, QueueName
from rmqctl.ext.tiered.index.index_file import LocalIndex
from rmqctl.ext.tiered.index.progress import IndexProgress
from rmqctl.ext.tiered.tier import Tier
from rmqctl.files.durable import make_folders
from rmqctl.formats.local import message
from rmqctl.parse_values import is_url
from rmqctl.scan import malloc_tuning
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store


def dispatch(request: Request, clock: Callable[[], int],
             watch: DispatchObserver | None = None) -> Result:
    """Upload messages. ``clock`` returns ms.
    Raises: StoreHeldError, StoreIOError, RefusedError, UsageError, NotAStoreError.
    """
    watch = watch or DispatchObserver()
    with ExitStack() as stack:
        # Check names first: a wrong command must not create a folder.
        store = stack.enter_context(
            Store.open(request.store, request.commitlog_dirs, request.sizes))
        request, target, notes = locate(request)
        with closing(target.open()) as tier:
            cluster, broker = broker_of(tier, store, request.cluster, request.broker)
        # Then lock; the content of the tier is only reliable under the locks.
        stack.enter_context(_locked(request, target))
        tier = stack.enter_context(target.open())
        settings, more = _settings(tier, request)
        notes += more
        # Examine the queues and complete those that an interrupted run left unfinished.
        options = DispatchOptions(cluster, broker, request.topics, request.start,
                                  request.only_due, request.restart_queue)
        run = Dispatch(store, tier, lambda: open_writer(target.tier), target.metadata_path,
                       target.broker_root, settings, options, clock, advance=watch.advance,
                       stopping=watch.stopping)
        stack.callback(run.close)
        run.prepare()
        if not is_url(target.tier):
            note_path(target.tier, target.metadata_path)
        if run.restarted:
            notes.append("the index still contains items of the restarted queues' old messages: "
                         "`rmqctl tiered recover` removes them")
        # Upload the messages and index their keys.
        result = Result(cluster, broker, run.outcomes, notes)
        watch.total(sum(file.size for file in store.log.files))
        if request.index:
            folder = IndexFolder(target, settings, run.metadata, cluster, broker, clock)
            _run_with_index(request, run, tier, folder, result)
        else:
            run.run()
        result.stopped = run.stopped
        # Read back the uploaded messages.
        if request.verify_after and not run.stopped:
            try:
                result.checked = _check(target, store, run, settings, watch)
            except _StoppedError:
                notes.append("upload complete, verification interrupted: run `rmqctl tiered "
                             "verify`")
    return result


@contextmanager
def _locked(request: Request, target: DispatchTarget) -> Iterator[None]:
    """Create the folders of a dispatch; lock these folders and the store from which it reads."""
    if not is_url(target.tier):
        if os.path.lexists(target.tier) and not os.path.isdir(target.tier):
            raise UsageError(f"{target.tier}: not a folder")
        make_folders(os.path.abspath(target.tier))
    make_folders(os.path.abspath(target.broker_root))
    config = os.path.dirname(target.metadata_path)
    if os.path.basename(config) == "config" and config != os.path.join(request.store, "config"):
        make_folders(os.path.abspath(config))  # the next run recognises the tier by it
    with locked(target.tier, target.metadata_path, request.store, metadata=request.metadata,
                outside=request.outside):
        yield


def _settings(tier: Tier, request: Request) -> tuple[TierSettings, list[str]]:
    """Return the settings, and notes for the user.

    A setting that is not given has the first known of these values: the value noted in the tier,
    the value in existing index files, a broker's default.
    """
    given = dict(request.given)
    recorded, _ = recall(tier.reader)
    if given.get("index_slots") is None and "index_slots" not in recorded:
        given["index_slots"] = tier.known_slots()
    if given.get("index_max") is None and "index_max" not in recorded:
        with LocalIndex(tier.local_index_folder, given.get("index_slots")) as local:
            if local.files:
                shape = local.files[-1].shape
                given["index_slots"], given["index_max"] = shape.slots, shape.max_items
    return resolve(tier.reader, given)


# -- with the index -------------------------------------------------------------------------------

def _run_with_index(request: Request, run: Dispatch, tier: Tier, folder: IndexFolder,
                    result: Result) -> None:
    """Upload messages and index files; add counts and notes to ``result``."""
    result.index_files = folder.finish_upload()
    with folder.open_writer(_oldest(run)) as writer:
        # A broker's root has one metadata file, of one tier, wherever the tier was moved.
        progress = IndexProgress(folder.target.broker_root, f"{result.cluster}/{result.broker}")
        result.notes += progress.load()
        index = IndexRun(writer, progress)
        result.notes += index.catch_up(_queues_with_ids(run, tier))
        run.run(index)
        result.items = index.items
        if writer.dropped:
            result.notes.append(f"{writer.dropped} keys do not fit in an index file and were "
                                "skipped; a broker skips them, too")
        paths = writer.full_files()
        if request.seal_index and not run.stopped:
            paths.append(writer.open_file)
    malloc_tuning.give_back()
    result.index_files += folder.upload(paths)


def _oldest(run: Dispatch) -> int | None:
    """Return the store time of the oldest message to upload. If none of these messages is readable,
    return the store time of the first message in the store.
    """
    log = run.store.log
    rows = [upload.local.row(upload.outcome.start) for upload in run.uploads]
    records = [log.record_at(row.physical_offset, row.size) for row in rows if row is not None]
    if not any(records) and log.files:
        records = [log.record_at(log.min_offset)]
    return min((record.store_timestamp for record in records if record is not None), default=None)


def _queues_with_ids(run: Dispatch, tier: Tier) -> Iterator[tuple[FlatQueue, int]]:
    """Yield all queues of the broker, with the ids of their topics."""
    for name, queue in tier.contents.queues.items():
        topic = run.metadata.topics.get(name.topic)
        if (name.cluster, name.broker) == (run.options.cluster, run.options.broker) and topic:
            yield queue, topic.topic_id


# -- reading back ---------------------------------------------------------------------------------

class _StoppedError(Exception):
    """Raised if the user requests a stop after all data has been written."""


def _check(target: DispatchTarget, store: Store, run: Dispatch, settings: TierSettings,
           watch: DispatchObserver) -> ReadBack:
    """Read back the uploaded messages and verify the tier. Raises: StoreIOError, _StoppedError."""
    def advance(count: int) -> None:
        watch.advance(count)
        if watch.stopping():
            raise _StoppedError

    uploaded = 2 * sum(outcome.bytes for outcome in run.outcomes)
    watch.label("reading back")
    watch.total(uploaded)
    with closing(open_writer(target.tier)) as reader:
        checked = read_back(store, reader, run.uploads, advance)
    watch.label("verifying the tier")
    with target.open() as tier:
        watch.total(uploaded + sum(
            segment.size for name, queue in tier.contents.queues.items()
            if name.broker == run.options.broker for segment in queue.commit_log.segments))
        verify_all(checked, tier, run.options.broker, settings, advance)
    return checked


# -- dry run --------------------------------------------------------------------------------------

def dry_run(request: Request, clock: Callable[[], int]) -> Result:
    """Return what a dispatch would upload, computed from the consume queue entries alone. Nothing
    is written or locked.

    With ``only_due``, all messages of a queue are counted if its next group is due.
    Raises: the same errors as `dispatch`.
    """
    with Store.open(request.store, request.commitlog_dirs, request.sizes) as store:
        request, target, notes = locate(request)
        with closing(target.open()) as tier:
            cluster, broker = broker_of(tier, store, request.cluster, request.broker)
            settings, more = _settings(tier, request)
            notes += more
            if tier.metadata_error is not None:
                notes.append(tier.metadata_error)
            result = Result(cluster, broker, [], notes)
            view = View(store)
            for key in queues_to_upload(store, cluster, broker, list(request.topics)).queues:
                local = LocalQueue(view, store.queues.by_key[key])
                result.outcomes.append(_expected_outcome(
                    request, settings, view, tier, QueueName(cluster, broker, *key), local,
                    clock()))
    return result


def _expected_outcome(request: Request, settings: TierSettings, view: View, tier: Tier,
                      name: QueueName, local: LocalQueue, now: int) -> Outcome:
    outcome = Outcome(local.topic, local.queue_id)
    # Where the queue would continue, or why not.
    flat = flat_queue(tier.reader, name)
    resumed = plan_resume(flat, tier.metadata, same_message(local))
    tiered = bool(flat.consume_queue.segments)
    current = flat.commit_offset + resumed.units if tiered else request.start.offset(view, local)
    outcome.completed = resumed.units
    verdict = ((REFUSED, resumed.fault) if resumed.fault else
               why_not_continued(local, current) if tiered else None)
    if verdict is not None and verdict[0] == REFUSED and request.restart_queue:
        verdict, current = None, request.start.offset(view, local)
    outcome.start = outcome.end = current
    if verdict is not None:
        outcome.status, outcome.reason = verdict
        return outcome
    # Whether a broker would begin now.
    raw = local.raw(current) if request.only_due else None
    if raw is not None and not is_due(settings, message.decode(raw).store_timestamp,
                                      local.end - current, now):
        outcome.status = WAITING
        return outcome
    # The rows up to the end, or to the first that cannot be uploaded.
    local.seek(current)
    while (physical := local.next_physical()) is not None:
        first, rows = local.take(physical + (1 << 30))
        outcome.messages += len(rows)
        outcome.bytes += int(rows["size"].astype(np.int64).sum())
        outcome.end = first + len(rows)
        outcome.status = UPLOADED
    if local.fault is not None:
        outcome.status = STOPPED
        outcome.reason = f"queue offset {local.fault.queue_offset}: {local.fault.reason}"
    return outcome
