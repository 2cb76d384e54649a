"""Where the parts of a tier lie: its root, its metadata, the local root of its broker."""

from __future__ import annotations

import os
from contextlib import closing, suppress

from rmqctl.errors import StoreIOError
from rmqctl.formats.tiered import names
from rmqctl.tiered.files.home_note import noted
from rmqctl.tiered.files.reader import is_url, open_reader

_OF_A_BROKER = ("config", "commitlog", "consumequeue", names.LOCAL_INDEX_FOLDER, "lock",
                "checkpoint", "abort")
"""What shows that a folder is a broker's local root."""


def tier_root(root: str) -> str:
    """The folder itself, or the ``tieredstore`` of a store that was named instead."""
    inner = f"{root.rstrip('/')}/{names.TIER_FOLDER}"
    if is_url(root):
        with closing(open_reader(root)) as reader:
            folders = [one.name for one in reader.list("") if one.is_folder]
        here = names.TIER_FOLDER not in folders or any(map(names.parse_cluster, folders))
        return root if here else inner
    if not os.path.isdir(inner):
        return root
    try:
        with os.scandir(root) as entries:
            here = any(names.parse_cluster(one.name) for one in entries)
    except OSError:
        return root
    return root if here else inner


def find_metadata(root: str) -> str | None:
    """The metadata that belongs to a tier root: in ``config/`` of it or of the folder above it, or
    in it; else where the tier was fed from. Relative to the working folder where ``root`` is.
    """
    behind_url = is_url(root)
    relative = not behind_url and not os.path.isabs(root)
    root = root.rstrip("/") if behind_url else os.path.abspath(root)
    above = os.path.dirname(root)
    for folder in (f"{root}/config", f"{above}/config", root):
        for suffix in ("", ".bak"):
            path = os.path.join(folder, names.METADATA_NAME + suffix)
            if is_url(path):
                with suppress(StoreIOError):  # who may read a tier need not see what is above it
                    if exists(path):
                        return path
            elif not behind_url and os.path.isfile(path):
                return os.path.relpath(path) if relative else path
    place = None if behind_url else noted(root)
    return place if place is not None and os.path.isfile(place) else None


def place_of(tier_name: str) -> str | None:
    """Where the metadata of a tier in a folder lies or lay; None where nothing tells."""
    found = find_metadata(tier_name)
    if found is not None:
        return found.removesuffix(".bak")
    root = os.path.abspath(tier_name)
    before = noted(root)
    if before is not None:
        return before
    above = os.path.dirname(root)
    if os.path.isdir(os.path.join(root, "config")):
        home = root
    elif any(os.path.lexists(os.path.join(above, one)) for one in _OF_A_BROKER):
        home = above
    else:
        return None
    path = os.path.join(home, "config", names.METADATA_NAME)
    return path if os.path.isabs(tier_name) else os.path.relpath(path)


def home_of(metadata_path: str | None) -> str | None:
    """The broker's local root, from the place of its metadata; None behind a URL."""
    if metadata_path is None or is_url(metadata_path):
        return None
    folder = os.path.dirname(os.path.abspath(metadata_path))
    return os.path.dirname(folder) if os.path.basename(folder) == "config" else folder


def exists(path: str) -> bool:
    """Whether there is something at a path or behind a URL. StoreIOError."""
    if not is_url(path):
        return os.path.lexists(path)
    folder, _, name = path.rpartition("/")
    with closing(open_reader(folder)) as reader:
        return reader.size(name) is not None
