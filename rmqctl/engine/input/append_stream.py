"""Append messages from lines of text. An engine writes the messages.

As in a broker, the topics in config/topics.json apply, and topics are created if needed. A dry run
uses the complete put path on a store opened read-only. Therefore its results are those of a real
run, including offsets and message ids.

A line that is not a message, or whose message is rejected, is skipped or ends the run, as the
caller chose. Earlier messages are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, NamedTuple, Protocol

from rmqctl.broker.settings import Settings
from rmqctl.broker.view import broker_view
from rmqctl.engine.config.topics import Topics
from rmqctl.engine.engine import Engine
from rmqctl.engine.input import objects
from rmqctl.engine.input.lines import InputError, Line
from rmqctl.engine.opening import (
    LogState,
    catch_up_start,
    dispatched_to,
    examine,
    lock_for,
    refuse_held,
    sizes_of,
)
from rmqctl.engine.put import ingest
from rmqctl.engine.put.ingest import MAX_BATCH, batches
from rmqctl.engine.put.message import (
    MESSAGE_ILLEGAL,
    Outgoing,
    OutgoingBatch,
    OutgoingList,
    PutResult,
    PutResults,
    refused,
)
from rmqctl.engine.put.put import Message, PutPath, Putting
from rmqctl.formats.local.message import BLANK_SIZE
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import now_ms
from rmqctl.scan.queue_reach import QueueReach
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.topic_queue_table import consumequeue_ends
from rmqctl.store.store import Store


class AppendSession:
    """An engine (or its dry run) together with the topics of the store."""

    def __init__(self, engine: Engine | DryRunEngine, topics: Topics, *,
                 auto_create_topic: bool = False) -> None:
        self.engine, self.topics = engine, topics
        self.settings = topics.settings
        self.auto_create_topic = auto_create_topic
        self.created: list[str] = []
        self.unknown: set[str] = set()
        """Topics that messages use but config/topics.json does not contain (only if that file
        exists).
        """
        self._seen: set[str] = set()
        self._allowed: set[tuple[str, int]] = set()

    @property
    def notes(self) -> Iterator[str]:
        """Notes for the user about the store, complete before anything is written."""
        if self.engine.recovered:
            why = ("consume queue or index entries were missing" if self.engine.state.clean
                   else "the last shutdown was not clean")
            yield (f"{why}: the last {self.engine.recovered} messages of the log were checked "
                   "again, and their missing entries were written")
        if isinstance(self.engine, Engine) and self.engine.aside.used:
            yield f"replaced files are kept in {self.engine.aside.folder}"

    @property
    def warnings(self) -> Iterator[str]:
        """Warnings about changed queue offsets, complete after everything is put."""
        renumbered, misplaced = self.engine.renumbered, self.engine.misplaced
        if renumbered:
            many = "1 message" if renumbered == 1 else f"{renumbered} messages"
            yield (f"{many} got new queue offsets, because the recorded ones are not the next "
                   "offsets of the queues in this store")
        if misplaced:
            yield (f"{misplaced} messages kept a queue offset that is not the next offset of their "
                   "queue: consumers do not find them at this offset, or find later messages at "
                   "other offsets")

    @property
    def remarks(self) -> Iterator[str]:
        """Further notes for the user, complete once all messages have been put."""
        if self.unknown:
            named = ", ".join(sorted(self.unknown)[:5])
            yield (f"config/topics.json does not contain {named}: a broker rejects clients that "
                   "use it (--auto-create-topic adds it)")
        if isinstance(self.engine, DryRunEngine):
            yield "dry run: nothing was written"

    def put(self, messages: Sequence[Message], *, stop: bool = False,
            obey_topics: bool = True) -> list[PutResult]:
        """Put a group of messages; see `Engine.put_many`.

        ``obey_topics``: reject messages that the topic configuration does not allow. If the session
        creates topics, new topics are added to the configuration.
        """
        if not obey_topics:
            return self.engine.put_many(messages, stop=stop)
        if isinstance(messages, OutgoingList):
            queues = set(zip(messages.columns[0], messages.columns[3], strict=True))
        else:
            queues = {(message.topic, message.queue_id) for message in messages}
        if queues <= self._allowed:
            return self._put(messages, stop)
        results: list[PutResult] = []
        start = 0
        for number, message in enumerate(messages):
            wrong = self._forbidden(message)
            if wrong is None:
                continue
            results += self._put(messages[start:number], stop)
            if stop and results and not results[-1].stored:
                return results
            results.append(wrong)
            start = number + 1
            if stop:
                return results
        return results + self._put(messages[start:], stop)

    def _put(self, messages: Sequence[Message], stop: bool) -> list[PutResult]:
        if not messages:
            return []
        results = self.engine.put_many(messages, stop=stop)
        topics = (set(messages.columns[0]) if isinstance(messages, OutgoingList)
                  else {message.topic for message in messages})
        if not topics <= self._seen:
            for message, result in zip(messages, results, strict=False):
                if result.stored:
                    self._note_topic(message)
        return results

    def _forbidden(self, message: Message) -> PutResult | None:
        if not isinstance(message, Outgoing | OutgoingBatch):
            return None
        queue = message.topic, message.queue_id
        if queue in self._allowed:
            return None
        reason = self.topics.allows(message.topic, message.queue_id)
        if reason is None and self.auto_create_topic and message.topic not in self._seen:
            reason = self.topics.creation_problem(message.topic)
        if reason is not None:
            return refused(MESSAGE_ILLEGAL, reason)
        self._allowed.add(queue)
        return None

    def _note_topic(self, message: Message) -> None:
        topic = message.topic
        if not isinstance(topic, str) or topic in self._seen:
            return
        self._seen.add(topic)
        if self.topics.get(topic) is not None:
            return
        if self.auto_create_topic:
            if isinstance(self.engine, Engine):
                self.topics.auto_create(topic)
            self.created.append(topic)
        elif self.topics.exists:
            self.unknown.add(topic)


@contextmanager
def open_session(root: str, settings: Settings, commitlog_dirs: Iterable[str] = (), *,
                 dry_run: bool = False, auto_create_topic: bool = False,
                 keep_queue_offsets: bool = False, outside: Iterable[str] = (),
                 clock: Callable[[], int] = now_ms) -> Iterator[AppendSession]:
    """Open a store for writing. Close the store at the end, cleanly if nothing failed.

    ``outside``: further folders that may be written; see `Engine.open`. ``dry_run``: open the store
    read-only; the results are the same.
    """
    opener = DryRunEngine.open if dry_run else Engine.open
    engine = opener(root, settings, commitlog_dirs=commitlog_dirs, clock=clock,
                    keep_queue_offsets=keep_queue_offsets, outside=outside)
    with engine:
        yield AppendSession(engine, Topics(root, settings, clock),
                            auto_create_topic=auto_create_topic)


class Convert(Protocol):
    """Interface of a converter of lines to messages. Raises: InputError if a line is not a
    message.
    """

    def line(self, line: Line) -> Message:
        """Return the message of a line."""

    def lines(self, lines: Sequence[Line]) -> Sequence[Message]:
        """Return the messages in many lines."""


_TOGETHER = 256
"""Number of lines that are converted at once. If one line is not a message, all lines of the group
are converted again, one by one.
"""


class LineFault(NamedTuple):
    """A line whose message was not stored. ``status``: the status that the engine returned; None if
    the message was not put.
    """

    line: int
    reason: str
    status: str | None
    raw: Line

    def __str__(self) -> str:
        status = f"{self.status}: " if self.status else ""
        return f"line {self.line}: {status}{self.reason}"


@dataclass(slots=True)
class AppendTally:
    """The progress of a run; offsets are physical, sizes are in bytes."""

    messages: int = 0
    bytes_written: int = 0
    refused: int = 0
    first_physical_offset: int | None = None
    end_physical_offset: int | None = None
    stopped_at_line: int | None = None
    started: float = field(default_factory=time.monotonic)

    def count(self, stored: Sequence[PutResult]) -> None:
        """Add stored messages, which are in the order of the log, to the counts."""
        if not stored:
            return
        self.messages += sum([len(result.physical_offsets) or 1 for result in stored])
        self.bytes_written += sum([result.wrote_bytes or 0 for result in stored])
        if self.first_physical_offset is None:
            self.first_physical_offset = stored[0].physical_offset
        last = stored[-1]
        self.end_physical_offset = (last.physical_offset or 0) + (last.wrote_bytes or 0)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as a JSON document."""
        seconds = time.monotonic() - self.started
        return {
            "messages": self.messages,
            "bytes": self.bytes_written,
            "refused": self.refused,
            "first_physical_offset": self.first_physical_offset,
            "end_physical_offset": self.end_physical_offset,
            "stopped_at_line": self.stopped_at_line,
            "seconds": round(seconds, 3),
            "messages_per_second": round(self.messages / seconds) if seconds > 0 else 0,
        }


