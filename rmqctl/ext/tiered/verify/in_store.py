"""Verify a store together with the tier in it. Return a verdict on both, and the messages that the
tier has lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rmqctl.checks.advice import is_of_a_tier
from rmqctl.checks.losses import TierLosses
from rmqctl.checks.verify.verdict import Covering, IsKnown, VerifyResult
from rmqctl.errors import NotAStoreError
from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.context import LOG, QUEUE, TIERED
from rmqctl.ext.tiered.verify.verify import Options, TierVerification, verdict
from rmqctl.store.store import Store

if TYPE_CHECKING:
    from rmqctl.checks.verify.verify import Coverage

C = TypeVar("C", bound=Covering)
Progress = Callable[[int], None]


def tier_in(root: str) -> Tier | None:
    """Return the tier in the store at ``root``; None if the store has no tier. Raises:
    StoreIOError.
    """
    try:
        return Tier.open(root)
    except NotAStoreError:
        return None


def size_of(tier: Tier, broker: str | None = None, *, index: bool = True) -> int:
    """Return the number of bytes that a verification reads: the sizes of commit logs and index
    files.
    """
    flats = [queue.commit_log for queue in tier.queues(broker=broker)]
    return sum(segment.usable for flat in flats for segment in flat.segments) + (sum(
        segment.size for _, flat in tier.indexes(broker) for segment in flat.segments)
        if index else 0)


def joined(own: VerifyResult[Coverage], tier: Tier, store: Store, most: int,
           baseline: IsKnown | None = None,
           progress: Progress | None = None) -> VerifyResult[Coverage]:
    """Merge the verdict on the tier into the verdict on its store; keep the first ``most``
    findings.
    """
    theirs = without_empty_advice(tier, verdict(
        TierVerification(tier, beside=store, progress=progress), most, baseline))
    lost = None if own.already_lost is None else own.already_lost + (theirs.already_lost or 0)
    return replace(own, ok=own.ok and theirs.ok, already_lost=lost,
                   findings=(*own.findings, *theirs.findings)[:most],
                   counts=own.counts + theirs.counts,
                   checked=(*own.checked, {"structure": TIERED}),
                   tier=theirs.coverage.as_dict())


def losses(tier: Tier, store: Store, progress: Progress | None = None) -> TierLosses:
    """Return the messages that the tier has lost and that the ``store`` does not contain. No other
    checks are made.
    """
    return TierLosses.of(verdict(TierVerification(
        tier, Options(frozenset({LOG, QUEUE})), beside=store, progress=progress),
        0).coverage.as_dict())


def without_empty_advice(tier: Tier, judged: VerifyResult[C]) -> VerifyResult[C]:
    """Return the verdict, without the advice to recover the tier if a recovery would change
    nothing.
    """
    if any(finding.is_trouble and is_of_a_tier(finding.next) for finding in judged.findings):
        from rmqctl.ext.tiered.recover.recover import changes_nothing

        if changes_nothing(tier):
            return replace(judged, findings=tuple(
                replace(finding, next=f"rmqctl explain {finding.category}")
                if is_of_a_tier(finding.next) else finding for finding in judged.findings))
    return judged
