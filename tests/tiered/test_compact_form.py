"""The rearranged form: the engine's bytes, whatever the chains are, in bounded parts."""

from __future__ import annotations

import hashlib
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqctl.errors import FormatError, RefusedError, StoreIOError
from rmqctl.ext.tiered.index import compacted_form as form
from rmqctl.ext.tiered.index.index_file import COMPACTED, EMPTY, OPEN, TierIndexFile, examine
from rmqctl.ext.tiered.index.keys import BatchKeys, key_set
from rmqctl.ext.tiered.index.writer import TierIndexWriter
from rmqctl.formats.tiered import index as fmt
from tests.engine_write.faults import failing
from tests.support.share import examples
from tests.tiered.index_model import Model, OldModel, arrays

LIVE, DONE = "5.3.3/tiered/store-live", "5.3.3/tiered/store"
INDEX = "tieredstore/212d6b50_DefaultCluster/broker-a/rmq_sys_INDEX/0/INDEX"


def file_of(data: bytes, slots: int | None, most: int | None = None,
            status: str = "UNSEALED") -> TierIndexFile:
    return examine(lambda at, count: bytes(data[at:at + count]), len(data), "a file",
                   status=status, slots=slots, max_items=most)


def written(compacted: form.Compacted) -> bytes:
    data = b"".join(bytes(part) for part in compacted.parts())
    assert len(data) == compacted.size
    return data


def model(draw: random.Random, slots: int, most: int, items: int, keys: int = 1 << 31) -> Model:
    model = Model(1_000_000, slots, most)
    for number in range(items):
        model.put([draw.randrange(keys)], 1, 2, number * 100, 90, 1_000_000 + number)
    return model


def test_the_open_golden_file(golden) -> None:
    (path,) = (file for file in (golden(LIVE) / "tiered_index_file").iterdir() if file.is_file())
    expected = (golden(DONE) / INDEX / "fe0d8e0400000000000000016628").read_bytes()
    for slots in (64, None):
        with form.opened(str(path), slots) as file:
            compacted = form.compact(file)
            assert compacted.sound
            assert written(compacted) == expected


ENGINE = [(1795228436874, "e10c324491de9314f6085d23511879fd", "f69c77c1c2aa42284574d5fc96a7bf4a"),
          (1795228436875, "1904821afb8493274678f4a662507c8a", "dc66cccd9ca34956385ec95f607e4bf8"),
          (1795228436876, "4791badd10e8c25b46208a2a2cba5c59", "ddaef85a99f99b02ce192cd1ba31aa8a"),
          (1795228436877, "9411d40e4aff148ede4e9e03ef43fddb", "98c1e104e693e1664714e4c0ad4b916a")]
"""Name, and digests of the open and the compacted file, as the classes of 5.3.3 wrote them."""


def test_what_the_engines_classes_wrote(tmp_path) -> None:
    begin = ENGINE[0][0]
    with TierIndexWriter(str(tmp_path), fmt.TieredIndexShape(64, 180), lambda: begin) as feed:
        offset = 0
        for i in range(260):
            unique = f"u{i * i}" if i % 5 else ""
            keys = " ".join(f"k{(i * 7 + j * j) % 40}" for j in range(i % 4)) + " " * (i % 9 == 0)
            keys = "  x" if i % 31 == 0 else keys
            hashes = [fmt.key_hash("TopicA", text) for text in key_set(unique, keys)]
            rows, values, *columns = arrays([(hashes, offset, 200 + i, begin + i * 777 - 60000)])
            feed.put_keys(BatchKeys(rows, values), *columns, 9, i % 3)
            offset += 200 + i
        feed.commit()
        paths = [*feed.full_files(), feed.open_file]
    index_items = []
    for path in paths:
        with form.opened(path, 64, 180) as file:
            index_items.append((int(Path(path).name), _digest(Path(path).read_bytes()),
                                _digest(written(form.compact(file)))))
    assert index_items == ENGINE


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


