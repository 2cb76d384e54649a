"""After each verdict and plan: one line of impact, and the one next command; both in JSON, too."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.commands.app import typed
from tests.conftest import GoldenFolder, Runner
from tests.support import damage

DAMAGED = "5.3.3/crash-crc/before"
LOST = {"messages": 1, "of": 274, "topics": {"TP_bill_Event9": 1},
        "from": "2024-06-23T19:13:56.253Z", "to": "2024-06-23T19:13:56.373Z", "complete": True}


def lines(page: str) -> list[str]:
    return page.splitlines()


@pytest.fixture
def damaged(golden_copy: GoldenFolder) -> Path:
    """With more than a byte of the damaged message changed: nothing brings it back."""
    root = golden_copy(DAMAGED)
    damage.write(root, "commitlog/00000000000000163840", 8040, b"\xfe" * 20)
    return root


def test_a_plan_names_itself_with_apply(damaged: Path, rmqctl: Runner) -> None:
    plan = rmqctl("recover", damaged, "--jobs", "2", "--dry-run", "-o", "json").expect(1).json()
    assert plan["next"] == [f"rmqctl recover {damaged} --jobs 2 -o json --apply"]
    assert plan["impact"] == LOST
    page = lines(rmqctl("recover", damaged).expect(1).out)
    assert f"rmqctl recover {damaged} --apply" in page
    assert sum(line.startswith("rmqctl ") for line in page) == 1
    assert ("affected: 1 of 274 messages (TP_bill_Event9 1), stored from 2024-06-23T19:13:56.253Z "
            "to 2024-06-23T19:13:56.373Z") in page


def test_carried_out_it_is_judged_again(damaged: Path, rmqctl: Runner) -> None:
    plan = rmqctl("recover", damaged).expect(1).out
    command = next(line for line in lines(plan) if line.startswith("rmqctl "))
    applied = rmqctl(*shlex.split(command)[1:], "-o", "json").expect(1).json()
    assert (applied["applied"], applied["next"]) == (True, [f"rmqctl doctor {damaged}"])
    assert [step["command"] for step in applied["steps"]] == applied["next"]
    assert applied["impact"] == LOST
    rmqctl(*shlex.split(applied["next"][0])[1:]).expect(0)
    undone = rmqctl("undo", damaged, "--dry-run", "-o", "json").expect(0).json()
    assert undone["next"] == [f"rmqctl undo {damaged} -o json"]
    undone = rmqctl("undo", damaged, "-o", "json").expect(0).json()
    assert undone["next"][0] == undone["steps"][0]["command"] == f"rmqctl doctor {damaged}"


def test_nothing_to_do_is_followed_by_nothing(golden: GoldenFolder, rmqctl: Runner) -> None:
    sound = golden("5.3.3/basic/store")
    plan = rmqctl("recover", sound, "-o", "json").expect(0).json()
    assert (plan["next"], plan["impact"]) == ([], None)
    assert "What next" not in rmqctl("recover", sound).out


def test_what_says_how_to_read_the_store_stays(damaged: Path, rmqctl: Runner,
                                               tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("enableLmq=false\n")
    typed = ("recover", damaged, f"--broker-conf={conf}", "--commitlog-file-size", "32KiB")
    applied = rmqctl(*typed, "--apply", "-o", "json").expect(1).json()
    assert applied["next"] == [
        f"rmqctl doctor {damaged} --broker-conf={conf} --commitlog-file-size 32KiB"]
    # this broker.conf leaves sizes out, so the broker does not start
    rmqctl(*shlex.split(applied["next"][0])[1:]).expect(1)


@pytest.mark.parametrize("command", ["verify", "preflight", "diff"])
def test_so_it_does_after_a_verdict(command: str, damaged: Path, golden: GoldenFolder,
                                    rmqctl: Runner, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "enableLmq=false\nmappedFileSizeCommitLog=32768\nmappedFileSizeConsumeQueue=440\n"
        "maxHashSlotNum=100\nmaxIndexNum=200\n")
    elsewhere = tmp_path / "log"
    shutil.move(damaged / "commitlog", elsewhere)
    if command == "diff":
        stores = (golden(DAMAGED.replace("/before", "/after")), damaged)
        typed = ("--commitlog-dir", "commitlog", "--commitlog-dir-b", str(elsewhere))
    else:
        stores, typed = (damaged,), ("--commitlog-dir", str(elsewhere))
    answer = rmqctl(command, *stores, *typed, f"--broker-conf={conf}", "-o",
                    "json").expect(1).json()
    following = shlex.split(answer["next"][0])
    assert following[-3:] == ["--commitlog-dir", str(elsewhere), f"--broker-conf={conf}"]
    rmqctl(*following[1:]).expect(1)
    page = rmqctl(command, *stores, *typed, f"--broker-conf={conf}").out
    assert answer["next"][0] in page
    for finding in answer.get("findings", ())[:3]:
        if finding["next"]:
            rmqctl(*shlex.split(finding["next"])[1:])


@pytest.mark.parametrize("command", ["preflight", "doctor"])
def test_the_release_stays(command: str, damaged: Path, rmqctl: Runner) -> None:
    """Advice for another release is that of another broker."""
    answer = rmqctl(command, damaged, "--broker-version", "5.1.4", "-o", "json").expect(1).json()
    commands = [step["command"] for step in answer["steps"]]
    judged = [words for words in commands if " verify " not in words]
    assert judged
    assert all(words.endswith("--broker-version 5.1.4") for words in judged)
    assert all("--broker-version" not in words for words in commands if " verify " in words)


def test_only_options_that_the_next_command_has(damaged: Path, rmqctl: Runner) -> None:
    answer = rmqctl("verify", damaged, "--index-slots", "16", "--index-max", "64", "-o",
                    "json").json()
    looks = [finding["next"] for finding in answer["findings"] if finding["next"]]
    for command in set(looks):
        assert ("--index-max" in command) == (" dump " not in command)
        assert "--index-slots 16" in command
        assert rmqctl(*shlex.split(command)[1:]).code != 2, command


def test_what_a_tier_needs_stays() -> None:
    with_typed = typed.words.set(("tiered", "verify", "T", "--metadata", "m", "--broker=b"))
    try:
        assert typed.completed("rmqctl tiered recover T") == (
            "rmqctl tiered recover T --metadata m --broker=b")
        assert typed.completed("rmqctl recover S") == "rmqctl recover S"
    finally:
        typed.words.reset(with_typed)


def test_a_broker_that_does_not_start_leaves_salvage(damaged: Path, rmqctl: Runner) -> None:
    (damaged / "commitlog" / "00000000000000163841").write_bytes(b"x")
    plan = rmqctl("recover", damaged, "--strategy", "broker", "-o", "json").expect(6).json()
    assert (plan["starts"], plan["next"]) == (False, [f"rmqctl recover {damaged}"])


def test_what_a_start_costs_is_out_of_all_messages(damaged: Path, rmqctl: Runner) -> None:
    predicted = rmqctl("preflight", damaged, "-o", "json").expect(1).json()
    assert predicted["impact"] == {
        "messages": 21, "of": 274, "topics": {"TP_bill_Event9": 12, "TP_pay_Topic": 9},
        "from": "2024-06-23T19:13:56.253Z", "to": "2024-06-23T19:14:02.482Z", "complete": True}
    assert predicted["messages"] == 273
    assert predicted["next"] == [f"rmqctl doctor {damaged}"]
    line = rmqctl("preflight", damaged).out.splitlines()[1]
    assert line.startswith("affected: 21 of 274 messages (TP_bill_Event9 12, TP_pay_Topic 9), ")
    quick = rmqctl("preflight", damaged, "--quick", "-o", "json").expect(1).json()
    assert (quick["messages"], quick["impact"]["of"]) == (None, None)
    plan = rmqctl("recover", damaged, "--strategy", "broker", "-o", "json").expect(1).json()
    assert (plan["impact"]["messages"], plan["impact"]["of"]) == (20, 273)


@pytest.mark.parametrize("name", [
    "4.9.3/basic/store", "5.3.3/basic/store", "4.9.3/crash-nocq/before", "4.9.3/clean-nocq/before",
    "5.3.3/crash-cqlag/before"])
def test_every_message_counts_once(name: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden(name)
    counted = rmqctl("verify", root, "-o", "json").json()["coverage"]["messages"]
    assert rmqctl("preflight", root, "-o", "json").json()["messages"] == counted


def test_other_plans_and_comparisons(damaged: Path, golden: GoldenFolder, rmqctl: Runner) -> None:
    cut = rmqctl("truncate", damaged, "--to-phy", "171668", "-o", "json").expect(0).json()
    assert cut["next"] == [
        f"rmqctl truncate {damaged} --to-phy 171668 -o json --apply"]
    assert (cut["impact"]["messages"], cut["impact"]["of"]) == (cut["messages_lost_total"], None)
    assert sum(cut["impact"]["topics"].values()) == cut["messages_lost_total"]
    rmqctl("recover", damaged, "--apply").expect(1)
    diff: dict[str, Any] = rmqctl("diff", golden(DAMAGED), damaged, "-o", "json").expect(1).json()
    stored = "2024-06-23T19:13:56.355Z"  # the damaged record says so
    assert diff["impact"] == LOST | {"from": stored, "to": stored}
    assert "affected: 1 of 274 messages (TP_bill_Event9 1), stored at 2024" in rmqctl(
        "diff", golden(DAMAGED), damaged).out


def test_streams_have_rows_only(damaged: Path, rmqctl: Runner) -> None:
    for command in ("verify", "diff"):
        more = (damaged,) if command == "diff" else ()
        rows = rmqctl(command, damaged, *more, "-o", "jsonl").jsonl()
        assert all("impact" not in row for row in rows)
