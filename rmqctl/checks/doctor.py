"""Diagnosis of a store in one sentence, from verification and prediction.

This module only summarizes the results of `rmqctl.checks.verify` and `rmqctl.checks.preflight`. The
summary shows which consumer groups are affected, and what to do next, the safest step first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqctl import vfs
from rmqctl.broker.versions import release_of
from rmqctl.checks import advice
from rmqctl.checks.advice import NextStep, Remaining, RepairOutlook
from rmqctl.checks.findings import CATEGORIES, ERROR, INFO, WARNING
from rmqctl.checks.losses import Losses, TierLosses
from rmqctl.checks.preflight.around import StartEnvironment, around_in_use
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.checks.repaired import all_in_words
from rmqctl.checks.verify.verdict import VerifyResult, verdict
from rmqctl.checks.verify.verify import Coverage, Verification, VerifyOptions
from rmqctl.files.lock_probe import LockState
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Joined, Phrase, some_of
from rmqctl.store.layout import FORM_UNKNOWN
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.scan.profile import LogProfile

_ORDER = (ERROR, WARNING, INFO)
MAX_LISTED = 1000
_MAX_CAUSES = 2


@dataclass(frozen=True, slots=True)
class DamageKind:
    """All findings of one category. `count`: their number; `file`: the file of the first
    finding.
    """

    severity: str
    category: str
    count: int
    meaning: Phrase
    file: str | None


class Disk(NamedTuple):
    """Size of a store's file system, and the space available to the store's owner, in bytes.

    None for a store at a URL or in an archive.
    """

    total: int | None
    free: int | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis.

    * `findings`: result of a check of every byte
    * `start`: effects of a broker's startup
    * `lock`: the process that has locked the store
    * `profile`: contents of the log, if requested
    * `outlook`: effects of a repair, if one was planned
    * `backup`: a backup of the store: its path, the time of its newest restore point (epoch ms),
      and the number of damaged ranges at that time
    """

    findings: VerifyResult[Coverage]
    start: Prediction
    lock: LockState
    disk: Disk
    profile: LogProfile | None = None
    outlook: RepairOutlook | None = None
    backup: tuple[str, int, int] | None = None

    def with_tier(self, findings: VerifyResult[Coverage]) -> Diagnosis:
        """Return this diagnosis with other `findings`, which include those about the store's
        tier.
        """
        self.start.in_tier = TierLosses.of(findings.tier)
        return replace(self, findings=findings)

    @property
    def sound(self) -> bool:
        """Return whether nothing is damaged or lost, and a broker startup would lose nothing."""
        return self.findings.ok and self.start.harmless

    @property
    def damaged(self) -> list[DamageKind]:
        """Return the findings by category, worst first; findings of severity "info" are omitted."""
        files: dict[tuple[str, str], str | None] = {}
        for finding in self.findings.findings:
            files.setdefault((finding.category, finding.severity), finding.file)
        rows = [DamageKind(severity, category, count, Phrase(CATEGORIES[category].meaning),
                           files.get((category, severity)))
                for (category, severity), count in self.findings.counts.items()
                if severity != INFO]
        return sorted(rows, key=lambda row: (_ORDER.index(row.severity), -row.count, row.category))

    @property
    def _is_damaged(self) -> bool:
        """Return whether there is damage other than consumer offsets beyond the end of a queue.

        The prediction already recommends steps for these offsets.
        """
        return any(row.category != "config-offset" for row in self.damaged)

    @property
    def losses(self) -> Losses:
        """Return the losses that the verification, the prediction and the repair plan count."""
        lost = self.start.account.verified(self.findings.coverage)
        return lost if self.outlook is None else replace(
            lost, in_log=max(lost.in_log, self.outlook.undecided))

    @property
    def earlier(self) -> int:
        """Return the number of messages from earlier queues of the same name, according to the
        findings. Consumers do not receive these messages.
        """
        return sum(finding.count for finding in self.findings.findings
                   if finding.category == "cq-earlier")

    @property
    def verdict(self) -> Phrase:
        """Return the verdict in one sentence."""
        start, lost = self.start, self.losses
        # Nothing is wrong now: what a repair replaced, and what a start would do.
        if self.sound and self.untold is not None:
            return Phrase("cannot be judged: {why}", why=self.untold)
        if self.sound:
            repaired = self.repaired
            parts = [self._replaced or (Phrase("no damage now") if repaired is not None else
                                        Phrase("no damage now, but a repair moved consumer "
                                               "offsets aside") if "offsets" in
                                        start.metadata.facts else
                                        Phrase("no damage found") if lost.unread or self.earlier
                                        else Phrase("no damage, and nothing is lost"))]
            if self.earlier:
                parts.append(self.not_delivered)
            if repaired is not None:
                parts.append(repaired)
            if not start.not_judged:
                parts.append(Phrase("{broker} would start and {what}", broker=start.subject,
                                    what=start.costless))
            if lost.unread:
                parts.append(lost.unjudged_losses)
            if self.not_judged:
                return Phrase("sound, as far as can be judged: {what}", what=Joined("; ", parts))
            return Phrase("sound: {what}", what=Joined("; ", parts))
        # The losses, and why a broker would not start or would lose more.
        parts = []
        if lost.known_lost:
            parts.append(lost.lost_in_words(lost.known_lost))
        if start.misled:
            parts.append(Phrase("broker.conf does not fit this store ({settings})",
                                settings=Joined(", ", dict.fromkeys(
                                    setting.setting for setting in start.misled))))
        if not start.starts:
            parts.append(Phrase("{broker} would not start", broker=start.subject))
        elif lost.would_lose:
            parts.append(lost.what_a_start_loses)
        elif start.broker.second_start is not None:
            parts.append(Phrase("the second start would lose {count:,} intact message",
                                "the second start would lose {count:,} intact messages",
                                count=start.broker.second_start.messages_lost))
        elif start.queues.lost:
            parts.append(Phrase("startup would delete all consume queues"))
        elif start.is_so_alone and not start.start_is_harmless:
            parts += start.undecided
        elif start.queues.cut and lost.known_lost:
            parts.append(Phrase("startup would remove the only evidence of the loss"))
        # Other losses by the start or by clients.
        causes = [loss.cause for loss in start.beside_messages if loss.already]
        if causes:
            parts.append(some_of(causes, _MAX_CAUSES))
        if start.also_loses is not None and start.starts and not start.start_is_harmless:
            parts.append(Phrase("startup would lose {what}", what=start.also_loses))
        if start.broker.refuses_writes:
            parts.append(Phrase("the broker rejects messages: its disk is full"))
        groups = {offset.group for offset in start.consumers.beyond_end}
        if groups:
            parts.append(Phrase("offsets of {count} group would be beyond the end of a queue",
                                "offsets of {count} groups would be beyond the end of a queue",
                                count=len(groups)))
        if start.log.undecodable:
            parts.append(Phrase("Java clients fail on {count} message",
                                "Java clients fail on {count} messages",
                                count=start.log.undecodable))
        if start.log.damaged:
            parts.append(Phrase("{count:,} message has damaged properties",
                                "{count:,} messages have damaged properties",
                                count=start.log.damaged))
        if lost.undecided_kept:
            parts.append(Phrase("{count:,} record is undecided",
                                "{count:,} records are undecided", count=lost.undecided_kept))
        # Losses of repairs, and what cannot be judged.
        if (repaired := self.repaired) is not None:
            parts.append(repaired)
        elif not parts and not lost.unread:
            parts.append(Phrase("nothing is lost so far; startup {loses}", loses=start.loses))
        if lost.unread:
            parts.append(lost.unjudged_losses)
        values = {"what": Joined("; ", parts), "advice": self._advice}
        if not self._is_damaged:
            return Phrase("no damage found, but {what}. {advice}", **values)
        return Phrase("damaged: {what}. {advice}", **values)

    @property
    def not_delivered(self) -> Phrase:
        """Return a sentence about the messages of earlier queues."""
        return Phrase(
            "{count:,} older message is not delivered: its topic was created again, or its consume "
            "queue was lost (rmqctl explain cq-earlier)",
            "{count:,} older messages are not delivered: their topic was created again, or their "
            "consume queue was lost (rmqctl explain cq-earlier)", count=self.earlier)

    @property
    def repaired(self) -> Phrase | None:
        """Return a sentence about the losses from earlier repairs of the log and the tier; None if
        nothing was lost.
        """
        own, tier = all_in_words(self.start.repairs), self.start.in_tier.repaired_in_words
        return Joined("; ", [own, tier]) if own and tier else own or tier

    @property
    def _replaced(self) -> Phrase | None:
        """Return a sentence about the messages that a repair replaced or marked; None if there are
        none.
        """
        count = self.losses.all_replaced
        return Phrase("no damage now, but a repair has replaced or marked {count:,} message",
                      "no damage now, but a repair has replaced or marked {count:,} messages",
                      count=count) if count else None

    @property
    def _advice(self) -> Phrase:
        if self.lock.held:
            return Phrase("A broker is using the store, so these figures change")
        if not self.start.start_is_harmless:
            return Phrase("Do not start a broker before you have done the steps below")
        return Phrase("Copy the store before you change anything")

    @property
    def not_judged(self) -> dict[str, str]:
        """Return the structures that were not checked, with the reason for each."""
        return {**self.findings.not_judged, **self.start.not_judged}

    @property
    def _is_form_unknown(self) -> bool:
        """Return whether only the broker's configuration determines which consume queues it
        reads.
        """
        return self.not_judged.get("consumequeue", "").endswith(FORM_UNKNOWN)

    @property
    def untold(self) -> str | None:
        """If the log cannot be read, so that messages cannot be checked, return the reason; else
        None.
        """
        return self.not_judged.get("commitlog")

    @property
    def next(self) -> list[NextStep]:
        """Return the recommended steps in order, repairs before commands that only read; may be
        empty.
        """
        if self.sound:
            return [] if not self._is_form_unknown else [advice.of_the_form(self.findings.root)]
        # A store that cannot be changed in place is copied first.
        root = self.findings.root
        copied: list[NextStep] = []
        if vfs.is_remote(root):
            root, copied = advice.into_a_folder(root)
        steps = list(advice.steps(root, self.start, self.outlook,
                                  is_held=self.lock.held, is_damaged=self._is_damaged))
        looking = next((number for number, step in enumerate(steps)
                        if step.effect == "read-only"), len(steps))
        steps = [*steps[:looking], *advice.of_the_tier(self.findings.findings), *steps[looking:]]
        if self.backup is not None and not self.lock.held:
            steps = advice.with_backup(steps, root, *self.backup)
        return [*copied, *steps]

    @property
    def remains(self) -> list[Remaining]:
        """Return the problems that no command repairs, and what to do about them by hand."""
        repaired = {defect.category for defect in self.start.metadata.defects
                    if defect.command is not None} | {"config-offset"}  # has its own steps
        if any(advice.of_the_tier(self.findings.findings)):
            repaired |= {row.category for row in self.damaged
                         if row.category.startswith("tiered-")}
        return [] if self.sound else advice.remains(
            [(row.category, row.count) for row in self.damaged if row.category not in repaired],
            self.start, self.outlook)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of `doctor`."""
        start, impact, lost = self.start, self.start.impact, self.losses
        fields = ({"groups_affected": None, "consumers": None} if start.consumers.groups is None
                  else start.consumers.groups.as_fields())
        return {
            "verdict": self.verdict,
            "sound": None if self.sound and (
                self.untold is not None or self._is_form_unknown) else self.sound,
            "damaged": [asdict(row) for row in self.damaged],
            "bytes_damaged": self.findings.coverage.bytes_damaged,
            **lost.as_dict(),
            "messages_damaged": start.log.damaged,
            "messages_not_delivered": self.earlier,
            "already_lost": lost.counted,
            "already_lost_by_topic": lost.lost_by_topic,
            "would_lose": lost.would_lose,
            "would_lose_by_topic": lost.would_lose_by_topic,
            "starts": None if self.untold is not None else start.starts,
            "broker_version": start.broker_version,
            "version": start.version,
            "configuration": [setting.as_dict() for setting in start.broker.configuration],
            "assumed": start.broker.assumed,
            **fields,
            "offsets_beyond_end": [offset._asdict() for offset in start.consumers.beyond_end],
            "impact": None if impact is None else impact.as_dict(),
            "losses": [loss.as_dict() for loss in start.losses],
            "messages": start.log.messages, "log_bytes": self.findings.coverage.bytes_total,
            "refuses_writes": start.broker.refuses_writes,
            "disk": {**self.disk._asdict(), **(
                {} if start.broker.disk is None else start.broker.disk.as_dict())},
            "lock": {"held": self.lock.held, "pid": self.lock.pid, "kind": self.lock.kind},
            "not_judged": [{"structure": name, "reason": reason}
                           for name, reason in self.not_judged.items()],
            "next": [step.command for step in self.next],
            "steps": [step.as_dict() for step in self.next],
            "remains": [remaining.as_dict() for remaining in self.remains],
        }

    def require_judged(self) -> None:
        """Raise UnsupportedError if nothing was wrong but not everything was checked."""
        if self.sound:
            self.findings.require_judged()
            self.start.require_judged(self.findings.root)


def diagnose(store: Store, broker_version: str | None, jobs: int,
             progress: Callable[[int], None] | None = None, *,
             profile: bool = False, machine: StartEnvironment | None = None,
             phase: Callable[..., None] | None = None) -> Diagnosis:
    """Verify a whole store and predict a broker startup.

    * `progress`: receives the number of log bytes read; each byte is read twice
    * `profile`: whether to profile the log in the same pass
    * `machine`: the clock and the disk at startup (None: this machine's)
    * `phase`: receives the name of each step, and the number of bytes that it reads, if known

    Raises: StoreIOError.
    """
    release = release_of(broker_version) if broker_version else None
    run = Verification(store, VerifyOptions(None, jobs, profile=profile, release=release), progress,
                       phase=phase)
    verification = verdict(run, MAX_LISTED)
    if phase is not None:
        phase("predicting startup", store.log.size if store.layout.reads("commitlog") else None)
    start = preflight(store, broker_version, full=True, progress=progress,
                      machine=machine or around_in_use(store), seen=run.seen)
    disk = Disk(None, None)
    if not vfs.is_remote(store.root):
        space = vfs.statvfs(store.root)
        disk = Disk(space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize)
    return Diagnosis(verification, start, store.lock, disk, run.profile)
