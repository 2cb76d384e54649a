"""salvage: the list of what is lost, also behind the last file and when it is very long."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rmqctl.damage import evidence
from rmqctl.errors import RefusedError
from rmqctl.repair.salvage import lost
from rmqctl.repair.salvage.salvage import salvage
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.adversary.writer import Layout, Writer
from tests.conftest import GoldenFolder
from tests.repair import salvaging
from tests.repair.test_salvage import BASIC, Case

AHEAD = ["4.9.3/crash-cqahead-file", "5.3.3/crash-cqahead-file"]


@pytest.mark.parametrize("name", AHEAD)
def test_messages_of_a_missing_last_file_are_listed(golden: GoldenFolder, name: str) -> None:
    root = golden(f"{name}/before")
    with Store.open(root) as store:
        salvaged = salvage(store)
        end = store.log.end
        last = max(int(batch.column("store_timestamp").max()) for number in range(
            len(store.log.files)) for batch in Walk(store.log.source(number)) if len(batch))
    offsets = {(*key, offset, *place) for key, rows in salvaging.rows_of(root).items()
               for offset, place in rows.items() if place[0] >= end}
    assert offsets
    beyond = [message for message in salvaged.lost if message.physical_offset is not None
              and message.physical_offset >= end]
    assert {(message.topic, message.queue_id, message.queue_offset, message.physical_offset,
             message.size)
            for message in beyond} == offsets
    assert {message.by for message in beyond} == {"consumequeue"}
    assert all(message.time_from is not None and message.time_from >= last for message in beyond)
    assert any(message.key_hashes for message in beyond)
    assert salvaged.lost_total == len(salvaged.lost)
    assert any("beyond the last file" in note for note in salvaged.notes)


@pytest.mark.parametrize("name", AHEAD)
def test_recover_lists_them_too(golden: GoldenFolder, rmqctl, name: str) -> None:
    root = golden(f"{name}/before")
    document = rmqctl("recover", root, "-o", "json").recovered()
    with Store.open(root) as store:
        assert document["messages_lost"] == [message.as_dict() for message in salvage(store).lost]
    assert "messages_lost_total" not in document


@pytest.mark.parametrize("name", BASIC)
def test_of_very_many_only_the_first_are_named(golden: GoldenFolder, golden_copy: GoldenFolder,
                                               name: str, monkeypatch: pytest.MonkeyPatch,
                                               rmqctl) -> None:
    case = Case(golden, golden_copy, name)
    for path in (case.log[-1], case.log[2]):
        path.unlink()
    with Store.open(case.root) as store:
        full = salvage(store)
    assert len(full.lost) == full.lost_total > 20
    for module in (evidence, lost):
        monkeypatch.setattr(module, "MAX_LISTED", 20)
    with Store.open(case.root) as store:
        some = salvage(store)
    assert some.lost == full.lost[:20]
    assert some.lost_total == full.lost_total
    assert (some.steps, some.parts) == (full.steps, full.parts)
    document = rmqctl("recover", case.root, "-o", "json").recovered()
    assert len(document["messages_lost"]) == 20
    assert document["messages_lost_total"] == full.lost_total


def test_keys_of_a_message_of_which_only_the_index_tells(golden: GoldenFolder,
                                                         golden_copy: GoldenFolder) -> None:
    case = Case(golden, golden_copy, "5.3.3/basic")
    place = case.places[-10]
    for path in (case.root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    case.change(place, bytes(-place % case.whole.file_size))
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert {message.by for message in salvaged.lost} == {"index"}
    assert {message.physical_offset for message in salvaged.lost} <= set(case.places[-10:])
    assert all(message.key_hashes for message in salvaged.lost)


def test_names_that_make_no_log_are_refused(golden: GoldenFolder,
                                            golden_copy: GoldenFolder) -> None:
    """Billions of files would be missing before the last one."""
    case = Case(golden, golden_copy, "5.3.3/basic")
    far = (1 << 62) // case.whole.file_size * case.whole.file_size
    (case.root / "commitlog" / f"{far:020d}").write_bytes(bytes(case.whole.file_size))
    with Store.open(case.root) as store, pytest.raises(RefusedError, match="would be missing"):
        salvage(store)


def test_all_files_cut_to_a_byte(golden: GoldenFolder, golden_copy: GoldenFolder) -> None:
    case = Case(golden, golden_copy, "5.3.3/v2topic")
    for path in case.log:
        with path.open("r+b") as opened:
            opened.truncate(1)
    assert len(case.log) > 1
    with Store.open(case.root) as store:
        salvaged = salvage(store)
    assert {part.size for part in salvaged.parts} == {case.whole.file_size}


def without_the_middle_file(writer: Writer, folder: Path) -> tuple[Path, list[tuple[object, ...]]]:
    """The store, and (queue, queue offset, place, size) of what was in the file."""
    root = writer.write(folder)
    _, gone, last = sorted(writer.log)
    (root / "commitlog" / f"{gone:020d}").unlink()
    return root, [(put.topic, put.queue_id, put.queue_offset, put.physical, put.size)
                  for put in writer.puts if gone <= put.physical < last]


SHAPES = ("--index-slots", "16", "--index-max", "256", "-o", "json")


def test_what_a_gap_and_the_index_tell_of_counts_once(tmp_path: Path, rmqctl) -> None:
    writer = Writer(Layout(log_file_size=8 << 10, index_entries=256))
    for number in range(110):
        writer.put("orders", bytes([number]) * 20, queue_id=number % 3, keys=f"k{number}")
    root, gone = without_the_middle_file(writer, tmp_path / "store")
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    plan = rmqctl("recover", root, *SHAPES).recovered()
    assert len(plan["messages_lost"]) == len(gone)
    assert {message["queue_id"] for message in plan["messages_lost"]} == {0, 1, 2}
    assert [note for note in plan["notes"] if note.endswith("each is counted once")]
    start = rmqctl("preflight", root, *SHAPES).expect(1).json()
    assert start["messages_already_lost"] == len(gone)


def test_the_place_is_the_message_s_and_not_the_filler_s(tmp_path: Path, rmqctl) -> None:
    """A filler has a body; where there was none, it takes a byte from the one behind it."""
    writer = Writer(Layout(log_file_size=8 << 10, index_entries=256))
    topics = "t" * 127, "orders"
    while len(writer.log) < 3 or len(writer.log[max(writer.log)]) < 2000:
        number = len(writer.puts)
        writer.put(topics[number % 2], b"" if number % 2 == 0 else b"body" * 40, unique_key="",
                   properties_raw=b"" if number % 2 == 0 else b"KEYS\1k%d\2" % number,
                   keys=f"k{number}")
    root, gone = without_the_middle_file(writer, tmp_path / "store")
    plan = rmqctl("recover", root, *SHAPES).recovered()
    assert [tuple(message[name] for name in ("topic", "queue_id", "queue_offset", "physical_offset",
                                             "size")) for message in plan["messages_lost"]] == gone
