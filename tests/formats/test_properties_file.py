"""Java properties, as `java.util.Properties.load` reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.errors import FormatError
from rmqctl.formats.config.properties_file import parse


def pairs(text: bytes) -> list[tuple[str, str]]:
    return [(setting.key, setting.value) for setting in parse(text)]


@pytest.mark.parametrize(("text", "expected"), [
    (b"a=1\nb = 2\r\nc:3\rd 4\n", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]),
    (b"  a\t=\t1 2 \n", [("a", "1 2 ")]),  # space behind a value stays
    (b"# x=1\n ! y=2\n\n a=1", [("a", "1")]),
    (b"a=1,\\\n   2,\\\r\n3\nb=4", [("a", "1,2,3"), ("b", "4")]),
    (b"a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),  # an even number of backslashes ends the line
    (b"a\\=b\\:c\\ d=e", [("a=b:c d", "e")]),
    (b"a=C:\\\\store\\tx\\q", [("a", "C:\\store\txq")]),
    (b"a=\\u4e2d\\u6587 \\ud83d\\ude00", [("a", "\u4e2d\u6587 \U0001f600")]),
    (b"a=\xe4", [("a", "\xe4")]),  # Latin-1
    (b"a\na=\na==b\n=c", [("a", ""), ("a", ""), ("a", "=b"), ("", "c")]),
    (b"a=1\\\n\nb=2", [("a", "1"), ("b", "2")]),
    (b"a=1\\", [("a", "1")]),
    (b"a=\\\n# no comment here", [("a", "# no comment here")]),
    (b"", []),
])
def test_lines(text: bytes, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_lines_are_numbered() -> None:
    assert [(setting.key, setting.line)
            for setting in parse(b"#\n\na=1\\\n2\nb=3")] == [("a", 3), ("b", 5)]


@pytest.mark.parametrize("text", [b"x=1\na=\\u12", b"x=1\na=\\uzzzz", b"x=1\n\\u=1"])
def test_java_refuses_half_an_escape(text: bytes) -> None:
    with pytest.raises(FormatError, match="line 2"):
        parse(text)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    try:
        for setting in parse(data):
            setting.value.encode()
    except FormatError:
        pass
