"""Methods that receive messages, acknowledge them, and change their invisible time (spec:
remoting.md §7).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from rmqctl.ext.serve.broker import ANY_QUEUE, Broker, Buffer
from rmqctl.ext.serve.consuming.lines import Line
from rmqctl.ext.serve.consuming.popping import (
    MAX_ATTEMPTS,
    RENEWED_S,
    TURN_S,
    DeliveredMessage,
    GroupDeliveries,
    PopRequest,
    Receipt,
    attempt_of,
)
from rmqctl.ext.serve.consuming.subscriptions import ALL, SQL, TAG, Subscription, tags_of
from rmqctl.ext.serve.grpc.calls import Caller, Endpoint, judged, refused_by
from rmqctl.ext.serve.grpc.messages import to_client
from rmqctl.ext.serve.grpc.protocol import (
    MESSAGES,
    Code,
    Refused,
    milliseconds,
    response,
    span,
    status,
)
from rmqctl.ext.serve.grpc.routes import readable
from rmqctl.ext.serve.grpc.sessions import group_settings, is_fifo, most_attempts, name_of
from rmqctl.ext.serve.reading import Accept
from rmqctl.ext.serve.remoting.codes import Failed
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import decode
from rmqctl.parse_values import now_ms
from rmqctl.store.objects import java_text

_MAX_MESSAGES, _MAX_ACKED = 32, 1024
"""Maximum number of messages that one request can receive, and that one request can acknowledge."""
_MIN_INVISIBLE_MS, _MAX_INVISIBLE_MS = 10_000, 12 * 3_600_000
"""Minimum and maximum invisible time of a message (ms)."""
_POLL_S = 20.0
_LOOK_S = 1.0
"""Maximum seconds for searching the queues if the client does not want to wait."""
_MARGIN_S = 0.5
"""Number of seconds before the client's deadline at which a response is sent."""
_COPIES = 3
"""Number of copies of a body in memory while it is written: message, response object, response
bytes.
"""
_MAX_FILTER = 64 << 10
_FILTERS = {0: TAG, 1: TAG, 2: SQL}
_HANDLE = re.compile(r"(\d) (\d{1,9}) (\d{1,19}) (\d{1,19})")


async def receive(endpoint: Endpoint, caller: Caller, request: Any
                  ) -> AsyncGenerator[Any, None]:
    """Yield responses with messages of a topic; if there are no messages, wait for them during the
    poll time.
    """
    group = name_of(request.group, Code.ILLEGAL_CONSUMER_GROUP, "group")
    topic = name_of(request.message_queue.topic, Code.ILLEGAL_TOPIC, "topic")
    brokers = readable(endpoint.brokers, topic, request.message_queue.broker.name)
    if group_settings(endpoint.brokers, group).get("consume_enable") is False:
        raise Refused(Code.FORBIDDEN, f"subscription group no permission, {group}")
    wish = _wish(endpoint, caller, request, group, topic)
    seconds = _poll_s(caller, request)
    line = Line(group, topic, ANY_QUEUE, _FILTERS[request.filter_expression.type],
                request.filter_expression.expression or ALL, wish.fifo)
    del request  # it may be large, and the wait long
    given = await _waited(endpoint, caller, brokers, line, wish, seconds)
    left = {(popped.flight.physical, popped.receipt.number) for _, popped in given}
    reply = MESSAGES["ReceiveMessageResponse"]
    try:
        yield reply(status=status(Code.OK) if given else status(
            Code.MESSAGE_NOT_FOUND, "no new message"))
        given.reverse()
        while given:
            broker, popped = given.pop()
            message = _message(broker, popped, group, topic, wish)
            key = popped.flight.physical, popped.receipt.number
            del popped  # frees its record, which the message copies
            with endpoint.held(caller, _COPIES * len(message.body)):
                yield reply(message=message)
            left.discard(key)
        yield reply(delivery_timestamp=span(now_ms()))
    finally:
        if left:
            for broker in brokers:
                broker.pops.of(group, topic).give_back(
                    lambda flight: (flight.physical, flight.number) in left)


def _message(broker: Broker, given: DeliveredMessage, group: str, topic: str, wish: PopRequest
             ) -> Any:
    message = to_client(given.record, topic)
    system = message.system_properties
    system.queue_id, system.queue_offset = given.receipt.queue[1], given.receipt.offset
    system.receipt_handle = _handle(broker.pops.of(group, topic), given.receipt)
    system.delivery_attempt = min(given.flight.attempt, MAX_ATTEMPTS)
    system.invisible_duration.seconds = int(wish.invisible)
    return message


