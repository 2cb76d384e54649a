"""The result of decoding a message's body. The decoders themselves are an extension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from rmqctl.store.objects import OF_BODY
from rmqctl.store.pages import Page

MISSING: Any = object()
"""The value that `at` returns for a body without the requested field."""


class Decoded(NamedTuple):
    """The decoded body of a message: ``kind`` is None if it was not decoded; ``problem`` says in
    words why not, if it should have been.
    """

    value: Any
    kind: str | None
    problem: str | None
    internal: dict[str, Any] | None

    def field(self, name: str) -> Any:
        """Return ``decoded``, ``decoded_as``, ``internal``, or a field of the body by its path;
        None if the body lacks it.
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
        """Return ``body.PATH``; `MISSING` if the body lacks this field."""
        if self.kind is None:
            return MISSING
        return at(self.value, tuple(name.removeprefix(OF_BODY).split(".")))


class Decoding(Protocol):
    """A decoder of message bodies; `rmqctl.ext.payloads.decoding` implements it for
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
        """Return the decoded body; ``place`` names the message in the report on the first body that
        cannot be decoded.
        """


def at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the field of a plain value at ``path``, or `MISSING`. A number is an index of a
    list.
    """
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        elif isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
            value = value[int(name)] if int(name) < len(value) else MISSING
        else:
            return MISSING
    return value
