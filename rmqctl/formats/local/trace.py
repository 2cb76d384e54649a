"""The bytes of a record field by field, with the names from its declaration.

The code works on the construct objects, and so needs no list of field names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from construct import Bytes, Const, Container, FormatField, IfThenElse, Renamed, Struct


class Traced(NamedTuple):
    """One field: ``at`` counts from the start of the data; ``value`` is a number or bytes.

    ``whole`` is False for the last field of data that ends too early; such a field has no value.
    """

    name: str
    at: int
    raw: bytes
    value: int | bytes | None
    whole: bool = True


def _leaf(subcon: Any, context: Container) -> Any:
    while True:
        if isinstance(subcon, Renamed | Const):
            subcon = subcon.subcon
        elif isinstance(subcon, IfThenElse):
            subcon = subcon.thensubcon if subcon.condfunc(context) else subcon.elsesubcon
        else:
            return subcon


def _size(leaf: Any, context: Container) -> int:
    size = leaf.length
    return int(size(context) if callable(size) else size)


def trace(declaration: Any, data: bytes | memoryview, position: int = 0) -> Iterator[Traced]:
    """Yield the fields of the record at ``data[position:]``, ending with the first incomplete
    field.
    """
    yield from _trace(declaration, data, position, "")


def _trace(declaration: Any, data: bytes | memoryview, position: int,
           prefix: str) -> Iterator[Traced]:
    context = Container()
    for subcon in declaration.subcons:
        name = f"{prefix}{subcon.name}"
        leaf = _leaf(subcon, context)
        if isinstance(leaf, Struct):
            for inner in _trace(leaf, data, position, f"{name}."):
                yield inner
                if not inner.whole:
                    return
                position = inner.at + len(inner.raw)
            continue
        if not isinstance(leaf, FormatField | Bytes):
            raise TypeError(f"{name}: cannot place a {type(leaf).__name__}")
        size = _size(leaf, context)
        raw = bytes(data[position:position + size]) if size >= 0 else b""
        if size < 0 or len(raw) < size:
            yield Traced(name, position, raw, None, whole=False)
            return
        value = struct.unpack(leaf.fmtstr, raw)[0] if isinstance(leaf, FormatField) else raw
        context[subcon.name] = value
        yield Traced(name, position, raw, value)
        position += size
