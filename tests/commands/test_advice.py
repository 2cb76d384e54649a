"""The steps that doctor, preflight, verify and recover advise: they close, and lose nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.findings import CATEGORIES, ERROR, INFO, Finding, advised
from tests.adversary.writer import Header, Layout, Writer
from tests.conftest import GoldenFolder, Runner
from tests.repair import damage

DAMAGED = ["4.9.3/crash-cqshort/before", "5.3.3/crash-crc/before", "5.3.3/crash-nocq/before",
           "4.9.3/crash-trunc-garbage/before", "5.3.3/crash-cqahead-file/before"]
PLACEHOLDERS = {"COPY", "MEMBER"}


def state(store: Path) -> dict[str, bytes]:
    """Every file of a store but what undo needs."""
    return {str(path): path.read_bytes() for path in store.rglob("*")
            if path.is_file() and ".rmqctl" not in path.parts}


def followed(rmqctl: Runner, store: Path, options: Sequence[str] = (),
             rounds: int = 4) -> dict[str, Any]:
    """What doctor says at last, once its first step that changes the store is taken each time.
    ``options``: how the store is read; steps have them.
    """
    tried: list[str] = []
    for _ in range(rounds + 1):
        answer: dict[str, Any] = rmqctl("doctor", store, *options, "-o", "json").expect(
            0, 1).json()
        assert answer["next"] == [step["command"] for step in answer["steps"]]
        command = next((step["command"] for step in answer["steps"]
                        if step["effect"] != "read-only"
                        and not PLACEHOLDERS.intersection(step["command"].split())), None)
        if answer["sound"] or command is None:
            return answer
        assert command not in tried, "a step is advised again"
        tried.append(command)
        before = state(store)
        rmqctl(*shlex.split(command)[1:], "--apply", "--yes").expect(0, 1)
        assert state(store) != before, f"{command} changed nothing"
    pytest.fail(f"no end after {tried}")


@pytest.mark.long
@pytest.mark.parametrize("name", DAMAGED)
def test_the_advice_for_damaged_stores_closes(golden_copy: GoldenFolder, rmqctl: Runner,
                                              name: str) -> None:
    assert followed(rmqctl, golden_copy(name))["sound"]


@pytest.mark.long
def test_the_advice_for_a_tier_closes(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    """Index items keep the keys of messages that a repair of the tier has lost."""
    store = golden_copy("5.3.3/tiered/store")
    log = max((store / "tieredstore").glob("*/*/TP_user_Topic/0/COMMIT_LOG/*"),
              key=lambda path: path.name[8:])  # a hash comes before the offset
    os.truncate(log, log.stat().st_size - 9000)
    assert followed(rmqctl, store)["sound"]


@pytest.mark.long
def test_what_no_repair_of_a_tier_changes_remains(golden_copy: GoldenFolder,
                                                  rmqctl: Runner) -> None:
    store = golden_copy("5.3.3/tiered/store")
    log = min((store / "tieredstore").glob("*/*/TP_user_Topic/0/COMMIT_LOG/*"),
              key=lambda path: path.name[8:])
    os.truncate(log, log.stat().st_size - 9000)
    changes = followed(rmqctl, store)
    assert "tiered-gap" in {remainder["category"] for remainder in changes["remains"]}
    assert "copy of the tier" in changes["remains"][0]["why"]
    assert not [step for step in changes["next"] if "tiered recover" in step]


@pytest.mark.parametrize("behind", [1, 5000])
def test_offsets_beyond_the_end_move_to_the_end_and_no_others(
        golden_copy: GoldenFolder, rmqctl: Runner, behind: int) -> None:
    store = golden_copy("4.9.3/basic/store")
    queues = {row["queue_id"]: row["max_offset"] for topic in rmqctl(
        "info", store, "-o", "json").expect(0).json()["topics"]
        if topic["topic"] == "TP_fraud_Topic" for row in topic["queues"]}
    file = store / "config/consumerOffset.json"
    file.parent.mkdir(exist_ok=True)
    before = {"TP_fraud_Topic@g1": {str(queue): end + behind if queue in (0, 1) else 2
                                    for queue, end in queues.items()}}
    file.write_text(json.dumps({"offsetTable": before}))
    start = rmqctl("preflight", store, "-o", "json").expect(1).json()
    assert start["next"][0].endswith("--group g1 --beyond-end")
    assert followed(rmqctl, store)["sound"]
    after = json.loads(file.read_text())["offsetTable"]["TP_fraud_Topic@g1"]
    assert after == {str(queue): end if queue in (0, 1) else 2 for queue, end in queues.items()}


def test_offsets_that_a_repair_leaves_in_their_queue_are_not_moved(
        golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    """A startup would truncate the log before the messages that these offsets are about."""
    store = golden_copy("5.3.3/basic/store")
    log = sorted((store / "commitlog").iterdir())[1]
    data = log.read_bytes()
    log.write_bytes(data[:8192] + bytes(4096) + data[12288:])
    shutil.rmtree(store / "consumequeue")
    shutil.rmtree(store / "index")
    (store / "config").mkdir(exist_ok=True)
    (store / "config/consumerOffset.json").write_text(
        '{"offsetTable":{"TP_ship_Event2@g1":{2:2}}}')
    answer = rmqctl("doctor", store, "-o", "json").expect(1).json()
    assert answer["offsets_beyond_end"]
    assert [step for step in answer["next"] if " recover " in step]
    assert not [step for step in answer["next"] if " offsets reset " in step]
    # Undecided records are among what a startup truncates, and are not called intact.
    assert answer["messages_undecided"]
    assert "intact" not in answer["verdict"]
    assert f"{answer['would_lose']} messages, {answer['messages_undecided']} of them undecided" in (
        answer["verdict"])


def test_a_bare_queue_id_stays_bare(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    store = golden_copy("4.9.3/basic/store")
    file = store / "config/consumerOffset.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"offsetTable":{"TP_fraud_Topic@g1":{0:99999}}}')
    rmqctl("offsets", "reset", store, "--group", "g1", "--beyond-end", "--apply").expect(0)
    assert "{0:" in "".join(file.read_text().split())


def twice(folder: Path) -> Path:
    """A store in which two messages have each of five queue offsets."""
    writer = Writer(Layout())
    for number in range(20):
        writer.put("orders", b"first", keys=f"k{number}")
    for number in range(5):
        writer.put("orders", b"second", keys=f"s{number}", header=Header(queue_offset=10 + number))
    return writer.write(folder)


def test_messages_that_share_a_queue_offset_remain_and_are_named(rmqctl: Runner,
                                                                 tmp_path: Path) -> None:
    root = twice(tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    changes = followed(rmqctl, root)
    assert not changes["sound"]
    assert [(remainder["category"], remainder["count"])
            for remainder in changes["remains"]] == [("message-fields", 5)]
    assert "queue offset" in changes["remains"][0]["why"]
    page = rmqctl("doctor", root).expect(1).out
    assert "Not repairable by any command" in page


def test_another_copy_comes_first_where_messages_are_lost(golden_copy: GoldenFolder,
                                                          rmqctl: Runner) -> None:
    store = golden_copy("5.3.3/basic/store")
    whole = damage.remember(store)
    place = sorted(whole.records)[40]
    log = next(path for path in sorted((store / "commitlog").iterdir(), reverse=True)
               if int(path.name) <= place)
    with log.open("r+b") as file:
        file.seek(place - int(log.name) + 60)
        file.write(bytes(64))
    answer = rmqctl("doctor", store, "-o", "json").expect(1).json()
    assert answer["next"][0].endswith("--from COPY")
    alone = answer["steps"][1]
    assert (alone["command"], alone["effect"]) == (f"rmqctl recover {store}", "reversible")
    assert alone["loses"] == {"messages": 1}
    plan = rmqctl("recover", store, "-o", "json").expect(1).json()
    assert [step["command"] for step in plan["steps"]] == plan["next"]
    assert plan["steps"][0]["loses"] == {"messages": 1}


def test_undecided_records_are_a_choice(rmqctl: Runner, tmp_path: Path) -> None:
    writer = Writer(Layout())
    puts = [writer.put("orders", b"x" * 100, keys=f"k{number}") for number in range(60)]
    root = writer.write(tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    log = next((root / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(puts[20].physical)
        file.write(bytes(88))
    answer = rmqctl("doctor", root, "-o", "json").expect(1).json()
    assert answer["messages_undecided"]
    choices = [step for step in answer["steps"] if "--ambiguous" in step["command"]]
    assert [step["command"].split("--ambiguous ")[1] for step in choices] == ["keep", "leave-out"]
    assert choices[1]["loses"]["undecided"] == answer["messages_undecided"]
    # Only what is lost already is lost by keeping them.
    assert {choice["loses"].get("messages", 0) for choice in choices} == {answer["already_lost"]}
    assert f"rmqctl recover {root}" not in answer["next"]


@pytest.mark.parametrize(("name", "category"), [
    ("config/topics.json", "file-unreadable"), ("lock", "small-file")])
def test_what_only_a_person_can_repair_says_what_to_do(
        golden_copy: GoldenFolder, rmqctl: Runner, name: str, category: str) -> None:
    """A repair that is refused is not advised, and what remains is no dead end."""
    store = golden_copy("5.3.3/basic/store")
    (store / name).unlink(missing_ok=True)
    (store / name).mkdir(parents=True)
    changes = followed(rmqctl, store)
    assert not changes["sound"]
    why = {remainder["category"]: remainder["why"] for remainder in changes["remains"]}
    assert "does not contain what a repair needs" not in why[category]


def test_log_files_in_the_root_are_moved_by_hand(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    store = golden_copy("4.9.3/crash-live/before")
    before = rmqctl("doctor", store, "-o", "json").expect(0, 1).json()
    for file in (store / "commitlog").iterdir():
        file.rename(store / file.name)
    (store / "commitlog").rmdir()
    assert f"Move them into {store}/commitlog" in rmqctl("recover", store).expect(6).err
    refused = rmqctl("doctor", store, "-o", "json").expect(1).json()["remains"][0]
    assert refused["category"] == "refused"
    assert f"Move them into {store}/commitlog" in refused["why"]
    (store / "commitlog").mkdir()
    for file in store.glob("0*"):
        file.rename(store / "commitlog" / file.name)
    assert rmqctl("doctor", store, "-o", "json").json()["verdict"] == before["verdict"]


def test_the_checkpoint_of_a_dledger_member_is_moved_by_hand(golden_copy: GoldenFolder,
                                                              rmqctl: Runner) -> None:
    store = golden_copy("5.3.3/dledger/store")
    (store / "dledger-n0/checkpoint").write_bytes(b"\xff" * 40)
    changes = followed(rmqctl, store)
    (remains,) = changes["remains"]
    assert remains["category"] == "dledger-checkpoint"
    assert "move the file away" in remains["why"]
    (store / "dledger-n0/checkpoint").unlink()
    assert rmqctl("doctor", store, "-o", "json").expect(0).json()["sound"]


def test_verify_leads_to_the_diagnosis(golden: GoldenFolder, rmqctl: Runner) -> None:
    root = golden("5.3.3/crash-crc/before")
    answer = rmqctl("verify", root, "-o", "json").expect(1).json()
    assert answer["steps"][0]["command"] == answer["next"][0] == f"rmqctl doctor {root}"
    assert answer["steps"][0]["effect"] == "read-only"


@pytest.mark.parametrize("category", [name for name in CATEGORIES
                                      if not name.startswith("tiered-")])
def test_no_finding_names_a_repair_that_was_not_planned(category: str) -> None:
    """It may change nothing: `doctor` plans it first."""
    for structure in ("commitlog", "consumequeue", "index", "checkpoint", "timer", "store"):
        for severity in (ERROR, INFO):
            value = advised(Finding(category, structure, "", severity=severity), "STORE")
            assert " recover " not in f"{value.next} " or value.next == "rmqctl recover table STORE"
