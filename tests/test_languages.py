"""Screens in Chinese: nothing is left in English, nothing is in the catalog for nothing, and data
is the same in every language.
"""

from __future__ import annotations

import ast
import copy
import itertools
import pickle
import re
import string
import time
import tomllib
from pathlib import Path

import pytest

from rmqctl import cli
from rmqctl.checks.explanations import explanations
from rmqctl.checks.findings import CATEGORIES
from rmqctl.commands import GROUPS, REGISTRY
from rmqctl.commands.app.describe import parameter
from rmqctl.commands.app.lazy import load
from rmqctl.output.cells import display_width, folded
from rmqctl.output.language import chosen, language
from rmqctl.phrases import Joined, Phrase, counted, some_of
from tests.support.golden import golden_stores
from tests.support.share import sample
from tests.support.source import PACKAGE, nodes, together, trees

CATALOG = language("zh").catalog
SAME_IN_CHINESE = {"Spark"}


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
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name}
    except ValueError:  # a constant with a brace
        return set()


def is_numbered(key: str) -> bool:
    """Whether a key is the text of an f-string, or of several that are joined."""
    return "0" in names_in(key)


def runs(text: str) -> set[tuple[str, ...]]:
    """The pairs of words in a text that no value divides; the words of a text of one."""
    texts: set[tuple[str, ...]] = set()
    for piece in re.split(r"\{[^}]*\}|\n", text):
        words = re.findall(r"[A-Za-z_-]{2,}", piece)
        texts |= set(itertools.pairwise(words)) or {tuple(words)} - {()}
    return texts


