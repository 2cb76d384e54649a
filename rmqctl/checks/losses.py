"""Messages and entries that a store has lost or would lose (JSON: ``losses``).

Every command takes the numbers of lost, undecided and replaced messages from `Losses`. No other
module adds them up (tests/checks/test_one_account.py). `rmqctl.checks.preflight` finds these
messages; `Prediction.account` has the `Losses` of a store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Joined, Phrase

if TYPE_CHECKING:
    from rmqctl.store.repair_losses import RepairLosses

MESSAGES, OFFSETS, TOPICS, GROUPS = "messages", "offsets", "topics", "groups"
TIMERS, DELAYED, INDEX = "timers", "delayed", "index"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss that has happened or that a broker startup would cause.

    * ``what``: what is lost (a constant above)
    * ``count``: number of lost items; None if unknown
    * ``cause``: one sentence
    * ``file``: path relative to the store root
    * ``already``: whether the loss has already happened, so that a startup loses nothing more
    * ``by_hand``: what to do by hand if no command prevents the loss
    * ``exportable``: the options of `rmqctl export` that select the messages, if it reads them
    """

    what: str
    count: int | None
    cause: str
    file: str | None = None
    already: bool = False
    by_hand: Phrase | None = None
    exportable: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {"what": self.what, "count": self.count, "cause": self.cause, "file": self.file,
                "already": self.already}


def counted(what: str, count: int | None) -> Phrase:
    """Return the count with its noun, such as ``12 committed offsets``; only the noun if the count
    is None.
    """
    if what == OFFSETS:
        return Phrase("committed offsets") if count is None else Phrase(
            "{count:,} committed offset", "{count:,} committed offsets", count=count)
    if what == TOPICS:
        return Phrase("topics") if count is None else Phrase(
            "{count:,} topic", "{count:,} topics", count=count)
    if what == GROUPS:
        return Phrase("consumer groups") if count is None else Phrase(
            "{count:,} consumer group", "{count:,} consumer groups", count=count)
    if what == TIMERS:
        return Phrase("timed messages") if count is None else Phrase(
            "{count:,} timed message", "{count:,} timed messages", count=count)
    if what == DELAYED:
        return Phrase("delayed messages") if count is None else Phrase(
            "{count:,} delayed message", "{count:,} delayed messages", count=count)
    if what == INDEX:
        return Phrase("index entries") if count is None else Phrase(
            "{count:,} index entry", "{count:,} index entries", count=count)
    return Phrase("messages") if count is None else Phrase(
        "{count:,} message", "{count:,} messages", count=count)


def summed(losses: Iterable[Loss]) -> Phrase | None:
    """Return the sums by kind of loss, such as ``12 committed offsets, 3 topics``; None if nothing
    is lost.
    """
    sums: dict[str, int | None] = {}
    for loss in losses:
        total = sums.get(loss.what, 0)
        sums[loss.what] = None if loss.count is None or total is None else total + loss.count
    return Joined(", ", [counted(what, count) for what, count in sums.items()]) if sums else None


# -- the account ----------------------------------------------------------------------------------


class Verified(Protocol):
    """Results of a verification, as in `rmqctl.checks.verify.verify.Coverage`: the numbers of
    undecided and replaced messages.
    """

    messages_undecided: int
    messages_replaced: int


class PlannedLosses(Protocol):
    """Losses in a planned repair, as in `rmqctl.repair.plan.Plan`."""

    @property
    def fills(self) -> int:
        """Return the number of messages that the plan replaces with fillers or keeps damaged."""

    @property
    def drops(self) -> tuple[int, int]:
        """Return (the number of messages that the plan loses and does not replace with fillers, the
        number of undecided records that it discards).
        """


@dataclass(frozen=True, slots=True)
class QueueLoss:
    """Number of messages of one queue.

    * ``lost``: missing from the log
    * ``cut``: truncated by the next startup
    * ``without_entry``: left without a consume queue entry by the next startup
    * ``undecodable``: intact, but clients cannot decode them
    """

    lost: int = 0
    cut: int = 0
    without_entry: int = 0
    undecodable: int = 0


@dataclass(frozen=True, slots=True)
class GroupLoss:
    """Number of unread messages of a consumer group that are already lost, or at risk at the next
    startup.
    """

    unread_lost: int = 0
    at_risk: int = 0


