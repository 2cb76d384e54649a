"""SQL92 filters: the answers of a broker's own classes, and bounds for filters of strangers.

`sql92_answers.json` has what the module `filter` of RocketMQ 5.3.3 said of each filter, one letter
for each of the properties there: T, F, N (null) and E (it failed); ``-`` for a filter that it does
not compile. Only T is a match.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.broker.sql92 import MAX_DEPTH, MAX_TEXT, compile_filter
from rmqctl.errors import UsageError
from tests.support.share import examples

ANSWERS = json.loads(Path(__file__).with_name("sql92_answers.json").read_text("utf-8"))


@pytest.mark.parametrize("text", ANSWERS["answers"])
def test_as_a_broker_answers(text):
    wanted = ANSWERS["answers"][text]
    if wanted == "-":
        with pytest.raises(UsageError):
            compile_filter(text)
    else:
        predicate = compile_filter(text)
        assert "".join("T" if predicate.matches(property_) else "."
                       for property_ in ANSWERS["properties"]) \
            == "".join(letter if letter == "T" else "." for letter in wanted)


@pytest.mark.parametrize(("text", "at", "expected_text"), [
    ("a = ", 5, "the end"),
    ("", 1, "the end"),
    ("a = 1 AND @", 11, "'@'"),
    ("a = 'x", 5, "unterminated"),
    ("a NOT 5", 7, "BETWEEN or IN"),
    ("a IN ('x' 'y')", 11, "expected , or ), got \"'y'\""),
    ("(a = 1", 7, "expected )"),
    ("a > 'x'", 5, "numbers and properties"),
    ("a = 1 AND 5", 11, "condition"),
    ("a = NULL", 5, "IS NULL"),
    ("a = 99999999999999999999", 5, "64 bits"),
    ("a BETWEEN 5 AND 3", 11, "smaller"),
])
def test_what_does_not_compile_is_named_by_its_place(text, at, expected_text):
    with pytest.raises(UsageError) as refused:
        compile_filter(text)
    assert f"at character {at}: " in str(refused.value)
    assert expected_text in str(refused.value)


def test_deeper_or_longer_than_allowed():
    inner = "(" * MAX_DEPTH + "a = 1" + ")" * MAX_DEPTH
    assert compile_filter(inner).matches({"a": "1"})
    assert compile_filter("NOT " * MAX_DEPTH + "(a = 1)").matches({"a": "1"})
    for text in f"({inner})", "(" * MAX_TEXT, "NOT " * 16_000 + "a", "- " * 32_000, "-" * MAX_TEXT:
        with pytest.raises(UsageError, match=f"more than {MAX_DEPTH}"):
            compile_filter(text)
    with pytest.raises(UsageError, match="65537 characters"):
        compile_filter("a" * (MAX_TEXT + 1))


@pytest.mark.parametrize("text", [
    "a = 1 OR " * 6000 + "a = 2",
    "a IS NOT NULL" + " = TRUE" * 8000,
    "a = 2 AND " + "(a IS NULL) = FALSE AND " * 2000 + "a = 2",
    "--a\n" * 16_000 + "a = 2",
    "/**/" * 16_000 + "a = 2",
    "a IN (" + "'x', " * 12_000 + "'2')",
    "a = ----3 OR " * 4000 + "a = 2",
    # each BETWEEN asks twice for what stands before it
    "-(" * 50 + "a BETWEEN 5 AND 9" + ") BETWEEN -1 AND 5" * 50 + " OR a = 2",
], ids=range(8))
def test_long_filters_cost_in_proportion(text):
    predicate = compile_filter(text[:MAX_TEXT])
    assert len(predicate._steps) < MAX_TEXT
    assert predicate.matches({"a": "2"})
    predicate.matches({"a": "0" * 32_000 + "2"})


WORDS = st.sampled_from(
    "a b NOT AND OR BETWEEN IN IS NULL TRUE FALSE CONTAINS STARTSWITH ENDSWITH = <> < <= > >= ( ) "
    ", + - 'x' '' ''' 5 0 5L 0.5 5. 1e999 99999999999999999999 -- /* */ @ \n \r \u00e9".split(" "))
VALUES = st.one_of(st.sampled_from(["", "5", "-5", "NaN", "0x1p9", "1e999", "0x1p99999", "x", "+"]),
                   st.text(max_size=8))


@settings(max_examples=examples(200))
@given(st.lists(WORDS, max_size=14).map(" ".join),
       st.dictionaries(st.sampled_from("ab"), VALUES))
def test_nothing_else_than_a_refusal_or_an_answer(text, properties):
    try:
        predicate = compile_filter(text)
    except UsageError:
        return
    assert predicate.matches(properties) in (True, False)


class _FailedError(Exception):
    pass


def _number(text):
    if text is not None and not text.lstrip("-").isdecimal():
        raise _FailedError
    return None if text is None else int(text)


def _compare(name, sign, number, properties):
    value = _number(properties.get(name))
    return None if value is None else {
        "=": value == number, "<>": value != number, "<": value < number, ">=": value >= number,
    }[sign]


def _naive(tree, properties):
    """The value of a tree of conditions, by the words of the specification."""
    kind, *parts = tree
    if kind == "compare":
        return _compare(*parts, properties)
    if kind == "between":
        name, low, high, negated = parts
        value = _number(properties.get(name))
        return None if value is None else (low <= value <= high) is not negated
    if kind == "in":
        name, texts, negated = parts
        value = properties.get(name)
        return None if value is None else (value in texts) is not negated
    if kind == "null":
        return (properties.get(parts[0]) is None) is not parts[1]
    if kind == "not":
        value = _naive(parts[0], properties)
        return None if value is None else not value
    decided = kind == "or"
    values = []
    for part in parts:
        values.append(_naive(part, properties))
        if values[-1] is decided:
            return decided
    return None if None in values else not decided


def _text(tree):
    kind, *parts = tree
    if kind == "compare":
        return "{} {} {}".format(*parts)
    if kind == "between":
        return f"{parts[0]}{' NOT' * parts[3]} BETWEEN {parts[1]} AND {parts[2]}"
    if kind == "in":
        return f"{parts[0]}{' NOT' * parts[2]} IN ({', '.join(map(repr, sorted(parts[1])))})"
    if kind == "null":
        return f"{parts[0]} IS{' NOT' * parts[1]} NULL"
    if kind == "not":
        return f"not ({_text(parts[0])})"
    if kind == "and":  # binds tighter than OR: those need parentheses, and only they
        return " And ".join(f"({_text(part)})" if part[0] == "or" else _text(part)
                            for part in parts)
    return " or ".join(map(_text, parts))


NAMES = st.sampled_from("abc")
SMALL = st.integers(0, 4)
CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(st.just("compare"), NAMES, st.sampled_from(["=", "<>", "<", ">="]), SMALL),
        st.tuples(st.just("between"), NAMES, SMALL, SMALL, st.booleans()).filter(
            lambda pair: pair[2] <= pair[3]),
        st.tuples(st.just("in"), NAMES, st.sets(st.sampled_from("01x"), min_size=1), st.booleans()),
        st.tuples(st.just("null"), NAMES, st.booleans())),
    lambda inner: st.one_of(st.tuples(st.just("not"), inner),
                            st.tuples(st.sampled_from(["and", "or"]), inner, inner),
                            st.tuples(st.sampled_from(["and", "or"]), inner, inner, inner)),
    max_leaves=8)


@settings(max_examples=examples(200))
@given(CONDITIONS, st.dictionaries(NAMES, st.sampled_from(["-1", "0", "1", "2", "3", "4", "x"])))
def test_conditions_are_what_they_say(tree, properties):
    try:
        wanted = _naive(tree, properties) is True
    except _FailedError:
        wanted = False
    assert compile_filter(_text(tree)).matches(properties) is wanted
