"""A cut log: equal to one that never got more, byte for byte, on every golden store."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.broker.recovery import recover_log
from rmqctl.broker.versions import version_for
from rmqctl.errors import RefusedError
from rmqctl.repair.truncate.truncate import Truncation, truncate
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.engine_write.dispatching import IDS, SETS
from tests.repair.cutting import (
    GENERATION,
    applied_and_undone,
    dirs,
    dispatched,
    each_border,
    offsets,
    troubles,
    used,
)
from tests.support import damage, replay, snapshot
from tests.support import golden as golden_sets
from tests.support.share import sample


def cut(root: Path, to: int, version: str = "5.3.3", kind: str = "") -> Truncation:
    with Store.open(root, dirs(kind)) as store:
        return truncate(store, to, GENERATION[version])


def log_files(root: Path, kind: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for folder in dirs(kind) or ("commitlog",)
            for path in sorted((root / folder).iterdir())}


def check(golden_set: golden_sets.GoldenSet, to: int, folder: Path, work: Path) -> None:
    store, version, kind = folder / "store", golden_set.version, golden_set.kind
    root = snapshot.copy_tree(store, work / "cut")
    done = cut(root, to, version, kind)
    behind = [offset for offset in offsets(store, kind) if offset >= to]
    assert [message.physical_offset for message in done.plan.messages_lost] == behind
    assert done.lost == len(behind) == sum(done.lost_by_topic.values())
    with applied_and_undone(done.plan):
        wanted = work / "wanted"
        dispatched(wanted, store, kind, replay.settings_of(folder, version), to)
        mine, theirs = used(root), used(wanted)
        assert sorted(mine) == sorted(theirs)
        assert [name for name in theirs if mine[name] != theirs[name]] == []
        before = log_files(store, kind)
        for name, data in log_files(root, kind).items():
            kept = max(0, min(len(data), to - int(name)))
            assert data == before[name][:kept] + bytes(len(data) - kept), name
        with Store.open(root, dirs(kind)) as opened:
            assert recover_log(opened, version_for(GENERATION[version])).end == to
        assert troubles(root, kind) == []
        again = cut(root, to, version, kind)
        assert (again.plan.actions, again.plan.steps, again.lost) == ((), (), 0)
        assert again.plan.topic_queue_table == done.plan.topic_queue_table


def borders(golden_set: golden_sets.GoldenSet, folder: Path, most: int) -> list[int]:
    places = offsets(folder / "store", golden_set.kind)
    with Store.open(folder / "store", dirs(golden_set.kind)) as store:
        end = recover_log(store, version_for(GENERATION[golden_set.version])).end
    return each_border(places, end, most) if places else []


@pytest.mark.parametrize("golden_set", sample(SETS, 10, "truncate"),
                         ids=lambda golden_store: golden_store.id)
def test_equal_to_a_store_that_never_got_more(golden_set: golden_sets.GoldenSet,
                                              golden: GoldenFolder,
                                              tmp_path: Path) -> None:
    folder = golden(golden_set.id)
    for to in borders(golden_set, folder, 1):
        check(golden_set, to, folder, tmp_path / str(to))


@pytest.mark.exhaustive
@pytest.mark.parametrize("golden_set", SETS, ids=IDS)
def test_equal_at_many_borders(golden_set: golden_sets.GoldenSet, golden: GoldenFolder,
                               tmp_path: Path) -> None:
    folder = golden(golden_set.id)
    for to in borders(golden_set, folder, 80):
        check(golden_set, to, folder, tmp_path / str(to))


@pytest.mark.parametrize("golden_set", [golden_set for golden_set in SETS
                                        if golden_set.kind in ("basic", "multipath")],
                         ids=lambda golden_store: golden_store.id)
def test_equal_where_a_file_begins_and_at_its_blank(golden_set: golden_sets.GoldenSet,
                                                    golden: GoldenFolder, tmp_path: Path) -> None:
    """The file that begins at the cut stays, empty; at the blank before it, it goes."""
    folder = golden(golden_set.id)
    with Store.open(folder / "store", dirs(golden_set.kind)) as store:
        second = store.log.files[2].base
        blank = next(span.offset for batch in store.log.walk(0, second) for span in batch.spans
                     if span.kind == "blank" and span.end == second)
    check(golden_set, second, folder, tmp_path / "file")
    check(golden_set, blank, folder, tmp_path / "blank")


def test_what_is_no_border_is_refused(golden: GoldenFolder) -> None:
    root = golden("5.3.3/basic/store")
    places = offsets(root, "basic")
    with Store.open(root) as store:
        end = recover_log(store, version_for(5)).end
    for to in (places[3] + 1, places[4] - 1):
        with pytest.raises(RefusedError, match=f"previous one is {places[3]}, .* {places[4]}$"):
            cut(root, to)
    for to in (end + 1, end + (1 << 40)):
        with pytest.raises(RefusedError, match=f"beyond the end of the log at {end}$"):
            cut(root, to)


def test_a_record_in_another_ones_body_is_no_border(tmp_path: Path, rmqctl) -> None:
    """A stored record as a message: its copy lies at a physical offset it does not name."""
    root = tmp_path / "store"
    rmqctl("init", root).expect(0)
    rmqctl("write", root, "--topic", "T", "--body", "inner", "-o", "json").expect(0)
    with Store.open(root) as store:
        record = store.log.raw_at(0)
    assert record is not None
    body = tmp_path / "body"
    body.write_bytes(record)
    rmqctl("write", root, "--topic", "T", "--body-file", body).expect(0)
    with Store.open(root) as store:
        outer = store.log.record_at(len(record))
        assert outer is not None
        raw = store.log.raw_at(len(record))
        assert raw is not None
        inside = len(record) + raw.index(record)
    with pytest.raises(RefusedError, match=f"previous one is {len(record)}, the next"):
        cut(root, inside)


def test_before_the_log_is_refused(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    first = sorted((root / "commitlog").iterdir())
    damage.remove(root, f"commitlog/{first[0].name}")
    with pytest.raises(RefusedError, match="before the start of the log at 65536"):
        cut(root, 0, "4.9.3")


def test_a_missing_file_is_refused(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    damage.remove(root, "commitlog/00000000000000131072")
    with pytest.raises(RefusedError, match="file is missing"):
        cut(root, 140000, "4.9.3")


def test_files_that_overlap_are_refused(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    (root / "more").mkdir()
    (root / "more" / f"{65536:020d}").write_bytes(bytes(65536))
    with (Store.open(root, ("commitlog", "more")) as store,
          pytest.raises(RefusedError, match="unknown which")):
        truncate(store, 0, 4)


def test_no_log_is_refused(golden_copy: GoldenFolder) -> None:
    root = golden_copy("4.9.3/basic/store")
    for file in (root / "commitlog").iterdir():
        damage.remove(root, f"commitlog/{file.name}")
    with pytest.raises(RefusedError, match="no commitlog files"):
        cut(root, 0, "4.9.3")


def test_damage_is_a_border_and_the_rest_of_the_log_goes(golden_copy: GoldenFolder) -> None:
    """The way to end a log where it is damaged, as a broker would."""
    root = golden_copy("5.3.3/basic/store")
    places = offsets(root, "basic")
    damage.write(root, f"commitlog/{0:020d}", places[5], bytes(40))
    before = [finding for finding in troubles(root) if finding.structure == "commitlog"]
    assert [finding.offset for finding in before] == [places[5]]
    done = cut(root, places[5])
    assert done.lost == len(places) - 6
    assert any("damaged part" in note for note in done.plan.notes)
    with applied_and_undone(done.plan):
        assert troubles(root) == []
        with Store.open(root) as store:
            assert recover_log(store, version_for(5)).end == places[5]


def test_damage_before_the_cut_is_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    places = offsets(root, "basic")
    damage.write(root, f"commitlog/{196608:020d}", 0, bytes(40))
    assert any("damaged before the cut, at physical offset 196608" in note
               for note in cut(root, places[-1]).plan.notes)
    damage.write(root, f"commitlog/{196608:020d}", 0, b"damaged")
    assert not any("damaged before" in note for note in cut(root, places[0]).plan.notes)


def test_a_torn_end_is_wiped_by_a_cut_at_the_end(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    with Store.open(root) as store:
        end = recover_log(store, version_for(5)).end
        file = store.log.file_of(end)
    assert file is not None
    damage.write(root, f"commitlog/{file.name}", end - file.base, b"torn" * 30)
    done = cut(root, end)
    assert [action.action for action in done.plan.actions] == ["truncate"]
    with applied_and_undone(done.plan):
        assert troubles(root) == []


def test_a_file_that_is_too_short_gets_its_size(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    places = offsets(root, "basic")
    to = next(place for place in places if place > 262144 + 100)
    path = root / "commitlog" / f"{262144:020d}"
    with path.open("r+b") as file:
        file.truncate(to - 262144 + 10)
    with applied_and_undone(cut(root, to).plan):
        assert path.stat().st_size == 65536
        assert troubles(root) == []


def test_rows_that_lead_behind_the_log_are_cut_at_its_end(golden_copy: GoldenFolder) -> None:
    """After a broker's truncation they are left where they are, and count again one day."""
    root = golden_copy("5.3.3/basic/store")
    places = offsets(root, "basic")
    name = f"commitlog/{262144:020d}"
    to = next(place for place in places if place > 262144 + 100)
    damage.write(root, name, to - 262144, bytes(65536 - (to - 262144)))
    done = cut(root, to)
    assert done.lost == 0
    assert any(action.target.startswith("consumequeue") for action in done.plan.actions)
    with applied_and_undone(done.plan):
        assert troubles(root) == []