@dataclass(frozen=True, slots=True)
class TierLosses:
    """Losses of a tier, as numbers of messages.

    * ``messages``: messages that neither the tier nor the local log has
    * ``by_topic``: ``messages`` by topic
    * ``in_repairs``: messages dropped by repairs of the tier
    * ``undecided``: undecided records
    * ``replaced``: replaced messages
    """

    messages: int = 0
    in_repairs: int = 0
    undecided: int = 0
    replaced: int = 0
    by_topic: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, coverage: Mapping[str, Any] | None) -> Self:
        """Return the losses that a verification of the tier counted; no losses if ``coverage`` is
        None.
        """
        if coverage is None:
            return cls()
        topics = coverage["already_lost_by_topic"]
        lost = sum(topics.values())
        return cls(lost, coverage["messages_already_lost"] - lost, coverage["messages_undecided"],
                   coverage["messages_replaced"], topics)

    @property
    def already(self) -> int:
        """Return the number of messages that are lost already."""
        return self.messages + self.in_repairs

    @property
    def repaired_in_words(self) -> Phrase | None:
        """Return a sentence about messages that repairs of the tier dropped; None if they dropped
        none.
        """
        return Phrase("{count:,} message is missing since repairs of the tier",
                      "{count:,} messages are missing since repairs of the tier",
                      count=self.in_repairs) if self.in_repairs else None

    @property
    def loss(self) -> Loss:
        """Return ``messages`` as a `Loss`."""
        return Loss(MESSAGES, self.messages, Phrase(
            "{count:,} message is lost in the tier but not in the log",
            "{count:,} messages are lost in the tier but not in the log",
            count=self.messages), "tieredstore", already=True)


def _no_repairs() -> RepairLosses:
    from rmqctl.store.repair_losses import RepairLosses  # a command's help needs no log

    return RepairLosses()


