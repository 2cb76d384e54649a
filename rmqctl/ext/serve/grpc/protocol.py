"""The protobuf messages of ``apache.rocketmq.v2`` as a table, and their classes.

Spec: remoting.md §7. Each line has the name of a message and its fields:

* ``name=number``: a text field
* ``name:kind=number``: any other field
* ``*`` before the kind: a repeated field
* ``?`` before the kind: an optional field

Enumerations are declared as numbers, as on the wire. The classes are in a separate descriptor pool
to avoid collisions with the classes of a client in the same process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"
_TABLE = """
Resource resource_namespace=1 name=2
Status code:int=1 message=2
FilterExpression type:int=1 expression=2
ExponentialBackoff initial:duration=1 max:duration=2 multiplier:float=3
CustomizedBackoff next:*duration=1
RetryPolicy max_attempts:int=1 exponential_backoff:ExponentialBackoff=2 \
   customized_backoff:CustomizedBackoff=3
SubscriptionEntry topic:Resource=1 expression:FilterExpression=2
Address host=1 port:int=2
Endpoints scheme:int=1 addresses:*Address=2
Broker name=1 id:int=2 endpoints:Endpoints=3
MessageQueue topic:Resource=1 id:int=2 permission:int=3 broker:Broker=4 \
   accept_message_types:*int=5
Digest type:int=1 checksum=2
DeadLetterQueue topic=1 message_id=2
SystemProperties tag:?text=1 keys:*text=2 message_id=3 body_digest:Digest=4 body_encoding:int=5 \
   message_type:int=6 born_timestamp:timestamp=7 born_host=8 store_timestamp:timestamp=9 \
   store_host=10 delivery_timestamp:timestamp=11 receipt_handle:?text=12 queue_id:int=13 \
   queue_offset:?long=14 invisible_duration:duration=15 delivery_attempt:?int=16 \
   message_group:?text=17 trace_context:?text=18 \
   orphaned_transaction_recovery_duration:duration=19 dead_letter_queue:DeadLetterQueue=20
Message topic:Resource=1 user_properties:texts=2 system_properties:SystemProperties=3 body:bytes=4
Assignment message_queue:MessageQueue=1
UA language:int=1 version=2 platform=3 hostname=4
Publishing topics:*Resource=1 max_body_size:int=2 validate_message_type:bool=3
Subscription group:Resource=1 subscriptions:*SubscriptionEntry=2 fifo:?bool=3 \
   receive_batch_size:?int=4 long_polling_timeout:duration=5
Metric on:bool=1 endpoints:Endpoints=2
Settings client_type:?int=1 access_point:Endpoints=2 backoff_policy:RetryPolicy=3 \
   request_timeout:duration=4 publishing:Publishing=5 subscription:Subscription=6 user_agent:UA=7 \
   metric:Metric=8
RecoverOrphanedTransactionCommand message:Message=1 transaction_id=2
TelemetryCommand status:Status=1 settings:Settings=2 \
   recover_orphaned_transaction_command:RecoverOrphanedTransactionCommand=5
QueryRouteRequest topic:Resource=1 endpoints:Endpoints=2
QueryRouteResponse status:Status=1 message_queues:*MessageQueue=2
QueryAssignmentRequest topic:Resource=1 group:Resource=2 endpoints:Endpoints=3
QueryAssignmentResponse status:Status=1 assignments:*Assignment=2
HeartbeatRequest group:Resource=1 client_type:int=2
HeartbeatResponse status:Status=1
NotifyClientTerminationRequest group:Resource=1
NotifyClientTerminationResponse status:Status=1
SendMessageRequest messages:*Message=1
SendResultEntry status:Status=1 message_id=2 transaction_id=3 offset:long=4 recall_handle=5
SendMessageResponse status:Status=1 entries:*SendResultEntry=2
EndTransactionRequest topic:Resource=1 message_id=2 transaction_id=3 resolution:int=4 source:int=5 \
   trace_context=6
EndTransactionResponse status:Status=1
RecallMessageRequest topic:Resource=1 recall_handle=2
RecallMessageResponse status:Status=1 message_id=2
ReceiveMessageRequest group:Resource=1 message_queue:MessageQueue=2 \
   filter_expression:FilterExpression=3 batch_size:int=4 invisible_duration:duration=5 \
   auto_renew:bool=6 long_polling_timeout:duration=7 attempt_id:?text=8
