"""Options and arguments that several commands share.

A type alias such as ``Jobs`` declares one option. A group such as ``StoreOptions`` is a dataclass
whose fields are options; its methods use their values. Commands receive parsed values: sizes and
offsets as int, the zone as tzinfo. `rmqctl.commands.app.option_groups` describes groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl import vfs
from rmqctl.commands import STORE_VARIABLE
from rmqctl.commands.app.completing import complete_topics
from rmqctl.commands.app.option_groups import OptionGroup, pick
from rmqctl.errors import RmqctlError
from rmqctl.formats import bodies
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output import FORMATS, Output
from rmqctl.output.core import ENGLISH
from rmqctl.parse_values import parse_size, parse_zone
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.store import Sizes
    from rmqctl.store import Store as OpenedStore
    from rmqctl.store.broker_conf import BrokerConf

    BodyForm = str
    Format = str
else:
    BrokerConf = object
    BodyForm = Literal[tuple(bodies.FORMS)]
    Format = Literal[tuple(FORMATS)]

# Panels of the help: options of the command come first, options of all commands last.
_OUTPUT = "Output"
_STORE = "Store layout"


def complete_folders(incomplete: str) -> Iterator[str]:
    """Yield the directories whose path begins with ``incomplete``, for shell completion."""
    head, tail = os.path.split(incomplete)
    try:
        with os.scandir(head or ".") as entries:
            names = sorted(e.name for e in entries if e.name.startswith(tail) and e.is_dir())
    except OSError:
        return
    for name in names:
        if not name.startswith(".") or tail.startswith("."):
            yield os.path.join(head, name) + "/"


# -- how it is shown --------------------------------------------------------------------------

OutputFormat = Annotated[Format | None, typer.Option(
    "--output", "-o", metavar="FORMAT", rich_help_panel=_OUTPUT,
    help="Output format (default: table on a terminal, plain otherwise).")]


Lang = Annotated[Literal["en", "zh"] | None, typer.Option(
    "--lang", rich_help_panel=_OUTPUT, show_default=False,
    help="Language of messages, not of data: en or zh (default: RMQCTL_LANG, LC_ALL, LC_MESSAGES, "
         "LANG).")]


@dataclass(frozen=True, kw_only=True)
class OutputOptions(OptionGroup):
    """Output options, which every command has. The command receives an `Output` for them."""

    output: OutputFormat = None
    quiet: Annotated[int, typer.Option(
        "--quiet", "-q", count=True, rich_help_panel=_OUTPUT,
        help="Suppress notes and progress; twice: also warnings.")] = 0
    verbose: Annotated[int, typer.Option(
        "--verbose", "-v", count=True, rich_help_panel=_OUTPUT,
        help="More detail on stderr; -vv also prints tracebacks of internal errors.")] = 0
    no_progress: Annotated[bool, typer.Option(
        "--no-progress", help="Do not show a progress bar.", rich_help_panel=_OUTPUT)] = False
    lang: Lang = None

    def value(self) -> Output:
        return self._opened()

    def _opened(self, *, every: bool = False) -> Output:
        lang = ENGLISH
        if self.lang or self.output is None or not FORMATS[self.output].is_data:
            from rmqctl.output.language import chosen  # data is English unless --lang is given

            lang = chosen(self.lang, os.environ)
        return Output.open(self.output, quiet=self.quiet, verbose=self.verbose,
                           no_progress=self.no_progress, lang=lang, every=every)


_All = Annotated[bool, typer.Option(
    "--all", rich_help_panel=_OUTPUT,
    help="List every finding or action, instead of one line for many of the same kind and topic.")]


@dataclass(frozen=True, kw_only=True)
class ListedOptions(OutputOptions):
    """Output options of a command that shows a table of findings or actions to people."""

    every: _All = False

    def value(self) -> Output:
        return self._opened(every=self.every)


Out = Annotated[Output, OutputOptions]
ListedOut = Annotated[Output, ListedOptions]

# -- where ------------------------------------------------------------------------------------


def parse_conf(path: str | BrokerConf) -> BrokerConf:
    """Read the broker's configuration file at ``path``. Raises: UsageError, StoreIOError."""
    if not isinstance(path, str):
        return path
    from rmqctl.store.broker_conf import read_conf

    return read_conf(path)


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(OptionGroup):
    """Options for the layout of a store: folders and sizes.

    Priority: the given options, then the broker's configuration file, then values detected from the
    store's files.
    """

    commitlog_dirs: Annotated[list[str] | None, typer.Option(
        "--commitlog-dir", metavar="DIR", autocompletion=complete_folders, rich_help_panel=_STORE,
        help="Folder of a multi-path commitlog, relative to STORE or absolute; repeatable.",
    )] = None
    commitlog_file_size: Annotated[int | None, typer.Option(
        "--commitlog-file-size", metavar="SIZE", parser=parse_size, rich_help_panel=_STORE,
        help="Size of a commitlog file (default: detected from the files).")] = None
    consumequeue_file_size: Annotated[int | None, typer.Option(
        "--consumequeue-file-size", metavar="SIZE", parser=parse_size, rich_help_panel=_STORE,
        help="Size of a consume queue file (default: detected from the files).")] = None
    index_slots: Annotated[int | None, typer.Option(
        "--index-slots", metavar="N", min=1, rich_help_panel=_STORE,
        help="Hash slots of an index file (default: detected from the files).")] = None
    index_max: Annotated[int | None, typer.Option(
        "--index-max", metavar="N", min=1, rich_help_panel=_STORE,
        help="Maximum number of entries of an index file (default: detected from the "
             "files).")] = None
    broker_conf: Annotated[BrokerConf | None, typer.Option(
        "--broker-conf", metavar="FILE", parser=parse_conf, rich_help_panel=_STORE,
        help="The broker's broker.conf: paths, sizes and switches to use where no option is "
             "given.")] = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the folders of a multi-path commitlog that ``--commitlog-dir`` names; empty if the
        option is not given.
        """
        return tuple(self.commitlog_dirs or ())

    def folders_of(self, roots: Sequence[str]) -> tuple[str, ...]:
        """Return the log folders that ``--commitlog-dir`` names. Without this option, and with only
        one store root, return the log folders that broker.conf names.
        """
        if self.commitlog_dirs or self.broker_conf is None or len(roots) != 1:
            return tuple(self.commitlog_dirs or ())
        folders = self.broker_conf.folders(roots[0])
        return () if folders == ("commitlog",) else folders

    @property
    def sizes(self) -> Sizes:
        from rmqctl.store import Sizes
        from rmqctl.store.broker_conf import NO_CONF

        sizes = self.given_sizes()
        return Sizes(sizes["commitlog_file_size"], sizes["consumequeue_file_size"],
                     sizes["index_slots"], sizes["index_max"], self.broker_conf or NO_CONF,
                     folders_given=bool(self.commitlog_dirs))

    def given_sizes(self) -> dict[str, Any]:
        """Return the sizes from options or broker.conf, by field of `Settings`; None: not set."""
        from_conf = {} if self.broker_conf is None else self.broker_conf.values
        return {name: from_conf.get(name) if getattr(self, name) is None else getattr(self, name)
                for name in ("commitlog_file_size", "consumequeue_file_size", "index_slots",
                             "index_max")}

    def over_conf(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return fields of `rmqctl.broker.settings.Settings`. Priority: values in ``given`` (unless
        None), then the size options, then the broker's configuration file.
        """
        from_conf = {} if self.broker_conf is None else self.broker_conf.values
        chosen = {name: value for name, value in given.items() if value is not None}
        return {**given, **from_conf, **self.given_sizes(), **chosen}


