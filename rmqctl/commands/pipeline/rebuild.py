"""``rmqctl pipeline rebuild``: rebuild consume queues and index from the log on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions, parts_of
from rmqctl.commands.shared.engine_options import REBUILD, EngineOptions
from rmqctl.commands.shared.options import (
    Form,
    Jobs,
    LayoutOptions,
    ListedOut,
    Queue,
    Topic,
    with_form,
    worker_count,
)
from rmqctl.commands.shared.plan_page import Proposal
from rmqctl.commands.shared.spark_options import SparkOptions, Stores, named_stores
from rmqctl.errors import RmqctlError, UsageError

if TYPE_CHECKING:
    from rmqctl.output import Human, Output
    from rmqctl.repair.recover import RecoverOptions
    from rmqctl.repair.scratch import Scratch
    from rmqctl.store.log.ranges import Pool

_STRUCTURES = ("consumequeue", "index")
_SCRATCH = "pipeline-rebuild"


def command(
    *,
    stores: Stores = None,
    only: Annotated[str | None, typer.Option(
        "--only", metavar="PARTS", parser=parts_of(_STRUCTURES),
        help="consumequeue or index (default: both).")] = None,
    topic: Topic = None,
    queue: Queue = None,
    apply: ApplyOptions,
    spark: Annotated[SparkOptions, pick("engine master conf partitions spark_log",
                                        engine="spark")],
    scratch: Annotated[str | None, typer.Option(
        "--scratch", metavar="FOLDER", rich_help_panel="Spark",
        help="Folder, visible to all workers, for the files of a plan; --apply creates them below "
             "each store.")] = None,
    jobs: Jobs = 0,
    consumequeue: Form = None,
    settings: Annotated[EngineOptions, pick(REBUILD)],
    layout: LayoutOptions,
    out: ListedOut,
) -> None:
    """Rebuild consume queues and index from the log, where they differ.

    Shows the plan; --apply carries it out. Does the same as `rmqctl recover --only
    consumequeue,index` for many stores on a cluster; the result does not depend on the number of
    partitions. The log is not changed, and damage in it is skipped (`rmqctl recover` repairs it).
    Replaced files are kept for `rmqctl undo`. A failing store does not stop the others; the exit
    code is that of the first failure.

        rmqctl pipeline rebuild STORE
        rmqctl pipeline rebuild '/backup/*/store' --apply --yes -o json
        rmqctl pipeline rebuild STORE --apply --master spark://host:7077
    """
    from rmqctl.ext.spark.rebuild.rebuild import log_bytes
    from rmqctl.ext.spark.verify import total_size
    from rmqctl.repair.recover import RecoverOptions

    _refuse(only, topic, queue, apply=apply.apply, scratch=scratch)
    parts = only.split(",") if only else (["consumequeue"] if topic else list(_STRUCTURES))
    count = worker_count(jobs)
    wishes = RecoverOptions(
        frozenset(parts), topic, queue, jobs=count, commitlog_dirs=layout.folders,
        sizes=with_form(layout.sizes, consumequeue),
        given=layout.over_conf(settings.given(REBUILD)), form=consumequeue)
    roots = named_stores(stores)
    total = total_size(roots, lambda root: log_bytes(root, wishes))
    with spark.pool(out, total, count) as pool:
        run = _Rebuild(out, pool, wishes, spark.partitions, scratch, apply)
        if len(roots) == 1:
            run.of_store(out, roots[0])
            return
        failed = run.of_stores(roots)
    if failed is not None:
        raise typer.Exit(int(failed.exit_code))


def _refuse(only: str | None, topic: str | None, queue: int | None, *, apply: bool,
            scratch: str | None) -> None:
    if queue is not None and topic is None:
        raise UsageError("--queue requires --topic")
    if topic is not None and only not in (None, "consumequeue"):
        raise UsageError("--topic requires --only consumequeue")
    if scratch is not None and apply:
        raise UsageError("--scratch cannot be combined with --apply, which creates the files below "
                         "the store")
    if scratch is not None:
        from rmqctl.store.inside_store import refuse_in_store

        refuse_in_store(scratch, f"--scratch {scratch}")


class _Rebuild:
    """The rebuild of one or several stores, one after the other."""

    def __init__(self, out: Output, pool: Pool, wishes: RecoverOptions, partitions: int | None,
                 scratch: str | None, apply: ApplyOptions) -> None:
        self._out, self._pool, self._wishes = out, pool, wishes
        self._partitions, self._scratch, self._apply = partitions, scratch, apply

    def of_store(self, out: Output, root: str) -> None:
        """Show or apply the plan for a store."""
        from rmqctl.commands.shared import applying

        applying.run(out, root, _SCRATCH, lambda scratch: self._propose(root, scratch),
                     self._apply, scratch_above=self._scratch, writes=self._wishes.writes,
                     made_anew=True, folders=self._wishes.commitlog_dirs)

    def of_stores(self, roots: list[str]) -> RmqctlError | None:
        """Rebuild each store and print one document for all. Return the first error, or None."""
        first: RmqctlError | None = None
        shown: list[dict[str, Any]] = []
        for root in roots:
            gathered = _CollectedOutput(self._out, root, shown)
            try:
                self.of_store(cast("Output", gathered), root)
            except UsageError:
                raise
            except RmqctlError as error:
                first = first or error
                text = str(error)
                self._out.warn(text if root in text else f"{root}: {text}")
                shown.append({"store": root, "error": text})
        if self._out.streams and not self._out.is_flat:
            self._out.rows(shown)
        elif self._out.is_data:
            self._out.document({"stores": shown})
        return first

    def _propose(self, root: str, scratch: Scratch) -> Proposal:
        from rmqctl.commands.shared import applying
        from rmqctl.ext.spark.rebuild.rebuild import plan_rebuild

        plan = plan_rebuild(root, scratch, self._wishes, self._watch, self._pool,
                            partitions=self._partitions)
        return applying.asking_for_form(Proposal(plan))

    @contextmanager
    def _watch(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        from rmqctl.store.log.ranges import Threads

        if not isinstance(self._pool, Threads):  # Spark's own progress is shown
            yield lambda _: None
            return
        with self._out.watch(label, total) as advance:
            yield advance


class _CollectedOutput:
    """An output for one of several stores.

    It collects JSON documents, to be printed together, or shows each page under a heading that
    names the store.
    """

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