ReceiveMessageResponse status:Status=1 message:Message=2 delivery_timestamp:timestamp=3
AckMessageEntry message_id=1 receipt_handle=2
AckMessageRequest group:Resource=1 topic:Resource=2 entries:*AckMessageEntry=3
AckMessageResultEntry message_id=1 receipt_handle=2 status:Status=3
AckMessageResponse status:Status=1 entries:*AckMessageResultEntry=2
ChangeInvisibleDurationRequest group:Resource=1 topic:Resource=2 receipt_handle=3 \
   invisible_duration:duration=4 message_id=5
ChangeInvisibleDurationResponse status:Status=1 receipt_handle=2
ForwardMessageToDeadLetterQueueRequest group:Resource=1 topic:Resource=2 receipt_handle=3 \
   message_id=4 delivery_attempt:int=5 max_delivery_attempts:int=6
ForwardMessageToDeadLetterQueueResponse status:Status=1
SyncLiteSubscriptionRequest
SyncLiteSubscriptionResponse status:Status=1
"""


class Code(IntEnum):
    """The code of a response status."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    NOT_IMPLEMENTED = 50100
    MASTER_PERSISTENCE_TIMEOUT = 50401
    UNSUPPORTED = 50500


class Refused(Exception):  # noqa: N818 - it ends a request with a status, not an error
    """Raised to end a request with a status other than OK. ``text``: the reason."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {"text": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "int": _Field.TYPE_INT32,
          "long": _Field.TYPE_INT64, "bool": _Field.TYPE_BOOL, "float": _Field.TYPE_FLOAT}
_PROTOBUF_TYPES = {"duration": ".google.protobuf.Duration",
                   "timestamp": ".google.protobuf.Timestamp"}


def _add_field(message: Any, text: str) -> None:
    """Add a field, as declared in the table, to a message's descriptor."""
    head, _, number = text.partition("=")
    name, _, kind = head.partition(":")
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind == "texts":
        entry = message.nested_type.add(name="UserPropertiesEntry")
        entry.options.map_entry = True
        _add_field(entry, "key=1")
        _add_field(entry, "value=2")
        kind = f"*{message.name}.{entry.name}"
    if kind.startswith("*"):
        field.label, kind = _Field.LABEL_REPEATED, kind[1:]
    if kind.startswith("?"):
        field.proto3_optional, kind = True, kind[1:]
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    kind = kind or "text"
    if kind in _KINDS:
        field.type = _KINDS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = _PROTOBUF_TYPES.get(kind, f".{PACKAGE}.{kind}")


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3",
        dependency=[duration_pb2.DESCRIPTOR.name, timestamp_pb2.DESCRIPTOR.name])
    for line in _TABLE.strip().splitlines():
        name, *fields = line.split()
        message = file.message_type.add(name=name)
        for declaration in fields:
            _add_field(message, declaration)
    pool = DescriptorPool()
    for data in (duration_pb2.DESCRIPTOR.serialized_pb, timestamp_pb2.DESCRIPTOR.serialized_pb,
                 file.SerializeToString()):
        pool.AddSerializedFile(data)
    descriptor = pool.FindFileByName(file.name)
    return {name: GetMessageClass(kind) for name, kind in descriptor.message_types_by_name.items()}


MESSAGES = _classes()
"""The classes of the messages in the table, by message name."""


def status(code: Code, text: str | None = None) -> Any:
    """Return a Status message; the default of ``text`` is the name of the code."""
    return MESSAGES["Status"](code=code, message=code.name if text is None else text)


def response(method: str, code: Code = Code.OK, text: str | None = None, **fields: Any) -> Any:
    """Return the response message of a gRPC method."""
    return MESSAGES[f"{method}Response"](status=status(code, text), **fields)


def milliseconds(span: Any) -> int:
    """Convert a Duration or a Timestamp to milliseconds."""
    return int(span.seconds * 1000 + span.nanos // 1_000_000)


def span(ms: int) -> dict[str, int]:
    """Convert milliseconds to the fields of a Duration or a Timestamp."""
    return {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}