@dataclass(frozen=True, slots=True)
class Losses:
    """All losses of a store that have happened or that the next startup would cause.

    * ``known_lost``: messages that the log no longer has but that the log itself, consume queues,
      index or committed offsets show
    * ``in_repairs``: messages that repairs dropped without a filler
    * ``by_offsets``: part of ``known_lost`` that only committed offsets show
    * ``cut``: messages that the next startup truncates, including ``cut_undecided`` undecided
      records
    * ``without_entry``: messages that the next startup leaves in the log without a consume queue
      entry (None: not searched)
    * ``in_log``: undecided records in the log
    * ``replaced``: fillers and messages kept damaged (None: not counted)
    * ``queues``, ``groups``: None if they cannot be checked
    * ``beside``: lost topics, groups, committed offsets, timed messages and index entries, each
      with the affected file
    * ``unread``: structures that would show lost messages but cannot be read; ``known_lost`` is
      then not reliable
    * ``in_tier``: losses of the store's tier, which the other fields do not include
    * ``at_least``: whether ``known_lost`` is only a lower bound

    The entry or committed offset of a lost message is evidence of that loss, and does not count as
    a loss.
    """

    known_lost: int = 0
    in_repairs: RepairLosses = field(default_factory=_no_repairs)
    by_offsets: int = 0
    cut: int = 0
    cut_undecided: int = 0
    without_entry: int | None = 0
    in_log: int = 0
    replaced: int | None = None
    already_by_topic: Mapping[str, int] = field(default_factory=dict)
    cut_by_topic: Mapping[str, int] = field(default_factory=dict)
    without_entry_by_topic: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[tuple[str, int], QueueLoss] | None = None
    groups: Mapping[str, GroupLoss] | None = None
    beside: tuple[Loss, ...] = ()
    unread: tuple[str, ...] = ()
    in_tier: TierLosses = field(default_factory=TierLosses)
    at_least: bool = False

    @property
    def counted(self) -> int | None:
        """Return the number of messages that are already lost; None if it cannot be determined."""
        return None if self.unread else self.already

    @property
    def unjudged(self) -> Phrase:
        """Return the reason why lost messages are not counted, to append to a line."""
        return Phrase("not checked: {names} cannot be read", names=", ".join(self.unread))

    @property
    def unjudged_losses(self) -> Phrase:
        """Return the reason why lost messages are not counted, as a complete sentence."""
        return Phrase("lost messages not counted: {names} cannot be read",
                      names=", ".join(self.unread))

    @property
    def already(self) -> int:
        """Return the number of messages that are lost already."""
        return self.known_lost + self.in_repairs.messages + self.in_tier.already

    @property
    def lost_by_topic(self) -> dict[str, int]:
        """Return the number of lost messages by topic, in log and tier; messages whose topic is
        unknown are not included.
        """
        return dict(Counter(self.already_by_topic) + Counter(self.in_tier.by_topic))

    @property
    def undecided(self) -> int:
        """Return the number of records that may have been messages: records in the log or the tier,
        and records that repairs discarded.
        """
        return self.in_log + self.in_repairs.undecided + self.in_tier.undecided

    @property
    def cut_for_sure(self) -> int:
        """Return the number of messages that the next startup truncates, not counting undecided
        records.
        """
        return self.cut - self.cut_undecided

    @property
    def would_lose(self) -> int:
        """Return the number of messages that the next startup truncates or leaves without a consume
        queue entry.
        """
        return self.cut + (self.without_entry or 0)

    @property
    def what_a_start_loses(self) -> Phrase:
        """Return a sentence about the messages in `would_lose`. It calls them intact unless some of
        them are undecided.
        """
        if self.cut_undecided and self.cut_undecided == self.would_lose:
            return Phrase("startup would lose {count:,} record, which may be a message",
                          "startup would lose {count:,} records, which may be messages",
                          count=self.would_lose)
        if self.cut_undecided:
            return Phrase("startup would lose {count:,} message, {undecided:,} of them undecided",
                          "startup would lose {count:,} messages, {undecided:,} of them undecided",
                          count=self.would_lose, undecided=self.cut_undecided)
        return Phrase("startup would lose {count:,} intact message",
                      "startup would lose {count:,} intact messages", count=self.would_lose)

    @property
    def undecided_kept(self) -> int:
        """Return the number of undecided records in the log; 0 if a startup truncates all of them,
        so that `what_a_start_loses` counts them.
        """
        return 0 if self.in_log == self.cut_undecided else self.in_log

    @property
    def all_replaced(self) -> int | None:
        """Return the total number of fillers and damaged messages that repairs kept, in the log and
        in the tier; None if unknown.
        """
        return None if self.replaced is None else self.replaced + self.in_tier.replaced

    @property
    def replaced_in_words(self) -> Phrase | None:
        """Return a sentence about the messages that repairs replaced; None if there are none."""
        return Phrase(
            "{count:,} message was lost earlier: `recover` replaced it with a filler, which "
            "consumers receive", "{count:,} messages were lost earlier: `recover` replaced them "
            "with fillers, which consumers receive",
            count=self.all_replaced) if self.all_replaced else None

    @property
    def would_lose_by_topic(self) -> dict[str, int]:
        """Return the number of messages in `would_lose` by topic."""
        return dict(Counter(self.cut_by_topic) + Counter(self.without_entry_by_topic))

    @property
    def unread_and_affected(self) -> int | None:
        """Return the number of unread messages that consumer groups miss or would miss.

        Each message counts once for each group. None if unknown.
        """
        return None if self.groups is None else sum(
            group.unread_lost + group.at_risk for group in self.groups.values())

    @property
    def total(self) -> int:
        """Return the number of messages that are not present as they were sent. A repair may reduce
        this number only by restoring messages.
        """
        return self.already + self.undecided + (self.all_replaced or 0)

    @property
    def is_complete(self) -> bool:
        """Return whether no message is known to be missing."""
        return not (self.total or self.in_repairs.losses or self.unread)

    def verified(self, cover: Verified) -> Losses:
        """Return these losses plus the undecided and replaced messages that a verification
        counted.
        """
        return replace(self, in_log=max(self.in_log, cover.messages_undecided),
                       replaced=cover.messages_replaced if self.replaced is None
                       else self.replaced)

    def lost_in_words(self, count: int) -> Phrase:
        """Return a sentence that says that ``count`` messages are already lost."""
        if self.at_least:
            return Phrase("at least {count:,} message is already lost",
                          "at least {count:,} messages are already lost", count=count)
        return Phrase("{count:,} message is already lost",
                      "{count:,} messages are already lost", count=count)

    def in_words(self) -> list[Phrase]:
        """Return a sentence for each kind of loss; empty if nothing is lost."""
        sentences = []
        if self.unread:
            sentences.append(self.unjudged_losses)
        elif self.already:
            sentences.append(self.lost_in_words(self.already))
        if self.would_lose:
            sentences.append(self.what_a_start_loses)
        if self.undecided:
            sentences.append(Phrase("{count:,} record is undecided",
                                    "{count:,} records are undecided", count=self.undecided))
        if self.replaced_in_words is not None:
            sentences.append(self.replaced_in_words)
        return sentences

    def after(self, plan: PlannedLosses) -> Losses:
        """Return the losses that remain after a plan is carried out."""
        from rmqctl.store.repair_losses import RepairLoss

        messages, undecided = plan.drops
        new = RepairLoss("", None, "", messages, undecided)
        return Losses(0, self.in_repairs._replace(losses=(*self.in_repairs.losses, new)),
                      replaced=None if self.replaced is None else self.replaced + plan.fills,
                      queues=None, groups=None, in_tier=self.in_tier)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that every JSON document with losses has."""
        return {"messages_already_lost": self.counted, "messages_undecided": self.undecided,
                "messages_replaced": self.all_replaced,
                "lost_in_repairs": self.in_repairs.as_list()}
