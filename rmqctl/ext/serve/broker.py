"""A store served as a broker: topics, groups, queues, and requests that wait for messages.

This module contains what several handlers share. The handlers are in other modules, by subject.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.access import Access
from rmqctl.ext.serve.consuming.groups import Group, Groups, QueueLocks
from rmqctl.ext.serve.consuming.memory import BASE, Memory
from rmqctl.ext.serve.consuming.positions import Positions
from rmqctl.ext.serve.limits import Quota
from rmqctl.ext.serve.orders import Faults
from rmqctl.ext.serve.reading import EmptyQueue, ServedQueue
from rmqctl.ext.serve.remoting.codes import NOTIFY_CONSUMER_IDS_CHANGED, Failed, Status
from rmqctl.ext.serve.remoting.command import Command
from rmqctl.ext.serve.remoting.frame import FrameReader
from rmqctl.ext.serve.source import READ, WRITE, ServedStore, ServedTopic
from rmqctl.ext.serve.sums import BrokerCounts
from rmqctl.formats.local.properties import RETRY_PREFIX
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import Address

if TYPE_CHECKING:
    from rmqctl.ext.serve.producing.delaying import Delays
    from rmqctl.ext.serve.producing.timing import Timers
    from rmqctl.ext.serve.producing.transactions import Transactions
    from rmqctl.ext.serve.producing.writing import Writer

_ANY = ("0.0.0.0", "::", "")  # noqa: S104 - nothing is bound here
Buffer = bytes | memoryview
_TURN_S = 0.02
"""Maximum time in seconds for checking waiting requests before other clients are served again."""
Mode = tuple[str, int]
"""A request mode (``PULL`` or ``POP``), and the number of clients with which a client shares the
queues of a topic.
"""
MAX_WAITING = 100_000
"""Maximum number of waiting requests of a broker."""
ANY_QUEUE = -1
"""The queue id in requests that wait for messages from any queue of a topic."""


class Connection(Protocol):
    """A client's connection, as handlers use it. ``peer``: the client's address; ``host``: the part
    of this address to which limits apply.
    """

    peer: str
    host: str
    local_host: str
    """The server's address to which the client connected."""
    at_end: set[Callable[[], None]]
    """Callbacks to call when the connection is closed. A callback that is no longer needed removes
    itself.
    """

    @property
    def is_full(self) -> bool:
        """Return whether the client must first read responses that were already sent."""
        ...

    def send(self, command: Command) -> None:
        """Send a command that the client did not request; drop the command if the client does not
        read.
        """
        ...

    def ask(self, command: Command, then: Callable[[Command | None], None], seconds: float) -> None:
        """Send a request to the client, and call ``then`` once with the response.

        If no response arrives within ``seconds`` or before the connection is closed, call ``then``
        with None.
        """

    def reply(self, request: Command, response: Response) -> None: ...


class Response(msgspec.Struct):
    """The response to a request. ``ext``: header fields; ``parts``: parts of the body, in order."""

    ext: dict[str, str] | None = None
    parts: Sequence[Buffer] = ()
    code: int = 0
    remark: str | None = None


class EncodedConnection(Protocol):
    """A client's connection, as the fast answers use it: they send encoded responses."""

    peer: str

    @property
    def is_full(self) -> bool: ...

    def send_parts(self, parts: list[Buffer], size: int) -> None:
        """Send an encoded response of ``size`` bytes."""

    def send_bytes(self, data: bytes) -> None:
        """Send an encoded response."""

    def reply(self, request: Command, response: Response) -> None: ...


class FastPulls(Protocol):
    """The fast answers to plain pulls."""

    def take_all(self, client: EncodedConnection, frames: FrameReader, late: float) -> bool:
        """Answer pulls at the start of the received frames until ``late`` (monotonic seconds).
        Return whether at least one was answered.
        """
        ...


class FastSends(Protocol):
    """The fast answers to plain sends."""

    def take_all(self, client: EncodedConnection, frames: FrameReader) -> bool:
        """Store the messages at the start of the received frames. Return whether at least one frame
        was answered.
        """
        ...


