"""The steps of a salvage: which files of the log are made, patched or moved aside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rmqctl.formats.local import names
from rmqctl.repair.plan import Action, Create, FileContent, MoveAside, Patch, Step
from rmqctl.repair.salvage.bulk import Bulk
from rmqctl.repair.salvage.filler import Style
from rmqctl.repair.salvage.layout import Filling
from rmqctl.repair.salvage.survey import Region
from rmqctl.repair.scratch import Scratch
from rmqctl.scan.overlay import LogPart, Piece
from rmqctl.store.store import Store


class Files:
    """Makes the steps; what they do is told in ``actions``, which grows."""

    def __init__(self, store: Store, scratch: Scratch | None, actions: list[Action]) -> None:
        self._store, self._scratch, self._actions = store, scratch, actions

    def filled(self, part: LogPart, region: Region, filling: Filling) -> None:
        """Tells what a region is filled with."""
        self._actions.append(_action(self._target(part), region, filling))

    def by_column(self, parts: Sequence[LogPart], bulks: Mapping[int, Bulk],
                  counts: Mapping[int, int], style: Style) -> dict[int, str]:
        """Number of the part -> the file that was made for it."""
        found = {}
        for start, bulk in bulks.items():
            assert self._scratch is not None
            number = bulk.region.file
            found[number] = bulk.write(self._scratch.root, style, self._time(parts, number))
            size = bulk.region.end - bulk.region.start
            self._actions.append(Action(
                "fill", self._target(parts[number]), f"{size} bytes from {start}",
                many(counts[start]), "damaged; intact messages follow"))
        return found

    def emptied(self, parts: Sequence[LogPart]) -> Iterator[Step]:
        """Files without a byte at the log's end: 5.1.3+ brokers delete the last one."""
        for part in parts:
            if part.path is not None:
                target = self._target(part)
                self._actions.append(Action("move aside", target, "0 bytes", None,
                                            "a 4.x broker does not start on it"))
                yield MoveAside(target)

    def steps(self, parts: Sequence[LogPart], made: Mapping[int, str]) -> list[Step]:
        """What makes the files those of ``parts``. ``made``: files that are ready, by number."""
        steps: list[Step] = []
        for number, part in enumerate(parts):
            target = self._target(replace(part, path=None) if number in made else part)
            if number in made:
                steps.append(Create(target, FileContent(made[number]),
                                    os.stat(made[number]).st_mtime_ns))
                continue
            if part.path is None:
                whole = Piece(0, part.size, tuple(
                    (one.at + at, data) for one in part.pieces for at, data in one.parts))
                steps.append(Create(target, whole, self._time(parts, number)))
                if not part.pieces:
                    self._actions.append(Action("create", target, None, "zeros",
                                               "missing; nothing intact follows"))
                continue
            size = os.stat(part.path).st_size
            some = list(part.pieces)
            if size < part.size and (not some or some[-1].end < part.size):
                some.append(Piece(max(size, some[-1].end if some else 0), 0))
                some[-1] = Piece(some[-1].at, part.size - some[-1].at)
                self._actions.append(Action("extend", target, size, part.size,
                                           "shorter than the other files"))
            if some:
                steps.append(Patch(target, tuple(some)))
        return steps

    def _time(self, parts: Sequence[LogPart], number: int) -> int | None:
        """A neighbour's modification time: a broker's expiry goes by it."""
        for part in [*reversed(parts[:number]), *parts[number + 1:]]:
            if part.path is not None:  # a file by column has the same time
                return os.stat(part.path).st_mtime_ns
        return None

    def _target(self, part: LogPart) -> str:
        """The file's path, relative to the root where it lies below it."""
        path = part.path
        if path is None:
            folders = sorted(self._store.log_folders)
            path = os.path.join(folders[(part.base // part.size) % len(folders)],
                                names.build_offset(part.base))
        relative = os.path.relpath(path, self._store.root)
        return path if relative.startswith("..") else relative


def _action(target: str, region: Region, filling: Filling) -> Action:
    size = region.end - region.start
    count = len(filling.span.items)
    if filling.span.mode in ("zero", "tail") and not count:
        return Action("zero", target, f"{size} bytes from {region.start}", "zeros",
                      "no record, and nothing known of it; nothing intact follows")
    what = many(count) if count else "no message known"
    return Action("fill", target, f"{size} bytes from {region.start}",
                  what, "damaged; intact messages follow" if filling.span.mode != "tail"
                  else "the consumequeues know of messages here")


def many(count: int) -> str:
    """``1 lost message``, ``2 lost messages``."""
    return "1 lost message" if count == 1 else f"{count} lost messages"
