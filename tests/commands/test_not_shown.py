"""Reading commands over a range with undecided records say how many they did not show, and end
with 1.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversary.writer import Layout, Writer
from tests.support.cli import run

COUNT, HIT = 60, 20


@pytest.fixture
def writer() -> Writer:
    writer = Writer(Layout(log_file_size=64 << 10, with_queues=False, with_index=False), seed=9)
    for number in range(COUNT):
        writer.put("orders", b"body %06d " % number * 9, queue_id=number % 2, keys=f"k{number}")
    writer.patch(writer.puts[HIT].physical, bytes(88))
    return writer


LEFT = COUNT - HIT - 1
WARNING = (f"{LEFT} records not shown: it is not certain whether they are messages or part of a "
        "damaged body")


@pytest.mark.parametrize("words", [
    ("read",), ("read", "--topic", "orders"), ("read", "-o", "json"), ("read", "--key", "k3"),
    ("read", "--topic", "orders", "--queue", "1"), ("printMsg", "-t", "orders"),
    ("tail", "-n", "100"), ("tail", "-n", "100", "-o", "jsonl"),
], ids=" ".join)
def test_over_undecided_records(words: tuple[str, ...], writer: Writer, tmp_path: Path) -> None:
    store = writer.write(tmp_path / "s")
    done = run(words[0], store, *words[1:]).expect(1)
    assert WARNING in done.err


@pytest.mark.parametrize("words", [("read", "--to-phy"), ("printMsg", "--to-phy")])
def test_before_them_nothing_is_said(words: tuple[str, ...], writer: Writer,
                                     tmp_path: Path) -> None:
    store = writer.write(tmp_path / "s")
    done = run(words[0], store, *words[1:], str(writer.puts[HIT].physical)).expect(0)
    assert "undecided" not in done.err


def test_a_queue_has_only_its_own_entries(tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=64 << 10, with_index=False), seed=9)
    for number in range(COUNT):
        writer.put(("orders", "bills")[number % 2], b"body %06d " % number * 9)
    writer.patch(writer.puts[HIT].physical, bytes(88))
    store = writer.write(tmp_path / "s")
    run("read", store, "--topic", "bills").expect(0)
    assert "points to no message" in run("read", store, "--topic", "orders").expect(1).err


def test_one_at_a_place(writer: Writer, tmp_path: Path) -> None:
    store = writer.write(tmp_path / "s")
    done = run("query", "offset", store, "--phy", str(writer.puts[HIT + 5].physical)).expect(1)
    assert "may be part of another message's body" in done.err
    run("query", "offset", store, "--phy", str(writer.puts[3].physical)).expect(0)


def test_a_file_by_itself(writer: Writer, tmp_path: Path) -> None:
    store = writer.write(tmp_path / "s")
    (file,) = (store / "commitlog").iterdir()
    assert f"{LEFT} intact records" in run("dump", file).expect(1).out
