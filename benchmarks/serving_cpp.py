"""Use a served store with the C++ client of another project, through its Python module.

    python benchmarks/serving_cpp.py NAMESERVER TOPIC MODE SECONDS

It consumes the topic (``push``), pulls it (``pull``) or sends to it (``send``), and prints
``[messages, bytes, seconds]``. It needs only the client's module in its own folder (`installed`),
not rmqctl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PACKAGE = "rocketmq==0.4.4"
BODY = "x" * 1024


def installed(folder: Path) -> Path | None:
    """Install the client's module from PyPI and return its folder; None if that fails."""
    if not (folder / "rocketmq").is_dir():
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), PACKAGE],
            capture_output=True, check=False)
        if done.returncode:
            return None
    return folder


def run(folder: Path, server: str, topic: str, mode: str, seconds: float) -> tuple[
        int, int, float] | None:
    """Return (messages, bytes of bodies, seconds) of the client; None if it does not run here."""
    done = subprocess.run(
        [sys.executable, __file__, server, topic, mode, str(seconds)], capture_output=True,
        check=False, text=True, timeout=seconds * 10 + 60,
        env={**os.environ, "PYTHONPATH": str(folder), "HOME": str(folder)})
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return None if done.returncode or not lines else tuple(json.loads(lines[-1]))


def _client(server: str, topic: str, mode: str, seconds: float) -> tuple[int, int, float]:
    from rocketmq.client import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        Message,
        Producer,
        PullConsumer,
        PushConsumer,
    )

    messages = size = 0
    begun = last = 0.0

    def count(message: object) -> None:
        nonlocal messages, size, begun, last
        last = time.monotonic()
        begun = begun or last
        messages += 1
        size += len(message.body)  # type: ignore[attr-defined]

    if mode == "send":
        client = Producer("bench")
        client.set_namesrv_addr(server)
        client.start()
        sent = Message(topic)
        sent.set_keys("key")
        sent.set_tags("A")
        sent.set_body(BODY)
        client.send_sync(sent)  # gets the route
        begun = last = time.monotonic()
        while last < begun + seconds:
            client.send_sync(sent)
            messages += 1
            size += len(BODY)
            last = time.monotonic()
    elif mode == "pull":
        client = PullConsumer("bench-pull")
        client.set_namesrv_addr(server)
        client.start()
        for message in client.pull(topic):
            count(message)
            if last > begun + seconds:
                break
    else:
        client = PushConsumer("bench-push")
        client.set_namesrv_addr(server)
        client.subscribe(topic, count, "*")
        client.start()
        end = time.monotonic() + seconds + 10
        while time.monotonic() < end and (not begun or time.monotonic() < begun + seconds):
            time.sleep(0.01)
    result = messages, size, last - begun
    client.shutdown()
    return result


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(_client(given[0], given[1], given[2], float(given[3]))), flush=True)
    os._exit(0)  # the library's threads do not always end
