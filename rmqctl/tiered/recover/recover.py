"""A broker's tier made whole from its files alone, as a plan (tiered.md §12, §17.6).

The commit logs are believed: every message in them proves itself. From them come the consume
queues where units are wrong or missing, from all of it the metadata, and the index items that are
lost. Nothing is changed here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

from rmqctl.actions import Action
from rmqctl.engine.clock import now_ms
from rmqctl.errors import FormatError, StoreIOError, UsageError
from rmqctl.files.durable import make_folders
from rmqctl.formats.tiered import index as fmt
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.formats.tiered.old_metadata import read as read_metadata
from rmqctl.repair.plan import Create, Plan, Replace, Step
from rmqctl.repair.scratch import Scratch
from rmqctl.tiered.dispatch.progress import IndexProgress
from rmqctl.tiered.dispatch.settings import recall
from rmqctl.tiered.flat_file import FlatFile
from rmqctl.tiered.index.index_file import OPEN, IndexFile, LocalIndex
from rmqctl.tiered.recover import index as recover_index
from rmqctl.tiered.recover import metadata, votes
from rmqctl.tiered.recover.facts import HealedQueue
from rmqctl.tiered.recover.judge import told_slots
from rmqctl.tiered.recover.layout import max_units
from rmqctl.tiered.recover.queue import heal
from rmqctl.tiered.recover.scope import Scope
from rmqctl.tiered.recover.scratch import forget, remove_folder
from rmqctl.tiered.tier import Tier

_MOST_LOST = 1000
PARTS = ("metadata", "queues", "index")

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""(label, total) -> a context whose value is called with what was done."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be healed (`PARTS`), and how. Sizes in bytes, None: from what is there.

    ``all_index``: where no index file is left, make all of the index; go on where local index
    files are not known or cannot be read.
    """

    parts: frozenset[str] = frozenset(PARTS)
    drop_orphans: bool = False
    consume_queue_max: int | None = None
    index_slots: int | None = None
    index_max: int | None = None
    all_index: bool = False


def plan_recover(tier: Tier, scope: Scope, scratch: Scratch, wishes: Wishes,
                 watch: Watch | None = None) -> Plan:
    """The plan for one broker's part of ``tier``. UsageError, RefusedError, StoreIOError."""
    return _Recovery(tier, scope, scratch.path("tier"), wishes).plan(watch or _unwatched)


def _unwatched(_: str, __: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _: None)


