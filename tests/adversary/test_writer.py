"""What the adversaries' writer makes is sound to rmqctl, and says what was put."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversary.writer import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    Header,
    Layout,
    Writer,
    frame,
    framed,
)
from tests.support.cli import run

LAYOUTS = {
    "5": Layout(log_file_size=4096, queue_file_units=10, spare_file=True),
    "4": Layout(log_file_size=4096, version=4, index_slots=37, index_entries=50, first_file=8192),
    "large": Layout(log_file_size=1 << 20),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sound(tmp_path: Path, layout: str) -> None:
    writer = Writer(LAYOUTS[layout], seed=3)
    long = "L" * 200 if LAYOUTS[layout].version == 5 else "plain"
    for number in range(40):
        writer.put("orders", b"body %d" % number, queue_id=number % 3, tags="A",
                   keys=f"k{number} all")
    writer.put("orders", framed([frame("evil", b"x", inner=[frame("evil", b"y")])], after=b"end"))
    writer.put(long, b"", unique_key="", header=Header(born_host=("2001:db8::7", 1)))
    for kind in (PREPARED, COMMIT, ROLLBACK):
        writer.put("orders", b"half", header=Header(sys_flag=kind))
    writer.put("SCHEDULE_TOPIC_XXXX", b"later", queue_id=2, delay_level=3)
    writer.put("orders", b"both", lmq=["%LMQ%a", "%LMQ%b"])
    store = writer.write(tmp_path / "store")
    sizes = ["--index-slots", str(writer.layout.index_slots),
             "--index-max", str(writer.layout.index_entries)]
    verdict = run("verify", store, *sizes, "-o", "json").expect(0).json()
    assert verdict["findings"] == []
    assert verdict["coverage"]["messages"] == len(writer.puts)
    read = run("read", store, "-o", "jsonl", "--body", "base64").expect(0).jsonl()
    assert [message["physical_offset"] for message in read] == [put.physical for put in writer.puts]
    assert [message["total_size"] for message in read] == [put.size for put in writer.puts]
    key = run("query", "key", store, "--topic", "orders", "--key", "all", *sizes, "-o",
                 "json").expect(0).json()
    assert len(key if isinstance(key, list) else key["messages"]) == 32


def test_again_in_place(tmp_path: Path) -> None:
    """Writing once more adds what was put since."""
    writer = Writer(Layout(log_file_size=8192))
    writer.put("a", b"1")
    store = writer.write(tmp_path / "store")
    for _ in range(100):
        writer.put("a", b"2")
    writer.write(store)
    assert run("verify", store, "-o", "json").expect(0).json()["coverage"]["messages"] == 101
