"""State file with the log position at which the last verify run of a store stopped.

The next run can continue at this position. Because verify is read-only, the file is not in the
store, but in a place that the user names, or below the user's state folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict

from rmqctl import vfs
from rmqctl.checks.findings import Finding
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import replace_file
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.store import Store

_DOING = "write the state file"


def default_path(root: str) -> str:
    """Return the path of a store's state file, below XDG_STATE_HOME; its name is a hash of the real
    path.
    """
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local",
                                                            "state")
    name = hashlib.sha256(os.fsencode(vfs.realpath(root))).hexdigest()[:32]
    return os.path.join(home, "rmqctl", "verify", f"{name}.json")


@dataclass(frozen=True, slots=True)
class VerifiedEnd:
    """The end of the verified part of the log.

    * ``position``: physical offset of a frame boundary
    * ``anchor``, ``anchor_end``: start and end of the last record before ``position``; if this
      record still exists, data was only appended to the log
    """

    position: int
    anchor: int | None = None
    anchor_end: int | None = None

    def holds(self, store: Store) -> bool:
        """Return whether the log still contains the position and the last record before it."""
        if not store.log.min_offset <= self.position <= store.log.end:
            return False
        if self.anchor is None or self.anchor < store.log.min_offset:
            return True
        record = store.log.record_at(self.anchor)
        return record is not None and self.anchor + record.total_size == self.anchor_end


def next_place(before: VerifiedEnd | None, findings: Iterable[Finding], *, ok: bool, log_end: int,
               last_record: tuple[int, int] | None) -> VerifiedEnd:
    """Return the position at which the next run starts.

    * if this run found no problem: the end of the log
    * if it found problems in the log: the first of them
    * if all problems are in other structures: the start of this run

    ``before``: the position at which this run began.
    ``last_record``: start and end of the last record that this run read.
    """
    if ok:
        if last_record is None and before is not None:
            return before  # nothing was added since
        return VerifiedEnd(log_end, *(last_record or (None, None)))
    # The part that was read is good up to its first problem; if the problem is elsewhere,
    # the next run reads the same part again.
    troubled = [finding.offset for finding in findings if finding.is_trouble
                and finding.structure == "commitlog" and finding.offset is not None]
    start = before or VerifiedEnd(0)
    first = min(troubled, default=start.position)
    return VerifiedEnd(first) if first > start.position else start


def load(path: str, root: str) -> VerifiedEnd | None:
    """Return the position saved by the last run on this store; None if missing or unusable."""
    try:
        with open(path, encoding="utf-8") as file:
            saved = json.load(file)
        place = VerifiedEnd(saved["position"], saved["anchor"], saved["anchor_end"])
        same = saved["store"] == vfs.realpath(root)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    values: tuple[object, ...] = (place.position, place.anchor or 0, place.anchor_end or 0)
    good = all(isinstance(value, int) for value in values)
    return place if same and good and place.position >= 0 else None


def save(path: str, root: str, place: VerifiedEnd) -> None:
    """Save a position atomically: after a crash, the file has either the old or the new content.
    Raises: StoreIOError.
    """
    text = json.dumps({"store": vfs.realpath(root), **asdict(place)})
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, _DOING) from None
    replace_file(path, f"{text}\n".encode(), doing=_DOING, mode=0o600)
