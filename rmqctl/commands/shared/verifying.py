"""Code that the ``verify`` commands share: ``--only``, the tier in a store, and output."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from rmqctl import vfs
from rmqctl.commands.app import typed
from rmqctl.commands.app.extensions import has
from rmqctl.commands.shared.advising import complete, look
from rmqctl.commands.shared.summed import show_findings
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import count_text, size_text
from rmqctl.phrases import Joined, Phrase, counted

if TYPE_CHECKING:
    from rmqctl.checks.doctor import Diagnosis
    from rmqctl.checks.findings import Finding
    from rmqctl.checks.losses import TierLosses
    from rmqctl.checks.verify.judged import JudgedStore
    from rmqctl.checks.verify.verdict import Covering, IsKnown, VerifyResult
    from rmqctl.checks.verify.verify import Coverage
    from rmqctl.ext.tiered.tier import Tier
    from rmqctl.output import Output
    from rmqctl.output.human import Human
    from rmqctl.store import Store

    C = TypeVar("C", bound=Covering)

COLUMNS = ("category", "severity", "structure", "file", "offset", "length", "topic", "queue_id",
           "queue_offset", "detail", "next", "position", "count")
_BRIEF = ("severity", "category", "where", "queue", "detail")
_STYLES = {"error": "bad", "warning": "warn", "info": "dim"}
TIERED = "tiered"
_MAX_EXPLAINED = 3
"""Maximum number of `explain` commands shown, one for each kind of finding."""


def structures(only: str | None, valid: Sequence[str]) -> frozenset[str] | None:
    """Return the names in the value of ``--only``. Raises: UsageError for a name that is not in
    ``valid``.
    """
    if only is None:
        return None
    names = frozenset(name.strip() for name in only.split(",") if name.strip())
    unknown = sorted(names - set(valid))
    if unknown or not names:
        raise UsageError(f"--only: unknown structure {', '.join(unknown) or only!r}; expected one "
                         f"or more of {', '.join(valid)}")
    return names


def show(out: Output, verdict: VerifyResult[C],
         covered: Callable[[VerifyResult[C]], Mapping[str, str]]) -> None:
    """Print the verdict in the chosen format. ``covered``: returns a human-readable description of
    what was checked.
    """
    if verdict.total > len(verdict.findings):
        out.warn(Phrase("{some} more findings counted but not listed (--limit)",
                        some=verdict.total - len(verdict.findings)))
    document = completed(verdict.as_dict())
    rows = document["findings"]
    out.listing(document, lambda page: show_page(page, verdict, covered), rows=rows,
                columns=COLUMNS)
    _conclude(out, verdict)


def _conclude(out: Output, verdict: VerifyResult[C]) -> None:
    out.conclude(*_first_line(verdict))


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a verdict's JSON object, with the user's layout options added to its commands."""
    for row in (document, *document["findings"]):
        complete(row)
    return document


def show_page(page: Human, verdict: VerifyResult[C],
              covered: Callable[[VerifyResult[C]], Mapping[str, str]]) -> None:
    """Show the verdict on one store or tier to people, with its findings and next commands."""
    page.text(*_first_line(verdict))
    if not verdict.ok and verdict.concerned:
        page.text(verdict.concerned)
    if verdict.findings:
        page.blank()
        show_findings(page, verdict.findings, lambda finding: _brief(finding, verdict.root), _BRIEF,
                      {"severity": _STYLES.get}, verdict.root)
        # The next step, and what the findings mean.
        named = dict.fromkeys(
            finding.category for finding in verdict.findings
            if finding.is_trouble or finding.category == "not-judged")
        steps = [typed.completed(verdict.next)] if verdict.next else []
        steps += [typed.completed(f"rmqctl explain {name}")
                  for name in islice(named, _MAX_EXPLAINED)]
        if steps:
            page.heading("What next")
            if verdict.next:
                page.text(look(verdict.root))
            page.text("\n".join(filter(None, steps)))
    page.heading("Coverage")
    page.pairs({**covered(verdict),
                "checked": ", ".join(str(row["structure"]) for row in verdict.checked)})
    if verdict.pieces is not None:
        page.text(Phrase("only {count:,} part of the log checked",
                         "only {count:,} parts of the log checked", count=verdict.pieces), "warn")


def _first_line(verdict: VerifyResult[C]) -> tuple[Phrase, str]:
    """Return (the verdict in one line, the style of this line)."""
    return (Phrase("{store}: {verdict}", store=verdict.root, verdict=_headline(verdict)),
            "bad" if not verdict.ok else "warn" if verdict.not_judged else "good")


def _headline(verdict: VerifyResult[C]) -> Phrase:
    findings = counted(verdict.troubles if not verdict.ok else verdict.in_baseline, "finding")
    if not verdict.ok:
        return findings if not verdict.in_baseline else Phrase(
            "{findings}, and {listed:,} in the baseline", findings=findings,
            listed=verdict.in_baseline)
    if verdict.not_judged:
        return Phrase("no damage found; not checked: {names}",
                      names=Joined(", ", verdict.not_judged))
    if verdict.in_baseline:
        return Phrase("no new damage found; {findings} in the baseline", findings=findings)
    return Phrase("no damage found")


