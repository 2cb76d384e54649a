"""``rmqctl verify``: everything of a store that can be checked."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.cron_options import CronOptions
from rmqctl.commands.shared.options import Jobs, MaxFindings, Out, StoreOptions, Zone, worker_count
from rmqctl.commands.shared.spark_options import SparkOptions
from rmqctl.commands.shared.store_warnings import warn_if_held
from rmqctl.errors import ExitCode, UsageError
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import parse_percent, show_times_in

if TYPE_CHECKING:
    from rmqctl.checks.verify.state import Place
    from rmqctl.checks.verify.verdict import Verdict
    from rmqctl.checks.verify.verify import Coverage


def command(
    *,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="NAMES", help="Check these structures only, comma-separated: "
        "commitlog, consumequeue, index, checkpoint, config, timer, compaction, store, tiered (a "
        "tier that lies in the store).")] = None,
    sample: Annotated[float | None, typer.Option(
        "--sample", metavar="PERCENT", parser=parse_percent, help="Look at a share only: 10%.",
    )] = None,
    since_last: Annotated[bool, typer.Option(
        "--since-last", help="Go on where the last run with this option found all well.")] = False,
    state: Annotated[str | None, typer.Option(
        "--state", metavar="FILE", help="Where --since-last keeps its place (outside the store; "
        "default: below the user's state folder).")] = None,
    seed: Annotated[int, typer.Option(
        "--seed", metavar="N", help="Which pieces --sample picks.")] = 0,
    max_findings: MaxFindings = 1000,
    spark: Annotated[SparkOptions, pick("engine master")],
    prometheus: Annotated[str | None, typer.Option(
        "--format-prometheus", metavar="FILE", help="Also write metrics for the textfile "
        "collector.")] = None,
    jobs: Jobs = 0,
    cron: CronOptions,
    store: StoreOptions,
    tz: Zone = UTC,
    out: Out,
) -> None:
    """Check everything of a store that can be checked, byte by byte.

    Every byte of the commitlog is looked at: frames, CRCs, physical offsets. Consumequeues and
    index are held against the log in both directions; checkpoint, configuration, timer and
    compaction files, names and sizes of all files are checked too. After damage the walk finds
    its way again: a flipped bit costs one record. What a store of this kind cannot prove is
    counted as not verifiable. Exit code 1 when something is wrong; info findings do not count.
    Exit code 3 when all that can be judged is sound, but a part lies in a form that is not read
    (RocksDB, DLedger).

        rmqctl verify /data/store
        rmqctl verify /data/store -o json --jobs 2
        rmqctl verify /data/store --since-last --format-prometheus /metrics/rmq.prom
        rmqctl verify /data/store --baseline known.json --quiet-if-ok --limit-rate 50MiB
    """
    from rmqctl.checks.verify import state as states
    from rmqctl.checks.verify.verdict import verdict
    from rmqctl.checks.verify.verify import STRUCTURES, Verification, VerifyOptions
    from rmqctl.commands.shared.verifying import show, structures, with_tier, without_tier
    from rmqctl.store.log.ranges import Threads

    show_times_in(tz)
    # What to check, and combinations that cannot be.
    only, tiered = without_tier(only)
    options = VerifyOptions(frozenset() if only == "" and tiered else structures(only, STRUCTURES),
                      worker_count(jobs), sample=sample, seed=seed)
    if sample is not None and since_last:
        raise UsageError("--sample and --since-last cannot be used together: the one looks at "
                         "pieces of everything, the other at all that is new")
    if spark.engine == "spark" and (sample is not None or since_last):
        raise UsageError("--sample and --since-last look at parts: that is the local engine's")
    cron.check(since_last=since_last)
    if cron.limit_rate is not None:
        options.jobs = 1
    with store.open() as opened:
        place = state or states.default_path(opened.root)
        _outside(opened.root, {"--format-prometheus": prometheus, "--baseline": cron.baseline,
                               "--state": place if since_last else None})
        baseline = cron.known(opened.root)
        known = None if baseline is None else baseline.knows
        # Where the last run ended.
        before: Place | None = None
        if since_last:
            before = states.load(place, opened.root)
            if before is None:
                out.note("no earlier run is known: checking everything")
            elif before.holds(opened):
                options.since = before.position
                out.note(f"from physical offset {options.since} on")
            else:
                before = None
                out.warn("the log is not the one of the last run: checking everything")
        # The checks.
        warn_if_held(out, opened.lock, "the store")
        size = opened.log.size if opened.layout.reads("commitlog") else 0
        if sample is not None or since_last:
            spark = replace(spark, engine="local")
        with spark.pool(out, size, options.jobs) as pool, out.progress("verify", size) as progress:
            run = Verification(opened, options, cron.slowed(out, progress.advance))
            if not isinstance(pool, Threads):
                run.pool, run.progress = pool, None
            result = verdict(run, max_findings, known)
        # The tier beside the store, then what to show and to keep for the next run.
        if tiered and (only is not None or (sample is None and not since_last)):
            result = with_tier(out, opened, result, max_findings, asked=only is not None,
                               known=known)
        fails = result.fails(cron.fail_on)
        if baseline is not None:  # first: whoever reads what is shown may go away
            cron.settle(out, baseline)
        if fails or result.not_judged or not cron.quiet_if_ok:
            show(out, result, covered)
        if since_last:
            states.save(place, opened.root, states.next_place(
                before, result.findings, ok=run.settled, log_end=run.log_end,
                last_record=run.last_record))
        if prometheus is not None:
            _metrics(prometheus, result)
    if fails:
        raise typer.Exit(int(ExitCode.FINDINGS))
    result.require_judged()


def _outside(root: str, files: dict[str, str | None]) -> None:
    """Refuses to write into the store: this command is read-only, wherever its files should go."""
    import os

    real = os.path.realpath(root)
    for option, file in files.items():
        if file is not None and os.path.commonpath([real, os.path.realpath(file)]) == real:
            raise UsageError(f"{option} {file}: lies in the store, which verify does not write to")


def covered(verdict: Verdict[Coverage]) -> dict[str, str]:
    """What was covered of a store, for people."""
    cover = verdict.coverage
    pairs = {
        "messages": count_text(cover.messages),
        "commitlog": f"{size_text(cover.bytes_total)} = {size_text(cover.bytes_in_messages)} "
                     f"messages + {size_text(cover.bytes_blank)} blank + "
                     f"{size_text(cover.bytes_zero)} unused + "
                     f"{size_text(cover.bytes_damaged)} damaged",
        "not verifiable": f"{size_text(cover.bytes_unverifiable)} of the messages: fields and "
                          "properties no checksum covers",
        "consumequeue rows": count_text(cover.consumequeue_rows),
        "index entries": count_text(cover.index_entries),
    }
    if verdict.tier is not None:
        pairs["tier"] = (f"{count_text(verdict.tier['messages'])} messages in "
                         f"{count_text(verdict.tier['queues'])} queues, "
                         f"{count_text(verdict.tier['index_items'])} index items")
    return pairs


def _metrics(path: str, verdict: Verdict[Coverage]) -> None:
    import time

    from rmqctl.files.durable import replace_file
    from rmqctl.output.prometheus import Metric, exposition

    store = {"store": verdict.root}
    cover = verdict.coverage.as_dict()
    text = exposition([
        Metric("rmqctl_verify_ok", "1 when nothing wrong was found.", "gauge",
               [(store, float(verdict.ok))]),
        Metric("rmqctl_verify_findings", "Findings by category and severity.", "gauge",
               [({**store, "category": category, "severity": severity}, float(count))
                for (category, severity), count in sorted(verdict.counts.items())]),
        Metric("rmqctl_verify_messages", "Intact messages.", "gauge",
               [(store, float(cover["messages"]))]),
        Metric("rmqctl_verify_bytes", "Commitlog bytes by what they are.", "gauge",
               [({**store, "kind": name.removeprefix("bytes_").removeprefix("in_")},
                 float(cover[name])) for name in (
                     "bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged")]),
        Metric("rmqctl_verify_timestamp_seconds", "When this run ended.", "gauge",
               [(store, time.time())]),
    ])
    # The temporary name does not end in .prom, so the collector never reads it.
    replace_file(path, text.encode("utf-8", "backslashreplace"), doing="write")
