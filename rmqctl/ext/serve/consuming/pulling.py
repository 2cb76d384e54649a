"""Pulling messages, and waiting for them (spec: remoting.md §3.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from rmqctl.broker.get_message import (
    FOUND,
    MAX_BYTES,
    NO_MATCH,
    NO_MESSAGE,
    OVERFLOW_ONE,
    REMOVING,
)
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.consuming.groups import BROADCASTING
from rmqctl.ext.serve.consuming.subscriptions import TAG, Subscription
from rmqctl.ext.serve.reading import Accept, Pulled
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.source import READ
from rmqctl.formats.local.properties import RETRY_PREFIX
from rmqctl.lazy_dataclass import dataclass

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
"""Bits of a pull's sysFlag."""
MAX_WAIT_S = 300.0
MAX_WAITING = 1024
"""Maximum number of waiting pulls of one connection."""
_TEXT = 64
"""This many characters in a field of a waiting request count as one more request."""
_MAX_GROUPS = 10_000
"""Maximum number of pairs of group and topic whose delivered messages are counted."""
_CODES = {FOUND: Status.SUCCESS, NO_MATCH: Status.PULL_RETRY_IMMEDIATELY,
          REMOVING: Status.PULL_RETRY_IMMEDIATELY, OVERFLOW_ONE: Status.PULL_NOT_FOUND}


def pull_message(broker: Broker, call: Call) -> Response | None:
    """Answer a pull with messages from a queue offset on; if there are no messages, the pull may
    wait.
    """
    wanted = call.fields
    judge(broker, wanted, call.connection.peer)
    accept = wanted_by(broker, wanted)
    flags = wanted["sysFlag"]
    if flags & COMMIT and wanted["commitOffset"] is not None:
        broker.positions.commit(wanted["consumerGroup"], wanted["topic"], wanted["queueId"],
                                wanted["commitOffset"])
    response = _pulled(broker, wanted, accept)
    if response.code == Status.PULL_NOT_FOUND and flags & SUSPEND:
        wait = min((wanted["suspendTimeoutMillis"] or 0) / 1000, MAX_WAIT_S)
        waiting = _WaitingPull(broker, call, (wanted["topic"], wanted["queueId"]), accept)
        if wait > 0 and waiting.has_room:
            waiting.begin(wait)
            return None
    return response


