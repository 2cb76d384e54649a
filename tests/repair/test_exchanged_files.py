"""Log files with names of other log files: each is read where its messages belong, and `recover`
gives it the right name.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.repair.accidents import bytes_of
from tests.repair.test_renamed_files import log_of, messages, with_host
from tests.support import cli

STORES = ["4.9.3/basic/store", "5.3.3/basic/store"]
SWAPS = {"first": {0: 1, 1: 0}, "ends": {0: -1, -1: 0}, "last": {-2: -1, -1: -2},
         "rotated": {0: 1, 1: 2, 2: 0}, "two pairs": {0: 1, 1: 0, 2: 3, 3: 2}}
PAGE = 4096


def exchange(store: Path, places: Mapping[int, int]) -> None:
    """Give each log file the name of another one, by number."""
    files = log_of(store)
    moved = {files[to]: files[number].rename(store / f"{number}.moved")
             for number, to in places.items()}
    for path, there in moved.items():
        there.rename(path)


def without_repairs(store: Path) -> dict[str, bytes]:
    return {name: data for name, data in bytes_of(store).items() if not name.startswith(".rmqctl")}


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("swap", SWAPS)
def test_nothing_is_lost(golden_copy, name: str, swap: str) -> None:
    store = golden_copy(name)
    before, wanted = bytes_of(store), messages(store)
    exchange(store, SWAPS[swap])
    exchanged = bytes_of(store)
    assert messages(store) == wanted
    report = cli.run("verify", str(store), "-o", "json").expect(1).json()
    assert {finding["category"] for finding in report["findings"]} == {"file-name"}
    assert report["coverage"]["messages"] == 600
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert [action["action"] for action in plan["actions"]] == ["rename"] * len(SWAPS[swap])
    assert without_repairs(store) == before
    cli.run("verify", str(store)).expect(0)
    (run_id,) = (folder.name for folder in (store / ".rmqctl/repairs").iterdir())
    cli.run("undo", str(store), run_id, "--yes").expect(0)
    assert without_repairs(store) == exchanged


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("swap", ["first", "ends"])
def test_a_broker_reads_the_names(golden_copy, name: str, swap: str) -> None:
    """The prediction is that of the names; nothing is lost now."""
    store = golden_copy(name)
    exchange(store, SWAPS[swap])
    start = cli.run("preflight", str(store), "-o", "json").expect(1).json()
    assert start["messages_already_lost"] == 0
    assert start["shadowed"] + start["messages_lost"] > 100
    assert any("the name of another one" in note for note in start["notes"])
    doctor = cli.run("doctor", str(store)).expect(1)
    assert "nothing is lost so far" in " ".join(doctor.out.split())
    refused = cli.run("write", str(store), "--topic", "TP_ship_evt-x", "--body", "x").expect(6)
    assert "under its name" in refused.err


def test_the_broker_has_another_address_since(golden_copy) -> None:
    """Each of the last two files shows the name that the other one left."""
    store = golden_copy("5.3.3/basic/store")
    with_host(log_of(store)[-1], bytes((10, 1, 1, 1)))
    before, wanted = bytes_of(store), messages(store)
    exchange(store, SWAPS["last"])
    assert messages(store) == wanted
    cli.run("recover", str(store), "--apply", "--yes").expect(0)
    assert without_repairs(store) == before


def test_all_names_are_one_too_far(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    before, wanted = bytes_of(store), messages(store)
    for path in reversed(log_of(store)):
        path.rename(path.with_name(f"{int(path.name) + 65536:020d}"))
    assert messages(store) == wanted
    cli.run("recover", str(store), "--apply", "--yes").expect(0)
    assert without_repairs(store) == before


def test_a_file_is_replaced_by_another_one(golden_copy) -> None:
    """Its own messages are lost: the second copy is no evidence of others."""
    store = golden_copy("5.3.3/basic/store")
    missing = golden_copy("5.3.3/basic/store")
    first, other = log_of(store)[1:3]
    shutil.copy(other, first)
    log_of(missing)[1].unlink()
    assert messages(store) == messages(missing)
    for root in (store, missing):
        plan = cli.run("recover", str(root), "--apply", "--yes", "-o", "json").expect(1).json()
        assert len(plan["messages_lost"]) == 120
        cli.run("verify", str(root)).expect(0)
    assert without_repairs(store) == without_repairs(missing)


def test_the_last_file_is_replaced_by_another_one(golden_copy) -> None:
    store = golden_copy("5.3.3/basic/store")
    *_, other, last = log_of(store)
    shutil.copy(other, last)
    kept = [place for place in messages(store) if place < int(last.name)]
    assert messages(store) == kept
    cli.run("recover", str(store), "--apply", "--yes").expect(1)
    assert set(kept) <= set(messages(store))
    cli.run("verify", str(store)).expect(0)


@pytest.mark.parametrize("number", [0, 1])
def test_damage_is_repaired_as_well(golden_copy, number: int) -> None:
    store, again = golden_copy("5.3.3/basic/store"), golden_copy("5.3.3/basic/store")
    for root in (store, again):
        with log_of(root)[number].open("r+b") as file:
            file.seek(5 * PAGE)
            file.write(bytes(PAGE))
    exchange(store, SWAPS["first"])
    for root in (store, again):
        cli.run("recover", str(root), "--apply", "--yes").expect(1)
    assert without_repairs(store) == without_repairs(again)


def test_pages_of_two_files_are_exchanged(golden_copy) -> None:
    """The first page shows the other file, the rest does not: names stay."""
    store = golden_copy("5.3.3/basic/store")
    before = bytes_of(store)
    first, other = log_of(store)[:2]
    pages = [path.read_bytes()[:PAGE] for path in (first, other)]
    for path, page in zip((other, first), pages, strict=True):
        with path.open("r+b") as file:
            file.write(page)
    cli.run("recover", str(store), "--apply", "--yes").expect(0)
    assert without_repairs(store) == before


@pytest.mark.parametrize("command", [
    ("truncate", "{}", "--to-phy", "100119"), ("delete", "topic", "{}", "TP_ship_evt-x"),
    ("delete", "message", "{}", "--id", "9E72CD1CBAC2496414C623ADD3762991"),
    ("expire", "{}", "--keep-bytes", "200000")])
def test_other_repairs_use_the_right_file(golden_copy, command: tuple[str, ...]) -> None:
    store, again = golden_copy("5.3.3/basic/store"), golden_copy("5.3.3/basic/store")
    exchange(store, SWAPS["first"])
    for root in (store, again):
        cli.run(*(word.format(root) for word in command), "--apply", "--yes").expect(0)
    assert messages(store) == messages(again)
    cli.run("recover", str(store), "--apply", "--yes").expect(0, 1)
    assert messages(store) == messages(again)
