"""One model of losses, one set of numbers: every command takes them from `rmqctl.checks.losses`."""

from __future__ import annotations

import ast
import json
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.losses import Losses
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.checks.preflight.types import Prediction
from rmqctl.ext.browse import checking
from rmqctl.ext.browse.opened import StoreView
from rmqctl.ext.report.facts import gather
from rmqctl.formats.local.message import decode
from rmqctl.repair.recover import RecoverOptions, plan_recover
from rmqctl.repair.scratch import Scratch
from rmqctl.store.log.end import find_end
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.support import tiny as tiny_stores
from tests.support.cli import run
from tests.support.config_tables import group_table, put, topic_table
from tests.support.source import PACKAGE, nodes, together, trees

JSON = ("-o", "json")
Damage = Callable[[Path], None]


# -- the stores -----------------------------------------------------------------------------------


def log(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def zero(file: Path, start: int, length: int) -> None:
    data = bytearray(file.read_bytes())
    length = min(length, len(data) - start)
    data[start:start + length] = bytes(length)
    file.write_bytes(data)


def cut_tail(root: Path) -> None:
    """The last file is gone and the one before is torn: entries point beyond the end."""
    log(root)[-1].unlink()
    zero(log(root)[-1], 20_000, 1 << 20)


def known_by_the_index_alone(root: Path) -> None:
    """The log is torn, and no entry of a queue points beyond its end, as a startup leaves it."""
    end = int(log(root)[-1].name) + 20_000
    zero(log(root)[-1], 20_000, 1 << 20)
    for file in (root / "consumequeue").glob("*/*/*"):
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 20):
            if struct.unpack_from(">q", data, at)[0] >= end:
                data[at:at + 20] = bytes(20)
        file.write_bytes(data)


def zeroed_page(root: Path) -> None:
    zero(log(root)[2], 8192, 4096)


def missing_middle_file(root: Path) -> None:
    log(root)[2].unlink()


def deleted_queue_folder(root: Path) -> None:
    shutil.rmtree(next((root / "consumequeue").glob("*/0")))


def flipped_bit(root: Path) -> None:
    """Corrected by `recover`: what comes back is lost no more."""
    data = bytearray(log(root)[1].read_bytes())
    data[5000] ^= 4
    log(root)[1].write_bytes(data)


