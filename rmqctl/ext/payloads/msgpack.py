"""Count the values in MessagePack data before a library creates any of them.

Source: the specification of MessagePack (the table of formats).
"""

from __future__ import annotations

_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,  # bin and str: a size first
          0xC7: 1, 0xC8: 2, 0xC9: 4}  # ext: a size and a type first
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
          0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_EXT = range(0xC7, 0xCA)


def count(body: bytes, most: int) -> int:
    """Return the number of values in ``body``, including keys, but at most ``most`` + 1.

    Lists and maps may declare more values than they contain, so only present values are counted.
    Counting stops at a truncated value or an invalid byte; the decoder reports it.
    """
    at, values, end = 0, 0, len(body)
    while at < end and values <= most:
        values += 1
        code = body[at]
        at += 1
        if 0xA0 <= code <= 0xBF:  # a short text
            at += code & 0x1F
        elif code in _SIZES:
            width = _SIZES[code]
            at += width + int.from_bytes(body[at:at + width]) + (code in _EXT)
        elif code in _FIXED:
            at += _FIXED[code]
        elif 0xDC <= code <= 0xDF:  # a list or map: its values come next
            at += 2 if code in (0xDC, 0xDE) else 4
        elif code == 0xC1:
            break
    return values
