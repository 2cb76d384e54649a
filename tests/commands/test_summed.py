"""The words that grouped findings and actions share."""

from __future__ import annotations

import pytest

from rmqctl.commands.shared.summed import Beginning


@pytest.mark.parametrize(("text", "beginning"), [
    ("message of TopicTest1, queue 2", "message"),
    ("points to the record at 4711", "points to the record"),
    ("body CRC mismatch: 0x1 instead of 0x2", "body CRC mismatch"),
    ("message of orders", "message of orders"),
])
def test_the_beginning_is_no_half_phrase(text: str, beginning: str) -> None:
    assert str(Beginning(text)) == beginning
