"""Rows of message objects from pages, with only the requested fields.

With all fields, a row equals `objects.message_object` of the same record; fields that are not
requested are not computed. Fields of decoded bodies need a `Decoding`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from rmqctl.errors import UsageError
from rmqctl.formats.bodies import encode
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.objects import FIELDS, OF_BODY, PROPERTY, plain_body
from rmqctl.store.pages import Page

if TYPE_CHECKING:
    from rmqctl.store.decoded import Decoded, Decoding
    from rmqctl.store.redaction import Redaction

BODY = ("body", "body_encoding")
DECODED = ("decoded", "decoded_as", "internal")
"""The fields that ``--decode`` adds to those of the message object."""
PROBLEM = "decode_problem"
"""Field that is added to a message whose body cannot be decoded in the requested format."""
OFFSET_MSG_ID = "offset_msg_id"
"""Another name for ``msg_id``, which distinguishes it from the id that a client creates
(``unique_key``).
"""
_PREVIEW_HEX = 16
_MAX_ROWS = 256
"""Maximum number of rows that are built at once: a page of small messages may contain many more."""


def checked_fields(names: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return field names from the user without duplicates.

    ``more``: valid names in addition to the fields of the message object. If ``more`` includes
    `DECODED`, fields of decoded bodies are also valid.

    Raises: UsageError that names the valid fields.
    """
    fields = [name.strip() for name in names if name.strip()]
    valid = (*FIELDS, OFFSET_MSG_ID, *more)
    prefixes = (PROPERTY, OF_BODY) if DECODED[0] in more else (PROPERTY,)
    for name in fields:
        if name not in valid and (name in prefixes or not name.startswith(prefixes)):
            of_body = "" if OF_BODY not in prefixes else f", {OF_BODY}FIELD for a field of the body"
            raise UsageError(f"no field {name!r}; valid fields: {', '.join(valid)} and "
                             f"{PROPERTY}NAME for a property{of_body}")
    if not fields:
        raise UsageError(f"No field given. Valid fields: {', '.join(valid)}.")
    return list(dict.fromkeys(fields))


def is_decoded(name: str) -> bool:
    """Return whether a field is computed from the decoded body."""
    return name in DECODED or name.startswith(OF_BODY)


@dataclass(frozen=True, slots=True)
class Projection:
    """The requested fields, and the form in which bodies are shown.

    ``body``: ``auto``, ``utf-8``, ``base64`` or ``none`` (no body fields).
    ``decompress``: decompress bodies. A body that does not match its compression flag is returned
    as stored, and the row gets a ``body_problem``.
    ``preview``: if not 0, bodies are replaced by a readable text of that many bytes.
    ``decoding``: computes the fields for which `is_decoded` is true, and the previews of decodable
    bodies.
    ``redaction``: replaces user data.
    """

    fields: Sequence[str] = FIELDS
    body: str = "auto"
    decompress: bool = False
    preview: int = 0
    decoding: Decoding | None = None
    redaction: Redaction | None = None

    @property
    def names(self) -> list[str]:
        """The fields of every row, in order."""
        return [name for name in self.fields if self.body != "none" or name not in BODY]

    def rows(self, page: Page) -> Iterator[dict[str, Any]]:
        """Yield a row for each message of the page."""
        if len(page) > _MAX_ROWS:
            return chain.from_iterable(
                self.rows(page.select(np.arange(row, min(row + _MAX_ROWS, len(page)))))
                for row in range(0, len(page), _MAX_ROWS))
        if self.redaction is not None:
            plain = replace(self, redaction=None, preview=0)
            return map(self.redaction.row, plain.rows(page), page.raw("body"))
        rows = self._stored(page)
        from_bodies = list(filter(is_decoded, self.names))
        if self.decoding is None or not (self.preview or from_bodies):
            return rows
        return (self._with_decoded(row, decoded, from_bodies)
                for row, decoded in zip(rows, self.decoding.rows(page), strict=True))

    def _stored(self, page: Page) -> Iterator[dict[str, Any]]:
        """Yield the rows of stored fields; the fields of decoded bodies are None."""
        names = self.names
        if not names:
            return ({} for _ in range(len(page)))
        bodies: dict[str, list[Any]] = {}
        if any(name in BODY for name in names):
            bodies = self._bodies(page)
        columns = [bodies[name] if name in BODY else self._column(page, name) for name in names]
        dicts = map(dict, map(zip, repeat(names), zip(*columns, strict=True)))
        problems = bodies.get("body_problem")
        if problems is None or not any(problems):
            return dicts
        return (row | {"body_problem": problem} if problem else row
                for row, problem in zip(dicts, problems, strict=True))

    @staticmethod
    def _column(page: Page, name: str) -> list[Any]:
        if is_decoded(name):
            return [None] * len(page)
        if name.startswith(PROPERTY):
            wanted = name.removeprefix(PROPERTY)
            return [properties.get(wanted) for properties in page.column("properties")]
        return page.column("msg_id" if name == OFFSET_MSG_ID else name)

    def _with_decoded(self, row: dict[str, Any], decoded: Decoded,
                      names: Sequence[str]) -> dict[str, Any]:
        for name in names:
            row[name] = decoded.field(name)
        if self.preview and "body" in row and decoded.kind is not None:
            row["body"] = _short(decoded.value, self.preview)
        if decoded.problem is not None and not self.preview:
            row[PROBLEM] = decoded.problem
        return row

    def _bodies(self, page: Page) -> dict[str, list[Any]]:
        problems: list[str | None] | None = None
        contents = page.raw("body")
        if self.decompress:
            decoded = [plain_body(flag, body)
                       for flag, body in zip(page.column("sys_flag"), contents, strict=True)]
            contents, problems = [content for content, _ in decoded], [problem
                                                                       for _, problem in decoded]
        if self.preview:
            shown = [_preview(content, ok, self.preview)
                     for content, ok in zip(contents, page.column("crc_ok"), strict=True)]
            return {"body": shown, "body_encoding": ["utf-8"] * len(shown)}
        pairs = [encode(content, self.body) for content in contents]
        bodies: dict[str, list[Any]] = {"body": [text for text, _ in pairs],
                                        "body_encoding": [how for _, how in pairs]}
        if problems is not None:
            bodies["body_problem"] = problems
        return bodies


def _short(value: Any, length: int) -> str:
    """Return the start of a decoded value: of a text unchanged, of any other value as JSON."""
    shown = value if isinstance(value, str) else json.dumps(
        value, ensure_ascii=False, separators=(",", ":"))
    return shown if len(shown) <= length else shown[:length] + "…"


def _preview(content: bytes, crc_ok: bool, length: int) -> str:
    """Return the first ``length`` bytes of a body as a short text, or its first bytes in hex if the
    body is not text.
    """
    head = content[:length]
    try:
        # The preview may cut a character at its end, which leaves up to three of its bytes.
        shown = head.decode("utf-8", "ignore" if len(content) > len(head) else "strict")
        if len(shown.encode()) < len(head) - 3:
            raise UnicodeDecodeError("utf-8", head, 0, 1, "not text")
        if len(content) > len(head):
            shown += "…"
    except UnicodeDecodeError:
        head = content[:min(max(length // 4, 2), _PREVIEW_HEX)]
        more = "…" if len(content) > len(head) else ""
        shown = f"{len(content)} bytes: {head.hex()}{more}"
    return shown if crc_ok else f"[bad CRC] {shown}"
