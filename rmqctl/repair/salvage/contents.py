"""Kinds of content of a body, and how rarely a wrong change preserves the kind.

A wrong change that matches a CRC is a random one. So of all changes that are tried, only those
count after which the body is of its kind: text, JSON, a zlib stream. The number of such changes is
counted where that is easy, else an upper bound is estimated from samples. So the chance of a wrong
correction comes out too high rather than too low.
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
"""Largest number of bytes of a UTF-8 character."""
_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f"
_CONTROL = re.compile(f"[{_CONTROLS}]".encode())
_MANY = 16
_ODD = re.compile(f"[{_CONTROLS}\udc80-\udcff]")
_ODD_IN_PROPERTIES = re.compile("[\\x00\\x03-\\x08\x0b\x0c\x0e-\x1f\x7f\udc80-\udcff]")
_SECTOR, _EDGE = 512, 16
"""Number of random bytes at the edge of a sector that may look like text; more hardly ever do."""
_MAX_SAMPLES, _SAMPLED_BYTES = 512, 32 << 20
_MIN_SAMPLES = 16


class Odd(NamedTuple):
    """Range ``[start, end)`` outside of which everything is text. ``zero``: all bytes in it are
    NULs.
    """

    start: int
    end: int
    zero: bool


def compression(record: Record) -> str | None:
    """Return the compression type in a record's flags; None if the body is not compressed."""
    return sysflag.compression(record.sys_flag)


def unpacks(record: Record) -> bool | None:
    """Return whether a compressed body can be decompressed; None if it is not compressed, or the
    codec is missing.
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
    """Return whether the complete body is one zlib stream with a right checksum."""
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
    """Return the range of bytes that are not text; None if everything is text.

    Text is UTF-8 without control characters except tabs and line ends; in ``properties`` their
    separators are text, too. If the control characters alone cover a long range, that range is
    returned without decoding the bytes, which takes long.
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
    """Return how many bytes could be the one that must change to make the body text; None if it is
    text.

    A control character itself must change. If the decoder stops, the wrong byte is there or in the
    character before.
    """
    try:
        match = _ODD.search(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        return _LONG_CODE + error.end - error.start + 1
    return None if match is None else 1


def has_bad_sectors(body: bytes, place: int) -> bool:
    """Return whether whole sectors of a text body at ``place`` of the log are not text: from one
    sector border to another, with text before and after.

    So much damage cannot be explained by a change of a few bytes elsewhere. The binary part of an
    intact body matches sector borders by chance once in 900 times.
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
    """Return an upper bound for the share of changed bodies that are JSON (99.9 % confidence).

    ``size``: of one body, in bytes; the larger, the fewer samples. 1 if there would be too few.
    ``seed``: the same seed gives the same samples.
    """
    samples = min(_MAX_SAMPLES, _SAMPLED_BYTES // max(1, size))
    if samples < _MIN_SAMPLES:
        return 1.0
    luck = Random(seed)  # noqa: S311 - samples, no secret
    hits = sum(is_json(changed_body(luck)) for _ in range(samples))
    return min(1.0, (hits + 3.1 * sqrt(hits) + 7) / samples)