def _wish(endpoint: Endpoint, caller: Caller, request: Any, group: str, topic: str) -> PopRequest:
    invisible = milliseconds(request.invisible_duration)
    if request.auto_renew:
        invisible = int(RENEWED_S * 1000)
    elif not _MIN_INVISIBLE_MS <= invisible <= _MAX_INVISIBLE_MS:
        raise Refused(Code.ILLEGAL_INVISIBLE_TIME, "the invisible duration must be between 10 s "
                      "and 12 h")
    return PopRequest(min(max(request.batch_size, 1), _MAX_MESSAGES), invisible / 1000,
                _filter(topic, request.filter_expression), is_fifo(endpoint.brokers, group),
                caller.client_id if request.auto_renew else "",
                attempt=attempt_of(request.attempt_id))


def _filter(topic: str, wanted: Any) -> Accept | None:
    """Return the filter of a request. Raises: Failed, Refused.

    The filter compares the tags, not only their hashes, because 5.x clients do not compare tags.
    """
    if wanted.type not in _FILTERS:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, f"unknown filter type {wanted.type}")
    kind, expression = _FILTERS[wanted.type], wanted.expression or ALL
    if len(expression) > _MAX_FILTER:
        raise Refused(Code.ILLEGAL_FILTER_EXPRESSION, "the filter expression is too long")
    accept = Subscription(topic, expression, kind).accept()
    if accept is None or kind != TAG:
        return accept

    def has_tag(code: int, record: Buffer) -> bool:
        return accept(code, record) and props.parse(java_text(decode(record).properties)).get(
            props.TAGS) in _tags(expression)

    return has_tag


@lru_cache(maxsize=64)  # and not one for each who waits
def _tags(expression: str) -> frozenset[str]:
    return frozenset(tags_of(expression))


def _poll_s(caller: Caller, request: Any) -> float:
    """Return the maximum time in seconds that the request may wait."""
    wanted = _POLL_S
    if request.HasField("long_polling_timeout"):
        wanted = milliseconds(request.long_polling_timeout) / 1000
    return max(min(wanted, _POLL_S, caller.remaining - _MARGIN_S), 0.0)


async def _waited(endpoint: Endpoint, caller: Caller, brokers: list[Broker], line: Line,
                  wish: PopRequest, seconds: float) -> list[tuple[Broker, DeliveredMessage]]:
    """Return messages as soon as there are any; an empty list if none arrive within ``seconds``."""
    async def taken() -> list[tuple[Broker, DeliveredMessage]]:
        for broker in brokers:
            messages = await _taken(endpoint, caller, broker, line.group, line.topic, wish)
            if messages:
                return [(broker, message) for message in messages]
        return []

    messages: list[tuple[Broker, DeliveredMessage]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, _LOOK_S)):
            messages = await taken()
            if not messages and seconds > 0:
                with _in_line(brokers, line) as wait:
                    while not messages:
                        await wait()
                        messages = await taken()
    return messages


@contextmanager
def _in_line(brokers: list[Broker], line: Line) -> Iterator[Callable[[], Awaitable[None]]]:
    """Within this context, let a request wait in its line. Yield a function that waits until
    messages may be available.

    If the request is first in its line, the first call of this function returns at once.
    """
    news = asyncio.Event()

    def wake(_may_wait: bool) -> None:
        news.set()

    async def wait() -> None:
        due = min((due for broker in brokers if broker.pops.lines.is_first(line, wake) and (
            due := broker.pops.of(line.group, line.topic).next_due) is not None), default=None)
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), None if due is None else max(
                due - time.monotonic(), 0.01))
        news.clear()

    for broker in brokers:
        broker.pops.lines.join(line, wake)
        if broker.pops.lines.is_first(line, wake):
            news.set()
    try:
        yield wait
    finally:
        for broker in brokers:
            broker.pops.lines.leave(line, wake)