def judge(broker: Broker, wanted: dict[str, Any], peer: str, lowest: int = 0,
          illegal: int = Status.SYSTEM_ERROR) -> None:
    """Check a request before anything is read, in the same order as a broker. Raises: Failed.

    ``lowest``: the lowest valid queue id. ``illegal``: the response code for an invalid queue id.
    """
    if not broker.takes_group(wanted["consumerGroup"]):
        raise Failed(Status.SUBSCRIPTION_GROUP_NOT_EXIST,
                     f"subscription group [{wanted['consumerGroup']}] does not exist")
    settings = broker.source.groups.get(wanted["consumerGroup"], {})
    if settings.get("consume_enable") is False:
        raise Failed(Status.NO_PERMISSION,
                     f"subscription group no permission, {wanted['consumerGroup']}")
    name = wanted["topic"]
    topic = broker.source.topics.get(name)
    if topic is None or not lowest <= wanted["queueId"] < topic.read_queues:
        topic = broker.require_topic(name)  # which has queues in memory, too
    if not topic.perm & READ:
        raise Failed(Status.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden")
    if not lowest <= wanted["queueId"] < topic.read_queues:
        raise Failed(illegal, f"queueId[{wanted['queueId']}] is illegal, "
                     f"topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}] "
                     f"consumer:[{peer}]")


def wanted_by(broker: Broker, wanted: dict[str, Any]) -> Accept | None:
    """Return the request's filter; if it has no filter, return the filter of the group's
    subscription. Raises: Failed.
    """
    name = wanted["topic"]
    if wanted["sysFlag"] & SUBSCRIPTION:
        return Subscription(name, wanted["subscription"] or "*",
                            wanted["expressionType"] or TAG).accept()
    group = broker.groups.consumers.get(wanted["consumerGroup"])
    if group is None:
        raise Failed(Status.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    if group.model == BROADCASTING and broker.source.groups.get(group.name, {}).get(
            "consume_broadcast_enable") is False:
        raise Failed(Status.NO_PERMISSION, f"the consumer group[{group.name}] can not consume by "
                     "broadcast way")
    subscription = group.subscriptions.get(name)
    if subscription is None:
        raise Failed(Status.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
    if subscription.version < (wanted["subVersion"] or 0):
        raise Failed(Status.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return None if name.startswith(RETRY_PREFIX) else subscription.accept()


def pull(broker: Broker, group: str, topic: str, queue_id: int, offset: int, most: int,
         accept: Accept | None, max_bytes: int | None = None) -> Pulled:
    """Return messages from a queue, starting at an offset; count them as delivered to a group.
    Raises: Failed.
    """
    queue = broker.queue(topic, queue_id)
    try:
        pulled = queue.pull(offset, most, accept, bytes_for(max_bytes))
    except RmqctlError as error:
        raise Failed(Status.SYSTEM_ERROR, str(error)) from None
    count(broker, (group, topic), pulled)
    return pulled


def bytes_for(wanted: int | None) -> int:
    """Return the maximum number of bytes of records in a response."""
    return MAX_BYTES if wanted is None else min(max(wanted, 1), MAX_BYTES)


def count(broker: Broker, key: tuple[str, str], pulled: Pulled) -> int:
    """Count messages as delivered to a group. Return their size in bytes."""
    broker.skipped += pulled.skipped
    size = pulled.size
    if size:
        if key in broker.delivered or len(broker.delivered) < _MAX_GROUPS:
            broker.delivered[key] += pulled.count
        broker.delivered_bytes += size
    return size


def _pulled(broker: Broker, wanted: dict[str, Any], accept: Accept | None) -> Response:
    pulled = pull(broker, wanted["consumerGroup"], wanted["topic"], wanted["queueId"],
                  wanted["queueOffset"], wanted["maxMsgNums"], accept, wanted.get("maxMsgBytes"))
    return response_to(pulled, wanted["queueOffset"])


def response_to(pulled: Pulled, offset: int) -> Response:
    """Return the response to a pull from queue offset ``offset``."""
    code = _CODES.get(pulled.status, Status.PULL_OFFSET_MOVED)
    if pulled.status == NO_MESSAGE and offset == 0:
        code = Status.PULL_NOT_FOUND
    return Response({
        "maxOffset": str(pulled.max), "minOffset": str(pulled.min),
        "nextBeginOffset": str(pulled.next_begin), "suggestWhichBrokerId": "0"},
        pulled.parts, int(code), pulled.status)


@dataclass(eq=False)
class Waiting(ABC):
    """A request that waits for messages until it expires. ``key``: the queue, or the line
    (`lines.Line`) in which the request waits.
    """

    broker: Broker
    call: Call
    key: Any

    @property
    def weight(self) -> int:
        return 1 + sum(len(text) // _TEXT for text in self.call.fields.values()
                       if isinstance(text, str))

    @property
    def has_room(self) -> bool:
        """Return whether the limits permit this request to wait."""
        return len(self.call.connection.at_end) < MAX_WAITING and (
            self.broker.waits.has_room(self.call.connection.host, self.weight))

    def begin(self, seconds: float) -> None:
        self.call.command.ext, self.call.command.body = {}, b""  # which may be large
        self.broker.waits.take(self.call.connection.host, self.weight)
        self._timer = self.broker.later(seconds, self._over)
        self.call.connection.at_end.add(self.end)
        self.join()

    @property
    def waits(self) -> bool:
        return self.end in self.call.connection.at_end

    def end(self) -> None:
        if not self.waits:
            return
        self.broker.waits.leave(self.call.connection.host, self.weight)
        self._timer.cancel()
        self.call.connection.at_end.discard(self.end)
        self.leave()

    def join(self) -> None:
        """Start listening for new messages."""
        self.broker.listen(self.key, self.look)

    def leave(self) -> None:
        """Stop listening for new messages."""
        self.broker.stop_listening(self.key, self.look)

    def again_in(self, seconds: float) -> None:
        """Check again after ``seconds`` instead of at the end of the wait."""
        self._timer.cancel()
        self._timer = self.broker.later(seconds, self._over)

    def _over(self) -> None:
        self.look(False)

    def answer(self, response: Response) -> None:
        """Send the response, and stop waiting."""
        self.end()
        self.call.reply(response)

    @abstractmethod
    def look(self, may_wait: bool) -> None:
        """Check for messages and answer the request.

        If no messages exist and the request may continue to wait (``may_wait``), do not answer.
        """


@dataclass(eq=False)
class _WaitingPull(Waiting):
    """A pull request that waits."""

    accept: Accept | None

    def look(self, may_wait: bool) -> None:
        if not self.waits:
            return
        if self.call.connection.is_full:
            self.answer(self._not_now())
            return
        try:
            response = _pulled(self.broker, self.call.fields, self.accept)
        except Failed as answer:
            response = Response(code=answer.status, remark=answer.remark)
        if response.code == Status.PULL_NOT_FOUND and may_wait:
            return
        if response.code == Status.PULL_RETRY_IMMEDIATELY and may_wait:
            # No new message passes the filter: continue after them.
            ext = response.ext or {}
            self.call.fields["queueOffset"] = following = int(ext["nextBeginOffset"])
            if following < int(ext["maxOffset"]):
                self.broker.wake(self.look)
            return
        self.answer(response)

    def _not_now(self) -> Response:
        """Return a response that makes the client pull again later.

        It is for clients that do not read their responses. Messages for all their waiting pulls
        would only take up memory.
        """
        offset = str(self.call.fields["queueOffset"])
        return Response({"maxOffset": offset, "minOffset": "0", "nextBeginOffset": offset,
                         "suggestWhichBrokerId": "0"}, (), int(Status.PULL_RETRY_IMMEDIATELY))


HANDLERS: Table = {"PULL_MESSAGE": pull_message, "LITE_PULL_MESSAGE": pull_message}