def test_an_unreadable_index_file_stays_and_is_reported(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    last = max((root / "index").iterdir())
    last.write_bytes(b"short")
    done = cut(root, offsets(root, "basic")[-50])
    assert any("--only index" in note for note in done.plan.notes)
    assert not any(last.name in action.target for action in done.plan.actions)


def test_an_index_file_of_a_writer_that_died_is_led_back(golden_copy: GoldenFolder) -> None:
    """Entries and slots are there, the header still counts fewer."""
    root, version = golden_copy("5.3.3/basic/store"), "5.3.3"
    last = max((root / "index").iterdir())
    whole = last.read_bytes()
    to = offsets(root, "basic")[-60]
    with applied_and_undone(cut(root, to, version).plan):
        wanted = last.read_bytes()
    fewer = int.from_bytes(whole[36:40], "big") - 20
    at = 40 + 400 + 20 * (fewer - 1)
    physical = whole[at + 4:at + 12]
    damage.write(root, f"index/{last.name}", 36, fewer.to_bytes(4, "big"))
    damage.write(root, f"index/{last.name}", 24, physical)
    with applied_and_undone(cut(root, to, version).plan):
        data = last.read_bytes()
    # How many slots are used was never counted for the entries the header does not know.
    assert (data[:32], data[36:]) == (wanted[:32], wanted[36:])
