"""Derivation of offsets, numpy dtypes and struct formats from construct declarations.

Each layout is declared once, as a construct ``Struct``. The slow, exact reader parses with this
declaration, and the fast reader gets the positions of the fields from this module.

Only fields at known positions are derived. The *prefix* ends at the first field whose width depends
on an earlier value, unless that value is given as ``context``. For example, ``sys_flag`` and
``magic`` of a message determine the widths of hosts and topic length.
"""

from __future__ import annotations

import struct as _struct
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from construct import (
    Bytes,
    Const,
    Construct,
    Container,
    FormatField,
    IfThenElse,
    Renamed,
    Struct,
)
from construct.core import Adapter

from rmqctl.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

_NUMPY_KIND = {"b": "i1", "B": "u1", "h": "i2", "H": "u2", "i": "i4", "I": "u4", "q": "i8",
               "Q": "u8", "l": "i4", "L": "u4"}


class LayoutError(TypeError):
    """A declaration cannot be turned into fixed offsets (a defect of the declaration)."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field at a fixed position: ``offset`` and ``size`` in bytes.

    ``code`` is the big-endian struct code of an integer (``"q"``), or ``""`` for raw bytes.
    """

    name: str
    offset: int
    size: int
    code: str

    @property
    def numpy_format(self) -> str:
        """The numpy dtype string, ``">i8"`` or ``"V16"``."""
        return ">" + _NUMPY_KIND[self.code] if self.code else f"V{self.size}"

    @property
    def struct_format(self) -> str:
        return self.code or f"{self.size}s"


def _unwrap(subcon: Any, context: Container) -> Any:
    """Return the innermost declaration, with conditions decided by ``context``.

    Raises: KeyError if ``context`` is not sufficient.
    """
    while True:
        if isinstance(subcon, Renamed | Adapter | Const):
            subcon = subcon.subcon
        elif isinstance(subcon, IfThenElse):
            condition = subcon.condfunc
            chosen = condition(context) if callable(condition) else condition
            subcon = subcon.thensubcon if chosen else subcon.elsesubcon
        else:
            return subcon


def _walk(declaration: Any, context: Container) -> Iterator[tuple[str, int | None, str]]:
    """Yield the leaf fields in order, as (dotted name, size in bytes or None if variable, struct
    code).
    """
    for subcon in declaration.subcons:
        name = subcon.name
        try:
            inner = _unwrap(subcon, context)
        except (KeyError, AttributeError):
            yield name or "", None, ""
            continue
        if isinstance(inner, Struct):
            for sub, size, code in _walk(inner, context):
                yield (f"{name}.{sub}" if name else sub), size, code
        elif isinstance(inner, FormatField):
            fmt = str(inner.fmtstr)
            if fmt[0] != ">":
                raise LayoutError(f"{name}: RocketMQ stores are big-endian, not {fmt!r}")
            yield name or "", inner.length, fmt[1]
        elif isinstance(inner, Bytes):
            yield name or "", inner.length if isinstance(inner.length, int) else None, ""
        else:
            yield name or "", None, ""


@cache
def _fields(declaration: Construct[Any, Any], context: tuple[tuple[str, int], ...]) -> tuple[
        tuple[Field, ...], bool]:
    declared: list[Field] = []
    offset = 0
    for name, size, code in _walk(declaration, Container(dict(context))):
        if size is None:
            return tuple(declared), False
        declared.append(Field(name, offset, size, code))
        offset += size
    return tuple(declared), True


def prefix(declaration: Construct[Any, Any], **context: int) -> tuple[Field, ...]:
    """Return the fields before the first one whose position or width depends on data."""
    return _fields(declaration, tuple(sorted(context.items())))[0]


def fields(declaration: Construct[Any, Any], **context: int) -> tuple[Field, ...]:
    """Return all fields of a fixed-size declaration.

    Raises: LayoutError if it is not fixed in ``context``.
    """
    declared, complete = _fields(declaration, tuple(sorted(context.items())))
    if not complete:
        raise LayoutError(f"{declaration!r} has no fixed size")
    return declared


def field(declaration: Construct[Any, Any], name: str, **context: int) -> Field:
    """Return one field of the fixed prefix by name."""
    for candidate in prefix(declaration, **context):
        if candidate.name == name:
            return candidate
    raise LayoutError(f"no fixed field {name!r} in {declaration!r}")


def size_of(declaration: Construct[Any, Any], **context: int) -> int:
    """Return the size in bytes of a fixed-size declaration."""
    declared = fields(declaration, **context)
    return declared[-1].offset + declared[-1].size


def prefix_size(declaration: Construct[Any, Any], **context: int) -> int:
    """Return the number of bytes before the first data-dependent field."""
    declared = prefix(declaration, **context)
    return declared[-1].offset + declared[-1].size if declared else 0


def fixed_total(declaration: Construct[Any, Any], **context: int) -> int:
    """Return the sum of all widths that do not depend on length fields: the size of an "empty"
    record.
    """
    return sum(size or 0 for _, size, _ in _walk(declaration, Container(context)))


def width_of(declaration: Construct[Any, Any], name: str, **context: int) -> tuple[int, str]:
    """Return (size in bytes, struct code) of a fixed-width field, even if its position is not
    fixed.
    """
    for field_name, size, code in _walk(declaration, Container(context)):
        if field_name == name and size is not None:
            return size, code
    raise LayoutError(f"no fixed-width field {name!r} in {declaration!r}")


def reader(declaration: Construct[Any, Any], *names: str, **context: int) -> _struct.Struct:
    """Return a compiled ``struct.Struct`` that unpacks the named fields of the prefix; without
    names, the entire prefix. Bytes before and between the named fields are skipped.
    """
    wanted = prefix(declaration, **context)
    if names:
        wanted = tuple(field(declaration, name, **context) for name in names)
    fmt, position = ">", 0
    for part in wanted:
        if part.offset < position:
            raise LayoutError("fields must be named in their order on disk")
        fmt += f"{part.offset - position}x" if part.offset > position else ""
        fmt += part.struct_format
        position = part.offset + part.size
    return _struct.Struct(fmt)


def dtype(declaration: Construct[Any, Any], *names: str, itemsize: int | None = None,
          **context: int) -> np.dtype[Any]:
    """Return a numpy structured dtype of the named fields (default: the prefix) at their declared
    offsets.

    By default an item has the size of the declaration, and ``np.frombuffer`` reads an array of
    units. ``itemsize``: size of an item (bytes) if only the start of each record was gathered.
    """
    import numpy as np

    wanted = prefix(declaration, **context)
    if names:
        wanted = tuple(field(declaration, name, **context) for name in names)
    if itemsize is None:
        itemsize = size_of(declaration, **context)
    return np.dtype({"names": [part.name for part in wanted],
                     "formats": [part.numpy_format for part in wanted],
                     "offsets": [part.offset for part in wanted],
                     "itemsize": itemsize})
