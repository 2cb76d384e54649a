"""Options of the data source for reading and following (streaming) stores, parsed from text.

Every invalid option raises UsageError.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Literal

from rmqctl import vfs
from rmqctl.errors import NotAStoreError, UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import is_url, now_ms, parse_offset, parse_size, parse_time
from rmqctl.sql.pushdown import Filters
from rmqctl.sql.schema import CONSUMEQUEUE, INDEX, MESSAGES, TABLES, TIERED_MESSAGES

NAMES = ("table", "path", "paths", "startPhy", "endPhy", "since", "until", "topic", "queueId",
         "body", "splitSize", "numPartitions", "commitlogDirs", "orphans", "failOnDataLoss")
FOLLOWING = ("startingOffsets", "maxBytesPerTrigger")
"""Names of the additional options for following stores."""
_BODIES = ("binary", "none")
_ORPHANS = ("exclude", "include")
_TRUTHS = {"true": True, "false": False}
_MAX_INT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading stores.

    * ``paths``: as given; `stores` expands them
    * ``split_size``: partition size in bytes; 0 for complete files, None for a default
    * ``orphans``: whether to also read messages in tiers that no consume queue entry points to
    * ``fail_on_loss``: whether to refuse a store that is known to have lost messages
    * ``compacted``: whether to read compaction topics as a broker serves them, not from the log
    """

    paths: tuple[str, ...]
    table: str = MESSAGES
    body: bool = True
    filters: Filters = field(default_factory=Filters)
    split_size: int | None = None
    partitions: int | None = None
    log_folders: tuple[str, ...] = ()
    orphans: bool = False
    fail_on_loss: bool = True
    compacted: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str], more: Iterable[str] = ()) -> ReadOptions:
        """Parse a data source's options (names are not case-sensitive).

        ``more``: names of further valid options, which other code parses.
        Raises: UsageError.
        """
        # Option names are not case-sensitive, and an empty value counts as not given.
        values = by_name(given, (*NAMES, *more))

        def option(name: str) -> str | None:
            return values.get(name.lower()) or None

        # Check each option with fixed values.
        table = (option("table") or MESSAGES).strip().lower()
        if table not in TABLES:
            raise UsageError(f"table={table}: unknown; valid: {', '.join(TABLES)}")
        body = (option("body") or _BODIES[0]).strip().lower()
        if body not in _BODIES:
            raise UsageError(f"body={body}: {' or '.join(_BODIES)}")
        orphans = (option("orphans") or _ORPHANS[0]).strip().lower()
        if orphans not in _ORPHANS:
            raise UsageError(f"orphans={orphans}: {' or '.join(_ORPHANS)}")
        loss = (option("failOnDataLoss") or "true").strip().lower()
        if loss not in _TRUTHS:
            raise UsageError(f"failOnDataLoss={loss}: {' or '.join(_TRUTHS)}")
        # Refuse options of another table instead of ignoring them.
        for name in ("startPhy", "endPhy", "commitlogDirs") if table == TIERED_MESSAGES else (
                "orphans",):
            if option(name) is not None:
                raise UsageError(f"{name} does not apply to the table {table}")
        size, count = option("splitSize"), option("numPartitions")
        parts = None if count is None else number("numPartitions", count, 1)
        paths = _paths(option("path"), option("paths"))
        return cls(paths, table, body == _BODIES[0],
                   _filters(table, option), None if size is None else parse_size(size), parts,
                   tuple(_words(option("commitlogDirs"))), orphans == _ORPHANS[1], _TRUTHS[loss])

    def stores(self) -> list[str]:
        """Return the store directories that match the paths, in order, without duplicates.
        Raises: NotAStoreError for a path that matches nothing.
        """
        stores: dict[str, None] = {}
        for path in self.paths:
            if vfs.is_elsewhere(path):
                from rmqctl.files.remote.tree import matching

                stores |= dict.fromkeys(matching(path.rstrip("/")))
                continue
            if os.path.lexists(path) or not glob.has_magic(path):
                matches = [path]
            else:
                matches = sorted(path for path in glob.glob(path) if os.path.isdir(path))
                if not matches:
                    raise NotAStoreError(f"{path}: no matching directory")
            stores |= dict.fromkeys(os.path.normpath(path) for path in matches)
        return list(stores)


