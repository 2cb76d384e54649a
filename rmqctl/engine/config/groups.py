"""``config/subscriptionGroup.json``: consumer groups (checkpoint-and-small-files.md §4).

A broker creates a group, and its retry topic, when the first member registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rmqctl.engine.config.table import Config, ConfigTable
from rmqctl.engine.config.topics import name_problem
from rmqctl.errors import RefusedError

_BEAN: Config = {
    "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
    "consumeFromMinEnable": True, "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16,
    "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1}
_BEAN_SINCE_5: Config = {
    "attributes": {}, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0}


class SubscriptionGroups(ConfigTable):
    """The consumer groups of a store."""

    file, table_name = "subscriptionGroup.json", "subscriptionGroupTable"

    def bean(self, name: str, given: Mapping[str, Any] | None = None) -> Config:
        """Return the properties of a group in fastjson's order.

        The values in ``given`` replace the defaults if they have the right type.
        Raises: RefusedError for a name that is invalid in the name of a retry topic.
        """
        problem = name_problem(name)
        if problem is not None:
            raise RefusedError(problem.replace("topic", "group", 1))
        since_5 = self.settings.profile.generation >= 5
        defaults = {**_BEAN, **(_BEAN_SINCE_5 if since_5 else {})}
        chosen = {field: value for field, value in (given or {}).items()
                  if field in defaults and type(value) is type(defaults[field])}
        return dict(sorted({**defaults, **chosen, "groupName": name}.items()))
