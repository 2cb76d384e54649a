"""What tests of `tiered recover` and `tiered expire` share: the golden tier, damaged and recovered.

Paths are relative to the store, which holds the tier as ``tieredstore/`` and the broker's
``config/``.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import metadata as meta
from tests.support import cli

GOLDEN = "5.3.3/tiered/store"
LIVE = "5.3.3/tiered/store-live"
METADATA = "config/tieredStoreMetadata.json"
BROKER = "tieredstore/212d6b50_DefaultCluster/broker-a"
INDEX = f"{BROKER}/rmq_sys_INDEX/0/INDEX"


def name_of(base: int) -> str:
    return hashlib.md5(str(base).encode()).hexdigest()[:8] + f"{base:020d}"


def place(topic: str, queue: int, kind: str, base: int | None = None) -> str:
    folder = f"{BROKER}/{topic}/{queue}/{kind}"
    return folder if base is None else f"{folder}/{name_of(base)}"


def content(root: Path) -> dict[str, bytes]:
    """Every file but rmqctl's own."""
    data = {}
    for at, folders, files in os.walk(root):
        folders[:] = [folder for folder in folders if folder != ".rmqctl"]
        for file in files:
            path = Path(at, file)
            name = str(path.relative_to(root))
            if name not in ("lock", "tieredstore/lock"):
                data[name] = path.read_bytes()
    return data


def changed(first: dict[str, bytes], other: dict[str, bytes]) -> set[str]:
    return {name for name in first.keys() | other.keys() if first.get(name) != other.get(name)}


def recover(root: Path, *options: str, apply: bool = True) -> Any:
    """The document of ``tiered recover``."""
    more = ("--apply",) if apply else ()
    return cli.run("tiered", "recover", root / "tieredstore", *more, "-o", "json",
                   *options).expect(0).json()


def undo(root: Path) -> None:
    cli.run("undo", root / "tieredstore", "--yes", "-o", "json").expect(0)


def recovered(root: Path, *options: str) -> Any:
    """Recovers; afterwards there is nothing more to do, and taking it back brings every byte
    back. The recovered content stays.
    """
    before = content(root)
    plan = recover(root, *options)
    assert plan["applied"]
    after = content(root)
    again = recover(root, *options, apply=False)
    assert again["actions"] == []
    undo(root)
    assert not changed(before, content(root))
    recover(root, *options)
    # What was made anew has another time of creation.
    assert changed(after, content(root)) <= {METADATA}
    return plan


def timeless(data: bytes) -> meta.Metadata:
    """Metadata without the times of creation and update."""
    metadata = meta.parse(data)
    assert not metadata.faults
    for table in metadata.segments.values():
        for entries in table.values():
            for base, entry in entries.items():
                entries[base] = replace(entry, create_timestamp=0)
    for queues in metadata.queues.values():
        for number, entry in queues.items():
            queues[number] = replace(entry, update_timestamp=0)
    metadata.topics = {name: replace(topic, update_timestamp=0)
                       for name, topic in metadata.topics.items()}
    return metadata


def same_metadata(data: bytes, other: bytes) -> bool:
    first, second = timeless(data), timeless(other)
    return (first.segments == second.segments and first.queues == second.queues
            and first.topics == second.topics and first.serial == second.serial)


def messages(root: Path) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """(queue offset, body digest) of every message that the tier's units lead to."""
    messages_by_queue: dict[tuple[str, int], list[tuple[int, str]]] = {}
    with Tier.open(str(root / "tieredstore")) as tier:
        for queue in tier.queues():
            messages_by_queue[queue.name.topic, queue.name.queue_id] = [
                (at, hashlib.sha1(queue.record(at).body).hexdigest())
                for at in range(queue.min_offset, queue.commit_offset)]
    return messages_by_queue


def expected_messages(expect: Any) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """The same from the engine's answers."""
    return {(flat_file["topic"], flat_file["queueId"]): [(row[0], row[5])
                                                         for row in flat_file["messages"]]
            for flat_file in expect["extra"]["flatFiles"]}


def sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """(position, size) of messages that follow each other."""
    at = 0
    while at < len(data):
        size = struct.unpack_from(">i", data, at)[0]
        yield at, size
        at += size


def change_metadata(root: Path, change: Any) -> None:
    """Writes metadata after ``change`` had it."""
    path = root / METADATA
    metadata = meta.parse(path.read_bytes())
    change(metadata)
    path.write_bytes(meta.build(metadata))
