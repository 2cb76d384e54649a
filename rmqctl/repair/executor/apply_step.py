"""Carry out one step of a committed repair, or undo it.

A step or its undo can be interrupted anywhere and repeated. The progress is derived from the
present files by `StepStates`, which writes nothing. Changes are durable on return; a new directory
entry is fsynced before the old one is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Literal

from rmqctl.errors import RefusedError
from rmqctl.files.bounds import WritableFolders
from rmqctl.files.durable import failed, make_folders, open_file, sync, sync_folder
from rmqctl.files.file_stamp import FileStamp, is_regular, stat_file
from rmqctl.files.sparse import content_digest, same_content
from rmqctl.repair.executor.journal import Journal, StepRecord, repair_folder
from rmqctl.repair.executor.patch import compare, lay, save_spans, set_length
from rmqctl.repair.executor.staging_dirs import refuse_strange_dirs
from rmqctl.repair.targets import real_path, up

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)

_STAYS = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR)
Phase = Literal["todo", "half", "done"]


class ChangedError(RefusedError):
    """Something else changed the target of a step, before or after the repair did.

    ``begun``: whether the step may have made a change. If not, there is nothing to undo.
    """

    def __init__(self, message: str, *, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


class StepStates:
    """The steps of one repair in the store at ``root``, and the progress of each.

    * ``journal``: the journal with the current paths of its targets.
    * ``named``: folders outside the store that the user named.

    Raises: RefusedError for a step in any other folder outside the store.
    """

    def __init__(self, root: str, journal: Journal, named: Iterable[str] = ()) -> None:
        self.root, self.journal = os.path.realpath(root), journal
        self.by_content: list[str] = []
        """Targets whose contents match the journal although their stamps do not."""
        self._bounds = WritableFolders(root, named)
        refuse_strange_dirs(self.root, journal)
        self._staging_dirs = (repair_folder(root, journal.id), *journal.staging_dirs)
        self._own_folders: set[str] = set()
        self._is_copy = os.stat(self._staging_dirs[0]).st_ino != journal.inode

    def path(self, record: StepRecord) -> str:
        path = real_path(self.root, record.target, follow=record.kind in ("replace", "patch"))
        self._bounds.require(record.target, path)
        return path

    def _in_dir(self, record: StepRecord, name: str) -> str:
        """Return the path of one of the repair's own files. Raises: RefusedError if a link
        redirects it.
        """
        staging_dir = self._staging_dirs[record.staging_dir]
        path = os.path.join(staging_dir, name)
        if (folder := os.path.dirname(path)) not in self._own_folders:
            if not WritableFolders(staging_dir).contain(os.path.realpath(folder)):
                raise RefusedError(f"{folder}: a link in this path points outside of repair "
                                   f"{self.journal.id}; rmqctl does not write there")
            self._own_folders.add(folder)
        return path

    def _backup(self, record: StepRecord) -> str:
        return self._in_dir(record, record.backup)

    def _is_new(self, record: StepRecord, current: FileStamp) -> bool:
        """Return whether the target is the new file of a step."""
        return self._is(record, current, record.new, record.digest)

    def _is_old(self, record: StepRecord, current: FileStamp) -> bool:
        """Return whether the target is still the file from before a step.

        Contents are compared only in a copy of a store. In the original store, a file with another
        time is another file, even with the same content: a broker may have created an empty file
        ``abort`` again.
        """
        digest = record.old_digest if self._is_copy else ""
        return self._is(record, current, record.old, digest)

    def _is(self, record: StepRecord, current: FileStamp, stamp: FileStamp | None,
            digest: str) -> bool:
        """Return whether a file has the given stamp or the given content (by its digest).

        The content counts because times may differ in a copy of a store.
        """
        if stamp is None or stamp.fits(current):
            return stamp is not None
        path = self.path(record)
        same = bool(digest) and stamp.size == current.size and is_regular(path) and (
            content_digest(path) == digest)
        if same:
            self.by_content.append(record.target)
        return same

    # -- how far is it? -------------------------------------------------------------------------

    def phase(self, record: StepRecord) -> Phase:
        """Return how far a step was carried out. Raises: ChangedError if the target matches no
        known state.
        """
        if record.kind == "folder":
            return "done" if os.path.isdir(self.path(record)) else "todo"
        if record.kind == "patch":
            return self._patch_phase(record)
        # Moved, created or replaced files: the existing names show the progress.
        path, target = self.path(record), stat_file(self.path(record))
        backup = stat_file(self._backup(record)) if record.backup else None
        if record.kind == "move":
            if backup is not None and (target is None or (
                    record.again and not self._old_name_restored(record, target))):
                return "done"
            if target is None:
                raise self._changed(record, "was deleted")
            if backup is not None and not self._old_name_restored(record, target):
                raise self._changed(record, "was created again")
            if not self._is_old(record, target):
                raise self._changed(record, "was changed", begun=backup is not None)
            return "todo"
        staged = stat_file(self._in_dir(record, record.staged))
        if staged is not None:  # the new file has not been put in place
            if target is None:
                if record.kind == "create":
                    return "todo"
                if backup is None:
                    raise self._changed(record, "was deleted")
                return "half"
            if record.kind == "replace" and (self._is_old(record, target) or (
                    backup is not None and self._same_files(path, self._backup(record)))):
                return "todo"
            if self._same_files(path, self._in_dir(record, record.staged)):
                return "done"  # the old name came back in a power failure
            raise self._changed(record, "was created" if record.kind == "create" else "was changed",
                                begun=backup is not None)
        # The new file has been put in place, and must still be there.
        if target is None:
            raise self._changed(record, "was deleted")
        if not self._is_new(record, target):
            raise self._changed(record, "was changed")
        return "done"

    def phases(self) -> Iterator[tuple[StepRecord, Phase | ChangedError]]:
        """Yield every step, in order, with its `phase` or the ChangedError that the step raises.

        Call this only before any step is carried out. If the folder of a step's target must still
        be moved aside, the step is ``todo``: the files that are now in that folder are not from
        this step.
        """
        under = self.under_moves()
        for number, record in enumerate(self.journal.records):
            try:
                yield record, "todo" if number in under else self.phase(record)
            except ChangedError as problem:
                yield record, problem

    def under_moves(self) -> set[int]:
        """Return the indices of the steps that cannot have been carried out yet.

        Before such a step, another step must move aside its target or a folder above the target.
        This has not happened yet, or the moved file or folder has its old name again.
        """
        numbers: set[int] = set()
        moved: set[str] = set()
        for number, record in enumerate(self.journal.records):
            path = self.path(record)
            if moved and not moved.isdisjoint(up(path)):
                numbers.add(number)
            elif record.kind == "move" and record.again:
                target = stat_file(path)
                if target is not None and (stat_file(self._backup(record)) is None
                                           or self._old_name_restored(record, target)):
                    moved.add(path)
        return numbers

    def _old_name_restored(self, record: StepRecord, target: FileStamp) -> bool:
        """Return whether a moved file has both its old and its new name, as a power failure can
        leave it.
        """
        return record.old is not None and record.old.fits(target) and self._same_files(
            self.path(record), self._backup(record))

    def _patch_phase(self, record: StepRecord) -> Phase:
        path = self.path(record)
        if not is_regular(path):
            raise self._changed(record, "was deleted")
        if any(stat_file(self._in_dir(record, name)) is None
               for name in (record.staged, record.backup)):
            raise self._changed(record, "its kept copy was deleted")
        fd = open_file(path, os.O_RDONLY)
        try:
            assert record.old is not None
            assert record.new is not None
            size = os.fstat(fd).st_size
            if size < record.old.size:
                raise self._changed(record, "was truncated")
            state = compare(fd, path, self._in_dir(record, record.staged), self._backup(record),
                            record.spans)
        finally:
            os.close(fd)
        if state == "other":
            raise self._changed(record, "the bytes that the repair wrote were changed")
        if state == "new" and size >= record.new.size:
            return "done"
        return "todo" if state == "old" and size == record.old.size else "half"

    @staticmethod
    def _same_files(first: str, other: str) -> bool:
        """Return whether two files have the same content.

        After a power failure, they may be one file that has both its old and its new name.
        """
        return is_regular(first) and is_regular(other) and same_content(first, other)

    def _changed(self, record: StepRecord, change: str, *, begun: bool = True) -> ChangedError:
        return ChangedError(f"{record.target}: {change} since repair {self.journal.id}",
                            begun=begun)


class StepApplier(StepStates):
    """Carries out the steps of one repair, and undoes them."""

    def __init__(self, root: str, journal: Journal, named: Iterable[str] = ()) -> None:
        super().__init__(root, journal, named)
        self._synced: set[str] = set()

    # -- forward --------------------------------------------------------------------------------

    def forward(self, record: StepRecord) -> None:
        """Carry out the rest of the step. Raises: ChangedError, StoreIOError."""
        phase = self.phase(record)
        path = self.path(record)
        if record.kind == "folder":
            self._make_folders(path, self._base(record, path))
        elif record.kind == "patch":
            if phase != "done":
                self._patch(record, path)
            self._sync_patched(record, path)
        elif phase == "done":
            self._sync_names(path, self._backup(record) if record.backup else "")
        elif record.kind == "move":
            self._rename(path, self._backup(record))
        else:
            if record.kind == "create":
                self._make_folders(os.path.dirname(path), self._base(record, path))
            elif phase == "todo":
                self._back_up(path, self._backup(record), record)
            self._rename(self._in_dir(record, record.staged), path)

    def _base(self, record: StepRecord, path: str) -> str:
        """Return the folder that existed before the step created others below it."""
        first = os.path.join(self.root, record.folders[0]) if record.folders else path
        return os.path.dirname(first)

    def _back_up(self, path: str, backup: str, record: StepRecord) -> None:
        """Keep the old file as ``backup``: as a second hard link or, if links are not supported, by
        renaming the file.
        """
        self._make_folders(os.path.dirname(backup), self._staging_dirs[record.staging_dir])
        if os.path.lexists(backup) and self._same_files(path, backup):
            sync_folder(os.path.dirname(backup))
            return
        try:
            os.link(path, backup)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise failed(error, backup, "keep the old file as") from None
            self._rename(path, backup)
            return
        sync_folder(os.path.dirname(backup))

    def _patch(self, record: StepRecord, path: str) -> None:
        fd = open_file(path, os.O_RDWR)
        try:
            assert record.new is not None
            if os.fstat(fd).st_size < record.new.size:
                set_length(fd, record.new.size, path)
            lay(fd, path, self._in_dir(record, record.staged), record.spans)
        finally:
            os.close(fd)

    def _sync_patched(self, record: StepRecord, path: str, mtime_ns: int | None = None) -> None:
        """Fsync a patched file with its old modification time, on which expiry depends."""
        assert record.old is not None
        wanted = record.old.mtime_ns if mtime_ns is None else mtime_ns
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

    def check_undo(self, record: StepRecord, phase: Phase, *, applied: bool) -> int | None:
        """Raise ChangedError if the step cannot be undone because its kept copy was deleted.

        Return the modification time (ns) to restore after the undo of a patch. Return None if the
        repair was not ``applied``, or if nothing has written to the file since.
        """
        if record.kind in ("replace", "move") and phase != "todo" and (
                stat_file(self._backup(record)) is None):
            raise self._changed(record, "its kept copy was deleted")
        if record.kind != "patch" or not applied or phase == "half":
            return None
        current = stat_file(self.path(record))
        if current is None or record.old is None or current.mtime_ns == record.old.mtime_ns:
            return None
        return current.mtime_ns

    def backward(self, record: StepRecord, *, force: bool = False,
                 mtime_ns: int | None = None) -> None:
        """Undo the part of the step that was carried out. Raises: ChangedError, StoreIOError.

        Nothing is deleted. Files that the repair created are moved to the folder ``undone``. With
        ``force``, files that were changed later are moved there, too.
        """
        path = self.path(record)
        if record.kind == "patch":
            self._unpatch(record, path, force=force, mtime_ns=mtime_ns)
        elif record.kind == "create":
            self._uncreate(record, path)
        elif record.kind in ("replace", "move"):
            self._put_back(record, path, force=force)
        self._remove_folders(record, path)

    def _uncreate(self, record: StepRecord, path: str) -> None:
        if stat_file(path) is None:
            return
        undone, staged = self._in_dir(record, record.undone), self._in_dir(record, record.staged)
        # If the staged or the undone file exists and differs from the target, the repair's file is
        # not in place, and the target belongs to another writer. An equal file is a second name,
        # left by a power failure.
        for other in (staged, undone):
            if os.path.lexists(other) and not self._same_files(path, other):
                return
        self._rename(path, undone)

    def _put_back(self, record: StepRecord, path: str, *, force: bool) -> None:
        backup, undone = self._backup(record), self._in_dir(record, record.undone)
        old, current = stat_file(backup), stat_file(path)
        if old is None or (self._has_both_names(path, backup) and (
                current is None or current.inode == old.inode
                or not self._is_new(record, current))):
            return  # never done, or undone already
        if current is not None:
            if record.kind == "move" and not force:
                raise self._changed(record, "was created again")
            if is_regular(path) and not os.path.lexists(undone):
                self._back_up(path, undone, record)
            elif not self._same_files(path, undone):
                self._rename(path, _free(undone))
        self._rename(backup, path)

    def _has_both_names(self, path: str, backup: str) -> bool:
        """Return whether the old file still has its original name, in addition to the one under
        ``aside``.
        """
        record, other = stat_file(path), stat_file(backup)
        if record is None or other is None or record.is_folder:
            return False
        return record.inode == other.inode or (
            record.mtime_ns == other.mtime_ns and self._same_files(path, backup))

    def _unpatch(self, record: StepRecord, path: str, *, force: bool, mtime_ns: int | None) -> None:
        assert record.old is not None
        assert record.new is not None
        try:
            self._patch_phase(record)
        except ChangedError:
            if not force:
                raise
            if not is_regular(path) or stat_file(self._backup(record)) is None:
                return
            self._save_changed(record, path)
        self._lay_back(record, path)
        self._sync_patched(record, path, mtime_ns)

    def _save_changed(self, record: StepRecord, path: str) -> None:
        target = _free(self._in_dir(record, record.undone) + ".bytes")
        self._make_folders(os.path.dirname(target), self._staging_dirs[record.staging_dir])
        fd = open_file(path, os.O_RDONLY)
        try:
            save_spans(target, fd, path, record.spans)
        finally:
            os.close(fd)
        sync_folder(os.path.dirname(target))

    def _lay_back(self, record: StepRecord, path: str) -> None:
        assert record.old is not None
        assert record.new is not None
        fd = open_file(path, os.O_RDWR)
        try:
            lay(fd, path, self._backup(record), record.spans)
            size = os.fstat(fd).st_size
            if record.old.size < size <= record.new.size:
                set_length(fd, record.old.size, path)
        finally:
            os.close(fd)

    def _remove_folders(self, record: StepRecord, path: str) -> None:
        """Remove the folders that the repair created, if they are empty."""
        folders = [os.path.join(self.root, name) for name in record.folders]
        if record.kind == "folder":
            folders.append(path)
        for folder in reversed(folders):
            try:
                os.rmdir(folder)
            except OSError as error:
                if error.errno in _STAYS:
                    continue
                raise failed(error, folder, "remove the empty folder") from None
            sync_folder(os.path.dirname(folder))

    # -- names ----------------------------------------------------------------------------------

    def _make_folders(self, folder: str, base: str) -> None:
        """Create ``folder`` and the missing folders above it up to ``base``, durably.

        Existing folders are fsynced, too, because a killed run may have created them just before.
        """
        below = os.path.relpath(folder, base)
        for name in [] if below == os.curdir else below.split(os.sep):
            if (inner := os.path.join(base, name)) not in self._synced:
                for new_folder in make_folders(inner):
                    self._as_before(new_folder)
                sync_folder(base)
                self._synced.add(inner)
            base = inner

    def _as_before(self, folder: str) -> None:
        """Give a recreated folder the mode and owner of the folder of the same name that was moved
        aside.
        """
        for record in self.journal.records:
            path = self.path(record) if record.kind == "move" else ""
            if path and (folder == path or folder.startswith(path + os.sep)):
                before = os.path.join(self._backup(record), os.path.relpath(folder, path))
                with contextlib.suppress(OSError):
                    about = os.stat(before)
                    os.chmod(folder, stat.S_IMODE(about.st_mode))
                    os.chown(folder, about.st_uid, about.st_gid)

    def _rename(self, path: str, target: str) -> None:
        """Rename to a name in an existing folder of the store, or in a staging folder."""
        folder = os.path.dirname(target)
        for staging_dir in self._staging_dirs:
            if target.startswith(staging_dir + os.sep):
                self._make_folders(folder, staging_dir)
        make_folders(folder)
        try:
            os.rename(path, target)
        except OSError as error:
            raise failed(error, path, f"move to {target}:") from None
        self._sync_names(target, path)

    @staticmethod
    def _sync_names(*paths: str) -> None:
        """Fsync the folders of the given paths in this order.

        The path with the new name is given first: a power failure between two calls of fsync then
        leaves both names instead of none.
        """
        for folder in dict.fromkeys(os.path.dirname(path) for path in paths if path):
            if os.path.isdir(folder):
                sync_folder(folder)

    def restore_times(self) -> None:
        """Restore the modification times of the folders in which names changed, if possible."""
        own = {os.path.dirname(self.path(record)) for record in self.journal.records}
        for name, mtime_ns in self.journal.times.items():
            path = os.path.join(self.root, name)
            if os.path.isabs(name) and path not in own:
                continue  # this store is a copy: the folder is the other one's
            if not self._bounds.contain(os.path.realpath(path)):
                continue  # no repair of this store changed names there
            with contextlib.suppress(OSError):
                os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ns))


def _free(path: str) -> str:
    """Return the first unused name of ``path``, ``path.2``, …"""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = f"{path}.{number}"
    return free
