"""The names of the settings that each release reads from ``broker.conf``, from `names.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pkgutil import get_data
from typing import NamedTuple

from rmqctl.broker.versions import is_from
from rmqctl.phrases import Phrase

_CLOSE = 0.8
"""Similarity at which a name counts as a typing error (`difflib` ratio)."""
RENAMED = {"mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
           "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
           "haSlaveFallbehindMax": "haMaxGapNotInSync",
           "tieredStoreFilepath": "tieredStoreFilePath"}
"""The new names of renamed settings, by old name."""


class SettingName(NamedTuple):
    """The name of a setting and its Java type.

    ``since``: first release that reads the setting. ``until``: last release that reads it; None if
    the newest release reads it.
    """

    name: str
    kind: str
    since: str
    until: str | None

    def is_read_by(self, release: str) -> bool:
        return is_from(release, self.since) and (
            self.until is None or is_from(self.until, release))


@cache
def table() -> dict[str, SettingName]:
    """Return the settings of all releases by name. A name that several Java classes have is listed
    once.
    """
    data = get_data("rmqctl.broker.conf", "names.toml")  # also if the package is in an archive
    assert data is not None
    settings: dict[str, SettingName] = {}
    for section in tomllib.loads(data.decode("ascii")).values():
        for name, facts in section.items():
            kind, since, *until = facts.split()
            other = settings.get(name)
            settings[name] = SettingName(name, kind, since, until[0] if until else None) if (
                other is None or is_from(other.since, since)) else other
    return settings


def is_read(name: str, release: str) -> bool:
    """Return whether a broker of ``release`` reads a setting of this name; case matters."""
    setting = table().get(name)
    return setting is not None and setting.is_read_by(release)


def meant(name: str, release: str) -> str | None:
    """Return, for a name that ``release`` does not know, the name that was probably meant; None if
    no name is similar.
    """
    pairs = {**RENAMED, **{new: old for old, new in RENAMED.items()}}
    other = pairs.get(name)
    if other is not None and is_read(other, release):
        return other
    read = [setting.name for setting in table().values() if setting.is_read_by(release)]
    by_case = {spelling.casefold(): spelling for spelling in read}
    from difflib import get_close_matches

    close = get_close_matches(name.casefold(), by_case, 1, _CLOSE)
    return by_case[close[0]] if close else None


def unread(name: str, release: str) -> Phrase:
    """Return a hint for a name that ``release`` does not know. The hint is the name that was
    probably meant, or the first or last release that knows the name.
    """
    other, setting = meant(name, release), table().get(name)
    values = {"name": name, "release": release}
    if other is not None:
        return Phrase("{release} does not read {name} (did you mean {other}?)", other=other,
                      **values)
    if setting is None:
        return Phrase("no release reads {name}", name=name)
    if setting.until is not None and is_from(release, setting.since):
        return Phrase("{release} does not read {name}; {last} was the last that did",
                      last=setting.until, **values)
    return Phrase("{release} does not read {name}; {first} is the first that does",
                  first=setting.since, **values)
