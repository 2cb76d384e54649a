"""``rmqctl verify``: check the integrity of a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.cron_options import CronOptions
from rmqctl.commands.shared.options import (
    Jobs,
    ListedOut,
    MaxFindings,
    StoreOptions,
    Zone,
    worker_count,
)
from rmqctl.commands.shared.spark_options import MoreStores, SparkOptions, roots_named
from rmqctl.commands.shared.store_warnings import warn_if_held
from rmqctl.errors import ExitCode, RmqctlError, UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_percent, show_times_in
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.verify.baseline import Baseline
    from rmqctl.checks.verify.state import VerifiedEnd
    from rmqctl.checks.verify.verdict import VerifyResult
    from rmqctl.checks.verify.verify import Coverage, VerifyOptions
    from rmqctl.output import Output


def command(
    *,
    more: MoreStores = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="NAMES", help="Only (comma-separated) commitlog, consumequeue, index, "
                                        "checkpoint, config, timer, compaction, store, "
                                        "tiered.")] = None,
    sample: Annotated[float | None, typer.Option(
        "--sample", metavar="PERCENT", parser=parse_percent,
        help="Check only a random share, such as 10%.",
    )] = None,
    since_last: Annotated[bool, typer.Option(
        "--since-last", help="Check only what was added since the last clean run.")] = False,
    state: Annotated[str | None, typer.Option(
        "--state", metavar="FILE", help="State file of --since-last, outside the store (default: "
                                        "in the user's state folder).")] = None,
    seed: Annotated[int, typer.Option(
        "--seed", metavar="N", help="Seed for the random choice of --sample.")] = 0,
    max_findings: MaxFindings = 1000,
    spark: Annotated[SparkOptions, pick("engine master")],
    prometheus: Annotated[str | None, typer.Option(
        "--format-prometheus", metavar="FILE",
        help="Also write metrics to FILE for the textfile collector.")] = None,
    jobs: Jobs = 0,
    cron: CronOptions,
    store: StoreOptions,
    tz: Zone = UTC,
    out: ListedOut,
) -> None:
    """Check the integrity of a store, byte by byte.

    Checks every byte of the commitlog, consume queues and index against the log in both directions,
    checkpoint, configuration, timer and compaction files, file names and sizes. After damage the
    check continues at the next provable record. Exit code 1 if something is wrong (info findings do
    not count), 3 if part of the store is in an unsupported format or needs an extra. Each of
    several stores gets a verdict. STORE may also be the offsets.json of a broadcasting consumer.

        rmqctl verify /data/store
        rmqctl verify /data/store -o json --jobs 2
        rmqctl verify /data/store --since-last --format-prometheus /metrics/rmq.prom
        rmqctl verify '/data/*/store' --baseline known.json --quiet-if-ok --limit-rate 50MiB
    """
    from rmqctl.checks.verify.judged import JudgedStore
    from rmqctl.checks.verify.verify import STRUCTURES, VerifyOptions
    from rmqctl.commands.shared.verifying import (
        covered,
        end_with,
        show,
        show_stores,
        structures,
        without_tier,
    )

    show_times_in(tz)
    # Determine what to check; refuse options that cannot be combined.
    only, tiered = without_tier(only)
    options = VerifyOptions(frozenset() if only == "" and tiered else structures(only, STRUCTURES),
                      worker_count(jobs), sample=sample, seed=seed)
    if sample is not None and since_last:
        raise UsageError("--sample and --since-last are mutually exclusive")
    if spark.engine == "spark" and (sample is not None or since_last):
        raise UsageError("--sample and --since-last require --engine local")
    if sample is not None or since_last:
        spark = replace(spark, engine="local")
    cron.check(since_last=since_last)
    if cron.limit_rate is not None:
        options.jobs = 1
    roots = roots_named(store.root, more)
    if len(roots) == 1 and os.path.isfile(roots[0]) and _file(
            out, roots[0], max_findings, cron.fail_on,
            given=only is not None or sample is not None or since_last or any(
                (prometheus, cron.baseline))):
        return
    if len(roots) > 1 and state is not None:
        raise UsageError("--state cannot be used with several stores: each has its own state file")
    # Check one store after the other.
    check = _StoreCheck(options, max_findings, spark, cron, out, state if since_last else None,
                        since_last, tiered, tier_asked=tiered and only is not None,
                        named=len(roots) > 1)
    judged = []
    for root in roots:
        _outside(root, {"--format-prometheus": prometheus, "--baseline": cron.baseline})
        try:
            judged.append(JudgedStore(root, check.of(replace(store, root=root))))
        except RmqctlError as error:
            if len(roots) == 1 or error.exit_code == ExitCode.USAGE:
                raise
            judged.append(JudgedStore(root, None, error))
    # Save the state before showing the result, because the reader of the output may exit.
    cron.settle(out, check.baselines)
    if not cron.quiet_if_ok or any(
            verdict is None or verdict.fails(cron.fail_on) or verdict.not_judged
            for verdict in (result.verdict for result in judged)):
        if len(roots) == 1 and judged[0].verdict is not None:
            show(out, judged[0].verdict, covered)
        else:
            show_stores(out, judged)
    check.keep_places()
    if prometheus is not None:
        _metrics(prometheus, [result.verdict for result in judged if result.verdict is not None])
    end_with(judged, lambda verdict: verdict.fails(cron.fail_on))


def _file(out: Output, path: str, most: int, fail_on: str, *, given: bool) -> bool:
    """Check a single file; return False if files of this kind can only be checked in a store."""
    from rmqctl.checks.verify.client_offsets import covered, verdict_of
    from rmqctl.commands.shared.verifying import show

    verdict = verdict_of(path, most)
    if verdict is None:
        return False
    if given:
        raise UsageError(f"{path}: a single file is always checked completely; --only, --sample, "
                         "--since-last, --baseline and --format-prometheus require a store")
    show(out, verdict, covered)
    if verdict.fails(fail_on):
        raise typer.Exit(int(ExitCode.FINDINGS))
    return True


@dataclass
class _StoreCheck:
    """The checks of all stores.

    ``named``: whether notes name the store, because there are several.
    ``tiered``: whether to check a tier in the store.
    ``tier_asked``: whether the user named the tier.
    ``baselines``: the baselines of the stores that have been checked.
    """

    options: VerifyOptions
    max_findings: int
    spark: SparkOptions
    cron: CronOptions
    out: Output
    state: str | None
    since_last: bool
    tiered: bool
    tier_asked: bool
    named: bool
    baselines: list[Baseline] = field(default_factory=list)
    _places: list[Callable[[], None]] = field(default_factory=list)

    def of(self, store: StoreOptions) -> VerifyResult[Coverage]:
        """Check a store; return the verdict. Raises: NotAStoreError, StoreIOError, UsageError."""
        from rmqctl.checks.preflight.missing import missing
        from rmqctl.checks.verify import state as states
        from rmqctl.checks.verify.verdict import verdict
        from rmqctl.checks.verify.verify import Verification
        from rmqctl.commands.shared.verifying import with_tier
        from rmqctl.store.log.ranges import Threads

        out, options = self.out, replace(self.options)
        name = store.root if self.named else None
        with store.open() as opened:
            baseline = self.cron.accepted(opened.root, store.root if self.named else None)
            in_baseline = None if baseline is None else baseline.knows
            # Find where the last run ended.
            before: VerifiedEnd | None = None
            place = self.state or states.default_path(opened.root)
            if self.since_last:
                _outside(opened.root, {"--state": place})
                before = states.load(place, opened.root)
                if before is None:
                    out.note(_of(name, Phrase("no earlier run found: checking everything")))
                elif before.holds(opened):
                    options.since = before.position
                    out.note(_of(name, Phrase("checking from physical offset {offset} on",
                                              offset=options.since)))
                else:
                    before = None
                    out.warn(_of(name, Phrase(
                        "this is not the log that the last run checked: checking everything")))
            # Run the checks.
            warn_if_held(out, opened.lock, name or Phrase("the store"))
            size = opened.log.size if opened.layout.reads("commitlog") else 0
            with (self.spark.pool(out, size, options.jobs) as pool,
                  out.progress(f"verify {name}" if name else "verify", size) as progress):
                run = Verification(opened, options, self.cron.slowed(out, progress.advance),
                                   phase=progress.phase)
                if not isinstance(pool, Threads):
                    run.pool, run.progress = pool, None
                result = verdict(run, self.max_findings, in_baseline)
            if self._is_whole:
                result = replace(result, already_lost=missing(
                    opened, damaged=not run.ok, seen=run.seen).counted)
            # Check the tier of the store, and record what the next run can skip.
            if self.tiered and (self.tier_asked or not (self.options.sample is not None
                                                        or self.since_last)):
                result = with_tier(out, opened, result, self.max_findings, asked=self.tier_asked,
                                   in_baseline=in_baseline)
            if self.since_last:
                self._places.append(partial(states.save, place, opened.root, states.next_place(
                    before, result.findings, ok=run.settled, log_end=run.log_end,
                    last_record=run.last_record)))
        if baseline is not None:
            self.baselines.append(baseline)
        return replace(result, root=store.root) if self.named else result

    @property
    def _is_whole(self) -> bool:
        """Return whether the entire store is checked, at full speed. Messages that are already lost
        are counted only in this case.
        """
        options = self.options
        return (options.only is None and options.sample is None and not self.since_last
                and self.cron.limit_rate is None)

    def keep_places(self) -> None:
        """Save for each store where the next run with ``--since-last`` continues."""
        for keep in self._places:
            keep()


def _of(store: str | None, text: Phrase) -> Phrase:
    """Return ``text``, preceded by the store's name unless ``store`` is None."""
    return text if store is None else Phrase("{what}: {why}", what=store, why=text)


