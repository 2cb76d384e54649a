"""A dry run: the whole put path on a store opened read-only, with nothing written.

Every result, offsets and message ids too, is the one a real run on the same store would give.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from rmqctl.broker.settings import Settings
from rmqctl.broker.view import broker_view
from rmqctl.engine.config.topics import Topics
from rmqctl.engine.opening import LogState, catch_up_start, dispatched_to, examine
from rmqctl.engine.put.message import PutResult
from rmqctl.engine.put.put import Message, PutPath
from rmqctl.errors import StoreHeldError
from rmqctl.scan.queue_reach import QueueReach
from rmqctl.store.log.commit_log import CommitLog
from rmqctl.store.queue.topic_queue_table import consumequeue_ends
from rmqctl.store.store import Sizes, Store


class DryRunLog:
    """Stands for the log's files: knows positions, keeps no bytes."""

    def __init__(self, state: LogState, log: CommitLog, file_size: int) -> None:
        self.position, self._size = state.end, file_size
        self.files = log.files
        inside = bool(log.files) and state.end < log.end
        self.current: object | None = self if inside else None
        file = log.file_of(state.end) if inside else None
        self._left = file_size if file is None else file.end - state.end

    def room(self) -> int:
        """Bytes left in the current file; a whole file where there is none yet."""
        return self._left

    def append(self, parts: Sequence[bytes]) -> None:
        count = sum(len(one) for one in parts)
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


class DryRunEngine:
    """What `Engine` is, without effect. Use `open`."""

    recovered = 0
    failed = False

    def __init__(self, root: str, settings: Settings, store: Store, state: LogState,
                 clock: Callable[[], int], keep_queue_offsets: bool) -> None:
        batch = settings.batch_topics | Topics(root, settings, clock).batch_topics()
        table = _table(store, settings, state)
        self.log = DryRunLog(state, store.log, settings.commitlog_file_size)
        self._store, self.state = store, state
        self._path = PutPath(
            settings, self.log, table,
            lambda topic: settings.profile.batch_queues and topic in batch, clock, lambda: None,
            keep_queue_offsets)

    @classmethod
    def open(cls, root: str | os.PathLike[str], settings: Settings | None = None, *,
             commitlog_dirs: Iterable[str] = (), clock: Callable[[], int],
             keep_queue_offsets: bool = False) -> DryRunEngine:
        """Opens the store read-only; refuses where `Engine.open` would."""
        settings = settings or Settings()
        sizes = Sizes(settings.commitlog_file_size, settings.consumequeue_file_size,
                      settings.index_slots, settings.index_max)
        path = os.fspath(root)
        store = Store.open(path, commitlog_dirs, sizes)
        held = store.lock
        if held.held:
            who = f"process {held.pid}" if held.pid else "another process"
            raise StoreHeldError(f"{path}: the store is held by {who} ({held.kind})")
        state = examine(store, settings.profile)
        return cls(path, settings, store, state, clock, keep_queue_offsets)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def put_many(self, messages: Sequence[Message], *, stop: bool = False) -> list[PutResult]:
        """The results a real run would give."""
        results, _ = self._path.put(messages, stop=stop)
        return results

    def put(self, message: Message) -> PutResult:
        return self.put_many([message])[0]

    def reput(self) -> None:
        """Nothing to dispatch."""

    def flush(self) -> None:
        """Nothing to flush."""

    def close(self) -> None:
        self._store.close()

    @property
    def renumbered(self) -> int:
        return self._path.renumbered

    @property
    def misplaced(self) -> int:
        """Recorded messages that kept a queue offset at which their queue does not go on."""
        return self._path.misplaced


def _table(store: Store, settings: Settings, state: LogState) -> dict[tuple[str, int], int]:
    """The topicQueueTable as it is when a real run has dispatched what the last one left."""
    version = settings.profile
    table = consumequeue_ends(store, broker_view(store, version), lambda _: None)
    reach = QueueReach(version.generation)
    start = catch_up_start(state, dispatched_to(store, version))
    for batch in store.log.walk(start, state.end):
        reach.add(batch)
    for (topic, queue_id), found in reach.found().items():
        key = os.fsdecode(topic), queue_id
        table[key] = max(table.get(key, 0), found.end)
    return table
