"""One word for one idea: what an option means has the same name wherever there is one.

A new option of a kind that is named here takes one of its words, or has a reason to be added.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import REGISTRY
from rmqctl.commands.app.describe import former_names, parameter, parameters
from rmqctl.commands.app.lazy import load
from tests.support.language import DOCSTRING, MESSAGE, PAGE, Text, texts
from tests.support.source import together


@cache
def options():
    """(title of the command, option) for each that is shown."""
    return [(spec.title, parameter) for spec in REGISTRY for parameter in parameters(load(spec))
            if parameter.kind == "option"]


#: The words for what a value stands for, by its name in help.
WORDS = {
    "TIME": {"--since", "--until", "--time", "--now"},
    "ZONE": {"--tz"},
    "TOPIC": {"--topic"},
    "GROUP": {"--group", "--from-group", "--to-group"},
    "KEY": {"--key"},
    "TAG": {"--tag"},
    "VERSION": {"--broker-version"},
    "KIND": {"--kind"},
    "FORMAT": {"--output", "--format"},
    "OFFSET": {"--phy", "--from-phy", "--to-phy", "--explain", "--at", "--in-memory-from",
               "--prepared-offset", "--until-offset"},
    "A,B,C": {"--fields"},
    "FIELD=VALUE": {"--where"},
    "PERCENT": {"--sample", "--disk-watermark", "--max-address-share"},
}
#: How helps begin of what bounds the number of rows.
BOUNDS = ("at most", "list at most", "how many", "the first n rows")
#: What the short ones of mqadmin stand for; -q and -o are rmqctl's own in all commands.
SHORT = {"-t": "--topic", "-g": "--group", "-k": "--key", "-i": "--queue", "-q": "--quiet",
         "-o": "--output"}


@pytest.mark.parametrize("value_name", WORDS)
def test_a_kind_of_value_has_its_words(value_name):
    named = {option.names[0] for _, option in options() if option.value_name == value_name}
    assert named <= WORDS[value_name]


def test_a_bound_on_rows_is_called_limit():
    for title, option in options():
        if option.help.lower().startswith(BOUNDS) and option.type == "integer":
            assert option.names[0] == "--limit", title


def test_one_help_has_one_name():
    named = defaultdict(set)
    for _, option in options():
        named[option.help].add(option.names[0])
    assert {text: names for text, names in named.items() if len(names) > 1} == {}


def test_an_option_has_one_long_name():
    for title, option in options():
        on = [name for name in option.names if name.startswith("--")]
        assert len(on) == 1 or f"--no-{on[0][2:]}" == on[1] or on == ["--all", "--full"], title


@pytest.mark.parametrize("short", SHORT)
def test_a_letter_means_one_thing_and_is_wherever_that_is(short):
    with_it = {(title, option.names[0]) for title, option in options() if short in option.names}
    assert with_it == {(title, SHORT[short]) for title, option in options()
                       if SHORT[short] in option.names}


def test_former_names_are_not_shown_and_are_no_names_of_others():
    for spec in REGISTRY:
        params = [param for param in load(spec).params if not param.hidden]
        shown = {name for param in params for name in parameter(param).names}
        for param in params:
            if param.param_type_name == "option":
                assert not shown & set(former_names(param)), spec.title
                assert set(param.opts) - set(former_names(param)) <= {*parameter(param).names}


@pytest.mark.parametrize(("former", "now"), [
    ("read --topic TopicTest --queue 0 --from-offset 1 --count 1",
     "read -t TopicTest -i 0 --offset 1 --limit 1"),
    ("query key --topic TopicTest --key k --begin 0 --end now --max 2",
     "query key -t TopicTest -k k --since 0 --until now --limit 2"),
    ("tail --lines 2", "tail -n 2"),
    ("stats --top 1", "stats --limit 1"),
    ("verify --max-findings 0", "verify --limit 0"),
    ("query time --topic TopicTest --queue 0 --time 0 --like 4.9.3",
     "query time -t TopicTest -i 0 --time 0 --broker-version 4.9.3"),
])
def test_former_names_still_do_what_they_did(tiny_base, rmqctl, former, now):
    results = [rmqctl(*words.split(), tiny_base.root, "-o", "json") for words in (former, now)]
    assert results[0].code == results[1].code
    assert results[0].out == results[1].out
    json.loads(results[0].out)


def test_help_says_the_names_of_today(rmqctl):
    shown = rmqctl("read", "--help").expect(0).out
    assert "-t, --topic TOPIC" in shown
    assert "--limit N" in shown
    assert "--count" not in shown


# -- sentences ------------------------------------------------------------------------------------

#: How no docstring begins: it says what to do, or names a thing.
QUESTIONS = ("What ", "Whether ", "Where ", "Who ", "Whose ", "How ", "Which ", "Why ")
HELP_LINE = 54
"""Characters of a line of an option's help at 80 columns, about."""


