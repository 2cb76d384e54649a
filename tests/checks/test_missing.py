"""What a store is known to have lost: commands that read its log say what `preflight` counts, and
call nothing complete that is not.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.checks.preflight.missing import missing
from rmqctl.checks.preflight.preflight import preflight
from rmqctl.store import Store
from tests.adversary.writer import Layout, Writer
from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.golden import GoldenStore, clean_stores, golden_stores
from tests.support.share import sample

JSON = ("-o", "json")


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


def counted(store: Path, *, damaged: bool = False) -> tuple[int | None, int]:
    with Store.open(store) as opened:
        return (missing(opened, damaged=damaged).known_lost,
                preflight(opened).log.gone.count)


@pytest.mark.parametrize("golden_store", sample(clean_stores(), 12, "missing"),
                         ids=lambda golden_store: golden_store.id)
def test_a_sound_store_has_lost_nothing(golden: GoldenFolder, golden_store: GoldenStore) -> None:
    assert counted(golden(golden_store.id)) == (0, 0)


@pytest.mark.parametrize("golden_store", sample(golden_stores(), 12, "missing too"),
                         ids=lambda golden_store: golden_store.id)
def test_a_quick_look_never_says_nothing_where_preflight_counts(golden: GoldenFolder,
                                                                golden_store: GoldenStore) -> None:
    with Store.open(golden(golden_store.id)) as store:
        known_lost, expected = missing(store, damaged=True).known_lost, preflight(store)
    assert known_lost in (None, expected.log.gone.count)


def last_file(store: Path) -> None:
    log_files(store)[-1].unlink()


def all_but_the_first(store: Path) -> None:
    for file in log_files(store)[1:]:
        file.unlink()


def middle_file(store: Path) -> None:
    files = log_files(store)
    files[len(files) // 2].unlink()


def whole_log(store: Path) -> None:
    shutil.rmtree(store / "commitlog")


def empty_last_file(store: Path) -> None:
    file = log_files(store)[-1]
    file.write_bytes(bytes(file.stat().st_size))


def zero_page(store: Path) -> None:
    with log_files(store)[1].open("r+b") as file:
        file.seek(4096)
        file.write(bytes(9000 - 4096))


@pytest.mark.long
@pytest.mark.parametrize("accident", [last_file, all_but_the_first, middle_file, whole_log,
                                      empty_last_file, zero_page])
@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store"])
def test_what_is_lost_is_not_complete(accident: Callable[[Path], None], name: str,
                                      golden: GoldenFolder, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(name), store)
    with Store.open(store) as opened:
        intact = preflight(opened).log.messages
    accident(store)
    start = run("preflight", store, *JSON).expect(1).json()
    assert start["messages_already_lost"] > 0
    assert (start["messages"] or 0) + start["messages_already_lost"] == intact
    for command in (("export", store, "--out", tmp_path / "one.jsonl", "--manifest"),
                    ("export", store, "--out", tmp_path / "many"), ("stats", store),
                    ("pipeline", "stats", store, "--engine", "local"),
                    ("pipeline", "export", store, "--engine", "local", "--out", tmp_path / "all")):
        answer = run(*command, *JSON).expect(1).json()
        assert answer["complete"] is False, command
        assert answer["messages_already_lost"] == start["messages_already_lost"], command
    manifest = json.loads((tmp_path / "one.jsonl.manifest.json").read_text())
    assert (manifest["complete"], manifest["messages_already_lost"]) == (
        False, start["messages_already_lost"])
    shown = run("stats", store).expect(1)
    assert f"{start['messages_already_lost']} messages are already lost" in shown.err


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store",
                                  "5.3.3/lmq/store", "5.3.3/batchcq/store"])
def test_a_sound_store_is_complete(name: str, golden: GoldenFolder, tmp_path: Path) -> None:
    for command in (("export", golden(name), "--out", tmp_path / "one.jsonl"),
                    ("stats", golden(name)), ("stats", golden(name), "--by", "hour")):
        answer = run(*command, *JSON).expect(0).json()
        assert (answer["complete"], answer["messages_already_lost"],
                answer["messages_replaced"]) == (
                    True, 0, 0)


def test_a_filler_is_no_message(tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=16 << 10), seed=9)
    for number in range(20):
        writer.put("orders", b"body %d" % number)
    writer.patch(writer.puts[5].physical, bytes(writer.puts[7].end - writer.puts[5].physical))
    store = writer.write(tmp_path / "store")
    sizes = ("--index-slots", "16", "--index-max", "64")
    run("recover", store, *sizes, "--apply", "--yes").expect(1)
    for command in (("export", store, "--out", tmp_path / "one.jsonl"),
                    ("export", store, "--out", tmp_path / "many"), ("stats", store)):
        answer = run(*command, *JSON).expect(0, 1).json()
        assert (answer["complete"], answer["messages_replaced"]) == (False, 3), command


@pytest.mark.parametrize("name", ["4.9.3/crash-crc", "5.3.3/crash-crc", "5.3.3/dledger-crash-crc"])
def test_a_body_that_does_not_match_its_crc_is_lost_for_all(name: str, golden: GoldenFolder,
                                                           tmp_path: Path) -> None:
    store = golden(name) / "before"
    result = run("stats", store, *JSON).expect(1)
    figures = result.json()
    assert (figures["complete"], figures["bodies_damaged"]) == (False, 1)
    assert "1 message counted despite a body CRC mismatch" in result.err
    for command in ("preflight", "verify", "doctor"):
        answer = run(command, store, *JSON).expect(1).json()
        counted = answer.get("coverage", {}).get("messages_already_lost")
        assert (answer.get("messages_already_lost", counted) == 1
                == figures["messages_already_lost"]), command