def converter(settings: Settings, *, as_recorded: bool = False, replay: bool = False) -> Convert:
    """Return a converter of lines to messages. By default, the lines are messages of a client, to
    which a broker adds properties.

    ``as_recorded``: the lines are stored records. ``replay``: the lines are messages as they reach
    a put path.
    """
    trailing = settings.profile.trailing_separator
    if as_recorded:
        return objects.Recorded(trailing=trailing)
    if replay:
        return objects.Replay(trailing=trailing)
    prepare = ingest.Preparer(settings, ingest.unique_ids())
    return objects.ClientMessages(prepare, item=objects.joined(trailing=trailing),
                                  many=prepare.many,
                                  batch=ingest.Preparer(settings, ingest.unique_ids(), batch=True))


def _added(messages: list[Message] | OutgoingList,
           more: Sequence[Message]) -> list[Message] | OutgoingList:
    """Concatenate messages; the result is stored by column if both inputs are."""
    if isinstance(more, OutgoingList):
        if not messages:
            return more
        if isinstance(messages, OutgoingList):
            messages.extend(more)
            return messages
    messages = list(messages) if isinstance(messages, OutgoingList) else messages
    messages += more
    return messages


class LineAppender:
    """Converts groups of lines to messages and puts them into a session."""

    def __init__(self, session: AppendSession, convert: Convert, *, stop: bool = True,
                 obey_topics: bool = True, batch: int = 0) -> None:
        self._session, self._convert = session, convert
        self._stop, self._obey_topics, self._batch = stop, obey_topics, batch
        settings = session.settings
        self._room = min(MAX_BATCH, settings.max_message_size,
                         settings.commitlog_file_size - BLANK_SIZE)
        self.tally = AppendTally()
        self.faults: list[LineFault] = []
        """The lines of the last group that are not messages, with their faults."""
        self.stopped_by: str | None = None
        """If a line ended the run: a text with that line, the reason, and what happened to the
        earlier lines.
        """

    def put(self, lines: Sequence[tuple[int, Line]]) -> Iterator[tuple[int, PutResult]]:
        """Put a group of lines. Yield (line number, result) for each message that reached the
        engine. No line is put after a line that ends the run.
        """
        # Convert the lines, put the messages, and collect the results.
        self.faults = []
        messages, sources, broken = self._read(lines)
        if self._batch:
            messages, sources = self._join(list(messages), sources)
        results = self._session.put(messages, stop=self._stop,
                                    obey_topics=self._obey_topics) if messages else []
        stored = [result for result in results if result.physical_offset is not None]
        self.tally.count(stored)
        if len(stored) < len(results):
            for (number, raw), result in zip(sources, results, strict=False):
                if result.physical_offset is None:
                    reason = result.reason or result.status
                    self._fault(LineFault(number, reason, result.status, raw))
        if self.stopped_by is None:
            for fault in broken:
                self._fault(fault)
        self.faults.sort(key=lambda fault: fault.line)
        return ((source[0], result) for source, result in zip(sources, results, strict=False))

    def _read(self, lines: Sequence[tuple[int, Line]]) -> tuple[
            Sequence[Message], list[tuple[int, Line]], list[LineFault]]:
        """Return (messages, for each message its line, lines that are not messages)."""
        messages: list[Message] | OutgoingList = []
        sources: list[tuple[int, Line]] = []
        broken: list[LineFault] = []
        for start in range(0, len(lines), _TOGETHER):
            part = lines[start:start + _TOGETHER]
            try:
                messages = _added(messages, self._convert.lines([raw for _, raw in part]))
                sources += part
            except InputError:
                messages = list(messages)
                self._read_singly(part, messages, sources, broken)
            if broken and self._stop:
                break
        return messages, sources, broken

    def _read_singly(self, lines: Sequence[tuple[int, Line]], messages: list[Message],
                     sources: list[tuple[int, Line]], broken: list[LineFault]) -> None:
        """Convert lines one by one; stop at the first faulty line if it ends the run."""
        for number, raw in lines:
            try:
                messages.append(self._convert.line(raw))
            except InputError as error:
                broken.append(LineFault(number, str(error), None, raw))
                if self._stop:
                    break
            else:
                sources.append((number, raw))

    def _join(self, messages: list[Message], sources: list[tuple[int, Line]]) -> tuple[
            list[Message], list[tuple[int, Line]]]:
        """Combine adjacent messages into batches. The line number of a batch is that of its first
        message.
        """
        joined: list[Message] = []
        first = []
        number = 0
        for put in batches(messages, self._batch, self._room):
            joined.append(put)
            first.append(sources[number])
            made_here = isinstance(put, OutgoingBatch) and put is not messages[number]
            number += len(put.messages) if made_here else 1  # type: ignore[union-attr]
        return joined, first

    def _fault(self, fault: LineFault) -> None:
        self.faults.append(fault)
        self.tally.refused += 1
        if self._stop:
            self.tally.stopped_at_line = fault.line
            self.stopped_by = f"{fault}; stopped here, {self._before()}"

    def _before(self) -> str:
        """Return, in words, what happened to the lines before the line that ended the run."""
        count = self.tally.messages
        if not count:
            return "nothing was written"
        many = "the message" if count == 1 else f"the {count} messages"
        became = ("would be" if isinstance(self._session.engine, DryRunEngine) else
                  "was" if count == 1 else "were")
        return f"{many} before it {became} stored"


