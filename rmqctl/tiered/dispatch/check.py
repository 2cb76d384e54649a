"""Reads back what a dispatch uploaded and compares it with the local store, byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rmqctl.checks.findings import ERROR
from rmqctl.formats.tiered.units import UNIT_SIZE
from rmqctl.store.log.bounds import View
from rmqctl.store.store import Store
from rmqctl.tiered.dispatch.blocks import Block, Sweep
from rmqctl.tiered.dispatch.local import LocalQueue
from rmqctl.tiered.dispatch.plan import Upload, flat_queue
from rmqctl.tiered.dispatch.resume import unit_rows
from rmqctl.tiered.files.reader import Reader
from rmqctl.tiered.files.settings import TierSettings
from rmqctl.tiered.flat_queue import FlatQueue
from rmqctl.tiered.tier import Tier

_MOST_FINDINGS, _MOST_LISTED = 1_000, 20
"""Findings that are held at all, information among them, and that are listed one by one."""


@dataclass(slots=True)
class Checked:
    """``messages`` that are in the tier as they are in the store; ``problems`` in words.

    ``findings``: what `verify` says of the whole of the broker's part, older things too; it
    ``is_damaged`` by one that is more than a warning.
    """

    messages: int = 0
    problems: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    is_damaged: bool = False


def read_back(store: Store, reader: Reader, uploads: Sequence[Upload],
              advance: Callable[[int], None] = lambda _: None) -> Checked:
    """Compares every message of a run, and its unit, with the local one. StoreIOError."""
    view, checked = View(store), Checked()
    bases: dict[int, int] = {}
    tiered: dict[int, FlatQueue] = {}
    locals_: list[LocalQueue] = []
    for upload in uploads:
        if not upload.outcome.messages:
            continue
        local = LocalQueue(view, store.queues[upload.local.topic, upload.local.queue_id])
        local.end = min(local.end, upload.outcome.end)
        local.seek(upload.outcome.start)
        locals_.append(local)
        bases[id(local)] = upload.first_base
        tiered[id(local)] = flat_queue(reader, upload.flat.name)
    sweep = Sweep(store.log, locals_, lambda local: bases[id(local)])
    for blocks in sweep.windows():
        for block in blocks:
            number = id(block.queue)
            bases[number] += block.bytes
            advance(block.bytes)
            wrong = _difference(tiered[number], block)
            if wrong is None:
                checked.messages += len(block)
            else:
                checked.problems.append(f"{tiered[number].name.path}: {wrong}")
    for local in locals_:
        if local.fault is not None:
            checked.problems.append(f"{local.topic}/{local.queue_id}: queue offset "
                                  f"{local.fault.queue_offset}: {local.fault.reason}")
    return checked


def _difference(queue: FlatQueue, block: Block) -> str | None:
    """What of a block is not in the tier; None: all of it is."""
    last = block.offset + len(block) - 1
    rows, _ = unit_rows(block.begin, block.size, block.tags)
    if queue.consume_queue.read(block.offset * UNIT_SIZE, len(rows)) != rows:
        return f"the units of queue offsets {block.offset} to {last} are not what was written"
    if queue.commit_log.read(block.base, block.bytes) != memoryview(block.data)[:block.bytes]:
        return f"the messages of queue offsets {block.offset} to {last} are not what was written"
    return None


def verify_all(checked: Checked, tier: Tier, broker: str, settings: TierSettings,
               advance: Callable[[int], None] = lambda _: None) -> None:
    """Adds what `verify` has to say against a broker's part of a tier."""
    from rmqctl.tiered.verify.verify import Options, Verification, verdict

    result = verdict(Verification(tier, Options(
        broker=broker, index_slots=settings.index_slots, index_max=settings.index_max),
        progress=advance), _MOST_FINDINGS)
    checked.is_damaged = any(severity == ERROR for _, severity in result.counts)
    for finding in [one for one in result.findings if one.is_trouble][:_MOST_LISTED]:
        place = f"{finding.file or ''}{'' if finding.offset is None else f' @{finding.offset}'}"
        checked.findings.append(f"{finding.category}: {place}: {finding.detail}")
    if result.troubles > len(checked.findings):
        checked.findings.append(f"{result.troubles - len(checked.findings)} more: "
                              f"`rmqctl tiered verify {tier.name}` tells all")
