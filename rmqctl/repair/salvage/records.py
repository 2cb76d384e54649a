"""The records of a log by place, and what a round of mending changes of them."""

from __future__ import annotations

from collections.abc import Sequence

from rmqctl.errors import FormatError
from rmqctl.formats import layout
from rmqctl.formats.local.message import MIN_SIZE, Message, Record, decode
from rmqctl.repair.salvage.fields import with_fields
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.scan.resync import MAX_RECORD

_SIZE = layout.reader(Message, "total_size")


class Records:
    """``pieces`` by number of the part, in the order they were found; ``condemned`` places."""

    def __init__(self, parts: Sequence[LogPart]) -> None:
        self.parts = parts
        self.pieces: dict[int, list[Piece]] = {}
        self.condemned: set[int] = set()
        self.count = 0

    def read(self, physical: int, size: int | None) -> tuple[int, Record | None, bytes]:
        """(number of the part, record, its bytes) of what stands at a place. StoreIOError.

        ``size`` None: by its own size field.
        """
        for number, part in enumerate(self.parts):
            if part.base <= physical < part.end:
                with part.open() as source:
                    at = physical - part.base
                    head = source.read(at, _SIZE.size)
                    total = size or (_SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0)
                    if not MIN_SIZE <= total <= min(MAX_RECORD, part.end - physical):
                        return number, None, b""
                    raw = source.read(at, total)
                try:
                    record = decode(raw)
                except FormatError:
                    return number, None, b""
                return number, record if record.physical_offset == physical else None, raw
        return -1, None, b""

    def replace(self, physical: int, made: bytes | None) -> bool:
        """Puts other bytes at a place; False where there are none to put."""
        number = next((n for n, part in enumerate(self.parts)
                       if part.base <= physical < part.end), None)
        if made is None or number is None:
            return False
        self.pieces.setdefault(number, []).append(
            Piece.of(physical - self.parts[number].base, made))
        self.count += 1
        return True

    def set_field(self, physical: int, name: str, value: int) -> None:
        """Changes a field of the head of the record at a place."""
        _, record, raw = self.read(physical, None)
        if record is not None:
            self.replace(physical, with_fields(raw, **{name: value}))
