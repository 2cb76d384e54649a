"""Measure pulls from a served store, and sends to it, with clients in their own processes.

    python -m benchmarks.serving --dir DIR [--clients 2] [--seconds 4] [--write-results]

Each client repeatedly pulls 32 messages at a time from its own queues, or sends bodies of 1 KiB,
over loopback, with the stores in the page cache. The messages of two smaller queues fit into
the server's memory; those of more queues are read again for each pull. The last rows are for a
client of another project.

The duration of a pull is measured at half the maximum load: a client pulls at fixed times over all
connections, and durations count from these times. To show which part of them the machine causes,
each run is repeated with a bare server that computes as long and sends as many bytes per answer.
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
BATCH = 32
FOR_A_ROW = 256
"""Maximum memory (bytes) that the server uses for a cached message in addition to its record."""
CONNECTIONS = 4
"""Number of connections per client."""
PASSES = 5
"""Number of passes of the measurement at half load; the median pass counts."""
PULL, SEND = 11, 310
SUCCESS = b'"code":0,'
SENT = "KEYS\x01k\x02UNIQ_KEY\x017F0000010A2118B4AAC2123456780000\x02WAIT\x01true\x02TAGS\x01A"
"""Properties of a message from a Java client."""
MARKED = "123456789"
NEXT = b'"nextBeginOffset":"'
Queue = tuple[str, int, int]
"""A queue: (topic, queue id, queue offset after its last message)."""


@contextmanager
def served(*args: str) -> Iterator[tuple[Address, int]]:
    """Start a server for the block; provide (address, process id)."""
    command = [sys.executable, "-m", "rmqctl", "serve", *args, "--listen", "127.0.0.1:0", "-o",
               "jsonl"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield parse_address(json.loads(process.stdout.readline())["ready"]), process.pid
        process.terminate()


def queues_of(address: Address) -> list[Queue]:
    """Return the queues with enough messages for several pulls, the longest first."""
    queues: list[Queue] = []
    with Client(address) as client:
        for topic in client.ask("GET_ALL_TOPIC_LIST_FROM_NAMESERVER").json()["topicList"]:
            route = client.ask("GET_ROUTEINFO_BY_TOPIC", topic=topic)
            for queue_id in range(route.json()["queueDatas"][0]["readQueueNums"]
                                  if route.code == 0 else 0):
                end = int(client.ask("GET_MAX_OFFSET", topic=topic,
                                     queueId=queue_id).ext["offset"])
                queues += [(topic, queue_id, end)] * (end > 2 * BATCH)
    return sorted(queues, key=lambda queue: -queue[2])


def kept_of(queues: list[Queue], record: float) -> list[Queue]:
    """Return the two longest queues that fit into the server's memory together."""
    most = KEPT / (record + FOR_A_ROW) / 2
    return [queue for queue in queues if queue[2] <= most][:2]


class Requests:
    """A connection with minimal work per request, since clients run on the same cores: requests are
    encoded once, and only length, code and next offset of an answer are parsed.
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
        """Read ``count`` responses, which must be successful; return (header, size of the body) of
        each.
        """
        frames: list[tuple[bytes, int]] = []
        at = 0
        while len(frames) < count:
            at = self._take(frames, at)
        assert at == self._have
        self._have = 0
        return frames

    def arrived(self) -> bool:
        """Read the received part of a response; return whether the response is complete."""
        frames: list[tuple[bytes, int]] = []
        self._take(frames, 0)
        self._have *= not frames
        return bool(frames)

    def _take(self, frames: list[tuple[bytes, int]], at: int) -> int:
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
            frames.append((header, end - body))
            at = end
        return at


class Pulls:
    """Generator of pulls of 32 messages from queues in turn, each from its next offset."""

    def __init__(self, queues: list[Queue]) -> None:
        self._ends = [end for _, _, end in queues]
        self._places = [0] * len(queues)
        self._number = 0
        # Only the offset in the header changes.
        self._encoded = [write_command(Command(PULL, 0, 0, {
            "consumerGroup": "g", "topic": topic, "queueId": str(queue_id), "queueOffset": MARKED,
            "maxMsgNums": str(BATCH), "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            }))[HEAD_SIZE:].split(MARKED.encode()) for topic, queue_id, _ in queues]

    def next(self) -> tuple[bytes, int]:
        """Return (request, queue offset) of the next pull."""
        number = self._number = (self._number + 1) % len(self._ends)
        offset = self._places[number]
        first, last = self._encoded[number]
        # The expected next offset, if the queue's turn comes again before the answer.
        self._places[number] = offset + BATCH if offset + 2 * BATCH < self._ends[number] else 0
        return frame_head(b"%b%d%b" % (first, offset, last), 0), offset


def pull_all(address: Address, queues: list[Queue], seconds: float, connections: int,
             under_way: int) -> Iterator[tuple[int, int, float]]:
    """Yield (messages, bytes, seconds) of each round until the time is over. In a round each
    connection sends ``under_way`` pulls and reads all answers.
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
    """Yield (messages, bytes, seconds) of each round until the time is over. In a round each
    connection sends ``under_way`` messages and reads all answers.
    """
    opened = [Requests(address) for _ in range(connections)]
    encoded = [write_command(Command(SEND, 0, 0, {
        "a": "P", "b": "bench", "c": "TBW102", "d": "8", "e": str(number), "f": "0",
        "g": "1700000000000", "h": "0", "i": SENT, "j": "0"}, body=BODY)
        ) * under_way for number in range(connections)]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        for requests, request in zip(opened, encoded, strict=True):
            requests.send(request)
        for requests in opened:
            requests.answers(under_way)
        took = time.perf_counter() - begun
        messages = connections * under_way
        yield messages, messages * len(BODY), took


