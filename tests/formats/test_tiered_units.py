"""Consume queue units and coda records of a tier: the pages, both readers, any bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.tiered import units
from tests.formats.strategies import records_of

SPEC = {"unit": (units.UNIT, 20, ">qiq", "commit_log_offset size tags_code"),
        "coda": (units.CODA, 16, ">iIq", "size magic max_store_timestamp")}


@pytest.mark.parametrize("name", SPEC)
def test_the_page(name):
    unit, size, form, fields = SPEC[name]
    assert (unit.size, struct.calcsize(form), list(unit.names)) == (size, size, fields.split())
    values = tuple(range(1, len(unit.names) + 1))
    assert unit.decode(struct.pack(form, *values)) == values
    assert unit.dtype().itemsize == size


@pytest.mark.parametrize("name", SPEC)
@given(data=st.data())
def test_both_readers_agree_and_it_comes_back(name, data):
    unit = SPEC[name][0]
    record = data.draw(records_of(unit))
    raw = unit.build(record)
    assert len(raw) == unit.size
    assert unit.decode(raw) == unit.parse(raw) == record
    assert unit.decode(b"xx" + raw, 2) == unit.parse(b"xx" + raw, 2) == record
    assert np.frombuffer(raw, unit.dtype())[0].tolist() == tuple(record)


@pytest.mark.parametrize("name", SPEC)
@given(data=st.binary(max_size=50), at=st.integers(-3, 60))
def test_any_bytes(name, data, at):
    """Equal answers, equal words: also for what is cut off."""
    unit = SPEC[name][0]
    answers = []
    for read in (unit.parse, unit.decode):
        try:
            answers.append(read(data, at, 1000))
        except FormatError as error:
            answers.append((error.reason, error.offset, error.path))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", SPEC)
def test_every_length(name):
    unit = SPEC[name][0]
    raw = unit.build(unit.decode(bytes(range(unit.size))))
    for size in range(unit.size):
        for read in (unit.parse, unit.decode):
            with pytest.raises(FormatError, match="past the end"):
                read(raw[:size])


def test_the_coda_of_the_spec():
    """tiered.md §20.6"""
    raw = bytes.fromhex("00000010cbd431940000018bcfe56800")
    record = units.CodaRecord(16, units.CODA_MAGIC, 1_700_000_000_000)
    assert units.CODA.build(record) == raw
    assert units.CODA.decode(raw) == record
    assert units.is_coda(raw)
    assert units.is_coda(b"abc" + raw, 3)
    assert not units.is_coda(raw[:-1])
    assert not units.is_coda(raw, 1)


@given(st.binary(max_size=20))
def test_what_is_a_coda(data):
    assert units.is_coda(data) == (data[:8] == bytes.fromhex("00000010cbd43194")
                                   and len(data) >= 16)


@given(st.binary(min_size=8, max_size=40))
def test_one_that_begins_like_a_coda(rest):
    raw = bytes.fromhex("00000010cbd43194") + rest
    assert units.is_coda(raw)
    assert not units.is_coda(b"\x01" + raw[1:])
    assert not units.is_coda(raw[:7] + b"\x95" + raw[8:])
