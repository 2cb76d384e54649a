"""rmqctl for Python programs: a store opened for reading, and its messages as objects or in
columns.

`rmqctl.open` is the entry point. The names in `__all__` remain compatible within a major version;
the rest of the package is internal. Only `RepairPlan.apply` writes. Data is read only when it is
needed. Errors are subclasses of `rmqctl.errors.RmqctlError`. Damage raises no error: reading
continues after it, and `Messages.problems` lists it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field, replace
from dataclasses import fields as dataclass_fields
from datetime import UTC, datetime, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from rmqctl.broker.view import view_of
from rmqctl.errors import UsageError, require
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import parse_time
from rmqctl.phrases import counted
from rmqctl.reports import (
    DiffReport,
    DoctorReport,
    PreflightReport,
    RepairPlan,
    Report,
    Row,
    StoreInfo,
    VerifyReport,
    page,
    silent,
    store_facts,
)
from rmqctl.store.objects import FIELDS
from rmqctl.store.pages import RecordPage
from rmqctl.store.problems import Problem
from rmqctl.store.projection import DECODED, Projection, checked_fields, is_decoded
from rmqctl.store.query.conditions import Condition, read_condition
from rmqctl.store.query.select import Selection, Selector
from rmqctl.store.store import Sizes
from rmqctl.store.store import Store as OpenedStore

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from rmqctl.ext.tiered.tier import Tier
    from rmqctl.repair.recover import RecoverOptions
    from rmqctl.repair.sources.opening import Readers
    from rmqctl.repair.sources.records import Unused
    from rmqctl.store.decoded import Decoding
    from rmqctl.store.pages import Page

__all__ = ["DiffReport", "DoctorReport", "GroupOffset", "Message", "Messages", "PreflightReport",
           "Problem", "Queue", "RepairPlan", "Report", "Store", "StoreInfo", "Topic",
           "VerifyReport", "open"]

_BODY = "body"
_WITHOUT = frozenset({"body_encoding"})
_NAMES = tuple(name for name in FIELDS if name not in _WITHOUT)
_VIEWS = ("disk", "broker", "auto")
_FIRST, _LAST = 0, (1 << 63) - 1
_MAX_SHOWN, _MAX_WIDTH = 10, 80
"""``_MAX_SHOWN``: maximum number of messages that a notebook shows; ``_MAX_WIDTH``: maximum number
of characters that it shows of a value.
"""
Time = datetime | int | str


class Message(TypedDict, total=False):
    """A message: the fields of the JSON message object, with the stored bytes of the body.

    Times are epoch milliseconds. The last three fields exist only with ``decode``. On request, a
    message also has ``property.NAME`` (a property) and ``body.NAME`` (a field of the decoded body).
    """

    physical_offset: int
    total_size: int
    magic: str
    body_crc: int
    crc_ok: bool
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str]
    properties_raw: str
    tags: str | None
    keys: list[str]
    unique_key: str | None
    msg_id: str
    body: bytes
    decoded: Any
    decoded_as: str | None
    internal: Any


@dataclass(frozen=True, eq=False, slots=True)
class Queue(Row):
    """A consume queue.

    ``min_offset``: its first queue offset; None if the queue cannot be read.
    ``max_offset``: the queue offset after its last entry; None if the queue cannot be read.
    ``kind``: ``simple``, or ``batch`` for a batch consume queue.
    ``messages``: number of its messages.
    """

    topic: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    kind: str
    messages: int


@dataclass(frozen=True, eq=False, slots=True)
class Topic(Row):
    """A topic and its queues. ``messages``: number of messages in all queues."""

    topic: str
    messages: int
    queues: list[Queue]


@dataclass(frozen=True, eq=False, slots=True)
class GroupOffset(Row):
    """The progress of a consumer group in a queue; ``group`` is None if no group reads the topic.

    ``diff``: number of messages that the group has not consumed.
    ``last_store_timestamp``: store time (epoch ms) of the last consumed message.
    ``unread_since``: store time (epoch ms) of the oldest message not consumed.
    """

    group: str | None
    topic: str
    queue_id: int
    min_offset: int | None
    max_offset: int | None
    consumer_offset: int | None
    diff: int | None
    last_store_timestamp: int | None
    unread_since: int | None
    note: str | None


def open(path: str | os.PathLike[str], *, commitlog_dirs: Iterable[str] = (),  # noqa: A001
         broker_conf: str | os.PathLike[str] | None = None) -> Store:
    """Open the store at ``path`` for reading.

    ``commitlog_dirs``: the folders of a multi-path log, if rmqctl does not find them.
    ``broker_conf``: the path of the broker's configuration file.
    Raises: NotAStoreError, StoreIOError.
    """
    sizes = Sizes()
    if broker_conf is not None:
        from rmqctl.store.broker_conf import read_conf

        sizes = Sizes(conf=read_conf(os.fspath(broker_conf)))
    folders = tuple(commitlog_dirs)
    return Store(OpenedStore.open(path, folders, sizes), folders)


class Store:
    """A store opened for reading. A context manager, created by `open`."""

    def __init__(self, opened: OpenedStore, folders: Sequence[str] = ()) -> None:
        self._store, self._folders = opened, folders

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<rmqctl store {self.path}>"

    def close(self) -> None:
        self._store.close()

    @property
    def path(self) -> str:
        return self._store.root

    def messages(self, topic: str | None = None, queue: int | None = None,
                 offset: int | None = None, *, topics: Sequence[str] | None = None,
                 since: Time | None = None, until: Time | None = None,
                 tag: str | None = None, key: str | None = None,
                 where: str | Sequence[str] = (), limit: int | None = None,
                 from_phy: int | None = None, to_phy: int | None = None,
                 fields: Sequence[str] | None = None, decode: str | None = None,
                 tz: tzinfo = UTC, view: str = "disk") -> Messages:
        """Return messages as `rmqctl read` does: the messages that a topic's consume queues point
        to, or all messages of the log in physical order.

        ``offset``: a queue offset.
        ``topics``: several topics. Their messages are returned in log order.
        ``since``, ``until``: store times, inclusive: a datetime, epoch milliseconds, or a text that
            the command accepts (``"-2h"``).
        ``where``: conditions as for ``--where``.
        ``fields``: names of fields of `Message` to return. Fields ``body.NAME`` do not need
            ``decode``.
        ``decode``: as for ``--decode``; adds ``decoded``, ``decoded_as`` and ``internal`` to
            messages.
        ``view``: with ``"broker"``, end where a broker would truncate the log.

        Raises: UsageError for unknown names and invalid values.
        """
        from rmqctl.ext.payloads.decoding import AUTO, Decoding

        _one_of("view", view, _VIEWS)
        _of_type(str, "expected one name; use topics=[…] for several", topic=topic)
        _of_type(str, "expected a string", tag=tag, key=key, decode=decode)
        _of_type(int, "expected an integer", queue=queue, offset=offset, limit=limit,
                 from_phy=from_phy, to_phy=to_phy)
        if topics is not None:
            _names("topics", topics)
        _names("where", [where] if isinstance(where, str) else where)
        _names("fields", fields or ())
        if topics is not None and (not topics or (topic, queue, offset) != (None, None, None)):
            raise UsageError("topics must not be empty, and cannot be combined with topic, queue "
                             "or offset")
        if (queue is not None and topic is None) or (offset is not None and queue is None):
            raise UsageError("queue requires topic, and offset requires queue")
        if limit is not None and limit < 0:
            raise UsageError(f"limit={limit}: expected 0 or more")
        decoding = Decoding(decode or AUTO)
        conditions = [read_condition(text, tz, lambda: decoding) for text in (
            [where] if isinstance(where, str) else where)]
        if topics:
            conditions.append(Condition("topic", "=", " || ".join(topics), tuple(topics)))
        selection = Selection(
            topic, queue, offset, limit, from_phy, to_phy, _millis(since, tz), _millis(until, tz),
            tag, key, tuple(conditions))
        names = _NAMES if decode is None else (*_NAMES, *DECODED)
        if fields is not None:
            names = tuple(checked_fields(fields, DECODED))
        return Messages(self._store, selection, names,
                        decoding if any(map(is_decoded, names)) else None, view)

    def topics(self) -> list[Topic]:
        """Return the topics with their queues and offsets, as in `rmqctl info -o json`."""
        return [Topic(topic["topic"], topic["messages"],
                      [Queue(topic["topic"], **queue) for queue in topic["queues"]])
                for topic in self.info()["topics"]]

    def info(self) -> StoreInfo:
        """Return the contents of the store: the document of `rmqctl info -o json`."""
        facts = store_facts(self._store, view_of(self._store, "auto"))
        messages = facts["messages"]
        return StoreInfo.of("info", self.path, None, counted(messages or 0, "message"), facts)

    def offsets(self, group: str | None = None, topic: str | None = None) -> list[GroupOffset]:
        """Return queue ranges, consumer offsets and lag: the rows of `rmqctl offsets -o jsonl`."""
        from rmqctl.store.config.offsets import Lag

        _of_type(str, "expected one name", group=group, topic=topic)
        rows = Lag(self._store, view_of(self._store, "auto"), group, topic).rows()
        return [GroupOffset(**row) for row in rows]

    def queues(self, topic: str | None = None) -> list[Queue]:
        """Return the consume queues with their offsets, as in `rmqctl info`, each with its
        topic.
        """
        _of_type(str, "expected one name", topic=topic)
        return [queue for topic_info in self.topics() if topic in (None, topic_info.topic)
                for queue in topic_info.queues]

    def query_key(self, topic: str, key: str, *, since: Time | None = None,
                  until: Time | None = None, most: int = 32, tz: tzinfo = UTC,
                  view: str = "auto") -> list[Message]:
        """Return the messages that have a key, found through the index as by a broker's
        queryMessage.
        """
        from rmqctl.store.query.lookup import by_key

        _one_of("view", view, _VIEWS)
        _of_type(str, "a text", topic=topic, key=key)
        _of_type(int, "expected an integer", most=most)
        begin, end = _millis(since, tz), _millis(until, tz)
        answer = by_key(view_of(self._store, view), topic, key, most=most,
                        begin=_FIRST if begin is None else begin,
                        end=_LAST if end is None else end)
        return list(_as_objects(RecordPage(answer.records), _NAMES))

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query over messages, consumequeue, index, offsets and findings, as
        `rmqctl sql` does. Requires rmqctl[sql].
        """
        require("duckdb", "pyarrow")
        from rmqctl.sql.session import QuerySession

        _of_type(str, "a query", query=query)
        with QuerySession([self.path], self._folders) as session:
            return list(session.ask(query).rows)

    def verify(self, *, most: int = 1000) -> VerifyReport:
        """Check every byte of the store: return the document of `rmqctl verify -o json`, with the
        first ``most`` findings.
        """
        from rmqctl.checks.preflight.missing import missing
        from rmqctl.checks.verify.verdict import verdict
        from rmqctl.checks.verify.verify import Verification

        run = Verification(self._store)
        result = verdict(run, most)
        lost = missing(self._store, damaged=not run.ok, seen=run.seen).counted
        result = replace(result, already_lost=lost)
        if (tier := self._tier()) is not None:
            from rmqctl.ext.tiered.verify.in_store import joined

            with tier:
                result = joined(result, tier, self._store, most)
        count = sum(result.counts.values())
        return VerifyReport.of("verify", self.path, result.ok,
                               counted(count, "finding") if count else "no findings",
                               result.as_dict(), result.findings)

    def _tier(self) -> Tier | None:
        """Return the tier in the store; None if the store contains no tier, or if the extension
        that reads tiers is missing.
        """
        from rmqctl.formats.tiered.names import promise_tier

        with suppress(ModuleNotFoundError, OSError):
            if promise_tier(os.listdir(self.path)):
                from rmqctl.ext.tiered.verify.in_store import tier_in

                return tier_in(self.path)
        return None

    def preflight(self, broker_version: str | None = None) -> PreflightReport:
        """Predict what a broker would do at startup: return the document of `rmqctl preflight -o
        json`.
        """
        from rmqctl.checks.advice import with_next
        from rmqctl.checks.preflight.around import around
        from rmqctl.checks.preflight.preflight import preflight

        prediction = preflight(self._store, broker_version, full=True, machine=around(self._store))
        if (tier := self._tier()) is not None:
            from rmqctl.ext.tiered.verify.in_store import losses

            with tier:
                prediction.in_tier = losses(tier, self._store)
        broker, lost = f"a {prediction.broker_version} broker", prediction.account.would_lose
        return PreflightReport.of(
            "preflight", self.path, prediction.harmless,
                      f"{broker} would not start" if not prediction.starts else
                      f"{broker} would start and lose {counted(lost, 'message')}" if lost else
                      f"{broker} would start and lose nothing" if prediction.harmless else
                      f"{broker} would start; see the document for the losses",
                      with_next(prediction, self.path))

    def doctor(self, broker_version: str | None = None) -> DoctorReport:
        """Diagnose the store: return the document of `rmqctl doctor -o json` with problems,
        affected groups, and losses at a startup.
        """
        from rmqctl.checks.doctor import MAX_LISTED, diagnose
        from rmqctl.checks.preflight.around import around_in_use
        from rmqctl.repair.outlook import advised

        diagnosis = diagnose(self._store, broker_version, 1,
                             machine=around_in_use(self._store, None))
        if (tier := self._tier()) is not None:
            from rmqctl.ext.tiered.verify.in_store import joined

            own = diagnosis.findings
            with tier:
                diagnosis = diagnosis.with_tier(joined(own, tier, self._store,
                                                       len(own.findings) + MAX_LISTED))
        diagnosis = replace(diagnosis,
                            outlook=advised(self._store, diagnosis, self._options(), silent))
        document = diagnosis.as_dict()
        return DoctorReport.of("doctor", self.path, document["sound"], str(diagnosis.verdict),
                               document, diagnosis.findings.findings)

    def diff(self, other: Store | str | os.PathLike[str], *,
             by: Literal["auto", "physical", "queue"] = "auto", most: int = 1000) -> DiffReport:
        """Compare with another store, message by message. Return the document of `rmqctl diff -o
        json` with the first ``most`` differences. ``by``: see the option ``--by``.
        """
        from rmqctl.checks.diff.diff import Diff, DiffOptions

        _one_of("by", by, ("auto", "physical", "queue"))
        with open(other.path if isinstance(other, Store) else other) as opened:
            run = Diff(self._store, opened._store, DiffOptions(by, most=most))
            run.prepare()
            run.run()
            total = run.differences.total
            return DiffReport.of("diff", self.path, run.equal,
                                 counted(total, "difference") if total else "no differences",
                                 run.as_dict())

    def recover(self, *, ambiguous: Literal["keep", "leave-out"] | None = None,
                sources: Sequence[str | os.PathLike[str]] = (), prefer: str | None = None,
                correct: Literal["bit", "byte", "off"] = "byte", keep_damaged: bool = False,
                max_message_size: int | None = None,
                consumequeue: Literal["file", "rocksdb"] | None = None) -> RepairPlan:
        """Return the plan of `rmqctl recover`. Only its method `apply` changes the store.

        The arguments are the options of the command; ``sources`` is ``--from``. Raises:
        RefusedError if the store cannot be repaired as it is.
        """
        from rmqctl.reports import recover_plan

        _one_of("ambiguous", ambiguous, (None, "keep", "leave-out"))
        _one_of("correct", correct, ("bit", "byte", "off"))
        _one_of("consumequeue", consumequeue, (None, "file", "rocksdb"))
        sizes = replace(self._store.sizes, largest_record=max_message_size)
        if consumequeue is not None:
            from rmqctl.broker.queue_form import STORE_TYPES

            sizes = replace(sizes, conf=replace(sizes.conf, store_type=STORE_TYPES[consumequeue]))
        options = replace(
            self._options(), ambiguous=ambiguous or "leave-out", sizes=sizes, correct=correct,
            keep_damaged=keep_damaged, sources=[os.fspath(source) for source in sources],
            prefer=prefer, form=consumequeue)
        return recover_plan(self.path, options, decided=ambiguous is not None)

    def _options(self) -> RecoverOptions:
        from rmqctl.repair.recover import RecoverOptions

        return RecoverOptions(commitlog_dirs=self._folders, sizes=self._store.sizes,
                              given=dict(self._store.sizes.conf.values), readers=source_readers())


