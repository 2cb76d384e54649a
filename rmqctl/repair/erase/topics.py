"""The topics that are deleted, including the internal topics of deleted groups.

A group has a retry topic and a dead letter topic. With POP, it also has a retry topic for each
topic: ``%RETRY%group+topic``, or ``%RETRY%group_topic`` with older brokers.

Names of groups and topics may contain ``_``, so a name of the older form may belong to several
groups. Such a topic is deleted only if it cannot belong to another group.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from rmqctl.checks.metadata.tables import is_user_group, is_user_topic
from rmqctl.errors import RefusedError, UsageError
from rmqctl.formats.local import properties as props
from rmqctl.scan.derived import is_queue_name
from rmqctl.store.config.config import load_one
from rmqctl.store.config.progress import ConsumerProgress
from rmqctl.store.store import Store

_INTERNAL = (props.RETRY_PREFIX, props.DLQ_PREFIX)


class DeletedTopics:
    """The ``topics`` to delete.

    ``undecided``: retry topics that are kept because they may belong to another group, each with
    the deleted group. Raises: UsageError, RefusedError for topics or groups that do not exist or
    must not be deleted.
    """

    def __init__(self, store: Store, topics: Iterable[str], groups: Iterable[str]) -> None:
        self.topics = [*topics]
        self.undecided: dict[str, str] = {}
        _check(self.topics, groups)
        if not groups:
            return
        names = {name for name, _ in (*store.queues.readable, *store.queues.batch)} | {
            row["topic"] for row in load_one(store, "topics.json").rows()}
        owners = _Owners(names, {row["group"] for row in load_one(
            store, "subscriptionGroup.json").rows()} | ConsumerProgress.of(store).by_group().keys())
        for group in groups:
            self.topics.append(f"{props.DLQ_PREFIX}{group}")
            self.topics += sorted(name for name in names
                                  if name.startswith(f"{props.RETRY_PREFIX}{group}+"))
            for name in sorted(name for name in names | {f"{props.RETRY_PREFIX}{group}"}
                               if name.startswith(f"{props.RETRY_PREFIX}{group}")):
                self._decide(name, group, owners)

    def _decide(self, name: str, group: str, owners: _Owners) -> None:
        """Decide whether a retry topic whose name starts with the name of a deleted group belongs
        to this group.
        """
        suffix = name.removeprefix(f"{props.RETRY_PREFIX}{group}")
        if suffix[:1] not in ("", "_") or name in self.topics:
            return
        others = owners.of(name) - {group}
        is_own = not suffix or suffix[1:] in owners.topics
        if is_own and not others:
            self.topics.append(name)
        elif is_own or not others:
            self.undecided[name] = group

    def notes(self, root: str) -> Iterator[str]:
        """Yield a note on each undecided topic, with the command that deletes it."""
        for name, group in self.undecided.items():
            yield (f"topic {name} may be a retry topic of group {group} or of another group: not "
                   f"deleted (`rmqctl delete topic {shlex.quote(root)} {shlex.quote(name)}` "
                   "deletes it)")


class _Owners:
    """The groups to which a retry topic may belong, judged by the existing topics and groups."""

    def __init__(self, names: set[str], groups: set[str]) -> None:
        self.topics = {name for name in names if not name.startswith(_INTERNAL)}
        self.groups = groups

    def of(self, name: str) -> set[str]:
        text = name.removeprefix(props.RETRY_PREFIX)
        return {text} & self.groups | {
            text[:at] for at, sign in enumerate(text)
            if sign == "_" and text[:at] in self.groups and text[at + 1:] in self.topics}


def _check(topics: Iterable[str], groups: Iterable[str]) -> None:
    for name in (*topics, *groups):
        if not is_queue_name(name):
            raise UsageError(f"{name!r} is not a valid topic or group name")
    for topic in topics:
        if not is_user_topic(topic):
            raise RefusedError(f"{topic} is a system topic: a broker needs it")
        if topic.startswith(props.LMQ_PREFIX):
            raise RefusedError(f"{topic} is an LMQ: its messages belong to other topics and "
                               "would recreate it; delete these messages (`rmqctl delete "
                               "message`)")
    for group in groups:
        if not is_user_group(group):
            raise RefusedError(f"{group} is a system group: a broker needs it")
