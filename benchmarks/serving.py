"""Pulls from a served store, and sends to one: a client of ours in processes of its own.

    python -m benchmarks.serving --dir DIR [--clients 2] [--seconds 4] [--write-results]

Each client pulls 32 messages at a time from queues of its own, over and over, or sends bodies of
1 KiB; all over loopback, the stores in the page cache. The server keeps all messages of two smaller
queues at hand, of more it reads them again and again. A client that others wrote does the same in
the last rows.

How long a pull takes is measured at half the load that was reached, by one client that pulls at
fixed times over all connections, and counts from these times, whoever was late. The machine has a
share in that: what a bare server takes that answers as much, and computes as long for it, is
measured after each.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import serving_cpp
from benchmarks.process import ROOT
from benchmarks.results import machine, publish
from benchmarks.run import prepare, warm
from rmqctl.ext.serve.reading import KEPT
from rmqctl.ext.serve.remoting.client import Client
from rmqctl.ext.serve.remoting.command import Command, write_command
from rmqctl.ext.serve.remoting.frame import HEAD_SIZE, frame_head
from rmqctl.parse_values import Address, parse_address

MARK = "\n## Serving\n"
BODY = bytes(range(256)) * 4
MOST = 32
FOR_A_ROW = 256
"""Bytes that the server takes for a message that it keeps, beside its record, at most."""
CONNECTIONS = 4
"""Of each client."""
PASSES = 5
"""Of the measurement at half load: the middle one counts."""
PULL, SEND = 11, 310
SUCCESS = b'"code":0,'
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


def kept_of(queues: list[Queue], record: float) -> list[Queue]:
    """The two longest queues that are kept together, with records of so many bytes."""
    most = KEPT / (record + FOR_A_ROW) / 2
    return [queue for queue in queues if queue[2] <= most][:2]


class Requests:
    """One connection; as little work as possible for each request, since clients run on the same
    cores: requests are encoded once, and of an answer only its length, its code and where to go on
    are looked at.
    """

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection((address.host, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(16 << 20)
        self._view = memoryview(self._buffer)
        self._have = 0

    def send(self, requests: bytes) -> None:
        self.socket.sendall(requests)

    def answers(self, count: int) -> list[tuple[bytes, int]]:
        """(header, bytes of the body) of the next responses, which must be ones of success; no more
        are under way.
        """
        found: list[tuple[bytes, int]] = []
        at = 0
        while len(found) < count:
            at = self._take(found, at)
        assert at == self._have
        self._have = 0
        return found

    def arrived(self) -> bool:
        """Takes what has come of the one response that is under way; whether that was all."""
        found: list[tuple[bytes, int]] = []
        self._take(found, 0)
        self._have *= not found
        return bool(found)

    def _take(self, found: list[tuple[bytes, int]], at: int) -> int:
        count = self.socket.recv_into(self._view[self._have:])
        assert count
        self._have += count
        buffer = self._buffer
        while self._have - at >= HEAD_SIZE:
            end = at + 4 + int.from_bytes(buffer[at:at + 4], "big")
            if self._have < end:
                break
            body = at + HEAD_SIZE + int.from_bytes(buffer[at + 4:at + HEAD_SIZE], "big")
            header = bytes(self._view[at + HEAD_SIZE:body])
            assert SUCCESS in header, header
            found.append((header, end - body))
            at = end
        return at


class Pulls:
    """Pulls of 32 from queues, one after the other, each from where its last one led to."""

    def __init__(self, queues: list[Queue]) -> None:
        self._ends = [end for _, _, end in queues]
        self._places = [0] * len(queues)
        self._number = 0
        # Of a header only the offset changes.
        self._encoded = [write_command(Command(PULL, 0, 0, {
            "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": MARKED,
            "maxMsgNums": str(MOST), "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            }))[HEAD_SIZE:].split(MARKED.encode()) for topic, queue_id, _ in queues]

    def next(self) -> tuple[bytes, int]:
        """(request, queue offset) of the next one."""
        number = self._number = (self._number + 1) % len(self._ends)
        offset = self._places[number]
        first, last = self._encoded[number]
        # Where the answer will lead to, if this queue's turn is again before it comes.
        self._places[number] = offset + MOST if offset + 2 * MOST < self._ends[number] else 0
        return frame_head(b"%b%d%b" % (first, offset, last), 0), offset


def pull_all(address: Address, queues: list[Queue], seconds: float, connections: int,
             under_way: int) -> Iterator[tuple[int, int, float]]:
    """(messages, bytes, seconds) of each round, queue by queue, until the time is over: in a round
    each connection pulls so many times, and takes all answers.
    """
    opened = [Requests(address) for _ in range(connections)]
    pulls = Pulls(queues)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        asked = []
        for requests in opened:
            sent = [pulls.next() for _ in range(under_way)]
            requests.send(b"".join([request for request, _ in sent]))
            asked.append((requests, sent))
        messages = size = 0
        for requests, sent in asked:
            for (header, length), (_, offset) in zip(requests.answers(under_way), sent,
                                                     strict=True):
                at = header.index(NEXT) + len(NEXT)
                messages += int(header[at:header.index(b'"', at)]) - offset
                size += length
        yield messages, size, time.perf_counter() - begun


def send_all(address: Address, connections: int, seconds: float, under_way: int) -> Iterator[
        tuple[int, int, float]]:
    """The same of sends over several connections, so many under way on each."""
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
            requests.answers(under_way)
        took = time.perf_counter() - begun
        messages = connections * under_way
        yield messages, messages * len(BODY), took


def at_times(address: Address, request: Callable[[], bytes], rate: float, seconds: float,
             connections: int) -> list[float]:
    """Seconds from when each request should have been sent, so many a second, to its answer."""
    free = [Requests(address) for _ in range(connections)]
    waiting = selectors.SelectSelector()  # as others it waits, but not for whole milliseconds
    took: list[float] = []
    begun, sent, total = time.perf_counter(), 0, int(rate * seconds)
    while len(took) < total:
        while sent < total and free and begun + sent / rate <= time.perf_counter():
            requests = free.pop()
            requests.send(request())
            waiting.register(requests.socket, selectors.EVENT_READ,
                             (requests, begun + sent / rate))
            sent += 1
        pause = begun + sent / rate - time.perf_counter() if sent < total and free else None
        if not waiting.get_map():
            time.sleep(max(pause or 0, 0))
            continue
        for key, _ in waiting.select(None if pause is None else max(pause, 0)):
            requests, due = key.data
            if requests.arrived():
                took.append(time.perf_counter() - due)
                waiting.unregister(key.fileobj)
                free.append(requests)
    return took


def bare_server(listening: socket.socket, size: int, busy: float) -> None:
    """Answers whatever comes with ``size`` bytes, after so many seconds of computing."""
    answer = frame_head(b"{%b}" % SUCCESS, size) + bytes(size)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            connection: Any = key.fileobj
            if connection is listening:
                waiting.register(listening.accept()[0], selectors.EVENT_READ)
                continue
            if not connection.recv(1 << 16):
                waiting.unregister(connection)
                continue
            begun = time.perf_counter()
            while time.perf_counter() - begun < busy:
                pass
            connection.sendall(answer)


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


def half_load(address: Address, queues: list[Queue], rate: float, seconds: float,
              connections: int) -> list[float]:
    """(median, p99) ms of pulls, so many a second: of several passes, the middle one by p99."""
    chosen = Pulls(queues)
    gc.disable()
    passes = []
    for _ in range(PASSES):
        took = at_times(address, lambda: chosen.next()[0], rate, seconds, connections)
        passes.append([percentile(took, 0.5), percentile(took, 0.99)])
    gc.enable()
    return sorted(passes, key=lambda each: each[1])[PASSES // 2]


def bare_half_load(size: int, busy: float, rate: float, seconds: float, connections: int
                   ) -> list[float]:
    """The same of a bare server that computes ``busy`` seconds for each answer of so many bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = parse_address("{}:{}".format(*listening.getsockname()))
        server = multiprocessing.Process(target=bare_server, args=(listening, size, busy))
        server.start()
        found = half_load(address, [("", 0, 1 << 40)], rate, seconds, connections)
        server.terminate()
        server.join()
    return found


