"""Screens in Chinese: nothing is left in English, nothing is in the catalog for nothing, and data
is the same in every language.
"""

from __future__ import annotations

import ast
import copy
import pickle
import re
import string

import pytest

from rmqctl.checks.explanations import explanations
from rmqctl.checks.findings import CATEGORIES
from rmqctl.output.cells import display_width, folded
from rmqctl.output.language import chosen, language
from rmqctl.phrases import Joined, Phrase, counted, some_of
from tests.support.golden import golden_stores
from tests.support.share import sample
from tests.support.source import PACKAGE, nodes, together, trees

CATALOG = language("zh").catalog


def named(call: ast.Call) -> str:
    """The name of what is called, or of the method."""
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def texts(call: ast.Call) -> list[object]:
    """The constants among the positional arguments."""
    return [arg.value for arg in call.args if isinstance(arg, ast.Constant)]


def keys_of(tree: ast.AST) -> set[str]:
    """What the phrases in a module are called in a catalog."""
    keys = set()
    for call in (node for node in nodes(tree) if isinstance(node, ast.Call)):
        words = [text for text in texts(call) if isinstance(text, str)]
        if named(call) == "Phrase" and words:
            keys.add(words[-1])
        elif named(call) == "Joined":
            keys.add(words[0])
    return keys


