"""Backups of a store that `serve --writable` writes to, with runs that are killed at any time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from rmqctl import api
from rmqctl.errors import RmqctlError
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.parse_values import parse_address
from rmqctl.testing import RocketMQ
from tests.conftest import Runner

QUEUES, GROUP = 4, "readers"


class Served(RocketMQ):
    """A store at a path, served writable; `kill` ends it as a machine that goes down."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.store = store

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rmqctl", "serve", str(self.store), "--writable",
             "--listen", "127.0.0.1:0", "-o", "jsonl"], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["ready"]
        return self

    def close(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Load:
    """Sends numbered messages to a topic, and commits some of them as consumed."""

    def __init__(self, server: Served, topic: str) -> None:
        self.server, self.topic, self.acked = server, topic, defaultdict[int, list[bytes]](list)
        self.committed: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number, wide = 0, random.Random(1)
        address = parse_address(self.server.address)
        with suppress(OSError, EOFError, RmqctlError), Client(address) as client:
            while not self._stop.is_set():
                queue, body = number % QUEUES, b"%d " % number + b"x" * wide.randrange(3000)
                answer = client.ask(
                    "SEND_MESSAGE", body, producerGroup="p", topic=self.topic,
                    defaultTopic="TBW102", defaultTopicQueueNums=QUEUES, queueId=queue, sysFlag=0,
                    bornTimestamp=0, flag=0, properties="", reconsumeTimes=0,
                    unitMode=False)
                assert answer.code == 0
                self.acked[queue].append(body)
                if number % 7 == 0:
                    done = len(self.acked[queue])
                    client.ask("UPDATE_CONSUMER_OFFSET", consumerGroup=GROUP, topic=self.topic,
                               queueId=queue, commitOffset=done)
                    self.committed[queue] = done
                number += 1

    def sent(self) -> dict[int, int]:
        """How many messages each queue has by now, at least."""
        return {queue: len(self.acked[queue]) for queue in range(QUEUES)}


def backed_up(store: Path, dest: str, killed_after: float | None) -> bool:
    """Run a backup, which may be killed; whether it noted a restore point."""
    before = points_in(dest)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rmqctl", "backup", str(store), dest, "-o", "json"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=killed_after)
        assert process.returncode == 0, errors.decode()
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    return points_in(dest) > before


def points_in(dest: str) -> int:
    folder, names = Path(dest.removeprefix("file://")), ("points/*.json" if "://" in dest else
                                                         ".rmqctl/backup/points/*/point.json")
    return len(list(folder.glob(names)))


def bodies(store: Path, topic: str) -> dict[int, list[bytes]]:
    with api.open(store) as opened:
        bodies_by_number: dict[int, list[bytes]] = defaultdict(list)
        for message in opened.messages(topic=topic):
            bodies_by_number[message["queue_id"]].append(bytes(message["body"]))
        return bodies_by_number


def offsets(store: Path, topic: str) -> dict[int, int]:
    path = store / "config" / "consumerOffset.json"
    table: dict[str, Any] = json.loads(path.read_text())["offsetTable"] if path.exists() else {}
    return {int(queue): at for queue, at in table.get(f"{topic}@{GROUP}", {}).items()}


@pytest.fixture(params=["folder", "file:"])
def dest(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    return str(tmp_path / "backup") if request.param == "folder" else f"file://{tmp_path}/backup"


@pytest.mark.exhaustive
def test_each_point_is_a_moment_of_the_broker(dest: str, tmp_path: Path, rmqctl: Runner,
                                              seed: int) -> None:
    store, chance = tmp_path / "store", random.Random(seed)
    rmqctl("init", store, "--commitlog-file-size", "256KiB", "--consumequeue-file-size",
           "2000").expect(0)
    before: list[dict[int, int]] = []
    with Served(store) as server:
        server.topic("T", QUEUES)
        with Load(server, "T") as load:
            end = time.monotonic() + 12
            while time.monotonic() < end:
                sent = load.sent()
                if backed_up(store, dest, chance.choice([None, chance.uniform(0.2, 0.7)])):
                    before.append(sent)
            server.kill()
        acked = load.acked
    assert backed_up(store, dest, None)
    before.append({queue: len(some) for queue, some in acked.items()})
    points = json.loads(rmqctl("backup", "list", dest, "-o", "json").expect(0).out)["points"]
    assert len(points) == len(before) > 3
    rmqctl("backup", "check", dest).expect(0)
    for number in {len(points) - 1, *chance.sample(range(len(points)), 3)}:
        path = tmp_path / f"restored-{number}"
        rmqctl("restore", dest, path, "--point", points[number]["point"]).expect(0)
        rmqctl("preflight", path).expect(0)
        listed_bodies, at = bodies(path, "T"), offsets(path, "T")
        for queue, some in acked.items():
            # What was acknowledged before the run is there; nothing twice, nothing else.
            assert len(listed_bodies[queue]) >= before[number][queue]
            assert listed_bodies[queue][:len(some)] == some[:len(listed_bodies[queue])]
            assert at.get(queue, 0) <= len(listed_bodies[queue])
        # A client that goes on from the group's offsets gets all that it had not consumed.
        with Served(path) as again:
            drained = again._messages("T", {queue: at.get(queue, 0) for queue in range(QUEUES)})
        got: dict[int, list[bytes]] = defaultdict(list)
        for message in drained:
            got[message.queue_id].append(message.body)
        for queue, some in listed_bodies.items():
            assert got[queue] == some[at.get(queue, 0):]
