"""Text of options -> values: sizes, times, zones, offsets, shares, conditions."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import UsageError
from rmqctl.parse_values import (
    FieldValue,
    parse_field_value,
    parse_integer,
    parse_offset,
    parse_percent,
    parse_size,
    parse_time,
    parse_time_range,
    parse_zone,
)

NOW = 1_700_000_000_000
SHANGHAI = timezone(timedelta(hours=8))

needs_zone_data = pytest.mark.skipif(
    "Asia/Shanghai" not in zoneinfo.available_timezones(), reason="no time zone data here"
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1073741824", 1 << 30),
        ("64KiB", 65536),
        ("64kib", 65536),
        ("64K", 65536),
        ("64Ki", 65536),
        ("10MB", 10_000_000),
        ("10mb", 10_000_000),
        ("1 GiB", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("2TiB", 2 << 40),
        ("7B", 7),
        (" 12 ", 12),
        ("9223372036854775807", (1 << 63) - 1),
        ("1,000", 1000),
        ("1,073,741,824", 1 << 30),
        ("1,023 B", 1023),
        (4096, 4096),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5", "0.1KiB", "12 parsecs", "KiB", "1KiBB", "1e3", "0x10",
     "١", "8EiB", "1,00", "1,0000",
     "1000,000", ",100", "1,000,", "1,000.5"],
)
def test_bad_sizes(text):
    with pytest.raises(UsageError, match="size|bytes|larger"):
        parse_size(text)


@given(st.integers(0, (1 << 63) - 1))
def test_a_plain_number_is_itself(number):
    assert parse_size(str(number)) == number
    assert parse_offset(str(number)) == number
    assert parse_offset(hex(number)) == number
    assert parse_size(f"{number:,}") == number
    assert parse_offset(f"{number:,}") == number
    assert parse_integer(f"{-number:,}") == -number


@pytest.mark.parametrize("text", ["", "-1", "0x", "12h", "1.0", "9223372036854775808", "0b1",
                                  "12,34", "1,000,00", "0x1,000"])
def test_bad_offsets(text):
    with pytest.raises(UsageError, match="offset"):
        parse_offset(text)


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), ("100%", 1.0), ("0.5 %", 0.005), (0.25, 0.25)]
)
def test_percentages(text, share):
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["0%", "101%", "10", "-5%", "%", "ten%", ""])
def test_bad_percentages(text):
    with pytest.raises(UsageError, match="%"):
        parse_percent(text)


def test_conditions():
    assert parse_field_value("topic=A") == FieldValue("topic", "A")
    assert parse_field_value("keys=a=b") == FieldValue("keys", "a=b")
    assert parse_field_value("tags=") == FieldValue("tags", "")
    for text in ("topic", "=A", " =A", ""):
        with pytest.raises(UsageError, match="FIELD=VALUE"):
            parse_field_value(text)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1700000000000", NOW),
        ("0", 0),
        ("9223372036854775807", (1 << 63) - 1),  # mqadmin's "no end"
        ("1700000000", NOW),  # 10 digits: seconds
        ("20231114", NOW - (22 * 3600 + 13 * 60 + 20) * 1000),
        ("20231114221320", NOW),
        ("2023-11-14 22:13:20,004", NOW + 4),
        ("2023-11-14#22:13:20:004", NOW + 4),  # as mqadmin prints times
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20.004Z", NOW + 4),
        ("2023-11-14T22:13:20.0049Z", NOW + 4),
        ("2023-11-15T06:13:20+08:00", NOW),
        ("2023-11-14T22:13:20", NOW),
        ("2023-11-14 22:13:20", NOW),
        ("2023-11-14", NOW - (22 * 3600 + 13 * 60 + 20) * 1000),
        ("1969-12-31T23:59:59.999Z", -1),
        ("now", NOW),
        ("-2h", NOW - 7_200_000),
        ("-7d", NOW - 604_800_000),
        ("-90s", NOW - 90_000),
        ("-1d12h", NOW - 129_600_000),
        ("-1w", NOW - 604_800_000),
        ("-250ms", NOW - 250),
        ("-5m", NOW - 300_000),
        ("+5m", NOW + 300_000),
        ("now-5m", NOW - 300_000),
        ("now-2h", NOW - 7_200_000),
        ("now - 2h", NOW - 7_200_000),
        (" -2H ", NOW - 7_200_000),
        (5, 5),
    ],
)
def test_times(text, millis):
    assert parse_time(text, clock=lambda: NOW) == millis


def test_times_without_a_zone_are_in_the_given_one():
    assert parse_time("2023-11-15T06:13:20", tz=SHANGHAI) == NOW
    assert parse_time("2023-11-15", tz=SHANGHAI) == parse_time("2023-11-14T16:00:00Z")
    assert parse_time("2023-11-14T22:13:20Z", tz=SHANGHAI) == NOW
    assert parse_time("20231115061320", tz=SHANGHAI) == NOW
    assert parse_time("20231115", tz=SHANGHAI) == parse_time("2023-11-14T16:00:00Z")
    assert parse_time("1700000000", tz=SHANGHAI) == NOW


@pytest.mark.parametrize("text", ["5", "00", "2023", "202311", "2023111", "231114221",
                                  "20231114221", "202311142213", "202311142213200",
                                  "20231114221320004", "9223372036854775806", "1" * 5000])
def test_digits_that_could_mean_anything_are_no_time(text):
    with pytest.raises(UsageError, match="epoch milliseconds have 13 digits, epoch seconds 10"):
        parse_time(text)


@pytest.mark.parametrize("text", ["20231314", "20230229", "20231114246060", "00000101"])
def test_digits_that_name_no_day_are_no_time(text):
    with pytest.raises(UsageError, match="does not exist as yyyy"):
        parse_time(text)


@pytest.mark.parametrize("text", ["-" + "9" * 5000 + "h", "-99999999999999999999w"])
def test_a_distance_has_an_end(text):
    with pytest.raises(UsageError, match="is too long"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "-2", "2h", "-2y", "2023-13-01", "2023-11-14T25:00", "-", "99999-1-1", "-h"],
)
def test_bad_times(text):
    with pytest.raises(UsageError, match="invalid time"):
        parse_time(text, clock=lambda: NOW)


@given(st.text(max_size=30))
def test_no_text_crashes_a_parser(text):
    for parse in (parse_size, parse_offset, parse_percent, parse_field_value, parse_zone):
        try:
            parse(text)
        except UsageError as error:
            assert str(error)
    try:
        assert isinstance(parse_time(text, clock=lambda: NOW), int)
    except UsageError as error:
        assert "time" in str(error)


def test_a_range_has_one_now_and_is_not_empty():
    ticks = iter([NOW])
    assert parse_time_range("-1h", "now", clock=lambda: next(ticks)) == (NOW - 3_600_000, NOW)
    assert parse_time_range(None, None) == (None, None)
    assert parse_time_range("0", None) == (0, None)
    assert parse_time_range("20231114", "2023-11-14") == (1_699_920_000_000,) * 2
    with pytest.raises(UsageError, match="after"):
        parse_time_range("20231115", "20231114")


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("UTC", 0),
        ("utc", 0),
        ("Z", 0),
        ("+08:00", 480),
        ("-0330", -210),
        ("+8", 480),
        ("UTC+8", 480),
        ("GMT-5", -300),
    ],
)
def test_zones(text, offset):
    assert parse_zone(text).utcoffset(None) == timedelta(minutes=offset)


@needs_zone_data
def test_named_zones_know_their_history():
    zone = parse_zone("Europe/Berlin")
    assert parse_time("2023-07-01T02:00", tz=zone) == parse_time("2023-07-01T00:00Z")
    assert parse_time("2023-12-01T01:00", tz=zone) == parse_time("2023-12-01T00:00Z")


@needs_zone_data
def test_the_local_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    assert parse_time("2023-11-15T06:13:20", tz=parse_zone("local")) == NOW


def test_a_parsed_zone_is_handed_back():
    assert parse_zone(UTC) is UTC


@pytest.mark.parametrize("text", ["Mars/Olympus", "+24:00", "", "/etc/passwd", "../x", "+08:99"])
def test_bad_zones(text):
    with pytest.raises(UsageError, match="time zone"):
        parse_zone(text)
