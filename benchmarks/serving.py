"""Pulls from a served store, and sends to one: a client of ours in processes of its own.

    python -m benchmarks.serving --dir DIR [--clients 2] [--seconds 4] [--write-results]

Each client pulls 32 messages at a time from queues of its own, over and over, or sends bodies of
1 KiB; all over loopback, the stores in the page cache. The server keeps all messages of two queues
at hand, of more it reads them again and again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT
from benchmarks.results import machine, publish
from benchmarks.run import prepare, warm
from rmqctl.parse_values import Address, parse_address
from rmqctl.remoting.client import Client
from rmqctl.remoting.command import Command, write_command
from rmqctl.remoting.frame import HEAD_SIZE, frame_head

MARK = "\n## Serving\n"
BODY = bytes(range(256)) * 4
MOST = 32
CONNECTIONS = 4
"""Of each pulling client, with a pull under way on each."""
PULL, SEND = 11, 310
SENT = "KEYS\x01k\x02UNIQ_KEY\x017F0000010A2118B4AAC2123456780000\x02WAIT\x01true\x02TAGS\x01A"
"""Properties as a Java client sends them."""
MARKED = "123456789"
NEXT = b'"nextBeginOffset":"'
Queue = tuple[str, int, int]
"""Topic, queue id, and the queue offset behind its last message."""


@contextmanager
def served(*args: str) -> Iterator[tuple[Address, int]]:
    """(address, process id) of a server that ends with the block."""
    command = [sys.executable, "-m", "rmqctl", "serve", *args, "--listen", "127.0.0.1:0", "-o",
               "jsonl"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield parse_address(json.loads(process.stdout.readline())["ready"]), process.pid
        process.terminate()


def queues_of(address: Address) -> list[Queue]:
    """The queues with messages enough for several pulls, the longest first."""
    found: list[Queue] = []
    with Client(address) as client:
        for topic in client.ask("GET_ALL_TOPIC_LIST_FROM_NAMESERVER").json()["topicList"]:
            route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=topic)
            for queue_id in range(route.json()["queueDatas"][0]["readQueueNums"]
                                  if route.code == 0 else 0):
                end = int(client.ask("GET_MAX_OFFSET", topic=topic,
                                     queueId=queue_id).ext["offset"])
                found += [(topic, queue_id, end)] * (end > 2 * MOST)
    return sorted(found, key=lambda queue: -queue[2])


class Requests:
    """One connection with a request under way; as little work as possible for each, since clients
    run on the same cores: requests are encoded once, and of an answer only its length, its code
    and where to go on are looked at.
    """

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection((address.host, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(8 << 20)
        self._view = memoryview(self._buffer)
        self._have = 0

    def send(self, requests: bytes) -> None:
        self._socket.sendall(requests)

    def answer(self) -> tuple[bytes, int]:
        """(header, bytes of the body) of the next response, which must be one of success."""
        while self._have < HEAD_SIZE or self._have < (size := self._size(0)):
            count = self._socket.recv_into(self._view[self._have:])
            assert count
            self._have += count
        header = bytes(self._view[HEAD_SIZE:HEAD_SIZE + self._size(HEAD_SIZE // 2) - 4])
        assert b'"code":0,' in header, header
        if self._have > size:
            self._view[:self._have - size] = self._buffer[size:self._have]
        self._have -= size
        return header, size - HEAD_SIZE - len(header)

    def _size(self, at: int) -> int:
        """Bytes that a length stands for, with its own."""
        return 4 + int.from_bytes(self._view[at:at + 4], "big")


def pull_all(address: Address, queues: list[Queue], seconds: float, pause: float,
             connections: int = 1) -> Iterator[tuple[int, int, float]]:
    """(messages, bytes, seconds) of each round, queue by queue, until the time is over: in a round
    each connection pulls once.
    """
    opened = [Requests(address) for _ in range(connections)]
    places = [0] * len(queues)
    # Of a header only the offset changes.
    encoded = [write_command(Command(PULL, 0, 0, {
        "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": MARKED,
        "maxMsgNums": str(MOST), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0"}))[HEAD_SIZE:].split(MARKED.encode())
        for topic, queue_id, _ in queues]
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        begun = time.perf_counter()
        asked = []
        for requests in opened:
            number = (number + 1) % len(queues)
            offset = places[number]
            first, last = encoded[number]
            header = b"%b%d%b" % (first, offset, last)
            requests.send(frame_head(header, 0))
            asked.append((requests, offset))
            # Where the answer will lead to, if this queue's turn is again before it comes.
            places[number] = offset + MOST if offset + MOST < queues[number][2] else 0
        messages = size = 0
        for requests, offset in asked:
            header, length = requests.answer()
            at = header.index(NEXT) + len(NEXT)
            following = int(header[at:header.index(b'"', at)])
            messages += following - offset
            size += length
        yield messages, size, time.perf_counter() - begun
        if pause:
            time.sleep(pause)


def send_all(address: Address, connections: int, seconds: float, under_way: int) -> Iterator[
        tuple[int, int, float]]:
    """The same of sends over several connections, so many under way on each. Seconds are those of
    all of a round.
    """
    opened = [Requests(address) for _ in range(connections)]
    encoded = [write_command(Command(SEND, 0, 0, {
        "a": "P", "b": "bench", "c": "TBW102", "d": "8", "e": str(number), "f": "0",
        "g": "1700000000000", "h": "0", "i": SENT, "j": "0"}, body=BODY)
        ) * under_way for number in range(connections)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        for requests, each in zip(opened, encoded, strict=True):
            requests.send(each)
        for requests in opened:
            for _ in range(under_way):
                requests.answer()
        took = time.perf_counter() - begun
        messages = connections * under_way
        yield messages, messages * len(BODY), took


def _client(kind: str, results: Any, number: int, *args: Any) -> None:
    took = list((pull_all if kind == "pull" else send_all)(*args))
    results.put((number, sum(each[0] for each in took), sum(each[1] for each in took),
                 [each[2] for each in took]))


def together(kind: str, clients: list[tuple[Any, ...]]) -> list[tuple[int, int, list[float]]]:
    """What each of several clients did, at the same time."""
    results: Any = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_client, args=(kind, results, number, *args))
                 for number, args in enumerate(clients)]
    for process in processes:
        process.start()
    found = sorted(results.get() for _ in processes)
    for process in processes:
        process.join()
    return [each[1:] for each in found]


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid: int) -> float:
    """MiB of a process in memory."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096 / (1 << 20)


