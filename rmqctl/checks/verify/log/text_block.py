"""Blocks of messages gathered over several batches, for what needs their texts.

Topics, tags and keys are worked on in blocks of tens of thousands of messages: the cost of a
column operation is then spread over many of them. A block owns its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rmqctl.scan import text
from rmqctl.scan.frames import Array, Batch

BLOCK = 1 << 15
_COLUMNS = ("queue_id", "queue_offset", "sys_flag", "store_timestamp", "total_size",
            "properties_length")


@dataclass(slots=True)
class Block:
    """Columns (int64) of messages in log order; ``ok`` is False where a checksum failed."""

    offset: Array
    topic: Array
    ok: Array
    sealed: Array
    queue_id: Array
    queue_offset: Array
    sys_flag: Array
    store_timestamp: Array
    total_size: Array
    properties_length: Array
    packed_properties: text.Packed
    _properties: text.Properties | None = None

    @property
    def properties(self) -> text.Properties:
        """The properties, cut into segments when first asked for."""
        if self._properties is None:
            self._properties = text.Properties(self.packed_properties)
        return self._properties

    def __len__(self) -> int:
        return len(self.offset)


class Gatherer:
    """Collects batches until a block is full."""

    def __init__(self) -> None:
        self._parts: list[tuple[Array, ...]] = []
        self._packed: list[text.Packed] = []
        self.count = 0

    def add(self, batch: Batch, topic: Array, ok: Array, sealed: Array) -> None:
        """Copies what a block needs of a batch whose data is about to go."""
        self._parts.append((batch.offset, topic, ok, sealed,
                            *(batch.column(name) for name in _COLUMNS)))
        self._packed.append(text.properties(batch).packed())
        self.count += len(batch)

    def take(self) -> Block | None:
        """The gathered block, None if there is nothing."""
        if not self._parts:
            return None
        columns: list[Any] = [part[0] if len(part) == 1 else np.concatenate(part)
                              for part in zip(*self._parts, strict=True)]
        whole: Any = (*columns, text.joined(self._packed))
        self._parts, self._packed, self.count = [], [], 0
        return Block(*whole)
