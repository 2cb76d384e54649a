"""What ``input.jsonl`` says of the records of a golden set, as message objects."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import GoldenFolder
from tests.support import engine
from tests.support import golden as golden_sets


def puts_of(store: golden_sets.GoldenStore, golden: GoldenFolder) -> list[engine.Stored]:
    """The records that were stored, in log order. Damaged sets were made from `crash-base`."""
    folder = golden(f"{store.version}/crash-base" if store.set.is_damaged else store.set.id)
    return sorted((record for put in engine.puts(folder / "input.jsonl") for record in put.stored),
                  key=lambda record: record.physical_offset)


def object_of(record: engine.Stored) -> dict[str, Any]:
    """The fields of the message object that the engine tells of a record."""
    return {
        "physical_offset": record.physical_offset, "total_size": record.size,
        "magic": {0xDAA320A7: "v1", 0xDAA320AB: "v2"}[record.magic], "body_crc": record.body_crc,
        "topic": record.topic, "queue_id": record.queue_id, "queue_offset": record.queue_offset,
        "flag": record.flag, "sys_flag": record.sys_flag,
        "born_timestamp": record.born_timestamp, "born_host": host(record.born_host),
        "store_timestamp": record.store_timestamp, "store_host": host(record.store_host),
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "properties_raw": record.properties,
    }


def host(text: str) -> str:
    """A host in the contract's notation: Java spells out the zeros of an IPv6 address."""
    address, _, port = text.rpartition(":")
    if not address.startswith("["):
        return text
    return f"[{ipaddress.ip_address(address.strip('[]'))}]:{port}"


def log_bytes(root: Path, folders: tuple[str, ...]) -> dict[int, bytes]:
    """Base offset -> content of every commitlog file."""
    return {int(path.name): path.read_bytes() for folder in folders
            for path in sorted((root / folder).iterdir())}


def intact(root: Path, store: golden_sets.GoldenStore,
           records: list[engine.Stored]) -> Iterator[engine.Stored]:
    """Those records whose bytes lie in the log exactly as they were stored."""
    files = log_bytes(root, store.commitlog_dirs)
    for record in records:
        base = max((file for file in files if file <= record.physical_offset), default=None)
        if base is None:
            continue
        raw = files[base][record.physical_offset - base:][:record.size]
        if hashlib.sha1(raw).hexdigest() == record.raw_sha1:
            yield record
