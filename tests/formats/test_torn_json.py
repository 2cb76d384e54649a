"""What is whole before a configuration file breaks off."""

from __future__ import annotations

import pytest

from rmqctl.formats.config import config_json, fastjson, torn_json
from rmqctl.formats.config.torn_json import whole_entries

TABLE = {"dataVersion": {"counter": 7, "timestamp": 1}, "offsetTable": {
    'a"}@b': {0: 5, 1: 7}, "c\\@{d": {0: 1}, "ü@g": {3: 9}}}
FLAT = {"offsetTable": {1: 10, 2: 0, 3: 55}}


@pytest.mark.parametrize("tail", [b"", bytes(30), b"\xff\xfe"],
                         ids=["torn", "zeros", "no text"])
@pytest.mark.parametrize("value", [TABLE, FLAT], ids=["objects", "numbers"])
def test_every_length(value: dict, tail: bytes) -> None:
    """Whatever is read is a part of what was there, and more of it the longer the rest is."""
    data = fastjson.build(value)
    whole = config_json.parse(data).value
    before = 0
    for length in range(len(data)):
        listed_whole_entries = whole_entries(data[:length] + tail)
        if listed_whole_entries is None:
            assert not before
            continue
        read, used = listed_whole_entries
        assert used <= length + len(tail)
        entries = read.get("offsetTable", {})
        assert all(entry == whole["offsetTable"][key] for key, entry in entries.items())
        assert len(entries) >= before
        before = len(entries)
    assert before >= len(whole["offsetTable"]) - 1


@pytest.mark.parametrize("data", [b"", bytes(100), b"{", b'{"offsetTable":', b"[" * 100_000, b"]",
                                  b'{"a":{"b":nonsense,"c":1', b'{"a' + b"\\" * 1000])
def test_nothing_to_be_read(data: bytes) -> None:
    listed_whole_entries = whole_entries(data)
    assert listed_whole_entries is None or not any(listed_whole_entries[0].values())


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_what_nests_too_deep_is_not_followed(opening: bytes, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:
    """With each level more all tokens behind it were slower: 12 MB took minutes."""
    matched = []

    class Counting:
        def match(self, text: str, position: int) -> object:
            matched.append(position)
            return token.match(text, position)

    token = torn_json._TOKEN
    monkeypatch.setattr(torn_json, "_TOKEN", Counting())
    assert whole_entries(b'{"offsetTable":{"a@b":{"0":5},"c@d":' + opening * 10_000) == (
        {"offsetTable": {"a@b": {"0": 5}}}, 29)
    assert len(matched) < 10 * config_json.MAX_DEPTH
