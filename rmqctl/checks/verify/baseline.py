"""Known findings, so that a cron job reports only new findings.

A finding is known if an earlier run had a finding with the same category, structure, file and
position. The list is a JSON file outside the store, which users may read, edit and keep under
version control.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from rmqctl import vfs
from rmqctl.checks.findings import Finding
from rmqctl.errors import RefusedError, StoreIOError, UsageError
from rmqctl.files.durable import replace_file

_FIELDS = ("category", "structure", "file", "offset", "topic", "queue_id", "queue_offset")
_MAX_KEYS = 1_000_000
_MAX_BYTES = 1 << 30
Key = tuple[Any, ...]


class Baseline:
    """The known findings of one store.

    A baseline file for several stores names the store of each finding. `knows` also records every
    finding passed to it; `save` writes the recorded findings.
    """

    def __init__(self, root: str, keys: frozenset[Key] = frozenset(),
                 store: str | None = None) -> None:
        self._root, self._known_keys, self.store = root, keys, store
        self._recorded: dict[Key, None] = {}

    @classmethod
    def load(cls, path: str, root: str, store: str | None = None) -> Baseline:
        """Read a baseline file.
        Raises: UsageError if the file is not a baseline; StoreIOError if it cannot be read.
        """
        try:
            if vfs.getsize(path) > _MAX_BYTES:
                raise UsageError(f"{path}: too large for a baseline file")
            with vfs.open_bytes(path) as source:
                rows = json.load(source)["findings"]
            keys = frozenset(tuple(row[name] for name in _FIELDS) for row in rows
                             if row.get("store") == store)
        except OSError as error:
            raise StoreIOError.from_oserror(error, path, "read") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UsageError(f"{path}: not a baseline file; --update-baseline writes one"
                             ) from None
        return cls(root, keys, store)

    def __len__(self) -> int:
        return len(self._known_keys)

    def knows(self, finding: Finding) -> bool:
        """Return whether the finding is known, and record it."""
        key = self._key(finding)
        if len(self._recorded) < _MAX_KEYS:
            self._recorded[key] = None
        return key in self._known_keys

    @property
    def gone(self) -> int:
        """Return the number of known findings that did not occur again."""
        return len(self._known_keys - self._recorded.keys())

    def rows(self) -> list[dict[str, Any]]:
        """Return the recorded findings as objects for the baseline file.
        Raises: RefusedError if there are too many findings.
        """
        if len(self._recorded) >= _MAX_KEYS:
            raise RefusedError(f"more than {_MAX_KEYS:,} findings: too many for a baseline")
        store = {} if self.store is None else {"store": self.store}
        return [store | dict(zip(_FIELDS, key, strict=True))
                for key in sorted(self._recorded, key=repr)]

    def _key(self, finding: Finding) -> Key:
        """Return the values that identify a finding; its file is relative to the store."""
        file = finding.file
        if file is not None and os.path.isabs(file) == os.path.isabs(self._root):
            file = vfs.relpath(file, self._root)
        values = {name: getattr(finding, name) for name in _FIELDS} | {"file": file}
        return tuple(values[name] for name in _FIELDS)


def save(path: str, baselines: Iterable[Baseline]) -> int:
    """Write the recorded findings of all stores to the baseline file ``path``; return their number.
    Raises: RefusedError, StoreIOError.
    """
    rows = [row for baseline in baselines for row in baseline.rows()]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    text = f'{{"findings": [\n{lines}\n]}}\n' if rows else '{"findings": []}\n'
    replace_file(path, text.encode(), doing="write")
    return len(rows)
