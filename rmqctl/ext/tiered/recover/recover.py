"""Plan the recovery of a broker's tier from its files alone (tiered.md §12, §17.6).

The commit logs are the source. Wrong or missing units are rebuilt from the intact messages. Then
the metadata and missing index items are rebuilt. This module only plans; it changes no file.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext

from rmqctl.actions import Action
from rmqctl.errors import FormatError, RmqctlError, StoreIOError, UsageError
from rmqctl.ext.tiered.files.metadata_file import load
from rmqctl.ext.tiered.files.settings import recall
from rmqctl.ext.tiered.flat_file import FlatFile
from rmqctl.ext.tiered.index.index_file import OPEN, LocalIndex, TierIndexFile
from rmqctl.ext.tiered.index.progress import IndexProgress
from rmqctl.ext.tiered.recover import index as recover_index
from rmqctl.ext.tiered.recover import metadata
from rmqctl.ext.tiered.recover.index_damage import slot_counts
from rmqctl.ext.tiered.recover.queue import RecoveredQueue, recover_queue, remove_file
from rmqctl.ext.tiered.recover.scope import Scope, open_tier, scope_of
from rmqctl.ext.tiered.recover.units import max_units
from rmqctl.ext.tiered.tier import Tier
from rmqctl.files.durable import make_folders
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.repair.plan import Create, Dropped, Plan, Replace, Step
from rmqctl.repair.scratch import Scratch

_MAX_LOST = 1000
PARTS = ("metadata", "queues", "index")

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""A function of a label and a total that returns a context manager. Inside the context, call the
yielded function with the amount of work done.
"""


@dataclass(frozen=True, slots=True)
class TierRecoverOptions:
    """Options of a recovery. Sizes are in bytes; a size of None is detected from the files.

    ``parts``: some of `PARTS`.
    ``all_index``: rebuild the index even if all index files are missing, or if local index files
    are unknown or unreadable.
    """

    parts: frozenset[str] = frozenset(PARTS)
    drop_orphans: bool = False
    keep_ambiguous: bool = False
    consume_queue_max: int | None = None
    index_slots: int | None = None
    index_max: int | None = None
    all_index: bool = False


def plan_recover(tier: Tier, scope: Scope, scratch: Scratch, options: TierRecoverOptions,
                 watch: Watch | None = None) -> Plan:
    """Plan to recover a broker's part of ``tier``. Raises: UsageError, RefusedError,
    StoreIOError.
    """
    return _Recovery(tier, scope, scratch.path("tier"), options).plan(watch or _unwatched)


def changes_nothing(tier: Tier) -> bool:
    """Return whether a recovery would leave the tier unchanged, or cannot be planned."""
    try:
        with Scratch() as scratch, open_tier(tier.name, tier.metadata_path) as opened:
            return plan_recover(opened, scope_of(opened, None, None), scratch,
                                TierRecoverOptions()).empty
    except RmqctlError:
        return True


