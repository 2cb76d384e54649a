from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from rmqctl.checks.findings import CATEGORIES
from rmqctl.checks.impact import span
from tests.adversary.writer import Layout, Writer
from tests.conftest import GoldenFolder, Runner
from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.holder import KINDS, held

COVERAGE = {"bytes_total", "messages", "bytes_in_messages", "bytes_blank", "bytes_zero",
            "bytes_damaged", "bytes_unverifiable"}
FINDING = {"category", "severity", "structure", "file", "offset", "length", "topic", "queue_id",
           "queue_offset", "detail", "next"}


def test_the_json_is_the_contract(golden, rmqctl) -> None:
    root = golden("5.3.3/crash-crc/before")
    answer = rmqctl("verify", root, "-o", "json").expect(1).json()
    assert {"ok", "findings", "coverage", "checked"} <= set(answer)
    assert set(answer["coverage"]) >= COVERAGE
    assert answer["ok"] is False
    for finding in answer["findings"]:
        assert set(finding) >= FINDING
        assert finding["category"] in CATEGORIES
    assert [(finding["category"], finding["offset"]) for finding in answer["findings"]
            if finding["severity"] != "info"] == [("body-crc", 171668)]


def test_every_format_says_the_same(golden, rmqctl) -> None:
    root = golden("4.9.3/crash-cqahead/before")
    document = rmqctl("verify", root, "-o", "json").expect(1).json()
    lines = rmqctl("verify", root, "-o", "jsonl").expect(1).jsonl()
    assert lines == document["findings"], "one kind of row to a stream"
    rows = list(csv.DictReader(io.StringIO(rmqctl("verify", root, "-o", "csv").expect(1).out)))
    assert [row["category"] for row in rows] == [finding["category"]
                                                 for finding in document["findings"]]
    for name in ("table", "plain", "markdown"):
        page = rmqctl("verify", root, "-o", name).expect(1).out
        assert "log-cut" in page
        assert "170118" in page


def test_findings_are_listed_up_to_a_bound_and_all_counted(golden, rmqctl) -> None:
    root = golden("4.9.3/crash-cqahead/before")
    every = rmqctl("verify", root, "-o", "json").expect(1).json()
    run = rmqctl("verify", root, "-o", "json", "--max-findings", "2").expect(1)
    some = run.json()
    assert some["findings"] == every["findings"][:2]
    assert some["findings_total"] == len(every["findings"])
    assert some["counts"] == every["counts"]
    assert "--limit" in run.err


def test_only(golden, rmqctl) -> None:
    root = golden("4.9.3/crash-cqahead/before")
    answer = rmqctl("verify", root, "-o", "json", "--only", "index").expect(1).json()
    assert {finding["structure"] for finding in answer["findings"]} == {"index"}
    assert answer["checked"] == [{"structure": "index"}]
    assert "nonsense" in rmqctl("verify", root, "--only", "nonsense").expect(2).err


def test_what_is_not_verifiable_shrinks_with_what_is_compared(golden, rmqctl) -> None:
    root = golden("5.3.3/basic/store")

    def doubtful(*only: str) -> int:
        words = ["--only", ",".join(only)] if only else []
        document = rmqctl("verify", root, "-o", "json", *words).expect(0).json()
        count: int = document["coverage"]["bytes_unverifiable"]
        return count

    alone, queues = doubtful("commitlog"), doubtful("commitlog", "consumequeue")
    assert alone > queues > doubtful()
    # Queue id, queue offset (12 bytes) and topic of 600 messages, and their tags.
    assert alone - queues > 600 * 12


def test_a_store_with_sealed_messages_leaves_nothing_unverifiable(golden, rmqctl) -> None:
    document = rmqctl("verify", golden("5.3.3/appendcrc/store"), "-o", "json").expect(0).json()
    assert document["coverage"]["bytes_unverifiable"] == 0


@pytest.fixture
def state(tmp_path: Path) -> list[str]:
    return ["--since-last", "--state", str(tmp_path / "state" / "place.json"), "-o", "json"]


def test_since_last_looks_at_new_messages_only(tiny: tiny_stores.Tiny, rmqctl, state) -> None:
    first = rmqctl("verify", tiny.root, *state).expect(0).json()
    assert first["coverage"]["messages"] == len(tiny.messages)
    again = rmqctl("verify", tiny.root, *state).expect(0).json()
    assert again["coverage"]["messages"] == 0
    file, position = tiny.place(tiny.log_end)
    raw = bytearray(tiny.messages[-1].raw)
    raw[28:36] = tiny.log_end.to_bytes(8, "big")
    damage.write(tiny.root, file, position, bytes(raw))
    grown = rmqctl("verify", tiny.root, *state).expect(1).json()
    assert grown["coverage"]["messages"] == 1
    # A copy of the last message: its queue offset is taken already.
    assert grown["findings"][0]["category"] == "message-fields"
    assert grown["findings"][0]["offset"] == tiny.log_end


