"""Handlers of requests to delete files.

`serve` deletes no files. If a broker would not delete any files either, the answer is success. If
it would, the request is rejected with a text that names the command to use.
"""

from __future__ import annotations

import os
from contextlib import closing
from shlex import quote

from rmqctl.engine.config.topics import is_system
from rmqctl.ext.serve.broker import Broker, Call, Response, Table
from rmqctl.ext.serve.remoting.codes import Failed, Status
from rmqctl.formats.local.properties import LMQ_PREFIX
from rmqctl.parse_values import now_ms
from rmqctl.repair.retention import expire_by_settings, rules_of
from rmqctl.store.store import Store

_POP_RECORDS = "kvStore"
_NAMED = 5
_MAX_QUEUES = 50_000


def expired_files(broker: Broker, _call: Call) -> Response:
    """Answer a request to delete expired log files."""
    with closing(_opened(broker)) as store:
        expiry = expire_by_settings(store, now_ms())
        hours = rules_of(store)[1].reserved_hours
    if expiry.plan.actions:
        raise Failed(Status.SYSTEM_ERROR, (
            f"{len(expiry.plan.actions)} files of {expiry.bytes} bytes have expired, and rmqctl "
            f"serve deletes no files. Stop it and type: rmqctl expire {_root(broker)} --older-than "
            f"{hours}h --apply"))
    return Response()


def expired_queues(broker: Broker, _call: Call) -> Response:
    """Answer a request to delete queues that contain only expired messages."""
    with closing(_opened(broker)) as store:
        queues = [f"{topic} (queue {queue_id})" for (topic, queue_id), queue in sorted(
            store.queues.readable.items()) if queue.exists and not _is_system(broker, topic)
            and queue.written and (last := queue.unit(queue.written - 1)) is not None
            and last.physical_offset < store.log.min_offset]
    if queues:
        raise Failed(Status.SYSTEM_ERROR, (
            f"{len(queues)} queues contain only expired messages: {_named(queues)}. rmqctl keeps "
            "these queues: without their last files, new messages would get queue offsets that "
            "were already used. A broker that runs on this store deletes them"))
    return Response()


def unused_topics(broker: Broker, _call: Call) -> Response:
    """Answer a request to delete topics that have queues but no configuration."""
    assert broker.writer is not None
    with closing(_opened(broker)) as store:
        topics = sorted({topic for topic, _ in (*store.queues.readable, *store.queues.batch)
                         if broker.writer.topics.get(topic) is None
                         and not _is_system(broker, topic) and not topic.startswith(LMQ_PREFIX)})
    if topics:
        raise Failed(Status.SYSTEM_ERROR, (
            f"{len(topics)} topics have queues but no configuration: {_named(topics)}. rmqctl "
            "serve does not delete these topics, but a broker that runs on this store does. To "
            "keep one, stop rmqctl serve and type: rmqctl topic create "
            f"{_root(broker)} {quote(topics[0])}"))
    return Response()


def pop_records(broker: Broker, _call: Call) -> Response:
    """Answer with the records of messages delivered by POP, which 5.4 brokers keep in RocksDB."""
    path = broker.source.store.path(_POP_RECORDS)
    if os.path.isdir(path) and os.listdir(path):
        raise Failed(Status.SYSTEM_ERROR, (
            f"{path} contains POP records, which rmqctl does not read. Run exportPopRecord against "
            "a broker on this store"))
    return Response()


def _opened(broker: Broker) -> Store:
    """Open the store in its current state. Raises: Failed if it has too many queues for one
    response.
    """
    store = broker.source.open_store()
    count = len(store.queues.readable) + len(store.queues.batch)
    if count > _MAX_QUEUES:
        store.close()
        raise Failed(Status.SYSTEM_ERROR, f"{count} queues are too many to check while clients are "
                     "served")
    return store


def _root(broker: Broker) -> str:
    return quote(broker.source.store.root)


def _is_system(broker: Broker, topic: str) -> bool:
    return is_system(topic, broker.source.view.generation, broker.cluster.name)


def _named(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + ", …" * (len(names) > _NAMED)


HANDLERS: Table = {
    "CLEAN_EXPIRED_CONSUMEQUEUE": expired_queues,
    "CLEAN_UNUSED_TOPIC": unused_topics,
    "DELETE_EXPIRED_COMMITLOG": expired_files,
    "POP_ROLLBACK": pop_records,
}
