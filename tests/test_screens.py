"""What a person sees: no line is wider than the terminal, the verdict begins and ends a page, and
many alike findings are one line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rmqctl.commands.shared import applying
from tests.badinput.test_read_only import COMMANDS
from tests.conftest import GoldenFolder
from tests.support import cli, damage, snapshot
from tests.support import tiny as tiny_stores

WIDTHS = (60, 80, 120)
NO_SCREEN = {"browse", "serve", "exporter"}
PLANS = {
    "recover": [[], ["--strategy", "broker"], ["--only", "index"], ["--ambiguous", "keep"]],
    "truncate": [["--to-phy", "600"], ["--to-phy", "7"]],
    "expire": [["--older-than", "1h"]],
    "undo": [["--list"], []],
    "offsets reset": [["--group", "billing", "--to", "latest"]],
    "pop release": [["--group", "billing"]],
    "delete message": [["--key", "k1"]],
    "delete key": [["k1"]],
    "delete topic": [["orders"]],
    "delete group": [["billing"]],
    "transactions commit": [["--all"]],
    "convert": [["--out", "other", "--consumequeue", "rocksdb"]],
}
LINES = [pytest.param(name, words, id=f"{name}-{number}")
         for name, several in COMMANDS.items() if name not in NO_SCREEN
         for number, words in enumerate(several) if "-o" not in words] + [
    pytest.param(name, ["{store}", *words], id=f"{name}-plan-{number}")
    for name, several in PLANS.items() for number, words in enumerate(several)]
VERDICTS = ("verify", "preflight", "doctor", "recover", "impact", "diff s")


def too_wide(done: cli.Result, width: int) -> list[str]:
    """Lines of either stream that a terminal of this width would break."""
    from rmqctl.output.cells import display_width

    return [line for line in (*done.out.splitlines(), *done.err.splitlines())
            if display_width(line) > width]


@pytest.fixture(scope="module")
def folder(tiny_base: tiny_stores.Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``s``, a sound store, and ``d``, a damaged one."""
    folder = tmp_path_factory.mktemp("screens")
    snapshot.copy_tree(tiny_base.root, folder / "s")
    harm(snapshot.copy_tree(tiny_base.root, folder / "d"))
    (folder / "s" / "conf").mkdir()
    (folder / "s" / "conf" / "broker.conf").write_text(
        "storePathRootDir=/a/very/long/path/of/another/machine/that/is/not/here/at/all/store\n"
        "fileReserverdTime=48\nmapedFileSizeCommitLog=1024 # a comment\n")
    snapshot.copy_tree(folder / "s" / "conf", folder / "d" / "conf")
    return folder


def harm(root: Path) -> None:
    """Damage of each kind that a page has words for."""
    damage.flip_bit(root, "commitlog/00000000000000000000", 120, 3)
    damage.zero(root, "commitlog/00000000000000000000", 480, 60)
    damage.cq_wrong_size(root, "consumequeue/orders/0/00000000000000000000", 1)
    damage.empty_file(root, "config/consumerOffset.json")
    damage.remove_folder(root, "consumequeue/bills")


@pytest.mark.parametrize(("name", "words"), LINES)
@pytest.mark.parametrize("store", ["s", "d"])
def test_nothing_is_wider_than_the_terminal(folder, monkeypatch, name, words, store):
    monkeypatch.chdir(folder)
    for width in WIDTHS:
        for form in ("table", "plain"):
            done = cli.run(*name.split(), *(word.replace("{store}", store) for word in words),
                           "-o", form, env={"COLUMNS": str(width)})
            assert too_wide(done, width) == [], f"{width} columns: {done.describe()}"


@pytest.mark.long
@pytest.mark.parametrize("store", ["5.3.3/basic/store", "4.9.3/crash-crc/before",
                                   "5.3.3/crash-nocq/before", "5.3.3/timer/store",
                                   "5.3.3/rocksdb/store", "5.3.3/dledger-crash-crc/after"])
@pytest.mark.parametrize("command", ["verify", "preflight", "doctor", "recover", "impact", "info",
                                     "stats", "du", "read", "offsets", "config", "retention"])
def test_golden_stores_have_room(golden: GoldenFolder, tmp_path, monkeypatch, store, command):
    monkeypatch.chdir(tmp_path)
    snapshot.copy_tree(golden(store), tmp_path / "s")
    for width in WIDTHS:
        done = cli.run(command, "s", "-o", "table", env={"COLUMNS": str(width)})
        assert too_wide(done, width) == [], done.describe()


