"""The result of preflight: predicted effects of a broker's startup on a store."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqctl.actions import Action
from rmqctl.checks.impact import Impact, span
from rmqctl.checks.losses import (
    INDEX,
    MESSAGES,
    OFFSETS,
    GroupLoss,
    Loss,
    Losses,
    QueueLoss,
    TierLosses,
    summed,
)
from rmqctl.checks.metadata.judge import MetadataLosses
from rmqctl.errors import UnsupportedError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.store.repair_losses import RepairLosses

if TYPE_CHECKING:
    from rmqctl.broker.conf.follow import SettingEffect
    from rmqctl.broker.recovery import DispatchRange
    from rmqctl.checks.consumers import Consumers, QueueLosses
    from rmqctl.checks.metadata.queues import OffsetBeyondEnd
    from rmqctl.formats.local.checkpoint import CheckpointRecord
    from rmqctl.store.files import StoreFile

_TELLING = ("commitlog", "consumequeue")
"""Structures without which lost messages cannot be determined."""


class QueueChange(NamedTuple):
    """A queue whose messages are dispatched again.

    ``added``: number of new entries.
    ``kept``: names of the remaining files. The broker appends after the last of these files.
    """

    kind: str
    topic: str
    queue_id: int
    added: int
    kept: tuple[str, ...]

    @property
    def target(self) -> str:
        return f"{self.kind}/{self.topic}/{self.queue_id}"


class Noted(NamedTuple):
    """The metadata of consume queues in RocksDB.

    ``queues``: for each queue, the queue offset after the last entry, and the physical offset of
    the last message.
    ``checkpoint``: physical offset up to which the log is dispatched.
    """

    queues: dict[tuple[str, int], tuple[int, int]]
    checkpoint: int


class LostMessage(NamedTuple):
    """An intact message that the start truncates."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class SecondStart:
    """A clean startup after the predicted one, if only this second startup truncates the log.

    The recovery begins at ``start_file``, reaches older damage (``stop_reason``), and truncates the
    log at ``truncate_to``.
    """

    start_file: str
    start_reason: str
    truncate_to: int
    stop_reason: str
    messages_lost: int
    lost_by_topic: dict[str, int]

    @property
    def sentence(self) -> Phrase:
        """Return a sentence about what a broker loses at its second start."""
        return Phrase(
            "The second, clean start truncates the log at {offset} and loses {count:,} message "
            "that this start keeps: {why}",
            "The second, clean start truncates the log at {offset} and loses {count:,} messages "
            "that this start keeps: {why}", count=self.messages_lost, offset=self.truncate_to,
            why=self.stop_reason)

    def as_dict(self) -> dict[str, Any]:
        return {"start_file": self.start_file, "start_reason": self.start_reason,
                "truncate_to": self.truncate_to, "stop_reason": self.stop_reason,
                "messages_lost": self.messages_lost, "lost_by_topic": self.lost_by_topic}


class DiskUse(NamedTuple):
    """The cleaner's actions.

    ``used_ratio``: disk usage; None if the disk was not judged, for the reason ``not_judged``.
    ``deletes_files``: number of log files that the cleaner deletes in the first minutes because the
    disk is full.
    ``expires_files``: number of files older than ``fileReservedTime``.
    ``deletes_messages``, ``expires_messages``: numbers of messages in these files (None: unknown).
    """

    used_ratio: float | None
    clean_ratio: float
    refuse_ratio: float
    deletes_files: int = 0
    deletes_messages: int | None = 0
    expires_files: int = 0
    expires_messages: int | None = 0
    reserved_hours: int = 72
    delete_when: str = "04"
    expires_at_once: bool = False
    not_judged: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self._asdict()


