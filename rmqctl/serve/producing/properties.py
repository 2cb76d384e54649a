"""The properties that a message is stored with: those its producer sent, and the broker's own, in
the order of the broker's map (spec: commitlog.md §5.3).
"""

from __future__ import annotations

from collections.abc import Callable

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.ingest import prepare, unique_ids
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props

REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""What a 5.x broker adds to each message, and every broker to its answers."""
_NAME, _END = props.NAME_VALUE_SEPARATOR, props.PROPERTY_SEPARATOR
_PLANS, _LONGEST = 1024, 4096
"""So many orders are kept, of strings of so many characters at most."""
_Plan = tuple[list[str], list[int], str]
"""(properties that are new, the places in what was sent and these in which they come one after the
other, what ends it)
"""


class Properties:
    """Makes such strings for a store. For each set of names the order is worked out once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.unique_id: Callable[[], str] = unique_ids()
        self._plans: dict[tuple[str, ...], _Plan | None] = {}

    def sent(self, given: str) -> str:
        """The string as the broker works on it: of a 5.x broker with what says where it was."""
        profile = self._settings.profile
        if profile.generation < 5:
            return given
        known = JavaMap.from_properties(given, profile.map_capacity)
        for name, value in REGION.items():
            known.put(name, value)
        return known.text(trailing=profile.trailing_separator)

    def __call__(self, given: str) -> str:
        """The string of a message that is put by itself, and is no half message."""
        parts = given.removesuffix(_END).split(_END)
        names = tuple([part[:part.find(_NAME) + 1] for part in parts])
        plan = self._plans.get(names)
        if plan is None and names not in self._plans and len(given) <= _LONGEST:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[names] = self._plan(names)
        if plan is None or _NAME + _END in given or given.endswith(_NAME):  # an empty value
            return self._stored(given)
        new, order, end = plan
        parts += new
        return _END.join([parts[place] for place in order]) + end

    def batch(self, given: str) -> str:
        """The string that each message of a batch gets beside its own."""
        return prepare(self.sent(given), self._settings, self.unique_id, batch=True)

    def _stored(self, given: str) -> str:
        return prepare(self.sent(given), self._settings, self.unique_id)

    def _plan(self, names: tuple[str, ...]) -> _Plan | None:
        """How strings of these names are put together; None where values decide."""
        wanted = [name[:-1] for name in names]
        if "" in wanted or len(set(wanted)) < len(wanted) or props.DELAY in wanted or (
                self._settings.profile.ensures_unique_key and props.UNIQUE_KEY not in wanted):
            return None
        sent = [f"{name}{number}" for number, name in enumerate(names)]
        made = self._stored(_END.join(sent))
        found = made.removesuffix(_END).split(_END)
        new = [part for part in found if part not in sent]
        return new, [(sent + new).index(part) for part in found], made[len(_END.join(found)):]
