"""Plain pulls: pull requests that differ from an earlier request only in numbers, and find
messages.

A consumer repeats the same request (group, topic, queue and limits) with other offsets. The first
request is decoded by a library and kept. If a later request repeats its text, only the numbers are
parsed.

`pulling.pull_message` handles all other pulls. A test checks that `pull_message` produces the same
responses.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import msgspec

from rmqctl.broker.get_message import FOUND, MAX_BYTES
from rmqctl.ext.serve.broker import Broker, EncodedConnection
from rmqctl.ext.serve.consuming import pulling
from rmqctl.ext.serve.reading import Accept, Pulled
from rmqctl.ext.serve.remoting.codes import CODE_OF, REQUESTS, Failed, Status
from rmqctl.ext.serve.remoting.command import Command, read_command, response_head
from rmqctl.ext.serve.remoting.frame import COUNTED, HEAD_SIZE, FrameError, FrameReader, frame_head
from rmqctl.kernel import active

_CODES = {CODE_OF[name]: name for name in pulling.HANDLERS}
_NUMBERS = ("opaque", "queueOffset", "commitOffset")
_NAMES = b"".join(name.encode() + b"\0" for name in _NUMBERS)
_MAX_AT_ONCE = 16
"""Maximum number of requests that are answered per call of `PlainPulls.take_all`."""
_MAX_KEPT = 2048
"""Maximum number of decoded requests to keep; each takes at most 3 KiB of memory."""
_MARKED = Pulled(FOUND, 1_234_567_891, 1_234_567_892, 1_234_567_893)
_MARKED_OPAQUE = 1_234_567_894


class _PlainPull(msgspec.Struct, gc=False):
    """A decoded request, which may be repeated.

    ``fields``: header fields, without those in `_NUMBERS`. ``says``: whether the request contains a
    filter; ``accept``: this filter.
    """

    code: int
    fields: dict[str, Any]
    says: bool
    accept: Accept | None


class PlainPulls:
    """Answers plain pulls for a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._kernel = broker, active()
        self._pulls: dict[bytes, _PlainPull] = {}
        self._form = _form()

    def take_all(self, client: EncodedConnection, frames: FrameReader, late: float) -> bool:
        """Answer the plain pulls at the start of ``frames``. Return whether any pull was answered.

        Stop at the first request of another kind, or at ``late`` (monotonic seconds).
        """
        broker = self._broker
        if self._kernel is None or broker.cluster.access.secrets:
            return False
        end = 0
        for behind, words, opaque, offset, commit in self._kernel.repeats(
                frames.buffer, frames.at, frames.limit, HEAD_SIZE, COUNTED, _NAMES, _MAX_AT_ONCE):
            pull = self._pulls.get(words)
            if pull is None:
                if end:
                    break
                pull = self._learn(frames, words, (opaque, offset, commit))
            if pull is None or client.is_full or not self._answer(
                    client, pull, opaque, offset, commit):
                break
            broker.requests[_CODES[pull.code]] += 1
            end = behind
            if monotonic() > late:
                break
        if not end:
            return False
        frames.skip(end)
        return True

    def _learn(self, frames: FrameReader, words: bytes, numbers: tuple[int | None, ...]
               ) -> _PlainPull | None:
        """Decode the next request and keep it for repetitions. Return None if it is not a plain
        pull.
        """
        frame = frames.peek()
        if frame is None:
            return None
        try:
            command = read_command(frame)
            if command.code not in _CODES or command.flag:
                return None
            fields = REQUESTS[command.code].read(command.ext)
            says = bool(fields["sysFlag"] & pulling.SUBSCRIPTION)
            accept = pulling.wanted_by(self._broker, fields) if says else None
        except (FrameError, Failed):
            return None
        if numbers != (command.opaque, *(fields.pop(name) for name in _NUMBERS[1:])):
            return None
        while len(self._pulls) >= _MAX_KEPT:
            del self._pulls[next(iter(self._pulls))]
        self._pulls[words] = pull = _PlainPull(command.code, fields, says, accept)
        return pull

    def _answer(self, client: EncodedConnection, pull: _PlainPull, opaque: int, offset: int,
                commit: int | None) -> bool:
        """Answer a plain pull. Return False if `pulling.pull_message` must answer it instead."""
        broker, fields = self._broker, pull.fields
        group, topic, queue_id = fields["consumerGroup"], fields["topic"], fields["queueId"]
        try:
            pulling.judge(broker, fields, client.peer)
            queue = broker.queue(topic, queue_id)
            if not queue.first <= offset < queue.end:
                return False
            accept = pull.accept if pull.says else pulling.wanted_by(broker, fields)
            if commit is not None and fields["sysFlag"] & pulling.COMMIT:
                broker.positions.commit(group, topic, queue_id, commit)
            pulled = queue.pull(offset, fields["maxMsgNums"], accept,
                                pulling.bytes_for(fields.get("maxMsgBytes")))
        except Exception:  # noqa: BLE001 - the whole way meets it again, and says what it is
            return False
        size = pulling.count(broker, (group, topic), pulled)
        if pulled.status != FOUND or size > MAX_BYTES:
            response = pulling.response_to(pulled, offset)
            if response.code == Status.PULL_NOT_FOUND:
                return False
            client.reply(Command(pull.code, opaque), response)
            return True
        header = self._form % (pulled.max, pulled.min, pulled.next_begin, opaque)
        head = frame_head(header, size)
        client.send_parts([head, *pulled.parts], len(head) + size)
        return True


def _form() -> bytes:
    """Return the header of a response as a format string for four numbers: the maximum, minimum and
    next queue offset, and ``opaque``.
    """
    response = pulling.response_to(_MARKED, 0)
    text = response_head(_MARKED_OPAQUE, response.code, response.ext or {}, response.remark, 0)[
        HEAD_SIZE:].replace(b"%", b"%%")
    for number in (_MARKED.max, _MARKED.min, _MARKED.next_begin, _MARKED_OPAQUE):
        text = text.replace(b"%d" % number, b"%d", 1)
    return text
