"""The settings of a store, and ``STORE/.rmqctl/store.json``: the configuration for which a store
was created.

`init` writes this file; a broker does not use it. A value in this file is used only if the other
files of the store do not determine it. A damaged or invalid file is reported and otherwise ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from rmqctl import vfs
from rmqctl.errors import FormatError, StoreIOError
from rmqctl.formats.local import delay
from rmqctl.lazy_dataclass import dataclass
from rmqctl.scan.source import FileSource
from rmqctl.store.log.once import cached_property

if TYPE_CHECKING:
    from rmqctl.store.config.rocksdb import ConfigPart
    from rmqctl.store.layout import Layout

FOLDER = ".rmqctl"
NAME = "store.json"
LOG_FOLDERS = "commitlog_dirs"
FORMAT = "format"
CURRENT_FORMAT = 1
MAX_SIZE = 64 << 10
MAX_INT = (1 << 31) - 1
"""Maximum of a size: sizes are Java ints in a broker's configuration."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The settings of a store.

    ``values``: the valid values, keyed by the names in `KEYS`. ``notes``: texts that describe
    faults in the file.
    """

    values: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_INT


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= 100


def _levels(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        delay.parse_levels(value)
    except ValueError:
        return False
    return True


def _folders(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(
        isinstance(folder, str) and folder and "\0" not in folder for folder in value)


KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "version": (_word, "a version"),
    "commitlog_file_size": (_size, "a size"),
    "consumequeue_file_size": (_size, "a size"),
    "consumequeue_ext_file_size": (_size, "a size"),
    "batch_consumequeue_file_size": (_size, "a size"),
    "index_slots": (_size, "a count"),
    "index_max": (_size, "a count"),
    "consumequeue_ext": (_flag, "true or false"),
    "lmq": (_flag, "true or false"),
    "multi_dispatch": (_flag, "true or false"),
    "append_properties_crc": (_flag, "true or false"),
    "message_delay_level": (_levels, "a list of delay levels"),
    LOG_FOLDERS: (_folders, "a list of folders"),
}
"""For each recorded setting: (test of the value, description of the expected value)."""


def path_of(root: str) -> str:
    """Return the path of the settings file of a store."""
    return os.path.join(root, FOLDER, NAME)


def recall(root: str) -> Remembered:
    """Return the recorded settings of the store at ``root``; no settings if the file is missing.
    Never raises.
    """
    path = path_of(root)
    if not vfs.lexists(path):
        return Remembered()
    from rmqctl.formats.config import config_json

    # An unreadable file must not prevent the store from being opened.
    try:
        with FileSource(path) as source:
            if source.size > MAX_SIZE:
                return _useless(path, f"has {source.size:,} bytes; the limit is {MAX_SIZE:,}")
            document = config_json.parse(source.read(0, source.size)).value
    except StoreIOError as error:
        return Remembered(notes=(str(error),))
    except FormatError as error:
        place = "" if error.offset is None else f" at {error.offset}"
        return _useless(path, f"{error.reason}{place}")
    if not isinstance(document, dict):
        return _useless(path, "not a JSON object")
    # Ignore files of another format.
    if document.get(FORMAT) != CURRENT_FORMAT:
        return _useless(path, f"its format is {document.get(FORMAT)!r}; this rmqctl reads "
                        f"{CURRENT_FORMAT}")
    values: dict[str, Any] = {}
    notes: list[str] = []
    # Check each value on its own, so that one bad value does not discard the others.
    for name, (sound, meaning) in KEYS.items():
        if name not in document:
            continue
        if sound(document[name]):
            values[name] = document[name]
        else:
            notes.append(f"{path}: {name} is not {meaning}")
    return Remembered(values, tuple(notes))


def _useless(path: str, reason: str) -> Remembered:
    return Remembered(notes=(f"{path}: {reason}",))


class ConfigOwner(Protocol):
    """The part of the interface of `rmqctl.store.store.Store` that its configuration needs."""

    root: str

    @property
    def layout(self) -> Layout: ...


class StoreConfig:
    """The settings of a store, and the parts of its configuration that are in a database.

    ``conf``: values of the broker's own configuration file.
    """

    def __init__(self, store: ConfigOwner, conf: Mapping[str, Any]) -> None:
        self._store, self._conf = store, conf
        self.loaded: dict[str, Any] = {}
        """Files that `rmqctl.store.config.config.load_shared` has read, by name."""

    @cached_property
    def recorded(self) -> Remembered:
        """The settings that `init` recorded for the store, and descriptions of the faults of their
        file.
        """
        return recall(self._store.root)

    @property
    def remembered(self) -> dict[str, Any]:
        """The valid values of `recorded`, by the names of `rmqctl.store.store_settings.KEYS`."""
        return self.recorded.values

    @property
    def values(self) -> dict[str, Any]:
        """The known values of settings: those of the broker's file have priority."""
        return {**self.remembered, **self._conf}

    @cached_property
    def parts(self) -> dict[str, ConfigPart]:
        """For each file of ``config/`` that a database replaces: the part of the database with its
        content.

        Empty if no file is replaced, or if rmqctl does not read this layout.
        """
        layout = self._store.layout
        if layout.config == "json" or not layout.reads("config"):
            return {}
        from rmqctl.store.config.rocksdb import read_config

        return read_config(self._store.root, layout.config)
