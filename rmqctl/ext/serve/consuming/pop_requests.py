"""POP over the remoting protocol: receive, acknowledge and change the invisible time of messages.

Responses are the same as from a 5.x broker, with one exception. When the invisible time of a
message is over, the message is delivered again from its own queue, not from a retry topic. POP
therefore also works with a read-only store.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from base64 import b64decode
from binascii import Error as Base64Error
from contextlib import suppress
from dataclasses import replace

from rmqctl.broker.get_message import FOUND, NO_MESSAGE
from rmqctl.ext.serve.broker import ANY_QUEUE, Broker, Buffer, Call, Response, Table
from rmqctl.ext.serve.consuming.clients import body_of, objects
from rmqctl.ext.serve.consuming.lines import Line
from rmqctl.ext.serve.consuming.popping import (
    MAX_ATTEMPTS,
    DeliveredMessage,
    GroupDeliveries,
    PopRequest,
    Receipt,
    attempt_of,
)
from rmqctl.ext.serve.consuming.pulling import MAX_WAIT_S, Waiting, judge
from rmqctl.ext.serve.consuming.subscriptions import ALL, TAG, Subscription
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.local.message import build, decode
from rmqctl.formats.local.properties import LMQ_PREFIX, RETRY_PREFIX
from rmqctl.lazy_dataclass import dataclass

_MAX_MESSAGES = 32
_MAX_INVISIBLE_MS = 12 * 3_600_000
"""Maximum invisible time of a message (ms)."""
_IN_ORDER = 999
"""The revive queue id in the receipts of messages that are consumed in order."""
_LATEST = 1
"""The ``initMode`` of a request that lets a group start with new messages if it has no consumer
offset.
"""
_MIN_WAIT_S = 0.01
_RECEIPT = re.compile(r"-?\d{1,19} (\d{1,19}) -?\d{1,19} -?\d{1,9} .*")
_MAX_NAME = 255
_MAX_ACKED, _MAX_SETS = 1024, 4096
"""Maximum number of entries in a batch acknowledgement, and maximum length in characters of all
their bit sets together.
"""


def has_batches(broker: Broker, topic: str) -> bool:
    """Return whether a topic has batch consume queues, from which POP cannot deliver single
    messages.
    """
    return any(name == topic for name, _ in broker.source.store.queues.batch)


# Receiving --------------------------------------------------------------------------------------


def pop_message(broker: Broker, call: Call) -> Response | None:
    """Return messages of a topic that are not in flight to another client, as soon as there are
    any.
    """
    wanted = call.fields
    _judge(broker, call)
    if wanted["maxMsgNums"] > _MAX_MESSAGES:
        raise Failed(Status.INVALID_PARAMETER, f"the broker[{broker.address.host}] pop message's "
                     f"num is greater than {_MAX_MESSAGES}")
    accept = None
    if wanted["exp"]:
        accept = Subscription(wanted["topic"], wanted["exp"], wanted["expType"] or TAG).accept()
    return _WaitingPop(broker, call, _line(call), PopRequest(
        max(wanted["maxMsgNums"], 1), _milliseconds(wanted["invisibleTime"]) / 1000, accept,
        bool(wanted["order"]), "", max(wanted["queueId"], ANY_QUEUE),
        wanted["initMode"] == _LATEST, attempt_of(wanted["attemptId"]))).start()


def notification(broker: Broker, call: Call) -> Response | None:
    """Answer as soon as there are messages to pop, or when the poll time is over."""
    _judge(broker, call)
    return _WaitingNotice(broker, call, _line(call)._replace(notice=True)).start()


def polling_info(broker: Broker, call: Call) -> Response:
    """Return how many of a group's requests are waiting for messages from a topic."""
    _judge(broker, call)
    return Response({"pollingNum": str(broker.pops.lines.count(*_line(call)[:3]))})


def _line(call: Call) -> Line:
    wanted = call.fields
    return Line(wanted["consumerGroup"], wanted["topic"], max(wanted["queueId"], ANY_QUEUE),
                wanted.get("expType") or TAG, wanted.get("exp") or ALL, bool(wanted.get("order")))


def _judge(broker: Broker, call: Call) -> None:
    """Raise Failed if the topic cannot be read by POP."""
    name: str = call.fields["topic"]
    judge(broker, call.fields, call.connection.peer, ANY_QUEUE, Status.INVALID_PARAMETER)
    _check_group(call.fields["consumerGroup"])
    if has_batches(broker, name):
        raise Failed(Status.SYSTEM_ERROR,
                     f"the topic[{name}] has batch consume queues, which clients can only pull "
                     "from")


def _check_group(name: str) -> None:
    """Raise Failed if a group name is too long to keep in memory."""
    if len(name) > _MAX_NAME:
        raise Failed(Status.SUBSCRIPTION_GROUP_NOT_EXIST,
                     f"the group name has {len(name)} characters; the limit is {_MAX_NAME}")