@together
@pytest.mark.parametrize("kind", [MESSAGE, DOCSTRING, PAGE])
def test_no_text_has_forbidden_words(kind):
    assert {f"{text.path}:{text.line}": faults for text in texts()
            if text.kind == kind and (faults := text.faults())} == {}


@together
def test_a_docstring_begins_with_a_verb_or_a_noun():
    assert [f"{text.path}:{text.line}: {text.text[:40]!r}" for text in texts()
            if text.kind == DOCSTRING and text.text.startswith(QUESTIONS)] == []


def test_the_help_of_an_option_has_two_lines():
    assert {f"{title} {option.names[0]}": option.help for title, option in options()
            if len(option.help) > 2 * HELP_LINE} == {}


def test_a_meaning_has_one_line():
    assert {name: category.meaning for name, category in CATEGORIES.items()
            if len(category.meaning) > 80} == {}


def test_forbidden_words_are_found():
    text = Text(MESSAGE, "a.py", 1, "made anew,\n and the port is\nnone")
    assert len(text.faults()) == 2
    assert "again" in text.faults()[0]
    assert Text(MESSAGE, "a.py", 1, "None of the groups is affected").faults() == []


#: Names that say nothing about what they name. FOUND is a code of the protocol.
EMPTY = re.compile(
    r"\b_*(?!(?-i:FOUND)\b)(?:one|each|known|told|said|found|made)_*\b", re.IGNORECASE)
TEXT = re.compile(r'''(""").*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*''', re.DOTALL)
ROOT = Path(__file__).parents[1]
#: Classes with one name that are the same thing: an interface and its implementation, or the
#: records of a format, which are always named with their module.
SAME = {"Decoding", "HeaderRecord", "Message", "RocketMQ", "SlotRecord", "Store", "UnitRecord"}


def modules(*folders):
    """(path, its source without texts and comments)."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield (str(path.relative_to(ROOT)),
                   TEXT.sub("", path.read_text(encoding="utf-8")))


def test_a_name_says_what_it_names():
    bad = {path: names
           for path, code in modules("rmqctl", "docs", "benchmarks", "examples", "tests")
           if (names := {*EMPTY.findall(code)})}
    assert not bad, f"name the thing instead: {bad}"


def test_a_class_has_a_name_of_its_own():
    places = defaultdict(list)
    for path, code in modules("rmqctl"):
        for name in re.findall(r"^class ([A-Z]\w*)", code, re.MULTILINE):
            places[name].append(path)
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert shared.keys() <= SAME, {name: shared[name] for name in shared.keys() - SAME}


def test_the_gate_on_names_finds_them():
    code = TEXT.sub("", 'def _known(a="one"):  # made\n    one = a.found\n'
                        '    """each"""\n    return FOUND, one\nKNOWN = 1')
    assert EMPTY.findall(code) == ["_known", "one", "found", "one", "KNOWN"]
