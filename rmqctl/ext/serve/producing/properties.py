"""The properties to store with a message, in the order of the broker's map (spec: commitlog.md
§5.3).

Some are sent by the producer, others are added by the broker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqctl.broker.settings import Settings
from rmqctl.engine.put.ingest import prepare, unique_ids
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props

REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Properties that 5.x brokers add to messages, and brokers of all versions add to responses."""
_NAME, _END = props.NAME_VALUE_SEPARATOR, props.PROPERTY_SEPARATOR
_KEY = props.UNIQUE_KEY + _NAME
_MAX_PLANS, _MAX_NAMES = 1024, 512
"""Maximum number of plans in memory, and maximum length in characters of the names in a plan."""
_OTHER_WAYS = (props.DELAY, props.PREPARED, props.INNER, "TIMER_")
"""Prefixes of the properties that cause a message to be stored in another queue or in several
queues.
"""


class _Plan(NamedTuple):
    """A plan to convert the sent string of properties to the stored string, for messages with the
    same property names.
    """

    match: Callable[[str], re.Match[str] | None]
    """Pattern that matches a sent string; its groups are the properties' values."""
    text: str
    """The stored string, as a format string with a placeholder for each value."""
    order: tuple[int, ...]
    """For each placeholder of ``text``, the number of the pattern group that matches its value."""
    is_plain: bool
    tags: int
    """The numbers of the pattern groups that match the tags and the unique key; 0 if the property
    is missing.
    """
    key: int
    new_key_at: int
    """Number of placeholders before the one for a new unique key; -1 if no new key is needed."""


class PropertyBuilder:
    """Builds the properties to store, with one plan for each set of property names."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.unique_id: Callable[[], str] = unique_ids()
        self._plans: dict[tuple[str, ...], _Plan | None] = {}
        self._last: _Plan | None = None

    def sent(self, given: str) -> str:
        """Return the sent properties, together with those that a 5.x broker adds on arrival."""
        profile = self._settings.profile
        if profile.generation < 5:
            return given
        java_map = JavaMap.from_properties(given, profile.map_capacity)
        for name, value in REGION.items():
            java_map.put(name, value)
        return java_map.text(trailing=profile.trailing_separator)

    def __call__(self, given: str) -> str:
        """Return the properties to store with a single message that is not a half message."""
        plan, match = self._match(given)
        if plan is None or match is None:
            return self._stored(given)
        return self._filled(plan, match)[0]

    def plain(self, given: str) -> tuple[str, str | None, str | None] | None:
        """Return the properties to store, the tags and the unique key of a message.

        Return None if the message may have to be stored in a queue other than the one that the
        producer named.
        """
        plan, match = self._match(given)
        if plan is None or match is None or not plan.is_plain:
            return None
        text, key = self._filled(plan, match)
        return text, match[plan.tags] if plan.tags else None, key

    def plain_ones(self, given: Sequence[str]) -> tuple[
            list[str], Sequence[str | None], list[str] | None] | None:
        """Return the results of `plain` for several messages: lists of properties, tags and keys.

        Return None if the messages differ in their property names or need new unique keys.
        """
        plan, first = self._match(given[0])
        if plan is None or first is None or not plan.is_plain or plan.new_key_at >= 0:
            return None
        matches = [*map(plan.match, given)]
        if None in matches:
            return None
        text, order = plan.text, (0, 0, *plan.order)
        return ([text % match.group(*order)[2:] for match in matches],  # type: ignore[union-attr]
                [match[plan.tags] for match in matches] if plan.tags else (  # type: ignore[index]
                    [None] * len(matches)),
                [match[plan.key] for match in matches] if plan.key else None)  # type: ignore[index]

    def _filled(self, plan: _Plan, match: re.Match[str]) -> tuple[str, str | None]:
        """Return the properties to store, and the unique key."""
        values, at = match.group(0, 0, *plan.order)[2:], plan.new_key_at  # so it is always a tuple
        if at < 0:
            return plan.text % values, match[plan.key] if plan.key else None
        key = self.unique_id()
        return plan.text % (*values[:at], key, *values[at:]), key

    def _match(self, given: str) -> tuple[_Plan | None, re.Match[str] | None]:
        """Return the plan for the sent properties, and its pattern's match. If no plan fits,
        both are None.
        """
        plan = self._last  # producers send the same names again and again
        if plan is not None and (match := plan.match(given)) is not None:
            return plan, match
        parts = given.removesuffix(_END).split(_END)
        names = tuple([part[:part.find(_NAME) + 1] for part in parts])
        plan = self._plans.get(names)
        if plan is None and names not in self._plans and sum(map(len, names)) <= _MAX_NAMES:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[names] = self._plan(names)
        if plan is None or (match := plan.match(given)) is None:
            return None, None
        self._last = plan
        return plan, match

    def batch(self, given: str) -> str:
        """Return those properties of a batch that are stored with each of its messages."""
        return prepare(self.sent(given), self._settings, self.unique_id, batch=True)

    def _stored(self, given: str) -> str:
        return prepare(self.sent(given), self._settings, self.unique_id)

    def _plan(self, names: tuple[str, ...]) -> _Plan | None:
        """Return the plan for properties with these names; None if the order of the stored
        properties would depend on their values.
        """
        if names == ("",):
            names = ()
        wanted = [name[:-1] for name in names]
        if "" in wanted or len(set(wanted)) < len(wanted) or props.DELAY in wanted:
            return None
        sent = [f"{name}{number}" for number, name in enumerate(names)]
        stored = self._stored(_END.join(sent))
        parts = stored.removesuffix(_END).split(_END)
        text, order, new_key_at = "", [], -1
        for part in parts:
            name = part[:part.find(_NAME) + 1]
            if part in sent:
                order.append(sent.index(part) + 1)
            elif name == _KEY:
                new_key_at = len(order)
            else:
                text += part.replace("%", "%%") + _END
                continue
            text += name.replace("%", "%%") + "%s" + _END
        return _Plan(
            re.compile(_END.join(f"{re.escape(name)}([^{_NAME}{_END}]+)" for name in names)
                       + f"{_END}?").fullmatch,
            text[:-1] + stored[len(_END.join(parts)):], tuple(order),
            not any(name.startswith(_OTHER_WAYS) for name in wanted),
            _group(wanted, props.TAGS), _group(wanted, props.UNIQUE_KEY), new_key_at)


def _group(names: list[str], name: str) -> int:
    """Return the number of the pattern's group that captures a property's value; 0 if the property
    is missing.
    """
    return names.index(name) + 1 if name in names else 0
