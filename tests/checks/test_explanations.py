"""rmqctl explain: every finding and every action has its text, and its commands are ours."""

from __future__ import annotations

import ast
import re
import shlex

import pytest

from rmqctl.checks.explanations import FINDING, WORD, explain, explanations
from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import REGISTRY
from rmqctl.commands.app.describe import parameters
from rmqctl.commands.app.lazy import load
from rmqctl.damage.verdicts import Verdict
from rmqctl.errors import UsageError
from tests.support.source import nodes, together, trees

_WORDS = {spec.name: spec for spec in REGISTRY}


_TAKES = {"Action": 0, "act": 1, "_mending": 4}
"""Which argument of these is the verb of an action."""


def verbs() -> set[str]:
    """What actions are called, as far as that stands in the program as a text."""
    names = {"delete"}  # rmqctl.checks.preflight.load.DELETE
    for tree in trees().values():
        for node in nodes(tree):
            if not isinstance(node, ast.Call):
                continue
            place = _TAKES.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
            if place is None or len(node.args) <= place:
                continue
            names |= {part.value for part in ast.walk(node.args[place])
                      if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return names


def test_every_finding_has_its_text() -> None:
    names = {name for name, explanation in explanations().items() if explanation.kind == FINDING}
    assert names == set(CATEGORIES)
    for explanation in explanations().values():
        assert explanation.cause.endswith(".")
        if explanation.kind == FINDING:
            assert explanation.brokers.endswith(".")
            assert explanation.advice


@together
def test_every_action_has_its_text() -> None:
    texts = verbs()
    assert len(texts) > 5
    assert texts - explanations().keys() == set()


_SCREENS = ("rmqctl/commands/check/doctor.py", "rmqctl/commands/check/preflight.py",
            "rmqctl/checks/metadata/judge.py", "rmqctl/checks/preflight/downgrade.py")
_PLAIN = {"stored from", "stored to", "hint"}
"""Captions that say all themselves."""


def captions() -> set[str]:
    """What the screens call their values: ``facts["already lost"]``."""
    names = set()
    for path, tree in trees().items():
        if path.as_posix().endswith(_SCREENS):
            names |= {node.slice.value for node in nodes(tree) if isinstance(node, ast.Subscript)
                      and "facts" in ast.unparse(node.value)
                      and isinstance(node.slice, ast.Constant)}
    return names


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_words_of_the_screens_have_their_text(lang: str) -> None:
    words = {name for name, explanation in explanations(lang).items() if explanation.kind == WORD}
    assert len(captions()) > 10
    assert captions() - words - _PLAIN == set()
    assert {verdict.value for verdict in Verdict} - words == set()
    assert words == {name for name, explanation in explanations().items()
                     if explanation.kind == WORD}


def test_a_prefix_means_a_finding_or_an_action_first() -> None:
    assert explain("replace").name == "replace entry"
    assert explain("already").name == "already lost"


def commands() -> set[str]:
    texts = "\n".join(f"{explanation.cause} {explanation.brokers} {explanation.advice}"
                      for explanation in explanations().values())
    return set(re.findall(r"`(rmqctl [^`]+)`", texts))


@pytest.mark.parametrize("command", sorted(commands()))
def test_commands_it_names_are_there(command: str) -> None:
    words = shlex.split(command)[1:]
    spec = next(_WORDS[tuple(words[:size])] for size in (3, 2, 1) if tuple(words[:size]) in _WORDS)
    names = {name for option in parameters(load(spec)) for name in option.names}
    for word in words:
        if word.startswith("-"):
            assert word in names


@pytest.mark.parametrize(("name", "near"), [
    ("bodycrc", "body-crc"), ("BODY-CRC ", None), ("cq-behidn", "cq-behind"), ("", "lists all"),
    ("xyzzy\x1b[31m", "lists all")])
def test_a_name_that_is_none(name: str, near: str | None) -> None:
    if near is None:
        assert explain(name).name == "body-crc"
        return
    with pytest.raises(UsageError, match=near):
        explain(name)
