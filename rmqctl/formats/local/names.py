"""Names of store files: 20 digits are an offset, 17 digits a time (spec: commitlog.md §1,
consumequeue.md §1, index.md §1).
"""

from __future__ import annotations

from datetime import datetime

OFFSET_DIGITS = 20
INDEX_DIGITS = 17
_LONG_MAX = (1 << 63) - 1
MAX_QUEUE_ID = (1 << 31) - 1


def _digits(name: str, count: int) -> bool:
    return len(name) == count and name.isascii() and name.isdigit()


def parse_offset(name: str) -> int | None:
    """Return the offset in a 20-digit file name; None for other names.

    A number beyond Java's ``long`` does not count: a broker cannot read it either.
    """
    if not _digits(name, OFFSET_DIGITS):
        return None
    value = int(name)
    return value if value <= _LONG_MAX else None


def build_offset(offset: int) -> str:
    """Return the 20-digit name of the file that starts at ``offset``.

    Raises: ValueError outside 0…2^63-1.
    """
    if not 0 <= offset <= _LONG_MAX:
        raise ValueError(f"no file can start at {offset}")
    return f"{offset:0{OFFSET_DIGITS}d}"


def parse_queue_id(name: str) -> int | None:
    """Return the queue id in a folder's name; None for other names.

    A number with leading zeros does not count: a broker opens the folder whose name has none.
    """
    if not (name.isascii() and name.isdigit()) or (name[0] == "0" and name != "0"):
        return None
    return int(name) if len(name) <= 10 and int(name) <= MAX_QUEUE_ID else None


def is_index_name(name: str) -> bool:
    """Return whether a name has the shape ``yyyyMMddHHmmssSSS`` of an index file."""
    return _digits(name, INDEX_DIGITS)


def parse_index(name: str) -> datetime | None:
    """Return the creation time in an index file's name, in the broker's (unknown) local time zone.

    Return None if the name is not a valid time.
    """
    if not is_index_name(name):
        return None
    try:
        return datetime.strptime(name + "000", "%Y%m%d%H%M%S%f")  # noqa: DTZ007 (zone not stored)
    except ValueError:
        return None


def build_index(moment: datetime) -> str:
    """Return the 17-digit name of an index file that was created at ``moment`` (local time of its
    broker).
    """
    return (f"{moment.year:04d}{moment.month:02d}{moment.day:02d}{moment.hour:02d}"
            f"{moment.minute:02d}{moment.second:02d}{moment.microsecond // 1000:03d}")


def file_start(offset: int, file_size: int) -> int:
    """Return the start offset of the file that contains stream position ``offset``."""
    return offset - offset % file_size
