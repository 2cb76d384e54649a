"""Consume queue units and coda records of a tier: the pages, both readers, any bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.tiered import units


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