class Call(msgspec.Struct):
    """A request: its connection, its command, and its header fields, converted to their types."""

    connection: Connection
    command: Command
    fields: dict[str, Any]

    def reply(self, response: Response) -> None:
        """Send the response to a request whose handler has returned None."""
        if not self.command.is_one_way:
            self.connection.reply(self.command, response)


class Rounds(Protocol):
    """A task that a broker runs periodically."""

    def begin(self) -> None:
        """Start the task if it is due."""

    def stop(self) -> None:
        """Cancel a running task."""


@dataclass(slots=True)
class Cluster:
    """The state that all brokers of a server share."""

    name: str
    brokers: dict[str, Broker] = field(default_factory=dict)
    kv: dict[str, dict[str, str]] = field(default_factory=dict)
    access: Access = field(default_factory=Access)
    faults: Faults = field(default_factory=Faults)


@dataclass(eq=False)
class Broker:
    """A served store.

    ``start``: where groups without a consumer offset start: ``stored`` (as a broker decides),
    ``earliest``, ``latest``, or a time in ms.
    """

    name: str
    cluster: Cluster
    source: ServedStore
    positions: Positions
    memory: Memory
    start: str | int = "stored"
    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    groups: Groups = field(default_factory=Groups)
    locks: QueueLocks = field(default_factory=QueueLocks)
    delivered: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of messages delivered, by group and topic."""
    delivered_bytes: int = 0
    sums: BrokerCounts = field(default_factory=BrokerCounts)
    requests: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    """Number of damaged messages that were skipped."""
    started: float = field(default_factory=time.time)
    waiting: dict[tuple[str, int], set[Callable[[bool], None]]] = field(
        default_factory=lambda: defaultdict(set))
    """For each queue, callbacks of the requests that wait for messages. The argument says whether
    the request may continue to wait.
    """
    on_event: Callable[..., None] = lambda **_: None
    """Callback for events, called with an event's fields as keyword arguments."""
    failed: Callable[[str, Exception], None] = lambda _name, _error: None
    """Callback for unexpected errors in handlers."""
    waits: Quota = field(default_factory=lambda: Quota(MAX_WAITING))
    """The limit on waiting requests. A large request counts as several (see `pulling.Waiting`)."""
    pops: Any = field(init=False)
    """Messages delivered by POP: a `popping.Pops` (not imported: `popping` imports this module)."""
    modes: dict[tuple[str, str], Mode] = field(default_factory=dict)
    """Request modes set by clients, by topic and group."""
    _retries: dict[str, ServedTopic] = field(default_factory=dict)
    _woken: dict[Callable[[bool], None], None] = field(default_factory=dict)
    _waking: bool = False
    _to_notify: dict[str, Group] = field(default_factory=dict)

    is_wiped: bool = False
    """True if routes returned to clients do not permit sending, because a tool requested this."""
    writer: Writer | None = None
    new_groups: set[str] = field(default_factory=set)
    """Groups that connected since the store's configuration was last written."""
    delays: Delays | None = None
    timers: Timers | None = None
    transactions: Transactions | None = None
    pulls: FastPulls = field(init=False)
    sends: FastSends | None = None
    """Stores plain messages; None if the store is only read."""
    checks: Rounds | None = None

    @property
    def is_writable(self) -> bool:
        """Return whether the broker accepts messages."""
        return self.writer is not None

    @property
    def received(self) -> Counter[str]:
        """Number of messages stored since the start, by topic."""
        return Counter() if self.writer is None else self.writer.received

    def address_for(self, connection: Connection) -> Address:
        """Return the address at which a client reaches the broker.

        If the broker listens on all addresses, this is the address that the client connected to.
        """
        if self.address.host in _ANY and connection.local_host:
            return replace(self.address, host=connection.local_host)
        return self.address

    # -- topics and queues --------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, ServedTopic]:
        """All topics by name, with the permissions that clients have."""
        topics = {**self.source.topics, **self._retries}
        for group in self.groups.consumers:
            name = RETRY_PREFIX + group
            if name not in topics:
                topics[name] = ServedTopic(name, 0, 0, READ)
        return {name: self._served(topic) for name, topic in topics.items()}

    def topic(self, name: str) -> ServedTopic | None:
        topic = self.source.topics.get(name) or self._retries.get(name)
        if topic is None and name.startswith(RETRY_PREFIX):
            group = name.removeprefix(RETRY_PREFIX)
            if group in self.source.groups or group in self.groups.consumers:
                topic = ServedTopic(name, 0, 0, READ)
        if self.writer is not None and self.writer.topics.get(name) is None:
            own = self.writer.topics.own(name)
            if own is not None:
                topic = ServedTopic(name, own["readQueueNums"], own["writeQueueNums"], own["perm"])
        return None if topic is None else self._served(topic)

    def _served(self, topic: ServedTopic) -> ServedTopic:
        """Return the topic as clients see it: an in-memory queue, if any, follows the stored
        queues.

        A retry topic always has an in-memory queue. Consumers can then pull from the topic before
        it has messages.
        """
        is_retry = topic.name.startswith(RETRY_PREFIX)
        extra = int(is_retry or (topic.name, topic.read_queues) in self.memory.queues)
        perm = topic.perm
        if not self.is_writable:
            perm &= READ
        elif is_retry:  # as it will be made
            perm, extra = READ | WRITE, 0 if topic.read_queues else self.source.retry_queues(
                topic.name.removeprefix(RETRY_PREFIX))
        if self.is_wiped:
            perm &= ~WRITE
        return ServedTopic(topic.name, topic.read_queues + extra, topic.write_queues + (
            extra if self.is_writable else 0), perm, topic.order, topic.sys_flag)

    def require_topic(self, name: str) -> ServedTopic:
        """Return a topic. Raises: Failed (code 17) if it does not exist."""
        topic = self.topic(name)
        if topic is None:
            raise Failed(Status.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        return topic

    def queue(self, topic: str, queue_id: int) -> ServedQueue:
        """Return the queue to read from; an empty queue if the queue does not exist.

        Raises: Failed if the queue cannot be read.
        """
        in_memory = self.memory.queues.get((topic, queue_id))
        if in_memory is not None:
            return in_memory
        put = None if self.writer is None else self.writer.queue((topic, queue_id))
        if put is not None:
            return put
        if queue_id < 0 or topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            return EmptyQueue()
        try:
            return self.source.queue(topic, queue_id)
        except RmqctlError as error:
            raise Failed(Status.SYSTEM_ERROR, str(error)) from None

    def memory_queue(self, topic: str) -> int:
        """Return the id of the in-memory queue of a retry or dead-letter topic."""
        retry_topic = self.source.topics.get(topic)
        if retry_topic is None:
            retry_topic = self._retries.setdefault(topic, ServedTopic(topic, 0, 0, READ))
        return retry_topic.read_queues

    def raw_at(self, physical: int) -> Buffer | None:
        """Return the complete record at a physical offset, in the log or in memory."""
        if physical >= BASE:
            return self.memory.raw_at(physical)
        if physical < 0:
            return None
        limit = self.source.view.log_end
        record = self.source.store.log.record_at(physical)
        if record is None or not record.crc_ok or (
                limit is not None and physical + record.total_size > limit):
            return None
        return self.source.store.log.raw_at(physical)

    # -- who waits ----------------------------------------------------------------------------

    def listen(self, key: tuple[str, int], waiting: Callable[[bool], None]) -> None:
        """From now on, notify a waiting request of new messages in a queue."""
        self.waiting[key].add(waiting)

    def stop_listening(self, key: tuple[str, int], waiting: Callable[[bool], None]) -> None:
        listeners = self.waiting[key]
        listeners.discard(waiting)
        if not listeners:
            del self.waiting[key]

    def arrived(self, topic: str, queue_id: int) -> None:
        """Wake the requests that wait for messages of a queue, after messages may have been added
        to it.
        """
        for key in ((topic, queue_id), (topic, ANY_QUEUE)):
            for look in self.waiting.get(key, ()):
                self.wake(look)

    def wake(self, waiting: Callable[[bool], None]) -> None:
        """Let a waiting request check for messages in the next turn of the event loop."""
        self._woken[waiting] = None
        if not self._waking:
            self._waking = True
            self.later(0, self._wake)

    def _wake(self) -> None:
        """Let as many waiting requests as one turn permits check for messages. The others follow
        after other clients have been served.
        """
        late = time.monotonic() + _TURN_S
        while self._woken and time.monotonic() < late:
            waiting = next(iter(self._woken))
            del self._woken[waiting]
            try:
                waiting(True)
            except Exception as error:  # noqa: BLE001 - the others are called all the same
                self.failed("PULL_MESSAGE", error)
        self._waking = bool(self._woken)
        if self._waking:
            self.later(0, self._wake)

    def look_again(self) -> None:
        """Let all waiting requests check for messages if the store has changed."""
        if self.writer is not None:
            self.writer.settle_in_time()
        elif self.source.refresh():
            self.on_event(event="changed", broker=self.name)
            for key in list(self.waiting):
                self.arrived(*key)

    def deliver(self) -> None:
        """Deliver delayed and timed messages that are due, and start a check of transactions if it
        is due.
        """
        if self.delays is not None:
            self.delays.deliver()
        if self.timers is not None:
            self.timers.deliver()
        if self.checks is not None:
            self.checks.begin()

    def keep(self) -> None:
        """Write new groups and the progress of delayed messages into a writable store.
        Raises: StoreIOError, RefusedError.
        """
        if self.writer is None or self.writer.failure is not None:
            return
        from rmqctl.ext.serve.producing.opening import keep_groups, keep_json

        if self.new_groups:
            keep_groups(self.writer, self.new_groups)
            self.new_groups.clear()
        if self.delays is not None and self.delays.changed:
            keep_json(self.source, "delayOffset.json", {"offsetTable": {
                str(level): offset for level, offset in sorted(self.delays.done.items())}})
            self.delays.changed = False

    def close(self) -> None:
        """Close the store. A writable store is left as a broker leaves it at shutdown."""
        if self.checks is not None:
            self.checks.stop()
        if self.transactions is not None:
            self.transactions.flush()
        if self.timers is not None:
            self.timers.finish()
        if self.writer is not None:
            self.writer.close()
        if self.timers is not None:
            self.timers.close()
        self.source.close()

    # -- groups -------------------------------------------------------------------------------

    def notify_members(self, group: Group, but: object = None) -> None:
        """Notify a group's members of a change of membership, unless the group's settings forbid
        this.

        The members then rebalance the queues.
        """
        if self.source.groups.get(group.name, {}).get("notify_consumer_ids_changed_enable") is (
                False):
            return
        for peer in {id(member.peer): member.peer for member in group.members.values()}.values():
            if peer is not but:
                peer.send(Command(NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group.name},
                                  flag=2))

    def notify_in_turns(self, groups: Iterable[Group]) -> None:
        """Notify the members of many groups, a few groups per turn, so that other requests are
        served too.
        """
        waiting = bool(self._to_notify)
        self._to_notify.update((group.name, group) for group in groups)
        if self._to_notify and not waiting:
            self.later(0, self._tell)

    def _tell(self) -> None:
        late = time.monotonic() + _TURN_S
        while self._to_notify and time.monotonic() < late:
            self.notify_members(self._to_notify.popitem()[1])
        if self._to_notify:
            self.later(0, self._tell)

    def forget(self, connection: Connection) -> None:
        """Remove the clients of a connection from all groups."""
        self.notify_in_turns(self.groups.drop(peer=connection))
        self.groups.drop_producers(peer=connection)

    def expire(self) -> None:
        """Remove expired locks and clients without a recent heartbeat, and record statistics."""
        self.sums.note(self.received, self.delivered)
        self.notify_in_turns(self.groups.drop_silent())
        self.locks.expire()

    def takes_group(self, group: str) -> bool:
        """Return whether consumers of the group may connect."""
        return self.writer is None or self.writer.makes_groups or group in self.source.groups

    def knows_group(self, group: str) -> bool:
        return group in self.source.groups or group in self.groups.consumers

    def later(self, seconds: float, then: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, then)


Handler = Callable[[Broker, Call], Response | None]
Table = dict[str, Handler]
"""Request handlers by request name."""
