"""A fixed-size unit: one declaration, an exact reader, a fast reader and a builder.

`Fixed` couples a construct declaration with a ``NamedTuple`` of the same field names. `parse` reads
with construct, `decode` with the struct that `layout` derives. They return equal tuples, and reject
the same bytes with the same message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from construct import ConstructError

from rmqctl.errors import FormatError
from rmqctl.formats import layout

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T", bound=tuple[Any, ...])

TOO_SHORT = "runs past the end of the data"


class Fixed(Generic[T]):
    """The two readers and the builder for one fixed-size declaration."""

    def __init__(self, declaration: Any, record: type[T]) -> None:
        self.declaration = declaration
        self.fields = layout.fields(declaration)
        self.names = tuple(part.name for part in self.fields)
        self.size = layout.size_of(declaration)
        named: Any = record
        if named._fields != self.names:
            raise layout.LayoutError(f"{record.__name__} does not have the fields {self.names}")
        self._make = named._make
        self._struct = layout.reader(declaration)
        self._dtype: np.dtype[Any] | None = None

    def _refuse_short(self, available: int, where: int) -> FormatError:
        missing = next(part for part in self.fields if part.offset + part.size > available)
        return FormatError(TOO_SHORT, offset=where, path=missing.name)

    def parse(self, data: bytes, position: int = 0, base: int = 0) -> T:
        """Return the unit at ``data[position:]`` through construct; ``base`` is the offset of
        ``data[0]``.
        """
        try:
            values = self.declaration.parse(data[position:position + self.size] if position >= 0
                                            else b"")
        except ConstructError as error:
            path = (error.path or "").removeprefix("(parsing) -> ").replace(" -> ", ".")
            raise FormatError(TOO_SHORT, offset=base + position, path=path) from None
        record: T = self._make(values[name] for name in self.names)
        return record

    def decode(self, data: bytes | memoryview, position: int = 0, base: int = 0) -> T:
        """Return the unit at ``data[position:]``, parsed with the derived struct, with the same
        result as `parse`.
        """
        available = len(data) - position if position >= 0 else 0
        if available < self.size:
            raise self._refuse_short(max(available, 0), base + position)
        record: T = self._make(self._struct.unpack_from(data, position))
        return record

    def decode_all(self, data: bytes | memoryview, base: int = 0) -> Iterator[T]:
        """Yield all complete units of ``data`` in order.

        Raises: FormatError at the end if an incomplete unit remains.
        """
        used = len(data) - len(data) % self.size
        for values in self._struct.iter_unpack(memoryview(data)[:used]):
            yield self._make(values)
        if used != len(data):
            raise self._refuse_short(len(data) - used, base + used)

    def values(self, data: bytes | memoryview) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of each unit of ``data`` as a plain tuple, which is faster than
        `decode_all`. Raises: struct.error if an incomplete unit remains.
        """
        return self._struct.iter_unpack(data)

    def build(self, record: T) -> bytes:
        """Return the bytes of a unit.

        Raises: FormatError that names a value that does not fit its field.
        """
        try:
            raw: bytes = self.declaration.build(dict(zip(self.names, record, strict=True)))
        except ConstructError as error:
            path = (error.path or "").removeprefix("(building) -> ").replace(" -> ", ".")
            raise FormatError("value does not fit the field", path=path) from None
        return raw

    def field(self, name: str) -> layout.Field:
        """Return the position and type of one field in the unit."""
        return layout.field(self.declaration, name)

    def dtype(self) -> np.dtype[Any]:
        """Return the numpy structured dtype of an array of these units."""
        if self._dtype is None:
            self._dtype = layout.dtype(self.declaration)
        return self._dtype

    def array(self, data: bytes | memoryview) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the complete units of ``data`` as an array; an incomplete unit at the end is
        omitted.
        """
        import numpy as np

        return np.frombuffer(data, self.dtype(), len(data) // self.size)


class FirstOfPage(Fixed[T]):
    """A unit at the start of a one-page file; the rest of the page is zeros.

    The fields after ``last`` were added in later versions.
    """

    PAGE_SIZE = 4096

    def __init__(self, declaration: Any, record: type[T], last: str) -> None:
        super().__init__(declaration, record)
        self.least = self.field(last).offset + self.field(last).size
        """Size in bytes of the fields that all versions write."""

    def read(self, data: bytes) -> T:
        """Return the unit at the start of a file. In a short file, missing fields of later versions
        are 0.

        Raises: FormatError if any other field is incomplete.
        """
        return self.parse(data.ljust(self.size, b"\0") if len(data) >= self.least else data)

    def page(self, record: T) -> bytes:
        """Return a page that contains the unit, padded with zeros."""
        return self.build(record).ljust(self.PAGE_SIZE, b"\0")

    def rest_is_zero(self, data: bytes) -> bool:
        """Return whether only zeros follow the unit, as in every file that a broker writes."""
        return not data[self.size:].strip(b"\0")
