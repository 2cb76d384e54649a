"""Result of a verify run, as a plain value that can be passed between processes."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Generic, Protocol, TypeVar

from rmqctl.checks.advice import NextStep
from rmqctl.checks.findings import ERROR, INFO, WARNING, Finding
from rmqctl.checks.impact import Impact
from rmqctl.checks.losses import TierLosses
from rmqctl.checks.verify.verify import Coverage, Verification
from rmqctl.errors import StoreIOError, UnsupportedError
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.phrases import Joined, Phrase, some_of
from rmqctl.store.query.lookup import containing
from rmqctl.store.store import Store

_WITHOUT_ROW = frozenset({"cq-behind", "cq-missing", "cq-missing-entry"})
_WITHOUT_MESSAGE = frozenset({"cq-ahead", "cq-lost"})
_BODIES = frozenset({"body-crc"})
_PROPERTIES = frozenset({"property-damaged"})
_BROKEN = frozenset({"record-damaged", "body-crc", "property-damaged"})
_MAX_TOPICS = 3
_WHY = Phrase("shows what the findings mean and what to do")
IN_BASELINE = "known"
"""Severity of a finding that is in the baseline."""
IsKnown = Callable[[Finding], bool]
DAMAGE = frozenset({"record-damaged", "body-crc", "property-crc", "property-damaged",
                    "physical-offset", "zero-gap", "torn-tail"})
"""Categories of findings about bytes of the log that were part of messages."""


class Covering(Protocol):
    """Type of the coverage of a run: counts of what was checked."""

    def as_dict(self) -> Mapping[str, Any]: ...


C = TypeVar("C", bound=Covering)


@dataclass(frozen=True, slots=True)
class VerifyResult(Generic[C]):
    """The result of a verify run.

    * ``findings``: the first findings, without findings in the baseline
      (`rmqctl.checks.verify.baseline`)
    * ``counts``: number of all findings by category and severity; findings in the baseline have the
      severity `KNOWN`
    * ``pieces``: number of pieces of the log that were read (None: the whole log)
    * ``tier``: coverage of the store's tier (None: no tier was checked)
    * ``not_judged``: requested structures in an unsupported form, with the reason
    * ``damaged_from``, ``damaged_to``: store times (ms) of the messages before and after all damage
      in the log; None if unknown or the log has no damage
    * ``already_lost``: number of messages that the store has lost (`rmqctl.checks.losses`); None if
      only a part of the store was read
    """

    root: str
    ok: bool
    findings: tuple[Finding, ...]
    counts: Counter[tuple[str, str]]
    coverage: C
    checked: tuple[dict[str, Any], ...]
    pieces: int | None = None
    tier: dict[str, Any] | None = None
    not_judged: Mapping[str, str] = field(default_factory=dict)
    damaged_from: int | None = None
    damaged_to: int | None = None
    already_lost: int | None = None

    @property
    def total(self) -> int:
        return sum(self.counts.values()) - self.in_baseline

    @property
    def in_baseline(self) -> int:
        """Return the number of findings that are in the baseline."""
        return sum(count for (_, severity), count in self.counts.items() if severity == IN_BASELINE)

    @property
    def troubles(self) -> int:
        """Return the number of findings that are new and more severe than info."""
        return sum(count for (_, severity), count in self.counts.items()
                   if severity not in (INFO, IN_BASELINE))

    def fails(self, severity: str) -> bool:
        """Return whether any new finding has this severity (``error`` or ``warning``) or a worse
        one.
        """
        least = (ERROR,) if severity == ERROR else (ERROR, WARNING)
        return any(self.counts[key] for key in self.counts if key[1] in least)

    @property
    def next(self) -> str | None:
        """Return the command to run next (read-only if possible); None if no finding has one."""
        remedies = [finding.next for finding in self.findings if finding.is_trouble
                    and finding.next]
        if any(remedy.startswith(("rmqctl recover ", "rmqctl preflight ",
                                    "rmqctl doctor ")) for remedy in remedies):
            return f"rmqctl doctor {shlex.quote(self.root)}"
        return next(iter(remedies), None)

    @property
    def impact(self) -> dict[str, Any] | None:
        """Return the effect of the findings in the form of `rmqctl.checks.impact.Impact`.

        None if nothing is affected.

        * ``messages``: number of messages without a consume queue entry and of damaged records
        * ``topics``: number of affected messages and entries of each topic
        * ``rows`` (added): number of entries that point to no message
        * ``bytes`` (added): number of damaged bytes of the log
        """
        troubles = [finding for finding in self.findings if finding.is_trouble]
        if not troubles:
            return None
        topics = Counter[str]()
        for finding in troubles:
            if finding.topic is not None:
                topics[finding.topic] += finding.count
        covered = self.coverage.as_dict()
        broken = _count(troubles, _BROKEN)
        intact = int(covered.get("messages") or 0)
        # A message may lack its entries in several light queues.
        own = Impact(min(_count(troubles, _WITHOUT_ROW), intact) + broken, intact + broken,
                     topics, self.damaged_from, self.damaged_to,
                     self.total == len(self.findings))
        return {**own.as_dict(), "rows": _count(self._rows_lost, _WITHOUT_MESSAGE),
                "bytes": covered.get("bytes_damaged") or 0}

    @property
    def concerned(self) -> Phrase | None:
        """Return one line on the effect of the findings: affected messages and entries, topics and
        times; None if nothing is affected.
        """
        troubles = [finding for finding in self.findings if finding.is_trouble]
        if not troubles:
            return None
        # Messages without entries, with damaged bodies or properties.
        lost = self._rows_lost
        parts: list[Phrase] = []
        messages = self.coverage.as_dict().get("messages")
        rowless = _count(troubles, _WITHOUT_ROW)
        if rowless > (messages or 0):  # light queues: a message has an entry in each of its queues
            parts.append(Phrase("{rows:,} entries of {of:,} messages are missing", rows=rowless,
                                of=messages or 0))
        elif rowless:
            parts.append(Phrase("{some:,} of {of:,} messages have no consume queue entry",
                                some=rowless, of=messages or 0))
        bodies = _count(troubles, _BODIES)
        if bodies:
            parts.append(Phrase("{count:,} of {of:,} messages has a damaged body",
                                "{count:,} of {of:,} messages have damaged bodies", count=bodies,
                                of=(messages or 0) + bodies))
        properties = _count(troubles, _PROPERTIES)
        if properties:
            parts.append(Phrase("{count:,} message has damaged properties",
                                "{count:,} messages have damaged properties", count=properties))
        # Entries without messages, and damaged bytes.
        leading = _count(lost, _WITHOUT_MESSAGE)
        if leading:
            rows = self.coverage.as_dict().get("consumequeue_rows")
            parts.append(
                Phrase("{some:,} of {of:,} entries point to no intact message", some=leading,
                       of=rows)
                if rows else Phrase("{some:,} entries point to no intact message", some=leading))
        damaged = self.coverage.as_dict().get("bytes_damaged")
        if damaged:
            parts.append(Phrase("{some:,} bytes of the log are damaged", some=damaged))
        # Their topics, and their times.
        topics = sorted({finding.topic for finding in (*troubles, *lost)
                         if finding.topic is not None})
        if topics:
            parts.append(Phrase("topics {names}", names=some_of(topics, _MAX_TOPICS)))
        when = self._between()
        if when is not None and parts:
            parts.append(when)
        if not parts:
            return None
        what = Joined(", ", parts)
        return Phrase("affected: {what}", what=what if self.total <= len(self.findings) else
                      Phrase("at least {what}", what=what))

    def _between(self) -> Phrase | None:
        """Return the time range of the damage, by the messages before and after it; None if
        unknown.
        """
        before, after = self.damaged_from, self.damaged_to
        if before is None:
            return None if after is None else Phrase("before a message stored at {time}",
                                                     time=time_text(after))
        if after is None:
            return Phrase("after a message stored at {time}", time=time_text(before))
        return Phrase("between messages stored at {earliest} and {latest}",
                      earliest=time_text(before), latest=time_text(after))

    @property
    def _rows_lost(self) -> list[Finding]:
        """Return the problems, and all findings about entries of lost messages."""
        return [finding for finding in self.findings
                if finding.is_trouble or finding.category == "cq-lost"]

    def require_judged(self) -> None:
        """Raise UnsupportedError if nothing was wrong but not everything was checked."""
        if self.ok and self.not_judged:
            reason = next(iter(self.not_judged.values()))
            raise UnsupportedError(f"{self.root}: not checked: {', '.join(self.not_judged)}; "
                                   f"{reason}")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of ``verify``."""
        coverage = dict(self.coverage.as_dict())
        coverage["messages_already_lost"] = self.already_lost
        if self.tier is not None:
            coverage["tiered"] = self.tier
            of_tier = TierLosses.of(self.tier)
            coverage["messages_undecided"] += of_tier.undecided
            coverage["messages_replaced"] += of_tier.replaced
        return {
            "ok": self.ok, "findings": [finding.as_dict() for finding in self.findings],
            "coverage": coverage, "checked": list(self.checked),
            "not_judged": [{"structure": name, "reason": reason}
                           for name, reason in self.not_judged.items()],
            "findings_total": self.total, "known": self.in_baseline,
            "next": [self.next] if self.next else [],
            "steps": [NextStep(self.next, _WHY).as_dict()] if self.next else [],
            "impact": self.impact,
            "damaged_from": self.damaged_from, "damaged_to": self.damaged_to,
            "counts": [{"category": category, "severity": severity, "count": count}
                       for (category, severity), count in sorted(self.counts.items())]}


