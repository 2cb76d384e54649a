"""Kinds of content of a body, and how rarely a wrong change preserves the kind.

A change that a CRC suggests is a random one, if it is wrong. So of all changes that are tried only
those count which leave a body what it is with the change: text, JSON, a zlib stream. How many that
are is counted where that is easy, and else bounded from samples; what is not certain is taken for
more, so that the chance of a wrong correction comes out too high rather than too low.
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
"""Chance that a wrong stream matches the checksum at its end."""
_LONG_CODE = 4
"""The most bytes of a character in UTF-8."""
_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f"
_CONTROL = re.compile(f"[{_CONTROLS}]".encode())
_MANY = 16
_ODD = re.compile(f"[{_CONTROLS}\udc80-\udcff]")
_ODD_IN_PROPERTIES = re.compile("[\\x00\\x03-\\x08\x0b\x0c\x0e-\x1f\x7f\udc80-\udcff]")
_SECTOR, _EDGE = 512, 16
"""Random bytes look like text for hardly more than a few bytes at the edge of a sector."""
_MAX_SAMPLES, _SAMPLED_BYTES = 512, 32 << 20
_MIN_SAMPLES = 16


class Odd(NamedTuple):
    """Bytes ``[start, end)`` outside of which all is text. ``zero``: they are NULs, all of them."""

    start: int
    end: int
    zero: bool


def compression(record: Record) -> str | None:
    """Return the compression type that a record names; None if it is not compressed."""
    return sysflag.compression(record.sys_flag)


def unpacks(record: Record) -> bool | None:
    """Return whether a compressed body is one; None if it is not compressed, or the codec is
    missing.
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
    """Return whether all of a body is one zlib stream whose checksum is right."""
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
    """Return the bytes for which this is not text; None where it is.

    Text is UTF-8 without control characters but tabs and ends of lines; in ``properties``
    their separators are text, too. Where control characters alone reach over many bytes, these are
    told: that is not text, and to decode it takes long.
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
    # From the end: other bodies may have millions of them.
    last = pattern.search(text[::-1])
    assert last is not None
    start = len(text[:first.start()].encode("utf-8", "surrogateescape"))
    end = len(content) - len(text[len(text) - last.start():].encode("utf-8", "surrogateescape"))
    return Odd(start, end, not any(content[start:end]))


def not_text(body: bytes) -> int | None:
    """Return how many bytes there are of which one must change to make this text; None if it is.

    A control character must be changed itself. Where the decoder stops, what is wrong is that
    place, or the character before it.
    """
    try:
        match = _ODD.search(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _LONG_CODE + error.end - error.start + 1
    return None if match is None else 1


def has_bad_sectors(body: bytes, place: int) -> bool:
    """Return whether a text, which begins at ``place`` of the log, has bytes that are not text in
    whole sectors: from one border to another, with text before and after. So much is damaged that
    no change of a few bytes elsewhere explains its CRC. A text with a binary part ends it there by
    chance once in 900 times.
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
    """Return whether a body is one JSON document, as UTF-8."""
    try:
        json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def most_json(size: int, seed: int, changed_body: Callable[[Random], bytes]) -> float:
    """At most which part of the bodies that ``made`` makes is JSON (with 999 in 1,000 to be right).

    ``size``: of one body, in bytes; the larger, the fewer samples. 1 where these would be too few.
    ``seed``: the same one gives the same samples.
    """
    samples = min(_MAX_SAMPLES, _SAMPLED_BYTES // max(1, size))
    if samples < _MIN_SAMPLES:
        return 1.0
    luck = Random(seed)  # noqa: S311 - samples, no secret
    hits = sum(is_json(changed_body(luck)) for _ in range(samples))
    return min(1.0, (hits + 3.1 * sqrt(hits) + 7) / samples)
