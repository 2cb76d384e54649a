"""``rmqctl pipeline rebuild``: consumequeues and index made anew from the log, on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rmqctl.commands.shared.applying import Apply, DryRun, Yes
from rmqctl.commands.shared.engine_options import (
    BatchConsumequeueFileSize,
    BrokerVersion,
    ConsumequeueExt,
    ConsumequeueExtFileSize,
    DelayLevels,
    Lmq,
    MultiDispatch,
)
from rmqctl.commands.shared.options import (
    CommitlogDirs,
    CommitlogFileSize,
    ConsumequeueFileSize,
    IndexMax,
    IndexSlots,
    Jobs,
    NoProgress,
    OutputFormat,
    Queue,
    Quiet,
    Topic,
    Verbose,
    open_output,
    worker_count,
)
from rmqctl.commands.shared.pipeline_options import (
    Conf,
    Engine,
    Master,
    Partitions,
    SparkLog,
    Stores,
    named_stores,
    opened_pool,
)
from rmqctl.errors import RmqctlError, UsageError

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.repair.plan import Plan
    from rmqctl.repair.recover import Wishes
    from rmqctl.repair.scratch import Scratch
    from rmqctl.store.log.ranges import Pool

NAME = ("pipeline", "rebuild")
EFFECT = "mutates"

_STRUCTURES = ("consumequeue", "index")
_TITLE = "pipeline rebuild"
_SCRATCH = "pipeline-rebuild"


def parse_only(text: str) -> str:
    """``consumequeue,index``: one of the two or both."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    unknown = [one for one in found if one not in _STRUCTURES]
    if unknown or not found:
        raise UsageError(f"--only {text!r}: choose from {', '.join(_STRUCTURES)}")
    return ",".join(found)


def command(
    stores: Stores = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="PARTS", parser=parse_only,
                     help="consumequeue or index; both without it."),
    ] = None,
    topic: Topic = None,
    queue: Queue = None,
    apply: Apply = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    engine: Engine = "spark",
    master: Master = "local[*]",
    conf: Conf = None,
    partitions: Partitions = None,
    spark_log: SparkLog = None,
    scratch: Annotated[
        str | None,
        typer.Option(
            "--scratch", metavar="FOLDER", rich_help_panel="Spark",
            help="Where a plan that is only shown is made: a folder that all workers of a cluster "
            "see. With --apply it is made below each store.",
        ),
    ] = None,
    jobs: Jobs = 0,
    broker_version: BrokerVersion = None,
    consumequeue_ext: ConsumequeueExt = None,
    lmq: Lmq = None,
    multi_dispatch: MultiDispatch = None,
    delay_levels: DelayLevels = None,
    consumequeue_ext_file_size: ConsumequeueExtFileSize = None,
    batch_consumequeue_file_size: BatchConsumequeueFileSize = None,
    commitlog_dirs: CommitlogDirs = None,
    commitlog_file_size: CommitlogFileSize = None,
    consumequeue_file_size: ConsumequeueFileSize = None,
    index_slots: IndexSlots = None,
    index_max: IndexMax = None,
    output: OutputFormat = None,
    quiet: Quiet = 0,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> None:
    """Make consumequeues and index anew from the log, where they differ from it: shows the plan,
    and with --apply carries it out.

    The same as `rmqctl recover --only consumequeue,index`, for many stores and on a cluster:
    workers read ranges of the log, then write the queues and the index, which come out byte for
    byte the same for any number of ranges. The log itself stays as it is; damage in it is passed
    over (`rmqctl recover` mends it). Nothing is deleted: what is replaced is kept, and `rmqctl
    undo` brings it back. A store that fails does not stop the others; the exit code is that of
    the first one that did.

        rmqctl pipeline rebuild STORE

        rmqctl pipeline rebuild '/backup/*/store' --apply --yes -o json

        rmqctl pipeline rebuild STORE --apply --master spark://host:7077
    """
    from rmqctl.repair.recover import Wishes
    from rmqctl.store import Sizes

    out = open_output(output, quiet, verbose, no_progress)
    _refuse(only, topic, queue, apply=apply, scratch=scratch)
    parts = only.split(",") if only else (["consumequeue"] if topic else list(_STRUCTURES))
    given = {
        "version": broker_version, "consumequeue_ext": consumequeue_ext, "lmq": lmq,
        "multi_dispatch": multi_dispatch, "message_delay_level": delay_levels,
        "commitlog_file_size": commitlog_file_size,
        "consumequeue_file_size": consumequeue_file_size,
        "consumequeue_ext_file_size": consumequeue_ext_file_size,
        "batch_consumequeue_file_size": batch_consumequeue_file_size,
        "index_slots": index_slots, "index_max": index_max,
    }
    count = worker_count(jobs)
    wishes = Wishes(
        frozenset(parts), topic, queue, jobs=count, commitlog_dirs=tuple(commitlog_dirs or ()),
        sizes=Sizes(commitlog_file_size, consumequeue_file_size, index_slots, index_max),
        given=given)
    roots = named_stores(stores)
    total = _total(roots, wishes)
    with opened_pool(out, engine, total, jobs=count, master=master, conf=conf,
                     log=spark_log) as pool:
        run = _Run(out, pool, wishes, partitions, scratch, apply=apply, yes=yes, dry_run=dry_run)
        if len(roots) == 1:
            run.one(out, roots[0])
            return
        failed = run.several(roots)
    if failed is not None:
        raise typer.Exit(int(failed.exit_code))


