"""Correct the headers of damaged DLedger entries whose messages are intact (spec: dledger.md §2).

Most fields of a header follow from the entry's byte offset, its message's length, and its position
in the chain of entries. DLedger's index or the neighboring entries prove that position
(`rmqctl.store.log.chain`). Three fields are unknown; they are kept, because no broker uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rmqctl.errors import FormatError
from rmqctl.formats import dledger
from rmqctl.formats.dledger import HEAD_SIZE
from rmqctl.formats.local.message import decode
from rmqctl.scan.overlay import LogPart
from rmqctl.store.log.chain import Chain, ChainLink
from rmqctl.store.log.dledger import UnitReader


class HeadFix(NamedTuple):
    """A correction of the header of a DLedger entry.

    ``at``: byte offset of the header. ``fields``: names of the fields that change. ``before``,
    ``after``: the bytes before and after the correction.
    """

    at: int
    fields: tuple[str, ...]
    before: bytes
    after: bytes


def head_fixes(parts: list[LogPart], units: UnitReader) -> Iterator[HeadFix]:
    """Yield a correction for each damaged header of an entry whose message is intact. Raises:
    StoreIOError.
    """
    by_base = sorted(parts, key=lambda part: part.base)
    for page in Chain(parts, units):
        for row in np.flatnonzero(~page.whole).tolist():
            link = page.link(row)
            part = next(candidate for candidate in reversed(by_base) if candidate.base <= link.pos)
            with part.open() as source:
                raw = source.read(link.pos - part.base, link.end - link.pos)
            fix = _fixed(raw, link)
            if fix is not None:
                yield fix


def _fixed(raw: bytes, link: ChainLink) -> HeadFix | None:
    """Return the correction of an entry's header; None if the header is correct, or if the message
    is not intact.
    """
    try:
        record = decode(raw[HEAD_SIZE:])
    except FormatError:
        return None
    if not record.crc_ok or record.physical_offset != link.pos + HEAD_SIZE or (
            record.total_size != len(raw) - HEAD_SIZE):
        return None
    head = dledger.ENTRY_HEAD.decode(raw)
    right = head._replace(magic=dledger.MAGIC_ENTRY, size=len(raw), entry_index=link.number,
                          term=link.term, pos=link.pos, body_length=record.total_size)
    fields = tuple(name for name, now, then in zip(
        head._fields, head, right, strict=True) if now != then)
    return HeadFix(link.pos, fields, raw[:HEAD_SIZE], dledger.build(right)) if fields else None
