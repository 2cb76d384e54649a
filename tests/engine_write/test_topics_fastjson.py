"""The writer of fastjson's text: its exact form, and that the tolerant reader gets it back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.formats.config import config_json, fastjson

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12)


def test_the_form_of_a_topic_file() -> None:
    value = {"dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000},
             "topicConfigTable": {"orders": {"attributes": {}, "order": False, "perm": 6}}}
    assert fastjson.build(value).decode() == (
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t'
        '"timestamp":1700000000000\n\t},\n\t"topicConfigTable":{\n\t\t"orders":{\n\t\t\t'
        '"attributes":{},\n\t\t\t"order":false,\n\t\t\t"perm":6\n\t\t}\n\t}\n}')


def test_keys_that_are_numbers_stand_bare_on_the_line() -> None:
    assert fastjson.build({"offsetTable": {"a@b": {0: 5, 1: 7}}}) == (
        b'{\n\t"offsetTable":{\n\t\t"a@b":{0:5,1:7\n\t\t}\n\t}\n}')


def test_empty_things() -> None:
    assert fastjson.build({}) == b"{}"
    assert fastjson.build({"a": [], "b": ""}) == b'{\n\t"a":[],\n\t"b":""\n}'


@pytest.mark.parametrize(("text", "written"), [
    ('a"b\\c/d', r'"a\"b\\c/d"'), ("\b\t\n\f\r", r'"\b\t\n\f\r"'),
    ("\0\x01\x0b\x1f", r'"\u0000\u0001\u000B\u001F"'), ("\x7f\x9f", r'"\u007F\u009F"'),
    ("\u2028\u2029", r'"\u2028\u2029"'), ("größe 🙂 '", "\"größe 🙂 '\""), ("\ud800", r'"\uD800"')])
def test_texts(text: str, written: str) -> None:
    assert fastjson.quoted(text) == written
    assert config_json.parse(fastjson.build([text])).value == [text]


@given(PLAIN)
def test_it_is_read_back(value: object) -> None:
    raw = fastjson.build(value)
    assert config_json.parse(raw).value == value
    assert json.loads(raw) == value


@given(st.dictionaries(st.integers(-(1 << 31), 1 << 31), st.dictionaries(
    st.integers(0, 9), st.integers(0, 1 << 62), max_size=3), max_size=3))
def test_bare_keys_are_read_back(value: dict[int, dict[int, int]]) -> None:
    read_back = config_json.parse(fastjson.build({"t": value})).value["t"]
    assert read_back == {str(key): {str(k): v for k, v in inner.items()}
                         for key, inner in value.items()}


@given(st.recursive(st.integers() | st.booleans(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.sampled_from("abc"), inner), max_leaves=9))
def test_without_odd_texts_it_is_plain_indented_json(value: object) -> None:
    assert fastjson.build(value) == config_json.build(value)


@pytest.mark.parametrize("value", [{True: 1}, {1.5: 1}, {None: 1}, {"a": b"x"}, {"a": {1, 2}}])
def test_what_cannot_be_written(value: object) -> None:
    with pytest.raises(TypeError):
        fastjson.build(value)


def test_no_number() -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        fastjson.build(float("nan"))
