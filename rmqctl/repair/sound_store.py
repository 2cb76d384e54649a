"""Find out by one pass of `verify` that the log of a plain store and what is derived from it need
no repair, in place of a survey of the log and a rebuild.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqctl.broker.recovery import ended_by_repair
from rmqctl.checks.verify.context import NotPlainError
from rmqctl.checks.verify.verify import LOG_STRUCTURES, Verification, VerifyOptions
from rmqctl.engine.dispatch.index import newest_full_end
from rmqctl.formats.local.consume_queue import byte_offset
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.broker_config import Configured
from rmqctl.repair.checkpoint import facts_of
from rmqctl.repair.rebuild.index import Expired
from rmqctl.repair.rebuild.rebuild import BOTH, Rebuilt
from rmqctl.repair.salvage.log_files import log_parts, without_empty_end
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import is_alias
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.passed_over import Damage
from rmqctl.store.queue.consume_queue import FileQueue
from rmqctl.store.queue.store_queues import QueueFolders
from rmqctl.store.store import Store


@dataclass(frozen=True, slots=True)
class SoundStore:
    """A store whose log, consume queues and index need no repair.

    ``parts``: the files of its log. ``rebuilt``: the result of a rebuild that wrote no file.
    """

    parts: tuple[LogPart, ...]
    rebuilt: Rebuilt


def sound_store(store: Store, configuration: Configured, scratch: Scratch, jobs: int,
                progress: Callable[[int], None]) -> SoundStore | None:
    """Return the facts about a store that `verify` finds sound and whose store times are in order;
    None for all others, and for stores of which the compiled check does not accept nearly all
    messages. The pass stops there.

    Raises: StoreIOError; RefusedError for a log whose files do not fit together.
    """
    settings = configuration.settings
    if (not store.log.files or store.layout.consumequeue != "file"
            or store.layout.is_dledger or store.layout.damaged or store.layout.unread
            or store.snapshot is not None or store.lock.held or ended_by_repair(store) is not None
            or configuration.batch_topics or store.queues.batch or store.queues.light.own
            or settings.consumequeue_ext or not settings.message_index
            or not store.index.listing.files):
        return None
    parts = log_parts(store)
    shape = IndexShape(settings.index_slots, settings.index_max)
    if not _has_usual_index(store, shape) or not all(
            _has_usual_files(store.root, queue, settings.consumequeue_file_size)
            for queue in store.queues.plain.values()):
        return None
    if any(part.path is None for part in parts) or without_empty_end(parts)[1] or any(
            file.size != parts[0].size for file in store.log.files):
        return None
    # No finding at all, not even one that the next startup would remove.
    check = Verification(store, VerifyOptions(LOG_STRUCTURES, jobs, plain=True), progress)
    try:
        if next(check.findings(), None) is not None:
            return None
    except NotPlainError:
        return None
    seen = check.seen
    if (seen is None or not check.settled or seen.last_record_start is None
            or not seen.passed.in_order):
        return None
    facts = facts_of(store)
    paths = [file.path for file in store.index.listing.files]
    return SoundStore(tuple(parts), Rebuilt(
        root=store.root, scratch=scratch, settings=settings, only=BOTH, topic=None, queue=None,
        log_min=parts[0].base, log_end=check.log_end, messages=seen.messages,
        last=seen.last_record_start, newest=seen.last_store_timestamp or 0,
        logics_timestamp=facts.logics, index_timestamp=newest_full_end(paths[:-1], shape),
        gaps=0, refused=0, unplaceable=0, damage=Damage(), expired=Expired(), store=store,
        next_offsets={key: tally.next_offset for key, tally in seen.queues.items()},
        same=frozenset(store.queues.plain),
        scratch_queues=QueueFolders(scratch.root, settings.consumequeue_file_size)))


def _has_usual_index(store: Store, shape: IndexShape) -> bool:
    """Return whether all index files have this shape, in the order of the log, and none is a link
    to another file of the store.
    """
    begins = []
    for file in store.index.newest_first():
        if file.shape != shape:
            return False
        begins.append(file.header.begin_phy_offset)
    return begins == sorted(begins, reverse=True) and not any(
        is_alias(store.root, file.path) for file in store.index.listing.files)


def _has_usual_files(root: str, queue: FileQueue, size: int) -> bool:
    """Return whether all files of a queue have this size, the last one has entries, nothing follows
    the last entry, and no file is a link to another file of the store.
    """
    files = queue.files
    if any(file.size != size or is_alias(root, file.path) for file in files):
        return False
    end = queue.written
    return queue.disk_end == end and (len(files) < 2 or byte_offset(end) > files[-1].base)
