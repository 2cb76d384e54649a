"""How far a step of a committed repair has come, told from what lies where.

Nothing here writes: `rmqctl.repair.executor.apply_step` carries steps out by it, and takes them
back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from rmqctl.errors import RefusedError
from rmqctl.files.durable import open_file
from rmqctl.files.file_stamp import FileStamp, is_regular, stat_file
from rmqctl.repair.executor.journal import Journal, Record
from rmqctl.repair.executor.patch import compare
from rmqctl.repair.executor.staging import homes_of
from rmqctl.repair.executor.staging_dirs import real_path, up
from rmqctl.repair.rebuild.compare import same

Phase = Literal["todo", "half", "done"]


class ChangedError(RefusedError):
    """Something else changed the target of a step, before or after the repair did."""


class Standing:
    """The steps of one repair in the store at ``root``."""

    def __init__(self, root: str, journal: Journal) -> None:
        self.root, self.journal = os.path.realpath(root), journal
        self._homes = homes_of(root, journal)
        # In a copy of the store every inode is another one.
        self._inodes = os.stat(self._homes[0]).st_ino == journal.inode

    def path(self, one: Record) -> str:
        return real_path(self.root, one.target, follow=one.kind in ("replace", "patch"))

    def _at(self, one: Record, name: str) -> str:
        return os.path.join(self._homes[one.home], name)

    def _fits(self, mark: FileStamp | None, found: FileStamp | None) -> bool:
        return mark is not None and mark.fits(found, inodes=self._inodes)

    # -- how far is it? -------------------------------------------------------------------------

    def phase(self, one: Record) -> Phase:
        """How much of the step has been done. ChangedError if it is neither old nor new."""
        if one.kind == "folder":
            return "done" if os.path.isdir(self.path(one)) else "todo"
        if one.kind == "patch":
            return self._patch_phase(one)
        path, target = self.path(one), stat_file(self.path(one))
        kept = stat_file(self._at(one, one.kept)) if one.kept else None
        if one.kind == "move":
            if kept is not None and (target is None or (
                    one.again and not self._came_back(one, target))):
                return "done"
            if target is None:
                raise self._changed(one, "is gone")
            if kept is not None and not self._came_back(one, target):
                raise self._changed(one, "is there again")
            if not self._fits(one.old, target):
                raise self._changed(one, "was changed")
            return "todo"
        staged = stat_file(self._at(one, one.staged))
        if staged is not None:
            if target is None:
                if one.kind == "create":
                    return "todo"
                if kept is None:
                    raise self._changed(one, "is gone")
                return "half"
            if one.kind == "replace" and self._fits(one.old, target):
                return "todo"
            if self._twice(path, self._at(one, one.staged)):
                return "done"  # the old name came back in a power failure
            raise self._changed(one, "was made" if one.kind == "create" else "was changed")
        if target is None:
            raise self._changed(one, "is gone")
        if not self._fits(one.new, target):
            raise self._changed(one, "was changed")
        return "done"

    def phases(self) -> Iterator[tuple[Record, Phase | ChangedError]]:
        """`phase` of every step, in their order, all before the next one is carried out.

        What lies below something that is still to be moved aside is not what its step made.
        """
        under = self.under_moves()
        for number, one in enumerate(self.journal.records):
            try:
                yield one, "todo" if number in under else self.phase(one)
            except ChangedError as problem:
                yield one, problem

    def under_moves(self) -> set[int]:
        """The numbers of the steps whose place is still, or again, taken by what an earlier step
        moves aside: nothing of theirs is there.
        """
        found: set[int] = set()
        there: set[str] = set()
        for number, one in enumerate(self.journal.records):
            path = self.path(one)
            if there and not there.isdisjoint(up(path)):
                found.add(number)
            elif one.kind == "move" and one.again:
                target = stat_file(path)
                if target is not None and (stat_file(self._at(one, one.kept)) is None
                                           or self._came_back(one, target)):
                    there.add(path)
        return found

    def _came_back(self, one: Record, target: FileStamp) -> bool:
        """Whether the old name of what was moved is there again beside the new one."""
        return self._fits(one.old, target) and self._twice(self.path(one),
                                                           self._at(one, one.kept))

    def _patch_phase(self, one: Record) -> Phase:
        path = self.path(one)
        if not is_regular(path):
            raise self._changed(one, "is gone")
        if any(stat_file(self._at(one, name)) is None for name in (one.staged, one.kept)):
            raise self._changed(one, "what was kept of it is gone")
        fd = open_file(path, os.O_RDONLY)
        try:
            assert one.old is not None
            assert one.new is not None
            size = os.fstat(fd).st_size
            if size < one.old.size:
                raise self._changed(one, "is shorter than it was")
            found = compare(fd, path, self._at(one, one.staged), self._at(one, one.kept),
                            one.spans)
        finally:
            os.close(fd)
        if found == "other":
            raise self._changed(one, "has other bytes where the repair put its own")
        if found == "new" and size >= one.new.size:
            return "done"
        return "todo" if found == "old" and size == one.old.size else "half"

    @staticmethod
    def _twice(one: str, other: str) -> bool:
        """Whether both names are of the same content: after a power failure an old name may be
        there again beside the new one.
        """
        return is_regular(one) and is_regular(other) and same(one, other)

    def _changed(self, one: Record, what: str) -> ChangedError:
        return ChangedError(f"{one.target}: {what} since repair {self.journal.id}")