@pytest.mark.parametrize("keys", [1 << 31, 40, 1])
@pytest.mark.parametrize("parts", [1 << 24, 7])
def test_random_files(monkeypatch, seed, keys, parts) -> None:
    """Also in many parts, and with a key of so many items that their chain is long."""
    monkeypatch.setattr(form, "PART_ITEMS", parts)
    monkeypatch.setattr(form, "AT_ONCE", parts)
    draw = random.Random(seed)
    for _ in range(15):
        slots, most = draw.randrange(1, 80), draw.randrange(2, 300)
        random_model = model(draw, slots, most, draw.randrange(most), keys)
        compacted = form.compact(file_of(random_model.data, slots, most))
        assert compacted.sound
        assert written(compacted) == random_model.compacted()


def test_nothing_becomes_nothing() -> None:
    compacted = form.compact(file_of(Model(1000, 8, 32).data, 8))
    assert (compacted.size, compacted.items, list(compacted.parts())) == (0, 0, [])
    assert Model(1000, 8, 32).compacted() == b""


def damaged(draw: random.Random, model: Model) -> bytes:
    """Links and slots that lead somewhere else, in circles, to items that are not counted."""
    data = bytearray(model.data)
    for _ in range(draw.randrange(1, 6)):
        value = draw.choice([0, -1, draw.randrange(model.most),
                             min(model.items + 1, model.most - 1)])
        at = draw.choice([28 + 8 * draw.randrange(model.slots),
                          28 + 8 * model.slots + 32 * draw.randrange(1, model.most) + 28])
        struct.pack_into(">i", data, at, value)
    return bytes(data)


def test_broken_chains_are_mended(seed) -> None:
    draw = random.Random(seed)
    unsound = 0
    for _ in range(150):
        slots, most = draw.randrange(1, 20), draw.randrange(4, 60)
        random_model = model(draw, slots, most, draw.randrange(1, most))
        mended = random_model.compacted()
        random_model.data[:] = damaged(draw, random_model)
        file = file_of(random_model.data, slots, most)
        compacted = form.compact(file)
        unsound += not compacted.sound
        assert written(compacted) == mended
        if compacted.sound:
            assert random_model.compacted() == mended
    assert unsound > 50


def test_a_file_that_is_cut_short_while_it_is_read() -> None:
    random_model = model(random.Random(1), 4, 10, 5)
    for end in (30, 28 + 32 + 32 * 3 + 5):
        short = random_model.data[:end]
        file = examine(lambda at, count, data=bytes(random_model.data): data[at:at + count],
                       len(random_model.data), "a file", status="UNSEALED", slots=4)
        cut = TierIndexFile(file.where, file.size, file.status, file.form, file.header, file.shape,
                            lambda at, count, data=bytes(short): data[at:at + count])
        with pytest.raises(FormatError, match="ends"):
            form.compact(cut)


def test_a_file_that_was_only_made_is_empty(tmp_path) -> None:
    for size in (0, fmt.TieredIndexShape(64, 180).open_size):
        with (tmp_path / "1000").open("wb") as file:
            file.truncate(size)
        with form.opened(str(tmp_path / "1000")) as opened:
            assert (opened.form, form.compact(opened).size) == (EMPTY, 0)


def test_a_file_larger_than_any_is_reported_at_once(tmp_path) -> None:
    with (tmp_path / "1000").open("wb") as file:
        file.write(model(random.Random(1), 4, 10, 5).data)
        file.truncate(1 << 42)
    for slots in (None, 4, 1 << 30):
        with pytest.raises(FormatError, match="bytes"), form.opened(str(tmp_path / "1000"), slots):
            pass


def test_other_forms_are_refused() -> None:
    random_model = model(random.Random(1), 4, 10, 5)
    with pytest.raises(RefusedError, match="only the open form"):
        form.compact(file_of(random_model.compacted(), None, status="UPLOADED"))
    old = OldModel(4, 16)
    old.put(3, 1, 1, 1, 1, 5)
    with pytest.raises(RefusedError, match="only the open form"):
        form.compact(file_of(old.data, None))


