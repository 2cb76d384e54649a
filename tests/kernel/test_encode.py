"""The kernel's writer of records holds on to its ranges, whatever arrays it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rmqctl.formats.local.message import MAGIC_V1, decode, variant
from rmqctl.kernel import active
from tests.support.kernels import compiled_only, using

pytestmark = compiled_only

HEAD = variant(0, MAGIC_V1).head.pack(
    0, MAGIC_V1, 0, 3, 0, 0, 0, 0, 0, bytes(4), 1, 0, bytes(4), 2, 0, 0, 0)
TEMPLATE = HEAD + b"\x01t"
SIZE = len(TEMPLATE) + 5 + 2 + 4


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def arguments() -> dict[str, Any]:
    """What is right for one message."""
    return {
        "out": np.zeros(SIZE, np.uint8), "physical": 7, "lane": ints(0),
        "template": np.frombuffer(TEMPLATE, np.uint8).reshape(1, -1).copy(),
        "head_size": ints(len(HEAD)), "topic_size": ints(2), "queue": ints(1),
        "next_offset": ints(9, 5), "numbers": np.array([[1], [2], [3], [4], [5]], np.int64),
        "bodies": b"..hello", "body_start": ints(2), "body_length": ints(5),
        "texts": b"a\x01b\x02", "text_start": ints(0), "text_length": ints(4),
        "queue_offset": ints(-1)}


def test_one_record() -> None:
    with using("compiled"):
        kernel = active()
        assert kernel is not None
        given = arguments()
        assert kernel.encode(*given.values()) == SIZE
    record = decode(given["out"].tobytes())
    assert (record.total_size, record.physical_offset, record.queue_offset) == (SIZE, 7, 5)
    assert (record.flag, record.born_timestamp, record.store_timestamp) == (1, 2, 3)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (4, 5)
    assert (record.body, record.topic, record.properties) == (b"hello", b"t", b"a\x01b\x02")
    assert (record.queue_id, record.crc_ok) == (3, True)
    assert given["next_offset"].tolist() == [9, 6]
    assert given["queue_offset"].tolist() == [5]


LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
WRONG = [("out", np.zeros(0, np.uint8)), ("out", np.zeros(SIZE - 1, np.uint8)),
         *((name, ints(value)) for name in (
             "lane", "head_size", "topic_size", "queue", "body_start", "body_length",
             "text_start", "text_length") for value in (
                 -1, 6 if "size" not in name else 60, 1 << 31, LEAST, GREATEST)),
         *((name, ints()) for name in (
             "head_size", "topic_size", "queue", "next_offset", "body_start", "body_length",
             "text_start", "text_length", "queue_offset")),
         ("numbers", np.zeros((5, 0), np.int64)), ("numbers", np.zeros((4, 1), np.int64)),
         ("template", np.zeros((1, 10), np.uint8)), ("template", np.zeros((0, 90), np.uint8)),
         ("bodies", b""), ("texts", b"")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_nothing_outside_is_read_or_written(name: str, value: Any) -> None:
    given = arguments() | {name: value}
    with using("compiled"):
        kernel = active()
        assert kernel is not None
        with pytest.raises((IndexError, ValueError)):
            kernel.encode(*given.values())


def test_no_messages() -> None:
    given = arguments() | {"lane": ints(), "out": np.zeros(0, np.uint8)}
    with using("compiled"):
        kernel = active()
        assert kernel is not None
        assert kernel.encode(*given.values()) == 0
