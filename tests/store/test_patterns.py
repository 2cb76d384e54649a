"""Regular expressions of users on texts of strangers end, one way or the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.errors import UsageError
from rmqctl.store.query import patterns
from tests.conftest import Runner
from tests.support import tiny

ENDLESS = r"(a|a)*$", r"(a|aa)+$"
TEXT = "a" * 60 + "!"


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_search_without_end_is_ended(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_SECONDS", 0.01)
    with pytest.raises(UsageError, match="more than 0.01 s on one value of 61 characters"):
        patterns.matches(pattern, TEXT)


@pytest.mark.parametrize(("pattern", "text", "matches"), [
    ("(a+)+$", TEXT, False), ("^o", "open", True), ("(?i)OPEN", "open", True),
    (r"(?<=a)b(?!c)", "abd", True), (r"\w+号\d", "订单号٣", True), ("x$", "x\n", True),
    (r"(.)\1", "abba", True), ("[[a]", "[", True)])
def test_expressions_are_those_of_python(pattern: str, text: str, matches: bool) -> None:
    patterns.check(pattern)
    assert patterns.matches(pattern, text) is matches


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[", "(?P<a", "*"])
def test_what_is_no_expression(pattern: str) -> None:
    with pytest.raises(UsageError, match="is not a regular expression"):
        patterns.check(pattern)


def test_read_ends_with_an_error(
        tmp_path: Path, rmqctl: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_SECONDS", 0.01)
    root = tiny.build(tmp_path / "store", [tiny.Spec("orders", 0, TEXT.encode())]).root
    done = rmqctl("read", root, "--where", "body~(a|aa)+$").expect(2)
    assert "takes more than 0.01 s" in done.err
    assert done.out == ""
    assert rmqctl("read", root, "--where", "body~(a+)+!$", "-o", "jsonl").expect(0).jsonl()


def test_many_slow_searches_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(patterns, "thread_time", lambda: float(next(clock)))  # 1 s for each search
    monkeypatch.setattr(patterns, "_left", {})
    short, long = "a" * 20, "a" * 1_000_000
    assert all(patterns.matches("^a", long) for _ in range(100))  # 2 s each
    for pattern in ("^a+", "a+$"):
        assert all(patterns.matches(pattern, short) for _ in range(5))
        with pytest.raises(UsageError, match="more than 2 microseconds per character"):
            patterns.matches(pattern, short)
