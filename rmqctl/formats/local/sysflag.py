"""The bit set ``sysFlag`` of a message (spec: commitlog.md §4)."""

from __future__ import annotations

from rmqctl.formats.bodies import CODECS

COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
COMPRESSION_MASK = 0x700
COMPRESSION_SHIFT = 8
MULTI_TAGS = 0x2
KNOWN_BITS = 0x7FF
"""All bits that any release uses. Brokers store the flags of a client unchanged, but no client
sends other bits.
"""

_TRANSACTION = {TRANSACTION_NONE: "none", TRANSACTION_PREPARED: "prepared",
                TRANSACTION_COMMIT: "commit", TRANSACTION_ROLLBACK: "rollback"}


def transaction_type(sys_flag: int) -> str:
    """Return ``none``, ``prepared``, ``commit`` or ``rollback``, the values of a two-bit field."""
    return _TRANSACTION[sys_flag & TRANSACTION_MASK]


def compression(sys_flag: int) -> str | None:
    """Return the codec named by the flags: ``zlib``, ``lz4``, ``zstd``, ``unknown-N``; None if the
    body is not compressed.
    """
    if not sys_flag & COMPRESSED:
        return None
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    return CODECS[kind].name if kind in CODECS else f"unknown-{kind}"


def has_consume_queue_row(sys_flag: int) -> bool:
    """Return whether the message has a consume queue entry: only plain and COMMIT records have one
    (consumequeue.md §4).
    """
    return sys_flag & TRANSACTION_MASK in (TRANSACTION_NONE, TRANSACTION_COMMIT)


def is_indexed(sys_flag: int) -> bool:
    """Return whether the message is indexed: true unless it is a ROLLBACK (index.md §5)."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
