"""Options and arguments that several commands share, each declared once.

An alias (``jobs: Jobs = 1``) is one option; a group (``store: StoreOptions``) is a dataclass whose
fields are options, and which knows what is made of them. Values arrive parsed: sizes and offsets
as int, the zone as tzinfo. See `rmqctl.commands.app.option_groups` for how typer sees a group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl import vfs
from rmqctl.commands import STORE_VARIABLE
from rmqctl.commands.app.completing import complete_topics
from rmqctl.commands.app.option_groups import OptionGroup, pick
from rmqctl.errors import RmqctlError
from rmqctl.formats import bodies
from rmqctl.output import FORMATS, Output
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

# Panels of the help: what is particular to a command comes first, what all have comes last.
_OUTPUT = "Output"
_STORE = "Where and how the store lies"


def complete_folders(incomplete: str) -> Iterator[str]:
    """Directories that ``incomplete`` may become, for the shell."""
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
    help="How data is written; table on a terminal, else plain, unless given.")]


@dataclass(frozen=True, kw_only=True)
class OutputOptions(OptionGroup):
    """The four options every command has; a command gets the `Output` they ask for."""

    output: OutputFormat = None
    quiet: Annotated[int, typer.Option(
        "--quiet", "-q", count=True, rich_help_panel=_OUTPUT,
        help="No notes and no progress; twice: no warnings either.")] = 0
    verbose: Annotated[int, typer.Option(
        "--verbose", "-v", count=True, rich_help_panel=_OUTPUT,
        help="Say more on stderr; twice: a traceback should rmqctl itself fail.")] = 0
    no_progress: Annotated[bool, typer.Option(
        "--no-progress", help="No progress bar.", rich_help_panel=_OUTPUT)] = False

    def value(self) -> Output:
        return Output.open(self.output, quiet=self.quiet, verbose=self.verbose,
                           no_progress=self.no_progress)


Lang = Annotated[Literal["en", "zh"] | None, typer.Option(
    "--lang", rich_help_panel=_OUTPUT, show_default=False,
    help="Language of what people read, not of data: en or zh. Default: RMQCTL_LANG, else that of "
    "the locale (LC_ALL, LC_MESSAGES, LANG).")]


@dataclass(frozen=True, kw_only=True)
class SpokenOptions(OutputOptions):
    """The same for a command whose screens are there in each language."""

    lang: Lang = None

    def value(self) -> Output:
        return self._opened()

    def _opened(self, *, every: bool = False) -> Output:
        from rmqctl.output.language import chosen

        is_data = self.output is not None and FORMATS[self.output].is_data
        lang = chosen(self.lang, {} if is_data else os.environ)  # data asks for it, or is English
        return Output.open(self.output, quiet=self.quiet, verbose=self.verbose,
                           no_progress=self.no_progress, lang=lang, every=every)


_All = Annotated[bool, typer.Option(
    "--all", rich_help_panel=_OUTPUT,
    help="List each finding or action, not one line for many of a kind and topic.")]


@dataclass(frozen=True, kw_only=True)
class ListedOptions(OutputOptions):
    """The same for a command whose page has a table of findings or actions."""

    every: _All = False

    def value(self) -> Output:
        return Output.open(self.output, quiet=self.quiet, verbose=self.verbose,
                           no_progress=self.no_progress, every=self.every)


@dataclass(frozen=True, kw_only=True)
class ListedSpokenOptions(SpokenOptions):
    """The same where its screens are there in each language."""

    every: _All = False

    def value(self) -> Output:
        return self._opened(every=self.every)


Out = Annotated[Output, OutputOptions]
SpokenOut = Annotated[Output, SpokenOptions]
ListedOut = Annotated[Output, ListedOptions]
ListedSpokenOut = Annotated[Output, ListedSpokenOptions]

# -- where ------------------------------------------------------------------------------------


def parse_conf(path: str | BrokerConf) -> BrokerConf:
    """The broker's configuration file at ``path``. UsageError, StoreIOError."""
    if not isinstance(path, str):
        return path
    from rmqctl.store.broker_conf import read_conf

    return read_conf(path)


