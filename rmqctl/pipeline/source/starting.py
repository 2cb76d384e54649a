"""The option ``startingOffsets``: where a query without a checkpoint starts in each store."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Literal

from rmqctl.errors import UsageError

FOLLOWING = ("startingOffsets", "maxBytesPerTrigger")
"""The options of following stores, besides those of reading them."""
Start = int | Literal["earliest", "latest"]
_WORDS: dict[str, Start] = {"earliest": "earliest", "latest": "latest"}


@dataclass(frozen=True, slots=True)
class Starting:
    """``stores``: a physical offset or a word for some; ``others`` for all that are not named."""

    others: Start = "earliest"
    stores: dict[str, Start] = field(default_factory=dict)

    def of(self, store: str) -> Start:
        return self.stores.get(store, self.others)

    def named(self) -> set[str]:
        return set(self.stores)


def starting(text: str | None) -> Starting:
    """``earliest`` (the default), ``latest``, or a JSON object: store -> offset or word.

    UsageError for anything else.
    """
    if text is None or text.strip().lower() in _WORDS:
        return Starting(_WORDS[(text or "earliest").strip().lower()])
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"startingOffsets={text}: earliest, latest, or a JSON object of stores "
                         "and physical offsets")
    return Starting(stores={os.path.normpath(store): _start(store, value)
                            for store, value in found.items()})


def _start(store: str, value: object) -> Start:
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise UsageError(f"startingOffsets: {store}: {value!r} is neither a physical offset nor "
                     "earliest or latest")
