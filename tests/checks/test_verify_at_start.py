"""What the next start of a broker puts right is no alarm; the engine's own start is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support.cli import run
from tests.support.golden import GoldenSet, all_sets
from tests.support.share import sample

DAMAGED = [golden_set for golden_set in all_sets() if golden_set.is_damaged]
PUT_RIGHT = {"cq-missing", "cq-missing-entry", "cq-behind", "index-missing", "index-behind"}
NO_ALARM = {"clean-nocheckpoint", "crash-cqlag", "crash-cqshort", "crash-live",
            "crash-nocheckpoint", "crash-nocq-noindex-nocheckpoint", "crash-noprealloc",
            "crash-zerocheckpoint"}
"""The kinds on which both versions' start loses nothing and leaves nothing missing."""
CREATED = "; startup recreates "
UNIT = 20


def verify_answer(root: Path, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = run("verify", root, *options, "-o", "json").expect(0, 1).json()
    return document


def places(document: dict[str, Any], *, info: bool) -> set[tuple[str, Any, Any]]:
    """(category, topic, queue) of what is missing: what a start makes, or what stays an alarm."""
    return {(finding["category"], finding["topic"], finding["queue_id"])
            for finding in document["findings"]
            if finding["category"] in PUT_RIGHT and (finding["severity"] == "info") == info}


@pytest.mark.parametrize("golden_store", sample(DAMAGED, 18, "what a start puts right"),
                         ids=lambda golden_store: golden_store.id)
def test_the_engine_is_judge(golden: GoldenFolder, golden_store: GoldenSet) -> None:
    before = verify_answer(golden(golden_store.id) / "before")
    after = verify_answer(golden(golden_store.id) / "after")
    left = places(after, info=True) | places(after, info=False)
    assert not places(before, info=True) & left
    assert before["ok"] == (golden_store.kind in NO_ALARM)
    for finding in before["findings"]:
        assert (finding["category"] in PUT_RIGHT and finding["severity"] == "info") == (
            CREATED in finding["detail"]), finding
    if before["ok"]:
        assert (before["next"], before["impact"]) == ([], None)


def test_entries_that_a_start_discards_are_said(golden: GoldenFolder) -> None:
    document = verify_answer(golden("5.3.3/crash-cqlag/before"))
    [entries] = [finding for finding in document["findings"] if finding["structure"] == "index"]
    assert entries["detail"].endswith(
        "recreates them (4.9.3, 5.3.3); 14 discarded entries are not recreated")
    assert entries["next"].startswith("rmqctl preflight ")


def test_after_a_clean_end_not_all_releases_do(golden: GoldenFolder) -> None:
    """5.0.0 to 5.3.1 make no rows then, so this is an alarm, and says who does."""
    document = verify_answer(golden("5.3.3/clean-nocq/before"))
    assert not document["ok"]
    for finding in document["findings"]:
        assert finding["severity"] == "error"
        assert finding["detail"].endswith(
            "; only 4.9.3 or 5.3.3 recreates it")


# -- own damage -----------------------------------------------------------------------------------


def queue_file(root: Path, number: int) -> Path:
    """The newest file of the queue with the most rows in its files, or the one before."""
    folder = max((root / "consumequeue").glob("*/*"), key=lambda path: len(list(path.iterdir())))
    return sorted(folder.iterdir())[number]


def without_rows(path: Path, first: int, last: int | None = None) -> None:
    raw = bytearray(path.read_bytes())
    end = max(at for at in range(0, len(raw), UNIT) if any(raw[at:at + UNIT])) + UNIT
    stop = end if last is None else end - last * UNIT
    raw[end - first * UNIT:stop] = bytes(stop - end + first * UNIT)
    path.write_bytes(raw)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_rows_lost_before_the_part_that_a_start_reads(golden_copy: Any, version: str) -> None:
    root = golden_copy(f"{version}/crash-live/before")
    without_rows(queue_file(root, -1), 1)
    assert verify_answer(root)["ok"]
    newest = queue_file(root, -1)
    without_rows(newest, 1)
    newest.unlink()
    for before in sorted(newest.parent.iterdir())[-2:]:
        without_rows(before, 22)
    document = verify_answer(root)
    assert [finding["category"] for finding in document["findings"]
            if finding["severity"] == "error"] == [
                "cq-behind"]
    assert not any(CREATED in finding["detail"] for finding in document["findings"])


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_page_of_rows_that_never_reached_the_disk(golden_copy: Any, version: str) -> None:
    """Zeros between rows: recovery takes the queue to end there, and makes all behind anew."""
    root = golden_copy(f"{version}/crash-live/before")
    without_rows(queue_file(root, -1), 3, last=1)
    document = verify_answer(root)
    assert document["ok"]
    assert ("cq-missing-entry", "info") in {(finding["category"], finding["severity"])
                                            for finding in document["findings"]}


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_a_start_that_makes_rows_at_wrong_places_is_no_cure(golden_copy: Any,
                                                           version: str) -> None:
    """Recovery takes the queue to end at the hole, and makes the later rows from there on."""
    root = golden_copy(f"{version}/crash-cqlag/before")
    without_rows(queue_file(root, -2), 4)
    folder = queue_file(root, -2).parent
    wrong = {(finding["topic"], finding["queue_id"]) for finding in verify_answer(root)["findings"]
             if finding["category"] in ("cq-behind", "cq-missing-entry")
             and finding["severity"] == "error"}
    assert wrong == {(folder.parent.name, int(folder.name))}


def test_a_start_that_cuts_messages_off_is_no_cure(golden_copy: Any) -> None:
    root = golden_copy("5.3.3/crash-crc/before")
    without_rows(queue_file(root, -1), 1)
    assert {finding["category"] for finding in verify_answer(root)["findings"]
            if finding["severity"] == "error"} >= {"body-crc", "cq-behind"}


def test_no_index_is_made_where_none_is_wanted(golden_copy: Any, tmp_path: Path) -> None:
    root = golden_copy("5.3.3/crash-nocq-noindex-nocheckpoint/before")
    conf = tmp_path / "broker.conf"
    conf.write_text("messageIndexEnable=false\n")
    document = verify_answer(root, "--broker-conf", str(conf))
    assert not any(finding["category"] == "index-missing" and CREATED in finding["detail"]
                   for finding in document["findings"])


def test_a_sound_store_asks_no_start(golden: GoldenFolder, rmqctl: Runner,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from rmqctl.checks.preflight import preflight

    asked: list[object] = []
    real = preflight.preflight

    def watched(*values: Any, **named: Any) -> Any:
        asked.append(values[1])
        return real(*values, **named)

    monkeypatch.setattr(preflight, "preflight", watched)
    for name in ("basic/store", "crash-live/before", "transaction/store"):
        rmqctl("verify", golden(f"5.3.3/{name}")).expect(0, 1)
    assert asked == []
    rmqctl("verify", golden("5.3.3/crash-cqlag/before")).expect(0)
    assert asked == ["4.9.3", "5.3.3"]


def test_a_run_since_the_last_looks_again_at_what_a_start_was_to_make(
        golden_copy: Any, tmp_path: Path) -> None:
    root = golden_copy("5.3.3/crash-cqlag/before")
    last = ("--since-last", "--state", str(tmp_path / "state"))
    assert verify_answer(root, *last)["ok"]
    (root / "abort").unlink()  # now no start of 5.0.0 to 5.3.1 does
    assert not verify_answer(root, *last)["ok"]


# -- index files that a start does not trust ------------------------------------------------------

HEADER = {"end_timestamp": 8, "begin_phy_offset": 16, "index_count": 36}
ENTRY, SLOTS = 20, 100


def in_newest_index(root: Path, position: int, data: bytes) -> None:
    """``position``: in the file; below 0 from the end of the last entry that is in use."""
    path = max((root / "index").iterdir())
    raw = bytearray(path.read_bytes())
    entries = int.from_bytes(raw[36:40], "big") - 1
    if position < 0:
        position += 40 + 4 * SLOTS + ENTRY * (entries + 1)
    raw[position:position + len(data)] = data
    path.write_bytes(raw)


def of_index(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding["category"], finding["severity"]) for finding in document["findings"]
            if finding["structure"] == "index"}


@pytest.mark.parametrize(("position", "data", "category"), [
    (-4, (145).to_bytes(4, "big"), "index-chain"), (40, bytes(4), "index-slot"),
    (HEADER["begin_phy_offset"], b"\xff" * 8, "index-header"),
    (HEADER["end_timestamp"], (1 << 45).to_bytes(8, "big"), "index-header"),
    (-ENTRY + 4, b"\0\1" + bytes(6), "index-ahead"), (40, b"\x55" * 4000, "index-slot")])
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_damage_in_an_index_file_that_a_start_discards(golden_copy: Any, version: str,
                                                      position: int, data: bytes,
                                                      category: str) -> None:
    root = golden_copy(f"{version}/crash-live/before")
    in_newest_index(root, position, data)
    document = verify_answer(root)
    assert document["ok"], [finding for finding in document["findings"]
                            if finding["severity"] != "info"]
    assert (category, "info") in of_index(document)
    findings = [finding for finding in document["findings"] if finding["structure"] == "index"]
    assert len({(finding["file"], finding["category"])
                for finding in findings}) == len(findings), "one of each"
    for finding in findings:
        assert "; startup " in finding["detail"]
        assert finding["detail"].endswith("(4.9.3, 5.3.3)")
    (root / "abort").unlink()  # after a clean end the file stays, and so does what is wrong in it
    assert not verify_answer(root)["ok"]


def test_a_start_that_discards_a_file_for_its_damage_is_no_cure(golden_copy: Any) -> None:
    """Entries go for good because the end time says that the file was not finished."""
    root = golden_copy("5.3.3/crash-cqlag/before")
    first = min((root / "index").iterdir())
    raw = bytearray(first.read_bytes())
    raw[8:16] = (1 << 45).to_bytes(8, "big")
    first.write_bytes(raw)
    document = verify_answer(root)
    assert ("index-header", "error") in of_index(document)


def test_what_of_the_index_a_start_costs_is_a_loss(golden_copy: Any, rmqctl: Runner) -> None:
    root = golden_copy("5.3.3/crash-cqlag/before")
    result = rmqctl("preflight", root).expect(1)
    assert result.out.startswith(
        "a 5.3.3 broker would start and lose no message, but 14 index entries\n")
    lost = {"what": "index", "count": 14, "file": "index", "already": False,
            "cause": "the affected messages are no longer found by key"}
    assert rmqctl("preflight", root, "-o", "json").json()["losses"] == [lost]
    assert "startup would lose 14 index entries" in rmqctl("doctor", root).expect(1).out
    # Of a file that cannot be understood nobody knows how many.
    newest = max((root / "index").iterdir())
    whole = newest.read_bytes()
    newest.write_bytes(whole[:2000])
    document = rmqctl("preflight", root, "-o", "json").expect(1).json()
    assert document["index"]["entries_lost"] == 0
    assert document["losses"] == [lost | {"count": None}]
    assert any(note.startswith(f"index/{newest.name} is unreadable: the number of its entries "
                               "that are not recreated is unknown") for note in document["notes"])
    # The repair leads out.
    newest.write_bytes(whole)
    rmqctl("recover", root, "--apply", "--yes").expect(0)
    assert rmqctl("preflight", root, "-o", "json").expect(0).json()["losses"] == []
    assert rmqctl("doctor", root).expect(0).out.count("sound") == 2


def test_keys_before_the_end_of_a_trusted_file_do_not_come_back(golden_copy: Any) -> None:
    """A start reads their messages, and makes entries only behind those that are there."""
    root = golden_copy("5.3.3/crash-live/before")
    trusted = sorted((root / "index").iterdir())[-2]
    raw = bytearray(trusted.read_bytes())
    raw[24:32] = (1 << 40).to_bytes(8, "big")
    trusted.write_bytes(raw)
    assert not verify_answer(root)["ok"]
    assert not [finding for finding in verify_answer(root)["findings"]
                if finding["category"].startswith("index-")
                and finding["severity"] == "info"
                and "makes them" in finding["detail"] and "(4.9.3, 5.3.3)" in finding["detail"]]
