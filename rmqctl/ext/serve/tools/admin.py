"""Handlers of requests from administration tools (spec: remoting.md §3.5).

The requests are about a broker's topics, groups, settings, statistics and consume queue entries.
Topics and groups come from the store's configuration. The routes of a read-only server do not
permit sending.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Any

from rmqctl.broker.settings import resolve
from rmqctl.engine.config.topics import is_system, system_topics
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.naming import json_response
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.ext.serve.remoting.command import VERSION
from rmqctl.ext.serve.source import READ, WRITE
from rmqctl.formats.local.consume_queue_ext import is_address
from rmqctl.formats.local.properties import SCHEDULE_TOPIC
from rmqctl.repair.retention import rules_of

_VERSION_NAME = "V4_9_3"
MAX_ROWS = 10_000
"""Maximum number of consume queue entries in one response."""

# Topics and groups ------------------------------------------------------------------------------

_TOPIC = {"attributes": {}, "order": False, "perm": 6, "readQueueNums": 0,
          "topicFilterType": "SINGLE_TAG", "topicName": "", "topicSysFlag": 0, "writeQueueNums": 0}
_GROUP = {"attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
          "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15,
          "groupName": "", "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True,
          "retryMaxTimes": 16, "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1}


def _filled(given: Any, defaults: Mapping[str, Any], **overrides: Any) -> dict[str, Any]:
    """Return the configuration of a topic or group with exactly the fields in ``defaults``.

    A field that is missing in ``given``, or has a wrong type, gets its default.
    """
    entry = given if isinstance(given, dict) else {}
    return {name: entry[name] if type(entry.get(name)) is type(value) else value
            for name, value in {**defaults, **overrides}.items()}


def _table(broker: Broker, file: str, name: str) -> dict[str, Any]:
    config = broker.source.config(file)
    value = None if config is None else config.value
    table = value.get(name) if isinstance(value, dict) else None
    return table if isinstance(table, dict) else {}


def _data_version(broker: Broker, file: str) -> dict[str, int]:
    config = broker.source.config(file)
    version = (None if config is None else config.data_version) or {}
    return {"counter": version.get("counter", 0), "stateVersion": version.get("state_version", 0),
            "timestamp": version.get("timestamp", 0)}


def _topic(broker: Broker, name: str, table: Mapping[str, Any]) -> dict[str, Any] | None:
    stored = broker.source.topics.get(name)
    config = stored or broker.topic(name)
    if config is None:
        return None
    return {**_filled(table.get(name), _TOPIC, readQueueNums=config.read_queues,
                      writeQueueNums=config.write_queues, perm=config.perm), "topicName": name}


def topics(broker: Broker, _call: Call) -> Response:
    """Answer with the configurations of all topics of the store."""
    table = _table(broker, "topics.json", "topicConfigTable")
    return json_response({"dataVersion": _data_version(broker, "topics.json"), "topicConfigTable": {
        name: _topic(broker, name, table) for name in broker.source.topics}})


def topic_config(broker: Broker, call: Call) -> Response:
    """Answer with the configuration of one topic."""
    name = call.fields["topic"]
    config = _topic(broker, name, _table(broker, "topics.json", "topicConfigTable"))
    if config is None:
        raise Failed(Status.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
    return json_response(config)


def _groups(broker: Broker) -> dict[str, dict[str, Any]]:
    """Return the configurations of all groups.

    A group that has consumer offsets or connected members, but no configuration, gets the default
    settings with which a broker would create it.
    """
    table = _table(broker, "subscriptionGroup.json", "subscriptionGroupTable")
    return {name: {**_filled(table.get(name), _GROUP), "groupName": name}
            for name in {**broker.source.groups, **broker.groups.consumers}}


def groups(broker: Broker, _call: Call) -> Response:
    """Answer with the configurations of all consumer groups of the store."""
    return json_response({"dataVersion": _data_version(broker, "subscriptionGroup.json"),
                          "forbiddenTable": {}, "subscriptionGroupTable": _groups(broker)})


def group_config(broker: Broker, call: Call) -> Response:
    """Answer with the configuration of one consumer group."""
    config = _groups(broker).get(call.fields["group"])
    if config is None:
        raise Failed(Status.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
    return json_response(config)


def broker_system_topics(broker: Broker, _call: Call) -> Response:
    """Answer with the system topics of a broker."""
    generation, cluster = broker.source.view.generation, broker.cluster.name
    return json_response({"topicList": sorted({
        *system_topics(generation, cluster), broker.name,
        *(name for name in broker.source.topics if is_system(name, generation, cluster))})})


# Consumer offsets -------------------------------------------------------------------------------


def consumer_offsets(broker: Broker, _call: Call) -> Response:
    """Answer with all consumer offsets: those committed to this server, and those in the store that
    no commit has replaced.
    """
    return json_response({"offsetTable": {
        f"{topic}@{group}": queues for group, topic, queues in broker.positions.all()}})


def _delay_offsets(broker: Broker) -> dict[int, int]:
    """Return, for each delay level, the queue offset before which its messages were delivered."""
    return {row["level"]: row["offset"] for row in broker.source.rows("delayOffset.json")}


def delay_offsets(broker: Broker, _call: Call) -> Response:
    """Answer with the progress of each delay level, as last written to the store."""
    return json_response({"offsetTable": {
        str(level): offset for level, offset in _delay_offsets(broker).items()}})


# Settings and figures ---------------------------------------------------------------------------


def _properties(values: Mapping[str, object]) -> Response:
    return Response({}, ("".join(f"{name}={value}\n" for name, value in values.items()).encode(
        "utf-8", "replace"),))


def _java(value: bool) -> str:
    return str(value).lower()


def broker_config(broker: Broker, _call: Call) -> Response:
    """Answer with the settings that a broker on this store would have.

    Some are determined from the store's files; all others are a broker's defaults. (The tool
    `exportConfigs` requests the settings.)
    """
    first = next(iter(broker.cluster.brokers.values()))
    store, writer = broker.source.store, broker.writer
    settings = resolve(store, {}).settings if writer is None else writer.settings
    response = _properties({
        "autoCreateSubscriptionGroup": _java(writer is None or writer.makes_groups),
        "autoCreateTopicEnable": _java(writer is not None and writer.topics.makes),
        "brokerClusterName": broker.cluster.name, "brokerIP1": broker.address.host, "brokerId": 0,
        "brokerName": broker.name, "brokerPermission": READ | WRITE * broker.is_writable,
        "brokerRole": settings.role, "enablePropertyFilter": "true",
        "fileReservedTime": rules_of(store)[1].reserved_hours, "filterServerNums": 0,
        "flushDiskType": f"{settings.flush.upper()}_FLUSH",
        "listenPort": broker.address.port, "mappedFileSizeCommitLog": settings.commitlog_file_size,
        "mappedFileSizeConsumeQueue": settings.consumequeue_file_size,
        "maxHashSlotNum": settings.index_slots, "maxIndexNum": settings.index_max,
        "maxMessageSize": settings.max_message_size,
        "messageDelayLevel": settings.message_delay_level,
        "messageIndexEnable": _java(settings.message_index),
        "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC", "namesrvAddr": first.address,
        "slaveReadEnable": "false", "storePathCommitLog": next(iter(store.log_folders), ""),
        "storePathRootDir": store.root, "traceOn": "true", "traceTopicEnable": "false",
        "useTLS": "false"})
    response.ext = {"version": '{"counter":0,"timestamp":0}'}
    return response


def namesrv_config(broker: Broker, _call: Call) -> Response:
    """Answer with the name server's settings."""
    return _properties({"listenPort": broker.address.port})


