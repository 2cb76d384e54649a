"""Carrying out one step of a committed repair, or taking it back.

Both can be cut off anywhere and done again: what has been done is told from what lies where
(`Standing`, which writes nothing). Each is durable when it returns; a new name is forced to disk
before an old one goes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Literal

from rmqctl.errors import RefusedError
from rmqctl.files.durable import failed, make_folders, open_file, sync, sync_folder
from rmqctl.files.file_stamp import FileStamp, is_regular, stat_file
from rmqctl.files.sparse import same_content
from rmqctl.repair.executor.journal import Journal, Record
from rmqctl.repair.executor.patch import compare, lay, save_spans, set_length
from rmqctl.repair.executor.staging import homes_of
from rmqctl.repair.targets import real_path, up

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)

_STAYS = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR)
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
        return is_regular(one) and is_regular(other) and same_content(one, other)

    def _changed(self, one: Record, what: str) -> ChangedError:
        return ChangedError(f"{one.target}: {what} since repair {self.journal.id}")


class Carrier(Standing):
    """Carries the steps of one repair out, and takes them back."""

    def __init__(self, root: str, journal: Journal) -> None:
        super().__init__(root, journal)
        self._firm: set[str] = set()

    # -- forward --------------------------------------------------------------------------------

    def forward(self, one: Record) -> None:
        """Does what is left of the step. ChangedError, StoreIOError."""
        phase = self.phase(one)
        path = self.path(one)
        if one.kind == "folder":
            self._make_folders(path, self._base(one, path))
        elif one.kind == "patch":
            if phase != "done":
                self._patch(one, path)
            self._settle(one, path)
        elif phase == "done":
            self._sync_names(path, self._at(one, one.kept) if one.kept else "")
        elif one.kind == "move":
            self._rename(path, self._at(one, one.kept))
        else:
            if one.kind == "create":
                self._make_folders(os.path.dirname(path), self._base(one, path))
            elif phase == "todo":
                self._keep(path, self._at(one, one.kept), self._homes[one.home])
            self._rename(self._at(one, one.staged), path)

    def _base(self, one: Record, path: str) -> str:
        """The folder that was there before the step made others below it."""
        first = os.path.join(self.root, one.folders[0]) if one.folders else path
        return os.path.dirname(first)

    def _keep(self, path: str, kept: str, home: str) -> None:
        """The old file under a second name; where there are no links it moves there."""
        self._make_folders(os.path.dirname(kept), home)
        if os.path.lexists(kept) and self._twice(path, kept):
            sync_folder(os.path.dirname(kept))
            return
        try:
            os.link(path, kept)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise failed(error, kept, "keep the old file as") from None
            self._rename(path, kept)
            return
        sync_folder(os.path.dirname(kept))

    def _patch(self, one: Record, path: str) -> None:
        fd = open_file(path, os.O_RDWR)
        try:
            assert one.new is not None
            if os.fstat(fd).st_size < one.new.size:
                set_length(fd, one.new.size, path)
            lay(fd, path, self._at(one, one.staged), one.spans)
        finally:
            os.close(fd)

    def _settle(self, one: Record, path: str, mtime_ns: int | None = None) -> None:
        """Forces a patched file to disk, its modification time as it was: expiry goes by it."""
        assert one.old is not None
        wanted = one.old.mtime_ns if mtime_ns is None else mtime_ns
        fd = open_file(path, os.O_RDWR)
        try:
            about = os.fstat(fd)
            os.utime(fd, ns=(about.st_atime_ns, wanted))
            sync(fd, path, whole=True)
        except OSError as error:
            raise failed(error, path, "set the time of") from None
        finally:
            os.close(fd)

    # -- backward -------------------------------------------------------------------------------

    def check_undo(self, one: Record, phase: Phase, *, applied: bool) -> int | None:
        """ChangedError unless the step can be taken back as if nothing had happened since.

        The answer is the modification time (ns) a patched file is to have afterwards where
        somebody wrote to it after an ``applied`` repair; else None.
        """
        if one.kind in ("replace", "move") and phase != "todo" and (
                stat_file(self._at(one, one.kept)) is None):
            raise self._changed(one, "what was kept of it is gone")
        if one.kind != "patch" or not applied or phase == "half":
            return None
        found = stat_file(self.path(one))
        if found is None or one.old is None or found.mtime_ns == one.old.mtime_ns:
            return None
        return found.mtime_ns

    def backward(self, one: Record, *, force: bool = False, mtime_ns: int | None = None) -> None:
        """Takes back what was done of the step. Nothing goes: what the repair made, and with
        ``force`` what was changed since, moves to ``undone``. ChangedError, StoreIOError.
        """
        path = self.path(one)
        if one.kind == "patch":
            self._unpatch(one, path, force=force, mtime_ns=mtime_ns)
        elif one.kind == "create":
            self._uncreate(one, path)
        elif one.kind in ("replace", "move"):
            self._put_back(one, path, force=force)
        self._remove_folders(one, path)

    def _uncreate(self, one: Record, path: str) -> None:
        if stat_file(path) is None:
            return
        undone, staged = self._at(one, one.undone), self._at(one, one.staged)
        # A second name of either is left by a power failure; without one, a file that is there
        # though ours was never put in place, or was taken back already, is somebody else's.
        for other in (staged, undone):
            if os.path.lexists(other) and not self._twice(path, other):
                return
        self._rename(path, undone)

    def _put_back(self, one: Record, path: str, *, force: bool) -> None:
        kept, undone = self._at(one, one.kept), self._at(one, one.undone)
        old, found = stat_file(kept), stat_file(path)
        if old is None or (self._is_old(path, kept) and (
                found is None or found.inode == old.inode or not self._fits(one.new, found))):
            return  # never done, or taken back already
        if found is not None:
            if one.kind == "move" and not force:
                raise self._changed(one, "is there again")
            if is_regular(path) and not os.path.lexists(undone):
                self._keep(path, undone, self._homes[one.home])
            elif not self._twice(path, undone):
                self._rename(path, _free(undone))
        self._rename(kept, path)

    def _is_old(self, path: str, kept: str) -> bool:
        """Whether the old file has its own name, and the one under ``aside`` is a second one."""
        one, other = stat_file(path), stat_file(kept)
        if one is None or other is None or one.is_folder:
            return False
        return one.inode == other.inode or (
            one.mtime_ns == other.mtime_ns and self._twice(path, kept))

    def _unpatch(self, one: Record, path: str, *, force: bool, mtime_ns: int | None) -> None:
        assert one.old is not None
        assert one.new is not None
        try:
            self._patch_phase(one)
        except ChangedError:
            if not force:
                raise
            if not is_regular(path) or stat_file(self._at(one, one.kept)) is None:
                return
            self._save_changed(one, path)
        self._lay_back(one, path)
        self._settle(one, path, mtime_ns)

    def _save_changed(self, one: Record, path: str) -> None:
        target = _free(self._at(one, one.undone) + ".bytes")
        self._make_folders(os.path.dirname(target), self._homes[one.home])
        fd = open_file(path, os.O_RDONLY)
        try:
            save_spans(target, fd, path, one.spans)
        finally:
            os.close(fd)
        sync_folder(os.path.dirname(target))

    def _lay_back(self, one: Record, path: str) -> None:
        assert one.old is not None
        assert one.new is not None
        fd = open_file(path, os.O_RDWR)
        try:
            lay(fd, path, self._at(one, one.kept), one.spans)
            size = os.fstat(fd).st_size
            if one.old.size < size <= one.new.size:
                set_length(fd, one.old.size, path)
        finally:
            os.close(fd)

    def _remove_folders(self, one: Record, path: str) -> None:
        """Folders the repair made go if nothing is in them."""
        made = [os.path.join(self.root, name) for name in one.folders]
        if one.kind == "folder":
            made.append(path)
        for folder in reversed(made):
            try:
                os.rmdir(folder)
            except OSError as error:
                if error.errno in _STAYS:
                    continue
                raise failed(error, folder, "remove the empty folder") from None
            sync_folder(os.path.dirname(folder))

    # -- names ----------------------------------------------------------------------------------

    def _make_folders(self, folder: str, base: str) -> None:
        """Makes ``folder`` and what is missing above it up to ``base``, durably.

        Also what is there already is forced: a run that was killed may have made it just before.
        """
        below = os.path.relpath(folder, base)
        for name in [] if below == os.curdir else below.split(os.sep):
            if (inner := os.path.join(base, name)) not in self._firm:
                make_folders(inner)
                sync_folder(base)
                self._firm.add(inner)
            base = inner

    def _rename(self, path: str, target: str) -> None:
        """To a name in the store, whose folder is there, or in a home."""
        folder = os.path.dirname(target)
        for home in self._homes:
            if target.startswith(home + os.sep):
                self._make_folders(folder, home)
        make_folders(folder)
        try:
            os.rename(path, target)
        except OSError as error:
            raise failed(error, path, f"move to {target}:") from None
        self._sync_names(target, path)

    @staticmethod
    def _sync_names(*paths: str) -> None:
        """The new name first: a failure in between leaves two names rather than none."""
        for folder in dict.fromkeys(os.path.dirname(path) for path in paths if path):
            if os.path.isdir(folder):
                sync_folder(folder)

    def restore_times(self) -> None:
        """Gives the folders in which names changed the times they had, as far as it goes."""
        for name, mtime_ns in self.journal.times.items():
            path = os.path.join(self.root, name)
            with contextlib.suppress(OSError):
                os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))


def _free(path: str) -> str:
    """A name that is free: ``path``, ``path.2``, …"""
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = f"{path}.{number}"
    return found