def _milliseconds(wanted: int) -> int:
    return min(max(wanted, 0), _MAX_INVISIBLE_MS)


class _WaitingForAny(Waiting):
    """A POP request that waits for messages that are new or become visible again."""

    late = 0.0
    """The time at which the wait ends (monotonic seconds)."""

    @property
    def popped(self) -> GroupDeliveries:
        """Return the deliveries of the topic to the group; do not keep a reference to them."""
        wanted = self.call.fields
        popped: GroupDeliveries = self.broker.pops.of(wanted["consumerGroup"], wanted["topic"])
        return popped

    def start(self) -> Response | None:
        """Return the response; None if the request must wait. Raises: Failed."""
        response = self.answer_now()
        if response is not None:
            return response
        wait = min(self.call.fields["pollTime"] / 1000, MAX_WAIT_S)
        if wait <= 0 and not self.is_unfinished:
            return self.empty_response()
        if not self.has_room:
            return self.empty_response(full=True)
        self.late = time.monotonic() + max(wait, 0)
        self.begin(max(wait, _MIN_WAIT_S))
        self._wait()
        return None

    def join(self) -> None:
        self.broker.pops.lines.join(self.key, self.look)

    def leave(self) -> None:
        self.broker.pops.lines.leave(self.key, self.look)

    def _wait(self) -> None:
        """Schedule the next check for messages, at the latest when the request expires.

        For the first request in its line, the check is earlier if a message may become visible
        again.
        """
        due = self.late
        if self.broker.pops.lines.is_first(self.key, self.look):
            if self.is_unfinished:
                self.broker.wake(self.look)
                return
            due = min(self.popped.next_due or due, due)
        self.again_in(max(due - time.monotonic(), _MIN_WAIT_S))

    def look(self, may_wait: bool) -> None:
        if not self.waits:
            return
        is_full = self.call.connection.is_full
        try:
            response = None if is_full else self.answer_now()
        except Failed as answer:
            response = Response(code=answer.status, remark=answer.remark)
        if response is None and (is_full or time.monotonic() >= self.late):
            response = self.empty_response()
        if response is not None:
            self.answer(response)
        else:
            self._wait()

    is_unfinished = False
    """True if the last turn ended before all queues were checked."""

    @abstractmethod
    def answer_now(self) -> Response | None:
        """Return the response if there is anything to deliver now. Raises: Failed."""

    @abstractmethod
    def empty_response(self, *, full: bool = False) -> Response:
        """Return a response without messages. ``full``: whether it is sent because too many
        requests wait.
        """


@dataclass(eq=False)
class _WaitingPop(_WaitingForAny):
    wish: PopRequest
    left: int = 0

    def answer_now(self) -> Response | None:
        given, self.left = self.popped.take(self.wish, self.left or None)
        self.is_unfinished = self.left > 0
        if not given:
            return None
        by_queue: dict[tuple[str, int], list[int]] = {}
        for message in given:
            by_queue.setdefault(message.receipt.queue, []).append(message.receipt.offset)
        popped = self.popped
        undelivered = sum(max(self.broker.queue(*key).end - popped.queues[key].next, 0)
                          for key in by_queue)
        marks = {key: f"{_mark(key[0])} {key[1]}" for key in by_queue}
        return self._answer(
            [_record(message) for message in given], 0, given[0].receipt.number,
            restNum=str(undelivered), startOffsetInfo=";".join(
                f"{marks[key]} {min(offsets)}" for key, offsets in by_queue.items()),
            msgOffsetInfo=";".join(
                f"{marks[key]} {','.join(map(str, offsets))}" for key, offsets in by_queue.items()))

    def empty_response(self, *, full: bool = False) -> Response:
        return self._answer([], Status.POLLING_FULL if full else Status.POLLING_TIMEOUT)

    def _answer(self, parts: list[Buffer], code: int, number: int = 0, **more: str) -> Response:
        return Response({
            "popTime": str(number), "invisibleTime": str(round(self.wish.invisible * 1000)),
            "reviveQid": str(_IN_ORDER if self.wish.fifo else 0), "restNum": "0", **more},
            parts, int(code), FOUND if parts else NO_MESSAGE)


class _WaitingNotice(_WaitingForAny):
    def answer_now(self) -> Response | None:
        wanted = self.call.fields
        return Response({"hasMsg": "true", "pollingFull": "false"}) if self.popped.has_messages(
            self.key.queue_id, fifo=self.key.fifo,
            attempt=attempt_of(wanted["attemptId"])) else None

    def empty_response(self, *, full: bool = False) -> Response:
        return Response({"hasMsg": "false", "pollingFull": str(full).lower()})


def _mark(name: str) -> str:
    """Return the number that identifies a topic in responses.

    0 is the requested topic; 1 and 2 are its retry topics.
    """
    return "0" if not name.startswith(RETRY_PREFIX) else "2" if "+" in name else "1"