def test_writing_a_file_of_its_own(tmp_path) -> None:
    random_model = model(random.Random(1), 4, 10, 5)
    compacted = form.compact(file_of(random_model.data, 4))
    form.write(compacted, str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == random_model.compacted()
    with pytest.raises(StoreIOError, match="out"):
        form.write(compacted, str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == random_model.compacted()
    for at in range(20):
        with failing(at) as counter:
            try:
                form.write(compacted, str(tmp_path / "other"))
            except StoreIOError:
                assert counter.failed
        if not counter.failed:
            break
        (tmp_path / "other").unlink(missing_ok=True)
    assert (tmp_path / "other").read_bytes() == random_model.compacted()


def test_any_bytes_give_a_form_or_an_error(seed) -> None:
    draw = random.Random(seed)
    errors = 0
    for _ in range(400):
        random_model = model(draw, draw.randrange(1, 12), draw.randrange(2, 40), 0)
        for number in range(draw.randrange(random_model.most)):
            random_model.put([draw.randrange(99)], 1, 2, number, 90, 1_000_000)
        for _ in range(draw.randrange(1, 8)):
            random_model.data[draw.randrange(len(random_model.data))] = draw.randrange(256)
        data = random_model.data[:draw.choice([len(random_model.data),
                                               draw.randrange(len(random_model.data))])]
        for slots in (None, random_model.slots):
            try:
                file = file_of(data, slots)
                written(form.compact(file))
                list(file.blocks())
                list(file.chain(draw.randrange(99)))
            except (FormatError, RefusedError):
                errors += 1
    assert errors > 100


# -- shapes ---------------------------------------------------------------------------------------

@settings(max_examples=examples(150))
@given(st.integers(1, 300), st.integers(9, 400), st.data())
def test_a_file_tells_its_shape(slots, most, data) -> None:
    draw = random.Random(data.draw(st.integers(0, 1 << 32)))
    random_model = model(draw, slots, most, data.draw(st.integers(8, most - 1)))
    assert file_of(random_model.data, None).shape == (slots, most, False)
    assert file_of(random_model.data, None, most).shape == (slots, most, False)
    assert file_of(random_model.data, slots).shape == (slots, most, False)


def test_a_file_without_items_needs_its_slots() -> None:
    assert file_of(Model(1000, 5, 20).data, None).shape == (5, 20, False)
    with pytest.raises(FormatError, match="must be given"):
        file_of(Model(1000, 64, 180).data, None)
    assert file_of(Model(1000, 64, 180).data, 64).form == OPEN


# -- 5.1.x ----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("slots", "most"), [(4, 16), (7, 20), (64, 180), (1, 9)])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_files_of_an_old_broker(slots, most, share, seed) -> None:
    draw = random.Random(seed)
    old_model = OldModel(slots, most)
    put: dict[int, list[int]] = {}
    for number in range(int(most * share)):
        index_item = draw.choice([draw.randrange(1 << 31), 5])
        old_model.put(index_item, 1, 2, number, 90, 2000 + number * 7)
        put.setdefault(index_item, []).insert(0, number)
    assert old_model.sealed == (share == 1)
    for status, data in (("UNSEALED", bytes(old_model.data)), ("UPLOADED", old_model.compacted())):
        file = file_of(data, slots if status == "UNSEALED" else None, status=status)
        assert file.shape.old or not put
        assert file.shape.slots == slots
        assert file.items == len([item for ones in put.values() for item in ones])
        if status == "UNSEALED":
            assert (file.form, file.shape, file.size) == (
                OPEN, (slots, most, True), 44 + 8 * slots + 32 * most)
            assert file_of(data, None, most).shape == file.shape
        for index_item, numbers in put.items():
            chain = list(file.chain(index_item))
            assert [item.commit_log_offset for item in chain] == numbers
            assert [file.timestamp + item.time_diff for item in chain] == [
                2000 + n * 7 for n in numbers]
        listed = [n for _, block in file.blocks() for n in block["commit_log_offset"].tolist()]
        assert sorted(listed) == list(range(file.items))
        if file.form not in (EMPTY, OPEN):
            assert file.form == COMPACTED