def pulls(directory: Path, profile: str, clients: int, seconds: float) -> list[str]:
    """Rows of the table for pulls from a bench store."""
    store, facts = prepare(profile, directory)
    warm(store)
    rows = []
    connections = clients * CONNECTIONS
    with served(str(store)) as (address, pid):
        queues = queues_of(address)
        kept = kept_of(queues, facts["log_bytes"] / facts["records"])
        for name, chosen in ((f"all {len(queues)} queues", queues), ("2 kept queues", kept)):
            parts = [chosen[number::clients] for number in range(clients)]
            for under_way in (1, 8):
                full = [(address, part, seconds, CONNECTIONS, under_way) for part in parts]
                together("pull", [(*each[:2], seconds / 2, *each[3:]) for each in full])
                before = cpu_seconds(pid)
                found = together("pull", full)
                spent = cpu_seconds(pid) - before
                messages, size = (sum(each[number] for each in found) for number in (0, 1))
                answers = messages / MOST
                times = []
                if under_way == 1:
                    given = (answers / seconds / 2, seconds, connections)
                    times += half_load(address, chosen, *given)
                    times += bare_half_load(round(size / answers), spent / answers, *given)
                rows.append(
                    f"| pull, {profile}, {name}, {under_way} under way | {messages / seconds:,.0f} "
                    f"| {size / seconds / 1e6:,.0f} | {messages / spent:,.0f} "
                    f"| {size / spent / 1e6:,.0f} "
                    f"{''.join(f'| {each:.2f} ' for each in times) or '| ' * 4}"
                    f"| {resident_mib(pid):.0f} |")
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
        return (f"| send, {under_way} under way "
                f"| {messages / seconds:,.0f} "
                f"| {size / seconds / 1e6:,.0f} | {messages / spent:,.0f} "
                f"| {size / spent / 1e6:,.0f} | {percentile(times, 0.5):.2f} "
                f"| {percentile(times, 0.99):.2f} | | | {empty:.0f} (empty) |")