def at_times(address: Address, request: Callable[[], bytes], rate: float, seconds: float,
             connections: int) -> list[float]:
    """Return the seconds from the scheduled time of each request to its answer."""
    free = [Requests(address) for _ in range(connections)]
    waiting = selectors.SelectSelector()  # does not round waits up to milliseconds
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
    """Answer every request with ``size`` bytes, after ``busy`` seconds of computing."""
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
    results.put((number, sum(result[0] for result in took), sum(result[1] for result in took),
                 [result[2] for result in took]))


def together(kind: str, clients: list[tuple[Any, ...]]) -> list[tuple[int, int, list[float]]]:
    """Run several clients concurrently; return their results."""
    results: Any = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=_client, args=(kind, results, number, *args))
                 for number, args in enumerate(clients)]
    for process in processes:
        process.start()
    collected = sorted(results.get() for _ in processes)
    for process in processes:
        process.join()
    return [result[1:] for result in collected]


def cpu_seconds(pid: int) -> float:
    """Return user and system seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process (MiB)."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096 / (1 << 20)


def percentile(times: list[float], share: float) -> float:
    """Return the percentile of times in milliseconds."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)] * 1000


def half_load(address: Address, queues: list[Queue], rate: float, seconds: float,
              connections: int) -> list[float]:
    """Return (median, p99) in ms of pulls at a rate per second: the pass with the median p99."""
    chosen = Pulls(queues)
    gc.disable()
    passes = []
    for _ in range(PASSES):
        took = at_times(address, lambda: chosen.next()[0], rate, seconds, connections)
        passes.append([percentile(took, 0.5), percentile(took, 0.99)])
    gc.enable()
    return sorted(passes, key=lambda result: result[1])[PASSES // 2]


def bare_half_load(size: int, busy: float, rate: float, seconds: float, connections: int
                   ) -> list[float]:
    """Return (median, p99) in ms of pulls from a bare server with ``busy`` seconds and ``size``
    bytes per answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = parse_address("{}:{}".format(*listening.getsockname()))
        server = multiprocessing.Process(target=bare_server, args=(listening, size, busy))
        server.start()
        result = half_load(address, [("", 0, 1 << 40)], rate, seconds, connections)
        server.terminate()
        server.join()
    return result


def pulls(directory: Path, profile: str, clients: int, seconds: float) -> list[str]:
    """Return the rows of the table for pulls from a bench store."""
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
                together("pull", [(*value[:2], seconds / 2, *value[3:]) for value in full])
                before = cpu_seconds(pid)
                results = together("pull", full)
                spent = cpu_seconds(pid) - before
                messages, size = (sum(value[number] for value in results) for number in (0, 1))
                answers = messages / BATCH
                times = []
                if under_way == 1:
                    given = (answers / seconds / 2, seconds, connections)
                    times += half_load(address, chosen, *given)
                    times += bare_half_load(round(size / answers), spent / answers, *given)
                rows.append(
                    f"| pull, {profile}, {name}, {under_way} under way | {messages / seconds:,.0f} "
                    f"| {size / seconds / 1e6:,.0f} | {messages / spent:,.0f} "
                    f"| {size / spent / 1e6:,.0f} "
                    f"{''.join(f'| {value:.2f} ' for value in times) or '| ' * 4}"
                    f"| {resident_mib(pid):.0f} |")
    return rows


def sends(clients: int, connections: int, under_way: int, seconds: float) -> str:
    """Return a row for sends, with ``under_way`` sends on each connection of each client."""
    with served("--temp") as (address, pid):
        empty = resident_mib(pid)
        together("send", [(address, connections, 0.5, 1)])
        before = cpu_seconds(pid)
        results = together("send", [(address, connections, seconds, under_way)] * clients)
        spent = cpu_seconds(pid) - before
        messages, size = (sum(result[number] for result in results) for number in (0, 1))
        times = [took for result in results for took in result[2]]
        return (f"| send, {under_way} under way "
                f"| {messages / seconds:,.0f} "
                f"| {size / seconds / 1e6:,.0f} | {messages / spent:,.0f} "
                f"| {size / spent / 1e6:,.0f} | {percentile(times, 0.5):.2f} "
                f"| {percentile(times, 0.99):.2f} | | | {empty:.0f} (empty) |")


def others(directory: Path, seconds: float) -> Iterator[str]:
    """Yield the rows for the C++ client, if it is available."""
    folder = serving_cpp.installed(directory / "cpp-client")
    store, _ = prepare("1k", directory)
    topic = "TopicTest"  # make_store has it
    for mode, args in (("push", (str(store), "--from", "earliest")),
                       ("pull", (str(store), "--from", "earliest")),
                       ("send", ("--temp", "--topic", topic))):
        with served(*args) as (address, pid):
            before = cpu_seconds(pid)
            figures = folder and serving_cpp.run(folder, str(address), topic, mode, seconds)
            if not figures:
                continue
            spent = cpu_seconds(pid) - before
            messages, took = figures[0], figures[2]
            yield (f"| the C++ client, {mode}, 1k | {messages / took:,.0f} | | "
                   f"{messages / spent:,.0f} | | | | | | {resident_mib(pid):.0f} |")


def main() -> None:
    """Measure, print the table, and write it to RESULTS.md if requested."""
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
            f"Each has {CONNECTIONS} connections, with one or eight pulls of {BATCH} under way on "
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
