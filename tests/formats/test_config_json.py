"""The JSON of config/: strict JSON, fastjson's dialect, damage; linear, bounded, no nonsense."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.config import config_json
from rmqctl.formats.config.config_json import Oddity

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), inner), max_leaves=20)


def unquoted(value: Any) -> str:
    """JSON in which every key that is an integer stands bare, as fastjson writes it."""
    if isinstance(value, dict):
        return "{" + ",".join(
            (key if key.lstrip("-").isdigit() and str(int(key)) == key else json.dumps(key))
            + ":" + unquoted(inner) for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(unquoted, value)) + "]"
    return json.dumps(value)


@given(values)
def test_strict_json_is_read_as_it_is(value: Any) -> None:
    for raw in (json.dumps(value).encode(), json.dumps(value, ensure_ascii=False).encode(),
                config_json.build(value)):
        assert config_json.parse(raw) == (value, [])


@given(values)
def test_the_careful_reader_reads_all_strict_json(value: Any) -> None:
    """A number that only the careful reader takes forces it over the whole text."""
    raw = b"\t[\r\n" + json.dumps(value).encode() + b' , "\\ud83d\\ude42" ] \n'
    assert config_json.parse(raw) == ([value, "🙂"], [])


@pytest.mark.long
@given(st.recursive(st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
                    lambda inner: st.lists(inner) | st.dictionaries(
                        st.integers(-(1 << 63), 1 << 63).map(str) | st.text("ab"), inner)))
def test_bare_integer_keys_at_any_depth(value: Any) -> None:
    if isinstance(value, dict | list):
        assert config_json.parse(unquoted(value).encode()) == (value, [])


@pytest.mark.long
@given(st.text('{}[]:,"\\ 01-', max_size=12) | st.lists(st.sampled_from(
    ["{", "}", "[", "]", ",", ":", "1:", "{2 :", ",3:", '"a"', '"b,4:"', '"{5:', "6"])
    ).map("".join))
def test_bare_keys_are_read_as_the_careful_reader_does(text: str) -> None:
    """The short way, over quoted keys, and the other one: the same value or the same refusal."""
    def outcome(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except FormatError as error:
            return str(error)

    source = config_json._Text(text.encode())
    assert outcome(lambda: config_json._decode(source)[0]) == outcome(
        lambda: config_json._Reader(source).read()[0])


@pytest.mark.parametrize("name", ["4.9.3/delay-delivered/store/config/delayOffset.json",
                                  "5.3.3/tiered/store/config/tieredStoreMetadata.json",
                                  "5.3.3/tiered/store/config/tieredStoreMetadata.json.bak",
                                  "5.3.3/timer/store/config/timermetrics",
                                  "5.3.3/compaction/store/compaction/position-checkpoint"])
def test_files_of_the_engine(name: str, golden: Callable[[str], Path]) -> None:
    head, _, rest = name.partition("/store/")
    raw = (golden(head) / "store" / rest).read_bytes()
    value, oddities = config_json.parse(raw)
    assert isinstance(value, dict)
    assert value
    assert oddities == []
    if "delayOffset" in name:
        assert value["offsetTable"]["18"] == 1
    # Nothing but quoted keys is added when it is written strictly.
    assert config_json.parse(config_json.build(value)).value == value


@pytest.mark.parametrize(("raw", "value", "oddities"), [
    (b'{"a":1}\n\n', {"a": 1}, []),
    (b'{"a":1}":0}', {"a": 1}, [("trailing-garbage", 7)]),
    (b'{1:1} \n {', {"1": 1}, [("trailing-garbage", 8)]),
    (b'[1]]', [1], [("trailing-garbage", 3)]),
    (b'{"a":1}\0\0', {"a": 1}, [("trailing-garbage", 7)]),
    (b'\xef\xbb\xbf{"a":1}', {"a": 1}, [("byte-order-mark", 0)]),
    (b'\xef\xbb\xbf{1:"\xc3\xbc"}x', {"1": "ü"}, [("byte-order-mark", 0),
                                                  ("trailing-garbage", 11)]),
    (b'{"\xc3\xbc":"\xff"}', {"ü": "\ufffd"}, [("invalid-utf8", 7)]),
    (b'{"\xc3\xbc":"\xe4\xbd"}', {"ü": "\ufffd\ufffd"}, [("invalid-utf8", 7)]),
    (b'{"\xc3\xbc\xff":1} }', {"ü\ufffd": 1}, [("invalid-utf8", 4), ("trailing-garbage", 10)]),
    (b'{"a":1,"a":2}', {"a": 2}, [("duplicate-key", 7)]),
    (b'{"0":1,0:2}', {"0": 2}, [("duplicate-key", 7)]),
    (b'{"\xc3\xbc":"\\ud800"}', {"ü": "\ud800"}, [("lone-surrogate", 6)]),
    (b'{"a":"\\ud83d\\ude42"}', {"a": "🙂"}, []),
])
def test_oddities_are_reported_with_their_place(raw: bytes, value: Any,
                                            oddities: list[tuple[str, int]]) -> None:
    parsed = config_json.parse(raw)
    assert parsed.value == value
    assert [(oddity.kind, oddity.offset) for oddity in parsed.oddities] == oddities
    assert all(isinstance(oddity, Oddity) and oddity.detail for oddity in parsed.oddities)


@pytest.mark.parametrize(("raw", "offset", "path"), [
    (b"", 0, "$"), (b" \n", 0, "$"), (b"\xef\xbb\xbf", 0, "$"), (b"\0" * 50, 0, "$"),
    (b"{", 1, "$"), (b'{"a"', 4, "$"), (b'{"a":', 5, "$.a"), (b'{"a":1', 6, "$"),
    (b'{"a":[1,', 8, "$.a[1]"), (b'{"a":{"b":x}}', 10, "$.a.b"), (b'{"a":1,}', 7, "$"),
    (b"[1,]", 3, "$[1]"), (b"[,1]", 1, "$[0]"), (b"{,}", 1, "$"), (b"{1}", 1, "$"),
    (b"{a:1}", 1, "$"), (b"{'a':1}", 1, "$"), (b"{01:1}", 1, "$"), (b"{1.5:1}", 1, "$"),
    (b"{+1:1}", 1, "$"), (b"{- 1:1}", 1, "$"), (b'{"a":01}', 6, "$"), (b'{"a":+1}', 5, "$.a"),
    (b'{"a":.5}', 5, "$.a"), (b'{"a":1.}', 6, "$"), (b'{"a":NaN}', 5, "$.a"),
    (b'{"a":-Infinity}', 5, "$.a"), (b'{"a":1e999}', 5, "$.a"), (b'{"a":nul}', 5, "$.a"),
    (b'{"a":nullx}', 5, "$.a"), (b'{"a":True}', 5, "$.a"), (b'{"a":"\t"}', 5, "$.a"),
    (b'{"a":"\\x41"}', 5, "$.a"), (b'{"a":"\\u12g4"}', 5, "$.a"), (b'{"a" 1}', 5, "$"),
    (b'{"a":1 "b":2}', 7, "$"), (b"[1 2]", 3, "$[1]"), (b'{"a":[1}', 7, "$.a[1]"),
    (b'{"\xc3\xbc":x}', 6, "$.ü"), (b"1 x", 2, "$"), (b"null null", 5, "$"), (b"orders", 0, "$"),
    (b'{"a":1/*x*/}', 6, "$"), (b"\xff\xfe{\0}\0", 0, "$"), (b'{"a":' + b"9" * 5000 + b"}", 5,
                                                              "$.a"),
    (b"{" + b"1" * 5000, 1, "$"), (b'"abc', 0, "$"), (b"<xml/>", 0, "$"),
])
def test_nonsense_is_refused_at_its_place(raw: bytes, offset: int, path: str) -> None:
    with pytest.raises(FormatError) as caught:
        config_json.parse(raw)
    assert (caught.value.offset, caught.value.path) == (offset, path)


def test_a_lone_scalar_is_a_value() -> None:
    assert config_json.parse(b" 17 ") == (17, [])
    assert config_json.parse(b'"x"') == ("x", [])


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b"{1:", b"}")])
@pytest.mark.parametrize("depth", [99, 100, 101, 500, 5_000, 300_000])
def test_depth_is_bounded(opening: bytes, closing: bytes, depth: int) -> None:
    raw = opening * depth + b"1" + closing * depth
    if depth <= config_json.MAX_DEPTH:
        value = config_json.parse(raw).value
        for _ in range(depth):
            value = value[0] if isinstance(value, list) else next(iter(value.values()))
        assert value == 1
    else:
        with pytest.raises(FormatError, match="nested deeper than 100") as caught:
            config_json.parse(raw)
        assert caught.value.offset is not None
    with pytest.raises(FormatError):
        config_json.parse(opening * depth)


def test_brackets_behind_the_value_are_no_depth() -> None:
    value, oddities = config_json.parse(b'{"a":1}' + b"[" * 1000)
    assert value == {"a": 1}
    assert [oddity.offset for oddity in oddities] == [7]


def test_brackets_in_texts_are_no_depth() -> None:
    value = {"a": "[{" * 1000 + '\\"'}
    assert config_json.parse(json.dumps(value).encode()) == (value, [])


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "open quote and escapes": lambda n: b'{"' + b'\\"' * n,
    "quotes": lambda n: b'"' * n,
    "backslashes": lambda n: b'{"a":"' + b"\\" * n,
    "spaces": lambda n: b" " * n + b"x",
    "digits": lambda n: b"[" + b"1" * n,
    "bad bytes": lambda n: b'{"a":"' + b"\xff" * n + b'"}',
    "duplicates": lambda n: "{{{}}}".format(",".join(['"ü":1'] * n)).encode(),
    "surrogates": lambda n: ('["ü' + '","'.join(["\\ud800"] * n) + '"]').encode(),
    "bare keys": lambda n: ("{" + ",".join(f"{i}:[]" for i in range(n)) + "}").encode(),
    "trailing": lambda n: b"{1:1}" + b"{" * n,
    "shallow": lambda n: b"[" + b"[],{}," * n + b"1]",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_time_is_linear(kind: str) -> None:
    raw = HOSTILE[kind](50_000)
    start = time.process_time()
    try:
        config_json.parse(raw)
    except FormatError as error:
        assert len(str(error)) < 1000
    assert time.process_time() - start < 1.25


def test_many_oddities_are_cut() -> None:
    raw = ("{" + ",".join(['"a":1'] * 1000) + "}").encode()
    assert len(config_json.parse(raw).oddities) == config_json.MAX_ODDITIES


@given(st.binary(max_size=60) | st.text(alphabet='{}[]:,"\\ 01-e.tfnul\t\ud800'.replace(
    "\ud800", "ü")).map(str.encode))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        value, _ = config_json.parse(raw)
    except FormatError as error:
        assert error.offset is not None
        assert 0 <= error.offset <= len(raw)
        with pytest.raises((ValueError, RecursionError)):
            _strict(raw)
        return
    json.dumps(value, allow_nan=False)


def _strict(raw: bytes) -> None:
    def refuse(text: str) -> Any:
        raise ValueError(text)

    value = json.loads(raw.decode("utf-8"), parse_constant=refuse)
    json.dumps(value, allow_nan=False)


def test_every_truncation_of_a_file_is_refused_and_every_byte_of_garbage_is_reported(
        golden: Callable[[str], Path]) -> None:
    raw = (golden("4.9.3/delay-delivered") / "store/config/delayOffset.json").read_bytes().strip()
    for cut in range(len(raw)):
        with pytest.raises(FormatError):
            config_json.parse(raw[:cut])
    for byte in range(256):
        oddities = config_json.parse(raw + bytes([byte])).oddities
        assert bool(oddities) == (byte not in b" \t\r\n")


def test_build_refuses_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        config_json.build(float("nan"))
    assert config_json.build({"a": {"b": 1}}) == b'{\n\t"a":{\n\t\t"b":1\n\t}\n}'


@pytest.mark.parametrize(("end", "is_read_on"), [
    (b'"k":{0:7}}', False), (b'"k":{0:7}} x', True), (b'"k":{0:7,}}', True), (b'"k":1e999}', True)])
def test_many_duplicates_are_read_as_few(end: bytes, is_read_on: bool,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow reader goes on only where something else is odd."""
    data = b'{"d":{1:2},' + b'"k":{0:1,0:2},' * (config_json.MAX_ODDITIES * 20) + end

    def read(of: Callable[[bytes], Any]) -> Any:
        try:
            return of(data)
        except FormatError as error:
            return str(error)

    slowly = read(lambda text: config_json._Reader(config_json._Text(text)).read()[0])
    steps = []
    step = config_json._Reader._skip
    monkeypatch.setattr(config_json._Reader, "_skip", lambda of: (steps.append(1), step(of))[1])
    content = read(config_json.parse)
    assert (content if isinstance(content, str) else content.value) == slowly
    assert (len(steps) > 60 * config_json.MAX_ODDITIES) == is_read_on
    if not isinstance(content, str):
        assert [oddity.kind for oddity in content.oddities][:config_json.MAX_ODDITIES] == [
            "duplicate-key"] * config_json.MAX_ODDITIES