@pytest.mark.parametrize("command", VERDICTS)
@pytest.mark.parametrize("store", ["s", "d"])
@pytest.mark.parametrize("form", ["table", "plain"])
def test_the_verdict_is_the_first_and_the_last_line(folder, monkeypatch, command, store, form):
    monkeypatch.chdir(folder)
    done = cli.run(*command.split(), store, "-o", form)
    lines = done.out.splitlines()
    assert lines[0]
    assert lines[0] == lines[-1]
    assert len(lines) > 2 or command == "impact" or lines == ["nothing to do"]


@pytest.fixture(scope="module")
def many(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a flipped bit in dozens of bodies."""
    root = snapshot.copy_tree(golden("5.3.3/basic/store"),
                              tmp_path_factory.mktemp("many") / "store")
    for number in range(60):
        damage.flip_bit(root, "commitlog/00000000000000000000", 300 + number * 977, 3)
    return root


@pytest.mark.long
@pytest.mark.parametrize(("command", "what"), [
    ("verify", "findings"), ("recover", "actions"), ("preflight", "actions")])
def test_many_alike_are_one_line_unless_all_are_asked_for(many, command, what):
    listed = json.loads(cli.run(command, many, "-o", "json").out)[what]
    few = cli.run(command, many, "-o", "plain")
    result = cli.run(command, many, "-o", "plain", "--all")
    keys = ("severity", "category") if what == "findings" else ("action", "target")
    rows = [tuple(str(difference[key]) for key in keys) for difference in listed]
    for first, second in rows:
        matches = re.findall(rf"(?m)^{re.escape(first)} +{re.escape(second)} ", result.out)
        assert len(matches) == rows.count((first, second))
    if len(listed) <= 8:
        assert few.out == result.out
        return
    counted = len([difference for difference in listed
                   if difference.get("severity") != "info"])  # as the verdict
    rest = f" and {len(listed) - counted} with severity info" if counted < len(listed) else ""
    total = f"{counted} {what}{rest} in "
    assert total in few.out
    table = few.out.partition("count")[2].partition(total)[0]
    counts = [int(count) for count in re.findall(
        rf"(?m)^(?:{'|'.join({re.escape(row[0]) for row in rows})}).*? {{2,}}(\d+)(?: {{2,}}|$)",
        table)]
    lines = [line for line in table.splitlines() if line and not line.startswith(" ")]
    assert len(lines) < len(listed) * 0.75
    if what == "findings":
        assert sum(counts) == len(listed)


def test_json_is_the_same_with_all(many):
    assert (cli.run("verify", many, "-o", "json").out
            == cli.run("verify", many, "-o", "json", "--all").out)


def test_numbers_have_separators_and_addresses_have_none(folder, monkeypatch):
    from rmqctl.output.cells import number_text

    for name in ("count", "messages", "size", "files", "from", "to", "queues"):
        assert number_text(name, 1234567) == "1,234,567"
    for name in ("offset", "physical_offset", "queue_id", "body_crc", "pid", "store_timestamp"):
        assert number_text(name, 1234567) == "1234567"
    monkeypatch.chdir(folder)
    done = cli.run("read", "s", "--from-phy", "1,024", "--limit", "1", "-o", "json")
    assert json.loads(done.out)[0]["physical_offset"] == 1024


def test_hex_is_whole_within_the_width(folder, monkeypatch):
    monkeypatch.chdir(folder)
    file = "s/commitlog/00000000000000000000"
    rows = json.loads(cli.run("dump", file, "--limit", "1", "--hex", "-o", "json").out)
    for width in WIDTHS:
        done = cli.run("dump", file, "--limit", "1", "--hex", "-o", "table",
                       env={"COLUMNS": str(width)})
        squeezed = re.sub(r"\s", "", done.out)
        assert too_wide(done, width) == []
        for part in rows[0]["fields"]:
            if len(part["hex"]) <= 16:
                assert part["hex"] in squeezed


@pytest.mark.parametrize("words", [["recover", "d"], ["truncate", "d", "--to-phy", "0"],
                                   ["recover", "d", "-q"]])
def test_the_question_says_that_nothing_is_deleted_and_how_to_undo(folder, monkeypatch, words):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(applying, "at_a_terminal", lambda: True)
    with snapshot.assert_unchanged(folder / "d" / "commitlog"):
        done = cli.run(*words, "--apply", "--ambiguous", "keep", stdin=b"n\n").expect(1) if (
            words[0] == "recover") else cli.run(*words, "--apply", stdin=b"n\n").expect(1)
    before, asked, _ = done.err.partition("Apply this plan?")
    assert asked
    assert "Nothing is deleted" in before
    assert "d/.rmqctl/repairs" in before
    assert "rmqctl undo d" in before
