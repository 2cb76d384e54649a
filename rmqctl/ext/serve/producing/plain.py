"""Plain sends: a fast path for messages that only need to be appended to their queue.

Most sends are plain: one message for an existing topic, without properties that redirect the
message. The header is decoded in one step; the properties are decoded with the pattern of the
previous message. The response is a template.

`sending.send_message` handles all other messages. A test checks that `send_message` writes the same
bytes and responses.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, Literal

import msgspec

from rmqctl.broker.settings import Host
from rmqctl.engine.put.message import PUT_OK, Outgoing, PutResult
from rmqctl.ext.serve.broker import Broker, EncodedConnection
from rmqctl.ext.serve.producing.properties import REGION
from rmqctl.ext.serve.producing.sending import host_of, put_answer
from rmqctl.ext.serve.remoting.codes import CODE_OF, REQUESTS
from rmqctl.ext.serve.remoting.command import ONE_WAY, Command, Int32, response_head
from rmqctl.ext.serve.remoting.frame import COUNTED, HEAD_SIZE, JSON, Frame, FrameReader, frame_head
from rmqctl.formats.local.javahash import tags_code
from rmqctl.formats.local.message import message_id
from rmqctl.formats.local.properties import RETRY_PREFIX, TIMER_TOPIC
from rmqctl.formats.local.sysflag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK
from rmqctl.kernel import active

_NAME = "SEND_MESSAGE_V2"
_CODE = CODE_OF[_NAME]
_MARK = b"%d" % _CODE
_OTHER_WAYS = RETRY_PREFIX, TIMER_TOPIC
"""Prefixes of topics whose messages are not plain."""
_OTHER_FLAGS = INNER_BATCH | NEED_UNWRAP | TRANSACTION_MASK
_MIN_TOGETHER, _MAX_AT_ONCE = 4, 256
"""Minimum number of messages that are stored by column, and maximum number of messages per call."""
_MARKED = 123_454_321
_OFFSET_DIGITS = 16
"""Number of hexadecimal digits of the physical offset at the end of a message id."""


class PlainSends:
    """Stores plain messages for a writable broker."""

    def __init__(self, broker: Broker) -> None:
        assert broker.writer is not None
        self._broker, self._writer = broker, broker.writer
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(msgspec.defstruct("SendHeader", [
            ("code", Literal[_CODE]), ("extFields", REQUESTS[_CODE].form), ("flag", Int32, 0),
            ("opaque", Int32, 0)], gc=False), strict=False).decode
        self._kernel, self._fields = active(), _fields()
        self._answers = _ResponseParts(says_key=self._writer.settings.profile.generation >= 5)

    def take_all(self, client: EncodedConnection, frames: FrameReader) -> bool:
        """Store the plain messages at the start of ``frames``. Return whether any message was
        stored.

        Stop at the first request of another kind.
        """
        if self._broker.cluster.access.secrets or self._writer.is_busy:
            return False
        if self._kernel is None:
            frame = frames.peek()
            return frame is not None and self._take(client, frames, frame)
        sends = self._kernel.sends(frames.buffer, frames.at, frames.limit, HEAD_SIZE, COUNTED,
                                   _CODE, *self._fields, _MAX_AT_ONCE)
        host, many = host_of(client.peer), len(sends)
        if many < _MIN_TOGETHER or not self._put_many(client, host, sends):
            many = 0
            for sent in sends:
                if not self._put(client, host, *sent[1:]):
                    break
                many += 1
        if not many:
            return False
        frames.skip(sends[many - 1][0])
        self._broker.requests[_NAME] += many
        return True

    def _put_many(self, client: EncodedConnection, host: Host,
                  sends: list[tuple[Any, ...]]) -> bool:
        """Store several messages by column, with the same result as `_put`. If a message is not
        plain, store none of them and return False.
        """
        (_, opaque, flag, topic, queue_id, message_flag, sys_flag, born, again, given, body
         ) = zip(*sends, strict=True)
        if any(value & _OTHER_FLAGS for value in set(sys_flag)) or not all(
                self._is_ordinary(*value) for value in {*zip(topic, queue_id, strict=True)}):
            return False
        plain = self._writer.properties.plain_ones(given)
        if plain is None:
            return False
        properties, tags, key = plain
        together = "".join(key or ())
        if together and not (together.isalnum() and together.isascii()):
            return False
        codes = {value: tags_code(value) for value in set(tags)}
        self._writer.put_many(
            map(Outgoing, topic, body, properties, queue_id, message_flag, sys_flag, born,
                repeat(host), repeat(None), repeat(None), again),
            map(_Sent, repeat(self._answers), repeat(client), opaque, flag, queue_id,
                key or repeat(None)),
            map(codes.__getitem__, tags), sum(map(len, body)))
        return True

    def _is_ordinary(self, topic: str, queue_id: int) -> bool:
        """Return whether a topic accepts messages for a queue without special handling."""
        return not topic.startswith(_OTHER_WAYS) and self._writer.allows(topic, queue_id)

    def _take(self, client: EncodedConnection, frames: FrameReader, frame: Frame) -> bool:
        """Store the next message; its header is decoded by a library.

        If the message is not plain, return False without storing it.
        """
        kind, data, body = frame
        if kind != JSON or _MARK not in data:
            return False
        try:
            header = self._read(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        fields = header.extFields
        if header.flag & ~ONE_WAY or fields.batch:
            return False
        if not self._put(client, host_of(client.peer), header.opaque, header.flag, fields.topic,
                         fields.queueId, fields.flag, fields.sysFlag, fields.bornTimestamp,
                         fields.reconsumeTimes or 0, fields.properties or "", body):
            return False
        frames.next()
        self._broker.requests[_NAME] += 1
        return True

    def _put(self, client: EncodedConnection, host: Host, opaque: int, flag: int, topic: str,
             queue_id: int, message_flag: int, sys_flag: int, born: int, again: int, given: str,
             body: bytes) -> bool:
        """Store a plain message. Return False, without storing the message, if it is not plain."""
        writer = self._writer
        if sys_flag & _OTHER_FLAGS or not self._is_ordinary(topic, queue_id):
            return False
        plain = writer.properties.plain(given)
        if plain is None:
            return False
        properties, tags, key = plain
        if key is not None and not (key.isalnum() and key.isascii()):
            return False
        writer.put(
            Outgoing(topic, body, properties, queue_id, message_flag, sys_flag, born, host, None,
                     None, again),
            _Sent(self._answers, client, opaque, flag, queue_id, key), tags_code(tags))
        return True


class _ResponseParts:
    """The parts that all responses to plain sends have in common."""

    def __init__(self, *, says_key: bool) -> None:
        self.says_key = says_key
        self.form = _form(says_key=says_key)
        self._host: Host | None = None
        self._begin = ""

    def id_begins(self, host: Host) -> str:
        """Return the leading digits that the ids of all messages with a given store host have in
        common.
        """
        if host is not self._host:
            self._host, self._begin = host, message_id(*host, 0)[:-_OFFSET_DIGITS]
        return self._begin


class _Sent(msgspec.Struct, gc=False):
    """Callback that answers the producer of a message. Its argument is the result of storing the
    message.
    """

    answers: _ResponseParts
    client: EncodedConnection
    opaque: int
    flag: int
    queue_id: int
    key: str | None

    def __call__(self, result: PutResult) -> None:
        if self.flag & ONE_WAY:
            return
        answers, key, host = self.answers, self.key, result.store_host
        if result.status == PUT_OK and host is not None and not (key is None and answers.says_key):
            self.client.send_bytes(frame_head((answers.form % (
                answers.id_begins(host), result.physical_offset, self.queue_id,
                result.queue_offset, key, self.opaque)).encode(), 0))
            return
        response = put_answer(result, self.queue_id)
        if result.stored and answers.says_key and key is not None and response.ext:
            response.ext["transactionId"] = key
        self.client.reply(Command(_CODE, self.opaque), response)


def _fields() -> tuple[bytes, int]:
    """Return how the kernel parses the one-letter fields of a header.

    The first value has the type of each field (a byte per letter), the second the required fields
    (a bit per letter).
    """
    kernel = active()
    takes, wanted = bytearray(26), 0
    if kernel is not None:
        request = REQUESTS[_CODE]
        for letter, (kind, required) in request.fields.items():
            place = ord(letter) - ord("a")
            takes[place] = kernel.TAKES.get(request.long.get(letter), kernel.TAKES[kind])
            wanted |= required << place
    return bytes(takes), wanted


def _form(*, says_key: bool) -> str:
    """Return the header of a response as a format string for six values.

    In order: first digits of the message id, physical offset, queue id, queue offset, unique key,
    ``opaque``.
    """
    ext = {**REGION, "msgId": "@id", "queueId": "@queue", "queueOffset": "@offset",
           "transactionId": "@key"}
    if not says_key:
        del ext["transactionId"]
    text = response_head(_MARKED, 0, ext, None, 0)[HEAD_SIZE:].decode("ascii").replace("%", "%%")
    for mark, place in (("@id", f"%s%0{_OFFSET_DIGITS}X"), ("@queue", "%d"), ("@offset", "%d"),
                        ("@key", "%s"), (str(_MARKED), "%d" if says_key else "%.0s%d")):
        text = text.replace(mark, place, 1)
    return text