def test_since_last_sees_damage_right_behind_the_place(tiny: tiny_stores.Tiny, rmqctl,
                                                       state) -> None:
    rmqctl("verify", tiny.root, *state).expect(0)
    file, position = tiny.place(tiny.log_end)
    damage.write(tiny.root, file, position, tiny.messages[-1].raw[:60])
    for _ in range(2):  # and goes on to see it: the place does not move behind damage
        answer = rmqctl("verify", tiny.root, *state).expect(1).json()
        assert [(finding["category"], finding["offset"]) for finding in answer["findings"]] == [
            ("torn-tail", tiny.log_end)]


def test_since_last_starts_anew_when_the_log_is_another(tiny: tiny_stores.Tiny, rmqctl,
                                                        state) -> None:
    rmqctl("verify", tiny.root, *state).expect(0)
    last = tiny.messages[-1]
    file, position = tiny.place(last.start)
    damage.zero(tiny.root, file, position, len(last.raw))
    run = rmqctl("verify", tiny.root, *state).expect(1)
    assert run.json()["coverage"]["messages"] == len(tiny.messages) - 1
    assert "checking everything" in run.err


def test_a_sample_is_a_part_and_always_the_same(golden, rmqctl) -> None:
    root = golden("5.3.3/basic/store")
    whole = rmqctl("verify", root, "-o", "json").expect(0).json()["coverage"]
    for seed in range(5):
        words = ("--sample", "20%", "--seed", str(seed))
        some = rmqctl("verify", root, "-o", "json", *words).expect(0).json()["coverage"]
        assert 0 < some["messages"] < whole["messages"]
        assert some["bytes_total"] == sum(some[name] for name in (
            "bytes_in_messages", "bytes_blank", "bytes_zero", "bytes_damaged"))
        again = rmqctl("verify", root, "-o", "json", *words).expect(0).json()["coverage"]
        assert again == some
    rmqctl("verify", root, "--sample", "20%", "--since-last").expect(2)


def test_metrics(golden, rmqctl, tmp_path: Path) -> None:
    file = tmp_path / "rmq.prom"
    rmqctl("verify", golden("5.3.3/crash-crc/before"), "--format-prometheus", file).expect(1)
    text = file.read_text()
    assert "rmqctl_verify_ok{" in text
    assert 'category="body-crc"' in text
    assert os.listdir(tmp_path) == ["rmq.prom"]


@pytest.mark.parametrize("words", [["--format-prometheus", "x.prom"],
                                   ["--since-last", "--state", "config/place.json"]])
