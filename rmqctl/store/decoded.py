"""The results of decoding message bodies. The decoders themselves are in an extension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from rmqctl.store.objects import OF_BODY
from rmqctl.store.pages import Page

MISSING: Any = object()
"""The value that `at` returns for a body without the requested field."""


class Decoded(NamedTuple):
    """The decoded body of a message: ``kind`` is None if it was not decoded; ``problem`` is the
    reason if decoding failed.
    """

    value: Any
    kind: str | None
    problem: str | None
    internal: dict[str, Any] | None

    def field(self, name: str) -> Any:
        """Return the value of ``decoded``, ``decoded_as`` or ``internal``, or of a field of the
        body by its path; None if the body has no such field.
        """
        if name == "decoded":
            return self.value
        if name == "decoded_as":
            return self.kind
        if name == "internal":
            return self.internal
        value = self.of_body(name)
        return None if value is MISSING else value

    def of_body(self, name: str) -> Any:
        """Return the value of ``body.PATH``; `MISSING` if the body has no such field."""
        if self.kind is None:
            return MISSING
        return at(self.value, tuple(name.removeprefix(OF_BODY).split(".")))


class Decoding(Protocol):
    """Interface of a decoder of message bodies; `rmqctl.ext.payloads.decoding` implements it for
    ``--decode``.
    """

    spec: str
    problems: int
    unknown: int
    first_problem: str

    def rows(self, page: Page) -> Iterator[Decoded]:
        """Yield the decoded body of each message of a page, one at a time: values may be large."""

    def decode(self, topic: str, properties: dict[str, str], sys_flag: int, body: bytes,
               place: str) -> Decoded:
        """Return the decoded body. ``place`` identifies the message in the warning about the first
        body that cannot be decoded.
        """


def at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at ``path`` inside a decoded value, or `MISSING`. A number in the path is an
    index into a list.
    """
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else MISSING
        else:
            return MISSING
    return value
