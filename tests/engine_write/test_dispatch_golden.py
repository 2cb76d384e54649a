"""The engine is the judge: what is dispatched from its logs is what it wrote, byte for byte."""

from __future__ import annotations

import pytest

from rmqctl.errors import InternalError
from rmqctl.store.index.files import open_index
from rmqctl.store.store import Store
from tests.engine_write.dispatching import (
    IDS,
    SETS,
    assert_same,
    bit_maps,
    derived,
    dispatcher,
    feed,
    pieces,
)
from tests.support import engine, replay, snapshot
from tests.support.share import sample

each_set = pytest.mark.parametrize("each", SETS, ids=IDS)


@pytest.mark.parametrize(("each", "most"), [
    *((each, 1 << 20) for each in SETS),
    *sample([(each, most) for each in SETS for most in (1, 7)], 14, "dispatched in pieces")],
    ids=lambda one: getattr(one, "id", str(one)))
def test_the_engines_bytes_are_written(each, most, golden, tmp_path):
    folder = golden(each.id)
    store = folder / "store"
    made = dispatcher(tmp_path, replay.settings_of(folder, each.version))
    maps = bit_maps(store)
    for data, base, _ in pieces(store, each.kind, most):
        made.dispatch(bytearray(data), base, maps)
    made.flush()
    made.close()
    assert_same(tmp_path, store)
    assert (made.gaps, made.refused, made.unplaceable) == (0, 0, 0)


@each_set
def test_closing_and_opening_in_between_makes_no_difference(each, golden, tmp_path):
    folder = golden(each.id)
    settings = replay.settings_of(folder, each.version)
    maps = bit_maps(folder / "store")
    some = list(pieces(folder / "store", each.kind, 5))
    for part in (some[:len(some) // 3], some[len(some) // 3:-1], some[-1:]):
        made = dispatcher(tmp_path, settings, part[0][1])
        feed(made, part, maps)
        made.close()
    assert_same(tmp_path, folder / "store")


@each_set
def test_dispatching_everything_again_changes_nothing(each, golden, tmp_path):
    folder = golden(each.id)
    settings = replay.settings_of(folder, each.version)
    maps = bit_maps(folder / "store")
    some = list(pieces(folder / "store", each.kind, 9))
    made = dispatcher(tmp_path, settings)
    feed(made, some, maps)
    made.flush()
    once = derived(tmp_path)
    feed(made, some, maps)
    made.flush()
    assert derived(tmp_path) == once
    made.close()
    again = dispatcher(tmp_path, settings, some[-1][1] + len(some[-1][0]))
    feed(again, some, maps)
    again.flush()
    again.close()
    assert_same(tmp_path, folder / "store")


@each_set
def test_a_golden_store_is_opened_without_a_change(each, golden, tmp_path):
    folder = golden(each.id)
    store = snapshot.copy_tree(folder / "store", tmp_path / "copy")
    some = list(pieces(store, each.kind, 50))
    with snapshot.assert_unchanged(store):
        made = dispatcher(store, replay.settings_of(folder, each.version),
                          some[-1][1] + len(some[-1][0]))
        known = engine.load(folder / "expect.json").queues
        expected = {(queue.topic, queue.queue_id): queue.max for queue in known}
        assert {key: end for key, end in made.next_offsets().items() if end} == {
            key: end for key, end in expected.items() if end}
        made.close()


def test_timestamps_and_ends_are_reported(golden, tmp_path):
    folder = golden("5.3.3/basic")
    made = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    assert (made.max_physic(), made.next_offsets()) == (-1, {})
    assert (made.logics_timestamp, made.index_timestamp) == (0, 0)
    some = list(pieces(folder / "store", "basic", 100))
    feed(made, some)
    with Store.open(folder / "store") as store:
        last = store.log.record_at(some[-1][1] + some[-1][2][-1])
        assert made.max_physic() == last.physical_offset + last.total_size
        assert made.logics_timestamp == last.store_timestamp
        full = open_index(store.index_listing.files[-2], 100, 400)
        assert made.index_timestamp == full.header.end_timestamp > 0
        full.close()
    made.close()
    again = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    assert again.max_physic() == made.max_physic()
    assert again.index_timestamp == made.index_timestamp
    assert again.next_offsets() == made.next_offsets()
    again.close()


def test_what_is_no_record_is_refused_before_anything_is_written(golden, tmp_path):
    folder = golden("5.3.3/basic")
    made = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    data, base, _ = next(pieces(folder / "store", "basic", 3))
    for some, at in ((data[:-1], base), (data + bytes(8), base), (data, base + 8),
                     (data[:20], base)):
        with pytest.raises(InternalError, match="not complete records"):
            made.dispatch(some, at)
    assert list(tmp_path.iterdir()) == []
    made.dispatch(b"", base)
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_rows_of_a_cut_log_are_wiped_out_and_come_back(golden, tmp_path):
    folder = golden("5.3.3/basic")
    settings = replay.settings_of(folder, "5.3.3", message_index=False)
    some = list(pieces(folder / "store", "basic", 20))
    made = dispatcher(tmp_path / "whole", settings)
    feed(made, some)
    made.close()
    half = len(some) // 2
    made = dispatcher(tmp_path / "half", settings)
    feed(made, some[:half])
    made.close()
    cut = snapshot.copy_tree(tmp_path / "whole", tmp_path / "cut")
    made = dispatcher(cut, settings, some[half][1])
    assert made.max_physic() <= some[half][1]
    with snapshot.assert_unchanged(cut):  # opening alone takes nothing away
        made.close()
    made = dispatcher(cut, settings, some[half][1])
    feed(made, some[half - 1:half])
    assert {key: end for key, end in made.next_offsets().items() if end} == _ends(
        tmp_path / "half", settings)
    found, wanted = derived(cut), derived(tmp_path / "half")
    assert {name: data for name, data in found.items() if any(data)} == wanted
    feed(made, some[half:])
    made.close()
    assert_same(cut, tmp_path / "whole")


def test_a_broker_leaves_what_it_cut_off(golden, tmp_path):
    folder = golden("5.3.3/basic")
    settings = replay.settings_of(folder, "5.3.3", message_index=False)
    some = list(pieces(folder / "store", "basic", 20))
    made = dispatcher(tmp_path, settings)
    feed(made, some)
    made.close()
    before = derived(tmp_path)
    made = dispatcher(tmp_path, settings, some[len(some) // 2][1], as_broker=True)
    feed(made, some[len(some) // 2 - 1:len(some) // 2])
    made.close()
    assert derived(tmp_path) == before


def _ends(root, settings) -> dict[tuple[str, int], int]:
    made = dispatcher(root, settings)
    made.close()
    return made.next_offsets()


def test_no_index_where_it_is_switched_off(golden, tmp_path):
    folder = golden("4.9.3/basic")
    made = dispatcher(tmp_path, replay.settings_of(folder, "4.9.3", message_index=False))
    feed(made, list(pieces(folder / "store", "basic", 100)))
    made.flush()
    made.close()
    assert [one.name for one in tmp_path.iterdir()] == ["consumequeue"]
    assert made.index_timestamp == 0


def test_arrays_stay_private(golden, tmp_path):
    """The caller may change its buffer as soon as the call is over."""
    folder = golden("5.3.3/basic")
    made = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    for data, base, _ in pieces(folder / "store", "basic", 30):
        buffer = bytearray(data)
        made.dispatch(memoryview(buffer), base)
        buffer[:] = bytes(len(buffer))
        del buffer[10:]  # BufferError if anything still held a view
    made.close()
    assert_same(tmp_path, folder / "store")
