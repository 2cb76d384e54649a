"""Topics, groups and positions in another form: all of them, and back to the byte."""

from __future__ import annotations

import json
import struct
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.config import config_json
from rmqctl.formats.rocksdb import config as layout
from rmqctl.store.rocksdb.database import Database
from tests.conftest import GoldenFolder
from tests.support.cli import run
from tests.support.share import sample
from tests.support.snapshot import assert_unchanged

rocksdict = pytest.importorskip("rocksdict")
SECTIONS = ("topics", "groups", "offsets")
FORMS = {"json": "json", "rocksdb-v1": "v1", "rocksdb-v2": "v2"}


def content(store: Path) -> dict[str, list[dict[str, Any]]]:
    """Topics, groups and positions, without where they are from."""
    rows = {section: run("config", store, section, "-o", "json").expect(0).json()
            for section in SECTIONS}
    return {section: sorted(({name: value for name, value in row.items() if name != "source"}
                             for row in row), key=json.dumps) for section, row in rows.items()}


def versions(store: Path) -> dict[str, Any]:
    return {row["kind"]: row["data_version"] for row in run(
        "config", store, "-o", "json").expect(0).json() if row["kind"] in SECTIONS
        and row["state"] == "ok"}


def convert(store: Path, to: str, *more: str) -> Any:
    return run("config", "convert", store, "--to", to, *more, "-o", "json").expect(0).json()


def judged(store: Path) -> list[tuple[str, str]]:
    """What `verify` says of the configuration, in whatever form it is.

    Files that a database replaces are named where there is one; queues that nobody reads are not
    judged by a database v2, which has no topics that were created by sending.
    """
    done = run("verify", store, "--only", "config", "-o", "json").expect(0, 1).json()
    return [(finding["category"], finding["detail"]) for finding in done["findings"]
            if finding["category"] not in ("not-judged", "config-read-queues")]


@pytest.mark.parametrize(("name", "to"), sample(product(
    ["rocksdb-config-v1-kill", "rocksdb-config-v2", "rocksdb-import"], FORMS), 4, "forms"))
def test_each_form_into_each_other(name: str, to: str, golden_copy: GoldenFolder) -> None:
    store = golden_copy(f"5.3.3/{name}/store")
    before, store_versions, was_judged = content(store), versions(store), judged(store)
    with assert_unchanged(store / "config"):
        planned = convert(store, to)
        same = run("info", store, "-o", "json").json()["layout"]["config"] == to
        assert bool(planned["actions"]) != same
        if same:
            return
        applied = convert(store, to, "--apply", "--yes")
        assert applied["applied"]
        assert run("info", store, "-o", "json").json()["layout"]["config"] == to
        assert (content(store), versions(store)) == (before, store_versions)
        assert judged(store) == was_judged
        run("undo", store, applied["id"], "--yes").expect(0)


def test_from_files_and_back(golden_copy: GoldenFolder) -> None:
    """A store of files, made of what the engine had: into RocksDB and back the same."""
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    convert(store, "json", "--apply", "--yes")
    config = store / "config"
    files = {name: (config / name).read_bytes()
             for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json")}
    assert b"\t\t\"TP_cart@G_TP_mail\":{0:10,1:10\n" in files["consumerOffset.json"]
    for to in ("rocksdb-v1", "rocksdb-v2", "rocksdb-v1", "json"):
        convert(store, to, "--apply", "--yes")
    assert {name: json_of(config / name) for name in files} == {
        name: parsed(data) for name, data in files.items()}
    assert not any(path.is_dir() for path in config.iterdir())


@pytest.mark.parametrize("form", ["rocksdb-v1", "rocksdb-v2"])
def test_offsets_of_broadcasting_consumers(golden_copy: GoldenFolder, form: str) -> None:
    """5.3.3 commits them for the group ``GROUP@broadcast``, in each form."""
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    convert(store, "json", "--apply", "--yes")
    path = store / "config/consumerOffset.json"
    value = json_of(path)
    value["offsetTable"]["TP_cart@G_TP_mail@broadcast"] = {"0": 7, "3": 9}
    path.write_text(json.dumps(value))
    before = content(store)
    convert(store, form, "--apply", "--yes")
    assert content(store) == before
    if form == "rocksdb-v2":
        with Database.open(str(store / "config/rdb")) as database:
            keys = dict(database.items(layout.DEFAULT))
        # [1][table 1][data 2][length][GROUP@broadcast][1][length][topic][1][queue]
        group, topic = b"G_TP_mail@broadcast", b"TP_cart"
        assert keys[b"\1\0\1\2" + struct.pack(">H", len(group)) + group + b"\1" + struct.pack(
            ">H", len(topic)) + topic + b"\1" + struct.pack(">i", 3)] == struct.pack(">q", 9)
    convert(store, "json", "--apply", "--yes")
    assert json_of(path)["offsetTable"] == value["offsetTable"]


@pytest.mark.parametrize("key", ["TP_cart", "TP_cart@G@other", "TP_cart@G@broadcast@broadcast"])
def test_a_key_that_names_no_group_is_refused(golden_copy: GoldenFolder, key: str) -> None:
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    convert(store, "json", "--apply", "--yes")
    path = store / "config/consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": {key: {"0": 1}}}))
    result = run("config", "convert", store, "--to", "rocksdb-v2").expect(6)
    assert "is not of the form topic@group" in result.err


def parsed(data: bytes) -> Any:
    value = config_json.parse(data).value
    return {name: item for name, item in value.items() if item or name != "forbiddenTable"}


def json_of(path: Path) -> Any:
    return parsed(path.read_bytes())


def test_a_broker_of_5_can_open_what_is_made(golden_copy: GoldenFolder) -> None:
    """Tables of format 5 in families that a broker asks for, with no entry outside of them."""
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    convert(store, "rocksdb-v1", "--apply", "--yes")
    for name in ("topics", "subscriptionGroups", "consumerOffsets"):
        folder = store / "config" / name
        assert {path.name.partition("-")[0] for path in folder.iterdir()
                if path.suffix != ".sst"} == {"CURRENT", "MANIFEST", "IDENTITY"}
        tables = list(folder.glob("*.sst"))
        assert tables
        for table in tables:
            assert struct.unpack("<I", table.read_bytes()[-12:-8])[0] == 5
        assert set(rocksdict.Rdict.list_cf(str(folder))) == {"default", "kvDataVersion",
                                                             "forbidden"}


def test_what_is_refused(golden_copy: GoldenFolder) -> None:
    store = golden_copy("5.3.3/rocksdb-config-v2/store")
    light = store / "config/lmqConsumerOffset.json"
    (store / "config/rdb/CURRENT").rename(store / "away")
    assert "would be lost" in run("config", "convert", store, "--to", "json").expect(6).err
    (store / "away").rename(store / "config/rdb/CURRENT")
    light.write_text("{}")
    convert(store, "json")
    assert "enableLmq" in run("config", "convert", store, "--to", "rocksdb-v1").expect(6).err
    run("config", "convert", store, "--to", "yaml").expect(2)