def _count(findings: Iterable[Finding], categories: frozenset[str]) -> int:
    """Return the number of messages or entries that the findings of these categories count."""
    return sum(finding.count for finding in findings if finding.category in categories)


def first_findings(findings: Iterable[Finding], most: int,
                   is_known: IsKnown | None = None) -> tuple[
        tuple[Finding, ...], Counter[tuple[str, str]]]:
    """Return the first ``most`` findings, and the number of all findings by category and severity.
    Known findings are only counted.
    """
    first: list[Finding] = []
    counts: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        if is_known is not None and finding.is_trouble and is_known(finding):
            counts[finding.category, IN_BASELINE] += 1
            continue
        counts[finding.category, finding.severity] += 1
        if len(first) < most:
            first.append(finding)
    return tuple(first), counts


def nothing_new(counts: Mapping[tuple[str, str], int]) -> bool:
    """Return whether all findings are known or informational."""
    return all(severity in (INFO, IN_BASELINE) for _, severity in counts)


def verdict(run: Verification, most: int,
            is_known: IsKnown | None = None) -> VerifyResult[Coverage]:
    """Run a verification to its end and keep the first ``most`` findings.

    ``is_known``: returns whether a problem is in the baseline. The result is ok if all problems are
    in the baseline.
    """
    start, end = sys.maxsize, -1

    def findings() -> Iterator[Finding]:
        nonlocal start, end
        for finding in run.counted():
            offset = finding.offset
            if offset is not None and finding.category in DAMAGE and finding.is_trouble:
                start = min(start, offset)
                end = max(end, offset + (finding.length or 0))
            yield finding

    first, counts = first_findings(findings(), most, is_known)
    first = tuple(map(run.advised, first))
    before, after = (None, None) if end < 0 else times_around(run.store, start, end)
    ok = run.ok or nothing_new(counts)
    return VerifyResult(run.store.root, ok, first, counts, run.coverage, tuple(run.checked),
                        None if run.parts is None else len(run.parts), not_judged=run.not_judged,
                        damaged_from=before, damaged_to=after)


def times_around(store: Store, start: int, end: int) -> tuple[int | None, int | None]:
    """Return the store times (ms) of the messages just before and just after physical offsets
    ``[start, end)``; see `around`.
    """
    before, after = around(store, start, end)
    return (None if before is None else before.store_timestamp,
            None if after is None else after.store_timestamp)


def around(store: Store, start: int, end: int) -> tuple[Record | None, Record | None]:
    """Return the messages just before and just after physical offsets [start, end).

    None for a message that does not exist or is damaged.
    """
    try:
        before = containing(store, start - 1)
        border, file = store.log.record_border(end), store.log.file_of(end)
        after = None if border is None else store.log.record_at(border)
        if after is None and file is not None:  # a blank: the next file's first
            after = store.log.record_at(file.end)
    except StoreIOError:
        return None, None
    return before, after
