"""``pop release``: make messages visible again. A group received these messages by POP but did not
acknowledge them.

Each message is added to a retry topic of the group, as a broker's revive service does when the
invisible time is over. Its check point is acknowledged, so the broker does not deliver the message
again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any

from rmqctl.broker.conf.effective import Effective
from rmqctl.broker.release import judged
from rmqctl.broker.settings import Settings
from rmqctl.broker.versions import is_from
from rmqctl.checks.popped import (
    ACK,
    DUE,
    FIRST_POP_TIME,
    INVISIBLE,
    LOST,
    RECORDS,
    TIMER,
    UNDECIDED,
    CheckPoint,
    PoppedMessage,
    popped,
    retry_topics,
)
from rmqctl.checks.verify.common import plural
from rmqctl.engine.put.message import Outgoing
from rmqctl.engine.put.rewrite import TIMER_DELIVER_MS
from rmqctl.formats.config.java_map import JavaMap
from rmqctl.formats.local import properties as props
from rmqctl.formats.local.message import Record
from rmqctl.lazy_dataclass import dataclass
from rmqctl.parse_values import time_text
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import Plan
from rmqctl.repair.putting import Puts
from rmqctl.repair.scratch import Scratch
from rmqctl.store.objects import java_text
from rmqctl.store.problems import Problem
from rmqctl.store.queue.rows import queue_ids
from rmqctl.store.store import Store

COMMAND = "pop-release"
_SINCE, _USUAL = "5.0.0", "5.3.3"
_SHORT_SINCE = "5.1.0"
"""First release whose acknowledgements have short field names."""
_LEFT = {
    RECORDS: "the broker makes the messages in kvStore visible when their invisible time expires",
    TIMER: "the timer delivers the check point first: the broker makes the message visible itself, "
           "soon after its start"}


@dataclass(frozen=True, slots=True)
class Released:
    """A plan. ``released``: messages that are delivered again. ``left``: the other messages, each
    with the reason.
    """

    plan: Plan
    released: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)


def plan_release(store: Store, wanted: Callable[[CheckPoint], bool], clock: Callable[[], int],
                 scratch: Scratch, *, undecided: bool = False) -> Released:
    """Return the plan for an opened store. ``undecided``: also release messages that damaged
    records may contain or acknowledge.

    Raises: RefusedError if the store must first be repaired; UnsupportedError, StoreIOError.
    """
    # What was not acknowledged, and what of it can be delivered again; what a broker does not take
    # is left.
    now, problems = clock(), list[Problem]()
    state = popped(store, now, problems.append, wanted)
    refused: dict[int, str] = {}
    release = judged(store).release
    if not is_from(release, _SINCE):  # the store has structures of 5.x
        release = _USUAL
    configuration, forms = configured(store, {"version": release}), _Forms.of(store, release)
    while True:
        chosen, records, left = list[PoppedMessage](), list[Record](), list[dict[str, Any]]()
        for number, pop in enumerate(state.messages):
            record = None if pop.record is None else store.log.record_at(
                pop.record.physical_offset)
            reason = refused.get(number) or _why_left(pop, record, undecided=undecided)
            if reason or record is None:
                left.append({**pop.as_dict(now), "reason": reason})
            else:
                chosen.append(pop)
                records.append(record)
        notes = [*state.notes, *(problem.text for problem in problems[:1] if problem.is_fault),
                 *(f"{plural(count, 'message')} not released: {reason}" for reason, count
                   in Counter(row["reason"] for row in left).items())]
        if not chosen:
            return Released(Plan(COMMAND, store.root, notes=tuple(notes)), [], left)
        # Messages for the retry topics, then acknowledgements for those not revived yet.
        puts = Puts(store, configuration, scratch, clock)
        messages = [_again(record, pop.delivery.point.popTime, forms.retry_topic(store, pop),
                           configuration.settings)
                    for pop, record in zip(chosen, records, strict=True)]
        pending = [pop for pop in chosen if pop.state != LOST]
        results = puts.put([*messages, *(_ack(pop, configuration.settings, short=forms.short)
                                         for pop in pending)],
                           f"{plural(len(chosen), 'message is', 'messages are')} delivered again")
        bad = {state.messages.index(pop): f"a broker rejects it: {result.reason}"
               for pop, result in zip([*chosen, *pending], results, strict=True)
               if not result.stored}
        if not bad:
            break
        refused |= bad
    puts.create_topics({message.topic for message in messages},
                       "messages that are delivered again are read from it")
    # What the operator should know.
    soon = [pop.delivery.point.visible_at for pop in pending if pop.delivery.kept_in == TIMER]
    if soon:
        notes.append(f"start the broker before {time_text(min(soon))}; if it starts later, some of "
                     "these messages may be delivered twice")
    shown = [{**pop.as_dict(now), "retry_topic": message.topic,
              "released_offset": result.physical_offset}
             for pop, message, result in zip(chosen, messages, results, strict=False)]
    return Released(Plan(COMMAND, store.root, tuple(puts.actions), tuple(puts.steps),
                         notes=(*configuration.notes, *notes)), shown, left)


def _why_left(message: PoppedMessage, record: Record | None, *, undecided: bool) -> str:
    if message.state == UNDECIDED and not undecided:
        return ("the records that may contain or acknowledge the message are damaged. `rmqctl "
                "recover` may restore them; --undecided delivers the message again, possibly "
                "as a duplicate")
    if message.state not in (INVISIBLE, DUE, LOST, UNDECIDED) or record is None:
        return f"{message.state}: the message cannot be delivered again"
    if record.crc_ok is False:
        return "the body of the message does not match its CRC"
    if message.delivery.kept_in == RECORDS:
        return _LEFT[RECORDS]
    return _LEFT[TIMER] if message.delivery.kept_in == TIMER and message.state == DUE else ""


@dataclass(frozen=True, slots=True)
class _Forms:
    """Forms that depend on the store's broker. ``short``: acknowledgements have short field names.
    ``second``: the names of retry topics have the second form.
    """

    short: bool
    second: bool

    @classmethod
    def of(cls, store: Store, release: str) -> _Forms:
        conf = Effective(store.sizes.conf, release)
        return cls(is_from(release, _SHORT_SINCE), bool(conf.given("enableRetryTopicV2")))

    def retry_topic(self, store: Store, message: PoppedMessage) -> str:
        """Return the retry topic for a message. If only the topic with the second form of the name
        exists in the store, that topic is used.
        """
        first, *others = retry_topics(message.delivery.point)
        if others and (self.second or (queue_ids(store, "consumequeue", others[0])
                                       and not queue_ids(store, "consumequeue", first))):
            return others[0]
        return first


def _again(record: Record, popped_at: int, topic: str, settings: Settings) -> Outgoing:
    """Return the message as the revive service sends it again. A delay is removed."""
    properties = JavaMap()
    for name, value in JavaMap.from_properties(java_text(record.properties),
                                               settings.profile.map_capacity).items():
        if name != props.DELAY and not name.startswith(props.INNER):
            properties.put(name, value)
    if not record.reconsume_times or FIRST_POP_TIME not in properties:
        properties.put(FIRST_POP_TIME, str(popped_at))
    return Outgoing(
        topic, bytes(record.body), properties.text(trailing=settings.profile.trailing_separator), 0,
        record.flag, record.sys_flag, record.born_timestamp, record.store_host, None,
        record.store_host, record.reconsume_times + 1)


def _ack(message: PoppedMessage, settings: Settings, *, short: bool) -> Outgoing:
    """Return an acknowledgement as a client sends it. The timer delivers it at the time when the
    message would become visible.
    """
    point, check_point = message.delivery.point, message.delivery.record
    assert check_point is not None
    values = {("ao", "ackOffset"): message.queue_offset, ("bn", "brokerName"): point.brokerName,
              ("c", "consumerGroup"): point.consumerGroup, ("pt", "popTime"): point.popTime,
              ("q", "queueId"): point.queueId, ("so", "startOffset"): point.startOffset,
              ("t", "topic"): point.topic}
    body = {names[0 if short else 1]: value for names, value in values.items()
            if value is not None}
    properties = JavaMap()
    properties.put(props.TAGS, ACK)
    properties.put(TIMER_DELIVER_MS, str(point.visible_at))
    properties.put(props.UNIQUE_KEY, "@".join(map(str, (
        point.topic, point.queueId, message.queue_offset, point.consumerGroup, point.popTime,
        point.brokerName or "null", ACK))))
    host = check_point.store_host
    return Outgoing(
        message.delivery.revive[0],
        json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        properties.text(trailing=settings.profile.trailing_separator), message.delivery.revive[1],
        born_host=host, store_host=host)