@dataclass(frozen=True, kw_only=True)
class LayoutOptions(OptionGroup):
    """How a store lies, where its files do not tell.

    What is given wins over the broker's own configuration file, and that over what files show.
    """

    commitlog_dirs: Annotated[list[str] | None, typer.Option(
        "--commitlog-dir", metavar="DIR", autocompletion=complete_folders, rich_help_panel=_STORE,
        help="A folder of a multi-path commitlog, relative to STORE or absolute; repeatable.",
    )] = None
    commitlog_file_size: Annotated[int | None, typer.Option(
        "--commitlog-file-size", metavar="SIZE", parser=parse_size, rich_help_panel=_STORE,
        help="Size of a commitlog file, instead of what the files say.")] = None
    consumequeue_file_size: Annotated[int | None, typer.Option(
        "--consumequeue-file-size", metavar="SIZE", parser=parse_size, rich_help_panel=_STORE,
        help="Size of a consumequeue file, instead of what the files say.")] = None
    index_slots: Annotated[int | None, typer.Option(
        "--index-slots", metavar="N", min=1, rich_help_panel=_STORE,
        help="Hash slots of an index file, instead of what the files say.")] = None
    index_max: Annotated[int | None, typer.Option(
        "--index-max", metavar="N", min=1, rich_help_panel=_STORE,
        help="Entries an index file has room for, instead of what the files say.")] = None
    broker_conf: Annotated[BrokerConf | None, typer.Option(
        "--broker-conf", metavar="FILE", parser=parse_conf, rich_help_panel=_STORE,
        help="The broker's own configuration (broker.conf): its paths, sizes and switches, where "
        "no option says otherwise.")] = None

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of a multi-path commitlog; none where nothing was given."""
        return tuple(self.commitlog_dirs or ())

    def folders_of(self, roots: Sequence[str]) -> tuple[str, ...]:
        """The log's folders as given, else of a single store as the broker's configuration has
        them.
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
        """The sizes by their names in `rmqctl.broker.settings.Settings`; None: not given."""
        known = {} if self.broker_conf is None else self.broker_conf.values
        return {name: known.get(name) if getattr(self, name) is None else getattr(self, name)
                for name in ("commitlog_file_size", "consumequeue_file_size", "index_slots",
                             "index_max")}

    def over_conf(self, given: dict[str, Any]) -> dict[str, Any]:
        """``given`` and the sizes, by the names of `rmqctl.broker.settings.Settings`, over what
        the broker's configuration file says.
        """
        known = {} if self.broker_conf is None else self.broker_conf.values
        chosen = {name: value for name, value in given.items() if value is not None}
        return {**given, **known, **self.given_sizes(), **chosen}


@dataclass(frozen=True, kw_only=True)
class StoreOptions(LayoutOptions):
    """STORE, and how it lies."""

    # No existence check by typer: the library says what is wrong with a path, with its exit code.
    root: Annotated[str, typer.Argument(
        metavar="STORE", envvar=STORE_VARIABLE, autocompletion=complete_folders,
        show_default=False,
        help="Store root: the folder that holds commitlog/, consumequeue/, index/, config/. To "
        "read, also a URL (s3://…) or an archive (tar, zip).")]

    @property
    def folders(self) -> tuple[str, ...]:
        """The log's folders: as given, else as the broker's configuration file names several."""
        return self.folders_of([self.root])

    def open(self) -> OpenedStore:
        """The store, to be read: a context manager. NotAStoreError."""
        from rmqctl.store import Store as OpenedStore

        return OpenedStore.open(self.root, self.folders, self.sizes)

    @contextmanager
    def sampled(self, out: Output) -> Iterator[OpenedStore]:
        """The same; of a store elsewhere, samples show where files end, and a note says so."""
        from rmqctl.store import Store as OpenedStore

        with OpenedStore.open(self.root, self.folders, self.sizes, sampled=True) as opened:
            yield opened
            if count := vfs.sampled(opened.root):
                out.note(Phrase("the ends of {count:,} files were found by samples: damage may be "
                                "missed; `rmqctl verify` reads everything", count=count))

    def warnings(self) -> Iterator[str]:
        """What the broker's configuration file does not say clearly, or against the files."""
        if self.broker_conf is None:
            return
        from rmqctl.broker.settings import contradictions
        from rmqctl.store import Store as OpenedStore

        yield from self.broker_conf.remarks(self.root)
        with suppress(RmqctlError), OpenedStore.open(self.root, self.folders) as store:
            yield from contradictions(store, self.broker_conf)