class _Recovery:
    def __init__(self, tier: Tier, scope: Scope, folder: str, wishes: Wishes) -> None:
        self._tier, self._scope, self._folder, self._wishes = tier, scope, folder, wishes
        self._now = now_ms()
        self._notes: list[str] = []
        self._uploaded_slots: Counter[int] = Counter()
        self._queues = [queue for name, queue in sorted(
            tier.found.queues.items(), key=lambda one: (one[0].topic, one[0].queue_id))
            if (name.cluster, name.broker) == (scope.cluster, scope.broker)]
        self._old, self._spare, self._why = self._known()

    # -- the whole --------------------------------------------------------------------------------

    def plan(self, watch: Watch) -> Plan:
        parts = self._wishes.parts
        remove_folder(self._folder)
        make_folders(self._folder, durable=False)
        self._look_at_problems()
        healed = self._heal_queues(watch)
        flat = self._tier.found.indexes.get((self._scope.cluster, self._scope.broker))
        self._uploaded_slots = Counter(told_slots(flat))
        with closing(self._local()) as local:
            index = recover_index.look(flat, local, self._index_entries(),
                                       changes="index" in parts)
            found, changes = self._topics(index.files, healed)
            if "index" in parts:
                self._heal_index(index, flat, found, healed)
        steps: list[Step] = []
        actions: list[Action] = []
        for one in healed:
            steps += one.steps
            actions += one.actions
            self._notes += one.notes
        steps += index.steps
        actions += index.actions
        self._notes += index.notes
        # What these parts change, metadata has to say, too: sizes of a broker's files are believed.
        if "metadata" in parts or steps:
            metadata.settle(found, self._spare, self._scope.broker, healed,
                                    index.segments, changes, self._now)
            self._metadata_step(found, changes, steps, actions)
        return Plan("tiered recover", self._tier.name, tuple(actions), tuple(steps),
                    messages_lost=tuple(lost for one in healed for lost in one.lost)[:_MOST_LOST],
                    notes=tuple(dict.fromkeys(self._notes)),
                    messages_lost_total=sum(one.lost_total for one in healed))

    def _look_at_problems(self) -> None:
        mine = f"{names.cluster_folder(self._scope.cluster)}/{self._scope.broker}/"
        for one in self._tier.problems:
            inside = f"{one.path}/".startswith(mine) or mine.startswith(f"{one.path}/")
            if one.unreadable and inside:
                # What is in it would count as gone.
                raise StoreIOError(f"{self._tier.reader.where(one.path)}: {one.reason}")
            if inside:
                self._notes.append(f"{self._tier.reader.where(one.path)}: {one.reason}; it stays")

    # -- queues -----------------------------------------------------------------------------------

    def _heal_queues(self, watch: Watch) -> list[HealedQueue]:
        most = max_units(self._tier, self._wishes.consume_queue_max, self._old)
        tables = self._old.segments[names.CONSUME_QUEUE]
        spare = self._spare.segments[names.CONSUME_QUEUE] if self._spare else {}
        found = []
        total = sum(segment.size for one in self._queues for segment in one.commit_log.segments)
        with watch("reading the commit logs", total) as done:
            for number, queue in enumerate(self._queues):
                path = queue.name.path
                known = tables.get(path) or spare.get(path) or {}
                folder = os.path.join(self._folder, f"queue-{number}")
                healed = heal(queue, folder, known, most, drop_orphans=self._wishes.drop_orphans,
                              units="queues" in self._wishes.parts)
                forget(os.path.join(folder, "rows"))
                if "index" not in self._wishes.parts:
                    forget(healed.refs)
                found.append(healed)
                done(sum(segment.size for segment in queue.commit_log.segments))
        return found

    # -- metadata ---------------------------------------------------------------------------------

    def _known(self) -> tuple[meta.Metadata, meta.Metadata | None, str | None]:
        """(the metadata to go from, a second one that has more to say, why the file is bad)."""
        path = self._scope.metadata_path
        found = []
        why = None
        for name in (path, f"{path}.bak"):
            try:
                with open(name, "rb") as file:
                    data = file.read()
                if not data.strip(b"\0 \t\r\n"):
                    raise FormatError("it is empty")
                found.append(read_metadata(data))
            except FileNotFoundError:
                why = why or (f"{name} is missing" if name == path else None)
            except OSError as error:
                raise StoreIOError.from_oserror(error, name, "read") from None
            except FormatError as error:
                if name == path:
                    why = f"{name} cannot be read: {error}"
        if why is not None and found:
            self._notes.append(f"{why}; what its backup has right is kept")
        if not found:
            return meta.Metadata(), None, why
        if found[0].faults:
            one = found[0].faults[0]
            self._notes.append(f"{path}: {one.path}: {one.reason} ({len(found[0].faults)} such "
                               "entries are made anew)")
        return found[0], found[1] if len(found) > 1 else None, why

    def _topics(self, files: Sequence[IndexFile], healed: Sequence[HealedQueue]) -> tuple[
            meta.Metadata, metadata.Changes]:
        first: dict[str, int] = {}
        for one in healed:
            begin = min((part.begin for part in one.commit_log), default=1 << 62)
            first[one.name.topic] = min(first.get(one.name.topic, 1 << 63), begin)
        wanted = [topic for topic in sorted(first, key=lambda topic: (first[topic], topic))
                  if topic not in self._old.topics]
        winners: dict[str, int] = {}
        if wanted:
            winners = votes.winners(votes.vote(files, self._queues))
        return metadata.assign_ids(self._old, self._spare, wanted, winners, self._now)

    def _metadata_step(self, found: meta.Metadata, changes: metadata.Changes,
                       steps: list[Step], actions: list[Action]) -> None:
        path = self._scope.metadata_path
        fresh = self._why is not None or bool(self._old.faults)
        if not fresh and _equal(found, self._old):
            return
        if self._old.old:
            self._notes.append(f"{path}: is written in the form of 5.3; a broker of 5.1.0 or "
                               "5.1.1 cannot read that")
        data = meta.build(found)
        there = os.path.lexists(path)
        kind = Replace if there else Create
        steps.append(kind(os.path.abspath(path), data))
        words = "; ".join(one for one in (
            self._why if there and self._why else "" if there else "is missing",
            str(changes)) if one)
        actions.append(Action("rebuild" if fresh else "update", path,
                              os.path.getsize(path) if there else None, len(data),
                              words or "is not what the files say"))

    # -- index ------------------------------------------------------------------------------------

    def _slots(self) -> int | None:
        """As given, as most uploaded files have it, as noted in the tier."""
        if self._wishes.index_slots is not None:
            return self._wishes.index_slots
        if self._uploaded_slots:
            return self._uploaded_slots.most_common(1)[0][0]
        return recall(self._tier.reader)[0].get("index_slots")

    def _local(self) -> LocalIndex:
        folder, wishes = self._tier.local_index_folder, self._wishes
        found = LocalIndex(folder, self._slots(), wishes.index_max)
        if wishes.index_slots is None and any(isinstance(one, FormatError)
                                              for one in found.errors):
            # A broker that was configured otherwise since has made others.
            again = LocalIndex(folder, None, wishes.index_max)
            if len(again.errors) < len(found.errors):
                found.close()
                return again
            again.close()
        return found

    def _heal_index(self, index: recover_index.HealedIndex, flat: FlatFile | None,
                    found: meta.Metadata, healed: Sequence[HealedQueue]) -> None:
        if self._tier.home is None and not self._wishes.all_index:
            self._notes.append("the broker's local root is not known, so neither are the index "
                               "files that are not uploaded: lost items are not looked for "
                               "(--metadata FILE names it)")
            return
        there = index.files or index.steps or index.broken or index.unread
        # That there was one metadata says, how it is laid out the notes of the tier.
        known = self._index_entries() and self._slots() is not None
        if not there and not known and not self._wishes.all_index:
            if any(one.commit_log for one in healed):
                self._notes.append("there is no index file at all: --only index makes one from "
                                   "the messages")
            return
        if self._is_dispatched(healed) and not self._wishes.all_index:
            self._notes.append("a `tiered dispatch` was interrupted: run again it indexes what it "
                               "had uploaded, and lost items are not looked for before")
            return
        local = [one.shape for one in index.files if one.form == OPEN]
        slots = self._slots() or (local[-1].slots if local else None)
        unread = index.unread + ([] if slots else [f"{path}: {why}" for path, why in index.broken])
        if unread and not self._wishes.all_index:
            self._notes.append(f"{unread[0]}; items may be in it, so lost ones are not "
                               "looked for (--index-slots tells its layout, --only index goes on "
                               "without it)")
            return
        recover_index.discard_broken(index)
        pairs = [(one.view or queue, one) for queue, one in zip(self._queues, healed, strict=True)]
        if slots is None:
            slots = fmt.DEFAULT_SLOTS
            self._notes.append(f"no index file tells the number of hash slots: {slots}, a broker's "
                               "default, is taken (--index-slots)")
        noted = recall(self._tier.reader)[0].get("index_max")
        most = (self._wishes.index_max or noted
                or (local[-1].max_items if local else fmt.DEFAULT_MAX_ITEMS))
        forms = [one.shape.old for one in index.files if one.items]
        shape = fmt.Shape(slots, most, bool(forms) and all(forms))
        recover_index.rebuild(index, flat, pairs, found, (self._scope.cluster, self._scope.broker),
                              shape, os.path.join(self._folder, "index"), self._index_entries())

    def _is_dispatched(self, healed: Sequence[HealedQueue]) -> bool:
        """Whether rmqctl itself has still to index what it uploaded."""
        progress = IndexProgress(self._scope.home, f"{self._scope.cluster}/{self._scope.broker}")
        progress.load()
        return progress.is_unfinished(
            {(one.name.topic, one.name.queue_id): one.last for one in healed})

    def _index_entries(self) -> dict[int, meta.SegmentEntry]:
        path = names.metadata_path(self._scope.broker, names.INDEX_TOPIC, names.INDEX_QUEUE)
        return self._old.segments[names.INDEX].get(path, {})


def _equal(one: meta.Metadata, other: meta.Metadata) -> bool:
    return (one.segments == other.segments and one.queues == other.queues
            and one.topics == other.topics and one.serial == other.serial)


def check_parts(text: str) -> frozenset[str]:
    """``metadata,queues`` as a set. UsageError."""
    found = frozenset(one.strip() for one in text.split(",") if one.strip())
    unknown = sorted(found.difference(PARTS))
    if unknown or not found:
        raise UsageError(f"--only {text!r}: choose from {', '.join(PARTS)}")
    return found