def _disk_ratio(path: str) -> float:
    """Return the used share (0 to 1) of a file system as a broker computes it; -1 if unknown.

    The share is relative to the space not reserved for root, and rounded up to whole percents.
    """
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1.0
    room = usage.used + usage.free
    return -(-100 * usage.used // room) / 100 if room else -1.0


def runtime_info(broker: Broker, _call: Call) -> Response:
    """Answer with statistics of the broker since the server started.

    All rates cover the last minute, even in fields for longer periods. Request queues are reported
    as empty.
    """
    # Counts, rates, and how full the disks are.
    source, sums = broker.source, broker.sums
    seconds = max(int(time.time() - broker.started), 1)
    put, delivered = sum(broker.received.values()), sum(broker.delivered.values())
    puts = f"{sums.rate(put, lambda before: sum(before.put.values())):.2f}"
    gets = f"{sums.rate(delivered, lambda before: sum(before.got.values())):.2f}"
    (put_yesterday, got_yesterday), (put_today, got_today) = sums.mornings
    ratio = {"commitLogDiskRatio": _disk_ratio(source.store.log_folders[0]
                                               if source.store.log_folders else source.store.root),
             "consumeQueueDiskRatio": _disk_ratio(source.store.root)}
    earliest, log_end = source.log_bounds
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    no, none = "0", "0.0 0.0 0.0"
    # Add the other fields of a broker's response; no requests are queued here.
    return json_response({"table": {
        "bootTimestamp": str(int(broker.started * 1000)),
        "runtime": f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]",
        "brokerActive": "true", "brokerVersion": str(VERSION), "brokerVersionDesc": _VERSION_NAME,
        "putTps": f"{puts} {puts} {puts}", "getMissTps": none, "putMessageAverageSize": "0.0",
        **dict.fromkeys(("getFoundTps", "getTotalTps", "getTransferedTps", "getTransferredTps"),
                        f"{gets} {gets} {gets}"),
        "msgPutTotalYesterdayMorning": str(put_yesterday),
        "msgPutTotalTodayMorning": str(put_today), "msgPutTotalTodayNow": str(put),
        "msgGetTotalYesterdayMorning": str(got_yesterday),
        "msgGetTotalTodayMorning": str(got_today), "msgGetTotalTodayNow": str(delivered),
        "commitLogMinOffset": str(source.store.log.min_offset), "commitLogMaxOffset": str(log_end),
        "earliestMessageTimeStamp": str(earliest),
        "dispatchBehindBytes": no, "pageCacheLockTimeMills": no,
        "sendThreadPoolQueueSize": no, "sendThreadPoolQueueHeadWaitTimeMills": no,
        "pullThreadPoolQueueSize": no, "pullThreadPoolQueueHeadWaitTimeMills": no,
        "queryThreadPoolQueueSize": no, "queryThreadPoolQueueHeadWaitTimeMills": no,
        "timerReadBehind": no, "timerOffsetBehind": no, "timerCongestNum": no,
        "timerEnqueueTps": "0.0", "timerDequeueTps": "0.0",
        **{name: str(value) for name, value in ratio.items()},
        **{f"scheduleMessageOffset_{level}":
           f"{offset},{broker.queue(SCHEDULE_TOPIC, level - 1).end}"
           for level, offset in _delay_offsets(broker).items()},
    }})


