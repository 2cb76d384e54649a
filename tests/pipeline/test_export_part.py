"""An export of a part of a store is incomplete only if that part lacks messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.writer import Put, Writer
from tests.conftest import Runner

LOST = 10


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[Put]]:
    """A store of two topics in which messages 10 (topic other, queue 1) and 11 (queue 0) are
    overwritten with zeros.
    """
    writer = Writer()
    for number in range(24):
        writer.put("other" if number in (LOST, LOST + 1) or number % 4 == 0 else "orders",
                   b"body %d" % number, queue_id=1 if number == LOST else 0)
    root = writer.write(tmp_path / "s")
    first, second = writer.puts[LOST], writer.puts[LOST + 1]
    file, = (root / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    data[first.physical:second.physical + second.size] = bytes(
        second.physical + second.size - first.physical)
    file.write_bytes(data)
    return root, writer.puts


def export(rmqctl: Runner, root: Path, *options: object, code: int = 0) -> dict[str, Any]:
    out = root.parent / "out.jsonl"
    for path in (out, out.with_name("out.jsonl.manifest.json")):
        path.unlink(missing_ok=True)
    done = rmqctl("export", root, "--out", out, "--manifest", *map(str, options)).expect(code)
    document: dict[str, Any] = json.loads(
        out.with_name("out.jsonl.manifest.json").read_text())["stores"][0]
    assert document["complete"] is (code == 0)
    assert document["lost_elsewhere"] is (code == 0)
    assert ("outside" in done.err) is (code == 0)
    return document


def test_the_whole_store_lacks_them(store: tuple[Path, list[Put]], rmqctl: Runner) -> None:
    root, puts = store
    document = export(rmqctl, root, code=1)
    assert document["messages_already_lost"] == 2
    assert sorted(document["lost_messages"], key=lambda place: place["queue_id"]) == [
        {"topic": "other", "queue_id": put.queue_id, "queue_offset": put.queue_offset,
         "physical_offset": put.physical, "size": put.size}
        for put in (puts[LOST + 1], puts[LOST])]


def test_parts_before_and_after_the_loss(store: tuple[Path, list[Put]], rmqctl: Runner) -> None:
    root, puts = store
    before, after = puts[LOST - 1], puts[LOST + 2]
    export(rmqctl, root, "--until", before.time - 1)
    export(rmqctl, root, "--until", before.time, code=1)
    export(rmqctl, root, "--since", after.time + 1)
    export(rmqctl, root, "--since", after.time, code=1)
    export(rmqctl, root, "--to-phy", puts[LOST].physical)
    export(rmqctl, root, "--to-phy", puts[LOST].physical + 1, code=1)
    export(rmqctl, root, "--from-phy", after.physical)


def test_a_topic_that_lost_nothing(store: tuple[Path, list[Put]], rmqctl: Runner) -> None:
    root, _ = store
    export(rmqctl, root, "--topic", "orders")
    export(rmqctl, root, "--topic", "other", code=1)
    export(rmqctl, root, "--topic", "other", "--queue", "0", code=1)
    export(rmqctl, root, "--topic", "other", "--queue", "2")


def test_a_topic_is_not_cleared_without_entries(store: tuple[Path, list[Put]],
                                                rmqctl: Runner) -> None:
    """Nothing shows what was in the damaged range."""
    root, _ = store
    (root / "consumequeue" / "other" / "1" / "00000000000000000000").unlink()
    export(rmqctl, root, "--topic", "orders", code=1)