# -- a dry run ------------------------------------------------------------------------------------

class DryRunLog:
    """The log of a dry run: positions advance as in a real run, but no bytes are written."""

    def __init__(self, state: LogState, log: CommitLog, file_size: int) -> None:
        self.position, self._size = state.end, file_size
        self.files = log.files
        inside = bool(log.files) and state.end < log.end
        self.current: object | None = self if inside else None
        file = log.file_of(state.end) if inside else None
        self._left = file_size if file is None else file.end - state.end

    def room(self) -> int:
        """Return the number of bytes left in the current file; the file size if no file is open."""
        return self._left

    def append(self, parts: Sequence[bytes | memoryview]) -> None:
        count = sum(len(part) for part in parts)
        self.current = self
        self.position += count
        self._left -= count

    def close_with_blank(self) -> None:
        self.position += self._left
        self._left = 0

    def roll(self) -> None:
        self.current, self._left = self, self._size

    def start_at(self, physical: int) -> None:
        self.position = physical


class DryRunEngine(Putting):
    """A stand-in for `Engine` that returns the same results but writes nothing. Use `open`."""

    recovered = 0
    failed = False

    def __init__(self, root: str, settings: Settings, store: Store, state: LogState,
                 clock: Callable[[], int], keep_queue_offsets: bool) -> None:
        batch = settings.batch_topics | Topics(root, settings, clock).batch_topics()
        table = next_offsets(store, settings, state)
        self.log = DryRunLog(state, store.log, settings.commitlog_file_size)
        self._store, self.state = store, state
        self._path = PutPath(
            settings, self.log, table,
            lambda topic: settings.profile.batch_queues and topic in batch, clock, lambda: None,
            keep_queue_offsets)

    @classmethod
    def open(cls, root: str | os.PathLike[str], settings: Settings | None = None, *,
             commitlog_dirs: Iterable[str] = (), clock: Callable[[], int],
             keep_queue_offsets: bool = False, outside: Iterable[str] = ()) -> DryRunEngine:
        """Open the store read-only, with the checks of `Engine.open`."""
        settings = settings or Settings()
        path = os.fspath(root)
        dirs = list(commitlog_dirs)
        store = Store.open(path, dirs, sizes_of(settings))
        store.layout.require_writable(path)
        lock_for(store, dirs, outside)
        refuse_held(store, path)
        state = examine(store, settings.profile)
        return cls(path, settings, store, state, clock, keep_queue_offsets)

    def put_many(self, messages: Sequence[Message], *, stop: bool = False) -> list[PutResult]:
        """Return the results that a real run would have."""
        results = PutResults()
        self._path.put(messages, results, stop=stop)
        return results

    def reput(self) -> None:
        """Do nothing: a dry run has nothing to dispatch."""

    def flush(self) -> None:
        """Do nothing: a dry run has nothing to flush."""

    def close(self) -> None:
        self._store.close()


def next_offsets(store: Store, settings: Settings, state: LogState) -> dict[tuple[str, int], int]:
    """Return the topicQueueTable in the state after a real run has dispatched the rest of the
    log.
    """
    version = settings.profile
    table = consumequeue_ends(store, broker_view(store, version), lambda _: None)
    reach = QueueReach(version.generation, store.queues.light)
    start = catch_up_start(state, dispatched_to(store, version))
    for batch in store.log.walk(start, state.end):
        reach.add(batch)
    for (topic, queue_id), queue_reach in reach.result().items():
        key = os.fsdecode(topic), queue_id
        table[key] = max(table.get(key, 0), queue_reach.end)
    return table
