"""What a repair lost is said from then on, until the repair is undone or its note forgotten."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.store.repair_losses import NOTE, PRUNED, REPAIRS
from tests.adversary.writer import Layout, Writer
from tests.support.cli import run

JSON = ("-o", "json")
SIZES = ("--index-slots", "16", "--index-max", "400", "--consumequeue-file-size", "40000")
COUNT = 60


def logged(folder: Path, *, rows: bool = False) -> tuple[Path, Writer]:
    writer = Writer(Layout(log_file_size=64 << 10, with_queues=rows, with_index=rows,
                           index_slots=16, index_entries=400), seed=9)
    for number in range(COUNT):
        writer.put("orders", b"body %06d " % number * 9, queue_id=number % 2)
    return folder, writer


def bare_damaged(folder: Path) -> Path:
    """Without entries, the head of one message is zero: what follows is undecided."""
    _, writer = logged(folder)
    writer.patch(writer.puts[20].physical, bytes(88))
    return writer.write(folder)


def cut_short(folder: Path) -> Path:
    """A body is damaged, so a start cuts off all that follows."""
    _, writer = logged(folder, rows=True)
    writer.flip(writer.puts[40].body_at)
    return writer.write(folder)


def leave_out(store: Path) -> str:
    return repaired("recover", store, *SIZES, "--ambiguous", "leave-out")


def repaired(*command: Any) -> str:
    done: dict[str, Any] = run(*command, "--apply", "--yes", *JSON).expect(0, 1).json()
    assert done["applied"]
    return str(done["id"])


def diagnosis_of(store: Path) -> dict[str, Any]:
    """What all commands say of losses; the same everywhere."""
    doctor = run("doctor", store, *JSON).expect(0).json()
    start = run("preflight", store, *JSON).expect(0).json()
    impact = run("impact", store, *JSON).expect(0, 1).json()
    cover = run("verify", store, *JSON).expect(0).json()["coverage"]
    stats = run("stats", store, *JSON).expect(0).json()
    info = run("info", store, *JSON).expect(0).json()
    lost = doctor["lost_in_repairs"]
    assert lost == start["lost_in_repairs"] == impact["lost_in_repairs"] == info["lost_in_repairs"]
    total = sum((lost_in_repair["messages_lost"] or 0) + (lost_in_repair["messages_undecided"] or 0)
                for lost_in_repair in lost)
    messages = sum(lost_in_repair["messages_lost"] or 0 for lost_in_repair in lost)
    assert doctor["already_lost"] == start["messages_already_lost"] == messages
    assert impact["messages_already_lost"] == stats["messages_already_lost"] == messages
    # What was undecided when a repair discarded it is no lost message, and stays undecided.
    assert {item["messages_undecided"] for item in (doctor, start, impact, cover, stats)} == {
        total - messages}
    assert cover["messages_lost_in_repairs"] == total
    assert info["messages_already_lost"] is None
    complete = not (total or doctor["messages_replaced"])
    assert stats["complete"] is complete
    exported = run("export", store, "--out", store.parent / "out.jsonl", *JSON).expect(
        0 if complete else 1).json()
    (store.parent / "out.jsonl").unlink()
    assert (exported["complete"], exported["messages_already_lost"],
            exported["messages_undecided"]) == (complete, messages, total - messages)
    result: dict[str, Any] = {**doctor, "total": total}
    return result


@pytest.mark.long
def test_what_was_left_out_is_said_until_it_is_undone(tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    before = run("doctor", store, *JSON).expect(1).json()
    assert before["messages_undecided"] == COUNT - 21
    repair = leave_out(store)
    after = diagnosis_of(store)
    assert after["sound"] is True
    assert after["messages_undecided"] + after["messages_replaced"] >= COUNT - 21
    assert after["lost_in_repairs"] == [{
        "id": repair, "time": after["lost_in_repairs"][0]["time"], "command": "recover",
        "messages_lost": 0, "messages_undecided": COUNT - 21, "root": None}]
    shown = run("doctor", store).expect(0).out
    assert "nothing is lost" not in shown
    assert f"{COUNT - 21} undecided records were discarded in repair {repair};" in shown
    assert f"discarded in repair {repair}" in run("verify", store).expect(0).out
    assert f"discarded in repair {repair}" in run("info", store).expect(0).out
    assert "not checked: run rmqctl verify" in run("info", store).out
    run("report", store, "--out", tmp_path / "r.html").expect(0)
    assert repair in (tmp_path / "r.html").read_text()
    run("undo", store, repair, "--yes").expect(0)
    undone = run("doctor", store, *JSON).expect(1).json()
    assert (undone["lost_in_repairs"], undone["messages_undecided"]) == ([], COUNT - 21)


@pytest.mark.long
@pytest.mark.parametrize("words", [("truncate", "--to-phy"), ("recover", "--strategy", "broker")])
def test_what_was_cut_off_is_said(words: tuple[str, ...], tmp_path: Path) -> None:
    store, writer = cut_short(tmp_path / "s"), logged(tmp_path / "t", rows=True)[1]
    at = writer.puts[40].physical
    more = (str(at),) if words[0] == "truncate" else ()
    repair = repaired(words[0], store, *words[1:], *more)
    result = diagnosis_of(store)
    assert result["total"] >= COUNT - 41
    assert result["lost_in_repairs"][0]["id"] == repair
    run("undo", store, repair, "--yes").expect(0)
    assert run("doctor", store, *JSON).expect(1).json()["lost_in_repairs"] == []


def test_what_comes_back_is_not_lost_any_more(tmp_path: Path) -> None:
    store = cut_short(tmp_path / "s")
    repaired("recover", store, "--strategy", "broker")
    assert diagnosis_of(store)["total"] >= COUNT - 41
    repaired("recover", store, *SIZES, "--correct", "off")
    result = diagnosis_of(store)
    assert (result["total"], result["messages_replaced"]) == (0, 1)


def test_a_filler_counts_once(tmp_path: Path) -> None:
    """Records that were left out and that gaps in the queue offsets tell of have fillers."""
    _, writer = logged(tmp_path / "s")
    writer.patch(writer.puts[20].physical, bytes(88))
    store = writer.write(tmp_path / "s")
    repaired("recover", store, *SIZES, "--max-message-size", "1KiB", "--ambiguous", "leave-out")
    result = diagnosis_of(store)
    assert result["messages"] - result["messages_replaced"] + result["messages_replaced"] + result[
        "total"] == COUNT


def test_pruning_keeps_the_note(tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    repair = leave_out(store)
    before = diagnosis_of(store)
    run("undo", store, "--prune", "0s", "--apply", "--yes").expect(0)
    assert "no repairs" in run("undo", store, "--list").err + run("undo", store, "--list").out
    assert diagnosis_of(store)["lost_in_repairs"] == before["lost_in_repairs"]
    shown = run("undo", store, "--prune", "0s", "--forget", *JSON).expect(0).json()
    assert (shown["forgets"], shown["applied"]) == ([repair], False)
    assert diagnosis_of(store)["total"] == before["total"]
    run("undo", store, "--prune", "0s", "--forget", "--apply", "--yes").expect(0)
    assert diagnosis_of(store)["total"] == 0
    assert not os.listdir(store / PRUNED)


def test_pruning_and_forgetting_at_once(tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    leave_out(store)
    run("undo", store, "--forget").expect(2)
    run("undo", store, "--prune", "1d", "--forget", "--apply", "--yes").expect(0)
    assert diagnosis_of(store)["total"]
    run("undo", store, "--prune", "0s", "--forget", "--apply", "--yes").expect(0)
    assert diagnosis_of(store)["total"] == 0


def test_an_undone_repair_leaves_no_note(tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    leave_out(store)
    run("undo", store, "--yes").expect(0)
    run("undo", store, "--prune", "0s", "--apply", "--yes").expect(0)
    assert run("doctor", store, *JSON).expect(1).json()["lost_in_repairs"] == []


def test_a_repair_without_loss_leaves_no_note(tmp_path: Path) -> None:
    _, writer = logged(tmp_path / "s", rows=True)
    store = writer.write(tmp_path / "s")
    shutil.rmtree(store / "consumequeue")
    repaired("recover", store, *SIZES)
    assert not list(store.rglob(NOTE))
    assert diagnosis_of(store)["total"] == 0


def test_a_copy_names_the_path_of_the_original(tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    leave_out(store)
    shutil.copytree(store, tmp_path / "copy")
    result = diagnosis_of(tmp_path / "copy")
    assert result["lost_in_repairs"][0]["root"] == os.path.realpath(store)
    assert f"the store was at {store} then" in run("doctor", tmp_path / "copy").expect(0).out


NOTES = {
    "no JSON": b"{", "a list": b"[1]", "another id": None, "negative": {"messages_lost": -1},
    "too many": {"messages_lost": 1 << 60}, "a flag": {"messages_undecided": True},
    "a number with a point": {"messages_lost": 1.5}, "no places": {"places": None},
    "a place of text": {"places": ["abc"]}, "huge": b" " * 100_000, "deep": b"[" * 10_000,
    "empty": b"", "no root": {"root": 7},
}


@pytest.mark.parametrize("kind", NOTES)
def test_a_bad_note_hides_nothing(kind: str, tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    path = store / REPAIRS / leave_out(store) / NOTE
    change = NOTES[kind]
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        note = json.loads(path.read_text())
        path.write_text(json.dumps({**note, **({"id": "x"} if change is None else change)}))
    doctor = run("doctor", store, *JSON).expect(0).json()
    (lost,) = doctor["lost_in_repairs"]
    assert (lost["messages_lost"], lost["messages_undecided"]) == (None, None)
    shown = run("doctor", store).expect(0).out
    assert "nothing is lost" not in shown
    assert "are unknown: its record is damaged" in shown
    assert run("verify", store).expect(0).code == 0


@pytest.mark.parametrize("what", ["pipe", "link", "folder"])
def test_a_note_that_is_no_file(what: str, tmp_path: Path) -> None:
    store = bare_damaged(tmp_path / "s")
    path = store / REPAIRS / leave_out(store) / NOTE
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert "are unknown: its record is damaged" in run("doctor", store).expect(0).out


def test_many_notes_are_bounded(tmp_path: Path) -> None:
    _, writer = logged(tmp_path / "s", rows=True)
    store = writer.write(tmp_path / "s")
    (store / PRUNED).mkdir(parents=True)
    for number in range(1, 1500):
        name = f"20260101T000000Z-{number}"
        (store / PRUNED / f"{name}.json").write_text(json.dumps({
            "format": 1, "id": name, "time": 1, "command": "recover", "messages_lost": 1,
            "messages_undecided": 0, "places": [], "root": "/elsewhere"}))
    answer = run("doctor", store, *JSON).expect(0).json()
    assert len(answer["lost_in_repairs"]) == 1000
    assert "in earlier repairs" in answer["verdict"]
