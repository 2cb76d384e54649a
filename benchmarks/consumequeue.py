"""Write the files of a consume queue without gaps, as a broker does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.layout import CONSUMEQUEUE_UNIT, file_name

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Rows:
    """The entries of a queue from queue offset 0, as columns; phy and size in bytes."""

    phy: I64
    size: I32
    tags_code: I64


def queue_files(rows: Rows, file_size: int) -> Iterator[tuple[str, NDArray[np.void]]]:
    """Yield (name, units) of every file of ``file_size`` bytes (a multiple of the unit size); the
    last file is padded with zeros.
    """
    units = np.empty(len(rows.phy), dtype=CONSUMEQUEUE_UNIT)
    units["phy"] = rows.phy
    units["size"] = rows.size
    units["tags_code"] = rows.tags_code
    per_file, rest = divmod(file_size, units.itemsize)
    if rest:
        raise ValueError(f"{file_size} is no multiple of a unit's {units.itemsize} bytes")
    for first in range(0, len(units), per_file):
        yield file_name(first * units.itemsize), units[first : first + per_file]


def write_queue(rows: Rows, file_size: int, directory: Path) -> None:
    """Write the queue's files to a new directory."""
    directory.mkdir(parents=True)
    for name, units in queue_files(rows, file_size):
        with (directory / name).open("wb") as out:
            out.truncate(file_size)
            out.write(units.tobytes())