@dataclass(frozen=True, kw_only=True)
class StoreOptions(LayoutOptions):
    """The argument STORE, and the options for the layout of the store."""

    # typer does not check that the path exists: the library reports problems with its exit code.
    root: Annotated[str, typer.Argument(
        metavar="STORE", envvar=STORE_VARIABLE, autocompletion=complete_folders,
        show_default=False,
        help="Store root: the folder that contains commitlog/, consumequeue/, index/, config/. "
             "Reading commands also accept a URL (s3://…) or an archive (tar, zip).")]

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the log folders named by ``--commitlog-dir`` or, without it, by broker.conf."""
        return self.folders_of([self.root])

    def open(self) -> OpenedStore:
        """Open the store for reading, as a context manager. Raises: NotAStoreError."""
        from rmqctl.store import Store as OpenedStore

        return OpenedStore.open(self.root, self.folders, self.sizes)

    @contextmanager
    def sampled(self, out: Output) -> Iterator[OpenedStore]:
        """Open the store for reading. For a remote store, find the ends of files by sampling, and
        print a note.
        """
        from rmqctl.store import Store as OpenedStore

        with OpenedStore.open(self.root, self.folders, self.sizes, sampled=True) as opened:
            yield opened
            if count := vfs.sampled(opened.root):
                out.note(Phrase("the ends of {count:,} files were found by sampling, so damage may "
                                "be missed; `rmqctl verify` reads everything", count=count))

    def warnings(self) -> Iterator[str]:
        """Yield warnings about settings of broker.conf that are unclear or contradict the store's
        files.
        """
        if self.broker_conf is None:
            return
        from rmqctl.broker.settings import contradictions
        from rmqctl.store import Store as OpenedStore

        yield from self.broker_conf.remarks(self.root)
        with suppress(RmqctlError), OpenedStore.open(self.root, self.folders) as store:
            yield from contradictions(store, self.broker_conf)


@dataclass(frozen=True, kw_only=True)
class StartedStore(StoreOptions):
    """Like `StoreOptions`, for a command that predicts a startup. It prints no warnings about
    broker.conf, because the prediction includes its settings.
    """

    def warnings(self) -> Iterator[str]:
        return iter(())


# Layout options of commands that need only some of the files.
StoreRoot = Annotated[StoreOptions, pick("")]
StoreFolders = Annotated[StoreOptions, pick("commitlog_dirs broker_conf")]
StoreLog = Annotated[StoreOptions, pick("commitlog_dirs commitlog_file_size broker_conf")]
StoreQueues = Annotated[
    StoreOptions, pick("commitlog_dirs commitlog_file_size consumequeue_file_size broker_conf")]
StoreIndex = Annotated[
    StoreOptions, pick("commitlog_dirs commitlog_file_size index_slots index_max broker_conf")]

# -- what -------------------------------------------------------------------------------------

_QUEUE = typer.Option("--queue", "-i", metavar="N", min=0, max=(1 << 31) - 1, help="Queue id.")
_TOPIC = typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=complete_topics,
                      help="Topic.")
Topic = Annotated[str | None, _TOPIC]
RequiredTopic = Annotated[str, _TOPIC]
ClientBroker = Annotated[str | None, typer.Option(
    "--broker", metavar="NAME", help="For a client's offsets.json: only the queues of this "
                                     "broker.")]
Queue = Annotated[int | None, _QUEUE]
RequiredQueue = Annotated[int, _QUEUE]

Form = Annotated[Literal["file", "rocksdb"] | None, typer.Option(
    "--consumequeue", rich_help_panel=_STORE, show_default=False,
    help="Form of the consume queues: file or rocksdb (defaultRocksDB). Needed for --apply if no "
         "queues are left.")]


def with_form(sizes: Sizes, form: Literal["file", "rocksdb"] | None) -> Sizes:
    """Return ``sizes`` with the queue form that ``--consumequeue`` names; unchanged if None."""
    if form is None:
        return sizes
    from rmqctl.broker.queue_form import STORE_TYPES

    return replace(sizes, conf=replace(sizes.conf, store_type=STORE_TYPES[form]))


SINCE: dict[str, Any] = {
    "metavar": "TIME",
    "help": "Stored at this time or later: ISO-8601, epoch ms or s, yyyyMMdd, or relative (-2h)."}
UNTIL: dict[str, Any] = {"metavar": "TIME", "help": "Stored at this time or earlier."}
Since = Annotated[str | None, typer.Option("--since", **SINCE)]
Until = Annotated[str | None, typer.Option("--until", **UNTIL)]
Zone = Annotated[tzinfo, typer.Option(
    "--tz", metavar="ZONE", parser=parse_zone,
    help="Time zone of displayed times, and of given times without a time zone: UTC, local, "
         "+08:00, Asia/Shanghai.")]

SHOWN = "Message display"
Body = Annotated[BodyForm, typer.Option(
    "--body", rich_help_panel=SHOWN, help="Form of bodies. auto: text if UTF-8, else base64. "
                                          "none: do not show bodies.")]
View = Annotated[Literal["auto", "disk", "broker"], typer.Option(
    "--view", help="disk: everything intact. broker: what a broker keeps. auto: broker for logs up "
                   "to 64 MiB, else disk.")]

Compacted = Annotated[Literal["auto", "disk"], typer.Option(
    "--view", help="auto: compaction topics as a broker serves them. disk: all messages in the "
                   "commitlog.")]

DryRun = Annotated[bool, typer.Option(
    "--dry-run", help="Only show what would be done; change nothing.")]
DryRead = Annotated[bool, typer.Option(
    "--dry-run", help="Only show what would be read, and in which ranges.")]
MaxFindings = Annotated[int, typer.Option(
    "--limit", "--max-findings", metavar="N", min=0,
    help="List at most N findings; all are counted.")]
_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
Jobs = Annotated[int, typer.Option(
    "--jobs", "-j", metavar="N", min=0, show_default=False,
    help="Worker threads, up to 4 (default 0: one per core). 1 leaves the other cores to a running "
         "broker.")]


def worker_count(jobs: int) -> int:
    """Return the number of worker threads for the value of ``--jobs``. 0 means the number of cores
    that this process may use.
    """
    if jobs:
        return jobs
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return max(1, min(cores, _cores_of_container()))


def _cores_of_container() -> int:
    """Return the CPU limit of the container (cgroup v2) as a number of cores, rounded up. Without a
    limit, return a large number.
    """
    try:
        with open(_CPU_LIMIT, encoding="ascii") as file:
            quota, period = file.read().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such limit, or "max"
        return 1 << 16