def ha_status(broker: Broker, _call: Call) -> Response:
    """Answer with the replication status of a master without slaves."""
    return json_response({
        "master": True, "masterCommitLogMaxOffset": broker.source.log_bounds[1],
        "inSyncSlaveNums": 0, "haConnectionInfo": [],
        "haClientRuntimeInfo": {"masterAddr": "", "transferredByteInSecond": 0, "maxOffset": 0,
                                "lastReadTimestamp": 0, "lastWriteTimestamp": 0,
                                "masterFlushOffset": 0, "isActivated": False}})


def cold_data(_broker: Broker, _call: Call) -> Response:
    """Answer with empty statistics: the server does not count or throttle reads of cold data."""
    return json_response({"runtimeTable": {}, "configTable": {}, "globalAcc": 0,
                          "cgColdReadThreshold": 3 << 20, "globalColdReadThreshold": 100 << 20})


def stats(broker: Broker, call: Call) -> Response:
    """Answer with the number of messages in the last minute, hour and day.

    The messages are those sent to a topic, or delivered to a group (``TOPIC@GROUP``). Raises:
    Failed for other statistics and, like a broker, if there were no messages.
    """
    kind, key = call.fields["statsName"], call.fields["statsKey"]
    if kind == "TOPIC_PUT_NUMS" and key in broker.received:
        return json_response(broker.sums.of(
            broker.received[key], lambda before: before.put.get(key, 0)))
    topic, _, group = key.partition("@")
    if kind == "GROUP_GET_NUMS" and (group, topic) in broker.delivered:
        return json_response(broker.sums.of(
            broker.delivered[group, topic], lambda before: before.got.get((group, topic), 0)))
    raise Failed(Status.SYSTEM_ERROR, f"The stats <{kind}> <{key}> not exist")


