"""Create many stores or many files, to measure how the pipeline scales."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

FILES = 20_000
FILE_SIZE = 4096


@contextlib.contextmanager
def fleet(store: Path, count: int, where: Path) -> Iterator[list[str]]:
    """Create ``count`` stores whose files are links to the files of a single store."""
    folder = where / "fleet"
    folder.mkdir()
    try:
        roots = []
        for number in range(count):
            root = folder / f"store{number}"
            root.mkdir()
            for part in store.iterdir():
                (root / part.name).symlink_to(part.resolve())
            roots.append(str(root))
        yield roots
    finally:
        shutil.rmtree(folder)


def many_files(where: Path) -> tuple[float, int, int]:
    """Return (seconds to plan a log of many files, number of files, number of partitions)."""
    from rmqctl.formats.local import message
    from rmqctl.sql.options import ReadOptions
    from rmqctl.sql.planning import plan

    root = where / "many"
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    size = message.size_of(0, message.MAGIC_V1, 0, 6, 0)
    record = message.Record(size, message.MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, (bytes(4), 1), 5,
                            (bytes(4), 1), 0, 0, b"", b"orders", b"")
    for number in range(FILES):
        base = number * FILE_SIZE
        raw = message.build(replace(record, physical_offset=base, queue_offset=number))
        with (folder / f"{base:020d}").open("wb") as file:
            file.write(raw)
            file.truncate(FILE_SIZE)
    options = ReadOptions.of({"path": str(root)})
    began = time.perf_counter()
    parts = plan(options, options.filters)
    took = time.perf_counter() - began
    shutil.rmtree(root)
    return took, FILES, len(parts)
