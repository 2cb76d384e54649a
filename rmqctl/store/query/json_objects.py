"""The message objects of a page as lines of JSON, built field by field for all messages at once.

The text is the same as the JSON-encoded rows of `projection.Projection`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rmqctl.formats.bodies import encode
from rmqctl.formats.local import properties as props
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import VERSIONS
from rmqctl.scan import text
from rmqctl.scan.frames import Array
from rmqctl.scan.json_cells import (
    LIST,
    LONG,
    OBJECT,
    STRING,
    Cells,
    Forms,
    base64_bytes,
    is_possible,
    json_bytes,
)
from rmqctl.scan.text import PropertySegments, Texts
from rmqctl.store import objects
from rmqctl.store.log.once import cached_property
from rmqctl.store.objects import PROPERTY
from rmqctl.store.pages import INTEGERS, BatchPage, Page, host
from rmqctl.store.projection import BODY, Projection

_ENCODINGS = ("utf-8", "base64")
_NAMED = {"tags": props.TAGS, "unique_key": props.UNIQUE_KEY}


class JsonObjects:
    """Builds the JSON lines of one listing. Not thread-safe."""

    def __init__(self, projection: Projection) -> None:
        self._projection, self._names = projection, projection.names
        self._hosts = Forms(lambda raw: json_bytes(host(raw)))
        self._ids = Forms(lambda raw: b'"' + raw.hex().upper().encode())
        makes = is_possible() and bool(self._names) and not projection.preview and all(
            name.isascii() and name.isprintable() if name.startswith(PROPERTY)
            else name in objects.FIELDS for name in self._names)
        self._cells = Cells() if makes else None

    def lines(self, page: Page) -> memoryview | None:
        """Return a line with a JSON object for each message; None if the lines must be built from
        rows.

        The result is valid until the next page is requested.
        """
        cells = self._cells
        if cells is None or not isinstance(page, BatchPage) or (
                self._projection.decompress and _is_compressed(page)):
            return None
        cells.begin(len(page))
        fields = _Fields(page, cells)
        bodies = (_Bodies(page, cells, self._projection.body)
                  if any(name in BODY for name in self._names) else None)
        lead = b"{"
        for name in self._names:
            cells.literal(lead + json_bytes(name) + b": ")
            lead = b", "
            if bodies is not None and name in BODY:
                bodies.add(name)
            elif name in ("born_host", "store_host"):
                self._hosts.choose(cells, page.host_texts(name))
            elif name == "msg_id":
                self._ids.choose(cells, page.host_texts("store_host"))
                offsets = page.numbers("physical_offset").astype(">i8").tobytes()
                cells.digits(offsets.hex().upper().encode())
                cells.literal(b'"')
            else:
                fields.add(name)
        cells.literal(b"}\n")
        return cells.woven()


def _is_compressed(page: Page) -> bool:
    """Return whether any body in the page must be decompressed: its final size is then not known in
    advance.
    """
    return any(sysflag.compression(flag) is not None
               for flag in {*page.numbers("sys_flag").tolist()})


class _Fields:
    """Writes the fields that are stored in the record or in its properties."""

    def __init__(self, page: BatchPage, cells: Cells) -> None:
        self._page, self._cells = page, cells

    @cached_property
    def _properties(self) -> PropertySegments:
        return PropertySegments(self._page.batch)

    def add(self, name: str) -> None:
        page, cells = self._page, self._cells
        if name in INTEGERS:
            cells.numbers(page.numbers(name))
        elif name == "crc_ok":
            cells.choice(page.numbers(name).astype(np.int64), [b"false", b"true"])
        elif name == "magic":
            which: Array = np.zeros(len(page), np.int64)
            for number, magic in enumerate(VERSIONS):
                which[page.numbers(name) == magic] = number
            cells.choice(which, list(map(json_bytes, VERSIONS.values())))
        elif name == "topic":
            cells.add(self._encoded(text.topics(page.batch), str))
        elif name == "properties_raw":
            cells.add(self._encoded(text.properties(page.batch), str))
        elif name == "properties":
            cells.add(self._encoded(text.properties(page.batch), props.parse, OBJECT))
        else:
            rows, values = self._properties.find(
                props.KEYS if name == "keys" else _NAMED.get(name) or name.removeprefix(PROPERTY))
            if name == "keys":
                cells.add(self._encoded(values, props.split_keys, LIST), rows, b"[]")
            else:
                cells.add(self._encoded(values, str), rows, b"null")

    def _encoded(self, texts: Texts, value: Callable[[str], Any], shape: str = STRING) -> Array:
        """Return texts encoded as JSON; ``value`` encodes each text that the kernel extension
        cannot encode.
        """
        def others(rows: Array) -> list[bytes]:
            return [json_bytes(value(objects.text(raw))) for raw in texts.take(rows).tolist()]

        return self._cells.make(texts, others, shape)


class _Bodies:
    """Writes the body of each message and the encoding of that body."""

    def __init__(self, page: BatchPage, cells: Cells, form: str) -> None:
        self._cells, self._form = cells, form
        self._texts = Texts(page.batch.data, page.batch.column("body_start"),
                            page.batch.column("body_length"))
        self._which: Array = np.zeros(len(page), np.int64)
        self._encoded = cells.make(self._texts, self._others, is_for_others=(
            np.ones(len(page), bool) if form == "base64" else None))

    def _others(self, rows: Array) -> list[bytes]:
        """Return the indexes of the bodies that are not text, or that are too long."""
        texts = self._texts.take(rows)
        if self._form == "base64" or (self._form == "auto" and int(texts.length.max()) <= LONG):
            self._which[rows] = _ENCODINGS.index("base64")
            return list(map(base64_bytes, texts.tolist()))
        encoded = [encode(content, self._form) for content in texts.tolist()]
        self._which[rows] = [_ENCODINGS.index(how) for _, how in encoded]
        return [json_bytes(body) for body, _ in encoded]

    def add(self, name: str) -> None:
        if name == "body":
            self._cells.add(self._encoded)
        else:
            self._cells.choice(self._which, list(map(json_bytes, _ENCODINGS)))
