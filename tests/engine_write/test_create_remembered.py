"""``store.json``: what is written is what is read, and what is odd harms no reader."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.broker.settings import DELAY_LEVELS, Settings, resolve
from rmqctl.broker.versions import VERSIONS
from rmqctl.engine.config import create
from rmqctl.errors import NotAStoreError, RefusedError, StoreIOError, UsageError
from rmqctl.formats.local.index_file import HEADER, IndexShape
from rmqctl.store import Sizes, Store
from rmqctl.store.store_settings import KEYS, LOG_FOLDERS, recall
from tests.conftest import GoldenFolder
from tests.engine_write.faults import failing
from tests.support.snapshot import copy_tree

SIZES = st.integers(1, (1 << 31) - 1)
SETTINGS = st.builds(
    Settings, version=st.sampled_from(sorted(VERSIONS)), commitlog_file_size=SIZES,
    consumequeue_file_size=SIZES, consumequeue_ext_file_size=SIZES,
    batch_consumequeue_file_size=SIZES, index_slots=SIZES, index_max=SIZES,
    consumequeue_ext=st.booleans(), lmq=st.booleans(), multi_dispatch=st.booleans(),
    append_properties_crc=st.booleans(),
    message_delay_level=st.sampled_from([DELAY_LEVELS, "1s", "5d 2h"]))


def note(root: Path, text: str | bytes) -> Path:
    folder = root / ".rmqctl"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def test_the_keys_are_those_of_the_settings() -> None:
    names = {attribute.name for attribute in dataclasses.fields(Settings)}
    assert set(KEYS) - names == {LOG_FOLDERS}
    sound = {name: test(getattr(Settings(), name)) for name, (test, _) in KEYS.items()
             if name in names}
    assert all(sound.values()), sound


@given(settings=SETTINGS, folders=st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    max_size=3))
def test_what_is_written_is_read(settings: Settings, folders: list[str],
                                 tmp_path_factory: pytest.TempPathFactory) -> None:
    root = note(tmp_path_factory.getbasetemp() / "one", create.store_json(settings, folders))
    values = {name: getattr(settings, name) for name in KEYS if name != LOG_FOLDERS}
    assert recall(str(root)).notes == ()
    assert recall(str(root)).values == values | ({LOG_FOLDERS: folders} if folders else {})


@given(data=st.one_of(
    st.binary(max_size=60),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                 lambda inner: st.lists(inner) | st.dictionaries(
                     st.sampled_from([*KEYS, "format", "x"]), inner), max_leaves=8,
                 ).map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from([*KEYS]), st.none() | st.integers() | st.text() | st.booleans()
                    | st.lists(st.integers() | st.text())).map(
        lambda value: json.dumps({"format": 1, **value}).encode())))
def test_a_reader_never_fails(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = note(tmp_path_factory.getbasetemp() / "odd", data)
    plan = recall(str(root))
    for name, value in plan.values.items():
        assert KEYS[name][0](value)
    try:
        document = json.loads(data)
    except ValueError:
        assert plan.notes
    else:
        if not isinstance(document, dict) or document.get("format") != 1:
            assert plan.values == {}
            assert plan.notes


@pytest.mark.parametrize(("text", "expected_text"), [
    ("", "empty"), ("{", "unexpected end"), ("[]", "not a JSON object"), ("{}", "format is None"),
    ('{"format":2,"lmq":true}', "format is 2"), ('{"format":1,"lmq":1}', "lmq is not true or"),
    ('{"format":1,"index_slots":true}', "index_slots is not a count"),
    ('{"format":1,"index_slots":-4}', "index_slots is not a count"),
    ('{"format":1,"commitlog_dirs":[]}', "commitlog_dirs is not a list"),
    ('{"format":1,"commitlog_dirs":["a\\u0000"]}', "commitlog_dirs is not a list"),
    ('{"format":1,"message_delay_level":"soon"}', "not a list of delay levels"),
    ("x" * 65537, "the limit is 65,536")])
def test_what_is_wrong_is_said(tmp_path: Path, text: str, expected_text: str) -> None:
    plan = recall(str(note(tmp_path, text)))
    assert plan.values == {}
    assert len(plan.notes) == 1
    assert expected_text in plan.notes[0]
    assert str(tmp_path) in plan.notes[0]


def test_a_wrong_value_does_not_hide_the_others(tmp_path: Path) -> None:
    plan = recall(str(note(tmp_path, '{"format":1,"lmq":0,"index_slots":7,"new":[1]}')))
    assert plan.values == {"index_slots": 7}
    assert len(plan.notes) == 1


def test_odd_places(tmp_path: Path) -> None:
    assert recall(str(tmp_path)) == recall(str(tmp_path / "nowhere"))
    assert recall(str(tmp_path)).notes == ()
    (tmp_path / ".rmqctl" / "store.json").mkdir(parents=True)
    assert "directory" in recall(str(tmp_path)).notes[0]
    (tmp_path / ".rmqctl" / "store.json").rmdir()
    os.mkfifo(tmp_path / ".rmqctl" / "store.json")
    assert "not a regular file" in recall(str(tmp_path)).notes[0]
    (tmp_path / "file").write_text("")
    assert recall(str(tmp_path / "file")).values == {}


def test_writing_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    create.write_store_json(str(tmp_path), Settings(index_slots=4))
    with failing(None) as counter:
        create.write_store_json(str(tmp_path), Settings(index_slots=5))
    assert counter.calls > 4
    for number in range(counter.calls):
        create.write_store_json(str(tmp_path), Settings(index_slots=5))
        with failing(number), pytest.raises(StoreIOError, match=r"\.rmqctl"):
            create.write_store_json(str(tmp_path), Settings(index_slots=6))
        assert recall(str(tmp_path)).values["index_slots"] in (5, 6)


# -- what readers make of it ----------------------------------------------------------------------


def remember(root: Path, folders: list[str] | tuple[str, ...] = (), **values: object) -> None:
    note(root, create.store_json(Settings(**values), folders))


def test_a_multi_path_log_is_found_again(golden_copy: GoldenFolder, rmqctl) -> None:
    root = golden_copy("5.3.3/multipath/store")
    copy_tree(root / "cl1", root / "copy")  # which of the two is not to be told
    without = rmqctl("read", root, "-o", "jsonl").expect(0, 1).jsonl()
    assert len(without) < 200
    remember(root, ["cl1", "cl2"])
    messages = rmqctl("read", root, "-o", "jsonl").expect(0).jsonl()
    named = rmqctl("read", root, "-o", "jsonl", "--commitlog-dir", "cl1", "--commitlog-dir",
                   "cl2").expect(0).jsonl()
    assert len(messages) > 200
    assert messages == named
    assert rmqctl("verify", root, "-o", "json").expect(0).json()["ok"]
    assert rmqctl("verify", root, "-o", "json", "--jobs", "2").expect(0).json()["findings"] == []


def test_what_is_named_and_what_lies_there_wins(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/multipath/store")
    remember(root, ["elsewhere"])
    assert len(Store.open(root, ["cl1"]).log.files) == 4
    assert Store.open(root).log_folders == [str(root / "elsewhere")]
    (root / "cl1").rename(root / "commitlog")
    assert Store.open(root).log_folders == [str(root / "commitlog"), str(root / "cl2")]
    assert len(Store.open(root).log.files) == 8
    (root / "cl2").rename(root.parent / "cl2-of-nobody")
    (root.parent / "cl2-of-nobody" / "00000000000000000000").write_bytes(b"x")
    assert Store.open(root).log_folders == [str(root / "commitlog")]


def test_a_damaged_memory_is_no_trouble_to_readers(golden_copy: GoldenFolder, rmqctl) -> None:
    root = golden_copy("5.3.3/basic/store")
    before = rmqctl("read", root, "-o", "jsonl").expect(0).out
    for text in ("", "{", '{"format":1,"commitlog_dirs":"cl1","index_slots":"many"}', "\0" * 99):
        note(root, text)
        assert rmqctl("read", root, "-o", "jsonl").expect(0).out == before
        assert rmqctl("verify", root, "-o", "json").expect(0).json()["findings"] == []
        assert rmqctl("info", root).expect(0)


def test_sizes_of_the_files_win(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    remember(root, commitlog_file_size=4096, consumequeue_file_size=20)
    store = Store.open(root)
    assert store.log.file_size == 65536
    assert Store.open(root, sizes=Sizes(commitlog_file=131072)).log.file_size == 131072


def test_the_shape_an_index_proves_wins(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    right, other = IndexShape(100, 400), IndexShape(600, 300)
    assert right.file_size == other.file_size
    remember(root, index_slots=other.slots, index_max=other.max_entries)
    store = Store.open(root)
    file = store.index.listing.files[0]
    with open(file.path, "rb") as source:
        assert HEADER.decode(source.read(HEADER.size)).entries
    assert store.index.open(file).shape == right
    # Without entries nothing is proven: then the memory counts.
    Path(file.path).write_bytes(bytes(other.file_size))
    assert Store.open(root).index.open(file).shape == other
    # An option is no hint.
    assert Store.open(root, sizes=Sizes(index_slots=100)).index.open(file).shape == right
    Path(file.path).write_bytes(bytes(other.file_size + 2100))
    file = Store.open(root).index.listing.files[0]
    assert Store.open(root).index.open(file).shape == IndexShape(125, 500)


def test_a_shape_of_another_ratio_is_remembered(tmp_path: Path) -> None:
    shape = IndexShape(7, 33)
    remember(tmp_path, index_slots=7, index_max=33)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20231114221320000").write_bytes(bytes(shape.file_size))
    store = Store.open(tmp_path)
    assert store.index.open(store.index.listing.files[0]).shape == shape


def settled(root: Path, given: dict[str, Any], *, files: bool = True) -> Settings:
    with Store.open(root) as store:
        return resolve(store, given, files=files).settings


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "sizes"), [
    ("5.3.3/basic", (65536, 380, 100, 400)), ("4.9.3/cqext", (32768, 340, 100, 400)),
    ("5.3.3/batchcq", (49152, 480, 100, 400)), ("5.3.3/crash-base", (32768, 440, 100, 200))])
def test_the_files_say_the_sizes(name: str, sizes: tuple[int, ...], golden: GoldenFolder) -> None:
    part = "store" if (golden(name) / "store").exists() else "before"
    settings = settled(golden(f"{name}/{part}"), {})
    assert (settings.commitlog_file_size, settings.consumequeue_file_size, settings.index_slots,
            settings.index_max) == sizes
    assert settings.version == name.partition("/")[0]
    if name.endswith("batchcq"):
        assert settings.batch_consumequeue_file_size == 736
    if name.endswith("cqext"):
        assert settings.consumequeue_ext_file_size == 2048


def test_given_wins_over_remembered_over_files_over_defaults(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    note(root, '{"format":1,"version":"4.9.3","consumequeue_file_size":400,"lmq":true}')
    settings = settled(root, {"lmq": None, "commitlog_file_size": 1 << 20, "flush": "sync"})
    assert settings == Settings(version="4.9.3", commitlog_file_size=1 << 20, lmq=True,
                                flush="sync",
                                consumequeue_file_size=400, index_slots=100, index_max=400)
    assert settled(root, {"version": "5.3.3", "lmq": False}).version == "5.3.3"
    assert not settled(root, {"version": "5.3.3", "lmq": False}).lmq
    # Half a shape is none; what is given decides about the other half.
    note(root, '{"format":1,"index_slots":50}')
    assert settled(root, {}).index_slots == 100
    settings = settled(root, {"index_slots": 600})
    assert (settings.index_slots, settings.index_max) == (600, 300)


def test_files_are_not_asked_where_they_need_not(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    assert settled(root, {}, files=False) == Settings()


def test_an_unreliable_memory_keeps_from_writing(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    note(root, "{")
    with pytest.raises(RefusedError, match=r"store\.json"):
        settled(root, {})
    note(root, '{"format":1,"version":"7.0.0"}')
    with pytest.raises(RefusedError, match=r"7\.0\.0"):
        settled(root, {})
    assert settled(root, {"version": "4.9.3"}).version == "4.9.3"
    with pytest.raises(UsageError, match="not a RocketMQ release"):
        settled(root, {"version": "1.0"})
    with pytest.raises(NotAStoreError):
        settled(root / "nowhere", {})
