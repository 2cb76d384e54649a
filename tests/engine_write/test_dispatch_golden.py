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

each_set = pytest.mark.parametrize("golden_set", SETS, ids=IDS)


@pytest.mark.parametrize(("golden_store", "most"), [
    *((golden_set, 1 << 20) for golden_set in SETS),
    *sample([(golden_set, most) for golden_set in SETS for most in (1, 7)], 14,
            "dispatched in pieces")],
    ids=lambda param: getattr(param, "id", str(param)))
def test_the_engines_bytes_are_written(golden_store, most, golden, tmp_path):
    folder = golden(golden_store.id)
    store = folder / "store"
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, golden_store.version))
    maps = bit_maps(store)
    for data, base, _ in pieces(store, golden_store.kind, most):
        new_dispatcher.dispatch(bytearray(data), base, maps)
    new_dispatcher.flush()
    new_dispatcher.close()
    assert_same(tmp_path, store)
    assert (new_dispatcher.gaps, new_dispatcher.refused, new_dispatcher.unplaceable) == (0, 0, 0)


@each_set
def test_closing_and_opening_in_between_makes_no_difference(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    settings = replay.settings_of(folder, golden_set.version)
    maps = bit_maps(folder / "store")
    some = list(pieces(folder / "store", golden_set.kind, 5))
    for part in (some[:len(some) // 3], some[len(some) // 3:-1], some[-1:]):
        new_dispatcher = dispatcher(tmp_path, settings, part[0][1])
        feed(new_dispatcher, part, maps)
        new_dispatcher.close()
    assert_same(tmp_path, folder / "store")


@each_set
def test_dispatching_everything_again_changes_nothing(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    settings = replay.settings_of(folder, golden_set.version)
    maps = bit_maps(folder / "store")
    some = list(pieces(folder / "store", golden_set.kind, 9))
    new_dispatcher = dispatcher(tmp_path, settings)
    feed(new_dispatcher, some, maps)
    new_dispatcher.flush()
    once = derived(tmp_path)
    feed(new_dispatcher, some, maps)
    new_dispatcher.flush()
    assert derived(tmp_path) == once
    new_dispatcher.close()
    again = dispatcher(tmp_path, settings, some[-1][1] + len(some[-1][0]))
    feed(again, some, maps)
    again.flush()
    again.close()
    assert_same(tmp_path, folder / "store")


@each_set
def test_a_golden_store_is_opened_without_a_change(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    store = snapshot.copy_tree(folder / "store", tmp_path / "copy")
    some = list(pieces(store, golden_set.kind, 50))
    with snapshot.assert_unchanged(store):
        new_dispatcher = dispatcher(store, replay.settings_of(folder, golden_set.version),
                                    some[-1][1] + len(some[-1][0]))
        queues = engine.load(folder / "expect.json").queues
        expected = {(queue.topic, queue.queue_id): queue.max for queue in queues}
        assert {key: end for key, end in new_dispatcher.next_offsets().items() if end} == {
            key: end for key, end in expected.items() if end}
        new_dispatcher.close()


def test_timestamps_and_ends_are_reported(golden, tmp_path):
    folder = golden("5.3.3/basic")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    assert (new_dispatcher.max_physic(), new_dispatcher.next_offsets()) == (-1, {})
    assert (new_dispatcher.logics_timestamp, new_dispatcher.index_timestamp) == (0, 0)
    some = list(pieces(folder / "store", "basic", 100))
    feed(new_dispatcher, some)
    with Store.open(folder / "store") as store:
        last = store.log.record_at(some[-1][1] + some[-1][2][-1])
        assert new_dispatcher.max_physic() == last.physical_offset + last.total_size
        assert new_dispatcher.logics_timestamp == last.store_timestamp
        full = open_index(store.index.listing.files[-2], 100, 400)
        assert new_dispatcher.index_timestamp == full.header.end_timestamp > 0
        full.close()
    new_dispatcher.close()
    again = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    assert again.max_physic() == new_dispatcher.max_physic()
    assert again.index_timestamp == new_dispatcher.index_timestamp
    assert again.next_offsets() == new_dispatcher.next_offsets()
    again.close()


def test_what_is_no_record_is_refused_before_anything_is_written(golden, tmp_path):
    folder = golden("5.3.3/basic")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    data, base, _ = next(pieces(folder / "store", "basic", 3))
    for some, at in ((data[:-1], base), (data + bytes(8), base), (data, base + 8),
                     (data[:20], base)):
        with pytest.raises(InternalError, match="not complete records"):
            new_dispatcher.dispatch(some, at)
    assert list(tmp_path.iterdir()) == []
    new_dispatcher.dispatch(b"", base)
    new_dispatcher.close()
    assert list(tmp_path.iterdir()) == []


def test_rows_of_a_cut_log_are_wiped_out_and_come_back(golden, tmp_path):
    folder = golden("5.3.3/basic")
    settings = replay.settings_of(folder, "5.3.3", message_index=False)
    some = list(pieces(folder / "store", "basic", 20))
    new_dispatcher = dispatcher(tmp_path / "whole", settings)
    feed(new_dispatcher, some)
    new_dispatcher.close()
    half = len(some) // 2
    new_dispatcher = dispatcher(tmp_path / "half", settings)
    feed(new_dispatcher, some[:half])
    new_dispatcher.close()
    cut = snapshot.copy_tree(tmp_path / "whole", tmp_path / "cut")
    new_dispatcher = dispatcher(cut, settings, some[half][1])
    assert new_dispatcher.max_physic() <= some[half][1]
    with snapshot.assert_unchanged(cut):  # opening alone takes nothing away
        new_dispatcher.close()
    new_dispatcher = dispatcher(cut, settings, some[half][1])
    feed(new_dispatcher, some[half - 1:half])
    assert {key: end for key, end in new_dispatcher.next_offsets().items() if end} == _ends(
        tmp_path / "half", settings)
    derived_files, wanted = derived(cut), derived(tmp_path / "half")
    assert {name: data for name, data in derived_files.items() if any(data)} == wanted
    feed(new_dispatcher, some[half:])
    new_dispatcher.close()
    assert_same(cut, tmp_path / "whole")


def test_a_broker_leaves_what_it_cut_off(golden, tmp_path):
    folder = golden("5.3.3/basic")
    settings = replay.settings_of(folder, "5.3.3", message_index=False)
    some = list(pieces(folder / "store", "basic", 20))
    new_dispatcher = dispatcher(tmp_path, settings)
    feed(new_dispatcher, some)
    new_dispatcher.close()
    before = derived(tmp_path)
    new_dispatcher = dispatcher(tmp_path, settings, some[len(some) // 2][1], as_broker=True)
    feed(new_dispatcher, some[len(some) // 2 - 1:len(some) // 2])
    new_dispatcher.close()
    assert derived(tmp_path) == before


def _ends(root, settings) -> dict[tuple[str, int], int]:
    new_dispatcher = dispatcher(root, settings)
    new_dispatcher.close()
    return new_dispatcher.next_offsets()


def test_no_index_where_it_is_switched_off(golden, tmp_path):
    folder = golden("4.9.3/basic")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "4.9.3", message_index=False))
    feed(new_dispatcher, list(pieces(folder / "store", "basic", 100)))
    new_dispatcher.flush()
    new_dispatcher.close()
    assert [path.name for path in tmp_path.iterdir()] == ["consumequeue"]
    assert new_dispatcher.index_timestamp == 0


def test_arrays_stay_private(golden, tmp_path):
    """The caller may change its buffer as soon as the call is over."""
    folder = golden("5.3.3/basic")
    new_dispatcher = dispatcher(tmp_path, replay.settings_of(folder, "5.3.3"))
    for data, base, _ in pieces(folder / "store", "basic", 30):
        buffer = bytearray(data)
        new_dispatcher.dispatch(memoryview(buffer), base)
        buffer[:] = bytes(len(buffer))
        del buffer[10:]  # BufferError if anything still held a view
    new_dispatcher.close()
    assert_same(tmp_path, folder / "store")
