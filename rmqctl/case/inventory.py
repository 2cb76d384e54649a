"""Inventory of the originals: every file below a path with its checksum, and the files that changed
during the examination.

Links are listed but not followed, except links to folders of the log. Only regular files are
opened. A device is opened only if the user names it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any

from rmqctl.case.folder import Folder, json_line
from rmqctl.checks.digests import file_digest, sum_line
from rmqctl.errors import StoreIOError
from rmqctl.lazy_dataclass import dataclass

LIST, SUMS = "originals.jsonl", "originals.sha256"
_MAX_HOLES = 1 << 40
_SECTOR = 512
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo",
          stat.S_IFSOCK: "socket", stat.S_IFBLK: "device", stat.S_IFCHR: "device"}


@dataclass(slots=True)
class Inventory:
    """Result of listing the originals. ``problems``: descriptions of the first 20 problems.
    ``unread``: number of originals that could not be read.
    """

    files: int = 0
    bytes: int = 0
    unread: int = 0
    links: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        self.unread += 1
        if len(self.problems) < 20:
            self.problems.append(text)


def take(folder: Folder, root: str, log_folders: Iterable[str],
         advance: Callable[[int], None]) -> Inventory:
    """Write the list of all originals and their checksums to the evidence folder. Raises:
    StoreIOError.
    """
    inventory = Inventory()
    base = base_of(root)
    with folder.new(LIST) as listed, folder.new(SUMS) as sums:
        for path, about in entries(root, log_folders, inventory.problem):
            row = _row(os.path.relpath(path, base) if path.startswith(base) else path, about)
            inventory.links += row["kind"] == "link"
            if row["kind"] == "link":
                row["target"] = os.readlink(path)
            elif row["kind"] == "file" or path == root:
                digest = None
                if about.st_size - about.st_blocks * _SECTOR > _MAX_HOLES:
                    row["problem"] = f"{path}: not hashed: it has more than 1 TiB of holes"
                else:
                    digest = file_digest(base, row["path"], about.st_size, _MAX_HOLES,
                                         device=row["kind"] == "device")
                    row["sha256"], row["size"] = digest.sha256, digest.size
                    row |= {"problem": digest.problem} if digest.problem else {}
                if digest is not None and digest.sha256 is not None:
                    sums.write(sum_line(digest.sha256, row["path"]) + b"\n")
                    inventory.files += 1
                    inventory.bytes += digest.size
                else:
                    inventory.problem(row["problem"])
                advance(about.st_size)
            elif row["kind"] != "folder":
                inventory.problem(f"{path}: a {row['kind']}, not read")
            listed.write(json_line(row))
    return inventory


def base_of(root: str) -> str:
    """Return the folder to which the paths of the originals are relative."""
    return root if os.path.isdir(root) else os.path.dirname(root)


def _row(name: str, about: os.stat_result) -> dict[str, Any]:
    kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
    return {"path": name, "kind": kind, "size": about.st_size,
            "allocated": about.st_blocks * _SECTOR, "modified_ns": about.st_mtime_ns,
            "changed_ns": about.st_ctime_ns, "mode": oct(stat.S_IMODE(about.st_mode)),
            "uid": about.st_uid, "gid": about.st_gid, "inode": about.st_ino,
            "links": about.st_nlink}


def entries(root: str, log_folders: Iterable[str],
            problem: Callable[[str], None]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path, stat result) of each file, folder and link below ``root`` and below the folders
    of the log. If ``root`` is a file, yield this file.
    """
    def failed(error: OSError) -> None:
        problem(str(StoreIOError.from_oserror(error)))

    tops = [root, *(path for path in log_folders if os.path.islink(path)
                    or not os.path.realpath(path).startswith(os.path.realpath(root) + os.sep))]
    for top in tops:
        if not os.path.isdir(top):
            try:
                yield top, os.stat(top)
            except OSError as error:
                failed(error)
            continue
        for below, folders, files in os.walk(top, onerror=failed):
            folders.sort()
            for name in sorted((*folders, *files)):
                path = os.path.join(below, name)
                try:
                    yield path, os.lstat(path)
                except OSError as error:
                    failed(error)


def stamps(root: str, log_folders: Iterable[str]) -> dict[str, int]:
    """Return the number of originals and a hash of their names, sizes and times. If an original
    changes, the hash changes.
    """
    total, count = 0, 0
    for path, about in entries(root, log_folders, lambda _text: None):
        if not stat.S_ISDIR(about.st_mode):
            total ^= hash((path, about.st_size, about.st_mtime_ns, about.st_ctime_ns,
                           about.st_ino))
            count += 1
    return {"files": count, "stamp": total}
