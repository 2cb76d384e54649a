"""Stage a repair: write all its new files and bytes below ``.rmqctl``, and fsync them, before any
byte elsewhere changes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import zlib
from collections.abc import Iterable, Sequence

from rmqctl.errors import InternalError, StoreIOError
from rmqctl.files.durable import (
    STAGING,
    copy_mode_and_owner,
    failed,
    give_to_owner_of,
    make_folders,
    open_file,
    publish,
    sync,
    sync_folder,
)
from rmqctl.files.file_stamp import FileStamp, is_regular, stamp_of, stat_file
from rmqctl.files.sparse import content_digest, copy_sparse
from rmqctl.repair.executor.check_plan import CheckedStep, check
from rmqctl.repair.executor.journal import (
    Journal,
    Neighbours,
    StepRecord,
    ids,
    is_committed,
    next_id,
    repair_folder,
)
from rmqctl.repair.executor.patch import save_spans, write_pieces
from rmqctl.repair.executor.staging_dirs import StagingDirs, noted_staging_dirs
from rmqctl.repair.plan import (
    Create,
    FileContent,
    MakeFolder,
    MoveAside,
    Patch,
    Plan,
    Replace,
)
from rmqctl.repair.targets import below, nearest_folder, up
from rmqctl.scan.overlay import OverlayPiece
from rmqctl.scan.source import FileSource
from rmqctl.store.repair_losses import NOTE, RepairLoss

NEW, BYTES, ASIDE, UNDONE = "new", "bytes", "aside", "undone"
"""Folders in a staging folder: new files, bytes of patches, files moved aside, files that undo
removed.
"""
_HEAD, _MAX_NEIGHBOURS = 4096, 8
_MAX_DIGESTED = 128 << 20
"""Maximum number of bytes that a repair reads from moved files, to recognise them in a copy of the
store.
"""


class Staging:
    """A repair that is being staged. `stage` returns the journal to be committed."""

    def __init__(self, root: str, plan: Plan, now: int, named: Sequence[str] = ()) -> None:
        self.root, self._plan, self._now, self._allowed = root, plan, now, named
        self.id = next_id(root, now)
        self._staging_dirs = StagingDirs(root, self.id)
        self._backup_names: set[str] = set()
        self._backup_parents: set[str] = set()
        self._touched: set[str] = set()
        self._times: dict[str, int] = {}
        self._to_digest = _MAX_DIGESTED

    @property
    def folder(self) -> str:
        return self._staging_dirs.folders[0]

    def stage(self) -> Journal:
        """Stage the plan. Raises: RefusedError if the store is not as planned; StoreIOError."""
        # Check permission and space.
        make_folders(self.folder)
        todo = check(self.root, self._plan.steps, self._allowed)
        staging_dirs = [self._staging_dirs.of(checked.step.target, checked.path)
                        for checked in todo]
        for checked in todo:
            self._note_times(checked)
        self._check_writable(todo)
        self._check_room(todo, staging_dirs)
        # Write, then force the names: files are forced one by one as they are written.
        records = [self._record(number, checked, staging_dir) for number, (checked, staging_dir) in
                   enumerate(zip(todo, staging_dirs, strict=True), 1)]
        if self._plan.dropped and records:
            publish(os.path.join(self.folder, NOTE), self._note().build(), store=self.root,
                    staging=self.folder)
        for folder in sorted(self._touched, key=len, reverse=True):
            sync_folder(folder)
        for staging_dir in self._staging_dirs.folders:
            # The run that created these may have been killed before it forced them to disk.
            for folder in (up(staging_dir)[1:4]):
                sync_folder(folder)
        return Journal(self.id, self._now, self._plan.command,
                       tuple(self._staging_dirs.folders[1:]), os.stat(self.folder).st_ino,
                       tuple(action.as_dict() for action in self._plan.actions), tuple(records),
                       self._times, os.path.realpath(self.root),
                       _neighbours([record.target for record in records]),
                       os.uname().nodename)

    def _note(self) -> RepairLoss:
        dropped = self._plan.dropped
        return RepairLoss(self.id, self._now, self._plan.command, dropped.messages,
                          dropped.undecided, dropped.places, os.path.realpath(self.root))

    # -- checks ---------------------------------------------------------------------------------

    def _note_times(self, checked: CheckedStep) -> None:
        """Record the modification times of the folders in which names change, for undo."""
        for folder in {nearest_folder(checked.path), os.path.dirname(checked.path)}:
            with contextlib.suppress(OSError):
                self._times.setdefault(self._named(folder), os.stat(folder).st_mtime_ns)

    def _check_writable(self, todo: Iterable[CheckedStep]) -> None:
        """Raise an error before any change if a target cannot be written."""
        for checked in todo:
            if isinstance(checked.step, Patch):
                os.close(open_file(checked.path, os.O_RDWR))
                continue
            folder = nearest_folder(checked.path)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise StoreIOError(f"cannot rename files in {folder}: permission denied, or the "
                                   "file system is read-only")

    def _check_room(self, todo: Sequence[CheckedStep], staging_dirs: Sequence[int]) -> None:
        from rmqctl.repair.executor.room import rooms  # not needed for a preview

        folders = [self._staging_dirs.folders[number] for number in staging_dirs]
        for room in rooms(self.root, todo, folders, self._is_there):
            if not room.is_enough:
                error = StoreIOError(
                    f"{room.folder}: not enough space: the repair needs {room.needed} bytes on "
                    f"this file system, {room.free} are free")
                error.errno = errno.ENOSPC
                raise error

    def _is_there(self, content: FileContent, device: int) -> bool:
        """Return whether a file is already on a device and only needs to be renamed."""
        return self._movable(content) and os.stat(content.path).st_dev == device

    # -- steps ----------------------------------------------------------------------------------

    def _record(self, number: int, checked: CheckedStep, staging_dir: int) -> StepRecord:
        # Steps that need no new file.
        step, target = checked.step, checked.step.target
        folders = tuple(self._named(folder) for folder in checked.folders)
        if isinstance(step, MakeFolder):
            return StepRecord("folder", target, folders=folders)
        if isinstance(step, MoveAside):
            backup = self._free_backup_name(staging_dir, target)
            return StepRecord("move", target, staging_dir, backup=backup,
                              undone=_undone_name(target), old=stat_file(checked.path),
                              again=checked.again, old_digest=self._digest_of_moved(checked.path))
        if isinstance(step, Patch):
            return self._patch(number, checked, step, staging_dir)
        # A replacement is staged beside the file, with its attributes.
        staged = os.path.join(NEW, f"{number:06d}")
        self._folder(staging_dir, NEW)
        undone = _undone_name(target)
        if isinstance(step, Replace):
            old = stat_file(checked.path)
            new = self._stage(staging_dir, staged, step, like=checked.path)
            return StepRecord("replace", target, staging_dir, staged,
                              self._free_backup_name(staging_dir, target), undone, old, new,
                              digest=content_digest(self._path(staging_dir, staged)),
                              old_digest=content_digest(checked.path))
        # A file in place of one that an earlier step moves aside gets its mode.
        like = checked.path if is_regular(checked.path) else None
        new = self._stage(staging_dir, staged, step, like=like, near=nearest_folder(checked.path))
        return StepRecord("create", target, staging_dir, staged, undone=undone, new=new,
                          folders=folders, digest=content_digest(self._path(staging_dir, staged)))

    def _digest_of_moved(self, path: str) -> str:
        """Return the digest of a regular file. Return an empty string for anything else, or if the
        files to digest have more than `_MAX_DIGESTED` bytes in total.
        """
        if not is_regular(path):
            return ""
        self._to_digest -= os.stat(path).st_blocks * 512
        return content_digest(path) if self._to_digest >= 0 else ""

    def _named(self, path: str) -> str:
        """Return a path in the form of a target: relative to the root if it is in the root."""
        root = os.path.realpath(self.root)
        inside = path == root or path.startswith(root + os.sep)
        return os.path.relpath(path, root) if inside else path

    def _patch(self, number: int, checked: CheckedStep, step: Patch,
               staging_dir: int) -> StepRecord:
        staged = os.path.join(BYTES, f"{number:06d}.new")
        backup = os.path.join(BYTES, f"{number:06d}.old")
        self._folder(staging_dir, BYTES)
        spans = tuple((piece.at, piece.size) for piece in step.pieces)
        fd = open_file(checked.path, os.O_RDONLY)
        try:
            about = os.fstat(fd)
            old = stamp_of(about)
            write_pieces(self._path(staging_dir, staged), step.pieces,
                         stat.S_IMODE(about.st_mode) | stat.S_IRUSR | stat.S_IWUSR)
            save_spans(self._path(staging_dir, backup), fd, checked.path, spans)
        finally:
            os.close(fd)
        end = max(position + size for position, size in spans)
        new = FileStamp(max(old.size, end), old.mtime_ns, old.inode)
        return StepRecord("patch", step.target, staging_dir, staged, backup,
                          _undone_name(step.target), old, new, spans)

    def _stage(self, staging_dir: int, name: str, step: Create | Replace, *, like: str | None,
               near: str = "") -> FileStamp:
        """Write new content, durably; return its stamp."""
        path, content = self._path(staging_dir, name), step.content
        if isinstance(content, FileContent):
            self._take(content, path)
        else:
            piece = OverlayPiece.of(0, content) if isinstance(content, bytes) else content
            write_pieces(path, [piece])
        fd = open_file(path, os.O_RDWR)
        try:
            if like is not None:
                copy_mode_and_owner(fd, os.stat(like))
            else:
                give_to_owner_of(near, fd)
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & _mode_near(near, self.root))
            wanted = step.mtime_ns if step.mtime_ns is not None else self._now * 1_000_000
            os.utime(fd, ns=(wanted, wanted))
            sync(fd, path, whole=True)
            return stamp_of(os.fstat(fd))
        except (OSError, OverflowError) as error:
            problem = error if isinstance(error, OSError) else OSError(str(error))
            raise failed(problem, path, "prepare") from None
        finally:
            os.close(fd)

    def _movable(self, content: FileContent) -> bool:
        """Return whether a file may be renamed into the store (False for files of the store
        itself).
        """
        if not content.movable or os.path.islink(content.path):
            return False
        root, path = os.path.realpath(self.root), os.path.realpath(content.path)
        return (not path.startswith(root + os.sep)
                or path.startswith(os.path.join(root, STAGING) + os.sep))

    def _take(self, content: FileContent, path: str) -> None:
        if not os.path.isfile(content.path):
            raise StoreIOError(f"{content.path}: this file, prepared for the store, was deleted")
        if self._movable(content):
            # Another file system, or another user's folder: copy it.
            with contextlib.suppress(OSError):
                os.rename(content.path, path)
                return
        try:
            copy_sparse(content.path, path)
        except OSError as error:
            raise failed(error, path, "write to") from None

    # -- names ----------------------------------------------------------------------------------

    def _path(self, staging_dir: int, name: str) -> str:
        return os.path.join(self._staging_dirs.folders[staging_dir], name)

    def _folder(self, staging_dir: int, name: str) -> str:
        """Create a folder in a staging folder; it is fsynced at the end."""
        path = self._path(staging_dir, name)
        if path not in self._touched:
            make_folders(path, durable=False)
            above = path
            while above not in self._touched:
                self._touched.add(above)
                if above == self._staging_dirs.folders[staging_dir]:
                    break
                above = os.path.dirname(above)
        return path

    def _free_backup_name(self, staging_dir: int, target: str) -> str:
        """Return an unused name in ``aside`` for a target, and create the folder of that name.

        Used names are remembered as ``STAGING FOLDER NUMBER/NAME``.
        """
        wanted = name = os.path.join(ASIDE, below(target))
        number = 1
        while self._taken(f"{staging_dir}/{name}"):
            number += 1
            name = f"{wanted}.{number}"
        path = f"{staging_dir}/{name}"
        self._backup_names.add(path)
        while (path := os.path.dirname(path)):
            self._backup_parents.add(path)
        self._folder(staging_dir, os.path.dirname(name))
        return name

    def _taken(self, name: str) -> bool:
        if name in self._backup_names or name in self._backup_parents:
            return True
        while (name := os.path.dirname(name)):
            if name in self._backup_names:
                return True
        return False


def _undone_name(target: str) -> str:
    return os.path.join(UNDONE, below(target))



def _mode_near(*folders: str) -> int:
    """Return the mode of the first file found when the folders are searched in order."""
    for folder in folders:
        for holder, inner, names in os.walk(folder):
            inner[:] = sorted(name for name in inner if name != STAGING)
            for name in sorted(names):
                path = os.path.join(holder, name)
                if is_regular(path):
                    return stat.S_IMODE(os.stat(path).st_mode) | stat.S_IRUSR | stat.S_IWUSR
    return 0o777


def _neighbours(targets: Iterable[str]) -> Neighbours:
    """Return some unchanged files in the folders outside the store in which steps change files."""
    outside = {target for target in targets if os.path.isabs(target)}
    neighbours: dict[str, dict[str, tuple[int, int]]] = {}
    for folder in {os.path.dirname(target) for target in outside}:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                path = os.path.join(folder, name)
                if path in outside or not is_regular(path) or not (head := head_of(path)):
                    continue
                neighbours.setdefault(folder, {})[name] = (os.path.getsize(path), head)
                if len(neighbours[folder]) == _MAX_NEIGHBOURS:
                    break
    return neighbours


def head_of(path: str) -> int:
    """Return a checksum of a file's first bytes; 0 for zeros, which identify nothing.

    Raises: StoreIOError.
    """
    with FileSource(path) as source:
        head = source.read(0, _HEAD)
    return zlib.crc32(head) if any(head) else 0


# -- what was never committed ---------------------------------------------------------------------


def clear(root: str, repair_id: str) -> None:
    """Delete the staged or kept files of a repair, as far as the system permits it.

    The repair was never committed, or was given up (`rmqctl.repair.executor.prune`). No file of the
    store is moved before the commit, so rmqctl wrote all staged files of an uncommitted repair.
    """
    folder = repair_folder(root, repair_id)
    if is_committed(root, repair_id):
        raise InternalError(f"{folder}: already committed")
    for staging_dir in noted_staging_dirs(root, repair_id):
        shutil.rmtree(staging_dir, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def clear_abandoned(root: str) -> None:
    """Call `clear` for every repair that was killed before its commit."""
    for repair_id in ids(root):
        if not is_committed(root, repair_id):
            clear(root, repair_id)