def names_in(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


@together
def test_every_phrase_is_there_in_chinese():
    keys = set().union(*map(keys_of, trees().values()),
                       (one.meaning for one in CATEGORIES.values()))
    assert sorted(keys - CATALOG.keys()) == []


@together
def test_no_phrase_is_made_of_a_text_that_is_not_known():
    """A template is a constant, or the catalog could not be complete."""
    wrong = [f"{path.relative_to(PACKAGE)}:{node.lineno}" for path, tree in trees().items()
             if path.name != "phrases.py" for node in nodes(tree)
             if isinstance(node, ast.Call) and named(node) == "Phrase"
             and not all(isinstance(arg, ast.Constant) for arg in node.args)
             and ast.unparse(node.args[0]) != "CATEGORIES[category].meaning"]
    assert wrong == []


@together
def test_no_entry_is_left_over():
    constants = {each.meaning for each in CATEGORIES.values()} | {
        node.value for tree in trees().values() for node in nodes(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    constants |= {text.replace("_", " ") for text in constants}
    counts = {f"{{count:,}} {word}{s}" for word in constants for s in ("", "s")}
    assert sorted(CATALOG.keys() - constants - counts) == []


def test_both_sides_hold_the_same_values():
    assert [key for key, text in CATALOG.items() if names_in(key) != names_in(text)] == []


def test_chinese_is_chinese():
    """Neither a copy of the English nor half-width commas between Chinese characters."""
    same = [key for key, text in CATALOG.items() if key == text and names_in(key) == set()]
    assert same == []
    assert [text for text in CATALOG.values()
            if re.search(r"[\u4e00-\u9fff][,;:!?()]|[,;:!?()][\u4e00-\u9fff]", text)] == []


def test_a_phrase_is_its_english_text_and_can_be_said():
    lost = Phrase("{count:,} message is already lost", "{count:,} messages are already lost",
                  count=1)
    assert lost == "1 message is already lost"
    assert language("zh").say(lost) == "已有 1 条消息丢失"
    assert language("en").say(lost) == lost
    both = Phrase("sound: {what}", what=Joined("; ", [lost, "topic; {x}"]))
    assert both == "sound: 1 message is already lost; topic; {x}"
    assert language("zh").say(both) == "完好：已有 1 条消息丢失；topic; {x}"
    for other in (copy.deepcopy(both), pickle.loads(pickle.dumps(both))):
        assert other == both
        assert language("zh").say(other) == language("zh").say(both)
    assert language("zh").say(some_of(["a", "b", "c"], 2)) == "a，b 等（另有 1 个）"
    assert language("zh").say(counted(1200, "message")) == "1,200 条消息"


def test_what_is_not_in_a_catalog_stays_english():
    assert language("zh").say(Phrase("no such {x}", x=counted(1, "message"))) == "no such 1 message"
    assert language("zh").say("nothing") == "nothing", "data is never translated"
    assert language("zh").caption("nothing") == "无"


@pytest.mark.parametrize(("given", "environ", "name"), [
    (None, {}, "en"),
    ("zh", {"RMQCTL_LANG": "en"}, "zh"),
    ("en", {"LANG": "zh_CN.UTF-8"}, "en"),
    (None, {"LANG": "zh_CN.UTF-8"}, "zh"),
    (None, {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
    (None, {"LANG": "C", "LC_MESSAGES": "zh_CN"}, "zh"),
    (None, {"LANG": "de_DE.UTF-8"}, "en"),
    (None, {"RMQCTL_LANG": "zh", "LC_ALL": "C"}, "zh"),
    (None, {"RMQCTL_LANG": "", "LANG": "zh"}, "zh"),
])
def test_who_chooses_the_language(given, environ, name):
    assert chosen(given, environ) == name


def test_lines_are_folded_by_columns():
    text = "damaged：已有 1 条消息丢失；启动将再丢失 3 条完好的消息（TP_bill 版 Broker）。"
    for width in range(24, 60):
        lines = folded(text, width)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert max(map(display_width, lines)) <= width
        assert not any(line[0] in "，。；：、）" for line in lines)
    assert folded("  - one two", 8, "    ") == ["  - one", "    two"]


def test_a_screen_is_in_the_language_and_data_is_not(rmqctl, tiny):
    english, chinese = {"RMQCTL_LANG": "en"}, {"RMQCTL_LANG": "zh"}
    said = rmqctl("doctor", tiny.root, env=chinese).expect(0)
    assert "完好：没有损坏，也没有丢失任何消息" in said.out
    assert said.out == rmqctl("doctor", tiny.root, "--lang", "zh", env=english).out
    assert "sound: no damage" in rmqctl("doctor", tiny.root, "--lang", "en", env=chinese).out
    for form in ("json", "jsonl", "csv", "tsv"):
        data = [rmqctl("doctor", tiny.root, "-o", form, env=env).out
                for env in (english, chinese)]
        assert data[0] == data[1]


ENGLISH_WORDS = re.compile(r"(?<![\w/.-])[a-z]{2,} [a-z]{2,}(?![\w/.-])")


def left_in_english(text: str) -> list[str]:
    """Lines with two English words beside each other; commands to type are no prose."""
    prose = re.sub(r"`[^`]*`|(?m:^rmqctl .*$)|rmqctl [a-z]+ [A-Z]+", "", text)
    for action in ("move aside", "add rows", "add entries", "mend record", "put back", "set back",
                   "refuse to start"):
        prose = prose.replace(action, "")
    return [line for line in prose.splitlines() if ENGLISH_WORDS.search(line)]


STORES = sample([store for store in golden_stores() if store.expect], 4, "languages",
                always=lambda store: store.id == "4.9.3/crash-crc/before")


@pytest.mark.parametrize("store", [store.id for store in STORES])
@pytest.mark.parametrize("command", ["doctor", "impact", "preflight"])
def test_nothing_on_a_screen_is_left_in_english(rmqctl, golden, command, store):
    said = rmqctl(command, golden(store), "--lang", "zh", env={"COLUMNS": "1000"})
    assert left_in_english(said.out + said.err) == []
    assert re.search("[\u4e00-\u9fff]", said.out + said.err)


def test_each_explanation_is_there_in_chinese(rmqctl):
    chinese = explanations("zh")
    assert list(chinese) == list(explanations())
    for name, english in explanations().items():
        for field in ("cause", "brokers", "advice", "group"):
            text, said = getattr(english, field), getattr(chinese[name], field)
            assert bool(text) == bool(said) == bool(re.search("[\u4e00-\u9fff]", said)), name
            assert sorted(re.findall("`[^`]*`", text)) == sorted(re.findall("`[^`]*`", said)), name
    said = rmqctl("explain", "body-crc", "--lang", "zh").expect(0).out
    assert left_in_english(said) == []
    document = rmqctl("explain", "body-crc", "--lang", "zh", "-o", "json").expect(0).json()
    assert document["meaning"] == "消息体与其 CRC 不符", "asked for, explanations are data"
    document = rmqctl("explain", "body-crc", "-o", "json", env={"RMQCTL_LANG": "zh"}).json()
    assert document["meaning"] == "a message body does not match its CRC"