def _unwatched(_: str, __: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


class _Recovery:
    def __init__(self, tier: Tier, scope: Scope, folder: str, options: TierRecoverOptions) -> None:
        self._tier, self._scope, self._folder, self._options = tier, scope, folder, options
        self._now = now_ms()
        self._notes: list[str] = []
        self._uploaded_slots: Counter[int] = Counter()
        self._queues = [queue for name, queue in sorted(
            tier.contents.queues.items(), key=lambda item: (item[0].topic, item[0].queue_id))
            if (name.cluster, name.broker) == (scope.cluster, scope.broker)]
        self._old, self._spare, self._why = self._load_metadata()

    # -- the plan ---------------------------------------------------------------------------------

    def plan(self, watch: Watch) -> Plan:
        parts = self._options.parts
        shutil.rmtree(self._folder, ignore_errors=True)
        make_folders(self._folder, durable=False)
        self._look_at_problems()
        # Queues first: the index depends on the places of their messages.
        queues = self._recover_queues(watch)
        # The index, and the topic ids in it.
        uploaded = self._tier.contents.indexes.get((self._scope.cluster, self._scope.broker))
        self._uploaded_slots = Counter(slot_counts(uploaded))
        with closing(self._local()) as local:
            index = recover_index.look(uploaded, local, self._index_entries(),
                                       changes="index" in parts)
            new, changes = self._topics(index.files, queues)
            if "index" in parts:
                self._recover_index(index, uploaded, new, queues)
        # Combine everything to a plan, with the metadata last.
        steps: list[Step] = []
        actions: list[Action] = []
        recovered: list[RecoveredQueue | recover_index.RecoveredIndex] = [*queues, index]
        for part in recovered:
            steps += part.steps
            actions += part.actions
            self._notes += part.notes
        # Metadata must follow these changes: a broker relies on the sizes in it.
        if "metadata" in parts or steps:
            metadata.enter_recovered(new, self._spare, self._scope.broker, queues,
                                     index.segments, changes, self._now)
            self._metadata_step(new, changes, steps, actions)
        lost = [message for queue in queues for message in queue.lost]
        total = sum(queue.lost_total for queue in queues)
        return Plan("tiered recover", self._tier.name, tuple(actions), tuple(steps),
                    messages_lost=tuple(lost[:_MAX_LOST]),
                    notes=tuple(dict.fromkeys(self._notes)),
                    messages_lost_total=total,
                    ambiguous=sum(queue.ambiguous for queue in queues),
                    # No filler represents them, and their units are removed.
                    dropped=Dropped(total))

    def _look_at_problems(self) -> None:
        """Add notes about unexpected files in the tier. Raises: StoreIOError for an unreadable
        folder of the broker.
        """
        own_folder = f"{names.cluster_folder(self._scope.cluster)}/{self._scope.broker}/"
        for problem in self._tier.problems:
            inside = (f"{problem.path}/".startswith(own_folder)
                      or own_folder.startswith(f"{problem.path}/"))
            where = self._tier.reader.where(problem.path)
            if problem.unreadable and inside:
                # Files in an unreadable folder would count as missing.
                raise StoreIOError(f"{where}: {problem.reason}")
            if inside:
                self._notes.append(f"{where}: {problem.reason}; kept")

    # -- queues -----------------------------------------------------------------------------------

    def _recover_queues(self, watch: Watch) -> list[RecoveredQueue]:
        parts = self._options.parts
        most = max_units(self._tier, self._options.consume_queue_max, self._old)
        tables = self._old.segments[names.CONSUME_QUEUE]
        spare = self._spare.segments[names.CONSUME_QUEUE] if self._spare else {}
        recovered = []
        total = sum(segment.size for queue in self._queues for segment in queue.commit_log.segments)
        with watch("reading the commit logs", total) as done:
            for number, queue in enumerate(self._queues):
                entries = tables.get(queue.name.path) or spare.get(queue.name.path) or {}
                folder = os.path.join(self._folder, f"queue-{number}")
                recovered.append(recover_queue(
                    queue, folder, entries, most, drop_orphans=self._options.drop_orphans,
                    keep_ambiguous=self._options.keep_ambiguous, changes="queues" in parts))
                remove_file(os.path.join(folder, "rows"))
                if "index" not in parts:
                    remove_file(recovered[-1].refs)
                done(sum(segment.size for segment in queue.commit_log.segments))
        return recovered

    # -- metadata ---------------------------------------------------------------------------------

    def _load_metadata(self) -> tuple[meta.Metadata, meta.Metadata | None, str | None]:
        """Return (the metadata to start from; its backup, or None; the reason why the metadata
        file cannot be used, or None if it can).
        """
        path = self._scope.metadata_path
        readable = []
        why = None
        for name in (path, f"{path}.bak"):
            try:
                metadata = load(name)
            except FormatError as error:
                if name == path:
                    why = f"{name} cannot be read: {error}"
                continue
            if metadata is not None:
                readable.append(metadata)
            elif name == path:
                why = f"{name} is missing"
        if why is not None and readable:
            self._notes.append(f"{why}; valid data from its backup is used")
        if not readable:
            return meta.Metadata(), None, why
        if readable[0].faults:
            fault = readable[0].faults[0]
            self._notes.append(f"{path}: {fault.path}: {fault.reason} ({len(readable[0].faults)} "
                               "such entries are recreated)")
        return readable[0], readable[1] if len(readable) > 1 else None, why

    def _topics(self, files: Sequence[TierIndexFile], queues: Sequence[RecoveredQueue]) -> tuple[
            meta.Metadata, metadata.MetadataChanges]:
        """Return metadata with an id for every topic of the tier, and the changes made to it."""
        oldest: dict[str, int] = {}
        for queue in queues:
            begin = min((segment.begin for segment in queue.commit_log), default=1 << 62)
            oldest[queue.name.topic] = min(oldest.get(queue.name.topic, 1 << 63), begin)
        wanted = [topic for topic in sorted(oldest, key=lambda topic: (oldest[topic], topic))
                  if topic not in self._old.topics]
        index_ids: dict[str, int] = {}
        if wanted:
            index_ids = metadata.most_likely_ids(metadata.count_topic_ids(files, self._queues))
        return metadata.assign_ids(self._old, self._spare, wanted, index_ids, self._now)

    def _metadata_step(self, new: meta.Metadata, changes: metadata.MetadataChanges,
                       steps: list[Step], actions: list[Action]) -> None:
        """Add the step that writes metadata, if it differs from the file."""
        path = self._scope.metadata_path
        fresh = self._why is not None or bool(self._old.faults)
        if not fresh and _equal(new, self._old):
            return
        if self._old.old:
            self._notes.append(f"{path}: will be written in the format of 5.3, which a 5.1.0 or "
                               "5.1.1 broker cannot read")
        data = meta.build(new)
        present = os.path.lexists(path)
        kind = Replace if present else Create
        steps.append(kind(os.path.abspath(path), data))
        reason = "is missing" if not present else self._why or ""
        actions.append(Action("rebuild" if fresh else "update", path,
                              os.path.getsize(path) if present else None, len(data),
                              "; ".join(filter(None, (reason, str(changes))))
                              or "differs from the files"))

    # -- index ------------------------------------------------------------------------------------

    def _slots(self) -> int | None:
        """Return the number of hash slots: the given number, or the most common number in uploaded
        files, or the number noted in the tier.
        """
        if self._options.index_slots is not None:
            return self._options.index_slots
        if self._uploaded_slots:
            return self._uploaded_slots.most_common(1)[0][0]
        return recall(self._tier.reader)[0].get("index_slots")

    def _local(self) -> LocalIndex:
        """Open the broker's index files that are not uploaded."""
        folder, options = self._tier.local_index_folder, self._options
        opened = LocalIndex(folder, self._slots(), options.index_max)
        if options.index_slots is None and any(isinstance(error, FormatError)
                                               for error in opened.errors):
            # A broker with other settings may have created files since.
            again = LocalIndex(folder, None, options.index_max)
            if len(again.errors) < len(opened.errors):
                opened.close()
                return again
            again.close()
        return opened

    def _recover_index(self, index: recover_index.RecoveredIndex, uploaded: FlatFile | None,
                       new: meta.Metadata, queues: Sequence[RecoveredQueue]) -> None:
        """Plan the missing parts of the index; ``new`` contains the topics' ids."""
        if not self._options.all_index:
            why = self._why_index_stays(index, queues)
            if why is not None:
                self._notes += [why] if why else []
                return
        recover_index.discard_broken(index)
        # The layout of new files: as requested, as noted in the tier, or as other files.
        local = self._local_shape(index)
        slots = self._slots() or (local.slots if local else None)
        if slots is None:
            slots = fmt.DEFAULT_SLOTS
            self._notes.append("no index file shows the number of hash slots: using a broker's "
                               f"default, {slots} (--index-slots)")
        most = (self._options.index_max or recall(self._tier.reader)[0].get("index_max")
                or (local.max_items if local else fmt.DEFAULT_MAX_ITEMS))
        forms = [file.shape.old for file in index.files if file.items]
        shape = fmt.TieredIndexShape(slots, most, bool(forms) and all(forms))
        # The expected items follow from the recovered queues.
        pairs = [(recovered.view or queue, recovered)
                 for queue, recovered in zip(self._queues, queues, strict=True)]
        recover_index.rebuild(index, uploaded, pairs, new,
                              (self._scope.cluster, self._scope.broker), shape,
                              os.path.join(self._folder, "index"), self._index_entries())

    def _why_index_stays(self, index: recover_index.RecoveredIndex,
                         queues: Sequence[RecoveredQueue]) -> str | None:
        """Return the reason why missing items are not rebuilt, or None if they are rebuilt. An
        empty reason is not reported.
        """
        if self._tier.broker_root is None:
            return ("the broker's local root is unknown, and so are its index files that are not "
                    "uploaded: missing items are not rebuilt (pass --metadata FILE)")
        present = index.files or index.steps or index.broken or index.unread
        # Metadata shows that an index existed, the notes of the tier its layout.
        if not present and not (self._index_entries() and self._slots() is not None):
            if any(queue.commit_log for queue in queues):
                return "there are no index files: --only index creates them from the messages"
            return ""
        if self._is_dispatched(queues):
            return ("a `tiered dispatch` was interrupted: run it again to index what it uploaded; "
                    "missing items are not rebuilt until then")
        unread = list(index.unread)
        if not self._slots() and self._local_shape(index) is None:
            unread += [f"{path}: {why}" for path, why in index.broken]
        if unread:
            return (f"{unread[0]}; it may contain items, so missing items are not rebuilt (pass "
                    "--index-slots for its layout, or --only index to proceed without it)")
        return None

    @staticmethod
    def _local_shape(index: recover_index.RecoveredIndex) -> fmt.TieredIndexShape | None:
        """Return the shape of the newest index file that is not uploaded."""
        return next((file.shape for file in reversed(index.files) if file.form == OPEN), None)

    def _is_dispatched(self, queues: Sequence[RecoveredQueue]) -> bool:
        """Return whether rmqctl was interrupted before it had indexed all messages that it
        uploaded.
        """
        scope = self._scope
        progress = IndexProgress(scope.broker_root, f"{scope.cluster}/{scope.broker}")
        progress.load()
        return progress.is_unfinished(
            {(queue.name.topic, queue.name.queue_id): queue.last for queue in queues})

    def _index_entries(self) -> dict[int, meta.SegmentEntry]:
        return self._old.segments[names.INDEX].get(names.index_path(self._scope.broker), {})


def _equal(first: meta.Metadata, other: meta.Metadata) -> bool:
    return (first.segments == other.segments and first.queues == other.queues
            and first.topics == other.topics and first.serial == other.serial)


def check_parts(text: str) -> frozenset[str]:
    """Parse a list such as ``metadata,queues``. Raises: UsageError."""
    parts = frozenset(part.strip() for part in text.split(",") if part.strip())
    unknown = sorted(parts.difference(PARTS))
    if unknown or not parts:
        raise UsageError(f"--only {text!r}: choose from {', '.join(PARTS)}")
    return parts
