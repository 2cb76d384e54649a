"""Where the metadata of a tier is that lies apart from its broker: noted when it was fed.

The note is believed in that very folder only: in a copy it would lead to the original's metadata.
"""

from __future__ import annotations

import json
import os

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json

PLACE = ".rmqctl/home.json"
_MAX_SIZE = 1 << 16


def noted(root: str) -> str | None:
    """The path of the metadata that a tier in a folder was fed with, there or not; None where
    nothing is noted, or the note is of another folder. Never raises for what the file holds.
    """
    try:
        with open(os.path.join(root, PLACE), "rb") as file:
            found = config_json.parse(file.read(_MAX_SIZE)).value
    except (OSError, FormatError):
        return None
    path = found.get("metadata") if isinstance(found, dict) else None
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        return None
    return path if found.get("folder") == _folder(root) else None


def text_of(root: str, metadata_path: str) -> bytes | None:
    """What is to be noted; None where it is noted already."""
    path = os.path.abspath(metadata_path)
    if noted(root) == path:
        return None
    return (json.dumps({"metadata": path, "folder": _folder(root)}) + "\n").encode()


def _folder(root: str) -> list[int]:
    """What tells a folder from a copy of it; it stays when the folder is renamed."""
    about = os.stat(root)
    return [about.st_dev, about.st_ino]
