"""A store with a message whose body holds records that prove themselves: well placed, chained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rmqctl.formats.local import message
from tests.support import tiny

LEAD = 100
"""Bytes of the body before the first forged record."""


def records(at: int, count: int = 3) -> bytes:
    """Whole records that say they lie at the physical offset ``at`` and behind."""
    record = message.Record(0, message.MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, (bytes(4), 1), 5,
                            (bytes(4), 1), 0, 0, b"", b"forged", b"")
    size = message.size_of(0, message.MAGIC_V1, 0, 6, 0)
    return b"".join(message.build(replace(record, total_size=size,
                                          physical_offset=at + size * number))
                    for number in range(count))


def build(root: Path, around: int = 1, file_size: int = 4096) -> tuple[tiny.Tiny, int]:
    """(store, physical offset of the first forged record); ``around`` messages on each side."""
    size = len(records(0))

    def tiny_store(body: bytes, name: str) -> tiny.Tiny:
        other = [tiny.Spec("orders", 0, b"b" * 400)] * around
        return tiny.build(root / name, [*other, tiny.Spec("orders", 0, body), *other],
                          tiny.Options(commitlog_file_size=file_size))

    outer = tiny_store(bytes(LEAD + size), "first").messages[around]
    inside = outer.start + outer.raw.index(bytes(LEAD + size)) + LEAD
    done = tiny_store(bytes(LEAD) + records(inside), "second")
    assert done.messages[around].start == outer.start
    return done, inside
