"""Options that the commands of the pipeline share, and the pool they work with."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.shared.options import STORE_VARIABLE, complete_folders
from rmqctl.errors import NotAStoreError, UsageError
from rmqctl.tiered.files.reader import is_url

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.output.progress import Progress
    from rmqctl.store.log.ranges import Pool

_SPARK = "Spark"
EngineName = Literal["auto", "local", "spark"]
AUTO_FROM = 64 << 30
"""Bytes of log from which on `auto` takes a cluster that was named."""

Stores = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="STORE",
        help="Store roots; a pattern such as '/backup/*/store' names all that match. Default: "
        "RMQCTL_STORE.",
        autocompletion=complete_folders,
        show_default=False,
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark works: local[*] is this machine; spark://HOST:PORT, yarn or k8s://URL "
        "an existing cluster, whose workers see the stores under the same paths.",
        rich_help_panel=_SPARK,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A setting of Spark's own; repeatable.",
        rich_help_panel=_SPARK,
    ),
]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="N",
        min=1,
        help="Ranges to cut the log of each store into, instead of what suits its size.",
        rich_help_panel=_SPARK,
    ),
]
SparkLog = Annotated[
    str | None,
    typer.Option(
        "--spark-log",
        metavar="FILE",
        help="Keep Spark's own messages here; otherwise they are kept when something fails.",
        rich_help_panel=_SPARK,
    ),
]
Engine = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="What does the work: processes of this machine (local), Spark, or what is faster "
        "for so many bytes (auto, which says why).",
        rich_help_panel=_SPARK,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Only show what would be read, in which pieces."),
]


def named_stores(names: list[str] | None) -> list[str]:
    """The store roots that arguments name, patterns expanded, each once, in order."""
    if not names:
        one = os.environ.get(STORE_VARIABLE)
        if not one:
            raise UsageError(f"Missing argument 'STORE': name a store, or set {STORE_VARIABLE}")
        names = [one]
    found: dict[str, None] = {}
    for name in names:
        if is_url(name):  # of a tier; whoever reads stores says that there is none
            found[name] = None
            continue
        if os.path.lexists(name) or not glob.has_magic(name):
            found[os.path.normpath(name)] = None
            continue
        matches = sorted(one for one in glob.glob(name) if os.path.isdir(one))
        if not matches:
            raise NotAStoreError(f"{name}: no folder matches")
        found |= dict.fromkeys(map(os.path.normpath, matches))
    return list(found)


def conf_of(given: list[str] | None) -> dict[str, str]:
    """Spark's settings from ``NAME=VALUE`` texts."""
    found = {}
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise UsageError(f"--conf {one}: not NAME=VALUE")
        found[name] = value
    return found


def chosen_engine(engine: EngineName | None, master: str, size: int) -> tuple[
        Literal["local", "spark"], str]:
    """(engine, why) for so many bytes of log; None is auto."""
    from rmqctl.output.units import size_text

    if engine is not None and engine != "auto":
        return engine, "asked for"
    if master.startswith("local"):
        return "local", "on one machine it is always the faster one (Spark first has to start)"
    if size < AUTO_FROM:
        return "local", (f"{size_text(size)} of log is less than {size_text(AUTO_FROM)}, from "
                         "which on a cluster is faster")
    return "spark", f"{size_text(size)} of log and a cluster to read it"


@contextmanager
def spark_session(out: Output, master: str, conf: list[str] | None, log: str | None) -> Iterator[
        Any]:
    """A Spark session for a command; that it starts is said to people who wait."""
    from rmqctl.pipeline.session import session
    from rmqctl.store.inside_store import refuse_in_store

    if log is not None:
        refuse_in_store(log, f"--spark-log {log}")
    with out.progress(f"starting Spark ({master})", None) as progress:
        progress.advance(0)
        with session(master, conf=conf_of(conf), log=log) as spark:
            progress.hide()
            yield spark


@contextmanager
def opened_pool(out: Output, engine: EngineName | None, size: int, *, jobs: int, master: str,
                conf: list[str] | None = None, log: str | None = None) -> Iterator[Pool]:
    """The pool for so many bytes of log: ``jobs`` processes, or Spark on ``master``."""
    name, why = chosen_engine(engine, master, size)
    say = out.note if engine == "auto" or (engine is None and name == "spark") else out.debug
    say(f"engine: {name}, {why}")
    if name == "local":
        from rmqctl.store.log.ranges import Processes

        yield Processes(jobs)
        return
    from rmqctl.pipeline.pool import SparkPool

    with spark_session(out, master, conf, log) as spark, out.progress(
            f"Spark ({master})", None, unit="tasks") as progress:
        yield SparkPool(spark, watch=tasks_shown(progress))


def tasks_shown(progress: Progress) -> Callable[[int, int], None]:
    """Takes (tasks done, tasks in all) to a progress bar; a job that starts anew begins at none."""
    seen = [0]

    def watch(done: int, count: int) -> None:
        progress.total(count)
        progress.advance(done - seen[0])
        seen[0] = done

    return watch
