"""Find and write ``tieredStoreMetadata.json`` (tiered.md §6).

A broker keeps this file in ``config/`` of its local root, beside ``tiered_index_file/``. A tier
outside the local root contains a note with the path of its metadata (`NOTE`). The note is valid
only in the folder in which it was written. In a copy of the tier the note would point to the
original's metadata.

A 5.3.3 broker overwrites the file in place. rmqctl replaces the file atomically and keeps the
previous file as ``.bak``.
"""

from __future__ import annotations

import json
import os
from contextlib import closing, suppress

from rmqctl import vfs
from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.ext.tiered.files.opening import open_reader, open_writer
from rmqctl.files.durable import STAGING, make_folders, publish
from rmqctl.formats.config import config_json
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered import names
from rmqctl.parse_values import is_url

NOTE = ".rmqctl/home.json"
"""Path, relative to the tier root, of the note with the path of the metadata."""
_MAX_NOTE = 1 << 16
_IN_BROKER_ROOT = ("config", "commitlog", "consumequeue", names.LOCAL_INDEX_FOLDER, "lock",
                   "checkpoint", "abort")
"""Files that identify a folder as a broker's local root."""


# -- where it is --------------------------------------------------------------------------------

def behind_url(path: str) -> bool:
    """Return whether a path is a URL that is not mounted (`rmqctl.vfs`)."""
    return is_url(path) and not vfs.is_mounted(path)


def tier_root(root: str) -> str:
    """Return ``root``, or its ``tieredstore`` folder if ``root`` is a store."""
    inner = f"{root.rstrip('/')}/{names.TIER_FOLDER}"
    if behind_url(root):
        with closing(open_reader(root)) as reader:
            folders = [entry.name for entry in reader.list("") if entry.is_folder]
        if names.TIER_FOLDER not in folders:
            return root
    elif not vfs.isdir(inner):
        return root
    else:
        try:
            folders = vfs.listdir(root)
        except OSError:
            return root
    return root if any(map(names.parse_cluster, folders)) else inner


def find_metadata(root: str) -> str | None:
    """Return the path of a tier's metadata, or None. The path is relative to the working folder if
    ``root`` is relative.

    The file is in ``config/`` of the root or of the root's parent folder, in the root itself, or at
    the path in the note.
    """
    remote = behind_url(root)
    relative = not vfs.is_remote(root) and not os.path.isabs(root)
    root = vfs.abspath(root)
    above = os.path.dirname(root)
    for folder in (f"{root}/config", f"{above}/config", root):
        for suffix in ("", ".bak"):
            path = os.path.join(folder, names.METADATA_NAME + suffix)
            if behind_url(path):
                with suppress(StoreIOError):  # the folder above a tier may be unreadable
                    if exists(path):
                        return path
            elif not remote and vfs.isfile(path):
                return os.path.relpath(path) if relative else path
    path_noted = None if vfs.is_remote(root) else noted_path(root)
    return path_noted if path_noted is not None and os.path.isfile(path_noted) else None


def expected_path(root: str) -> str | None:
    """Return the path of a tier's metadata, even if that file does not exist; None if unknown."""
    path = find_metadata(root)
    if path is not None:
        return path.removesuffix(".bak")
    full = os.path.abspath(root)
    path = noted_path(full)
    if path is not None:
        return path
    above = os.path.dirname(full)
    if os.path.isdir(os.path.join(full, "config")):
        broker_root = full
    elif any(os.path.lexists(os.path.join(above, name)) for name in _IN_BROKER_ROOT):
        broker_root = above
    else:
        return None
    path = os.path.join(broker_root, "config", names.METADATA_NAME)
    return path if os.path.isabs(root) else os.path.relpath(path)


