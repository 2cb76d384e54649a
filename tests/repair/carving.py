"""Builds bytes to carve, and carves them: what the carve tests share."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

from rmqctl.formats.local.message import CRC_MASK, MAGIC_V1, MAGIC_V2, Record, build, size_of
from rmqctl.repair.carve.carve import CarveOptions, CarveTally, Carving
from rmqctl.repair.carve.sources import inputs

MAGIC = b"\xda\xa3\x20"


def record(at: int, body: bytes, *, topic: bytes = b"T", properties: bytes = b"K\x01v\x02",
           sys_flag: int = 0, magic: int = MAGIC_V1, queue_offset: int = 1,
           store: int = 1, time: int = 6) -> bytes:
    """The bytes of a record which says that its physical offset is ``at``."""
    size = size_of(sys_flag, magic, len(body), len(topic), len(properties))
    born = bytes(16 if sys_flag & 0x10 else 4)
    host = bytes(15 if sys_flag & 0x20 else 3) + bytes([store])
    return build(Record(size, magic, zlib.crc32(body) & CRC_MASK, 0, 0, queue_offset, at, sys_flag,
                        5, (born, 1), time, (host, 2), 0, 0, body, topic, properties))


def log(count: int, *, base: int = 0, size: int = 200, seed: bytes = b"") -> bytes:
    """``count`` records one behind the other, of all eight shapes, each with another body."""
    data = b""
    for number in range(count):
        body = (seed + b"%d " % number) * (size // 8)
        data += record(base + len(data), body, sys_flag=(0, 0x10, 0x20, 0x30)[number % 4],
                       magic=(MAGIC_V1, MAGIC_V2)[number // 4 % 2], queue_offset=number)
    return data


def places(data: bytes) -> list[tuple[int, int]]:
    """(position, size) of the records from the start of an undamaged log on."""
    values, at = [], 0
    while data[at + 4:at + 7] == MAGIC:
        values.append((at, int.from_bytes(data[at:at + 4])))
        at += values[-1][1]
    return values


@dataclass(frozen=True)
class CarvedMessage:
    """A message as it was found."""

    source: str
    offset: int
    placement: str
    duplicate: bool
    record: Record


@dataclass(frozen=True)
class Carved:
    """All that was found, the tally, and what was reported."""

    messages: list[CarvedMessage]
    tally: CarveTally
    notes: list[str]

    def offsets(self, placement: str | None = None) -> list[int]:
        """Positions in the sources, ascending."""
        return sorted(message.offset for message in self.messages
                      if placement is None or message.placement == placement)


def carve(*paths: Path, wanted: CarveOptions | None = None) -> Carved:
    """Carves files as the command does."""
    texts: list[str] = []
    sources = list(inputs(map(str, paths), lambda path, why: texts.append(f"{path}: {why}")))
    with Carving(sources, wanted or CarveOptions(), report=texts.append) as carving:
        messages = [CarvedMessage(sources[page.source].path, offset, page.placement,
                                  page.duplicate, record)
                    for page in carving.pages()
                    for offset, record in zip(page.offset.tolist(), page.page.records(),
                                              strict=True)]
    return Carved(messages, carving.tally, texts)


def saved(folder: Path, data: bytes, name: str = "image") -> Path:
    """Bytes as a file."""
    path = folder / name
    path.write_bytes(data)
    return path
