"""Pages of messages whose fields are computed on demand, column by column.

A page is a view of single records, or of a batch from the frame scanner. The number of its messages
is limited, and nothing is copied before it is needed. Conditions use `numbers`, `is_topic` and
`candidates`, which need no object for each message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import (
    HOST_BITS,
    VERSIONS,
    Record,
    decode,
    fixed_field,
    host_text,
)
from rmqctl.scan.frames import Array, Batch
from rmqctl.scan.text import Texts, topics
from rmqctl.store.objects import text

INTEGERS = ("physical_offset", "total_size", "body_crc", "queue_id", "queue_offset", "flag",
            "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times",
            "prepared_transaction_offset")
_PORT_SIZE = 4


class Page(ABC):
    """Messages in order. A column is a list with a value for each message."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def numbers(self, name: str) -> Array:
        """Return one field of each message: a number field (one of `INTEGERS`, int64, or ``magic``)
        or ``crc_ok`` (bool).
        """

    @abstractmethod
    def raw(self, name: str) -> Sequence[bytes]:
        """Return the stored bytes of ``topic``, ``properties`` or ``body`` of each message."""

    @abstractmethod
    def hosts(self, name: str) -> list[bytes]:
        """Return ``born_host`` or ``store_host`` of each message as stored: 4 or 16 bytes for the
        address, then 4 bytes for the port.
        """

    @abstractmethod
    def is_topic(self, topic: bytes) -> Array:
        """Return a boolean array: whether each message has this topic."""

    @abstractmethod
    def candidates(self, needles: Sequence[bytes]) -> Array:
        """Return, in ascending order, the indices of the messages whose stored bytes contain one of
        ``needles``.
        """

    @abstractmethod
    def select(self, rows: Array) -> Page:
        """Return a page with only the messages at the given indexes."""

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """Yield the messages one by one."""

    def column(self, name: str) -> list[Any]:
        """Return one field of the message object for each message; any field except the body."""
        values = self._columns.get(name)
        if values is None:
            values = self._columns[name] = self._compute(name)
        return values

    def _compute(self, name: str) -> list[Any]:
        if name in INTEGERS or name == "crc_ok":
            numbers: list[Any] = self.numbers(name).tolist()
            return numbers
        if name == "magic":
            return [VERSIONS[magic] for magic in self.numbers("magic").tolist()]
        if name == "topic":
            return [_known_text(topic) for topic in self.raw("topic")]
        if name in ("born_host", "store_host"):
            return [host(raw) for raw in self.hosts(name)]
        if name == "msg_id":
            digits = self.numbers("physical_offset").astype(">i8").tobytes().hex().upper()
            return [_id_head(host) + digits[digits_start:digits_start + 16]
                    for digits_start, host in zip(
                range(0, len(digits), 16), self.hosts("store_host"), strict=True)]
        if name == "properties_raw":
            return [text(raw) for raw in self.raw("properties")]
        if name == "properties":
            return [props.parse(raw) for raw in self.column("properties_raw")]
        # The next columns come from the properties, which are parsed once per page.
        properties = self.column("properties")
        if name == "tags":
            return [parsed.get(props.TAGS) for parsed in properties]
        if name == "unique_key":
            return [parsed.get(props.UNIQUE_KEY) for parsed in properties]
        if name == "keys":
            return [props.split_keys(parsed.get(props.KEYS)) for parsed in properties]
        if name == "body":  # as text, for conditions; a projection formats it
            return [text(body) for body in self.raw("body")]
        if name == "body_encoding":
            return ["utf-8" if _is_utf8(body) else "base64" for body in self.raw("body")]
        raise KeyError(name)


_known_text = lru_cache(maxsize=4096)(text)


@lru_cache(maxsize=4096)
def host(raw: bytes) -> str:
    """Return a host as text: the address and then the port, as stored."""
    return host_text(raw[:-_PORT_SIZE], int.from_bytes(raw[-_PORT_SIZE:], signed=True))


@lru_cache(maxsize=4096)
def _id_head(host: bytes) -> str:
    """Return the part of an offset message id that contains the store host."""
    return host.hex().upper()


