"""DLedger framing: message records inside log entries with a 48-byte header (commitlog.md §10)."""

from __future__ import annotations

from typing import NamedTuple

from construct import Int32sb, Int64sb, Struct

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local.delay import java_int
from rmqctl.formats.local.message import MAGIC_BLANK, VERSIONS, Blank

EntryHead = Struct(
    "magic" / Int32sb,
    "size" / Int32sb,
    "entry_index" / Int64sb,
    "term" / Int64sb,
    "pos" / Int64sb,
    "channel" / Int32sb,
    "chain_crc" / Int32sb,
    "body_crc" / Int32sb,
    "body_length" / Int32sb,
)

IndexUnit = Struct(
    "magic" / Int32sb,
    "pos" / Int64sb,
    "size" / Int32sb,
    "entry_index" / Int64sb,
    "term" / Int64sb,
)

End = Struct("magic" / Int32sb, "size" / Int32sb)
"""The end mark of a data file: ``size`` is the number of bytes from the mark to the end of the
file.
"""

MAGIC_ENTRY = 1
MAGIC_END = -1
CONTROL = {2: "NOOP", 3: "CONFIG_CHANGE"}
"""Magics of entries without a message (since DLedger 0.4.0)."""
PLAIN, FRAMED, END_OF_FILE = "plain", "dledger", "end"


class EntryHeadRecord(NamedTuple):
    """The header of a log entry; the entry's body contains one message record, or the records of a
    batch.
    """

    magic: int
    size: int
    entry_index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_length: int


class IndexUnitRecord(NamedTuple):
    """One unit of the DLedger index: the position of the entry with this index in the data."""

    magic: int
    pos: int
    size: int
    entry_index: int
    term: int

    @property
    def is_valid(self) -> bool:
        return self.magic == MAGIC_ENTRY and self.pos >= 0 and self.size > HEAD_SIZE


class EndRecord(NamedTuple):
    """The end mark of a data file."""

    magic: int
    size: int


ENTRY_HEAD = Fixed(EntryHead, EntryHeadRecord)
INDEX_UNIT = Fixed(IndexUnit, IndexUnitRecord)
END = Fixed(End, EndRecord)
_START = layout.reader(Blank)
HEAD_SIZE = ENTRY_HEAD.size
INDEX_FILE_SIZE = 167_772_160
"""Size in bytes of each index file; a broker's configuration cannot change it."""


def judge(head: EntryHeadRecord, where: int) -> FormatError | None:
    """Return the first fault of an entry header; None if the header is valid."""
    if head.magic != MAGIC_ENTRY and head.magic not in CONTROL:
        return FormatError(f"invalid entry magic: {head.magic}", offset=where, path="magic")
    if head.body_length < 0:
        return FormatError("negative length", offset=where, path="body_length")
    if head.size != HEAD_SIZE + head.body_length:
        return FormatError(f"says {head.size}, but the fields add up to "
                           f"{HEAD_SIZE + head.body_length}",
                           offset=where, path="size")
    return None


def parse(data: bytes, position: int = 0, base: int = 0) -> EntryHeadRecord:
    """Return the entry header at ``data[position:]``, parsed with construct.

    Raises: FormatError if it is invalid.
    """
    head = ENTRY_HEAD.parse(data, position, base)
    error = judge(head, base + position)
    if error is not None:
        raise error
    return head


build = ENTRY_HEAD.build


def head_at(raw: bytes, where: int) -> EntryHeadRecord | None:
    """Return the entry header at the start of ``raw``. Return None if its ``pos`` differs from
    ``where``, a byte offset in the data.
    """
    if len(raw) < HEAD_SIZE:
        return None
    head = ENTRY_HEAD.decode(raw)
    return head if head.pos == where and judge(head, where) is None else None


def build_end(size: int) -> bytes:
    """Return the bytes of an end mark; ``size``: number of bytes from the mark to the end of the
    file.
    """
    return END.build(EndRecord(MAGIC_END, size))


def detect(data: bytes, position: int = 0) -> str | None:
    """Return the framing of the bytes at ``position``: `FRAMED`, `PLAIN`, `END_OF_FILE`, or None. A
    broker checks the same fields.
    """
    if len(data) - position < END.size:
        return None
    first, magic = _START.unpack_from(data, position)
    if first == MAGIC_END:
        return END_OF_FILE
    if magic in VERSIONS or magic == MAGIC_BLANK:
        return PLAIN
    return FRAMED if first == MAGIC_ENTRY else None


CHECKPOINT_KEYS = {"endIndex": "end_index", "committedIndex": "committed_index"}


def parse_checkpoint(data: bytes) -> dict[str, int]:
    """Return ``end_index`` and ``committed_index`` of DLedger's ``checkpoint`` (Java properties
    text).
    """
    values: dict[str, int] = {}
    position = 0
    for raw in data.splitlines(keepends=True):
        key, _, value = raw.decode("latin-1").partition("=")
        if key.strip() in CHECKPOINT_KEYS:
            try:
                values[CHECKPOINT_KEYS[key.strip()]] = java_int(value.strip(), 64)
            except ValueError:
                raise FormatError("not a 64-bit number", offset=position,
                                  path=key.strip()) from None
        position += len(raw)
    for key, name in CHECKPOINT_KEYS.items():
        if name not in values:
            raise FormatError("missing", offset=len(data), path=key)
    return values


def build_checkpoint(end_index: int, committed_index: int) -> bytes:
    """Return the text of a DLedger checkpoint (without the comment line of Java's writer)."""
    return f"endIndex={end_index}\ncommittedIndex={committed_index}\n".encode("ascii")
