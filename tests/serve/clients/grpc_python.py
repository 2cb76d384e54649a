"""The official 5.x client: ``grpc_python.py ENDPOINT TOPIC MODE GROUP``, a JSON line for each
message.
"""

import json
import os
import sys
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

endpoint, topic, mode, group = sys.argv[1:5]
settings = ClientConfiguration(endpoint, Credentials())
end = time.monotonic() + 60


def say(value: dict) -> None:
    os.write(1, f"{json.dumps(value)}\n".encode())  # at once: the client calls from several threads


def show(message: Message) -> None:
    say({"id": message.message_id, "body": bytes(message.body).hex(), "tag": message.tag,
         "attempt": message.delivery_attempt, "group": message.message_group,
         "bad": bool(message.corrupted)})


def goes_on() -> bool:
    return time.monotonic() < end and not os.path.exists(os.environ["STOP"])


def simple() -> None:
    """Without acks a message is hidden for the shortest time there is."""
    consumer = SimpleConsumer(settings, group, {topic: FilterExpression()}, 1)
    consumer.startup()
    while goes_on():
        for message in consumer.receive(32, 10):
            show(message)
            if mode != "again" or message.delivery_attempt > 1:
                consumer.ack(message)
    consumer.shutdown()


class Listener(MessageListener):
    failed = 0

    def consume(self, message: Message) -> ConsumeResult:
        show(message)
        if mode == "retry" and message.delivery_attempt == 1 and self.failed < 2:
            self.failed += 1
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


def push() -> None:
    consumer = PushConsumer(settings, group, Listener(), {topic: FilterExpression()})
    consumer.startup()
    while goes_on():
        time.sleep(0.05)
    consumer.shutdown()


class Checker(TransactionChecker):
    def check(self, _message: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT


def message_of(text: str) -> Message:
    message = Message()
    message.topic, message.body, message.tag, message.keys = topic, text.encode(), "TagA", "key"
    return message


def send() -> None:
    producer = Producer(settings, (topic,), Checker())
    producer.startup()
    try:
        producer.send(message_of("hello"))
        for number in range(3):
            message = message_of(f"ordered {number}")
            message.message_group = "M"
            producer.send(message)
        message = message_of("delayed")
        message.delivery_timestamp = int(time.time()) + 1
        producer.send(message)
        for text in ("commit", "rollback"):
            transaction = producer.begin_transaction()
            producer.send(message_of(text), transaction)
            getattr(transaction, text)()
        say({"sent": True})
    except Exception as error:  # noqa: BLE001 - of any kind
        say({"refused": str(error)})
    producer.shutdown()


def table() -> None:
    """The messages of the service: name to fields, each with its number, kind and whether there
    may be many of it.
    """
    from rocketmq.grpc_protocol import definition_pb2, service_pb2

    for file in (definition_pb2, service_pb2):
        for message in file.DESCRIPTOR.message_types_by_name.values():
            say({"name": message.name, "fields": {
                attribute.name: [attribute.number, "int" if attribute.enum_type
                                 else attribute.message_type.name
                                 if attribute.message_type
                                 else attribute.type, attribute.is_repeated]
                for attribute in message.fields}})


{"send": send, "push": push, "retry": push, "table": table}.get(mode, simple)()
os._exit(0)  # its threads would keep it alive
