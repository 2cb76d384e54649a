"""Where the last verify run of a store stopped, so that the next one can go on from there.

Kept outside the store (verify is read-only): in a file the user names, or below the user's
state folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile

from rmqctl.errors import StoreIOError


def default_path(root: str) -> str:
    """The state file of a store: its real path, hashed, below XDG_STATE_HOME."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local",
                                                            "state")
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return os.path.join(home, "rmqctl", "verify", f"{name}.json")


def load(path: str, root: str) -> int | None:
    """The physical offset up to which all was well; None when nothing (usable) is known."""
    try:
        with open(path, encoding="utf-8") as file:
            known = json.load(file)
        position = known["position"]
        same = known["store"] == os.path.realpath(root)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return position if same and isinstance(position, int) and position >= 0 else None


def save(path: str, root: str, position: int) -> None:
    """Remembers a position: written beside, forced to disk, then renamed. StoreIOError."""
    folder = os.path.dirname(os.path.abspath(path))
    text = json.dumps({"store": os.path.realpath(root), "position": position})
    try:
        os.makedirs(folder, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=".verify-", dir=folder)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "write the state file") from None
