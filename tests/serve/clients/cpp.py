"""The C++ client: ``cpp.py NAMESERVER TOPIC MODE GROUP``, a JSON line for each message."""

import json
import os
import sys
import time

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer

server, topic, mode, group = sys.argv[1:5]
seconds = 60.0


def show(message: object) -> None:
    line = json.dumps({"queue_id": message.queue_id, "queue_offset": message.queue_offset,
                       "body": bytes(message.body).hex()})
    os.write(1, f"{line}\n".encode())  # at once: the client calls from several threads


def sign(client: object) -> None:
    if "ACCESS_KEY" in os.environ:
        client.set_session_credentials(os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"], "ALIYUN")


def pull() -> None:
    consumer = PullConsumer(group)
    sign(consumer)
    consumer.set_namesrv_addr(server)
    consumer.start()
    for message in consumer.pull(topic):
        show(message)
    consumer.shutdown()


def push() -> None:
    consumer = PushConsumer(group)
    sign(consumer)
    consumer.set_namesrv_addr(server)
    consumer.subscribe(topic, show, "*")
    consumer.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists(os.environ["STOP"]):
        time.sleep(0.05)
    consumer.shutdown()


def send() -> None:
    producer = Producer(group)
    sign(producer)
    producer.set_namesrv_addr(server)
    producer.start()
    message = Message(topic)
    message.set_keys("key")
    message.set_tags("TagA")
    message.set_body("hello")
    try:
        print(json.dumps({"sent": str(producer.send_sync(message).status)}))
    except Exception as error:  # noqa: BLE001 - of any kind
        print(json.dumps({"refused": str(error)}))
    producer.shutdown()


{"pull": pull, "push": push, "send": send}[mode]()
