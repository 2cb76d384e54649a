"""Hypothesis strategies made from the declarations: values that fit each field."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st

from rmqctl.formats.fixed import Fixed
from rmqctl.formats.local import message
from rmqctl.formats.local.message import Record


def integers(code: str) -> st.SearchStrategy[int]:
    bits = 8 * struct.calcsize(">" + code)
    if code.isupper():
        return st.integers(0, (1 << bits) - 1)
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def records_of(unit: Fixed[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*(integers(field.code) for field in unit.fields)).map(unit._make)


i32, i64 = integers("i"), integers("q")


@st.composite
def messages(draw: st.DrawFn) -> Record:
    """Any record that can be stored: both versions, all host widths, any bytes."""
    magic = draw(st.sampled_from(list(message.VERSIONS)))
    sys_flag = draw(i32)
    born_v6, store_v6 = bool(sys_flag & 0x10), bool(sys_flag & 0x20)
    body = draw(st.binary(max_size=80))
    topic = draw(st.binary(max_size=min(message.longest_topic(magic), 300)))
    properties = draw(st.binary(max_size=80))
    return Record(
        message.size_of(sys_flag, magic, len(body), len(topic), len(properties)), magic,
        draw(i32), draw(i32), draw(i32), draw(i64), draw(i64), sys_flag, draw(i64),
        (draw(st.binary(min_size=16 if born_v6 else 4, max_size=16 if born_v6 else 4)), draw(i32)),
        draw(i64),
        (draw(st.binary(min_size=16 if store_v6 else 4, max_size=16 if store_v6 else 4)),
         draw(i32)),
        draw(i32), draw(i64), body, topic, properties)