async def _taken(endpoint: Endpoint, caller: Caller, broker: Broker, group: str, topic: str,
                 wish: PopRequest) -> list[DeliveredMessage]:
    """Return messages from one broker. Move messages that were delivered too often to the dead
    letters.
    """
    left = None
    most = most_attempts(endpoint.brokers, group)
    while True:
        async with endpoint.looking:
            popped = broker.pops.of(group, topic)
            given, left = popped.take(wish, left)
            if not given and left > 0:
                await asyncio.sleep(TURN_S)  # a call of others takes several turns of the loop
        given = [message for message in given if message.flight.attempt <= most or not (
            await _gave_up(caller, popped, message))]
        if given or left <= 0:
            return given


async def _gave_up(caller: Caller, popped: GroupDeliveries, given: DeliveredMessage) -> bool:
    """Move a message to the dead letters. Return False if this fails: the message must then be
    delivered.
    """
    try:
        await _bury(caller, popped, given.receipt)
    except (Refused, Failed):
        return False
    return True


async def _bury(caller: Caller, popped: GroupDeliveries, receipt: Receipt) -> None:
    """Move a message to the dead letters, as if its consumer had sent it back too often.
    Raises: Refused, Failed.
    """
    physical = popped.find(receipt)[1].physical
    answer = await caller.link(popped.broker).request(
        "CONSUMER_SEND_MSG_BACK", offset=physical, group=popped.group, delayLevel=-1)
    if answer.code:
        raise refused_by(answer)
    popped.ack(receipt)


def _handle(popped: GroupDeliveries, receipt: Receipt) -> str:
    (name, queue_id), offset, number = receipt
    return f"{popped.broker.name} {popped.names.index(name)} {queue_id} {offset} {number}"


def _popped(endpoint: Endpoint, request: Any, handle: str) -> tuple[GroupDeliveries, Receipt]:
    """Return the deliveries of the topic to the group, and the receipt that a receipt handle
    encodes.
    Raises: Refused.
    """
    group = name_of(request.group, Code.ILLEGAL_CONSUMER_GROUP, "group")
    topic = name_of(request.topic, Code.ILLEGAL_TOPIC, "topic")
    name, _, rest = handle.partition(" ")
    match = _HANDLE.fullmatch(rest)
    broker = endpoint.by_name.get(name)
    popped = None if broker is None else broker.pops.get(group, topic)
    if popped is not None and match is not None:
        which, queue_id, offset, number = map(int, match.groups())
        if which < len(popped.names):
            return popped, Receipt((popped.names[which], queue_id), offset, number)
    raise Refused(Code.INVALID_RECEIPT_HANDLE, "invalid receipt handle")


async def ack(endpoint: Endpoint, _caller: Caller, request: Any) -> Any:
    """Acknowledge messages."""
    if not 0 < len(request.entries) <= _MAX_ACKED:
        raise Refused(Code.BAD_REQUEST, f"a request must acknowledge 1 to {_MAX_ACKED} messages")
    entries = []
    for entry in request.entries:
        try:
            popped, receipt = _popped(endpoint, request, entry.receipt_handle)
            if not popped.has_landed(receipt):  # who acks again may not have heard it was
                popped.ack(receipt)
            result = status(Code.OK)
        except (Refused, Failed) as refused:
            result = status(*judged(refused))
        entries.append({"message_id": entry.message_id, "receipt_handle": entry.receipt_handle,
                        "status": result})
    codes = {entry["status"].code for entry in entries}
    code = Code(codes.pop()) if len(codes) == 1 else Code.MULTIPLE_RESULTS
    return response("AckMessage", code, entries=entries)


async def change_invisible(endpoint: Endpoint, _caller: Caller, request: Any) -> Any:
    """Change the time at which a message becomes visible again."""
    wanted = milliseconds(request.invisible_duration)
    if not 0 <= wanted <= _MAX_INVISIBLE_MS:
        raise Refused(Code.ILLEGAL_INVISIBLE_TIME, "the invisible duration must be between 0 and "
                      "12 h")
    popped, receipt = _popped(endpoint, request, request.receipt_handle)
    changed = popped.change(receipt, wanted / 1000)
    return response("ChangeInvisibleDuration", receipt_handle=_handle(popped, changed))


async def forward_to_dead_letters(endpoint: Endpoint, caller: Caller, request: Any) -> Any:
    """Move a message to the dead letters at its consumer's request."""
    popped, receipt = _popped(endpoint, request, request.receipt_handle)
    await _bury(caller, popped, receipt)
    return response("ForwardMessageToDeadLetterQueue")