def _record(given: DeliveredMessage) -> Buffer:
    """Return the stored record, with the current number of deliveries."""
    times = min(given.flight.attempt - 1, MAX_ATTEMPTS)
    name, _ = given.receipt.queue
    if not times or name.startswith(LMQ_PREFIX):  # clients look for the latter elsewhere then
        return given.record
    record = decode(given.record)
    return given.record if record.reconsume_times == times else build(
        replace(record, reconsume_times=times))


# What becomes of them ---------------------------------------------------------------------------


def ack(broker: Broker, call: Call) -> Response:
    """Acknowledge a message. Like a broker, report success even if it is too late to do so."""
    popped, receipt = _receipt(broker, call)
    with suppress(Failed):
        popped.ack(receipt)
    return Response()


def change_invisible_time(broker: Broker, call: Call) -> Response:
    """Change the time at which a message becomes visible again."""
    popped, receipt = _receipt(broker, call)
    invisible = _milliseconds(call.fields["invisibleTime"])
    changed = popped.change(receipt, invisible / 1000)
    return Response({"popTime": str(changed.number), "invisibleTime": str(invisible),
                     "reviveQid": "0"})


def _receipt(broker: Broker, call: Call) -> tuple[GroupDeliveries, Receipt]:
    """Return the deliveries and the receipt that a request refers to. Raises: Failed."""
    wanted = call.fields
    name, queue_id, offset = wanted["topic"], wanted["queueId"], wanted["offset"]
    topic = broker.require_topic(name)
    if not 0 <= queue_id < topic.read_queues:
        raise Failed(Status.MESSAGE_ILLEGAL, f"queueId[{queue_id}] is illegal, topic:[{name}] "
                     f"topicConfig.readQueueNums:[{topic.read_queues}] "
                     f"consumer:[{call.connection.peer}]")
    queue = broker.queue(name, queue_id)
    if not queue.first <= offset <= queue.end:
        raise Failed(Status.NO_MESSAGE, f"offset is illegal, key:{name}@{queue_id}, "
                     f"commit:{offset}, store:{queue.first}~{queue.end}")
    match = _RECEIPT.fullmatch(wanted["extraInfo"])
    if match is None:
        raise Failed(Status.SYSTEM_ERROR, "invalid extraInfo: not from a popped message")
    return _popped(broker, wanted["consumerGroup"], name), Receipt(
        (name, queue_id), offset, int(match[1]))


def _popped(broker: Broker, group: str, topic: str) -> GroupDeliveries:
    """Return the deliveries of a topic to a group. Raises: Failed.

    For a retry topic of the group, return the deliveries of the original topic.
    """
    base = topic
    _check_group(group)
    if topic.startswith(RETRY_PREFIX + group) and topic[len(RETRY_PREFIX + group):][:1] in ("_", "+"
                                                                                          ):
        base = topic[len(RETRY_PREFIX + group) + 1:]
    broker.require_topic(base)
    popped: GroupDeliveries = broker.pops.of(group, base)
    return popped


def ack_many(broker: Broker, call: Call) -> Response:
    """Acknowledge several messages; unknown messages are skipped."""
    acks = objects(body_of(call).get("acks"))
    if not acks:
        raise Failed(Status.NO_MESSAGE, "the request acknowledges no messages")
    sets = [_text(entry.get("b", entry.get("bitSet"))) for entry in acks]
    if len(acks) > _MAX_ACKED or sum(map(len, sets)) > _MAX_SETS:
        raise Failed(Status.SYSTEM_ERROR, "too many messages to acknowledge in one request")
    for entry, places in zip(acks, sets, strict=True):
        group, name, retry = (_text(entry.get(short, entry.get(long))) for short, long in (
            ("c", "consumerGroup"), ("t", "topic"), ("r", "retry")))
        start, queue_id, number = (_number(entry.get(short, entry.get(long))) for short, long in (
            ("so", "startOffset"), ("q", "queueId"), ("pt", "popTime")))
        offsets = _places(places)
        with suppress(Failed):
            popped = _popped(broker, group, name)
            name = {"1": popped.names[1], "2": popped.names[2]}.get(retry, name)
            for place in offsets:
                with suppress(Failed):
                    popped.ack(Receipt((name, queue_id), start + place, number))
    return Response()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _places(text: str) -> list[int]:
    """Return the indexes of the bits that are set in a base64 bit set. Raises: Failed."""
    try:
        data = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise Failed(Status.SYSTEM_ERROR, "invalid bit set of offsets") from None
    return [8 * number + bit for number, byte in enumerate(data) for bit in range(8)
            if byte >> bit & 1]


HANDLERS: Table = {
    "POP_MESSAGE": pop_message,
    "ACK_MESSAGE": ack,
    "BATCH_ACK_MESSAGE": ack_many,
    "CHANGE_MESSAGE_INVISIBLETIME": change_invisible_time,
    "NOTIFICATION": notification,
    "POLLING_INFO": polling_info,
}