def _has_any(raw: bytes, needles: Sequence[bytes]) -> bool:
    return any(needle in raw for needle in needles)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def limited(pages: Iterable[Page], count: int | None) -> Iterator[Page]:
    """Yield pages with the first ``count`` messages (None: all); empty pages are omitted."""
    left = count
    for full_page in pages if left != 0 else ():
        page = full_page
        if left is not None:
            if len(page) > left:
                page = page.select(np.arange(left))
            left -= len(page)
        if len(page):
            yield page
        if left == 0:
            return


class BatchPage(Page):
    """A page of the messages in a batch of the frame scanner. It is valid only until the scanner
    continues.
    """

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self._bytes: bytes | None = None

    def __len__(self) -> int:
        return len(self.batch)

    def numbers(self, name: str) -> Array:
        return self.batch.crc_ok() if name == "crc_ok" else self.batch.column(name)

    def raw(self, name: str) -> Sequence[bytes]:
        if not len(self):
            return []
        if self._bytes is None:  # one copy of the records, from which slices are cheap
            end = int(self.batch.start[-1] + self.batch.column("total_size")[-1])
            self._bytes = self.batch.data[int(self.batch.start[0]):end].tobytes()
        data = self._bytes
        start = self.batch.column(f"{name}_start") - self.batch.start[0]
        end_of = start + self.batch.column(f"{name}_length")
        return [data[a:b] for a, b in zip(start.tolist(), end_of.tolist(), strict=True)]

    def host_texts(self, name: str) -> Texts:
        """Return the stored bytes of ``born_host`` or ``store_host`` of each message, as slices of
        the batch.
        """
        kinds = self.batch.column("sys_flag") & HOST_BITS
        start, length = self.batch.start.copy(), np.empty(len(kinds), np.int64)
        for bits in {*kinds.tolist()}:
            rows = kinds == bits
            address = fixed_field(f"{name}.address", bits)
            start[rows] += address.offset
            length[rows] = address.size + _PORT_SIZE
        return Texts(self.batch.data, start, length)

    def hosts(self, name: str) -> list[bytes]:
        return self.host_texts(name).tolist()

    def is_topic(self, topic: bytes) -> Array:
        return topics(self.batch).equal(topic)

    def candidates(self, needles: Sequence[bytes]) -> Array:
        size = self.batch.column("total_size")
        starts, ends = self.batch.start.tolist(), (self.batch.start + size).tolist()
        if int(size.sum()) < len(self.batch.data) // 2:  # only few rows of the buffer remain
            view = self.batch.data.data
            return np.array([row for row, (a, b) in enumerate(zip(starts, ends, strict=True))
                             if _has_any(bytes(view[a:b]), needles)], np.int64)
        data = self.batch.data.tobytes()
        rows: set[int] = set()
        for needle in needles:
            hit = data.find(needle, starts[0])
            while hit >= 0:
                row = bisect_right(starts, hit) - 1
                if hit + len(needle) <= ends[row]:
                    rows.add(row)
                # One match is enough, and a record cannot have another one after its end.
                hit = data.find(needle, starts[row + 1]) if row + 1 < len(starts) else -1
        return np.array(sorted(rows), np.int64)

    def select(self, rows: Array) -> Page:
        return BatchPage(self.batch.select(rows))

    def records(self) -> Iterator[Record]:
        for number in range(len(self.batch)):
            yield decode(self.batch.bytes_at(number))


class RecordPage(Page):
    """A page of single records to which a consumequeue or an index points."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__()
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def numbers(self, name: str) -> Array:
        numbers: Array = np.array([getattr(record, name) for record in self._records],
                                  bool if name == "crc_ok" else np.int64)
        return numbers

    def raw(self, name: str) -> Sequence[bytes]:
        return [getattr(record, name) for record in self._records]

    def hosts(self, name: str) -> list[bytes]:
        return [address + port.to_bytes(_PORT_SIZE, signed=True)
                for address, port in (getattr(record, name) for record in self._records)]

    def is_topic(self, topic: bytes) -> Array:
        matching: Array = np.array([record.topic == topic for record in self._records], bool)
        return matching

    def candidates(self, needles: Sequence[bytes]) -> Array:
        return np.array([number for number, record in enumerate(self._records)
                         if _has_any(record.properties, needles)
                         or _has_any(bytes(record.body), needles)], np.int64)

    def select(self, rows: Array) -> Page:
        return RecordPage([self._records[number] for number in rows.tolist()])

    def records(self) -> Iterator[Record]:
        yield from self._records

