"""Bytes at a place that is not theirs: swapped files and pages, and pages of an earlier life."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from tests.repair.test_from_source import (
    APPLY,
    JSON,
    SIZES,
    SMALL,
    filled,
    log_files,
    log_of,
    recover,
)
from tests.support import damage
from tests.support.cli import run
from tests.support.share import sample

PAGE = 4096


def names(root: Path) -> list[str]:
    return [f"commitlog/{path.name}" for path in log_files(root)]


def files(root: Path) -> None:
    damage.swap_names(root, *names(root)[1:3])


def first_pages(root: Path) -> None:
    pages(root, 0)


def last_pages(root: Path) -> None:
    """Each with the blank record that closes its file."""
    pages(root, SMALL.log_file_size - PAGE)


def pages(root: Path, at: int) -> None:
    first, other = ((root / name).read_bytes()[at:at + PAGE] for name in names(root)[1:3])
    for name, data in zip(names(root)[1:3], (other, first), strict=True):
        damage.write(root, name, at, data)


@pytest.mark.parametrize(("swap", "gone"), sample(product(
    [files, first_pages, last_pages],
    [(), ("consumequeue",), ("index",), ("consumequeue", "index")]), 6, "swapped"))
def test_what_was_swapped_comes_back(swap: Callable[[Path], None], gone: tuple[str, ...],
                                     tmp_path: Path) -> None:
    """A record that says another place of this log was not bent, but moved."""
    writer = filled()
    for number in range(0, 120, 7):  # the files' last messages end at other places
        writer.put("orders", b"x" * (5 * number), keys=f"x{number}")
    store = writer.write(tmp_path / "store")
    whole = log_of(store)
    swap(store)
    for part in gone:
        shutil.rmtree(store / part)
    sizes = (*SIZES, "--consumequeue-file-size", "400")
    recover(store, options=(*sizes, *APPLY)).expect(0)
    assert log_of(store) == whole
    assert recover(store, options=(*sizes, *JSON)).expect(0).json()["actions"] == []


@pytest.mark.parametrize("which", [1, 2])
def test_swapped_files_come_back_beside_a_copy_of_one_of_their_pages(which: int,
                                                                     tmp_path: Path) -> None:
    """The copy's records name a place, too, but nothing at that place names the copy's."""
    writer = filled()
    for number in range(0, 120, 7):
        writer.put("orders", b"x" * (5 * number), keys=f"x{number}")
    store = writer.write(tmp_path / "store")
    whole, (first, *swapped) = log_of(store), names(store)[:3]
    damage.write(store, first, 0, (store / swapped[which - 1]).read_bytes()[:PAGE])
    damage.swap_names(store, *swapped)
    shutil.rmtree(store / "consumequeue")
    recover(store, options=(*SIZES, "--consumequeue-file-size", "400", *APPLY)).expect(1)
    now = log_of(store)
    assert {name for name in whole if now[name] != whole[name]} == {first}


@pytest.mark.parametrize("gone", [("consumequeue",), ("consumequeue", "index")])
def test_a_file_that_took_the_place_of_the_next(gone: tuple[str, ...], tmp_path: Path) -> None:
    """All its messages say places that are off by one bit: it was moved, and goes back whole."""
    writer = filled()
    for number in range(0, 300, 7):
        writer.put("orders", b"x" * (5 * number), keys=f"x{number}")
    store = writer.write(tmp_path / "store")
    before, (first, other) = log_of(store), names(store)[2:4]
    assert (int(Path(first).name) ^ int(Path(other).name)).bit_count() == 1
    (store / first).rename(store / other)
    for part in gone:
        shutil.rmtree(store / part)
    recover(store, options=(*SIZES, "--consumequeue-file-size", "400", *APPLY)).expect(0, 1)
    now = log_of(store)
    assert now[first] == before[first]
    messages = run("read", store, "-o", "jsonl").expect(0, 1).jsonl()
    put = {message.physical for message in writer.puts}
    assert {row["physical_offset"] for row in messages if row["properties"].get("RMQCTL") != "lost"
            } <= put


@pytest.mark.parametrize("gone", [(), ("consumequeue",), ("index",)])
def test_a_page_of_an_earlier_life(gone: tuple[str, ...], tmp_path: Path) -> None:
    """The log was cut at message 20 once and written anew; one page never reached the disk."""
    old, now = filled(split=20), filled(20)
    for number in range(20, 120):
        now.put("orders" if number % 3 else "pays!!", b"new %04d" % number * (1 + number % 2),
                queue_id=number % 4, keys=f"n{number:04d}", unique_key=f"n{number:06d}")
    store = now.write(tmp_path / "store")
    base = SMALL.log_file_size
    damage.write(store, f"commitlog/{base:020d}", 0, bytes(old.log[base][:PAGE]))
    stale = [put.raw for put in old.puts if base <= put.physical < put.end <= base + PAGE]
    assert len(stale) > 5
    assert all(raw in (store / f"commitlog/{base:020d}").read_bytes() for raw in stale)
    for part in gone:
        shutil.rmtree(store / part)
    recover(store, options=(*SIZES, "--consumequeue-file-size", "400", *APPLY)).expect(1)
    content = b"".join(log_of(store).values())
    assert not [raw for raw in stale if raw in content]
    assert all(put.raw in content for put in now.puts
               if put.end <= base or put.physical >= base + PAGE)
    if gone != ("consumequeue",):  # without rows there may be no room for a filler, and a gap stays
        assert run("verify", store, *SIZES, *JSON).expect(0).json()["ok"]


@pytest.mark.parametrize("options", [(), ("--keep-damaged",)])
def test_fillers_stay_where_no_source_has_what_was_lost(options: tuple[str, ...],
                                                        tmp_path: Path) -> None:
    ours, other = filled(), filled(split=30)
    store, source = ours.write(tmp_path / "ours"), other.write(tmp_path / "other")
    log_files(store)[1].unlink()
    words = (*SIZES, *options, "--prefer", "ours")
    assert recover(store, source, options=(*words, *APPLY)).expect(1).json()["messages_lost"]
    again = recover(store, source, options=(*words, *JSON)).expect(0).json()
    assert {action["action"] for action in again["actions"]} == {"conflict"}


@pytest.mark.parametrize("index", [True, False])
def test_rows_that_lead_elsewhere_make_no_message_old(index: bool, tmp_path: Path) -> None:
    """A damaged page of the queues beside damage of the log: messages that nothing knows are
    there, and nothing knows of others in their place.
    """
    writer = filled()
    lost = 30
    neighbours = [put for number, put in enumerate(writer.puts) if lost < number <= lost + 6]
    far = writer.puts[80]
    for put in neighbours:
        topic, queue_id, queue_offset = put.rows[0]
        row = writer.rows[topic, queue_id][queue_offset]
        writer.rows[topic, queue_id][queue_offset] = (
            far.physical.to_bytes(8, "big") + row[8:])
    store = writer.write(tmp_path / "store")
    victim = writer.puts[lost]
    base = max(log_file for log_file in writer.log if log_file <= victim.physical)
    damage.write(store, f"commitlog/{base:020d}", victim.physical - base, bytes(40))
    if not index:
        shutil.rmtree(store / "index")
    recover(store, options=(*SIZES, "--consumequeue-file-size", "400", *APPLY))
    content = b"".join(log_of(store).values())
    assert all(put.raw in content for put in neighbours)
