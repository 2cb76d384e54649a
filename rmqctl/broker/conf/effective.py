"""The settings of a broker that was started with a ``broker.conf``.

Values in the file apply as the broker's release reads them. All other settings have this release's
defaults.
"""

from __future__ import annotations

from typing import Any

from rmqctl.broker.conf import java
from rmqctl.broker.conf.names import RENAMED, is_read, meant, table
from rmqctl.broker.versions import is_from
from rmqctl.lazy_dataclass import dataclass
from rmqctl.phrases import Phrase
from rmqctl.store.broker_conf import BrokerConf

TRIMS_SINCE = "5.2.0"
"""The first release that trims blanks around strings."""
DERIVES_SINCE = "4.9.4"
"""The first release that stores the log below storePathRootDir unless storePathCommitLog is set."""
MULTI_PATH_SINCE = "4.9.2"
DEFAULTS: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 30, "mappedFileSizeConsumeQueue": 6_000_000,
    "mapperFileSizeBatchConsumeQueue": 13_800_000, "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000, "enableDLegerCommitLog": False, "storeType": "default",
    "configManagerVersion": "v1", "enableControllerMode": False,
    "brokerClusterName": "DefaultCluster", "brokerRole": "ASYNC_MASTER", "brokerId": 0,
    "fileReservedTime": 72, "deleteWhen": "04", "diskMaxUsedSpaceRatio": 75,
    "messageIndexEnable": True, "messageIndexSafe": False}
"""Defaults of the settings whose default is the same in all releases."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The settings in ``conf`` as a broker of ``release`` reads them."""

    conf: BrokerConf
    release: str

    def spelled(self, name: str) -> str:
        """Return this release's name for the setting that later releases call ``name``."""
        return name if is_read(name, self.release) else next(
            (old for old, new in RENAMED.items() if new == name and is_read(old, self.release)),
            name)

    def text(self, name: str) -> str | None:
        """Return the text of a setting in the file. Return None if the file does not contain the
        setting, or if this release does not read it.
        """
        spelling = self.spelled(name)
        return self.conf.texts.get(spelling) if is_read(spelling, self.release) else None

    def given(self, name: str) -> Any:
        """Return the value of a setting in the file; None if the default applies."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return java.value(table()[self.spelled(name)].kind, text, trims=self.trims)
        except ValueError:
            return None

    def get(self, name: str) -> Any:
        """Return the effective value of a setting; None if its default is unknown."""
        value = self.given(name)
        return DEFAULTS.get(name) if value is None else value

    @property
    def trims(self) -> bool:
        return is_from(self.release, TRIMS_SINCE)

    def origin(self, name: str) -> Phrase:
        """Return the origin of a setting's value: the setting in the file, such as
        ``mappedFileSizeCommitLog=1024``, or the reason for the default.
        """
        spelling, text = self.spelled(name), self.text(name)
        if text is not None:
            setting = Phrase("{name}={value}", name=spelling, value=shown(text))
            if self.given(name) is not None:
                return setting
            return Phrase("{setting} is not a number for Java (default applies)",
                          setting=setting)
        for other in self.conf.texts:
            if other != spelling and meant(other, self.release) == spelling and (
                    not is_read(other, self.release)):
                return Phrase("{name} is not set (default applies; {release} does not read "
                              "{other})", name=spelling, other=other, release=self.release)
        return Phrase("{name} is not set (default applies)", name=spelling)


def shown(text: str) -> str:
    """Return a value as shown in a message: in quotes if it is empty, or starts or ends with
    blanks.
    """
    return repr(text) if text != text.strip() or not text else text
