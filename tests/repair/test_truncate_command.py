"""`rmqctl truncate` and `rmqctl expire`: plan, apply, undo, and what repair commands share."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.repair.cutting import content, offsets, troubles
from tests.support import damage, snapshot
from tests.support.cli import QUIET_ENV, Result
from tests.support.holder import held
from tests.support.share import RUN

Run = Callable[..., Result]


def old(root: Path, count: int) -> None:
    for number, path in enumerate(sorted((root / "commitlog").iterdir())):
        when = time.time() - (100 if number < count else 1) * 3600
        os.utime(path, (when, when))


def commands(root: Path) -> list[list[str]]:
    """Both commands with work to do on a copy of the basic set."""
    old(root, 2)
    to = offsets(root, "basic")[300]
    return [["truncate", str(root), "--to-phy", str(to)],
            ["expire", str(root), "--older-than", "72h"]]


@pytest.mark.parametrize("which", [0, 1], ids=["truncate", "expire"])
def test_a_plan_changes_nothing_and_is_what_apply_does(which: int, golden_copy: GoldenFolder,
                                                       rmqctl: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    words = commands(root)[which]
    with snapshot.assert_unchanged(root):
        planned = rmqctl(*words, "-o", "json").expect(0).json()
        rmqctl(*words, "--dry-run").expect(0)
        rmqctl(*words, "-q").expect(0)
    assert (planned["applied"], planned["id"]) == (False, None)
    assert planned["actions"]
    before = content(root)
    done = rmqctl(*words, "--apply", "--yes", "-o", "json").expect(0).json()
    assert done["applied"] is True
    of_the_run = {"applied", "id", "next", "steps", "room"}
    assert {name: done[name] for name in planned.keys() - of_the_run} == {
        name: planned[name] for name in planned.keys() - of_the_run}
    assert (root / done["kept"]).is_dir()
    assert done["kept_bytes"] > 0
    assert troubles(root) == []
    listed = rmqctl("undo", root, "--list", "-o", "json").expect(0).json()
    assert [(difference["id"], difference["command"])
            for difference in listed] == [(done["id"], words[0])]
    again = rmqctl(*words, "--apply", "--yes", "-o", "json").expect(0).json()
    assert (again["applied"], again["actions"]) == (False, [])
    quiet = rmqctl(*words, "--apply", "--yes").expect(0)
    assert (quiet.out, quiet.err) == ("", "")
    rmqctl("undo", root, done["id"], "--yes").expect(0)
    assert before.differences(content(root)) == []


def test_people_learn_how_to_go_on(golden_copy: GoldenFolder, rmqctl: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    words = commands(root)[0]
    assert ("\nPlan only; nothing was changed. Run again with --apply to carry it out.\n"
            in rmqctl(*words).expect(0).out)
    output = rmqctl(*words, "--apply", "--yes").expect(0).out
    assert f"rmqctl undo {root} " in output
    assert "messages lost" in output
    other = golden_copy("5.3.3/basic/store")
    quiet = rmqctl(*commands(other)[1], "--apply", "--yes", "-q").expect(0)
    assert (quiet.out, quiet.err) == ("", "")
    assert (other / ".rmqctl" / "repairs").is_dir()


def test_nothing_to_do_leaves_no_trace(golden_copy: GoldenFolder, rmqctl: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    old(root, 0)
    rmqctl("expire", root, "--older-than", "72h", "--apply", "--yes").expect(0)
    assert not (root / ".rmqctl").exists()


@pytest.mark.parametrize("which", [0, 1], ids=["truncate", "expire"])
def test_words_that_contradict_each_other(which: int, golden_copy: GoldenFolder,
                                          rmqctl: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    words = commands(root)[which]
    with snapshot.assert_unchanged(root):
        assert "--apply" in rmqctl(*words, "--yes").expect(2).err
        rmqctl(*words, "--apply", "--yes", "--dry-run").expect(2)


def test_without_a_terminal_apply_is_consent(golden_copy: GoldenFolder, rmqctl: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    assert "rmqctl undo" in rmqctl(*commands(root)[0], "--apply").expect(0).out


def at_terminal(words: list[str], answer: bytes) -> subprocess.CompletedProcess[bytes]:
    leader, follower = pty.openpty()
    try:
        os.write(leader, answer)
        return subprocess.run(
            [sys.executable, "-m", "rmqctl", *words], stdin=follower, capture_output=True,
            timeout=60, check=False, env={**os.environ, **QUIET_ENV})
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.long
def test_at_a_terminal_it_asks(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    words = [*commands(root)[0], "--apply"]
    before = content(root)
    no = at_terminal(words, b"n\n")
    assert (no.returncode, b"Apply this plan?" in no.stderr) == (1, True)
    assert b"Nothing is deleted" in no.stderr.partition(b"Apply this plan?")[0]
    assert b"rmqctl undo" in no.stderr.partition(b"Apply this plan?")[0]
    assert b"cancelled; nothing was changed" in no.stderr
    assert before.differences(content(root)) == []
    assert not (root / ".rmqctl" / "repairs").exists()
    yes = at_terminal(words, b"y\n")
    assert yes.returncode == 0, yes
    assert b"rmqctl undo" in yes.stdout
    assert before.differences(content(root)) != []


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["truncate", "expire"])
def test_a_held_store_is_planned_with_a_warning_and_not_changed(
        which: int, golden_copy: GoldenFolder, rmqctl_process: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    words = commands(root)[which]
    with held(root), snapshot.assert_unchanged(root):
        assert "holds the store" in rmqctl_process(*words).expect(0).err
        rmqctl_process(*words, "--apply", "--yes").expect(4)


def test_an_interrupted_repair_is_reported_and_completed(golden_copy: GoldenFolder,
                                                     rmqctl: Run) -> None:
    root = golden_copy("5.3.3/basic/store")
    words = commands(root)[1]
    done = rmqctl(*words, "--apply", "--yes", "-o", "json").expect(0).json()
    (root / done["kept"] / "state.json").rename(root / "state.json.away")
    assert "was interrupted" in rmqctl(*words).expect(0).err
    assert "completed first" in rmqctl(*words, "--apply", "--yes").expect(0).err
    assert "was interrupted" not in rmqctl(*words).expect(0).err


def test_json_says_what_is_lost(golden_copy: GoldenFolder, rmqctl: Run) -> None:
    root = golden_copy("5.3.3/transaction/store")
    to = offsets(root, "transaction")[40]
    result = rmqctl("truncate", root, "--to-phy", str(to), "-o", "json").expect(0)
    answer = result.json()
    there = rmqctl("read", root, "--from-phy", str(to), "-o", "jsonl").expect(0).jsonl()
    assert [(message["physical_offset"], message["topic"], message["queue_id"],
             message["queue_offset"])
            for message in answer["messages_lost"]] == [
        (message["physical_offset"], message["topic"], message["queue_id"], message["queue_offset"])
        for message in there]
    assert answer["messages_lost_total"] == len(there)
    table = rmqctl("recover", "table", root, "-o", "json").json()
    assert all(answer["topic_queue_table"].get(name, 0) <= table[name] for name in table)
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in result.err
    assert "RMQ_SYS_TRANS_OP_HALF_TOPIC" in result.err
    assert answer["notes"]


def test_consumers_and_delays_are_warned_about(golden_copy: GoldenFolder, rmqctl: Run) -> None:
    root = golden_copy("4.9.3/delay/store")
    there = rmqctl("read", root, "-o", "jsonl").expect(0).jsonl()
    to = there[len(there) // 2]["physical_offset"]
    cut = [message for message in there if message["physical_offset"] >= to]
    delayed = [message for message in cut if message["topic"] == "SCHEDULE_TOPIC_XXXX"]
    other = next(message for message in cut if message["topic"] != "SCHEDULE_TOPIC_XXXX")
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"offsetTable": {f"{other['topic']}@billing": {
            str(other["queue_id"]): other["queue_offset"] + 1}}}))
    stderr = rmqctl("truncate", root, "--to-phy", str(to)).expect(0).err
    assert f"of which {len(delayed)} will never be delivered" in stderr
    assert f"billing, {other['topic']} is then ahead of the queue" in stderr


def test_bad_words(golden_copy: GoldenFolder, rmqctl: Run, tmp_path: Path) -> None:
    root = golden_copy("5.3.3/basic/store")
    rmqctl("truncate", root).expect(2)
    rmqctl("truncate", root, "--to-phy", "-4").expect(2)
    rmqctl("truncate", root, "--to-phy", "x").expect(2)
    rmqctl("truncate", root, "--to-phy", "7").expect(6)
    rmqctl("expire", root, "--older-than", "5y").expect(2)
    rmqctl("expire", root, "--older-than", "72").expect(2)
    rmqctl("expire", root, "--keep-bytes", "-1").expect(2)
    for words in (["truncate", str(tmp_path / "no"), "--to-phy", "0"],
                  ["expire", str(tmp_path / "no"), "--older-than", "1h"]):
        rmqctl(*words).expect(3)
        rmqctl(*words, "--apply", "--yes").expect(3)


@pytest.mark.long
def test_no_damage_leads_to_a_traceback(tiny, rmqctl: Run, tmp_path: Path, seed: int) -> None:
    """Random bytes anywhere: an answer or a reason, and undo brings back what there was."""
    import random

    chance = random.Random(seed)
    places = offsets(tiny.root, "")
    for number in range(25 if RUN.exhaustive else 8):
        root = snapshot.copy_tree(tiny.root, tmp_path / f"damaged-{number}")
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        for _ in range(chance.randrange(1, 6)):
            path = chance.choice(files)
            size = path.stat().st_size
            if size and chance.random() < 0.8:
                at = chance.randrange(min(size, 4000))
                damage.write(root, str(path.relative_to(root)), at,
                             chance.randbytes(chance.randrange(1, 40)))
            elif size:
                os.truncate(path, chance.randrange(size))
        old(root, chance.randrange(3))
        before = content(root)
        for words in (["truncate", root, "--to-phy", str(chance.choice(places))],
                      ["expire", root, "--older-than", "72h"]):
            rmqctl(*words).expect(0, 3, 5, 6)
            done = rmqctl(*words, "--apply", "--yes", "-o", "json").expect(0, 3, 5, 6)
            if done.code == 0 and done.json()["applied"]:
                assert rmqctl(*words, "-o", "json").expect(0, 5, 6)
                rmqctl("undo", root, done.json()["id"], "--yes").expect(0)
        assert before.differences(content(root)) == []
