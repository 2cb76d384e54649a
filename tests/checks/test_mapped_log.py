"""The log is checked and dispatched in a mapping of its files: the same results as from buffers,
and a file that becomes shorter meanwhile is an error like any other.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqctl.kernel import active
from rmqctl.scan import walk
from rmqctl.scan.source import FileSource
from tests.support import cli

STORES = ["4.9.3/basic/store", "5.3.3/basic/store", "4.9.3/delay/store", "5.3.3/delay/store",
          "4.9.3/transaction/store", "5.3.3/transaction/store"]
COMMANDS = {"verify": (), "recover": ("--only", "consumequeue,index"), "preflight": (),
            "doctor": ()}

pytestmark = pytest.mark.skipif(active() is None, reason="only the kernel reads mappings")


@pytest.fixture(params=[4096, 16 << 10, 1 << 20])
def mapped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small mappings; returns the list of their sizes."""
    monkeypatch.setattr(walk.Pace, "prefers_mapping", lambda _pace: True)
    monkeypatch.setattr(walk, "_MAPPED", request.param)
    monkeypatch.setattr(walk, "_LEAST_MAPPED", 256)
    sizes: list[int] = []
    window = FileSource.window

    def counted(source: FileSource, position: int, length: int) -> memoryview | None:
        sizes.append(length)
        return window(source, position, length)

    monkeypatch.setattr(FileSource, "window", counted)
    return sizes


def answers(store: Path) -> Iterator[Any]:
    for command, options in COMMANDS.items():
        result = cli.run(command, str(store), *options, "--jobs", "1", "-o", "json")
        document = result.json() if result.out else result.err
        if command == "doctor":
            document.pop("disk", None)
            document["start"] = None
        yield command, result.code, document


def damaged(store: Path, rnd: random.Random) -> None:
    for path in rnd.choices(sorted((store / "commitlog").iterdir()), k=rnd.randrange(3)):
        with path.open("r+b") as file:
            for _ in range(rnd.choice((1, 1, 5))):
                file.seek(rnd.randrange(path.stat().st_size))
                file.write(rnd.randbytes(rnd.choice((1, 4, 600))))


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("number", range(4))
def test_equal_answers(golden_copy, mapped: list[int], name: str, number: int,
                       monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden_copy(name)
    if number:
        damaged(store, random.Random(f"{name} {number}"))
    of_mappings = list(answers(store))
    assert mapped
    monkeypatch.setattr(FileSource, "window", lambda *_: None)
    assert of_mappings == list(answers(store))


@pytest.mark.parametrize("command", ["verify", "recover"])
@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("left", [0, 4096, 20480])
def test_a_file_becomes_shorter(golden_copy, command: str, when: int, left: int,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a mapping are gone while the kernel reads them."""
    store, shorter = golden_copy("5.3.3/basic/store"), golden_copy("5.3.3/basic/store")
    monkeypatch.setattr(walk, "_LEAST_MAPPED", 256)
    monkeypatch.setattr(walk.Pace, "prefers_mapping", lambda _pace: True)
    window, calls = FileSource.window, [0]
    path = sorted((store / "commitlog").iterdir())[when - 1]

    def shortened(source: FileSource, position: int, length: int) -> memoryview | None:
        data = window(source, position, length)
        if source.name == str(path) and data is not None:
            calls[0] += 1
            os.truncate(path, left)
        return data

    monkeypatch.setattr(FileSource, "window", shortened)
    result = cli.run(command, str(store), *COMMANDS[command], "--jobs", "1", "-o", "json")
    assert calls[0]
    os.truncate(sorted((shorter / "commitlog").iterdir())[when - 1], left)
    monkeypatch.setattr(FileSource, "window", window)
    wanted = cli.run(command, str(shorter), *COMMANDS[command], "--jobs", "1", "-o", "json")
    assert result.code == wanted.code
    if command == "verify":
        assert result.json()["coverage"]["messages"] == wanted.json()["coverage"]["messages"]


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_faster_way_is_used(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """``factor``: the time of a mapping relative to that of a buffer."""
    now, pace = [0.0], walk.Pace()
    monkeypatch.setattr(walk, "thread_time", lambda: now[0])
    ways = []
    for _ in range(100):
        mapped, since = pace.prefers_mapping(), now[0]
        now[0] += factor if mapped else 1.0
        pace.add(mapped, since, 2 << 20)
        ways.append(mapped)
    assert not any(ways[:4])
    assert {True, False} == {*ways[4:30]}
    assert {*ways[30:]} == {factor < 1}


def test_copied() -> None:
    import numpy as np

    data, part = np.frombuffer(b"0123456789", np.uint8), np.empty(4, np.uint8)
    assert active().copied(data, 3, part)
    assert part.tobytes() == b"3456"
    for at in (-1, 7):
        with pytest.raises(IndexError):
            active().copied(data, at, part)