def _brief(finding: Finding, root: str) -> dict[str, Any]:
    path = os.path.relpath(finding.file, root) if finding.file else finding.structure
    if path == os.curdir:  # a file that is checked by itself
        path = os.path.basename(root)
    if finding.category.startswith("tiered-") and finding.topic is not None:
        path = os.path.basename(path)  # the queue is named beside it
    where = path if finding.offset is None else f"{path} @{finding.offset}"
    queue = "" if finding.topic is None else f"{finding.topic}/{finding.queue_id}" + (
        f" #{finding.queue_offset}" if finding.queue_offset is not None else "")
    return {"severity": finding.severity, "category": finding.category, "where": where,
            "queue": queue, "detail": finding.detail}


def covered(verdict: VerifyResult[Coverage]) -> dict[str, str]:
    """Return a human-readable description of what was checked in a store."""
    from rmqctl.checks.losses import Losses

    # A line that is about loss appears only if something is lost.
    cover, lost = verdict.coverage, Losses().verified(verdict.coverage)
    pairs = {
        "messages": count_text(cover.messages),
        **({"undecided": Phrase("{count} (messages, or part of a damaged message's body)",
                                count=count_text(lost.in_log))} if lost.in_log else {}),
        **({"since repairs": Phrase("{count} (messages, and undecided records)",
                                      count=count_text(cover.messages_lost_in_repairs))}
           if cover.messages_lost_in_repairs else {}),
        **({"already lost": counted(verdict.already_lost, "message")}
           if verdict.already_lost else {}),
        "commitlog": Phrase(
            "{total} = {messages} messages + {blank} blank + {unused} unused + {damaged} damaged",
            total=size_text(cover.bytes_total), messages=size_text(cover.bytes_in_messages),
            blank=size_text(cover.bytes_blank), unused=size_text(cover.bytes_zero),
            damaged=size_text(cover.bytes_damaged)),
        "not verifiable": Phrase(
            "{size} of the messages: fields and properties without a checksum",
            size=size_text(cover.bytes_unverifiable)),
        "consume queue entries": count_text(cover.consumequeue_rows),
        "index entries": count_text(cover.index_entries),
    }
    # A store can be verified together with its tier.
    if verdict.tier is not None:
        pairs["tier"] = Phrase("{messages:,} messages in {queues:,} queues, {items:,} index "
                               "entries",
                               messages=verdict.tier["messages"], queues=verdict.tier["queues"],
                               items=verdict.tier["index_items"])
    return pairs


# -- several stores -------------------------------------------------------------------------------


def show_stores(out: Output, judged: Sequence[JudgedStore]) -> None:
    """Print the verdicts on several stores in the chosen format."""
    from rmqctl.checks.verify.judged import document

    for store in judged:
        if store.error is not None and len(judged) > 1:
            out.warn(_reason(store))
        elif store.verdict is not None and store.verdict.total > len(store.verdict.findings):
            more = store.verdict.total - len(store.verdict.findings)
            out.warn(Phrase("{store}: {some} more findings counted but not listed (--limit)",
                            store=store.root, some=more))
    verdicts = document(judged)
    for row in (*verdicts["findings"], *verdicts["stores"]):
        if "next" in row:
            complete(row)
    out.listing(verdicts, lambda page: _show_table(page, judged), columns=("store", *COLUMNS),
                rows=verdicts["findings"])
    if len(judged) == 1 and judged[0].verdict is not None:
        _conclude(out, judged[0].verdict)
    else:
        out.conclude(*_first_line_of(judged))


def _first_line_of(judged: Sequence[JudgedStore]) -> tuple[Phrase, str]:
    """Return (the verdict on several stores on one line, the style of that line)."""
    verdicts = [store.verdict for store in judged if store.verdict is not None]
    bad = sum(not verdict.ok for verdict in verdicts)
    partly = sum(verdict.ok and bool(verdict.not_judged) for verdict in verdicts)
    parts = [Phrase("{bad:,} of {stores:,} stores damaged", bad=bad, stores=len(judged))]
    if partly:
        parts.append(Phrase("{stores:,} partly checked", stores=partly))
    if len(verdicts) < len(judged):
        parts.append(Phrase("{stores:,} not checked", stores=len(judged) - len(verdicts)))
    return Joined(", ", parts), "bad" if bad or len(verdicts) < len(judged) else (
        "warn" if partly else "good")


def end_with(judged: Sequence[JudgedStore],
             fails: Callable[[VerifyResult[Coverage]], bool]) -> None:
    """Exit with an error code if a check failed:

    * the code for the first store that could not be checked
    * else 1 if ``fails`` is true for a verdict
    * else 3 if a store was only partly checked
    """
    failed = next((store.error for store in judged if store.error is not None), None)
    if failed is not None:
        if len(judged) == 1:
            raise failed
        raise typer.Exit(int(failed.exit_code))
    verdicts = [store.verdict for store in judged if store.verdict is not None]
    if any(map(fails, verdicts)):
        raise typer.Exit(int(ExitCode.FINDINGS))
    for verdict in verdicts:
        verdict.require_judged()