@dataclass(frozen=True, kw_only=True)
class StartedStore(StoreOptions):
    """The same for a command that predicts a start: it follows the broker's configuration file, so
    it says itself what that costs.
    """

    def warnings(self) -> Iterator[str]:
        return iter(())


# What a command that needs only some of the files asks for.
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
    "--broker", metavar="NAME", help="Of a client's offsets.json: the queues of this broker only.")]
Queue = Annotated[int | None, _QUEUE]
RequiredQueue = Annotated[int, _QUEUE]

Form = Annotated[Literal["file", "rocksdb"] | None, typer.Option(
    "--consumequeue", rich_help_panel=_STORE, show_default=False,
    help="Where the broker keeps its consume queues: in files (storeType=default) or in RocksDB "
    "(defaultRocksDB). Required with --apply if none are left and nothing proves it.")]


def with_form(sizes: Sizes, form: Literal["file", "rocksdb"] | None) -> Sizes:
    """The sizes, with the form of consume queues that an option names."""
    if form is None:
        return sizes
    from rmqctl.broker.queue_form import STORE_TYPES

    return replace(sizes, conf=replace(sizes.conf, store_type=STORE_TYPES[form]))


SINCE: dict[str, Any] = {
    "metavar": "TIME",
    "help": "Stored at this time or later: ISO-8601, epoch ms or s, yyyyMMdd, relative (-2h)."}
UNTIL: dict[str, Any] = {"metavar": "TIME", "help": "Stored at this time or earlier."}
Since = Annotated[str | None, typer.Option("--since", **SINCE)]
Until = Annotated[str | None, typer.Option("--until", **UNTIL)]
Zone = Annotated[tzinfo, typer.Option(
    "--tz", metavar="ZONE", parser=parse_zone,
    help="Zone of times given without one and of times shown: UTC, local, +08:00, "
    "Asia/Shanghai.")]

SHOWN = "How messages are shown"
Body = Annotated[BodyForm, typer.Option(
    "--body", rich_help_panel=SHOWN, help="How bodies are shown: as text where they are UTF-8 and "
    "else in base64 (auto), always one way, or not at all.")]
View = Annotated[Literal["auto", "disk", "broker"], typer.Option(
    "--view", help="disk: all that is intact on disk. broker: only what a broker would still have "
    "after a start. auto: broker where the log is small (64 MiB), because it must be walked, else "
    "disk.")]

Compacted = Annotated[Literal["auto", "disk"], typer.Option(
    "--view", help="auto: of topics with cleanup.policy=COMPACTION what a broker serves from the "
    "compaction log. disk: their messages in the commitlog.")]

DryRun = Annotated[bool, typer.Option(
    "--dry-run", help="Only say what would be done; nothing is changed.")]
DryRead = Annotated[bool, typer.Option(
    "--dry-run", help="Only show what would be read, in which pieces.")]
MaxFindings = Annotated[int, typer.Option(
    "--limit", "--max-findings", metavar="N", min=0,
    help="List at most N findings; all are counted.")]
_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"
Jobs = Annotated[int, typer.Option(
    "--jobs", "-j", metavar="N", min=0, show_default=False,
    help="Threads to work with; at most 4 are used. Default (or 0): one for each core that this "
    "process may use. 1 leaves the other cores to a broker that runs.")]


def worker_count(jobs: int) -> int:
    """Threads for ``--jobs``: 0 means one for each core this process may use."""
    if jobs:
        return jobs
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    return max(1, min(cores, _cores_of_container()))


def _cores_of_container() -> int:
    """What the container's limit (cgroup v2) comes to, rounded up; many where there is none."""
    try:
        with open(_CPU_LIMIT, encoding="ascii") as file:
            quota, period = file.read().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such limit, or "max"
        return 1 << 16
