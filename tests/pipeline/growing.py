"""Stores that grow while something follows them: records cut from golden stores, laid out anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rmqctl.formats.local.message import BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, Record, build, size_of

FILE_SIZE = 4096
_HOST = (b"\n\0\0\1", 10911)


def record(number: int, body: int = 100, topic: bytes = b"orders", queue: int = 0) -> Record:
    """A message whose body tells its number; its physical offset is yet to be settled."""
    text = b"message %d " % number
    from rmqctl.engine.put.encoder import body_crc

    whole = text + b"x" * max(0, body - len(text))
    properties = b"KEYS\x01k%d\x02TAGS\x01A" % number
    return Record(size_of(0, MAGIC_V1, len(whole), len(topic), len(properties)), MAGIC_V1,
                  body_crc(whole), queue, 0, number, 0, 0, 1_700_000_000_000 + number, _HOST,
                  1_700_000_000_000 + number, _HOST, 0, 0, whole, topic, properties)


class Writer:
    """Appends to a log the way a broker does: files of one size, zeros ahead, closed by a blank."""

    def __init__(self, root: Path, file_size: int = FILE_SIZE, base: int = 0) -> None:
        self.root, self.file_size, self.position = root, file_size, base
        self.count = 0
        (root / "commitlog").mkdir(parents=True)

    def path(self, base: int) -> Path:
        return self.root / "commitlog" / f"{base:020d}"

    @property
    def file(self) -> Path:
        return self.path(self.position - self.position % self.file_size)

    def _put(self, raw: bytes) -> None:
        if not self.file.exists():
            self.file.write_bytes(bytes(self.file_size))
        with self.file.open("r+b") as file:
            file.seek(self.position % self.file_size)
            file.write(raw)

    def raw(self, **given) -> bytes:
        """The next message as it will be stored; the file is closed if it has no room for it."""
        message = record(self.count, **given)
        left = self.file_size - self.position % self.file_size
        if message.total_size + BLANK_SIZE > left:
            self._put(left.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big"))
            self.position += left
        return build(replace(message, physical_offset=self.position))

    def append(self, count: int = 1, **given) -> list[int]:
        """Appends messages; their numbers."""
        first = self.count
        for _ in range(count):
            raw = self.raw(**given)
            self._put(raw)
            self.position += len(raw)
            self.count += 1
        return list(range(first, self.count))

    def torn(self, share: float = 0.5, **given) -> bytes:
        """Writes only the first part of the next message; the whole of it."""
        raw = self.raw(**given)
        self._put(raw[:int(len(raw) * share)])
        return raw
