"""A store opened to be written to by a command: the engine, and what a broker does around it.

That is: topics of config/topics.json are obeyed and created, and an unclean end is told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rmqctl.engine.clock import now_ms
from rmqctl.engine.config.settings import Settings
from rmqctl.engine.config.topics import Topics
from rmqctl.engine.engine import Engine
from rmqctl.engine.input.dry_run import Rehearsal
from rmqctl.engine.put.message import Outgoing, OutgoingBatch
from rmqctl.engine.put.put import Message
from rmqctl.engine.put.result import MESSAGE_ILLEGAL, PutResult, refused


class Session:
    """An engine (or its rehearsal) with the store's topics."""

    def __init__(self, engine: Engine | Rehearsal, topics: Topics, *,
                 auto_create_topic: bool = False) -> None:
        self.engine, self.topics = engine, topics
        self.settings = topics.settings
        self.auto_create_topic = auto_create_topic
        self.created: list[str] = []
        self.unknown: set[str] = set()
        """Topics which a broker would not know: config/topics.json is there and lacks them."""
        self._seen: set[str] = set()
        self._allowed: set[tuple[str, int]] = set()

    @property
    def notes(self) -> Iterator[str]:
        """What the user should know of the store before anything is written."""
        if self.engine.recovered:
            why = ("consumequeues or index lacked some of the log" if self.engine.state.clean
                   else "the last run did not end cleanly")
            yield (f"{why}: the last {self.engine.recovered} messages of the log were looked at "
                   "again, and what was missing of their rows and keys was written")
        if isinstance(self.engine, Engine) and self.engine.aside.used:
            yield f"what was replaced by that is kept in {self.engine.aside.folder}"

    def put(self, messages: Sequence[Message], *, stop: bool = False,
            obey_topics: bool = True) -> list[PutResult]:
        """Puts a group; see `Engine.put_many`.

        With ``obey_topics`` a message which a broker's topic configuration does not allow is
        refused, and new topics are entered there if the session creates topics.
        """
        if not obey_topics:
            return self.engine.put_many(messages, stop=stop)
        queues = {(one.topic, one.queue_id) for one in messages}
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
        if not {one.topic for one in messages} <= self._seen:
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
                 keep_queue_offsets: bool = False,
                 clock: Callable[[], int] = now_ms) -> Iterator[Session]:
    """Opens a store for writing and closes it, cleanly where nothing failed.

    ``dry_run`` opens it read-only: every answer is what a real run would give.
    """
    opener = Rehearsal.open if dry_run else Engine.open
    engine = opener(root, settings, commitlog_dirs=commitlog_dirs, clock=clock,
                    keep_queue_offsets=keep_queue_offsets)
    with engine:
        yield Session(engine, Topics(root, settings, clock), auto_create_topic=auto_create_topic)
