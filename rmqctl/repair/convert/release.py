"""``convert --for``: prepare a store for brokers of an older release.

* Structures that the release reads are kept byte for byte.
* Structures that it would misread are converted to a form that it reads, or removed.
* A removed record of the log is replaced by a record of the same size for which no broker writes an
  entry. Physical offsets remain valid.
* Files that the release ignores are kept for a later broker, which continues at their ends.

Every loss is listed with a remedy. `rmqctl.store.features` defines what each release reads.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rmqctl.broker.versions import BrokerVersion, is_from, release_of, version_of
from rmqctl.checks.losses import MESSAGES, OFFSETS, TIMERS, Loss
from rmqctl.checks.pending_timers import GONE, pending_timers
from rmqctl.checks.preflight.downgrade import downgrade_losses, log_path
from rmqctl.checks.preflight.effects import BrokerEffect
from rmqctl.checks.preflight.load import load
from rmqctl.checks.preflight.timers import judge_timers
from rmqctl.checks.preflight.types import Prediction
from rmqctl.errors import RefusedError, UsageError
from rmqctl.files.durable import failed
from rmqctl.formats.bodies import CODECS
from rmqctl.formats.local import checkpoint, names, sysflag
from rmqctl.formats.local import consume_queue as layout
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import MAGIC_V1, MAGIC_V2, Record, decode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase, some_of
from rmqctl.repair.convert.config_fields import DroppedSetting, fit_config, pull_offsets
from rmqctl.repair.convert.queues import (
    FORM_NOTES,
    ConvertOptions,
    plan_convert,
    refuse_damage,
)
from rmqctl.repair.erase.index import drop_entries
from rmqctl.repair.erase.record import erased
from rmqctl.repair.plan import (
    Changes,
    Create,
    Dropped,
    FileContent,
    Lost,
    MoveAside,
    Patch,
    Plan,
    Watch,
    places_of,
)
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.targets import target
from rmqctl.scan import text
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.features import (
    ABORT_WITH_PID,
    BATCH_QUEUES,
    COMPACTION,
    COMPRESSION,
    CONFIG_V1,
    CONFIG_V2,
    FEATURES,
    LONG_TOPICS,
    LONG_TRANSACTIONS,
    MAX_V1_TOPIC,
    POP,
    ROCKSDB_QUEUES,
    TIMER,
)
from rmqctl.store.queue.batch_queue import BatchQueue
from rmqctl.store.store import Store

COMMAND = "convert"
_DELAYED = props.SCHEDULE_TOPIC.encode()
OLDEST = "4.9.2"
"""Oldest supported release. Earlier releases lack structures that the table of features does not
list.
"""
LEFT_OUT = "left-out"
_QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
_CHECKPOINT = "checkpoint"
_NEWER_CODECS = tuple(kind for kind, codec in CODECS.items() if codec.name != "zlib")
MAX_LEFT_OUT = 1_000_000
"""Maximum number of records that a plan leaves out. Each takes about 1 KiB of memory, and as much
again when the plan is applied.
"""
_NAMED = 1000
"""Maximum number of lost messages that a plan lists individually."""
_NO_DLEDGER = ("{root}: the message at {at} would be left out, but it is in an entry committed by "
               "a DLedger group. Convert the log first: "
               "`rmqctl convert STORE --commitlog plain --out NEWSTORE`")
_EXPORT = Phrase("`rmqctl export STORE --topic TOPIC --out FILE` saves the messages; or let "
                 "consumers read them all before the store is converted")
_WAIT = Phrase("let a broker of {release} or later deliver the timed messages, or send them again: "
               "`rmqctl timers list STORE` shows them", release=FEATURES[TIMER].since)


@dataclass(frozen=True, slots=True)
class NotConverted:
    """A structure that the older release does not read.

    ``is_loss``: whether the structure is lost, or kept in a form that brokers of that release
    misread.
    ``is_counted``: whether the plan counts it among the lost messages.
    """

    loss: Loss
    topic: str | None = None
    is_loss: bool = True
    is_counted: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"what": self.loss.what, "topic": self.topic, "count": self.loss.count,
                "consequence": self.loss.cause, "remedy": self.loss.by_hand,
                "file": self.loss.file, "lost": self.is_loss}


@dataclass(frozen=True, slots=True)
class ForRelease:
    """A plan for a release. ``left``: structures that cannot be converted. ``settings``: settings
    that the release does not have.
    """

    plan: Plan
    left: tuple[NotConverted, ...] = ()
    settings: tuple[DroppedSetting, ...] = ()


def target_release(typed: str) -> str:
    """Return the release with this name. Raises: UsageError if it is unknown or too old."""
    release = release_of(typed)
    if not is_from(release, OLDEST):
        raise UsageError(f"--for {typed}: expected {OLDEST} or a later release")
    return release


def plan_for(root: str, release: str, scratch: Scratch, options: ConvertOptions, watch: Watch,
             now: int) -> ForRelease:
    """Return the plan for the store at ``root``; see `plan_convert`. ``now``: epoch ms.

    Raises: RefusedError if the log is damaged, or if the release would not start on the result;
    NotAStoreError, UnsupportedError, MissingExtraError, StoreIOError.
    """
    version = version_of(release)
    with Store.open(root, options.commitlog_dirs, options.sizes) as store:
        for structure in ("commitlog", "consumequeue", "config"):
            store.layout.require(root, structure)
        refuse_damage(store)
        conversion = _Conversion(store, release, version, scratch)
        # The log first: messages left out of it lose entries, queues and offsets, too.
        with watch("reading", store.log.size) as done:
            conversion.leave_out(done)
        if store.layout.consumequeue != "file" and not version.rocksdb_queues:
            conversion.queues_in_files(plan_convert(root, scratch, options, watch))
        conversion.move_queues()
        conversion.drop_index_entries()
        conversion.reset_checkpoint()
        settings = fit_config(conversion, store, release, conversion.gone_topics, scratch)
        conversion.name_unread_files()
        conversion.check_loading()
        return ForRelease(conversion.plan(), tuple(conversion.left(now)), tuple(settings))


class _Conversion(Changes):
    """The changes of a conversion, and the records that it removes from the log."""

    def __init__(self, store: Store, release: str, version: BrokerVersion,
                 scratch: Scratch) -> None:
        super().__init__()
        self.store, self.release, self.version, self.scratch = store, release, version, scratch
        self.gone_topics: set[str] = set()
        """Topics that are removed together with their queues and offsets."""
        self._gone = array("q")
        self._lost: list[Lost] = []
        self._by_topic: Counter[tuple[str, str]] = Counter()
        """Number of removed messages, by feature and topic."""
        self._compressed = 0
        self._delayed = ConsumerProgress.of(store).delayed
        self._batched = frozenset() if version.batch_queues else frozenset(
            topic for (topic, _), queue in store.queues.batch.items() if has_batches(queue))

    # -- the log ------------------------------------------------------------------------------

    def leave_out(self, progress: Callable[[int], None]) -> None:
        """Replace each record that the release would misread. Raises: RefusedError,
        StoreIOError.
        """
        pieces: dict[str, list[OverlayPiece]] = {}
        for raw, record in self._misread(progress):
            if self.store.layout.is_dledger:
                raise RefusedError(_NO_DLEDGER.format(
                    root=self.store.root, at=record.physical_offset))
            # A delayed message keeps its entry, so it has to be one that can be delivered. Others
            # lose their properties, too: no broker is to find further queues in them.
            parts, _ = erased(raw, record, mark=LEFT_OUT) if record.topic == _DELAYED else erased(
                raw, replace(record, magic=MAGIC_V1, properties=b""), drop=True, mark=LEFT_OUT)
            file = self.store.log.file_of(record.physical_offset)
            if file is None or parts[0][1] == raw:
                raise RefusedError(f"{self.store.root}: the message at {record.physical_offset} "
                                   f"cannot be converted for a {self.release} broker")
            pieces.setdefault(file.path, []).append(
                OverlayPiece(record.physical_offset - file.base, len(raw), parts))
            self._count(record)
            if len(self._gone) > MAX_LEFT_OUT:
                raise RefusedError(
                    f"{self.store.root}: a plan can leave out at most {MAX_LEFT_OUT:,} records, "
                    "but this store needs more. Let consumers read them, then run `rmqctl "
                    "expire STORE` to delete their files")
        for path, file_pieces in pieces.items():
            self.act(Patch(target(self.store, path), tuple(file_pieces)), "leave out",
                     len(file_pieces), 0,
                     Phrase("a {release} broker does not read them; physical offsets stay",
                            release=self.release), "record")

    def _misread(self, progress: Callable[[int], None]) -> Iterator[tuple[bytes, Record]]:
        batched = [topic.encode("utf-8", "surrogateescape") for topic in self._batched]
        for batch in self.store.log.walk():
            flags = batch.column("sys_flag")
            mask = np.zeros(len(batch), bool)
            if not self.version.message_v2:
                mask |= batch.column("magic") == MAGIC_V2
                # A due message for such a topic would block the delivery of all later ones.
                delayed = text.topics(batch).equal(_DELAYED)
                if delayed.any():
                    rows, values = text.PropertySegments(batch).find(props.REAL_TOPIC)
                    rows = np.asarray(rows)[values.length > MAX_V1_TOPIC]
                    mask[rows[delayed[rows]]] = True
            if not self.version.batch_queues:
                mask |= flags & sysflag.INNER_BATCH != 0
                topics = text.topics(batch) if batched else None
                for topic in batched:
                    mask |= topics.equal(topic) if topics is not None else False
            if not is_from(self.release, FEATURES[COMPRESSION].since):
                kinds = (flags & sysflag.COMPRESSION_MASK) >> sysflag.COMPRESSION_SHIFT
                self._compressed += int(np.count_nonzero(
                    (flags & sysflag.COMPRESSED != 0) & np.isin(kinds, _NEWER_CODECS)))
            for row in np.flatnonzero(mask).tolist():
                raw = batch.bytes_at(row)
                yield raw, decode(raw)
            progress(int(batch.column("total_size").sum()))

    def _count(self, record: Record) -> None:
        properties = props.parse(record.properties.decode("utf-8", "replace"))
        topic = os.fsdecode(record.topic)
        self._gone.append(record.physical_offset)
        if record.topic == _DELAYED:
            topic = properties[props.REAL_TOPIC]
            if record.queue_offset < self._delayed.get(record.queue_id, 0):
                return  # has been delivered
        inner = properties.get(props.INNER_NUM, "")
        is_long = record.magic == MAGIC_V2 or record.topic == _DELAYED
        if is_long or topic in self._batched:
            self.gone_topics.add(topic)
        count = int(inner) if record.sys_flag & sysflag.INNER_BATCH and inner.isdigit() else 1
        self._by_topic[LONG_TOPICS if is_long else BATCH_QUEUES, topic] += count
        self._lost += [Lost(topic, record.queue_id, record.queue_offset + number,
                            record.physical_offset, record.total_size, record.store_timestamp,
                            record.store_timestamp, by="record")
                       for number in range(min(count, _NAMED - len(self._lost)))]

    # -- what follows from it -----------------------------------------------------------------

    def queues_in_files(self, plan: Plan) -> None:
        """Add the plan that converts consume queues to files, without the queues of
        removed topics.
        """
        away = tuple(os.path.join("consumequeue", topic, "") for topic in self.gone_topics)
        self.steps += [step for step in plan.steps
                       if not away or not step.target.startswith(away)]
        self.actions += plan.actions
        self.notes += [note for note in plan.notes if note not in FORM_NOTES]

    def move_queues(self) -> None:
        """Move aside the queues of removed topics.

        If the release does not read batch queues, move these aside, too. If a batch queue contains
        no batches, convert it to a plain queue.
        """
        moved = {step.target for step in self.steps if isinstance(step, MoveAside)}
        for topic in sorted(self.gone_topics):
            for folder in _QUEUES[:2]:
                name = os.path.join(folder, topic)
                if folder not in moved and os.path.isdir(self.store.path(name)):
                    self.move_aside(name, None, Phrase(
                        "a {release} broker does not read the messages of this topic",
                        release=self.release), "")
        if self.version.batch_queues:
            return
        if os.path.isdir(self.store.path(_QUEUES[2])):
            self.move_aside(_QUEUES[2], None, Phrase(
                "a {release} broker does not read batch queues, and a later broker does not start "
                "if both kinds of queues exist", release=self.release), "")
        for (topic, queue_id), queue in sorted(self.store.queues.batch.items()):
            rows = queue.all_used()
            if topic in self._batched or not len(rows):
                continue
            plain_steps = list(_plain_rows(rows, os.path.join(topic, str(queue_id)), self.scratch,
                                           self.store.sizes.consumequeue_file
                                           or layout.DEFAULT_FILE_SIZE))
            self.steps += plain_steps[:-1]
            self.act(plain_steps[-1], "rebuild", len(rows), len(rows), Phrase(
                "converts a batch queue without batches to a plain queue"), "row")

    def drop_index_entries(self) -> None:
        if self._gone:
            index = drop_entries(self.store, np.array(self._gone, np.int64),
                                 Phrase("entries of messages that are left out"))
            self.steps += index.steps
            self.actions += index.actions
            self.notes += index.notes

    def reset_checkpoint(self) -> None:
        """Set to 0 the fields that the release does not maintain, as the release does in the files
        that it writes.
        """
        present = self.store.checkpoint
        if present is None:
            return
        wanted = present if self.version.generation >= 5 else present._replace(
            master_flushed_offset=0)
        if not self.version.keeps_confirm:
            wanted = wanted._replace(confirm_phy_offset=0)
        if wanted != present:
            size = 8 * len(present)
            self.act(Patch(_CHECKPOINT, (OverlayPiece.of(0, checkpoint.build(wanted)[:size]),)),
                     "reset",
                     max(present[3:]), 0, Phrase("offsets that a {release} broker does not keep",
                                                 release=self.release), "")

    def name_unread_files(self) -> None:
        """Add a note that names the files of features that the release ignores."""
        moved = {step.target for step in self.steps if isinstance(step, MoveAside)}
        names = [path for name, feature in FEATURES.items() if name != ABORT_WITH_PID
                 and not is_from(self.release, feature.since) for path in feature.files
                 if path not in moved and path.split("/")[0] not in moved
                 and os.path.lexists(self.store.path(path))]
        if names:
            self.notes.append(Phrase(
                "a {release} broker ignores {names}; they stay for a later broker that reads them",
                release=self.release, names=some_of(names, len(names))))

    def check_loading(self) -> None:
        """Move aside folders that prevent the release from starting. Raises: RefusedError if a file
        prevents it from starting.
        """
        gone = tuple(step.target for step in self.steps if isinstance(step, MoveAside))
        for refusal in load(self.store, self.version).refusals:
            place = self.store.path(refusal.target)
            if refusal.target in gone or refusal.target.startswith(
                    tuple(os.path.join(name, "") for name in gone)):
                continue
            if not os.path.isdir(place):
                raise RefusedError(f"{self.store.root}: a {self.release} broker does not start on "
                                   f"it: {refusal.target}: {refusal.reason}; repair it first "
                                   "(`rmqctl recover`)")
            self.move_aside(target(self.store, place), None, refusal.reason, "")

    # -- what comes of it ---------------------------------------------------------------------

    def plan(self) -> Plan:
        notes = list(dict.fromkeys(self.notes))
        if self.steps:
            notes += log_path(self.release)
        log, lost = self.store.log, self._by_topic.total()
        return Plan(COMMAND, self.store.root, tuple(self.actions), tuple(self.steps),
                    messages_lost=tuple(self._lost), messages_lost_total=lost or None,
                    notes=tuple(notes),
                    dropped=Dropped(lost, places=places_of(
                        ((place, 0) for place in self._gone), log.raw_at)))

    def left(self, now: int) -> Iterator[NotConverted]:
        """Yield the structures that cannot be converted. Raises: StoreIOError."""
        for (feature, topic), count in sorted(self._by_topic.items()):
            cause = Phrase(
                "left out: a {release} broker truncates its log at a message whose topic has more "
                "than 127 bytes", release=self.release) if feature == LONG_TOPICS else Phrase(
                    "left out: a {release} broker supports neither batch queues nor inner batches",
                    release=self.release)
            yield NotConverted(Loss(MESSAGES, count, cause, "commitlog", by_hand=_EXPORT), topic,
                               is_counted=True)
        if self._compressed:
            yield NotConverted(Loss(MESSAGES, self._compressed, Phrase(
                "kept; clients before {release} cannot read LZ4 and ZSTD bodies",
                release=FEATURES[COMPRESSION].since), "commitlog", by_hand=Phrase(
                    "keep newer clients")), is_loss=False)
        pulled = pull_offsets(self.store, self.release)
        if pulled:
            yield NotConverted(Loss(OFFSETS, pulled, Phrase(
                "left out: a {release} broker does not store pull offsets",
                release=self.release), "config/rdb"), is_loss=False)
        yield from self._timers(now)
        for feature, loss in downgrade_losses(self.store, self.release):
            if feature not in (CONFIG_V1, CONFIG_V2, ROCKSDB_QUEUES, LONG_TOPICS):
                yield NotConverted(replace(loss, by_hand=_remedy(feature)))


    def _timers(self, now: int) -> Iterator[NotConverted]:
        """Yield the messages pending in the timer, by topic if all of their topics are known."""
        predicted = Prediction(self.release, BrokerEffect("normal"))
        judge_timers(predicted, self.store, self.version, now)
        for loss in predicted.other_losses:
            if loss.what != TIMERS or loss.already:
                continue
            waiting = replace(loss, by_hand=_WAIT)
            topics = Counter(row["topic"] for row in pending_timers(self.store, now)
                             if row["state"] != GONE)
            if topics.total() != loss.count or None in topics:
                yield NotConverted(waiting)
                return
            for topic, count in sorted(topics.items()):
                yield NotConverted(replace(waiting, count=count), topic)


def _remedy(feature: str) -> Phrase:
    if feature == LONG_TRANSACTIONS:
        return Phrase("end the transactions before the store is converted: `rmqctl transactions "
                      "list STORE`")
    if feature == POP:
        return Phrase("`rmqctl pop release STORE --group GROUP --apply` delivers them again, or "
                      "let consumers acknowledge them before the store is converted")
    if feature == COMPACTION:
        return _EXPORT
    return Phrase("let consumers read these messages from a broker of release {release} or later "
                  "before the store is converted", release=FEATURES[feature].since)


def has_batches(queue: BatchQueue) -> bool:
    """Return whether a batch queue cannot become a plain queue: an entry covers several messages,
    or the queue has a gap.
    """
    rows = queue.all_used()
    bases = rows["msg_base_offset"].astype(np.int64)
    return bool((rows["batch_size"] != 1).any() or (np.diff(bases) != 1).any())


def _plain_rows(rows: np.ndarray[Any, Any], folder: str, scratch: Scratch,
                file_size: int) -> Iterator[Create]:
    """Yield the files of a plain queue with the entries of a batch queue that has no batches."""
    file_size = layout.file_size(file_size)
    first = int(rows["msg_base_offset"][0])
    units = np.zeros(len(rows), layout.dtype())
    for name in units.dtype.names or ():
        units[name] = rows[name]
    data = units.tobytes()
    begin = layout.byte_offset(first)
    for start in range(names.file_start(begin, file_size), begin + len(data), file_size):
        path = os.path.join("consumequeue", folder, names.build_offset(start))
        place = scratch.path(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        head = layout.build(layout.FILLER) * (max(begin - start, 0) // layout.UNIT_SIZE)
        try:
            with open(place, "xb") as file:
                file.write(head + data[max(start - begin, 0):start + file_size - begin])
                file.truncate(file_size)
        except OSError as error:
            raise failed(error, place, "write") from None
        yield Create(path, FileContent(place))


