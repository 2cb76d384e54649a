"""verify as a job that runs by itself: what it speaks up for, and how fast it reads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rmqctl.commands.shared import cron_options
from tests.conftest import GoldenFolder, Runner
from tests.support import damage

DAMAGED = "5.3.3/crash-crc/before"
SOUND = "5.3.3/basic/store"


def test_what_is_known_stays_quiet_and_what_is_new_does_not(golden_copy: GoldenFolder,
                                                            rmqctl: Runner, tmp_path: Path) -> None:
    store, baseline = golden_copy(DAMAGED), tmp_path / "known.json"
    options = ("--baseline", baseline, "--quiet-if-ok")
    assert "no such file" in rmqctl("verify", store, *options).expect(5).err.lower()
    first = rmqctl("verify", store, *options, "--update-baseline").expect(1)
    assert "1 finding accepted from now on" in first.err
    quiet = rmqctl("verify", store, *options).expect(0)
    assert (quiet.out, quiet.err) == ("", "")
    answer = rmqctl("verify", store, "--baseline", baseline, "-o", "json").expect(0).json()
    assert (answer["ok"], answer["known"]) == (True, 1)
    assert {"category": "body-crc", "severity": "known", "count": 1} in answer["counts"]
    assert not [finding for finding in answer["findings"] if finding["severity"] != "info"]
    # Another place of the same kind is new.
    damage.flip_bit(store, "commitlog/00000000000000000000", 300, 3)
    new = rmqctl("verify", store, *options, "-o", "json").expect(1).json()
    assert (new["ok"], new["known"]) == (False, 1)
    assert [finding["offset"] for finding in new["findings"]
            if finding["severity"] != "info"] == [0]
    # What was put right since is said, where anything is said.
    rmqctl("recover", store, "--apply", "--yes")
    assert rmqctl("verify", store, *options).expect(0).err == ""
    assert "1 accepted finding no longer found" in rmqctl(
        "verify", store, "--baseline", baseline).expect(0).err


def test_a_copy_elsewhere_has_the_same_findings(golden_copy: GoldenFolder, rmqctl: Runner,
                                                tmp_path: Path) -> None:
    baseline = tmp_path / "known.json"
    rmqctl("verify", golden_copy(DAMAGED), "--baseline", baseline, "--update-baseline").expect(1)
    rmqctl("verify", golden_copy(DAMAGED), "--baseline", baseline).expect(0)


def test_warnings_may_be_no_failure(golden_copy: GoldenFolder, rmqctl: Runner) -> None:
    store = golden_copy(SOUND)
    (store / "commitlog" / "notes.txt").write_text("mine")
    answer = rmqctl("verify", store, "-o", "json").expect(1).json()
    assert {finding["severity"] for finding in answer["findings"]} >= {"warning"}
    assert rmqctl("verify", store, "--fail-on", "error").expect(0).out
    assert rmqctl("verify", store, "--fail-on", "error", "--quiet-if-ok").expect(0).out == ""
    damage.flip_bit(store, "commitlog/00000000000000000000", 300, 3)
    rmqctl("verify", store, "--fail-on", "error").expect(1)


def test_it_reads_no_faster_than_it_may(golden: GoldenFolder, rmqctl: Runner) -> None:
    begin = time.monotonic()
    rmqctl("verify", golden(SOUND), "--limit-rate", "400KiB", "--quiet-if-ok").expect(0)
    assert time.monotonic() - begin > 0.6  # 320 KiB of log


def test_the_idle_class_of_the_disk(golden: GoldenFolder, rmqctl: Runner,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_options, "use_idle_disk", lambda: False)
    assert "no idle class" in rmqctl("verify", golden(SOUND), "--idle").expect(0).err


@pytest.mark.parametrize(("options", "code", "words"), [
    (("--update-baseline",), 2, "--baseline"),
    (("--baseline", "{tmp}/k", "--since-last"), 2, "mutually exclusive"),
    (("--limit-rate", "0"), 2, "greater than 0"),
    (("--limit-rate", "fast"), 2, "fast"),
    (("--baseline", "{store}/known.json", "--update-baseline"), 2, "inside the store"),
    (("--baseline", "{tmp}/none", "--update-baseline", "--fail-on", "info"), 2, "info"),
])
def test_what_cannot_be(options: tuple[str, ...], code: int, words: str, golden: GoldenFolder,
                        rmqctl: Runner, tmp_path: Path) -> None:
    store = golden(SOUND)
    filled = (word.format(store=store, tmp=tmp_path) for word in options)
    assert words in rmqctl("verify", store, *filled).expect(code).err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"findings": 3}', '{"findings": [{}]}',
                                  '{"findings": [[]]}', "[" * 100_000, "\xff"])
def test_a_file_that_is_no_baseline(text: str, golden: GoldenFolder, rmqctl: Runner,
                                    tmp_path: Path) -> None:
    baseline = tmp_path / "known.json"
    baseline.write_bytes(text.encode("latin-1"))
    for more in ((), ("--update-baseline",)):
        done = rmqctl("verify", golden(SOUND), "--baseline", baseline, *more).expect(2)
        assert "not a baseline file" in done.err
    assert baseline.read_bytes() == text.encode("latin-1")


def test_it_is_json_that_people_may_edit(golden: GoldenFolder, rmqctl: Runner,
                                         tmp_path: Path) -> None:
    baseline = tmp_path / "known.json"
    rmqctl("verify", golden(DAMAGED), "--baseline", baseline, "--update-baseline").expect(1)
    rows = json.loads(baseline.read_text())["findings"]
    assert [(row["category"], row["file"], row["offset"]) for row in rows] == [
        ("body-crc", "commitlog/00000000000000163840", 171668)]


def test_several_stores_get_a_verdict_each(golden_copy: GoldenFolder, rmqctl: Runner,
                                           tmp_path: Path) -> None:
    damaged, sound, none = golden_copy(DAMAGED), golden_copy(SOUND), tmp_path / "none"
    answer = rmqctl("verify", damaged, sound, "-o", "json").expect(1).json()
    assert [(store["store"], store["ok"]) for store in answer["stores"]] == [
        (str(damaged), False), (str(sound), True)]
    assert {finding["store"] for finding in answer["findings"]
            if finding["severity"] == "error"} == {
                str(damaged)}
    alone = rmqctl("verify", damaged, "-o", "json").expect(1).json()
    assert [{key: value for key, value in finding.items() if key != "store"}
            for finding in answer["findings"]
            if finding["store"] == str(damaged)] == alone["findings"]
    # One that cannot be judged does not stop the others, and counts more than damage.
    run = rmqctl("verify", none, damaged, sound, "-o", "json").expect(3)
    assert str(none) in run.err
    assert [store["ok"] for store in run.json()["stores"]] == [False, False, True]
    # A pattern names stores; metrics are of all of them.
    file = tmp_path / "rmq.prom"
    rmqctl("verify", sound, sound.parent / "no*such").expect(3)
    rmqctl("verify", sound, damaged, "--format-prometheus", file).expect(1)
    values = [line.rpartition(" ")[2] for line in file.read_text().splitlines()
              if line.startswith("rmqctl_verify_ok{")]
    assert values == ["1.0", "0.0"]


def test_one_list_of_known_findings_for_several_stores(golden_copy: GoldenFolder, rmqctl: Runner,
                                                       tmp_path: Path) -> None:
    first, second, baseline = golden_copy(DAMAGED), golden_copy(DAMAGED), tmp_path / "known.json"
    options = ("--baseline", baseline, "--quiet-if-ok")
    assert "2 findings accepted from now on" in rmqctl(
        "verify", first, second, *options, "--update-baseline").expect(1).err
    quiet = rmqctl("verify", first, second, *options).expect(0)
    assert (quiet.out, quiet.err) == ("", "")
    damage.flip_bit(second, "commitlog/00000000000000000000", 300, 3)
    answer = rmqctl("verify", first, second, *options, "-o", "json").expect(1).json()
    assert [(store["ok"], store["known"]) for store in answer["stores"]] == [(True, 1), (False, 1)]


def test_each_store_has_a_place_of_its_own(golden_copy: GoldenFolder, rmqctl: Runner,
                                           tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stores = golden_copy(SOUND), golden_copy("4.9.3/basic/store")
    assert rmqctl("verify", *stores, "--since-last").expect(0).err.count("no earlier run") == 2
    again = rmqctl("verify", *stores, "--since-last").expect(0)
    assert again.err.count("from physical offset") == 2
    assert "each has its own state file" in rmqctl(
        "verify", *stores, "--since-last", "--state", tmp_path / "x").expect(2).err
