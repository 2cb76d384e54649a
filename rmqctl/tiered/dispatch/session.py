"""A dispatch from its paths: names, settings, locks, index, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from rmqctl.errors import StoreHeldError, StoreIOError, UsageError
from rmqctl.files.durable import make_folders
from rmqctl.files.lock import StoreLock
from rmqctl.files.lock_probe import probe
from rmqctl.formats.tiered import names
from rmqctl.store.store import Store
from rmqctl.tiered.dispatch.check import Checked, read_back, verify_all
from rmqctl.tiered.dispatch.commit import IndexRun
from rmqctl.tiered.dispatch.dispatch import Dispatch, Options
from rmqctl.tiered.dispatch.home import lies_apart, metadata_beside, refuse_inside
from rmqctl.tiered.dispatch.index import (
    finish_sealing,
    opened_feed,
    progress_of,
    queues_of,
    upload_index,
)
from rmqctl.tiered.dispatch.plan import owner
from rmqctl.tiered.dispatch.request import Request, Result, Watch
from rmqctl.tiered.dispatch.settings import TierSettings, recall, resolve
from rmqctl.tiered.files import home_note
from rmqctl.tiered.files.lock import held
from rmqctl.tiered.files.metadata_location import find_metadata, home_of
from rmqctl.tiered.files.reader import PosixReader, is_url, open_reader
from rmqctl.tiered.files.writer import open_feeder
from rmqctl.tiered.index.index_file import LocalIndex, known_slots
from rmqctl.tiered.tier import Tier


def dispatch(request: Request, clock: Callable[[], int], watch: Watch | None = None) -> Result:
    """Uploads. StoreHeldError, StoreIOError, RefusedError, UsageError, NotAStoreError."""
    watch = watch or Watch()
    with ExitStack() as stack:
        store = stack.enter_context(
            Store.open(request.store, request.commitlog_dirs, request.sizes))
        request, notes = settled(request)
        with closing(opened(request)) as tier:  # names first: a wrong command makes no folder
            cluster, broker = owner(tier, store, request.cluster, request.broker)
        stack.enter_context(_locked(request))
        tier = stack.enter_context(opened(request))
        settings, more = resolved(tier, request)
        notes += more
        options = Options(cluster, broker, request.topics, request.start, request.only_due,
                          request.restart_queue)
        run = Dispatch(store, tier, lambda: open_feeder(request.tier), request.metadata_path,
                       request.home, settings, options, clock, advance=watch.advance,
                       stopping=watch.stopping)
        stack.callback(run.close)
        run.prepare()
        _note_home(request)
        if run.restarted:
            notes.append("the index still has items of what was in the queues that begin anew: "
                         "`rmqctl tiered recover` takes them out")
        result = Result(cluster, broker, run.outcomes, notes)
        watch.total(sum(one.size for one in store.log.files))
        if request.index:
            result.index_files = finish_sealing(request, settings, run, clock)
            with opened_feed(request, settings, run, clock) as feed:
                index = IndexRun(feed, progress_of(request, cluster, broker, notes))
                notes += index.catch_up(queues_of(run, tier))
                run.run(index)
                result.items = index.items
                if feed.dropped:
                    notes.append(f"{feed.dropped} keys have no place in an index file and were "
                                 "left out, as a broker leaves them out")
                paths = feed.full_files()
                if request.seal_index and not run.stopped:
                    paths.append(feed.open_file)
            result.index_files += upload_index(request, settings, run, paths, clock)
        else:
            run.run()
        result.stopped = run.stopped
        if request.verify_after and not run.stopped:
            try:
                result.checked = _check(request, store, run, settings, watch)
            except _StoppedError:
                notes.append("all was uploaded, but the check was interrupted: `rmqctl tiered "
                             "verify` does it")
    return result


class _StoppedError(Exception):
    """Somebody asked to end, while nothing was written any more."""


def _check(request: Request, store: Store, run: Dispatch, settings: TierSettings,
           watch: Watch) -> Checked:
    """Reads back what was uploaded and verifies the tier. StoreIOError, _StoppedError."""
    def advance(count: int) -> None:
        watch.advance(count)
        if watch.stopping():
            raise _StoppedError

    done = 2 * sum(one.bytes for one in run.outcomes)
    watch.label("reading back")
    watch.total(done)
    with closing(open_feeder(request.tier)) as reader:
        found = read_back(store, reader, run.uploads, advance)
    watch.label("verifying the tier")
    with opened(request) as tier:
        watch.total(done + sum(
            segment.size for name, queue in tier.found.queues.items()
            if name.broker == run.options.broker for segment in queue.commit_log.segments))
        verify_all(found, tier, run.options.broker, settings, advance)
    return found


def opened(request: Request) -> Tier:
    """The tier, there or not, with the metadata of its home."""
    path: str | None = request.metadata_path
    if not os.path.lexists(request.metadata_path):
        backup = f"{request.metadata_path}.bak"
        path = backup if os.path.lexists(backup) else None
    reader = open_reader(request.tier) if is_url(request.tier) else PosixReader(request.tier)
    return Tier(reader, path, request.home)


def settled(request: Request) -> tuple[Request, list[str]]:
    """The request with the metadata that is the tier's, and what to say of it.

    RefusedError for a tier in the store's own folders, UsageError.
    """
    refuse_inside(request.tier, request.store, request.commitlog_dirs)
    if request.metadata is None and lies_apart(request.tier, request.store):
        with closing(opened(request)) as tier:
            path = metadata_beside(request.tier, request.store, tier)
            brokers = {one.broker_name for table in tier.metadata.queues.values()
                       for one in table.values()}
        if path is not None:
            told = request.broker or (brokers.pop() if len(brokers) == 1 else None)
            note = (f"{request.tier} goes by {path}, with {names.LOCAL_INDEX_FOLDER} beside it: "
                    f"{request.metadata_path} is another tier's (--metadata names another file)")
            return replace(request, metadata=path, broker=told), [note]
    same_metadata(request)
    return request, []


def same_metadata(request: Request) -> None:
    """Refuses to begin new metadata for a tier that has some elsewhere. UsageError."""
    if is_url(request.tier) or request.metadata is not None:
        return
    other = find_metadata(request.tier)
    if other is None or os.path.lexists(request.metadata_path):
        return
    if os.path.realpath(home_of(other) or "") != os.path.realpath(request.home):
        raise UsageError(f"{request.tier} has its metadata in {other}: name it with --metadata "
                         "(or, to begin anew beside the store, name the new file)")


@contextmanager
def _locked(request: Request) -> Iterator[None]:
    if not is_url(request.tier):
        if os.path.lexists(request.tier) and not os.path.isdir(request.tier):
            raise UsageError(f"{request.tier}: is no folder")
        make_folders(os.path.abspath(request.tier))
    make_folders(os.path.abspath(request.home))
    if request.metadata is not None and os.path.basename(
            os.path.dirname(request.metadata)) == "config":  # the next run knows the tier by it
        make_folders(os.path.dirname(os.path.abspath(request.metadata)))
    with held(request.tier, request.home), ExitStack() as stack:
        taken = {os.path.realpath(one) for one in (request.tier, request.home)}
        if os.path.realpath(request.store) not in taken and os.path.lexists(
                os.path.join(request.store, "lock")):
            _hold_source(stack, request.store)
        yield


def _hold_source(stack: ExitStack, store: str) -> None:
    """Holds a store that is only read; on a read-only disk it is enough that nobody else does."""
    try:
        stack.enter_context(StoreLock(store))
    except StoreIOError:
        state = probe(os.path.join(store, "lock"))
        if state.held:
            raise StoreHeldError(f"{store}: the store is held by another process") from None


def resolved(tier: Tier, request: Request) -> tuple[TierSettings, list[str]]:
    """The settings: given, remembered, told by index files that are there, a broker's defaults."""
    given = dict(request.given)
    known, _ = recall(tier.reader)
    if given.get("index_slots") is None and "index_slots" not in known:
        given["index_slots"] = known_slots(tier)
    if given.get("index_max") is None and "index_max" not in known:
        with LocalIndex(tier.local_index_folder, given.get("index_slots")) as local:
            if local.files:
                shape = local.files[-1].shape
                given["index_slots"], given["index_max"] = shape.slots, shape.max_items
    return resolve(tier.reader, given)


def _note_home(request: Request) -> None:
    """Notes in the tier where its metadata is, unless whoever looks will find it anyway."""
    if is_url(request.root):
        return
    found = find_metadata(request.tier)
    if found is not None and os.path.realpath(found) == os.path.realpath(request.metadata_path):
        return
    text = home_note.text_of(request.tier, request.metadata_path)
    if text is not None:
        with closing(open_feeder(request.tier)) as feeder:
            feeder.replace(home_note.PLACE, text)