def test_it_writes_nothing_into_the_store(words: list[str], tiny: tiny_stores.Tiny,
                                          rmqctl) -> None:
    before = sorted(path for path in tiny.root.rglob("*"))
    run = rmqctl("verify", tiny.root, *words[:-1], tiny.root / words[-1]).expect(2)
    assert "inside the store" in run.err
    assert sorted(path for path in tiny.root.rglob("*")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_running_broker_makes_a_moving_picture(kind: str, tiny: tiny_stores.Tiny,
                                                 rmqctl) -> None:
    """A torn last record is then one in progress, and what is not dispatched yet no damage."""
    file, position = tiny.place(tiny.log_end)
    damage.write(tiny.root, file, position, tiny.messages[-1].raw[:70])
    assert rmqctl("verify", tiny.root).code == 1
    with held(tiny.root, kind) as holder:
        run = rmqctl("verify", tiny.root, "-o", "json").expect(0)
        assert str(holder.pid) in run.err
        assert kind in run.err
        assert [finding["category"] for finding in run.json()["findings"]] == ["in-progress"]


def test_not_a_store(tmp_path: Path, rmqctl) -> None:
    assert rmqctl("verify", tmp_path / "none").expect(3).out == ""
    assert rmqctl("verify", tmp_path).expect(3).out == ""
    file = tmp_path / "file"
    file.write_bytes(b"x")
    assert rmqctl("verify", file).expect(3).out == ""
    assert json.loads(rmqctl("commands", "-o", "json").expect(0).out)


def test_when_what_is_damaged_was_stored(golden: GoldenFolder, rmqctl: Runner) -> None:
    """By the messages before and after it: the damaged one's own time may be damaged too."""
    for name, behind in (("crash-crc", True), ("crash-trunc-header", False)):
        root = golden(f"5.3.3/{name}/before")
        log = rmqctl("read", root, "--view", "disk", "-o", "jsonl").jsonl()
        answer = rmqctl("verify", root, "-o", "json").expect(1).json()
        place = answer["findings"][0]["offset"]
        before = [message["store_timestamp"] for message in log
                  if message["physical_offset"] < place]
        after = [message["store_timestamp"] for message in log
                 if message["physical_offset"] > place]
        assert answer["damaged_from"] == before[-1]
        assert answer["damaged_to"] == (after[0] if behind else None)
        page = rmqctl("verify", root, "-o", "plain").expect(1).out.splitlines()[1]
        words = "between messages stored at 20" if behind else "after a message stored at 20"
        assert f", {words}" in page
    sound = rmqctl("verify", golden("5.3.3/basic/store"), "-o", "json").expect(0).json()
    assert (sound["damaged_from"], sound["damaged_to"]) == (None, None)


def test_one_next_command_and_one_line_of_impact(golden: GoldenFolder, rmqctl: Runner) -> None:
    """The command that plans a repair and says which step comes first."""
    root = golden("5.3.3/crash-nocq/before")
    answer = rmqctl("verify", root, "-o", "json").expect(1).json()
    assert answer["next"] == [f"rmqctl doctor {root}"]
    assert answer["impact"] == {
        "messages": 274, "of": 274, "topics": {"TP_bill_Event9": 138, "TP_pay_Topic": 136},
        "from": None, "to": None, "complete": True, "rows": 0, "bytes": 0}
    page = rmqctl("verify", root, "-o", "plain").expect(1).out
    assert page.splitlines()[1] == ("affected: 274 of 274 messages have no consume queue entry, "
                                    "topics TP_bill_Event9, TP_pay_Topic")
    assert [line for line in page.splitlines() if line.startswith("rmqctl ")] == [
        *answer["next"], "rmqctl explain cq-missing"]
    sound = rmqctl("verify", golden("5.3.3/basic/store"), "-o", "json").expect(0).json()
    assert (sound["next"], sound["impact"]) == ([], None)


def test_a_sample_of_a_file_laid_out_ahead_has_no_gap(rmqctl, tmp_path: Path) -> None:
    """The hole behind the last message is unused, whichever pieces are looked at."""
    root = tmp_path / "store"
    rmqctl("init", root, "--commitlog-file-size", "4MiB").expect(0)
    rmqctl("write", root, "--topic", "T", "--body", "x", "--auto-create-topic").expect(0)
    rmqctl("verify", root, "--sample", "50%").expect(0)


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_what_an_engine_left_beyond_its_cut_is_said_to_be_either(
        version: str, golden: GoldenFolder, rmqctl: Runner) -> None:
    """The same files result where the log was cut after that start: nothing tells which it was."""
    root = golden(f"{version}/crash-cqahead/after")
    cut, = [finding for finding in rmqctl("verify", root, "-o", "json").expect(1).json()["findings"]
            if finding["category"] == "log-cut"]
    assert cut["detail"].endswith("; perhaps truncated by a startup")
    before = rmqctl("verify", golden(f"{version}/crash-cqahead/before"), "-o", "json").json()
    assert not any("perhaps truncated by a startup" in finding["detail"]
                   for finding in before["findings"])
    # Without the log's own finding, the first of the queues says it; nobody says it twice.
    for only in ((), ("--only", "consumequeue")):
        findings = rmqctl("verify", root, *only, "-o", "json").expect(1).json()["findings"]
        assert sum("perhaps truncated by a startup" in finding["detail"]
                   for finding in findings) == 1


def test_what_is_concerned_counts_rows_whose_messages_are_missing(tmp_path: Path, rmqctl) -> None:
    """A file of the log is gone: that rows lead nowhere is no finding of its own."""
    writer = Writer(Layout(log_file_size=8 << 10))
    for number in range(90):
        writer.put("orders", bytes(200), queue_id=number % 2)
    store = writer.write(tmp_path / "s")
    gone = sum(8 << 10 <= put.physical < 16 << 10 for put in writer.puts)
    (store / "commitlog" / f"{8 << 10:020d}").unlink()
    result = rmqctl("verify", store, "-o", "json").expect(1).json()
    assert result["impact"]["rows"] == gone > 9
    page = rmqctl("verify", store, "-o", "plain").expect(1).out
    assert page.splitlines()[1] == (f"affected: {gone} of 90 entries point to no intact message, "
                                    "topics orders")


def test_a_span_that_is_open_at_an_end_says_no_end() -> None:
    assert span([(10, 20), (15, None)]) == (10, None)
    assert span([(10, 20), (None, None)]) == (None, None)
    assert span([(10, 20), (5, 12)]) == (5, 20)
    assert span([]) == (None, None)