# Consume queue entries --------------------------------------------------------------------------


def queue_rows(broker: Broker, call: Call) -> Response:
    """Answer with entries of a plain consume queue, as they are stored on disk."""
    # Find the queue, with the entries of messages just sent.
    wanted = call.fields
    name, queue_id = wanted["topic"], wanted["queueId"]
    if broker.writer is not None:
        broker.writer.settle_now()
    exists = broker.topic(name) is not None and queue_id >= 0
    queue = broker.source.store.queues.find(name, queue_id) if exists else None
    if queue is None or not queue.exists:
        raise Failed(Status.SYSTEM_ERROR, f"{queue_id}@{name} is not exist!")
    bounds = broker.queue(name, queue_id)
    body: dict[str, Any] = {"maxQueueIndex": bounds.end, "minQueueIndex": bounds.first}
    # Add the group's subscription, if a group is named.
    group = wanted["consumerGroup"]
    if group:
        subscribed = broker.groups.consumers.get(group)
        subscription = None if subscribed is None else subscribed.subscriptions.get(name)
        if subscription is None:
            body["filterData"] = f"{group}@{name} is not online!"
        else:
            body["subscriptionData"] = subscription.as_dict()
    # Add the entries from the index on.
    index = wanted["index"]
    if not bounds.first <= index < bounds.end:
        response = json_response(body)
        response.remark = f"Index {index} of {queue_id}@{name} is not exist!"
        return response
    count = min(max(wanted["count"], 0), MAX_ROWS, bounds.end - index)
    try:
        units = queue.units(index, count)
    finally:
        queue.close()
    body["queueData"] = [_row(*row) for row in zip(
        *(units[column].tolist() for column in ("physical_offset", "size", "tags_code")),
        strict=True)]
    return json_response(body)


def _row(physical: int, size: int, tags: int) -> dict[str, Any]:
    row: dict[str, Any] = {"eval": False, "physicOffset": physical, "physicSize": size,
                           "tagsCode": tags}
    if is_address(tags):
        row["msg"] = "the tags code is in consumequeue_ext"
    return row


HANDLERS: Table = {
    "GET_ALL_TOPIC_CONFIG": topics,
    "GET_TOPIC_CONFIG": topic_config,
    "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": groups,
    "GET_SUBSCRIPTIONGROUP_CONFIG": group_config,
    "GET_SYSTEM_TOPIC_LIST_FROM_BROKER": broker_system_topics,
    "GET_ALL_CONSUMER_OFFSET": consumer_offsets,
    "GET_ALL_DELAY_OFFSET": delay_offsets,
    "GET_BROKER_CONFIG": broker_config,
    "GET_NAMESRV_CONFIG": namesrv_config,
    "GET_BROKER_RUNTIME_INFO": runtime_info,
    "GET_BROKER_HA_STATUS": ha_status,
    "GET_COLD_DATA_FLOW_CTR_INFO": cold_data,
    "VIEW_BROKER_STATS_DATA": stats,
    "QUERY_CONSUME_QUEUE": queue_rows,
}
