"""Members of a DLedger group, made entry by entry: what each was sent, and where it was cut."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from rmqctl.formats import dledger
from tests.scan.test_entries import HEAD, entry

SIZE = 4096
Sent = Sequence[tuple[int, bytes]]
"""(term, body) of each entry, from index 0 on."""


def write(folder: Path, sent: Sent, *, committed: int | None = None, node: str = "n0",
          start: int = 0) -> list[int]:
    """Writes the entries from index ``start`` on into a node's files, over what lies there, as the
    engine does; files behind go. Where each entry begins.
    """
    data, index = (folder / f"dledger-{node}" / name for name in ("data", "index"))
    for file_path in (data, index):
        file_path.mkdir(parents=True, exist_ok=True)
    starts, units, at = [], b"", 0
    for number, (term, body) in enumerate(sent):
        raw = of(number, term, at, body)
        left = SIZE - at % SIZE
        if len(raw) + 8 > left:
            if number >= start:
                lay(data, at, dledger.build_end(left).ljust(left, b"\0"))
            at += left
            raw = of(number, term, at, body)
        if number >= start:
            lay(data, at, raw)
        starts.append(at)
        units += dledger.INDEX_UNIT.build(dledger.IndexUnitRecord(1, at, len(raw), number, term))
        at += len(raw)
    for file in data.iterdir():
        if int(file.name) >= at:
            file.unlink()
    path = index / f"{0:020d}"
    path.touch()
    os.truncate(path, dledger.INDEX_FILE_SIZE)
    with path.open("r+b") as opened:
        opened.write(units)
    last = len(sent) - 1
    (folder / f"dledger-{node}/checkpoint").write_bytes(
        dledger.build_checkpoint(last, last if committed is None else committed))
    return starts


def of(number: int, term: int, at: int, body: bytes) -> bytes:
    raw = entry(number, at, body)
    return raw[:16] + struct.pack(">q", term) + raw[24:]


def lay(data: Path, at: int, raw: bytes) -> None:
    """Writes bytes at a byte offset of the log."""
    path = data / f"{at - at % SIZE:020d}"
    path.touch()
    if path.stat().st_size < SIZE:
        os.truncate(path, SIZE)
    with path.open("r+b") as file:
        file.seek(at % SIZE)
        file.write(raw)


def bodies(count: int, term: int = 1, length: int = 20) -> list[tuple[int, bytes]]:
    return [(term, b"%04d" % number * (length // 4)) for number in range(count)]


__all__ = ["HEAD", "SIZE", "bodies", "lay", "of", "write"]
