"""Requeue dead letters, which `rmqctl.store.groups.dead_letters` converts; each is requeued only
once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from rmqctl.engine.input.append_stream import AppendSession, LineAppender, converter
from rmqctl.store.groups.dead_letters import DeadLetter, Requeued, Resending

ALREADY, LEFT_OUT = "ALREADY_REQUEUED", "LEFT_OUT"
COLUMNS = ("dead_letter", "topic", "queue_id", "status", "physical_offset", "msg_id", "reason")
_TOGETHER = 64


class ConvertedLetter(NamedTuple):
    """A dead letter with its message object or, if it has none, with the ``status`` and the
    ``reason``. ``msg_id``: id of the message that an earlier requeue created.
    """

    letter: DeadLetter
    message: dict[str, Any] | None
    status: str | None = None
    reason: str | None = None
    msg_id: str | None = None

    def row(self, **result: Any) -> dict[str, Any]:
        message = self.message or {}
        return {"dead_letter": self.letter.record.message_id,
                "topic": message.get("topic", self.letter.origin_topic),
                "queue_id": message.get("queue_id"), "status": self.status,
                "physical_offset": None, "msg_id": self.msg_id, "reason": self.reason, **result}


def converted(letters: Iterable[DeadLetter], resending: Resending, requeued: Requeued, *,
              again: bool = False) -> Iterator[ConvertedLetter]:
    """Convert dead letters; with ``again``, also those that were requeued before."""
    for letter in letters:
        before = None if again else requeued.find(letter)
        if before is not None:
            yield ConvertedLetter(letter, None, ALREADY, None, before)
            continue
        message = resending.object(letter)
        if message is None:
            yield ConvertedLetter(letter, None, LEFT_OUT, "its original topic is unknown")
        else:
            yield ConvertedLetter(letter, message)


def line(message: dict[str, Any]) -> bytes:
    """Return a message object as a line for `append`, without the newline."""
    return json.dumps(message, separators=(",", ":")).encode()


def requeue(letters: Iterable[ConvertedLetter], session: AppendSession) -> Iterator[dict[str, Any]]:
    """Put the messages in groups. Yield a result row (`COLUMNS`) for each dead letter.

    If a topic is not in config/topics.json, its messages are skipped, because no client could read
    them.
    Raises: StoreIOError.
    """
    appender = LineAppender(session, converter(session.settings), stop=False)
    rest = iter(letters)
    while group := list(islice(rest, _TOGETHER)):
        lines: dict[int, bytes] = {}
        rows = []
        for number, requeued in enumerate(group):
            rows.append(requeued.row())
            if requeued.message is None:
                continue
            topic = requeued.message["topic"]
            if session.topics.exists and session.topics.get(topic) is None:
                rows[-1] |= {"status": LEFT_OUT, "reason": "config/topics.json does not contain "
                             "the topic (`rmqctl topic create` adds it)"}
                continue
            lines[number] = line(requeued.message)
        for number, result in appender.put(list(lines.items())):
            rows[number] |= {"status": result.status, "physical_offset": result.physical_offset,
                             "msg_id": result.msg_id, "reason": result.reason}
        for fault in appender.faults:
            if rows[fault.line]["status"] is None:
                rows[fault.line] |= {"status": fault.status or LEFT_OUT, "reason": fault.reason}
        yield from rows
