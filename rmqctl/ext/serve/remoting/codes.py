"""The requests to a name server or a broker, as a table (spec: remoting.md §2, §3).

Each line has the code, the name and the fields of a request:

* ``name``: a text field
* ``name:int``, ``name:long``: a number
* ``name:bool``: a boolean
* ``!`` after a field: the field is required
* ``~`` before the name: the request changes more than consumer offsets
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import Annotated, Any

import msgspec

from rmqctl.lazy_dataclass import dataclass

_TABLE = """
10 ~SEND_MESSAGE producerGroup! topic! defaultTopic! defaultTopicQueueNums:int! queueId:int! \
   sysFlag:int! bornTimestamp:long! flag:int! properties reconsumeTimes:int unitMode:bool \
   maxReconsumeTimes:int batch:bool
11 PULL_MESSAGE consumerGroup! topic! queueId:int! queueOffset:long! maxMsgNums:int! sysFlag:int! \
   commitOffset:long suspendTimeoutMillis:long subscription subVersion:long expressionType \
   maxMsgBytes:int
12 QUERY_MESSAGE topic! key! maxNum:int! beginTimestamp:long! endTimestamp:long! _UNIQUE_KEY_QUERY
14 QUERY_CONSUMER_OFFSET consumerGroup! topic! queueId:int! setZeroIfNotFound:bool
15 UPDATE_CONSUMER_OFFSET consumerGroup! topic! queueId:int! commitOffset:long!
17 ~UPDATE_AND_CREATE_TOPIC topic! defaultTopic readQueueNums:int! writeQueueNums:int! perm:int! \
   topicFilterType topicSysFlag:int order:bool attributes
18 ~UPDATE_AND_CREATE_TOPIC_LIST
21 GET_ALL_TOPIC_CONFIG
25 ~UPDATE_BROKER_CONFIG
26 GET_BROKER_CONFIG
28 GET_BROKER_RUNTIME_INFO
29 SEARCH_OFFSET_BY_TIMESTAMP topic! queueId:int! timestamp:long! boundaryType
30 GET_MAX_OFFSET topic! queueId:int!
31 GET_MIN_OFFSET topic! queueId:int!
32 GET_EARLIEST_MSG_STORETIME topic! queueId:int!
33 VIEW_MESSAGE_BY_ID offset:long! topic
34 HEART_BEAT
35 UNREGISTER_CLIENT clientID! producerGroup consumerGroup
36 CONSUMER_SEND_MSG_BACK offset:long! group! delayLevel:int! originMsgId originTopic \
   unitMode:bool maxReconsumeTimes:int
37 ~END_TRANSACTION producerGroup! tranStateTableOffset:long! commitLogOffset:long! \
   commitOrRollback:int! fromTransactionCheck:bool msgId! transactionId topic
38 GET_CONSUMER_LIST_BY_GROUP consumerGroup!
41 LOCK_BATCH_MQ
42 UNLOCK_BATCH_MQ
43 GET_ALL_CONSUMER_OFFSET
45 GET_ALL_DELAY_OFFSET
46 CHECK_CLIENT_CONFIG
100 ~PUT_KV_CONFIG namespace! key! value!
101 GET_KV_CONFIG namespace! key!
102 ~DELETE_KV_CONFIG namespace! key!
105 GET_ROUTEINFO_BY_TOPIC topic!
106 GET_BROKER_CLUSTER_INFO
200 ~UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG
202 GET_TOPIC_STATS_INFO topic!
203 GET_CONSUMER_CONNECTION_LIST consumerGroup!
204 GET_PRODUCER_CONNECTION_LIST producerGroup!
205 ~WIPE_WRITE_PERM_OF_BROKER brokerName!
206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER
207 ~DELETE_SUBSCRIPTIONGROUP groupName! removeOffset:bool cleanOffset:bool
208 GET_CONSUME_STATS consumerGroup! topic
215 ~DELETE_TOPIC_IN_BROKER topic!
216 ~DELETE_TOPIC_IN_NAMESRV topic!
219 GET_KVLIST_BY_NAMESPACE namespace!
222 INVOKE_BROKER_TO_RESET_OFFSET topic! group! timestamp:long! isForce:bool queueId:int \
   offset:long
