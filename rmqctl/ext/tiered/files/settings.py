"""The broker settings with which a tier is written; they are saved in the tier (tiered.md §15).

``DIR/.rmqctl/tier.json`` contains the settings of the first run that wrote to the tier. A broker
with different settings would roll files at different offsets, which is not damage. However, such a
broker could not read an index file with other numbers of slots or items.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from rmqctl.errors import FormatError, UsageError
from rmqctl.ext.tiered.files.reader import TierReader
from rmqctl.ext.tiered.files.writer import TierWriter
from rmqctl.formats.config import config_json
from rmqctl.formats.tiered import index
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.lazy_dataclass import dataclass

PLACE = ".rmqctl/tier.json"
"""Path of the file with the settings, relative to the tier root."""
_FORMAT = 1
_MAX_VALUE = 1 << 62
_MAX_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Settings of a broker. Sizes are in bytes, times in ms. The defaults are those of a 5.3.3
    broker.
    """

    commit_log_max: int = 1 << 30
    consume_queue_max: int = 104_857_600
    index_slots: int = index.DEFAULT_SLOTS
    index_max: int = index.DEFAULT_MAX_ITEMS
    group_commit_count: int = 4096
    group_commit_size: int = 4 << 20
    group_commit_timeout: int = 30_000
    rolling_interval: int = 24 * 3_600_000
    rolling_min_size: int = 16 << 20

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not _MIN_VALUES.get(option.name, 0) <= value <= _MAX_VALUE:
                raise UsageError(f"{option.name.replace('_', ' ')} cannot be {value}")

    @property
    def shape(self) -> index.TieredIndexShape:
        """Numbers of slots and items in an index file."""
        return index.TieredIndexShape(self.index_slots, self.index_max)

    @property
    def consume_queue_limit(self) -> int:
        """Maximum size (bytes) of a consume queue segment, rounded down to complete units."""
        return self.consume_queue_max - self.consume_queue_max % UNIT_SIZE


_MIN_VALUES = {
    "commit_log_max": 1, "consume_queue_max": UNIT_SIZE, "index_slots": 1, "index_max": 2,
    "group_commit_count": 1, "group_commit_size": 1}
_REMEMBERED = ("commit_log_max", "consume_queue_max", "index_slots", "index_max")
"""Settings that must stay the same in later runs; all other settings may differ from run to run."""


def resolve(reader: TierReader, given: dict[str, int | None]) -> tuple[TierSettings, list[str]]:
    """Return the settings, and notes for the user. A setting that is not given gets the saved value
    or, if there is none, a broker's default.
    """
    recorded, notes = recall(reader)
    values = {**recorded, **{name: value for name, value in given.items() if value is not None}}
    for name in _REMEMBERED:
        if name in recorded and values[name] != recorded[name]:
            notes.append(f"{name.replace('_', ' ')}: {values[name]}, was {recorded[name]}; applies "
                         "to files written from now on")
    return TierSettings(**values), notes


def recall(reader: TierReader) -> tuple[dict[str, int], list[str]]:
    """Return the saved settings, and descriptions of invalid content. Invalid content raises no
    error.
    """
    size = reader.size(PLACE)
    if size is None:
        return {}, []
    where = reader.where(PLACE)
    try:
        note: Any = config_json.parse(reader.read(PLACE, 0, min(size, _MAX_SIZE))).value
    except FormatError as error:
        return {}, [f"{where}: {error.reason}; ignored"]
    if not isinstance(note, dict) or note.get("format") != _FORMAT:
        return {}, [f"{where}: unknown format; ignored"]
    values = {}
    for name in _REMEMBERED:
        value = note.get(name)
        if (isinstance(value, int) and not isinstance(value, bool)
                and _MIN_VALUES[name] <= value <= _MAX_VALUE):
            values[name] = value
    return values, []


def remember(writer: TierWriter, settings: TierSettings) -> None:
    """Save the settings for later runs, unless they are already saved."""
    recorded, _ = recall(writer)
    wanted = {name: getattr(settings, name) for name in _REMEMBERED}
    if recorded != wanted:
        text = json.dumps({"format": _FORMAT, **wanted}, indent=2) + "\n"
        writer.replace(PLACE, text.encode())
