"""The result of preflight: predicted effects of a broker's startup on a store."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any

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
from rmqctl.checks.preflight.effects import (
    BrokerEffect,
    ConsumerEffect,
    IndexEffect,
    LogEffect,
    QueueEffect,
)
from rmqctl.errors import UnsupportedError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.store.repair_losses import RepairLosses

if TYPE_CHECKING:
    from rmqctl.broker.conf.follow import SettingEffect

_TELLING = ("commitlog", "consumequeue")
"""Structures without which lost messages cannot be determined."""


@dataclass(slots=True)
class Prediction:
    """The complete prediction: five parts, and what concerns several of them."""

    broker_version: str
    broker: BrokerEffect
    log: LogEffect = field(default_factory=LogEffect)
    queues: QueueEffect = field(default_factory=QueueEffect)
    index: IndexEffect = field(default_factory=IndexEffect)
    consumers: ConsumerEffect = field(default_factory=ConsumerEffect)
    profile: str = ""
    """The version whose rules apply to ``broker_version``; see `rmqctl.broker.versions`."""
    proven: bool = True
    """True if the assumed release was requested, or is proven by the files."""
    others: list[Prediction] = field(default_factory=list)
    """Predictions for other possible releases, for the part of the log that a broker reads."""
    mendable: bool = True
    """True if `recover` can plan a repair for a store with this layout."""
    metadata: MetadataLosses = field(default_factory=MetadataLosses)
    """Losses of topics, groups and committed offsets."""
    repairs: RepairLosses = field(default_factory=RepairLosses)
    """Losses from earlier repairs: a startup neither restores these messages nor loses them again.
    """
    in_tier: TierLosses = field(default_factory=TierLosses)
    """Losses of the store's tier, set after the tier was verified."""
    other_losses: list[Loss] = field(default_factory=list)
    """Losses outside the log, the consume queues and ``config/``; included in `losses`."""
    incurable: int = 0
    """Number of `losses` that no repair of the store can prevent."""
    actions: list[Action] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_judged: dict[str, str] = field(default_factory=dict)
    """Structures in an unsupported format, with the reason; the prediction does not cover them."""

    @property
    def starts(self) -> bool:
        """Return whether the broker starts."""
        return not self.broker.refusals

    @property
    def runs_well(self) -> bool:
        """Return whether the broker accepts messages and does not delete files for lack of disk
        space.
        """
        disk = self.broker.disk
        return not (self.broker.refuses_writes or (disk is not None and disk.deletes_files))

    @property
    def recovers(self) -> bool:
        """Return whether the store has a problem that `recover` may repair."""
        incurable = self.incurable + bool(self.in_tier.messages)  # `recover` repairs no tier
        log, queues = self.log, self.queues
        return not self.starts or len(self.losses) > incurable or bool(
            log.cut.count or queues.unreachable or queues.lost or log.shadowed
            or log.gone.count or self.consumers.beyond_end or log.undecodable)

    @property
    def misled(self) -> list[SettingEffect]:
        """Return the settings that keep the broker from starting, or from serving all data of the
        store.
        """
        from rmqctl.broker.conf.follow import FATAL

        return [setting for setting in self.broker.configuration if setting.effect in FATAL]

    @property
    def subject(self) -> Phrase:
        """Return the broker of this prediction: ``a 5.3.3 broker``."""
        if self.log.found_in:
            return Phrase("a {version} broker with storePathCommitLog={folder}",
                          version=self.broker_version, folder=self.log.found_in)
        return Phrase("a {version} broker", version=self.broker_version)

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
        return (self.starts, self.log.truncate_to, self.is_so_alone, bool(self.log.cut.count),
                self.queues.lost, bool(self.misled))

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
        return f"rmqctl config check {shlex.quote(self.broker.conf_path)} {shlex.quote(root)}"

    @property
    def account(self) -> Losses:
        """Return the numbers of lost, undecided and replaced messages that commands show."""
        log, cut, gone = self.log, self.log.cut, self.log.gone
        queues = None if self.queues.losses is None else {
            key: QueueLoss(runs.lost.count(), runs.cut.count(), runs.without_row.count(),
                           runs.undecodable.count())
            for key, runs in self.queues.losses.items()
            if runs.lost or runs.cut or runs.without_row or runs.undecodable}
        groups: dict[str, GroupLoss] | None = None
        if self.consumers.groups is not None:
            groups = {}
            for queue in self.consumers.groups.affected:
                before = groups.get(queue.group, GroupLoss())
                groups[queue.group] = GroupLoss(before.unread_lost + queue.lost_after,
                                                before.at_risk + queue.at_risk)
        return Losses(
            gone.count, self.repairs, gone.by_offsets, cut.count, min(cut.undecided, cut.count),
            self.queues.unreachable, log.undecided, log.replaced, gone.by_topic, cut.by_topic,
            self.queues.unreachable_by_topic, queues, groups, tuple(self.beside_messages),
            tuple(name for name in _TELLING if name in self.not_judged), self.in_tier,
            gone.at_least)

    @property
    def losses(self) -> list[Loss]:
        """Return everything that is lost or would be lost. Verdicts and exit codes depend only on
        this list.
        """
        return [*self._message_losses(), *self.beside_messages]

    def _message_losses(self) -> Iterator[Loss]:
        end, second = self.log.truncate_to, self.broker.second_start
        for kind, count, cause, file, already in (
                # The start also truncates the entries that show the loss and that a repair needs.
                (MESSAGES, self.log.gone.count, Phrase(
                    "consume queues, index, offsets or the checkpoint show them, but they are not "
                    "in the log"),
                 "commitlog", not (self.queues.cut or self.queues.lost)),
                (MESSAGES, self.log.cut.count, Phrase("the start drops them from the log")
                 if end is None else Phrase("the start truncates the log at {offset}", offset=end),
                 "commitlog", False),
                (MESSAGES, 0 if second is None else second.messages_lost, Phrase(
                    "the second, clean start truncates the log at {offset}",
                    offset=None if second is None else second.truncate_to), "commitlog", False),
                (MESSAGES, self.queues.unreachable or 0, Phrase(
                    "they have no consume queue entry after the start"), "consumequeue", False),
                (MESSAGES, self.queues.lost, Phrase(
                    "the log is empty, so the start deletes all consume queues"), "consumequeue",
                 False),
                (MESSAGES, self.log.shadowed, Phrase(
                    "log files are misplaced, have the same name, or overlap"), "commitlog", False),
                (MESSAGES, self.log.undecodable, Phrase("clients cannot decode them"), "commitlog",
                 True),
                (MESSAGES, self.log.damaged, Phrase(
                    "their properties are damaged, so tags and keys may be lost"), "commitlog",
                 True),
                (OFFSETS, len(self.consumers.beyond_end), Phrase(
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
        index = [Loss(INDEX, None if self.index.uncounted else self.index.lost, Phrase(
            "the affected messages are no longer found by key"), "index")]
        tier = [self.in_tier.loss] if self.in_tier.messages else []
        return [*self.metadata.losses, *self.other_losses, *tier,
                *(index if self.index.lost or self.index.uncounted else [])]

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
        if self.log.shadowed:
            return Phrase(
                "possibly does not find {count:,} message in misplaced or duplicate log files",
                "possibly does not find {count:,} messages in misplaced or duplicate log files",
                count=self.log.shadowed)
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
        log, cut = self.log, self.log.cut
        if not cut.count:
            return None
        total = None if log.messages is None else log.messages + log.undecided
        return Impact(cut.count, total, cut.by_topic, cut.earliest, cut.latest)

    @property
    def impact(self) -> Impact | None:
        """Return the number of affected messages, with their topics and times, and the number of
        all messages. None if no message is affected.

        Affected messages are lost, would be lost, or would have no entry.
        """
        log, cut, gone = self.log, self.log.cut, self.log.gone
        topics = Counter(cut.by_topic) + Counter(gone.by_topic) + Counter(
            self.queues.unreachable_by_topic)
        count = cut.count + gone.count + (self.queues.unreachable or 0)
        if not count:
            return None
        total = None if log.messages is None else log.messages + log.undecided + gone.count
        earliest, latest = span((lost.earliest, lost.latest) for lost in (cut, gone) if lost.count)
        if self.queues.unreachable:  # their store times were not read
            earliest = latest = None
        return Impact(count, total, topics, earliest, latest)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        broker, log, queues, index, consumers = (
            self.broker, self.log, self.queues, self.index, self.consumers)
        cut, gone, lost = log.cut, log.gone, self.account
        return {
            "broker_version": self.broker_version, "version": self.version,
            "profile": self.profile,
            "recovery": broker.recovery,
            "starts": self.starts, "truncate_to": log.truncate_to,
            "start_file": log.start_file, "start_reason": log.start_reason,
            "stop_reason": log.stop_reason,
            "dispatch_from": min((part.start for part in log.dispatch), default=None),
            "dispatch_to": max((part.end for part in log.dispatch), default=None),
            "actions": [action.as_dict() for action in self.actions],
            "messages_lost": cut.count, "lost_by_topic": cut.by_topic,
            **lost.as_dict(),
            "messages_damaged": log.damaged,
            "lost_from": cut.earliest, "lost_to": cut.latest,
            "messages": log.messages, "superseded": log.superseded,
            "already_lost_by_topic": lost.lost_by_topic,
            "already_lost_from": gone.earliest, "already_lost_to": gone.latest,
            "offsets_beyond_end": [offset._asdict() for offset in consumers.beyond_end],
            "positions_unclear": [offset._asdict() for offset in consumers.unclear],
            **({"groups_affected": None, "consumers": None} if consumers.groups is None
               else consumers.groups.as_fields()),
            "undecodable": log.undecodable,
            "unreachable": queues.unreachable,
            "unreachable_by_topic": queues.unreachable_by_topic,
            "shadowed": log.shadowed,
            "rows_added": queues.added, "rows_cut": queues.cut, "rows_lost": queues.lost,
            "index": {"files_discarded": index.discarded, "entries_added": index.entries,
                      "duplicates": index.duplicates, "entries_lost": index.lost},
            "checkpoint": None if broker.checkpoint is None else broker.checkpoint._asdict(),
            "impact": None if self.impact is None else self.impact.as_dict(),
            "losses": [loss.as_dict() for loss in self.losses],
            "second_start": None if broker.second_start is None else broker.second_start.as_dict(),
            "refuses_writes": broker.refuses_writes,
            "disk": None if broker.disk is None else broker.disk.as_dict(),
            "not_judged": [{"structure": name, "reason": reason}
                           for name, reason in self.not_judged.items()],
            "configuration": [setting.as_dict() for setting in broker.configuration],
            "assumed": broker.assumed,
            "refusals": broker.refusals, "notes": self.notes,
            "differences": broker.differences,
        }