223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS topic! group! clientAddr
224 GET_TOPICS_BY_CLUSTER cluster!
225 ~UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
300 QUERY_TOPIC_CONSUME_BY_WHO topic!
303 QUERY_CONSUME_TIME_SPAN topic! group!
304 GET_SYSTEM_TOPIC_LIST_FROM_NS
305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER
306 ~CLEAN_EXPIRED_CONSUMEQUEUE
307 GET_CONSUMER_RUNNING_INFO consumerGroup! clientId! jstackEnable:bool
308 QUERY_CORRECTION_OFFSET filterGroups compareGroup! topic!
309 CONSUME_MESSAGE_DIRECTLY consumerGroup! clientId msgId brokerName
310 ~SEND_MESSAGE_V2 a! b! c! d:int! e:int! f:int! g:long! h:int! i j:int k:bool l:int m:bool n
311 GET_UNIT_TOPIC_LIST
312 GET_HAS_UNIT_SUB_TOPIC_LIST
313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
314 CLONE_GROUP_OFFSET srcGroup! destGroup! topic offline:bool
315 VIEW_BROKER_STATS_DATA statsName! statsKey!
316 ~CLEAN_UNUSED_TOPIC
317 GET_BROKER_CONSUME_STATS isOrder:bool
318 ~UPDATE_NAMESRV_CONFIG
319 GET_NAMESRV_CONFIG
320 ~SEND_BATCH_MESSAGE a! b! c! d:int! e:int! f:int! g:long! h:int! i j:int k:bool l:int m:bool n
321 QUERY_CONSUME_QUEUE topic! queueId:int! index:long! count:int! consumerGroup
324 ~SEND_REPLY_MESSAGE producerGroup! topic! defaultTopic! defaultTopicQueueNums:int! \
   queueId:int! sysFlag:int! bornTimestamp:long! flag:int! properties reconsumeTimes:int \
   unitMode:bool maxReconsumeTimes:int batch:bool
325 ~SEND_REPLY_MESSAGE_V2 a! b! c! d:int! e:int! f:int! g:long! h:int! i j:int k:bool l:int \
   m:bool n
327 ~ADD_WRITE_PERM_OF_BROKER brokerName!
328 GET_ALL_PRODUCER_INFO
329 ~DELETE_EXPIRED_COMMITLOG
343 QUERY_TOPICS_BY_CONSUMER group!
345 QUERY_SUBSCRIPTION_BY_CONSUMER group! topic!
351 GET_TOPIC_CONFIG topic!
352 GET_SUBSCRIPTIONGROUP_CONFIG group!
361 LITE_PULL_MESSAGE consumerGroup! topic! queueId:int! queueOffset:long! maxMsgNums:int! \
   sysFlag:int! commitOffset:long suspendTimeoutMillis:long subscription subVersion:long \
   expressionType maxMsgBytes:int
370 ~RECALL_MESSAGE producerGroup topic! recallHandle!
400 QUERY_ASSIGNMENT
401 SET_MESSAGE_REQUEST_MODE
907 GET_BROKER_HA_STATUS
2003 GET_COLD_DATA_FLOW_CTR_INFO
200050 POP_MESSAGE consumerGroup! topic! queueId:int! maxMsgNums:int! invisibleTime:long! \
   pollTime:long! bornTime:long! initMode:int! expType exp order:bool attemptId
200051 ACK_MESSAGE consumerGroup! topic! queueId:int! extraInfo! offset:long!
200053 CHANGE_MESSAGE_INVISIBLETIME consumerGroup! topic! queueId:int! extraInfo! offset:long! \
   invisibleTime:long!
200054 NOTIFICATION consumerGroup! topic! queueId:int! pollTime:long! bornTime:long! order:bool \
   attemptId
200055 POLLING_INFO consumerGroup! topic! queueId:int!
200056 ~POP_ROLLBACK
200151 BATCH_ACK_MESSAGE
"""

_SEND_V2 = dict(zip("abcdefghijklm", (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
    "batch"), strict=True))
"""The full names of the one-letter fields of `SEND_MESSAGE_V2` and similar requests."""

NOTIFY_CONSUMER_IDS_CHANGED = 40
CHECK_TRANSACTION_STATE = 39
RESET_CONSUMER_CLIENT_OFFSET = 220
GET_CONSUMER_STATUS_FROM_CLIENT = 221
PUSH_REPLY_MESSAGE_TO_CLIENT = 326


class Status(IntEnum):
    """The status code of a response."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    ILLEGAL_OPERATION = 604


