"""Recognise text, JSON and zlib streams in bodies, as evidence for corrections.

A wrong correction that matches a CRC is a random change. After such a change, a body is rarely
still text, JSON or a zlib stream with a right checksum. So only changes that preserve such a
content count as candidates. If counting the candidates takes too long, an upper bound is estimated
from samples. The computed chance of a wrong correction may be too high, but not too low.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from math import sqrt
from random import Random
from typing import NamedTuple

from rmqctl.formats.bodies import CODECS, MAX_DECOMPRESSED
from rmqctl.formats.local import sysflag
from rmqctl.formats.local.message import Record

ZLIB_CHANCE = 2.0 ** -32
"""Chance that a damaged zlib stream matches the checksum at its end."""
_LONG_CODE = 4
"""Maximum length of a UTF-8 character in bytes."""
_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f"
_CONTROL = re.compile(f"[{_CONTROLS}]".encode())
_MANY = 16
_ODD = re.compile(f"[{_CONTROLS}\udc80-\udcff]")
_ODD_IN_PROPERTIES = re.compile("[\\x00\\x03-\\x08\x0b\x0c\x0e-\x1f\x7f\udc80-\udcff]")
_SECTOR, _EDGE = 512, 16
"""Sectors in a body.

* ``_SECTOR``: size of a sector in bytes.
* ``_EDGE``: maximum number of random bytes at the edge of a sector that happen to be text.
"""
_MAX_SAMPLES, _SAMPLED_BYTES = 512, 32 << 20
_MIN_SAMPLES = 16


class Odd(NamedTuple):
    """Range ``[start, end)`` of a body; all bytes outside of the range are text.

    ``zero``: whether all bytes in the range are NULs.
    """

    start: int
    end: int
    zero: bool


def compression(record: Record) -> str | None:
    """Return the compression type in a record's flags; None if the body is not compressed."""
    return sysflag.compression(record.sys_flag)


def unpacks(record: Record) -> bool | None:
    """Return whether a compressed body can be decompressed; None if it is not compressed or its
    codec is not available.
    """
    if compression(record) is None:
        return None
    number = (record.sys_flag & sysflag.COMPRESSION_MASK) >> sysflag.COMPRESSION_SHIFT
    if number not in CODECS:
        return None
    try:
        CODECS[number].decompress(record.body)
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - a decoder may raise anything on foreign bytes
        return False
    return True


def is_zlib(body: bytes) -> bool:
    """Return whether the body consists of exactly one zlib stream with a correct checksum."""
    codec, left = zlib.decompressobj(), MAX_DECOMPRESSED
    try:
        data = codec.decompress(body, left)
        while codec.unconsumed_tail and data:
            left -= len(data)
            if left <= 0:
                return False
            data = codec.decompress(codec.unconsumed_tail, left)
    except zlib.error:
        return False
    return codec.eof and not codec.unused_data


# -- text -----------------------------------------------------------------------------------------


def odd_bytes(content: bytes, *, properties: bool = False) -> Odd | None:
    """Return the range that contains all bytes that are not text; None if all bytes are text.

    Text is UTF-8 without control characters except tabs and line ends. In a properties string
    (``properties``), separators count as text, too. If the control characters alone span a long
    range, that range is returned without the slow decoding of UTF-8.
    """
    control = _CONTROL.search(content)
    if control is not None:
        last_control = _CONTROL.search(content[::-1])
        assert last_control is not None
        start, end = control.start(), len(content) - last_control.start()
        if end - start > _MANY and not properties:
            return Odd(start, end, zero=False)
    pattern = _ODD_IN_PROPERTIES if properties else _ODD
    text = content.decode("utf-8", "surrogateescape")
    first = pattern.search(text)
    if first is None:
        return None
    # Search backwards from the end: a binary body may have millions of matches.
    last = pattern.search(text[::-1])
    assert last is not None
    start = len(text[:first.start()].encode("utf-8", "surrogateescape"))
    end = len(content) - len(text[len(text) - last.start():].encode("utf-8", "surrogateescape"))
    return Odd(start, end, not any(content[start:end]))


def not_text(body: bytes) -> int | None:
    """Return the number of candidate bytes, one of which must be wrong because the body is not
    text.

    None if the body is text. For a control character, the number is 1. For an invalid UTF-8
    sequence, the wrong byte is in that sequence or in the character before it.
    """
    try:
        match = _ODD.search(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _LONG_CODE + error.end - error.start + 1
    return None if match is None else 1


def has_bad_sectors(body: bytes, place: int) -> bool:
    """Return whether complete sectors of a text body are not text, with text before and after them.

    ``place``: physical offset of the body. Such damage is more than a few changed bytes. In an
    intact body, a binary part begins and ends at sector boundaries by chance only once in 900
    cases.
    """
    first, last = _CONTROL.search(body), _CONTROL.search(body[::-1])
    if first is None or last is None or len(body) < _SECTOR:
        return False
    head, tail = body[:first.end()], body[len(body) - last.end():]
    start = _ODD.search(head.decode("utf-8", "surrogateescape"))
    end = _ODD.search(tail.decode("utf-8", "surrogateescape")[::-1])
    assert start is not None
    assert end is not None
    low = len(head.decode("utf-8", "surrogateescape")[:start.start()].encode(
        "utf-8", "surrogateescape"))
    behind = len(tail.decode("utf-8", "surrogateescape")[::-1][:end.start()].encode(
        "utf-8", "surrogateescape"))
    high = len(body) - behind
    return (low >= _EDGE and behind >= _EDGE and high - low >= _SECTOR - 2 * _EDGE
            and (place + low) % _SECTOR <= _EDGE and -(place + high) % _SECTOR <= _EDGE)


# -- JSON -----------------------------------------------------------------------------------------


def is_json(body: bytes) -> bool:
    """Return whether a body is one JSON document in UTF-8."""
    try:
        json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def most_json(size: int, seed: int, changed_body: Callable[[Random], bytes]) -> float:
    """Return an upper bound for the share of randomly changed bodies that are JSON (99.9 %
    confidence).

    1 if the bodies are too large for enough samples.

    * ``size``: size of a body in bytes; larger bodies get fewer samples.
    * ``seed``: the same seed gives the same samples.
    * ``changed_body``: function that returns a randomly changed body.
    """
    samples = min(_MAX_SAMPLES, _SAMPLED_BYTES // max(1, size))
    if samples < _MIN_SAMPLES:
        return 1.0
    luck = Random(seed)  # noqa: S311 - samples, no secret
    hits = sum(is_json(changed_body(luck)) for _ in range(samples))
    return min(1.0, (hits + 3.1 * sqrt(hits) + 7) / samples)
