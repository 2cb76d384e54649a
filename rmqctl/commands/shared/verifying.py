"""What the ``verify`` commands share: which structures, the tier in a store, how it is shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rmqctl.commands.app import typed
from rmqctl.errors import NotAStoreError, UsageError

if TYPE_CHECKING:
    from rmqctl.checks.findings import Finding
    from rmqctl.checks.verify.verdict import Covering, Known, Verdict
    from rmqctl.checks.verify.verify import Coverage
    from rmqctl.output import Output
    from rmqctl.output.human import Human
    from rmqctl.store import Store
    from rmqctl.tiered.tier import Tier

    C = TypeVar("C", bound=Covering)

COLUMNS = ("category", "severity", "structure", "file", "offset", "length", "topic", "queue_id",
           "queue_offset", "detail", "next", "position", "count")
_BRIEF = ("severity", "category", "where", "queue", "detail")
_STYLES = {"error": "bad", "warning": "warn", "info": "dim"}
TIERED = "tiered"


def structures(only: str | None, known: Sequence[str]) -> frozenset[str] | None:
    """The value of ``--only``. UsageError for what is not among the ``known``."""
    if only is None:
        return None
    names = frozenset(name.strip() for name in only.split(",") if name.strip())
    unknown = sorted(names - set(known))
    if unknown or not names:
        raise UsageError(f"--only: unknown structure {', '.join(unknown) or only!r}; there are "
                         f"{', '.join(known)}")
    return names


def show(out: Output, verdict: Verdict[C],
         covered: Callable[[Verdict[C]], Mapping[str, str]]) -> None:
    """The verdict in the format that is asked for; ``covered`` says for people what was covered."""
    if verdict.total > len(verdict.findings):
        out.warn(f"{verdict.total - len(verdict.findings)} more findings are counted, not listed "
                 "(--limit)")
    document = completed(verdict.as_dict())
    rows = document["findings"]
    out.listing(document, lambda page: show_page(page, verdict, covered), rows=rows,
                columns=COLUMNS)


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a verdict, whose commands read the store as this one was told to."""
    for row in (document, *document["findings"]):
        row["next"] = typed.completed(row["next"])
    return document


def show_page(page: Human, verdict: Verdict[C],
              covered: Callable[[Verdict[C]], Mapping[str, str]]) -> None:
    """The verdict for people."""
    from rmqctl.checks.verify.common import plural

    if verdict.ok and verdict.not_judged:
        page.text(f"{verdict.root}: no damage found in what can be judged; not judged: "
                  f"{', '.join(verdict.not_judged)}", "warn")
    elif verdict.ok and verdict.known:
        page.text(f"{verdict.root}: no new damage found; {plural(verdict.known, 'finding')} known "
                  "before", "good")
    elif verdict.ok:
        page.text(f"{verdict.root}: no damage found", "good")
    else:
        known = f", and {verdict.known:,} known before" if verdict.known else ""
        page.text(f"{verdict.root}: {plural(verdict.troubles, 'finding')}{known}", "bad")
        if verdict.concerned:
            page.text(verdict.concerned + _between(verdict))
    if verdict.findings:
        page.blank()
        page.table([_brief(finding, verdict.root) for finding in verdict.findings], _BRIEF,
                   styles={"severity": _STYLES.get})
        if verdict.next:
            page.heading("What next")
            page.text(typed.completed(verdict.next) or "")
    page.heading("Coverage")
    page.pairs({**covered(verdict),
                "checked": ", ".join(str(row["structure"]) for row in verdict.checked)})
    if verdict.pieces is not None:
        page.text(f"only {plural(verdict.pieces, 'part')} of the log looked at", "warn")


def _between(verdict: Verdict[C]) -> str:
    """Where the damage lies in time: what the messages before and after it say of themselves."""
    from rmqctl.output.units import time_text

    before, after = verdict.damaged_from, verdict.damaged_to
    if before is None and after is None:
        return ""
    if after is None:
        return f", after a message stored at {time_text(before or 0)}"
    return f", before a message stored at {time_text(after)}" if before is None else (
        f", between messages stored at {time_text(before)} and {time_text(after)}")


def _brief(finding: Finding, root: str) -> dict[str, Any]:
    path = os.path.relpath(finding.file, root) if finding.file else finding.structure
    where = path if finding.offset is None else f"{path} @{finding.offset}"
    queue = "" if finding.topic is None else f"{finding.topic}/{finding.queue_id}" + (
        f" #{finding.queue_offset}" if finding.queue_offset is not None else "")
    return {"severity": finding.severity, "category": finding.category, "where": where,
            "queue": queue, "detail": finding.detail}


# -- the tier that lies in a store ----------------------------------------------------------------


def without_tier(only: str | None) -> tuple[str | None, bool]:
    """The value of ``--only`` without the tier, and whether the tier is wanted."""
    if only is None:
        return None, True
    names = [name.strip() for name in only.split(",")]
    return ",".join(name for name in names if name != TIERED), TIERED in names


def with_tier(out: Output, store: Store, own: Verdict[Coverage], most: int, *,
              asked: bool, known: Known | None = None) -> Verdict[Coverage]:
    """The verdict on a store, with that on the tier in it, if there is one.

    ``asked``: the tier was named; then it is said where none is there. ``known``: whether a finding
    is no news.
    """
    tier = _tier_in(store.root)
    if tier is None:
        if asked:
            out.note("no tier lies in the store: `rmqctl tiered verify DIR --local "
                     f"{store.root}` checks one that lies elsewhere")
        return own
    from rmqctl.tiered.verify.verify import Verification, verdict

    with tier, out.progress("verify the tier", None) as progress:
        theirs = verdict(Verification(tier, progress=progress.advance), most, known)
    findings = (*own.findings, *theirs.findings)[:most]
    return replace(own, ok=own.ok and theirs.ok, findings=findings,
                   counts=own.counts + theirs.counts,
                   checked=(*own.checked, {"structure": TIERED}),
                   tier=theirs.coverage.as_dict())


def _tier_in(root: str) -> Tier | None:
    """The tier that lies in a store; what reads tiers is loaded where a name promises one."""
    from rmqctl.formats.tiered.names import TIER_FOLDER, parse_cluster

    with suppress(OSError):
        if not any(name == TIER_FOLDER or parse_cluster(name) for name in os.listdir(root)):
            return None
    from rmqctl.tiered.tier import Tier

    try:
        return Tier.open(root)
    except NotAStoreError:
        return None