class Failed(Exception):  # noqa: N818 - it ends a request with a response, not an error
    """Raised to end a request with a status code; ``remark``: the reason."""

    def __init__(self, status: int, remark: str) -> None:
        super().__init__(remark)
        self.status, self.remark = int(status), remark


_INT, _LONG = 1 << 31, 1 << 63
_KINDS = {"text": str, "bool": bool, "int": Annotated[int, msgspec.Meta(ge=-_INT, lt=_INT)],
          "long": Annotated[int, msgspec.Meta(ge=-_LONG, le=_LONG - 1)]}


@dataclass(frozen=True)
class RequestCode:
    """A request in the table.

    ``fields``: for each header field, its kind and whether the field is required. ``long``: the
    full names of one-letter fields.
    """

    code: int
    name: str
    changes: bool
    fields: Mapping[str, tuple[str, bool]]
    long: Mapping[str, str]

    @cached_property
    def form(self) -> type[msgspec.Struct]:
        """A class for the header fields of the request, in the form that most clients write."""
        fields: list[tuple[str, Any, Any]] = []
        for name, (kind, required) in self.fields.items():
            of_kind = _KINDS[kind]
            fields.append((self.long.get(name, name), of_kind, msgspec.NODEFAULT) if required else
                          (self.long.get(name, name), of_kind | None, None))  # type: ignore[operator]
        short = {long: name for name, long in self.long.items()}
        return msgspec.defstruct(self.name, fields, kw_only=True, gc=False,
                                 rename=lambda name: short.get(name, name))

    def read(self, ext: Mapping[str, str]) -> dict[str, Any]:
        """Return the header fields of a request by full name, converted to their kinds.

        Missing fields are None. Raises: Failed for an invalid value. Fields other than
        ``properties`` must not contain unpaired surrogates, which are valid in JSON, but not in
        UTF-8.
        """
        for name, text in ext.items():
            if not text.isascii() and self.long.get(name, name) != "properties" and (
                    _SURROGATE.search(text)):
                raise Failed(Status.SYSTEM_ERROR, f"the custom field <{name}> contains an unpaired "
                             "surrogate")
        try:
            return msgspec.structs.asdict(msgspec.convert(ext, self.form, strict=False))
        except msgspec.ValidationError:
            return self._read(ext)

    def _read(self, ext: Mapping[str, str]) -> dict[str, Any]:
        """Convert the fields one by one: this finds the invalid field, and accepts more texts as
        booleans.
        Raises: Failed.
        """
        values: dict[str, Any] = {}
        for name, (kind, required) in self.fields.items():
            text = ext.get(name)
            value: Any = None
            if text is None:
                if required:
                    raise Failed(Status.SYSTEM_ERROR, f"the custom field <{name}> is null")
            elif kind == "text":
                value = text
            elif kind == "bool":
                value = text.lower() in ("true", "1")
            else:
                value = _number(name, text, _INT if kind == "int" else _LONG)
            values[self.long.get(name, name)] = value
        return values


_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGITS = re.compile(r"[-+]?[0-9]{1,19}")


def _number(name: str, text: str, limit: int) -> int:
    value = int(text) if _DIGITS.fullmatch(text) else None
    if value is None or not -limit <= value < limit:
        raise Failed(Status.SYSTEM_ERROR, f"the custom field <{name}> is not a "
                     f"{limit.bit_length()}-bit number: {text[:40]}")
    return value


def _requests() -> dict[int, RequestCode]:
    table = {}
    for line in _TABLE.strip().splitlines():
        code, name, *fields = line.split()
        read = {}
        for declaration in fields:
            field, _, kind = declaration.rstrip("!").partition(":")
            read[field] = kind or "text", declaration.endswith("!")
        table[int(code)] = RequestCode(int(code), name.lstrip("~"), name.startswith("~"), read,
                                       _SEND_V2 if "a" in read else {})
    return table


REQUESTS = _requests()
CODE_OF = {request.name: code for code, request in REQUESTS.items()}
