"""Decode the bodies of a page one by one, and count those that cannot be decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from rmqctl.ext.payloads.decoders import NotRecognized, decoder, json_value
from rmqctl.ext.payloads.limits import Decoder, MessageInfo, bounded
from rmqctl.formats import internal_topics
from rmqctl.store.decoded import Decoded
from rmqctl.store.objects import plain_body
from rmqctl.store.pages import Page

AUTO = "auto"
_MAX_REASON = 200


class Decoding:
    """Decodes bodies by ``spec``, an argument of ``--decode``. Threads may share an instance. A
    copy in another process has its own counts.
    """

    def __init__(self, spec: str = AUTO) -> None:
        """Raise UsageError, StoreIOError or MissingExtraError if the decoder does not exist."""
        self.spec = spec
        self.problems = self.unknown = 0
        self.first_problem = ""
        self._decode: Decoder = decoder(spec)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoding, (self.spec,)

    def rows(self, page: Page) -> Iterator[Decoded]:
        """Yield the decoded bodies of a page's messages one at a time, as they may be large."""
        columns = zip(page.column("topic"), page.column("properties"), page.column("sys_flag"),
                      page.column("physical_offset"), page.raw("body"), strict=True)
        for topic, properties, sys_flag, offset, body in columns:
            yield self.decode(topic, properties, sys_flag, body, f"physical offset {offset}")

    def decode(self, topic: str, properties: dict[str, str], sys_flag: int, body: bytes,
               place: str) -> Decoded:
        """Return the decoded body; ``place`` identifies the message in the report of the first
        problem.
        """
        internal = internal_topics.meaning(topic, properties)
        message = MessageInfo(internal_topics.real_topic(topic, properties), properties)
        content, packed_badly = plain_body(sys_flag, body)
        if not content:
            return Decoded(None, None, None, internal)
        try:
            value, kind = self._value(content, message)
            return Decoded(value, kind, None, internal)
        except NotRecognized:
            if packed_badly is None:
                with self._lock:
                    self.unknown += 1
                return Decoded(None, None, None, internal)
            problem = packed_badly
        except Exception as error:  # noqa: BLE001  # each decoder has its own; plug-ins any
            problem = packed_badly or _reason(error)
        with self._lock:
            self.problems += 1
            self.first_problem = self.first_problem or f"{place}: {problem}"
        return Decoded(None, None, problem, internal)

    def _value(self, content: bytes, message: MessageInfo) -> tuple[Any, str]:
        internal = internal_topics.reader_of(message.topic)
        if internal is None:
            return bounded(self._decode, content, message)
        return bounded(lambda body, message: internal(body, message.properties, json_value),
                       content, message)


def _reason(error: Exception) -> str:
    """Return a decoder's error as a single line."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = " ".join(str(error).split())[:_MAX_REASON]
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