def log_alone(root: Path) -> None:
    """No entry of a queue and of the index is left: only queue offsets tell, and some records are
    undecided.
    """
    zeroed_page(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")


def without_queues(root: Path) -> None:
    """Only the index tells of messages that are gone."""
    zeroed_page(root)
    shutil.rmtree(root / "consumequeue")


def offset_beyond_the_end(root: Path) -> None:
    file = root / "config/consumerOffset.json"
    table = json.loads(file.read_text())
    next(iter(table["offsetTable"].values()))["0"] = 5000
    file.write_text(json.dumps(table))


def whole(_root: Path) -> None:
    """A group of `made` is beyond the end of some queues all the same."""


DAMAGES: tuple[Damage, ...] = (
    whole, cut_tail, zeroed_page, missing_middle_file, deleted_queue_folder, flipped_bit, log_alone,
    without_queues, offset_beyond_the_end,
    known_by_the_index_alone)
STORES = [(version, end, damage) for version, end in (("5.3.3", "abort"), ("4.9.3", "clean"))
          for damage in DAMAGES]
CASES = pytest.mark.parametrize(
    ("version", "end", "hurt"), STORES,
    ids=["-".join((version, end, hurt.__name__)) for version, end, hurt in STORES])


def damaged_store(root: Path, end: str, hurt: Damage) -> Path:
    """With a group that has read 10 messages of each queue, which is beyond the end of some."""
    queues = {(path.parent.name, path.name) for path in (root / "consumequeue").glob("*/*")}
    names = sorted({topic for topic, _ in queues})
    put(root, "topics.json", topic_table(dict.fromkeys(names, 8), five=True))
    put(root, "subscriptionGroup.json", group_table(["billing"], five=True))
    put(root, "consumerOffset.json", {"offsetTable": {
        f"{name}@billing": {queue: 10 for topic, queue in sorted(queues) if topic == name}
        for name in names}})
    for name in ("abort", "abort.bak"):
        (root / name).unlink(missing_ok=True)
    if end == "abort":
        (root / "abort").touch()
    hurt(root)
    return root


# -- what the commands say ------------------------------------------------------------------------


@contextmanager
def unwatched(_label: str, _size: int) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


def account(root: Path) -> Losses:
    with Store.open(str(root)) as store:
        return preflight(store).account


def compared(root: Path, tmp_path: Path) -> Losses:
    """The account, which all commands show; the plan's list of lost messages is not compared."""
    losses = account(root)
    answers_by_name: dict[str, dict[str, Any]] = {
        name: run(name, root, *more, *JSON).expect(0, 1).json() for name, *more in (
            ("info",), ("doctor",), ("preflight",), ("impact",), ("verify",), ("stats",))}
    answers_by_name["verify"].update(answers_by_name["verify"].pop("coverage"))
    assert {answers_by_name["doctor"]["already_lost"], *(
        answers_by_name[name]["messages_already_lost"] for name in answers_by_name
        if name != "info")} == {losses.already}
    for name, number in (("messages_undecided", losses.undecided),
                         ("messages_replaced", losses.replaced)):
        assert {item: answers_by_name[item][name] for item in answers_by_name
                if item != "info"} == dict.fromkeys(
                    set(answers_by_name) - {"info"}, number), name
    assert answers_by_name["doctor"]["would_lose"] == losses.would_lose
    assert answers_by_name["doctor"]["would_lose_by_topic"] == losses.would_lose_by_topic
    for name in ("preflight", "impact"):
        assert answers_by_name[name]["messages_lost"] == losses.cut, name
    for name in ("info", "doctor", "preflight", "impact"):
        assert answers_by_name[name]["lost_in_repairs"] == losses.in_repairs.as_list(), name
    assert answers_by_name["info"]["messages_already_lost"] is None  # it does not read the log
    # By topic, queue and group it is the same loss.
    named = sum(losses.already_by_topic.values())
    assert named <= losses.known_lost
    if losses.queues is not None:
        assert sum(queue.lost for queue in losses.queues.values()) == named
        assert sum(queue.cut for queue in losses.queues.values()) == losses.cut_for_sure
        assert sum(queue.without_entry for queue in losses.queues.values()) == (
            losses.without_entry or 0)
    rows = answers_by_name["impact"]["queues"]
    assert losses.unread_and_affected == sum(row["lost_after"] + row["at_risk"] for row in rows)
    assert answers_by_name["doctor"]["groups_affected"] == answers_by_name["impact"][
        "groups_affected"] == len(
            losses.groups or ())
    # A report, and the screen of `browse`.
    with Store.open(str(root)) as store:
        facts = gather(store, None, 1, unwatched, hashes=False)
    assert facts.diagnosis.losses == losses
    assert sum(row.lost for row in facts.topics) == named
    out = tmp_path / "report.html"
    run("report", root, "--out", out).expect(0, 1)
    tiles = re.sub(r"<[^>]+>|\s+", " ", out.read_text())
    assert re.search(rf"(^|\s){losses.already:,} +messages already lost", tiles)
    out.unlink()
    with Store.open(str(root)) as store:
        reader = StoreView(store, lambda _problem: None)
        notes = checking.run(checking.Task("", None), reader, lambda _done: None).notes
    assert set(map(str, losses.in_words())) <= set(notes)
    # Verdicts contradict none of these.
    verdict = answers_by_name["doctor"]["verdict"]
    assert ("nothing is lost" in verdict) <= losses.is_complete, verdict
    page = run("doctor", root).expect(0, 1).out
    shown = re.search(r"already lost +(.*)", page)
    assert shown is not None
    assert shown.group(1).startswith(f"{losses.already:,} message" if losses.already else "nothing")
    return losses


@pytest.mark.long
@CASES
def test_all_commands_show_the_same_numbers(version: str, end: str, hurt: Damage, tmp_path: Path,
                                            golden_copy: GoldenFolder) -> None:
    root = damaged_store(golden_copy(f"{version}/crash-base/store"), end, hurt)
    before = compared(root, tmp_path)
    # A plan says what is lost for good, and what stays undecided.
    choice = ("--ambiguous", "leave-out") if before.in_log else ()
    plan = run("recover", root, *choice, *JSON).expect(0, 1).json()
    lost = plan.get("messages_lost_total", len(plan["messages_lost"]))
    assert plan["messages_undecided"] == before.in_log
    came_back = before.known_lost + before.in_log - lost
    assert came_back == (1 if hurt is flipped_bit else 0)
    with Scratch() as scratch:
        planned = plan_recover(str(root), scratch, RecoverOptions(), unwatched)
    expected = before.after(planned)
    if not plan["actions"]:
        return
    done = run("recover", root, *choice, "--apply", "--yes", *JSON).expect(0, 1).json()
    assert done["applied"]
    # Afterwards it is what the plan said, and nothing else was lost on the way.
    after = compared(root, tmp_path)
    assert after.total == before.total - came_back == expected.total
    assert (after.already, after.undecided, after.replaced) == (
        expected.already, expected.undecided, expected.replaced)
    assert after.would_lose == 0
    run("undo", root, "--yes").expect(0)
    undone = account(root)
    assert (undone.already, undone.undecided, undone.replaced) == (
        before.already, before.undecided, before.replaced)


@pytest.mark.long
@CASES
def test_a_broker_s_recovery_hides_no_loss(version: str, end: str, hurt: Damage,
                                           golden_copy: GoldenFolder) -> None:
    root = damaged_store(golden_copy(f"{version}/crash-base/store"), end, hurt)
    before = account(root)
    run("recover", root, "--strategy", "broker", "--broker-version", version, "--apply", "--yes",
        *JSON).expect(0, 1, 6)
    after = account(root)
    assert after.total >= before.total


@pytest.mark.long
@pytest.mark.parametrize("end", ["abort", "clean"])
def test_truncating_keeps_the_number_of_lost_messages(end: str, golden_copy: GoldenFolder) -> None:
    """The entries beyond the end of the log are all that tells of them, and are truncated."""
    root = damaged_store(golden_copy("5.3.3/crash-base/store"), end, cut_tail)
    before = account(root)
    with Store.open(str(root)) as store:
        place = find_end(store).offset
    run("truncate", root, "--to-phy", str(place), "--apply", "--yes").expect(0, 1)
    after = account(root)
    assert after.already == before.already > 0
    assert after.total >= before.total
    assert "known only from entries beyond the cut" in run(
        "undo", root, "--yes").out + run("truncate", root, "--to-phy", str(place)).err


@pytest.mark.parametrize("version", ["5.3.3", "4.9.3"])
def test_index_entries_of_lost_messages_are_witnesses(version: str,
                                                      golden_copy: GoldenFolder) -> None:
    """A start that trusts no index file loses only the entries whose messages are still there."""
    root = damaged_store(golden_copy(f"{version}/crash-base/store"), "abort", whole)
    with (root / "checkpoint").open("r+b") as file:
        file.seek(16)
        file.write((1).to_bytes(8, "big"))  # the index's time
    before = predicted(root)
    places = entry_places(root)
    zeroed_page(root)
    with Store.open(str(root)) as store:
        there = {record.physical_offset for batch in store.log.walk()
                 for record in map(decode, map(batch.bytes_at, range(len(batch))))
                 if record.crc_ok}
    after = predicted(root)
    gone = sum(place not in there for place in places)
    assert gone > 0
    assert after.account.known_lost > before.account.known_lost
    assert after.index.lost == before.index.lost - gone


def predicted(root: Path, *, full: bool = True) -> Prediction:
    with Store.open(str(root)) as store:
        return preflight(store, full=full)


@pytest.mark.parametrize("hurt", [missing_middle_file, zeroed_page])
def test_what_was_not_read_is_not_lost(hurt: Damage, golden_copy: GoldenFolder) -> None:
    """A gap before the first record that was looked at tells nothing: all may be there."""
    root = damaged_store(golden_copy("5.3.3/crash-base/store"), "abort", hurt)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    quick, full = (predicted(root, full=full).account for full in (False, True))
    assert 0 < quick.known_lost < full.known_lost


def entry_places(root: Path) -> list[int]:
    with Store.open(str(root)) as store:
        return [entry.physical_offset for index in store.index.newest_first()
                for number in range(1, index.count)
                if (entry := index.entry(number)) is not None]


@pytest.mark.parametrize("rows", [True, False], ids=["entries", "log alone"])
def test_a_damaged_record_counts_whoever_tells_of_it(tmp_path: Path, *, rows: bool) -> None:
    root = tmp_path / "store"
    store = tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128)
    message = store.messages[len(store.messages) // 2]
    base = max(int(file.name) for file in log(root)
               if int(file.name) <= message.record.physical_offset)
    file = next(file for file in log(root) if int(file.name) == base)
    zero(file, message.record.physical_offset - base, message.record.total_size)
    if not rows:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    losses = account(root)
    assert (losses.known_lost, losses.in_log) == (1, 0)
    assert losses.already_by_topic == {message.record.topic.decode(): 1}


# -- no other module counts -----------------------------------------------------------------------

_COUNTS = {"unreachable_by_topic", "messages_undecided", "messages_replaced"}
_COUNTS_OF = {"gone": {"count", "by_topic", "by_offsets"}, "cut": {"undecided"},
              "log": {"undecided", "replaced"}, "repairs": {"total", "messages", "undecided"},
              "repair_losses": {"total", "messages", "undecided"}}
"""Attributes by the name of what has them: the parts of a prediction, the notes of repairs."""
_FINDERS = {"already", "lost", "gaps", "undecided", "positions"}
_MAY = ("checks/losses.py", "checks/preflight/", "checks/verify/verify.py", "ext/tiered/",
        "commands/tiered/")
"""The model, who finds the losses for it, who counts the findings of one pass, and who does so for
a tier (`rmqctl.checks.losses.TierLosses`).
"""


def _names_losses(tree: ast.AST) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Attribute):
            of = node.value
            if node.attr in _COUNTS and not (isinstance(of, ast.Name) and of.id == "account"):
                yield f"line {node.lineno}: .{node.attr}"
            if isinstance(of, ast.Attribute) and node.attr in _COUNTS_OF.get(of.attr, ()):
                yield f"line {node.lineno}: .{of.attr}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            package, _, name = node.module.rpartition(".")
            if package == "rmqctl.checks.preflight" and name in _FINDERS:
                yield f"line {node.lineno}: {node.module}"


@together
def test_no_other_module_counts_lost_messages() -> None:
    texts = [f"{path.relative_to(PACKAGE)} {what}" for path, tree in trees().items()
             if not path.relative_to(PACKAGE).as_posix().startswith(_MAY)
             for what in _names_losses(tree)]
    assert texts == []


@together
def test_the_search_finds_who_counts() -> None:
    for source in ("start.log.gone.count + 1", "start.log.undecided", "store.repair_losses.total",
                   "cover.messages_replaced", "prediction.repairs.messages",
                   "from rmqctl.checks.preflight.lost import Cut"):
        assert len(list(_names_losses(ast.parse(source)))) == 1
    assert not list(_names_losses(ast.parse("found.losses.known_lost + found.losses.undecided")))