@dataclass(slots=True)
class Prediction:
    """The complete prediction. Offsets are physical, in bytes.

    ``truncate_to``: the end of the log after the startup; None if the broker does not start.
    ``already_lost_from``, ``already_lost_to``: range of the store times (ms) of all messages that
    are already lost; None: unknown.

    Counts:

    ``messages_lost``: intact messages that the startup truncates.
    ``superseded``: intact messages beyond the end of the log, left by an earlier truncation. Their
    queue offsets now belong to other messages.
    ``unreachable``: messages that remain in the log without a consume queue entry. None: only a
    part of the log was searched.
    ``rows_lost``: queue entries that are deleted because the log is empty.
    ``messages_already_lost``: messages that consume queues, index or committed offsets show, but
    that the log no longer contains. Messages of an unknown topic are not counted by topic.
    """

    broker_version: str
    recovery: str
    profile: str = ""
    """The version whose rules apply to ``broker_version``; see `rmqctl.broker.versions`."""
    mendable: bool = True
    """True if `recover` can plan a repair for a store with this layout."""
    starts: bool = True
    loaded_log: list[StoreFile] = field(default_factory=list)
    """The log files that the broker loads."""
    table: dict[str, int] = field(default_factory=dict)
    """The next queue offset of every plain queue: ``{"TopicTest-3": 17}``."""
    refusals: list[str] = field(default_factory=list)
    truncate_to: int | None = None
    start_file: str | None = None
    start_reason: str = ""
    stop_reason: str = ""
    dispatch: list[DispatchRange] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    messages_lost: int = 0
    messages_undecided: int = 0
    """Number of records in the examined part of the log that may be messages or part of a damaged
    message's body.
    """
    cut_undecided: int = 0
    """Number of undecided records among ``messages_lost``."""
    lost_by_topic: dict[str, int] = field(default_factory=dict)
    lost_first: list[LostMessage] = field(default_factory=list)
    """The first of the truncated messages (``messages_lost``)."""
    lost_from: int | None = None
    lost_to: int | None = None
    """``lost_from``, ``lost_to``: the earliest and the latest store time (ms) of all truncated
    messages; None if unknown.
    """
    messages: int | None = None
    """Number of intact messages in the log; None if the log was not read completely."""
    messages_replaced: int | None = None
    """Number of messages with a matching CRC that are fillers, or that a repair kept with a damaged
    body.
    """
    messages_damaged: int | None = None
    """Number of messages with damaged properties. Brokers do not detect this damage, but rmqctl
    does not count these messages as intact.
    """
    repairs: RepairLosses = field(default_factory=RepairLosses)
    """Losses from earlier repairs: a startup neither restores these messages nor loses them again.
    """
    in_tier: TierLosses = field(default_factory=TierLosses)
    """Losses of the store's tier, set after the tier was verified."""
    superseded: int = 0
    unreachable: int | None = 0
    unreachable_by_topic: dict[str, int] = field(default_factory=dict)
    shadowed: int = 0
    """Number of messages that are in some, but not all, of the log files with the same name. A
    broker reads only the first of these files, and which file is first is unknown.
    """
    messages_already_lost: int = 0
    lost_by_offsets: int = 0
    """Number of lost messages that only committed offsets prove."""
    lost_at_end: int = 0
    """Number of lost messages that only a checkpoint proves."""
    lost_at_least: bool = False
    """True if more messages may be lost than counted: the checkpoint contains only the time of the
    last message.
    """
    already_lost_by_topic: dict[str, int] = field(default_factory=dict)
    already_lost_from: int | None = None
    already_lost_to: int | None = None
    already_lost_places: tuple[int, int] | None = None
    """Lowest and highest physical offset of the lost messages that entries or the index show."""
    offsets_beyond_end: list[OffsetBeyondEnd] = field(default_factory=list)
    positions_unclear: list[OffsetBeyondEnd] = field(default_factory=list)
    """Committed offsets for which it is unknown whether messages before them are lost."""
    position_notes: list[str] = field(default_factory=list)
    """The ``notes`` that are about consumer offsets."""
    queue_losses: dict[tuple[str, int], QueueLosses] | None = None
    """The losses of each queue as ranges of queue offsets; None if queues were not judged."""
    consumers: Consumers | None = None
    """The effect on consumer groups; None if queues or groups were not judged."""
    undecodable: int = 0
    """Number of intact messages whose header clients cannot decode (`header_rules.UNDECODABLE`)."""
    rows_added: int = 0
    rows_cut: int = 0
    rows_lost: int = 0
    index_discarded: int = 0
    index_entries: int = 0
    index_duplicates: int = 0
    index_lost: int = 0
    """Number of entries of discarded index files that are not recreated."""
    index_uncounted: int = 0
    """Number of discarded index files whose lost entries cannot be counted."""
    index_from: int = 0
    """Physical offset before which messages get no index entry even if they are dispatched."""
    leaves: bool = False
    """True if any bytes, entries or index entries remain beyond the end of the log."""
    cut_off: bool = False
    """True if a repair has already truncated the log at ``truncate_to``."""
    checkpoint: CheckpointRecord | None = None
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    unopened: bool = False
    """True if a damaged consume queue database prevents the start; `recover` rebuilds it."""
    not_judged: dict[str, str] = field(default_factory=dict)
    """Structures in an unsupported format, with the reason; the prediction does not cover them."""
    configuration: list[SettingEffect] = field(default_factory=list)
    """Effects of the broker's configuration file on this start."""
    proven: bool = True
    """True if the assumed release was requested, or is proven by the files."""
    others: list[Prediction] = field(default_factory=list)
    """Predictions for other possible releases, for the part of the log that a broker reads."""
    conf_path: str = ""
    log_unopened: bool = False
    """True if the broker opens another log: the ``messages_lost`` remain on disk, but the broker
    does not read them.
    """
    assumed: dict[str, Any] = field(default_factory=dict)
    """Assumed values of settings that the configuration file does not set."""
    queues: list[QueueChange] = field(default_factory=list)
    metadata: MetadataLosses = field(default_factory=MetadataLosses)
    """Losses of topics, groups and committed offsets."""
    other_losses: list[Loss] = field(default_factory=list)
    """Losses outside the log, the consume queues and ``config/``; included in `losses`."""
    doomed: list[str] = field(default_factory=list)
    """Paths of the files and folders that the broker deletes from log, consume queues and index, in
    the order of deletion. Paths are relative to the root, or absolute.
    """

    noted: Noted | None = None
    """Metadata of the consume queue database after the start; None if the queues are in files."""
    second_start: SecondStart | None = None
    """The next start (after a clean shutdown), if it loses messages that this start keeps; else
    None.
    """
    incurable: int = 0
    """Number of `losses` that no repair of the store can prevent."""
    refuses_writes: bool = False
    """True if the broker rejects messages because its disk is full."""
    disk: DiskUse | None = None
    """Actions of the cleaner; None if they were not predicted."""

    @property
    def runs_well(self) -> bool:
        """Return whether the broker accepts messages and does not delete files for lack of disk
        space.
        """
        return not (self.refuses_writes or (self.disk is not None and self.disk.deletes_files))

    @property
    def recovers(self) -> bool:
        """Return whether the store has a problem that `recover` may repair."""
        incurable = self.incurable + bool(self.in_tier.messages)  # `recover` repairs no tier
        return not self.starts or len(self.losses) > incurable or bool(
            self.messages_lost or self.unreachable or self.rows_lost or self.shadowed
            or self.messages_already_lost or self.offsets_beyond_end or self.undecodable)

    @property
    def misled(self) -> list[SettingEffect]:
        """Return the settings that keep the broker from starting, or from serving all data of the
        store.
        """
        from rmqctl.broker.conf.follow import FATAL

        return [setting for setting in self.configuration if setting.effect in FATAL]

    @property
    def version(self) -> dict[str, Any]:
        """Return the assumed release and other possible releases."""
        return {"judged_as": self.broker_version, "proven": self.proven, "candidates": [
            self.broker_version, *(other.broker_version for other in self.others)]}

    @property
    def undecided(self) -> list[Phrase]:
        """Return the outcomes for other releases that differ from `outcome`; none if the release is
        known.
        """
        return [Phrase(
            "the broker's release is unknown: a {version} broker {does} (pass --broker-version)",
            version=other.broker_version, does=other.does)
            for other in self.others if other.outcome != self.outcome]

    @property
    def outcome(self) -> tuple[object, ...]:
        """Return the outcome of a start in a comparable form, for the part of the log that the
        broker reads.
        """
        return (self.starts, self.truncate_to, self.is_so_alone, bool(self.messages_lost),
                self.rows_lost, bool(self.misled))

    @property
    def does(self) -> Phrase:
        """Return the outcome in a few words: ``does not start``, ``loses messages``."""
        if not self.starts:
            return Phrase("does not start")
        if self.is_so_alone:
            return Phrase("loses nothing")
        return Phrase("loses messages, or the entries that point to them")

    def look_at_configuration(self, root: str) -> str:
        """Return the command that shows what is wrong with the broker's configuration file."""
        return f"rmqctl config check {shlex.quote(self.conf_path)} {shlex.quote(root)}"

    @property
    def account(self) -> Losses:
        """Return the numbers of lost, undecided and replaced messages that commands show."""
        queues = None if self.queue_losses is None else {
            key: QueueLoss(runs.lost.count(), runs.cut.count(), runs.without_row.count(),
                           runs.undecodable.count())
            for key, runs in self.queue_losses.items()
            if runs.lost or runs.cut or runs.without_row or runs.undecodable}
        groups: dict[str, GroupLoss] | None = None
        if self.consumers is not None:
            groups = {}
            for queue in self.consumers.affected:
                before = groups.get(queue.group, GroupLoss())
                groups[queue.group] = GroupLoss(before.unread_lost + queue.lost_after,
                                                before.at_risk + queue.at_risk)
        return Losses(
            self.messages_already_lost, self.repairs, self.lost_by_offsets, self.messages_lost,
            min(self.cut_undecided, self.messages_lost), self.unreachable,
            self.messages_undecided, self.messages_replaced, self.already_lost_by_topic,
            self.lost_by_topic, self.unreachable_by_topic, queues, groups,
            tuple(self.beside_messages),
            tuple(name for name in _TELLING if name in self.not_judged), self.in_tier,
            self.lost_at_least)

    @property
    def losses(self) -> list[Loss]:
        """Return everything that is lost or would be lost. Verdicts and exit codes depend only on
        this list.
        """
        return [*self._message_losses(), *self.beside_messages]

    def _message_losses(self) -> Iterator[Loss]:
        end, second = self.truncate_to, self.second_start
        for kind, count, cause, file, already in (
                # The start also truncates the entries that show the loss and that a repair needs.
                (MESSAGES, self.messages_already_lost, Phrase(
                    "consume queues, index, offsets or the checkpoint show them, but they are not "
                    "in the log"),
                 "commitlog", not (self.rows_cut or self.rows_lost)),
                (MESSAGES, self.messages_lost, Phrase("the start drops them from the log")
                 if end is None else Phrase("the start truncates the log at {offset}", offset=end),
                 "commitlog", False),
                (MESSAGES, 0 if second is None else second.messages_lost, Phrase(
                    "the second, clean start truncates the log at {offset}",
                    offset=None if second is None else second.truncate_to), "commitlog", False),
                (MESSAGES, self.unreachable or 0, Phrase(
                    "they have no consume queue entry after the start"), "consumequeue", False),
                (MESSAGES, self.rows_lost, Phrase(
                    "the log is empty, so the start deletes all consume queues"), "consumequeue",
                 False),
                (MESSAGES, self.shadowed, Phrase(
                    "several log files have the same name"), "commitlog", False),
                (MESSAGES, self.undecodable, Phrase("clients cannot decode them"), "commitlog",
                 True),
                (MESSAGES, self.messages_damaged, Phrase(
                    "their properties are damaged, so tags and keys may be lost"), "commitlog",
                 True),
                (OFFSETS, len(self.offsets_beyond_end), Phrase(
                    "they are beyond the end of the queue"), "config/consumerOffset.json", True)):
            if count:
                yield Loss(kind, count, cause, file, already)

    @property
    def start_is_harmless(self) -> bool:
        """Return whether brokers of all possible releases would start without losing anything. A
        start that loses the evidence of an earlier loss is not harmless.
        """
        return self.is_so_alone and all(other.is_so_alone for other in self.others)

    @property
    def is_so_alone(self) -> bool:
        """Return whether a broker of the assumed release starts without losing anything."""
        return self.starts and self.runs_well and not self.misled and all(
            loss.already for loss in self.losses)

    @property
    def harmless(self) -> bool:
        """Return whether nothing is lost or would be lost."""
        return self.start_is_harmless and not self.losses

    @property
    def beside_messages(self) -> list[Loss]:
        """Return the losses outside the log and its consume queues."""
        index = [Loss(INDEX, None if self.index_uncounted else self.index_lost, Phrase(
            "the affected messages are no longer found by key"), "index")]
        tier = [self.in_tier.loss] if self.in_tier.messages else []
        return [*self.metadata.losses, *self.other_losses, *tier,
                *(index if self.index_lost or self.index_uncounted else [])]

    @property
    def also_loses(self) -> Phrase | None:
        """Return what a broker loses at startup besides messages: ``12 committed offsets, 3
        topics``.
        """
        return summed(loss for loss in self.beside_messages if not loss.already)

    @property
    def costless(self) -> Phrase:
        """Return the outcome of a start that loses no messages, as an infinitive:
        ``lose nothing``.
        """
        also = self.also_loses
        if also is None:
            return Phrase("lose nothing")
        return Phrase("lose {what}", what=also) if self._loses_messages else Phrase(
            "lose no message, but {what}", what=also)

    @property
    def loses(self) -> Phrase:
        """Return the outcome of a start, as a verb in the third person: ``loses nothing``."""
        also = self.also_loses
        if also is None:
            return Phrase("loses nothing")
        return Phrase("loses {what}", what=also) if self._loses_messages else Phrase(
            "loses no message, but {what}", what=also)

    @property
    def _loses_messages(self) -> bool:
        return any(loss.what == MESSAGES and not loss.already for loss in self.beside_messages)

    def require_judged(self, root: str) -> None:
        """Raise UnsupportedError if any part of the store could not be judged."""
        if self.not_judged:
            reason = next(iter(self.not_judged.values()))
            raise UnsupportedError(f"{root}: not checked: {', '.join(self.not_judged)}; {reason}")

    @property
    def cut_impact(self) -> Impact | None:
        """Return the messages that the start truncates; None if it truncates none."""
        if not self.messages_lost:
            return None
        total = None if self.messages is None else self.messages + self.messages_undecided
        return Impact(self.messages_lost, total, self.lost_by_topic, self.lost_from, self.lost_to)

    @property
    def impact(self) -> Impact | None:
        """Return the number of affected messages, with their topics and times, and the number of
        all messages. None if no message is affected.

        Affected messages are lost, would be lost, or would have no entry.
        """
        topics = Counter(self.lost_by_topic) + Counter(self.already_lost_by_topic) + Counter(
            self.unreachable_by_topic)
        count = self.messages_lost + self.messages_already_lost + (self.unreachable or 0)
        if not count:
            return None
        total = None if self.messages is None else (
            self.messages + self.messages_undecided + self.messages_already_lost)
        earliest, latest = span(
            times for lost, times in (
                (self.messages_lost, (self.lost_from, self.lost_to)),
                (self.messages_already_lost, (self.already_lost_from, self.already_lost_to)))
            if lost)
        if self.unreachable:  # their store times were not read
            earliest = latest = None
        return Impact(count, total, topics, earliest, latest)

    def as_dict(self) -> dict[str, Any]:
        first = self.dispatch[0] if self.dispatch else None
        lost = self.account
        return {
            "broker_version": self.broker_version, "version": self.version,
            "profile": self.profile,
            "recovery": self.recovery,
            "starts": self.starts, "truncate_to": self.truncate_to,
            "start_file": self.start_file, "start_reason": self.start_reason,
            "stop_reason": self.stop_reason,
            "dispatch_from": None if first is None else min(s.start for s in self.dispatch),
            "dispatch_to": None if first is None else max(s.end for s in self.dispatch),
            "actions": [action.as_dict() for action in self.actions],
            "messages_lost": self.messages_lost, "lost_by_topic": self.lost_by_topic,
            **lost.as_dict(),
            "messages_damaged": self.messages_damaged,
            "lost_from": self.lost_from, "lost_to": self.lost_to,
            "messages": self.messages, "superseded": self.superseded,
            "already_lost_by_topic": lost.lost_by_topic,
            "already_lost_from": self.already_lost_from, "already_lost_to": self.already_lost_to,
            "offsets_beyond_end": [offset._asdict() for offset in self.offsets_beyond_end],
            "positions_unclear": [offset._asdict() for offset in self.positions_unclear],
            **({"groups_affected": None, "consumers": None} if self.consumers is None
               else self.consumers.as_fields()),
            "undecodable": self.undecodable,
            "unreachable": self.unreachable, "unreachable_by_topic": self.unreachable_by_topic,
            "shadowed": self.shadowed,
            "rows_added": self.rows_added, "rows_cut": self.rows_cut,
            "rows_lost": self.rows_lost,
            "index": {"files_discarded": self.index_discarded,
                      "entries_added": self.index_entries,
                      "duplicates": self.index_duplicates,
                      "entries_lost": self.index_lost},
            "checkpoint": None if self.checkpoint is None else self.checkpoint._asdict(),
            "impact": None if self.impact is None else self.impact.as_dict(),
            "losses": [loss.as_dict() for loss in self.losses],
            "second_start": None if self.second_start is None else self.second_start.as_dict(),
            "refuses_writes": self.refuses_writes,
            "disk": None if self.disk is None else self.disk.as_dict(),
            "not_judged": [{"structure": name, "reason": reason}
                           for name, reason in self.not_judged.items()],
            "configuration": [setting.as_dict() for setting in self.configuration],
            "assumed": self.assumed,
            "refusals": self.refusals, "notes": self.notes, "differences": self.differences,
        }