def _refuse(only: str | None, topic: str | None, queue: int | None, *, apply: bool,
            scratch: str | None) -> None:
    if queue is not None and topic is None:
        raise UsageError("--queue needs --topic")
    if topic is not None and only not in (None, "consumequeue"):
        raise UsageError("--topic goes with --only consumequeue")
    if scratch is not None and apply:
        raise UsageError("--scratch is for a plan that is only shown: with --apply the files are "
                         "made below the store")
    if scratch is not None:
        from rmqctl.store.inside_store import refuse_in_store

        refuse_in_store(scratch, f"--scratch {scratch}")


def _total(roots: list[str], wishes: Wishes) -> int:
    """Bytes of log of all stores; a store that cannot be opened fails later, by itself."""
    total = 0
    for root in roots:
        try:
            total += _log_bytes(root, wishes)
        except RmqctlError:
            if len(roots) == 1:
                raise
    return total


def _log_bytes(root: str, wishes: Wishes) -> int:
    from rmqctl.store import Store

    with Store.open(root, wishes.commitlog_dirs, wishes.sizes) as store:
        return sum(one.size for one in store.log.files)


class _Run:
    """The same for one store after the other."""

    def __init__(self, out: Output, pool: Pool, wishes: Wishes, partitions: int | None,
                 scratch: str | None, *, apply: bool, yes: bool, dry_run: bool) -> None:
        self._out, self._pool, self._wishes = out, pool, wishes
        self._partitions, self._scratch = partitions, scratch
        self._apply, self._yes, self._dry_run = apply, yes, dry_run

    def one(self, out: Output, root: str) -> None:
        """Shows or carries out the plan for a store."""
        from rmqctl.commands.shared import applying

        applying.run(out, root, _SCRATCH, lambda scratch: self._plan(root, scratch),
                     apply=self._apply, yes=self._yes, dry_run=self._dry_run,
                     scratch_above=self._scratch)

    def several(self, roots: list[str]) -> RmqctlError | None:
        """The same for each; one document for all. The first failure."""
        first: RmqctlError | None = None
        shown: list[dict[str, Any]] = []
        for root in roots:
            gathered = _OneOfMany(self._out, root, shown)
            try:
                self.one(cast("Output", gathered), root)
            except UsageError:
                raise
            except RmqctlError as error:
                first = first or error
                text = str(error)
                self._out.warn(text if root in text else f"{root}: {text}")
                shown.append({"store": root, "error": text})
        if self._out.format == "jsonl":
            self._out.rows(shown)
        elif self._out.is_data:
            self._out.document({"stores": shown})
        return first

    def _plan(self, root: str, scratch: Scratch) -> Plan:
        from rmqctl.pipeline.rebuild.rebuild import plan_rebuild

        size = None
        if self._partitions is not None:
            size = max(1, -(-_log_bytes(root, self._wishes) // self._partitions))
        return plan_rebuild(root, scratch, self._wishes, self._watch, self._pool, range_size=size)

    @contextmanager
    def _watch(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        from rmqctl.store.log.ranges import Processes

        if not isinstance(self._pool, Processes):  # Spark's own progress is shown
            yield lambda _: None
            return
        with self._out.progress(label, total) as progress:
            yield progress.advance


class _OneOfMany:
    """An output whose documents are kept for one that comes at the end, or get a heading."""

    def __init__(self, out: Output, root: str, shown: list[dict[str, Any]]) -> None:
        self._out, self._root, self._shown = out, root, shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def document(self, document: Mapping[str, Any],
                 human: Callable[[Human], None] | None = None) -> None:
        if self._out.is_data:
            self._shown.append({"store": self._root, **document})
            return

        def page(shown: Human) -> None:
            shown.heading(self._root)
            if human is not None:
                human(shown)

        self._out.document(document, page)