def _reason(store: JudgedStore) -> str:
    text = str(store.error)
    return text if store.root in text else f"{store.root}: {text}"


def _show_table(page: Human, judged: Sequence[JudgedStore]) -> None:
    from rmqctl.checks.verify.verdict import IN_BASELINE

    # One store gets its full page; several stores share a table.
    if len(judged) == 1 and judged[0].verdict is not None:
        show_page(page, judged[0].verdict, covered)
        return
    page.text(*_first_line_of(judged))
    page.blank()
    # A store that could not be opened keeps its row, so that none is forgotten.
    rows = []
    for store in judged:
        if store.verdict is None:
            rows.append({"store": store.root, "verdict": Phrase("not checked"),
                         "detail": str(store.error)})
            continue
        verdict, cover = store.verdict, store.verdict.coverage
        # Show the most frequent kinds of findings, or what was not judged.
        top = verdict.counts.most_common(3)
        text = Phrase("no damage") if verdict.ok else counted(verdict.troubles, "finding")
        if verdict.in_baseline:
            text = Phrase("{what} ({listed:,} in the baseline)", what=text,
                          listed=verdict.in_baseline)
        is_partial = verdict.ok and verdict.not_judged
        rows.append({
            "store": store.root,
            "verdict": Phrase("partly checked") if is_partial else text,
            "messages": count_text(cover.messages), "commitlog": size_text(cover.bytes_total),
            "damaged": size_text(cover.bytes_damaged),
            "detail": ", ".join(verdict.not_judged) if is_partial else ", ".join(
                f"{count} {name}" for (name, severity), count in top if severity != IN_BASELINE)})
    page.table(rows, ("store", "verdict", "messages", "commitlog", "damaged", "detail"),
               styles={"verdict": _style})
    # Suggest a separate look at each damaged store.
    bad = [store.root for store in judged if store.verdict is not None and not store.verdict.ok]
    if bad:
        page.heading("What next")
        page.text("\n".join(typed.other("verify", root) for root in bad[:6]))


def _style(verdict: str) -> str:
    return "good" if verdict.startswith("no damage") else (
        "warn" if verdict == "partly checked" else "bad")


# -- the tier in a store --------------------------------------------------------------------------


def without_tier(only: str | None) -> tuple[str | None, bool]:
    """Return (the value of ``--only`` without ``tiered``, whether to check the tier)."""
    if only is None:
        return None, True
    names = [name.strip() for name in only.split(",")]
    return ",".join(name for name in names if name != TIERED), TIERED in names


def with_tier(out: Output, store: Store, own: VerifyResult[Coverage], most: int, *,
              asked: bool, in_baseline: IsKnown | None = None) -> VerifyResult[Coverage]:
    """Check the tier in a store, if any, and add the results to ``own``, the verdict on the rest of
    the store. Return the complete verdict.

    * ``asked``: whether the user named the tier; then a missing tier is reported
    * ``in_baseline``: returns whether a finding is in the baseline
    """
    try:
        tier = _tier_in(store.root)
    except ModuleNotFoundError:
        if asked or has("tiered"):
            raise
        out.note(Phrase("the tier in the store is not checked: the extension rmqctl.ext.tiered is "
                        "not installed"))
        return own
    if tier is None:
        if asked:
            out.note(Phrase("this store contains no tier; `rmqctl tiered verify DIR --local "
                            "{store}` checks one elsewhere", store=store.root))
        return own
    from rmqctl.ext.tiered.verify.in_store import joined, size_of

    with tier, out.progress("verify the tier", size_of(tier)) as progress:
        return joined(own, tier, store, most, in_baseline, progress.advance)


def diagnosed_with_tier(out: Output, store: Store, diagnosis: Diagnosis) -> Diagnosis:
    """Check the tier in a store, if any, and return the diagnosis with the tier's findings."""
    from rmqctl.checks.doctor import MAX_LISTED

    own = diagnosis.findings
    return diagnosis.with_tier(
        with_tier(out, store, own, len(own.findings) + MAX_LISTED, asked=False))


def losses_of_tier(out: Output, store: Store) -> TierLosses:
    """Return the losses of the tier in a store (zero if the store has no tier). For commands that
    do not check the tier.
    """
    from rmqctl.checks.losses import TierLosses

    try:
        tier = _tier_in(store.root)
    except ModuleNotFoundError:
        if has("tiered"):
            raise
        tier = None
    if tier is None:
        return TierLosses()
    from rmqctl.ext.tiered.verify.in_store import losses, size_of

    with tier, out.progress("reading the tier", size_of(tier, index=False)) as progress:
        return losses(tier, store, progress.advance)


def _tier_in(root: str) -> Tier | None:
    """Open the tier in a store; return None if the store contains no tier. The extension for tiers
    is imported only if a folder's name suggests a tier.
    """
    from rmqctl.formats.tiered.names import promise_tier

    with suppress(OSError):
        if not promise_tier(vfs.listdir(root)):
            return None
    from rmqctl.ext.tiered.verify.in_store import tier_in

    return tier_in(root)
