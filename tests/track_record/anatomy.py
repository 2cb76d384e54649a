"""Where things lie in a small store: records of the log, rows of the queues, plain ``struct``.

The stores of the track record are made with this, so that a damage can be said by what it does
("the last messages of the second-last file have no rows") and not by numbers that hold for one
golden set only. Nothing here reads more than a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.support import damage, model

BLANK = b"\xcb\xd4\x31\x94"
UNIT = damage.UNIT
INDEX_HEADER = damage.INDEX_HEADER
INDEX_ENTRY = damage.INDEX_ENTRY

# Within a record with IPv4 hosts (spec: commitlog): where fields begin.
SYS_FLAG = 36
BORN_ADDRESS = 48


@dataclass(frozen=True, slots=True)
class Placed:
    """A message in the log: ``file`` is relative to the root, ``position`` in that file."""

    file: str
    position: int
    start: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    properties: str

    @property
    def end(self) -> int:
        """Physical offset behind its last byte."""
        return self.start + self.size


class Row(NamedTuple):
    """A used unit of a consumequeue file; ``number`` counts from the start of that file."""

    file: str
    number: int
    physical_offset: int
    size: int
    tags_code: int


def log_files(root: Path, *folders: str) -> list[str]:
    """The files of the log in order, relative to the root."""
    paths = [path for name in folders or ("commitlog",) for path in (root / name).iterdir()]
    return [str(path.relative_to(root)) for path in sorted(paths, key=lambda path: path.name)]


def records(root: Path, *folders: str) -> list[Placed]:
    """Every message, file by file up to the first that is none (blank, zeros, damage)."""
    return [record for file in log_files(root, *folders) for record in _in_file(root, file)]


def _in_file(root: Path, file: str) -> Iterator[Placed]:
    data = (root / file).read_bytes()
    base = int(Path(file).name)
    position = 0
    while data[position + 4:position + 8] != BLANK:
        record = model.record(data, position)
        if record is None:
            return
        yield Placed(file, position, base + position, record.size, record.topic, record.queue_id,
                     record.queue_offset, record.store_timestamp, record.properties)
        position += record.size


def raw(root: Path, record: Placed) -> bytes:
    """The bytes of a message."""
    return (root / record.file).read_bytes()[record.position:record.position + record.size]


def queues(root: Path) -> dict[str, list[str]]:
    """``consumequeue/T/0`` -> its files in order, relative to the root."""
    texts: dict[str, list[str]] = {}
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        texts.setdefault(str(path.parent.relative_to(root)), []).append(
            str(path.relative_to(root)))
    return texts


def rows(root: Path, *files: str) -> list[Row]:
    """The used rows of these consumequeue files; of all without a name."""
    rows = []
    for file in files or [unit for queue in queues(root).values() for unit in queue]:
        for number, unit in enumerate(UNIT.iter_unpack((root / file).read_bytes())):
            if unit[1] > 0:
                rows.append(Row(file, number, *unit))
    return rows


def forget_rows(root: Path, lost: Callable[[Row], bool]) -> int:
    """Zero the rows of which ``lost`` is true: they never reached the disk. How many."""
    gone = [row for row in rows(root) if lost(row)]
    for row in gone:
        damage.zero(root, row.file, row.number * UNIT.size, UNIT.size)
    return len(gone)


def longest_queue(root: Path) -> list[str]:
    """The files of the queue with the most rows (the first of equals)."""
    return max(queues(root).values(), key=lambda files: len(rows(root, *files)))


def index_files(root: Path) -> list[str]:
    return [f"index/{path.name}" for path in sorted((root / "index").iterdir())]


def index_count(root: Path, file: str) -> int:
    """Entries of an index file (its header counts from one)."""
    return int(INDEX_HEADER.unpack((root / file).read_bytes()[:INDEX_HEADER.size])[5]) - 1


def cut_log(root: Path, end: int) -> None:
    """What never reached the disk: zeros from ``end`` on, to the end of every file."""
    for file in log_files(root):
        base, size = int(Path(file).name), (root / file).stat().st_size
        if base + size > end:
            keep = max(end - base, 0)
            damage.zero(root, file, keep, size - keep)