def broker_root_of(metadata_path: str | None) -> str | None:
    """Return the broker's local root, from the path of its metadata; None for a URL."""
    if metadata_path is None or behind_url(metadata_path):
        return None
    folder = os.path.dirname(vfs.abspath(metadata_path))
    return os.path.dirname(folder) if os.path.basename(folder) == "config" else folder


def writable_around(root: str, metadata: str | None) -> list[str]:
    """Return the paths outside a tier that may be written: metadata, its backup, the local index.

    The paths are derived from the tier's path, or from ``metadata`` if the user named it. They are
    never derived from the content of a file.
    """
    path = metadata or os.path.join(os.path.dirname(os.path.realpath(root)), "config",
                                    names.METADATA_NAME)
    home = broker_root_of(path)
    around = [path, f"{path}.bak"]
    if home is not None:
        around.append(os.path.join(home, names.LOCAL_INDEX_FOLDER))
    # A link beside the tier is not the user's choice of a folder.
    return around if metadata is not None else [
        folder for folder in around if os.path.realpath(folder) == folder]


def exists(path: str) -> bool:
    """Return whether a file or URL exists. Raises: StoreIOError."""
    if not behind_url(path):
        return vfs.lexists(path)
    folder, _, name = path.rpartition("/")
    with closing(open_reader(folder)) as reader:
        return reader.size(name) is not None


# -- the note in the tier -------------------------------------------------------------------------

def noted_path(root: str) -> str | None:
    """Return the path in a tier's note, even if the metadata file does not exist. Return None if
    the note is missing or invalid, or was written in another folder.
    """
    try:
        with open(os.path.join(root, NOTE), "rb") as file:
            note = config_json.parse(file.read(_MAX_NOTE)).value
    except (OSError, FormatError):
        return None
    path = note.get("metadata") if isinstance(note, dict) else None
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        return None
    return path if note.get("folder") == _folder_identity(root) else None


def note_path(root: str, metadata_path: str) -> None:
    """Write a note with the path of the metadata into a tier. No note is written if `find_metadata`
    finds the metadata without a note.
    Raises: StoreIOError.
    """
    path = find_metadata(root)
    if path is not None and os.path.realpath(path) == os.path.realpath(metadata_path):
        return
    path = os.path.abspath(metadata_path)
    if noted_path(root) != path:
        note = json.dumps({"metadata": path, "folder": _folder_identity(root)}) + "\n"
        with closing(open_writer(root)) as writer:
            writer.replace(NOTE, note.encode())


def _folder_identity(root: str) -> list[int]:
    """Return an identifier of a folder that stays the same after a rename but differs for
    a copy.
    """
    about = os.stat(root)
    return [about.st_dev, about.st_ino]


# -- reading and writing --------------------------------------------------------------------------

def load(path: str) -> meta.Metadata | None:
    """Return the metadata in a file; None if the file does not exist.
    Raises: FormatError for an invalid or empty file; StoreIOError.
    """
    try:
        with vfs.open_bytes(path) as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None
    if not data.strip(b"\0 \t\r\n"):
        raise FormatError("the file is empty")
    return meta.read(data)


def save(path: str, metadata: meta.Metadata, broker_root: str) -> bool:
    """Publish metadata at ``path`` and keep the old file as ``.bak``. Return whether the file
    changed.

    The new file is staged in ``broker_root``.
    Raises: StoreIOError; RefusedError for metadata at a URL.
    """
    if is_url(path):
        raise RefusedError(f"{path}: cannot write metadata to a URL; copy it to this machine and "
                           "pass it with --metadata")
    data = meta.build(metadata)
    staging = os.path.join(broker_root, STAGING)
    try:
        with open(path, "rb") as file:
            old: bytes | None = file.read()
    except FileNotFoundError:
        old = None
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "read") from None
    if old == data:
        return False
    make_folders(os.path.dirname(os.path.abspath(path)))
    if old:
        publish(f"{path}.bak", old, store=broker_root, staging=staging)
    publish(path, data, store=broker_root, staging=staging)
    return True