def _paths(path: str | None, paths: str | None) -> tuple[str, ...]:
    """Return the paths of two options: ``path`` and ``paths``. URLs are unchanged.

    ``path`` is one path, or several separated by commas; ``paths`` is JSON, from ``load([...])``.
    Raises: UsageError.
    """
    chosen: list[str] = []
    if paths is not None:
        chosen += json.loads(paths)
    if path is not None:
        chosen += [path] if os.path.lexists(path) else _words(path)
    if not chosen:
        raise UsageError("no path given: pass a store (or several, or a glob) with .load(PATH) or "
                         ".option('path', PATH)")
    return tuple(path if is_url(path) and not path.startswith("file:") else local(path)
                 for path in chosen)


def local(path: str) -> str:
    """Return the local path that a path or ``file:`` URL names.
    Raises: UsageError for other URLs.
    """
    if path.startswith("file:"):
        local_path = path.removeprefix("file:")
        return "/" + local_path.lstrip("/") if local_path.startswith("/") else local_path
    scheme, separator, _ = path.partition("://")
    if separator:
        raise UsageError(f"{path}: {scheme} cannot be read directly; mount it where the driver and "
                         "all executors see it at the same path")
    return path


def by_name(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the option values by lower-case name.
    Raises: UsageError for a name that is not in ``names``, because a misspelled condition must not
    be ignored.
    """
    by_lower_case = {name.lower(): name for name in names}
    unknown = [name for name in given if name.lower() not in by_lower_case and "." not in name]
    if unknown:
        raise UsageError(f"unknown option {', '.join(unknown)}; valid: "
                         f"{', '.join(sorted(set(by_lower_case.values()) - {'paths'}))}")
    return {name.lower(): text for name, text in given.items()}


def _words(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",") if word.strip()]


def number(name: str, text: str, least: int) -> int:
    """Parse an integer of at least ``least`` that fits into a Java int.
    Raises: UsageError that names the option.
    """
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or not least <= int(stripped) <= _MAX_INT:
        raise UsageError(f"{name}={text}: expected an integer of at least {least}")
    return int(stripped)


def _filters(table: str, ask: Callable[[str], str | None]) -> Filters:
    now = now_ms()
    start, end = ask("startPhy"), ask("endPhy")
    since, until = ask("since"), ask("until")
    topics, queues = _words(ask("topic")), _words(ask("queueId"))
    if (since or until) and table == CONSUMEQUEUE:
        raise UsageError("since and until: consume queue entries have no time; use the table "
                         "messages")
    if (topics or queues) and table == INDEX:
        raise UsageError("topic and queueId: index entries have no topic or queue; use the table "
                         "messages or consumequeue")
    return Filters(
        topics=frozenset(os.fsencode(topic) for topic in topics) or None,
        queue_ids=frozenset(number("queueId", queue_id, 0) for queue_id in queues) or None,
        since=None if since is None else parse_time(since, clock=lambda: now),
        until=None if until is None else parse_time(until, clock=lambda: now),
        start=None if start is None else parse_offset(start),
        end=None if end is None else parse_offset(end))


# -- where a query that follows stores starts -----------------------------------------------------


Start = int | Literal["earliest", "latest"]
_WORDS: dict[str, Start] = {"earliest": "earliest", "latest": "latest"}


@dataclass(frozen=True, slots=True)
class Starting:
    """The start of a stream: a physical offset, ``earliest`` or ``latest``.

    ``stores``: the start of each named store.
    ``others``: the start of all other stores.
    """

    others: Start = "earliest"
    stores: dict[str, Start] = field(default_factory=dict)

    def of(self, store: str) -> Start:
        return self.stores.get(store, self.others)

    def named(self) -> set[str]:
        return set(self.stores)


def starting(text: str | None) -> Starting:
    """Parse the option ``startingOffsets``: ``earliest`` (default), ``latest``, or a JSON object.

    The object maps stores to a physical offset, ``earliest`` or ``latest``.
    Raises: UsageError for anything else.
    """
    if text is None or text.strip().lower() in _WORDS:
        return Starting(_WORDS[(text or "earliest").strip().lower()])
    try:
        offsets = json.loads(text)
    except (ValueError, RecursionError):
        offsets = None
    if not isinstance(offsets, dict):
        raise UsageError(f"startingOffsets={text}: expected earliest, latest, or a JSON object of "
                         "stores and physical offsets")
    return Starting(stores={vfs.normpath(store): _start(store, value)
                            for store, value in offsets.items()})


def _start(store: str, value: object) -> Start:
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise UsageError(f"startingOffsets: {store}: expected a physical offset, earliest or latest, "
                     f"got {value!r}")
