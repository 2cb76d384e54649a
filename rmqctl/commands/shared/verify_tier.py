"""``rmqctl verify``: the tier that lies in a store, checked with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqctl.checks.verify.verdict import Verdict
    from rmqctl.checks.verify.verify import Coverage
    from rmqctl.output import Output
    from rmqctl.store import Store

TIERED = "tiered"


def split(only: str | None) -> tuple[str | None, bool]:
    """The value of ``--only`` without the tier, and whether the tier is wanted."""
    if only is None:
        return None, True
    names = [name.strip() for name in only.split(",")]
    return ",".join(name for name in names if name != TIERED), TIERED in names


def with_tier(out: Output, store: Store, found: Verdict[Coverage], most: int, *,
              asked: bool) -> Verdict[Coverage]:
    """The verdict on a store, with that on the tier in it, if there is one.

    ``asked``: the tier was named; then it is said where none is there.
    """
    from rmqctl.errors import NotAStoreError
    from rmqctl.tiered.tier import Tier
    from rmqctl.tiered.verify.verify import Verification, verdict

    try:
        tier = Tier.open(store.root)
    except NotAStoreError:
        if asked:
            out.note("no tier lies in the store: `rmqctl tiered verify DIR --local "
                     f"{store.root}` checks one that lies elsewhere")
        return found
    with tier, out.progress("verify the tier", None) as progress:
        theirs = verdict(Verification(tier, progress=progress.advance), most)
    kept = (*found.findings, *theirs.findings)[:most]
    return replace(found, ok=found.ok and theirs.ok, findings=kept,
                   counts=found.counts + theirs.counts,
                   checked=(*found.checked, {"structure": TIERED}),
                   tier=theirs.coverage.as_dict())