def others(directory: Path, seconds: float) -> Iterator[str]:
    """Rows for the C++ client, where it is to be had."""
    folder = serving_cpp.installed(directory / "cpp-client")
    store, _ = prepare("1k", directory)
    topic = "TopicTest"  # make_store has it
    for mode, args in (("push", (str(store), "--from", "earliest")),
                       ("pull", (str(store), "--from", "earliest")),
                       ("send", ("--temp", "--topic", topic))):
        with served(*args) as (address, pid):
            before = cpu_seconds(pid)
            found = folder and serving_cpp.run(folder, str(address), topic, mode, seconds)
            if not found:
                continue
            spent = cpu_seconds(pid) - before
            messages, took = found[0], found[2]
            yield (f"| the C++ client, {mode}, 1k | {messages / took:,.0f} | | "
                   f"{messages / spent:,.0f} | | | | | | {resident_mib(pid):.0f} |")


def main() -> None:
    """Measures, prints the table, and writes it into RESULTS.md where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write-results", action="store_true")
    given = parser.parse_args()
    rows = [row for profile in ("1k", "100", "8k")
            for row in pulls(given.dir, profile, given.clients, given.seconds)]
    rows += [sends(2, CONNECTIONS, under_way, given.seconds) for under_way in (1, 32)]
    rows += others(given.dir, given.seconds)
    table = "\n".join((
        ("| work | messages/s | MB/s | messages/s of CPU | MB/s of CPU | median ms | p99 ms "
         "| bare median | bare p99 | MiB |"),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", *rows))
    print(table)
    if given.write_results:
        publish(MARK, [
            "## Serving", "",
            (f"Made by `python -m benchmarks.serving --dir DIR --write-results`: {given.clients} "
            "clients in processes of their own, on the same cores as the server; \"of CPU\" is by "
            "the server's own seconds. Clients do as little as they can: requests are encoded "
            "once, and of an answer only its length, its code and where to go on are looked at. "
            f"Each has {CONNECTIONS} connections, with one or eight pulls of {MOST} under way on "
            "each: a Java consumer has those of all its queues under way on one. Of pulls, medians "
            "and p99 are those at half the load that was reached: one client pulls at fixed times "
            "over all connections, and counts from these times, whoever was late; the pass in the "
            f"middle of {PASSES}. The machine has a share in that: \"bare\" is a server of a few "
            "lines that computes as long for each answer and sends as much, under the same load. "
            "Those of sends are of a round at full load, which sends so many messages on each "
            "connection and takes all answers. The last rows are the C++ client of others "
            f"({serving_cpp.PACKAGE}, one process, by its Python module): it takes or sends one "
            "message after the other, and is what limits them. "
            f"{machine()}"), "", table, ""])


if __name__ == "__main__":
    main()