def percentile(times: list[float], share: float) -> float:
    """Milliseconds that this share of the calls took at most."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] * 1000


def pulls(directory: Path, profile: str, clients: int, seconds: float) -> list[str]:
    """Rows of the table for pulls from a bench store."""
    store, _ = prepare(profile, directory)
    warm(store)
    rows = []
    with served(str(store)) as (address, pid):
        queues = queues_of(address)
        for name, chosen in (("all queues", queues), ("4 queues", queues[:4]),
                             ("2 queues", queues[:2])):
            parts = [chosen[number::clients] for number in range(clients)]
            full = [(address, part, 0.0, 0.0, CONNECTIONS) for part in parts]
            together("pull", [(*each[:2], seconds / 2, *each[3:]) for each in full])
            before = cpu_seconds(pid)
            found = together("pull", [(*each[:2], seconds, *each[3:]) for each in full])
            spent = cpu_seconds(pid) - before
            messages, size = (sum(each[number] for each in found) for number in (0, 1))
            # Half of that load: each client waits as long as its rounds took.
            halves = [(address, part, seconds, sum(each[2]) / len(each[2]), CONNECTIONS)
                      for part, each in zip(parts, found, strict=True)]
            beside = together("pull", [(address, parts[0], seconds, 0.001), *halves])
            times, load = beside[0][2], sum(each[0] for each in beside) / messages
            rows.append(
                f"| pull, {profile}, {name} | {messages / seconds:,.0f} "
                f"| {size / seconds / 1e6:,.0f} | {messages / spent:,.0f} "
                f"| {size / spent / 1e6:,.0f} | {percentile(times, 0.5):.2f} "
                f"| {percentile(times, 0.99):.2f} ({load:.0%}) | {resident_mib(pid):.0f} |")
    return rows


def sends(clients: int, connections: int, under_way: int, seconds: float) -> str:
    """A row for sends of clients with so many connections each, and messages under way on each."""
    with served("--temp") as (address, pid):
        empty = resident_mib(pid)
        together("send", [(address, connections, 0.5, 1)])
        before = cpu_seconds(pid)
        found = together("send", [(address, connections, seconds, under_way)] * clients)
        spent = cpu_seconds(pid) - before
        messages, size = (sum(each[number] for each in found) for number in (0, 1))
        times = [took for each in found for took in each[2]]
        return (f"| send, {clients * connections} connections, {under_way} under way on each "
                f"| {messages / seconds:,.0f} "
                f"| {size / seconds / 1e6:,.0f} | {messages / spent:,.0f} "
                f"| {size / spent / 1e6:,.0f} | {percentile(times, 0.5):.2f} "
                f"| {percentile(times, 0.99):.2f} | {empty:.0f} (empty) |")


def main() -> None:
    """Measures, prints the table, and writes it into RESULTS.md where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    rows = [row for profile in ("1k", "100")
            for row in pulls(given.dir, profile, given.clients, given.seconds)]
    rows += [sends(2, 4, under_way, given.seconds) for under_way in (1, 32)]
    table = "\n".join((
        "| work | messages/s | MB/s | messages/s of CPU | MB/s of CPU | median ms | p99 ms | MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |", *rows))
    print(table)
    if given.write_results:
        publish(MARK, [
            "## Serving", "",
            (f"Made by `python -m benchmarks.serving --dir DIR --write-results`: {given.clients} "
            "clients in processes of their own, on the same cores as the server; \"of CPU\" is by "
            "the server's own seconds. Clients do as little as they can: requests are encoded "
            "once, and of an answer only its length, its code and where to go on are looked at. "
            f"Each has {CONNECTIONS} connections, with a pull under way on each. Medians and p99 "
            "of pulls are those of one more client, which pauses a millisecond between its pulls, "
            "while the others pull about half as fast (in brackets: what all got, of the full "
            "load). Senders are two with four connections each; theirs are of a round, which sends "
            "so many messages on each connection and takes all answers. "
            f"{machine()}"), "", table, ""])


if __name__ == "__main__":
    main()