def _outside(root: str, files: dict[str, str | None]) -> None:
    """Raise UsageError if an output file is inside the store, to which `verify` never writes."""
    from rmqctl.files.named import refuse_link_of_others

    real = os.path.realpath(root)
    for option, file in files.items():
        if file is not None:
            refuse_link_of_others(file, itself=False)  # a link there is replaced by the file
        if file is not None and os.path.commonpath([real, os.path.realpath(file)]) == real:
            raise UsageError(f"{option} {file}: is inside the store, which verify does not write "
                             "to")


def _metrics(path: str, verdicts: Sequence[VerifyResult[Coverage]]) -> None:
    import time

    from rmqctl.files.durable import replace_file
    from rmqctl.output.prometheus import Metric, exposition

    # Every metric has one sample per store, with the store as a label.
    kinds = ("messages", "blank", "zero", "damaged")
    labels = [{"store": verdict.root} for verdict in verdicts]
    covers = [verdict.coverage for verdict in verdicts]
    text = exposition([
        Metric("rmqctl_verify_ok", "1 if nothing is wrong.",
               [(store, verdict.ok) for store, verdict in zip(labels, verdicts, strict=True)]),
        Metric("rmqctl_verify_findings", "Findings by category and severity.",
               [({**store, "category": category, "severity": severity}, count)
                for store, verdict in zip(labels, verdicts, strict=True)
                for (category, severity), count in sorted(verdict.counts.items())]),
        Metric("rmqctl_verify_messages", "Intact messages.",
               [(store, cover.messages) for store, cover in zip(labels, covers, strict=True)]),
        Metric("rmqctl_verify_bytes", "Commitlog bytes by content.",
               [({**store, "kind": kind}, value)
                for store, cover in zip(labels, covers, strict=True)
                for kind, value in zip(kinds, (
                    cover.bytes_in_messages, cover.bytes_blank, cover.bytes_zero,
                    cover.bytes_damaged), strict=True)]),
        Metric("rmqctl_verify_timestamp_seconds", "End time of this run.",
               [(store, time.time()) for store in labels]),
    ])
    # The temporary name does not end in .prom, so the collector never reads it.
    replace_file(path, text, doing="write")
