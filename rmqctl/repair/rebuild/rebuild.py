"""Rebuild consume queues and index from the log alone, in a scratch folder.

The engine's dispatcher writes the files. Their bytes are the same as if a broker had dispatched the
log from its first to its last message. `rmqctl.repair.rebuild.steps` compares these files with the
store's files.

Some data is not in the log, and is taken from the store:

* entries of expired messages
* filter bit maps, if the extension files exist
* names of index files

Damage in the log is skipped. An entry whose queue offset leaves a gap is put at the queue's end, as
a broker does, and is counted in ``gaps`` (spec: consumequeue.md §4).

A small file in the scratch folder records the progress of a rebuild. With this file, the rebuild
can be continued. The files are fsynced only when a run ends. They are therefore trusted after a
kill, but not after a crash of the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any

from rmqctl.broker.settings import Settings
from rmqctl.checks.verify.common import plural
from rmqctl.damage.records import Records
from rmqctl.engine.dispatch.consume_queue import TwinQueues
from rmqctl.engine.dispatch.derive import Derived, overridden
from rmqctl.engine.dispatch.reput import Dispatcher, QueueIds
from rmqctl.errors import RefusedError, RmqctlError, StoreIOError
from rmqctl.files.durable import replace_file
from rmqctl.formats.local.index_file import IndexShape
from rmqctl.lazy_dataclass import dataclass
from rmqctl.repair.rebuild import derived_range, index, seed
from rmqctl.repair.rebuild.derived_range import DerivedRange, LogSummary, derive
from rmqctl.repair.rebuild.index import Expired
from rmqctl.repair.rebuild.kept import KeptEntries
from rmqctl.repair.rebuild.seed import OldUnits
from rmqctl.repair.scratch import DERIVED, Scratch
from rmqctl.scan import malloc_tuning
from rmqctl.scan.derived import QueueKey
from rmqctl.scan.frames import Span
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.passed_over import MAX_SPANS, Damage
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile
from rmqctl.store.log import ranges
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.queue.consume_queue import FileQueue
from rmqctl.store.queue.search import begun_at
from rmqctl.store.queue.store_queues import QueueFolders
from rmqctl.store.store import Store

CONSUMEQUEUE, INDEX = "consumequeue", "index"
BOTH = frozenset({CONSUMEQUEUE, INDEX})
_MAX_PENDING = 1 << 25
SAVE_EVERY = 5.0
"""Maximum time in seconds between two saved states: a run that was killed loses no more work than
that.
"""
NAME = "rebuild.json"
_VERSION = 1
_MAX_STATE_SIZE = 1 << 20
_BOOT = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class KeptHashes:
    """Hashes of ``tags`` and ``keys`` that a rebuild keeps, by the physical offset of the
    message.
    """

    tags: Mapping[int, int] = field(default_factory=dict)
    keys: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The files that a rebuild created below ``scratch``, from the log that begins at ``log_min``.

    Offsets are physical offsets, times are store times in ms.

    * ``log_end``: the end of the log
    * ``last``: the start of the last intact message, -1 if no message is intact
    * ``newest``: the greatest store time
    * ``logics_timestamp``: the store time of the last message with an entry, 0 if none exists
    * ``index_timestamp``: the time of the newest full index file, 0 if none exists
    * ``next_offsets``: the next queue offset of every selected queue with a message in the log
    * ``gaps``, ``refused``, ``unplaceable``, ``repeated``: numbers of entries, as in `Dispatcher`
    * ``damage``: the skipped damage
    * ``void_from``: physical offset from which the log was copied from another store; the store's
      own entries do not belong to it
    * ``same``: queues of the ``store`` that were not rebuilt because they need no rebuild
    * ``parts``: the log
    """

    root: str
    scratch: Scratch
    settings: Settings
    only: frozenset[str]
    topic: str | None
    queue: int | None
    log_min: int
    log_end: int
    messages: int
    last: int
    newest: int
    logics_timestamp: int
    index_timestamp: int
    gaps: int
    refused: int
    unplaceable: int
    damage: Damage
    next_offsets: dict[QueueKey, int]
    expired: Expired
    void_from: int | None = None
    repeated: int = 0
    store: Store | None = None
    same: frozenset[QueueKey] = frozenset()
    parts: Sequence[LogPart] = ()
    scratch_queues: QueueFolders = field(kw_only=True)
    """The files in ``scratch``."""

    @property
    def present_batches(self) -> Mapping[QueueKey, BatchQueue]:
        """Return the batch queues of the store."""
        return (QueueFolders(self.root) if self.store is None else self.store.queues).batch

    @property
    def present(self) -> Mapping[QueueKey, FileQueue]:
        """Return the plain queues of the store."""
        if self.store is not None:
            return self.store.queues.plain
        return QueueFolders(self.root, self.settings.consumequeue_file_size).plain

    @property
    def rows_end(self) -> int:
        """Return the physical offset at and after which entries are invalid, in queues that have no
        message in the log.
        """
        return self.log_end if self.void_from is None else min(self.log_end, self.void_from)

    @classmethod
    def of(cls, done: RebuildProgress, *, log_min: int, log_end: int | None,
           **others: Any) -> Rebuilt:
        """Return the result of a rebuild, with the figures of ``done`` and the fields ``others``.

        If ``log_end`` is None, the log ends with its last intact message.
        """
        return cls(
            log_min=log_min, log_end=max(done.end, log_min) if log_end is None else log_end,
            messages=done.messages, last=done.last, newest=done.newest, damage=done.damage,
            logics_timestamp=done.logics, gaps=done.gaps, refused=done.refused,
            unplaceable=done.unplaceable, repeated=done.repeated, scratch_queues=QueueFolders(
                others["scratch"].root, others["settings"].consumequeue_file_size), **others)

    def wants(self, key: QueueKey) -> bool:
        """Return whether a queue was selected."""
        return CONSUMEQUEUE in self.only and wants(self.topic, self.queue, key)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes for the user."""
        notes = []
        if self.damage.count:
            first = self.damage.spans[0]
            notes.append(f"{plural(self.damage.count, 'damaged span')} "
                         f"({plural(self.damage.length, 'byte')}) of the log skipped, the first "
                         f"at physical offset {first.offset}: {first.reason}")
        if self.gaps:
            notes.append(plural(self.gaps, "entry follows a gap in its queue's offsets: it is",
                                "entries follow a gap in their queue's offsets: they are")
                         + " written at the end of the queue, as by a broker, and thus before the "
                         "queue offset in the message")
        if self.repeated:
            notes.append(f"{plural(self.repeated, 'message has', 'messages have')} a queue offset "
                         "that an earlier message of the queue already has, as after a switch to "
                         "another log: no consume queue entry points to them, and verify reports "
                         "them")
        if self.refused:
            notes.append(f"{plural(self.refused, 'message has', 'messages have')} an impossible "
                         "queue offset: no entry is created")
        if self.unplaceable:
            notes.append(f"{plural(self.unplaceable, 'message has', 'messages have')} a topic "
                         "that cannot be a folder: no entry is created")
        return tuple(notes)


def rebuild(parts: Sequence[LogPart], root: str, settings: Settings, scratch: Scratch, *,
            only: Collection[str] = BOTH, topic: str | None = None, queue: int | None = None,
            jobs: int = 1, progress: Callable[[int], None] | None = None,
            batch_topics: Collection[str] = frozenset(), log_end: int | None = None,
            save_every: float = SAVE_EVERY, kept: KeptHashes | None = None,
            opened: Store | None = None, twins: bool = True) -> Rebuilt:
    """Rebuild the derived structures of a log in an empty scratch folder.

    * ``parts``: the parts of the log, in order
    * ``root``: the store for which the structures are rebuilt; it is only read
    * ``only``: ``consumequeue`` (plain, extended, batch, light), ``index``, or both
    * ``topic``, ``queue``: rebuild only these queues, and no index
    * ``progress``: called with the number of bytes done
    * ``batch_topics``: topics with batch queues
    * ``log_end``: messages that end after this physical offset are skipped
    * ``kept``: hashes that the entries of some messages keep, even if the messages have other
      values
    * ``opened``: the store at ``root``, if it is open; messages of an earlier queue with the same
      name are then skipped
    * ``twins``: with ``opened``, do not rebuild plain queues that are already right, unless the
      scratch folder is kept

    After an interruption by any exception, the same call with the same scratch folder continues the
    rebuild, with the same result. A scratch folder from another log or other options is emptied
    first.

    Raises: RefusedError if files of the store have other sizes than ``settings``; UsageError,
    StoreIOError.
    """
    wanted = wanted_parts(only, topic, settings)
    job = _Job(parts, root, replace(settings, message_index=INDEX in wanted), scratch, wanted,
               topic, queue, frozenset(batch_topics), log_end, kept or KeptHashes(), opened, twins)
    return job.run(jobs, progress, save_every)


def wanted_parts(only: Collection[str], topic: str | None, settings: Settings) -> frozenset[str]:
    """Return the structures in ``only`` that can be rebuilt. Raises: RefusedError if none can."""
    wanted = frozenset(only) & BOTH
    if topic is not None or not settings.message_index:
        wanted -= {INDEX}
    if not wanted:
        raise RefusedError("nothing to rebuild: messages are not indexed, or the index was to be "
                           "rebuilt for a single topic")
    return wanted


def log_size(parts: Sequence[LogPart], log_end: int | None = None) -> int:
    """Return the total number of bytes that ``progress`` receives."""
    return sum(max(0, min(part.end, log_end if log_end is not None else part.end) - part.base)
               for part in parts)


class _Job:
    """One rebuild of consume queues and index."""

    def __init__(self, parts: Sequence[LogPart], root: str, settings: Settings, scratch: Scratch,
                 wanted: frozenset[str], topic: str | None, queue: int | None,
                 batch_topics: frozenset[str], log_end: int | None, kept: KeptHashes,
                 store: Store | None, twins: bool) -> None:
        self._kept, self._store, self._twins = kept, store, twins
        self._parts, self._root, self._settings = parts, root, settings
        self._scratch, self._only = scratch, wanted
        self._topic, self._queue, self._batch_topics = topic, queue, batch_topics
        self._log_end = log_end
        self._log_min = parts[0].base if parts else 0
        self._records = Records(parts)
        self._shape = IndexShape(settings.index_slots, settings.index_max)
        self._now = 0
        self._expired = Expired()
        self._batches: list[tuple[StoreFile, int]] = []
        if INDEX in wanted:
            self._expired = index.expired(root, self._shape, self._log_min)
        if CONSUMEQUEUE in wanted:
            self._batches = list(seed.expired_batches(
                root, settings.batch_consumequeue_file_size, self._log_min))
        self._entries = KeptEntries.of(root, self._settings)
        self._state = StateFile(scratch, identity(
            parts, settings, (root, sorted(wanted), topic, queue, sorted(batch_topics), log_end,
                              sorted(kept.tags.items()), sorted(kept.keys.items())),
            [*self._expired.seeds, *(file for file, _ in self._batches)]))

    def run(self, jobs: int, progress: Callable[[int], None] | None,
            save_every: float) -> Rebuilt:
        malloc_tuning.keep_freed_memory()
        # Begin, or continue where an interrupted run stopped.
        reached = self._state.load() if self._scratch.keep else None
        if reached is None:
            reached = self._begin()
        elif CONSUMEQUEUE in self._only:
            seed.drop_unfinished(self._scratch, self._settings, reached.done)
        if progress is not None and reached.done > self._log_min:
            progress(log_size(self._parts, min(reached.done, self._end())))
        # Dispatch the log.
        with ExitStack() as held:
            dispatcher = self._dispatcher(held)
            held.callback(dispatcher.close)
            held.enter_context(self._entries)
            base = reached.gaps, reached.refused, reached.unplaceable, reached.repeated
            self._dispatch_rest(dispatcher, reached, base, jobs, progress, save_every)
            next_offsets = {key: end for key, end in dispatcher.next_offsets().items()
                            if wants(self._topic, self._queue, key)}
            same = dispatcher.finish_twins()
            index_timestamp = dispatcher.index_timestamp
        # Entries of expired messages in place of padding.
        if CONSUMEQUEUE in self._only:
            seed.take_over(self._root, self._scratch,
                                   self._settings.consumequeue_file_size, self._log_min)
        if self._scratch.keep:
            self._state.finish(reached)
        return Rebuilt.of(
            reached, root=self._root, scratch=self._scratch, settings=self._settings,
            only=self._only,
            topic=self._topic, queue=self._queue, log_min=self._log_min, log_end=self._log_end,
            index_timestamp=index_timestamp, next_offsets=next_offsets, expired=self._expired,
            store=self._twin_store, same=same, parts=self._parts)

    def _begin(self) -> RebuildProgress:
        self._scratch.clear()
        index.seed(self._expired, self._shape, self._log_min, self._scratch)
        for file, used in self._batches:
            seed.seed_batch(self._root, file, used, self._scratch)
        return RebuildProgress(done=self._log_min)

    def _end(self) -> int:
        return self._parts[-1].end if self._parts else 0

    def _dispatcher(self, held: ExitStack) -> Dispatcher:
        wanted = None if self._topic is None else partial(wants, self._topic, self._queue)
        store = self._twin_store
        recall = OldUnits(self._root) if self._settings.consumequeue_ext else None
        return Dispatcher(self._scratch.root, self._settings, lambda: self._now,
                          self._batch_topics.__contains__, wanted=wanted, recall=recall,
                          rows=CONSUMEQUEUE in self._only, most_pending=_MAX_PENDING,
                          queue_ids=self._queue_ids(held), twins=TwinQueues(
                              {} if store is None else dict(_unshared_queues(store)), self._log_min,
                              self._begun))

    def _begun(self, key: QueueKey, place: int) -> int:
        """Return the physical offset at which a queue of the store starts if its first entry points
        beyond ``place``; otherwise 0.
        """
        queue = None if self._store is None else self._store.queues.readable.get(key)
        if self._store is None or queue is None:
            return 0
        with closing(queue):
            first = queue.unit(0)
            return begun_at(queue, self._records) if (
                first is not None and first.physical_offset > place) else 0

    @property
    def _twin_store(self) -> Store | None:
        """Return the store whose valid queues need no rebuild; None if all queues must be rebuilt.

        All queues must be rebuilt in these cases:

        * Entries may have extension units.
        * The run may be continued later, which needs all files.
        * The store is in use; its files grow.
        """
        store, settings = self._store, self._settings
        if self._scratch.keep or not self._twins or settings.consumequeue_ext or store is None or (
                store.snapshot is not None):
            return None
        return store

    def _queue_ids(self, held: ExitStack) -> QueueIds | None:
        """Return the function that determines the queue ids of light queue entries.

        The function is only needed for a store with both kinds of light queues (see `LightQueues`).
        Return None if the settings determine the queue ids.
        """
        if CONSUMEQUEUE not in self._only or not os.path.isdir(
                os.path.join(self._root, "consumequeue")):
            return None
        store = self._store or held.enter_context(Store.open(self._root))
        light = store.queues.light
        if not light.own or light.own_ids == self._settings.lmq:
            return None
        return partial(light.ids, leads=store.queues.leads)

    def _dispatch_rest(self, dispatcher: Dispatcher, reached: RebuildProgress,
                       base: tuple[int, ...], jobs: int, progress: Callable[[int], None] | None,
                       save_every: float) -> None:
        """Dispatch the rest of the log; save the progress if interrupted."""
        # `complete`: between two parts, so that only complete parts are saved.
        complete = True
        saved = time.monotonic()
        try:
            with contextlib.closing(self._results(reached.done, jobs)) as results:
                for part, part_range in results:
                    complete = False
                    if part_range.derived:
                        derived = overridden(Derived.joined(part_range.derived),
                                             self._kept.tags, self._kept.keys)
                        self._now = int(derived.store_timestamp[0])
                        dispatcher.apply(derived)
                    # The progress, with the counts of the runs before.
                    reached.append(part_range)
                    reached.done = part.file.base + part_range.position
                    reached.logics = dispatcher.logics_timestamp or reached.logics
                    (reached.gaps, reached.refused, reached.unplaceable, reached.repeated) = (
                        base[0] + dispatcher.gaps, base[1] + dispatcher.refused,
                        base[2] + dispatcher.unplaceable, base[3] + dispatcher.repeated)
                    complete = True
                    if progress is not None:
                        progress(part.length)
                    if time.monotonic() - saved >= save_every:
                        dispatcher.show()
                        self._state.save(reached)
                        saved = time.monotonic()
        except BaseException:
            if complete:
                with contextlib.suppress(RmqctlError):
                    dispatcher.flush()
                    self._state.save(reached, durable=True)
            raise

    def _results(self, done: int, jobs: int) -> ranges.Results[LogPart, DerivedRange]:
        work = partial(derive, self._settings, CONSUMEQUEUE in self._only, self._log_end,
                       self._entries)
        # Entries of many messages make long writes.
        parts = ranges.split(self._parts, derived_range.RANGE_SIZE, done, self._log_end)
        return ranges.in_order(work, parts, jobs)


def _unshared_queues(store: Store) -> Iterator[tuple[QueueKey, FileQueue]]:
    """Yield each plain queue whose folder is the one that a broker uses and contains no other
    queue.
    """
    for key, queue in store.queues.plain.items():
        if os.path.basename(queue.folder) == str(key[1]) and not store.queues.listed(
                queue.folder).folders:
            yield key, queue


def wants(topic: str | None, queue: int | None, key: QueueKey) -> bool:
    """Return whether a queue has the given topic and queue id; None means any."""
    return (topic is None or key[0] == topic) and (queue is None or key[1] == queue)


# -- how far a rebuild came -----------------------------------------------------------------------


@dataclass(slots=True)
class RebuildProgress(LogSummary):
    """The progress of a rebuild.

    ``done``: everything before this physical offset is dispatched; -1 before the beginning. The
    other figures are sums over the dispatched messages; see `Rebuilt`.
    """

    done: int = -1
    logics: int = 0
    gaps: int = 0
    refused: int = 0
    unplaceable: int = 0
    repeated: int = 0
    finished: str = ""
    """A digest of the files at the end of the run; empty until then."""


class StateFile:
    """The saved state in ``scratch``, for the log and the options with this ``identity``."""

    def __init__(self, scratch: Scratch, identity: str) -> None:
        self._scratch, self._identity = scratch, identity
        self._path = scratch.path(NAME)

    def load(self) -> RebuildProgress | None:
        """Return the progress of an earlier run; None if it cannot be continued."""
        try:
            with FileSource(self._path) as source:
                document: Any = json.loads(source.read(0, _MAX_STATE_SIZE))
            same = document["version"] == _VERSION and document["identity"] == self._identity
            if not same or not (document["durable"] or document["boot"] == _boot()):
                return None
            raw = dict(document["progress"])
            damage = raw["damage"]
            raw["damage"] = Damage(damage["count"], damage["length"], damage["undecided"],
                                   [Span(**span) for span in damage["spans"][:MAX_SPANS]])
            progress = RebuildProgress(**raw)
            # Applying the plan may have moved the files into the store.
            return progress if progress.finished in ("", self._files()) else None
        except (StoreIOError, ValueError, KeyError, TypeError):
            return None

    def finish(self, progress: RebuildProgress) -> None:
        """Save that the rebuild is complete. Raises: StoreIOError."""
        progress.finished = self._files()
        self.save(progress)

    def _files(self) -> str:
        digest = hashlib.sha256()
        for name in DERIVED:
            for folder, below, files in os.walk(self._scratch.path(name)):
                below.sort()
                for file in sorted(files):
                    digest.update(repr(_about(os.path.join(folder, file))).encode(
                        "utf-8", "surrogateescape"))
        return digest.hexdigest()

    def save(self, progress: RebuildProgress, *, durable: bool = False) -> None:
        """Save the progress. ``durable``: whether the files that it covers were fsynced. Raises:
        StoreIOError.
        """
        text = json.dumps({"version": _VERSION, "identity": self._identity, "boot": _boot(),
                           "durable": durable, "progress": asdict(progress)}).encode()
        replace_file(self._path, text, staged=f"{self._path}.new", doing="write", durable=durable)


def identity(parts: Sequence[LogPart], settings: Settings, wanted: object,
             seeds: Iterable[StoreFile]) -> str:
    """Return a digest of the log, the structures to rebuild, and the files to which the rebuild
    appends.
    """
    digest = hashlib.sha256(repr((settings, wanted)).encode("utf-8", "surrogateescape"))
    for part in parts:
        digest.update(repr((part.base, part.size, _about(part.path))).encode(
            "utf-8", "surrogateescape"))
        for piece in part.pieces:
            digest.update(repr((piece.at, piece.size)).encode())
            for position, data in piece.parts:
                digest.update(repr((position, len(data))).encode())
                digest.update(data)
    for file in seeds:
        digest.update(repr(_about(file.path)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _about(path: str | None) -> tuple[str, int, int, int] | None:
    if path is None:
        return None
    try:
        about = os.stat(path)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "look at") from None
    return os.path.abspath(path), about.st_ino, about.st_size, about.st_mtime_ns


def _boot() -> str:
    with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as boot_id:
        return boot_id.read().strip()
    return ""
