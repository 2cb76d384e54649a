"""Options of commands that can run on Spark, and the threads or Spark session that they use."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl import kernel
from rmqctl.commands import STORE_VARIABLE
from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.options import Jobs, complete_folders, worker_count
from rmqctl.errors import NotAStoreError, StoreIOError, UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import size_text
from rmqctl.parse_values import is_url

if TYPE_CHECKING:
    from rmqctl.output import Output
    from rmqctl.output.progress import Progress
    from rmqctl.store.log.ranges import Pool

_SPARK = "Spark"
EngineName = Literal["auto", "local", "spark"]
AUTO_FROM = 64 << 30
"""Minimum total log size in bytes for which ``--engine auto`` uses a given Spark cluster."""

Stores = Annotated[list[str] | None, typer.Argument(
    metavar="STORE", autocompletion=complete_folders, show_default=False,
    help="Store roots; a pattern such as '/backup/*/store' selects all matching folders. Default: "
         "RMQCTL_STORE.")]

MoreStores = Annotated[list[str] | None, typer.Argument(
    metavar="STORE", autocompletion=complete_folders, show_default=False,
    help="More stores; a pattern such as '/backup/*/store' selects all matching folders.")]

StoresAndQuery = Annotated[list[str], typer.Argument(
    metavar="STORE... QUERY", show_default=False,
    help="Store roots or patterns, then the query as one argument (in quotes); with --file, store "
         "roots only.")]
QueryFile = Annotated[str | None, typer.Option(
    "--file", metavar="FILE", help="Read the query from a file.")]


@dataclass(frozen=True, kw_only=True)
class SparkOptions(OptionGroup):
    """Options for the engine that reads the logs: threads of this process, or Spark."""

    engine: Annotated[EngineName | None, typer.Option(
        "--engine", rich_help_panel=_SPARK,
        help="Engine: threads of this process (local), Spark, or auto: the faster one for this "
             "much data.")] = None
    master: Annotated[str, typer.Option(
        "--master", metavar="URL", rich_help_panel=_SPARK,
        help="local[*]: this machine; spark://HOST:PORT, yarn, k8s://URL: a cluster that sees the "
             "same paths.")] = "local[*]"
    conf: Annotated[list[str] | None, typer.Option(
        "--conf", metavar="NAME=VALUE", rich_help_panel=_SPARK,
        help="Spark setting; repeatable.")] = None
    partitions: Annotated[int | None, typer.Option(
        "--partitions", metavar="N", min=1, rich_help_panel=_SPARK,
        help="Number of ranges to divide each log into (default: by its size).")] = None
    spark_log: Annotated[str | None, typer.Option(
        "--spark-log", metavar="FILE", rich_help_panel=_SPARK,
        help="Write Spark's own log here; otherwise it is kept only on failure.",
    )] = None
    jobs: Jobs = 0

    @property
    def workers(self) -> int:
        """Return the number of worker threads if this process reads the logs itself."""
        return worker_count(self.jobs)

    @contextmanager
    def session(self, out: Output) -> Iterator[Any]:
        """Yield a Spark session with these options. Raises: UsageError."""
        with spark_session(out, self.master, self.conf, self.spark_log) as spark:
            yield spark

    @contextmanager
    def pool(self, out: Output, size: int, jobs: int | None = None) -> Iterator[Pool]:
        """Yield the pool that processes ``size`` bytes of log: ``jobs`` threads (default:
        `workers`), or Spark.
        """
        name, why = chosen_engine(self.engine, self.master, size)
        asked = self.engine == "auto" or (self.engine is None and name == "spark")
        (out.note if asked else out.debug)(f"engine: {name}, {why}")
        if name == "local":
            from rmqctl.store.log.ranges import Threads

            yield Threads(self.workers if jobs is None else jobs)
            return
        from rmqctl.ext.spark.pool import SparkPool

        with self.session(out) as spark, out.progress(
                f"Spark ({self.master})", None, unit="tasks") as progress:
            pool = SparkPool(spark, watch=tasks_shown(progress))
            yield pool
            _show_kernels(out, pool.kernels)


def _show_kernels(out: Output, used: set[str]) -> None:
    """Print which kernel (compiled or Python) the Spark workers used: a note if this machine has
    the compiled kernel but a worker does not, else a line that is shown only with ``-v``.
    """
    is_slower = "python" in used and kernel.name() == "compiled"
    which = ("compiled on some workers, python on others (slower)" if len(used) > 1 else
             f"{next(iter(used), 'not used')} on the workers{' (slower)' if is_slower else ''}")
    (out.note if is_slower else out.debug)(f"kernel: {which}")


def named_stores(names: list[str] | None) -> list[str]:
    """Return the store roots that STORE arguments (or RMQCTL_STORE) name, in order, with patterns
    expanded and duplicates removed.
    """
    if not names:
        store = os.environ.get(STORE_VARIABLE)
        if not store:
            raise UsageError(f"Missing argument 'STORE': name a store, or set {STORE_VARIABLE}")
        names = [store]
    roots: dict[str, None] = {}
    for name in names:
        if is_url(name):
            from rmqctl.files.remote.tree import matching

            roots |= dict.fromkeys(matching(name.rstrip("/")))
            continue
        if os.path.lexists(name) or not glob.has_magic(name):
            roots[os.path.normpath(name)] = None
            continue
        matches = sorted(path for path in glob.glob(name) if os.path.isdir(path))
        if not matches:
            raise NotAStoreError(f"{name}: no matching folder")
        roots |= dict.fromkeys(map(os.path.normpath, matches))
    return list(roots)


def roots_named(first: str, more: list[str] | None) -> list[str]:
    """Return the store roots for the STORE arguments ``first`` and ``more``."""
    return [first] if not more and os.path.lexists(first) else named_stores([first, *(more or ())])


def stores_and_query(arguments: list[str], file: str | None) -> tuple[list[str], str]:
    """Split ``arguments`` into (stores, query). The query is the last argument; with ``file``, all
    arguments are stores, and the query is read from the file.
    Raises: UsageError, StoreIOError.
    """
    if file is not None:
        if len(arguments) > 1 and any(char.isspace() for char in arguments[-1].strip()) and (
                not os.path.lexists(arguments[-1])):
            raise UsageError("a query and --file are mutually exclusive")
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise StoreIOError.from_oserror(error, file, "read") from None
        except UnicodeDecodeError:
            raise UsageError(f"{file}: not UTF-8") from None
        if not text.strip():
            raise UsageError(f"{file}: contains no query")
        return arguments, text
    *stores, text = arguments
    if not any(char.isspace() for char in text.strip()) or os.path.lexists(text):
        raise UsageError(f"no query: the last argument is {text}; put the query in quotes, or pass "
                         "--file")
    return stores, text


def conf_of(given: list[str] | None) -> dict[str, str]:
    """Return the Spark settings that ``--conf NAME=VALUE`` options set. Raises: UsageError."""
    conf = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(f"--conf {text}: expected NAME=VALUE")
        conf[name] = value
    return conf


def chosen_engine(engine: EngineName | None, master: str, size: int) -> tuple[
        Literal["local", "spark"], str]:
    """Return (the engine to use for ``size`` bytes of log, the reason).

    ``engine``: None means auto.
    """
    if engine is not None and engine != "auto":
        return engine, "requested"
    if master.startswith("local"):
        return "local", "always faster on one machine (Spark has to start first)"
    if size < AUTO_FROM:
        return "local", (f"the log has {size_text(size)}; a cluster is faster from about "
                         f"{size_text(AUTO_FROM)} on")
    return "spark", f"{size_text(size)} of log, and a cluster to read it"


@contextmanager
def spark_session(out: Output, master: str, conf: list[str] | None, log: str | None) -> Iterator[
        Any]:
    """Yield a Spark session for a command; show progress while Spark starts."""
    from rmqctl.ext.spark.session import session
    from rmqctl.store.inside_store import refuse_in_store

    if log is not None:
        refuse_in_store(log, f"--spark-log {log}")
    with out.progress(f"starting Spark ({master})", None) as progress:
        progress.advance(0)
        with session(master, conf=conf_of(conf), log=log) as spark:
            progress.hide()
            yield spark


def tasks_shown(progress: Progress) -> Callable[[int, int], None]:
    """Return a function that shows (tasks done, total tasks) in a progress bar. The number of tasks
    done may decrease, for example when Spark restarts a job.
    """
    reported = [0]

    def watch(done: int, count: int) -> None:
        progress.total(count)
        progress.advance(done - reported[0])
        reported[0] = done

    return watch