def typer_texts() -> set[str]:
    """The texts of typer's errors."""
    import typer.core

    sources = Path(typer.core.__file__).parent.rglob("*.py")
    return {node.value for source in sources
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def help_texts() -> dict[str, str]:
    """Each text that help shows -> the command that shows it first."""
    root = cli.build()
    expected_text = dict.fromkeys(("Usage", "Options", "Arguments", "Commands", cli._EPILOG,
                                   *paragraphs(root.help)), "rmqctl")
    for param in root.get_params(root.make_context("rmqctl", [], resilient_parsing=True)):
        expected_text.setdefault(param.help or "", "rmqctl")
    for spec in (*GROUPS, *REGISTRY):
        expected_text.setdefault(spec.section or "", " ".join(spec.name))
        for text in paragraphs(spec.help):
            expected_text.setdefault(text, " ".join(spec.name))
    for spec in REGISTRY:
        command = load(spec)
        shown = [*paragraphs(command.help), command.epilog or ""]
        for param in command.params:
            if not getattr(param, "hidden", False):
                shown += [parameter(param).help, parameter(param).panel or ""]
        for text in shown:
            expected_text.setdefault(" ".join(text.split()), " ".join(spec.name))
    return {text: name for text, name in expected_text.items() if text}


def paragraphs(text: str | None) -> list[str]:
    """The paragraphs of a docstring that are no examples."""
    return [" ".join(part.split()) for part in re.split(r"\n[ \t]*\n", text or "")
            if not all(line[:1].isspace() for line in part.splitlines())]


HELP = help_texts()


def test_every_text_of_help_is_there_in_chinese():
    assert sorted(HELP.keys() - CATALOG.keys() - SAME_IN_CHINESE) == []


@together
def test_every_phrase_is_there_in_chinese():
    keys = set().union(*map(keys_of, trees().values()),
                       (category.meaning for category in CATEGORIES.values()))
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
    constants = {category.meaning for category in CATEGORIES.values()} | {
        node.value for tree in trees().values() for node in nodes(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    constants |= {text.replace("_", " ") for text in constants}
    constants |= {" ".join(text.split()) for text in constants}
    constants |= {" ".join(part.split()) for text in constants if "\n\n" in text
                  for part in text.split("\n\n")}
    counts = {f"{{count:,}} {word}{s}" for word in constants for s in ("", "s")}
    left = CATALOG.keys() - constants - counts - HELP.keys()
    assert sorted(key for key in left if names_in(key) and not is_numbered(key)) == []
    names = set().union(*map(runs, constants | typer_texts()))
    words = {word for run in names for word in run}
    assert sorted(key for key in left if not runs(key) & names and not words.issuperset(
        re.findall(r"[A-Za-z_-]{2,}", key))) == []


def test_both_sides_hold_the_same_values():
    assert [key for key, text in CATALOG.items() if names_in(key) != names_in(text)
            and not (is_numbered(key) and names_in(text) < names_in(key))] == []


def test_the_catalog_is_read_as_toml_reads_it():
    text = (PACKAGE / "output" / "zh.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text) == CATALOG


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
    result = rmqctl("doctor", tiny.root, env=chinese).expect(0)
    assert "完好：没有损坏，也没有丢失任何消息" in result.out
    assert result.out == rmqctl("doctor", tiny.root, "--lang", "zh", env=english).out
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
    result = rmqctl(command, golden(store), "--lang", "zh", env={"COLUMNS": "1000"})
    assert left_in_english(result.out + result.err) == []
    assert re.search("[\u4e00-\u9fff]", result.out + result.err)


def test_each_explanation_is_there_in_chinese(rmqctl):
    chinese = explanations("zh")
    assert list(chinese) == list(explanations())
    for name, english in explanations().items():
        for field in ("cause", "brokers", "advice", "group"):
            text, output = getattr(english, field), getattr(chinese[name], field)
            assert bool(text) == bool(output) == bool(re.search("[\u4e00-\u9fff]", output)), name
            assert sorted(re.findall("`[^`]*`", text)) == sorted(re.findall("`[^`]*`",
                                                                            output)), name
    output = rmqctl("explain", "body-crc", "--lang", "zh").expect(0).out
    assert left_in_english(output) == []
    document = rmqctl("explain", "body-crc", "--lang", "zh", "-o", "json").expect(0).json()
    assert document["meaning"] == "消息体与其 CRC 不符", "asked for, explanations are data"
    document = rmqctl("explain", "body-crc", "-o", "json", env={"RMQCTL_LANG": "zh"}).json()
    assert document["meaning"] == "a message body does not match its CRC"


ENGLISH_SENTENCE = re.compile(
    r"(?<![\w/.:=@%-])[A-Za-z][a-z']+(?: [(]?[a-z][a-z']+){2,}(?![\w/=-])")


def english_sentences(text: str) -> list[str]:
    """Lines with three English words beside each other that are no command and no value."""
    prose = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"|(?m:^ *rmqctl .*$|^\u7528\u6cd5.*$)", "",
                   text)
    prose = re.sub(r"(?m:^(mend record|move aside|put back|set back|add rows|add entries) )", "",
                   prose)
    return [line for line in prose.splitlines() if ENGLISH_SENTENCE.search(line)]


@pytest.fixture
def damaged(golden_copy):
    """A store with a damaged size, damaged bodies, a lost index file and an odd file."""
    root = golden_copy("5.3.3/basic/store")
    log = min((root / "commitlog").iterdir())
    content = bytearray(log.read_bytes())
    at, number = 0, 0
    while content[at + 4: at + 8] == b"\xda\xa3\x20\xa7":
        size = int.from_bytes(content[at: at + 4], "big")
        if number in (3, 9):
            content[at + (3 if number == 3 else size // 2)] ^= 0x40
        at, number = at + size, number + 1
    log.write_bytes(content)
    next((root / "index").iterdir()).unlink()
    (root / "consumequeue" / "odd").write_text("?")
    return root


COMMANDS = (
    "info", "stats", "du", "verify", "doctor", "preflight", "impact", "recover", "retention",
    "offsets", "config", "timers", "pop list", "transactions list", "dlq list",
    "read {} --count 3", "tail {} -n 2", "query key {} --topic TP_ship_Event2 --key order-63",
    "query key {} --topic TP_ship_Event2 --key none", "query offset {} --phy 5", "recover table",
    "carve {} --count", "truncate {} --to-phy 0", "expire {} --older-than 1h",
    "delete key {} order-63", "undo {} --list", "backup {} {}-backup", "dump {}/checkpoint",
    "offsets reset {} --group g --to earliest", "explain record-damaged")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_of_a_screen_is_an_english_sentence(rmqctl, golden, damaged, command):
    for root in {damaged, golden("5.3.3/basic/store") if "backup" not in command else damaged}:
        words = command if "{}" in command or command.startswith("explain") else command + " {}"
        result = rmqctl(*words.replace("{}", str(root)).split(), "--lang", "zh",
                        env={"COLUMNS": "400"})
        assert english_sentences(result.out + result.err) == []


ERRORS = (
    ["verify", "no/such/folder"], ["verify"], ["verfy", "x"], ["verify", "x", "--limit", "y"],
    ["verify", "x", "--nothing"], ["read", "x", "--since", "soon"], ["explain", "nothing"],
    ["read", "x", "--where", "field"], ["query", "offset", "x", "--phy", "-1"],
    ["recover", "x", "--correct", "all"], ["dump", "no/such/file"], ["sql", "x", "--limit"])


@pytest.mark.parametrize("words", ERRORS, ids=" ".join)
def test_errors_are_in_chinese(rmqctl, words):
    result = rmqctl(*words, env={"RMQCTL_LANG": "zh"})
    assert result.code
    assert english_sentences(result.err) == []
    assert re.search("[\u4e00-\u9fff]", result.err)
    assert rmqctl(*words, env={"RMQCTL_LANG": "en"}).err.isascii()


@pytest.mark.parametrize("spec", REGISTRY, ids=lambda spec: "-".join(spec.name))
def test_help_is_in_chinese(rmqctl, spec):
    output = rmqctl("help", "options", *spec.name, env={"RMQCTL_LANG": "zh"}).expect(0).out
    examples = "\n".join(line for line in output.splitlines() if not line.startswith("    rmqctl"))
    assert english_sentences(examples) == []
    assert max(map(display_width, re.findall(".*[\u4e00-\u9fff].*", output))) <= 100


def test_a_text_is_found_by_its_template():
    chinese = language("zh")
    assert chinese.text("no message at 1,204") == "1,204 处没有消息"
    assert chinese.text("entry points to 7: no message at 7") == "条目指向 7：7 处没有消息"
    assert chinese.text("1 entry") == "1 个条目"
    assert chinese.text("order no 7 from anybody") == "order no 7 from anybody", "data"
    assert chinese.value("body", "no message at 7") == "no message at 7", "data of the store"
    assert chinese.value("property.A", "no message at 7") == "no message at 7"
    assert chinese.cell("any", "no message at 7") == "no message at 7"
    assert chinese.cell("reason", "no message at 7") == "7 处没有消息"
    assert language("en").text("no message at 7") == "no message at 7"


def test_hostile_names_take_no_exponential_time() -> None:
    """A text whose values repeat what its template is found by, and that does not fit."""
    chinese = language("zh")
    begun = time.process_time()
    for template in sorted(chinese.catalog, key=lambda key: -key.count("{"))[:40]:
        parts = [text for text, _, _, _ in string.Formatter().parse(template)]
        chinese.text("".join("a" + text * 20 for text in parts) + " zz")
    assert time.process_time() - begun < 60