def source_readers() -> Readers:
    """Return the readers for messages in Parquet files and for a tier, which may be sources of a
    repair.
    """
    from rmqctl.repair.sources.opening import Readers

    def parquet(path: str, unused: Unused) -> Iterator[tuple[str, bytes]]:
        require("pyarrow")
        from rmqctl.repair.sources.read_back import records

        return records(path, unused)

    def tier(path: str, unused: Unused) -> Iterator[tuple[str, bytes]]:
        from rmqctl.ext.tiered.read.records import records

        return records(path, unused)

    return Readers(parquet, tier)


@dataclass(slots=True, repr=False)
class Messages:
    """Messages that are read again in each iteration.

    Iterate over them, or get columns with `to_arrow`, `to_pandas`, `to_polars`, or any library that
    accepts Arrow streams (``duckdb``, ``polars.DataFrame``, ``pyarrow.table``). Times in columns
    are Arrow timestamps.
    """

    _store: OpenedStore = field(repr=False)
    selection: Selection
    fields: tuple[str, ...]
    decoding: Decoding | None = field(default=None, repr=False)
    view: str = "disk"
    problems: list[Problem] = field(default_factory=list)
    """Problems found in the last iteration: damage, gaps, entries that point to nothing."""

    def __iter__(self) -> Iterator[Message]:
        for stored in self._pages():
            yield from _as_objects(stored, self.fields, self.decoding)

    def __repr__(self) -> str:
        asked = {**{field.name: getattr(self.selection, field.name)
                    for field in dataclass_fields(Selection)}, "view": self.view}
        usual = {**{field.name: field.default for field in dataclass_fields(Selection)},
                 "view": "disk"}
        words = [f"{name}={value!r}" for name, value in asked.items() if value != usual[name]]
        return f"<rmqctl messages of {self._store.root}: {', '.join(words) or 'all'}>"

    def _repr_html_(self) -> str:
        first = list(islice(iter(replace(self, problems=[])), _MAX_SHOWN))
        return page(repr(self)[1:-1].removeprefix("rmqctl "), "" if len(first) < _MAX_SHOWN else
                    f"the first {_MAX_SHOWN}", [{name: str(value)[:_MAX_WIDTH] for name, value in
                                                 row.items()} for row in first])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches, one for each range of the log. Requires rmqctl[data]."""
        require("pyarrow")
        from rmqctl.store.page_columns import page_columns

        names = self.schema.names
        for stored in self._pages():
            yield page_columns(stored, names)

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the columns. Requires rmqctl[data].
        Raises: UsageError for fields of decoded bodies, which have no type.
        """
        require("pyarrow")
        of_bodies = [name for name in self.fields if is_decoded(name)]
        if of_bodies:
            raise UsageError(f"{', '.join(of_bodies)}: fields of decoded bodies cannot be columns; "
                             "iterate over the messages")
        from rmqctl.store.page_columns import schema

        return schema(self.fields)

    def to_arrow(self) -> pa.Table:
        """Return all messages as a pyarrow table."""
        require("pyarrow")
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return all messages as a pandas DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all messages as a polars DataFrame."""
        import polars as pl

        frame = pl.from_arrow(self.to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the messages as an Arrow stream for other libraries."""
        require("pyarrow")
        import pyarrow as pa

        from rmqctl.scan.ending import Stream

        reader = pa.RecordBatchReader.from_batches(self.schema, Stream(self.batches()))
        return reader.__arrow_c_stream__(requested_schema)

    def _pages(self) -> Iterator[Page]:
        self.problems.clear()
        bounds = view_of(self._store, self.view)
        return Selector(self._store, self.selection, bounds, self.problems.append).pages()


def _as_objects(stored: Page, names: Sequence[str],
                decoding: Decoding | None = None) -> Iterator[Message]:
    """Yield the messages of a page, with bodies as stored."""
    rows: Iterator[Any] = Projection(names, "none", decoding=decoding).rows(stored)
    if _BODY not in names:
        yield from rows
        return
    for row, body in zip(rows, stored.raw(_BODY), strict=True):
        row[_BODY] = bytes(body)
        yield {name: row[name] for name in names}  # type: ignore[misc]


def _one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        raise UsageError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")


def _of_type(kind: type, what: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise UsageError(f"{name}={value!r}: {what}")


def _names(name: str, value: object) -> None:
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(
            isinstance(entry, str) for entry in value):
        raise UsageError(f"{name}={value!r}: expected a list of strings")


def _millis(moment: Time | None, tz: tzinfo) -> int | None:
    if moment is None or isinstance(moment, int):
        return moment
    if isinstance(moment, datetime):
        with_zone = moment if moment.tzinfo is not None else moment.replace(tzinfo=tz)
        return round(with_zone.timestamp() * 1000)
    _of_type(str, "expected a datetime, milliseconds since 1970, or a string", time=moment)
    return parse_time(moment, tz=tz)
