"""Checks of a broker's configuration file, on its own and against its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rmqctl import vfs
from rmqctl.broker.conf import java
from rmqctl.broker.conf.effective import DEFAULTS, DERIVES_SINCE, Effective, shown
from rmqctl.broker.conf.follow import FATAL, follow
from rmqctl.broker.conf.names import is_read, meant, table, unread
from rmqctl.broker.conf.places import DLEDGER_DATA, LOG, ROOT
from rmqctl.broker.versions import is_from, version_of
from rmqctl.checks.findings import ERROR, INFO, Finding
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.store.broker_conf import BrokerConf
from rmqctl.store.store import Store

STRUCTURE = "broker.conf"
_ENUMS = {"brokerRole": ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
          "flushDiskType": ("SYNC_FLUSH", "ASYNC_FLUSH")}
_PATH = "storePath"
_FOLLOWED = (ROOT, LOG, DLEDGER_DATA)
_MATTER = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "fileReservedTime",
           "deleteWhen", "diskMaxUsedSpaceRatio")


@dataclass(frozen=True, slots=True)
class ConfFinding:
    """A finding about a setting.

    ``line``: line number of the setting in the configuration file; None if the file does not
    contain the setting.
    """

    finding: Finding
    setting: str
    value: str | None
    line: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON, as `verify` does, with the setting added."""
        return {**self.finding.as_dict(), "setting": self.setting, "value": self.value,
                "line": self.line}


def check(conf: BrokerConf, release: str, store: Store | None) -> list[ConfFinding]:
    """Return the findings for a broker of ``release``, and for ``store`` if given."""
    return list(_ConfCheck(conf, release, store).findings())


class _ConfCheck:
    def __init__(self, conf: BrokerConf, release: str, store: Store | None) -> None:
        self._conf, self._release, self._store = conf, release, store
        self._settings = Effective(conf, release)

    def findings(self) -> Iterator[ConfFinding]:
        yield from self._twice()
        for name, text in self._conf.texts.items():
            if is_read(name, self._release):
                yield from self._value(name, text)
            else:
                yield self._unread(name)
        yield from self._paths()
        if self._store is not None:
            yield from self._against(self._store)
        yield from self._defaults()

    def _finding(self, category: str, setting: str, detail: Phrase,
                 severity: str = "") -> ConfFinding:
        return ConfFinding(Finding(category, STRUCTURE, detail, self._conf.path, severity=severity),
                           setting, self._conf.texts.get(setting), self._conf.lines.get(setting))

    # -- names and values -------------------------------------------------------------------------

    def _unread(self, name: str) -> ConfFinding:
        return self._finding("conf-name", name, unread(name, self._release), "" if (
            meant(name, self._release) or name in table()) else INFO)

    def _value(self, name: str, text: str) -> Iterator[ConfFinding]:
        kind, values = table()[name].kind, {"name": name, "value": shown(text)}
        try:
            value = java.value(kind, text, trims=self._settings.trims)
        except ValueError:
            default = DEFAULTS.get(name)
            yield self._finding("conf-value", name, Phrase(
                "{name}={value} is not a number for Java: the broker uses the default", **values)
                if default is None else Phrase(
                "{name}={value} is not a number for Java: the broker uses the default, {default}",
                default=default, **values))
            return
        if kind == "boolean":
            if text.lower() not in ("true", "false"):
                yield self._finding("conf-value", name, Phrase(
                    "Java reads {name}={value} as false: only \"true\" is true", **values))
        elif kind == "String":
            yield from self._text(name, text, value)

    def _text(self, name: str, text: str, value: str) -> Iterator[ConfFinding]:
        values = {"name": name, "value": shown(text)}
        if name in _ENUMS and value not in _ENUMS[name]:
            yield self._finding("conf-value", name, Phrase(
                "{name}={value} is not one of {names}: the broker uses the default",
                names=", ".join(
                    _ENUMS[name]), **values))
        elif value != java.trim(text):
            yield self._finding("conf-value", name, Phrase(
                "{name}={value}: {release} keeps the blanks around a value",
                release=self._release, **values))
        elif text != value:
            yield self._finding("conf-value", name, Phrase(
                "{name}={value}: {release} strips the blanks; releases before 5.2.0 keep them",
                release=self._release, **values), INFO)
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            yield self._finding("conf-value", name, Phrase(
                "{name}={value}: the quotes are part of the value", **values))
        elif " #" in value or "\t#" in value:
            yield self._finding("conf-value", name, Phrase(
                "{name}={value}: the comment is part of the value", **values))
        elif name.startswith(_PATH) and ("${" in value or value.startswith("~")):
            yield self._finding("conf-value", name, Phrase(
                "{name}={value}: the broker does not replace variables or ~", **values))

    def _twice(self) -> Iterator[ConfFinding]:
        for name, lines in self._conf.repeated.items():
            yield self._finding("conf-value", name, Phrase(
                "{name} is set on lines {lines}: the last one takes effect", name=name,
                lines=", ".join(map(str, lines))))

    # -- folders, and the store -------------------------------------------------------------------

    def _paths(self) -> Iterator[ConfFinding]:
        """Yield a finding for each configured folder that does not exist on this machine.

        If a store is given, the root and the commit log are skipped, because `follow` checks them.
        """
        for name in self._conf.texts:
            value = self._settings.given(name) if name.startswith(_PATH) else None
            if value is None or (self._store is not None and name in _FOLLOWED):
                continue
            for path in value.split(","):
                if not vfs.exists(self._here(path)):
                    yield self._finding("conf-path", name, Phrase(
                        "{name}: {path} does not exist", name=name, path=shown(path)))

    def _here(self, path: str) -> str:
        """Return a configured path as a path on this machine: the store's root replaces the
        configured root.
        """
        root = self._settings.given(ROOT)
        if self._store is None or not root or not path.startswith(os.path.join(root, "")):
            return path
        return self._store.path(os.path.relpath(path, root))

    def _against(self, store: Store) -> Iterator[ConfFinding]:
        followed = follow(store, self._release, version_of(self._release))
        if followed.store is not store:
            followed.store.close()
        for setting in followed.effects:
            if setting.effect != "ignored":
                yield self._finding("conf-store", setting.setting, setting.detail,
                                    ERROR if setting.effect in FATAL else INFO)

    # -- what is not set --------------------------------------------------------------------------

    def _defaults(self) -> Iterator[ConfFinding]:
        settings = self._settings
        if settings.given(ROOT) is None:
            yield self._finding("conf-default", ROOT, Phrase(
                "{name} is not set: the broker uses ~/store of its user", name=ROOT))
        if settings.given(LOG) is None and not is_from(self._release, DERIVES_SINCE):
            yield self._finding("conf-default", LOG, Phrase(
                "{name} is not set: the broker uses ~/store/commitlog, regardless of {root} (up to "
                "4.9.3)",
                name=LOG, root=ROOT))
        for name in _MATTER:
            if settings.text(name) is None:
                yield self._finding("conf-default", settings.spelled(name), Phrase(
                    "{name} is not set: {default}", name=settings.spelled(name),
                    default=f"{DEFAULTS[name]:,}" if isinstance(DEFAULTS[name], int)
                    else DEFAULTS[name]))
