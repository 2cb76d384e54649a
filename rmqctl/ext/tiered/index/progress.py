"""Save the progress of a tier's index, so that a run can complete the index of a killed dispatch.

A broker saves no progress. Messages that a killed broker had not indexed stay unindexed (tiered.md
§8.3).

The progress file contains the end of the index files. For each queue it contains two offsets: the
end of the indexed messages, and the end of the messages that rmqctl may have uploaded. If a queue
extends past the second offset, another program has uploaded messages. rmqctl then does not complete
the index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rmqctl.errors import FormatError, StoreIOError
from rmqctl.files.durable import STAGING, make_folders, publish
from rmqctl.formats.config import config_json

NAME = "tiered-index.json"
"""Name of the progress file, in ``.rmqctl`` of the broker's local root."""
_FORMAT = 1
Key = tuple[str, int]
Position = tuple[int, int]
"""Timestamp of the newest index file, and number of items in this file."""


class IndexProgress:
    """The saved progress, as queue offsets by (topic, queue id).

    ``upto``: end of the indexed messages. ``target``: end of the messages that may be uploaded.
    """

    def __init__(self, broker_root: str, owner: str) -> None:
        self.path = os.path.join(broker_root, STAGING, NAME)
        self._broker_root, self._owner = broker_root, owner
        self.upto: dict[Key, int] = {}
        self.target: dict[Key, int] = {}
        self.position: Position | None = None
        self.is_valid = False
        """True if a progress file exists that belongs to this tier."""

    def load(self) -> list[str]:
        """Read the progress file. Return a list that is empty, or contains a note on why the file
        cannot be used.
        """
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreIOError.from_oserror(error, self.path, "read") from None
        try:
            note = config_json.parse(data).value
            if note["format"] != _FORMAT:
                raise ValueError("unknown format")
            if note["tier"] != self._owner:
                return [f"{self.path} is for another tier ({note['tier']}); not used"]
            time, items = map(_number, note["position"])
            for topic, number, done, aim in _rows(note["queues"]):
                self.upto[topic, number], self.target[topic, number] = done, aim
        except (FormatError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.upto, self.target = {}, {}
            return [f"{self.path} cannot be used: {error}"]
        self.position, self.is_valid = (time, items), True
        return []

    def is_ours(self, ends: Mapping[Key, int]) -> bool:
        """Return whether each queue ends at or before the last message that rmqctl may have
        uploaded.
        """
        return all(end <= self.target.get(key, -1) for key, end in ends.items())

    def is_unfinished(self, ends: Mapping[Key, int]) -> bool:
        """Return whether rmqctl was interrupted before it indexed its uploads. Return False if
        another program has uploaded messages since. rmqctl's next run completes an unfinished
        index.
        """
        return (self.is_valid and self.is_ours(ends)
                and any(aim > self.upto.get(key, 0) for key, aim in self.target.items()))

    def save(self) -> None:
        """Save the progress file. Raises: StoreIOError."""
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, number), done in self.upto.items():
            topics.setdefault(topic, {})[str(number)] = [
                done, max(done, self.target.get((topic, number), done))]
        note = {"format": _FORMAT, "tier": self._owner, "position": list(self.position or (0, 0)),
                "queues": topics}
        make_folders(os.path.dirname(self.path))
        publish(self.path, (json.dumps(note) + "\n").encode(), store=self._broker_root)
        self.is_valid = True


def _rows(queues: Any) -> Iterator[tuple[str, int, int, int]]:
    for topic, table in queues.items():
        for number, (done, aim) in table.items():
            yield topic, int(number), _number(done), _number(aim)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not an offset")
    return value
