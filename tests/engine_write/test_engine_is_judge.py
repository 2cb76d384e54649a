"""Replaying what the real engine was given leaves the real engine's bytes (both ways in)."""

from __future__ import annotations

import base64
import json
from itertools import product
from pathlib import Path

import pytest

from rmqctl.engine.engine import Engine
from rmqctl.formats.local import consume_queue_ext
from rmqctl.store.store import Store
from tests.support import golden as golden_sets
from tests.support import replay
from tests.support.share import sample

SETS = [golden_set for golden_set in golden_sets.all_sets() if golden_set.kind in replay.KINDS]
OTHERS = [golden_store for golden_store in golden_sets.clean_stores()
          if golden_store.kind not in replay.KINDS]


def bit_maps(store: Path) -> dict[int, bytes | None]:
    """The filter bit maps in a store's ConsumeQueueExt files by physical offset."""
    bit_maps: dict[int, bytes | None] = {}
    with Store.open(store) as opened:
        for (topic, queue_id), queue in opened.queues.by_key.items():
            for _, rows in queue.pages(queue.first_index, queue.written):
                for row in rows:
                    code = int(row["tags_code"])
                    if consume_queue_ext.is_address(code):
                        at = consume_queue_ext.byte_offset(code)
                        bit_maps[int(row["physical_offset"])] = _bit_map(
                            store / "consumequeue_ext" / topic / str(queue_id), at)
    return bit_maps


def _bit_map(folder: Path, at: int) -> bytes | None:
    file = max((path for path in folder.iterdir() if int(path.name) <= at), key=lambda p: p.name)
    return consume_queue_ext.decode(file.read_bytes(), at - int(file.name)).bit_map or None


def new_engine(folder: Path, version: str, target: Path, dirs: tuple[str, ...],
               **changes: object) -> Engine:
    for directory in dirs:
        (target / directory).mkdir(parents=True)
    settings = replay.settings_of(folder, version, **changes)
    return Engine.open(target, settings, commitlog_dirs=dirs if len(dirs) > 1 else ())


def log_dirs(kind: str) -> tuple[str, ...]:
    return golden_sets.MULTI_PATH if kind == "multipath" else ("commitlog",)


def assert_same(mine: Path, theirs: Path) -> None:
    contents, wanted = replay.contents(mine), replay.contents(theirs)
    assert sorted(contents) == sorted(wanted)
    assert [name for name in wanted if contents[name] != wanted[name]] == []


@pytest.mark.parametrize(("golden_store", "group"),
                         sample(product(SETS, [1, 7, 1024]), 27, "groups"),
                         ids=lambda param: getattr(param, "id", str(param)))
def test_the_put_path_leaves_the_engines_bytes(golden_store, group, golden, tmp_path):
    folder = golden(golden_store.id)
    maps = bit_maps(folder / "store") if golden_store.kind == "cqext" else {}
    given = replay.replayed(folder)
    messages = [replay.outgoing(put, maps.get(put["result"]["wroteOffset"])) for put in given]
    results = []
    with new_engine(folder, golden_store.version, tmp_path, log_dirs(golden_store.kind)) as engine:
        for at in range(0, len(messages), group):
            results += engine.put_many(messages[at:at + group])
    assert_same(tmp_path, folder / "store")
    for result, line in zip(results, given, strict=True):
        wanted = line["result"]
        assert (result.status, result.physical_offset, result.wrote_bytes, result.msg_num,
                result.msg_id, result.queue_offset, result.store_timestamp) == (
            wanted["status"], wanted["wroteOffset"], wanted["wroteBytes"], wanted["msgNum"],
            wanted["msgId"], wanted["logicsOffset"], wanted["storeTimestamp"])
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("golden_set", SETS, ids=lambda golden_store: golden_store.id)
def test_records_put_back_leave_the_engines_bytes(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    maps = bit_maps(folder / "store") if golden_set.kind == "cqext" else {}
    records = [record for input_text in replay.inputs(folder)
               for record in replay.recorded(input_text, maps)]
    with new_engine(folder, golden_set.version, tmp_path, log_dirs(golden_set.kind)) as engine:
        results = list(engine.append_many(records))
        assert engine.renumbered == 0
    assert all(put_result.stored for put_result in results)
    assert_same(tmp_path, folder / "store")


@pytest.mark.parametrize("changes", [
    {"mapped": True}, {"mapped": True, "warm": True}, {"preallocate": True},
    {"transient_pool": 2}, {"flush": "sync"}], ids=str)
def test_every_way_to_write_leaves_the_same_bytes(changes, golden, tmp_path):
    folder = golden("5.3.3/basic")
    messages = [replay.outgoing(put_result) for put_result in replay.replayed(folder)]
    with new_engine(folder, "5.3.3", tmp_path, ("commitlog",), **changes) as engine:
        for at in range(0, len(messages), 50):
            assert all(put_result.stored for put_result in engine.put_many(messages[at:at + 50]))
    assert_same(tmp_path, folder / "store")


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_closing_and_opening_again_changes_nothing(stop, golden, tmp_path):
    folder = golden("4.9.3/basic")
    messages = [replay.outgoing(put) for put in replay.replayed(folder)]
    part = -(-len(messages) // stop)
    (tmp_path / "commitlog").mkdir()
    for at in range(0, len(messages), part):
        with Engine.open(tmp_path, replay.settings_of(folder, "4.9.3")) as engine:
            engine.put_many(messages[at:at + part])
    assert_same(tmp_path, folder / "store")


def message_object(given: dict[str, object], maps: dict[int, bytes | None]) -> dict[str, object]:
    """A golden ``storeInput`` as a message object for ``append --replay``."""
    outgoing = replay.outgoing(given)
    common = {"born_timestamp": given["bornTimestamp"], "born_host": given["bornHost"],
              "store_timestamp": given["storeTimestamp"], "store_host": given["storeHost"],
              "reconsume_times": given["reconsumeTimes"], "topic": outgoing.topic,
              "queue_id": outgoing.queue_id, "sys_flag": outgoing.sys_flag,
              "properties_raw": outgoing.properties}
    if given["op"] == "putBatch":
        return {**common, "messages": [
            {"body": base64.b64encode(message.body).decode(), "body_encoding": "base64",
             "properties_raw": message.properties, "flag": message.flag}
            for message in outgoing.messages]}
    bit_map = maps.get(given["result"]["wroteOffset"])
    if bit_map is not None:
        common["filter_bit_map"] = bit_map.hex()
    return {**common, "body": given["body"], "body_encoding": "base64", "flag": given["flag"],
            "prepared_transaction_offset": given["preparedTransactionOffset"]}


def init_options(folder: Path, kind: str, version: str) -> list[str]:
    settings = replay.settings_of(folder, version)
    options = ["--commitlog-file-size", settings.commitlog_file_size,
               "--consumequeue-file-size", settings.consumequeue_file_size,
               "--index-slots", settings.index_slots, "--index-max", settings.index_max,
               "--broker-version", version,
               "--batch-consumequeue-file-size", settings.batch_consumequeue_file_size]
    options += [f"--{name}" for name, on in (
        ("lmq", settings.lmq), ("multi-dispatch", settings.multi_dispatch),
        ("append-crc", settings.append_properties_crc),
        ("consumequeue-ext", settings.consumequeue_ext)) if on]
    options += ["--consumequeue-ext-file-size", settings.consumequeue_ext_file_size]
    if kind == "multipath":
        options += ["--commitlog-dir", "cl1", "--commitlog-dir", "cl2"]
    return [str(option) for option in options]


@pytest.mark.parametrize(("golden_store", "way"), sample(
    [(golden_set, way) for golden_set in SETS for way in ("--replay", "--as-recorded")], 16,
    "append"),
    ids=lambda param: getattr(param, "id", str(param)))
def test_the_commands_do_it_too(golden_store, way, golden, tmp_path, rmqctl):
    folder, store = golden(golden_store.id), tmp_path / "store"
    rmqctl("init", store, *init_options(folder, golden_store.kind, golden_store.version)).expect(0)
    for topic in replay.settings_of(folder, golden_store.version).batch_topics:
        rmqctl("topic", "create", store, topic, "--attribute", "queue.type=BatchCQ").expect(0)
    source = tmp_path / "input.jsonl"
    dirs = [word for log_dir in log_dirs(golden_store.kind) if golden_store.kind == "multipath"
            for word in ("--commitlog-dir", log_dir)]
    maps = bit_maps(folder / "store") if golden_store.kind == "cqext" else {}
    if way == "--replay":
        objects = [message_object(put, maps) for put in replay.replayed(folder)]
    else:
        objects = rmqctl("read", folder / "store", *dirs, "-o", "jsonl", "--body",
                         "base64").expect(0).jsonl()
        for message in objects:  # which `read` does not show: they are in another file
            if (bit_map := maps.get(message["physical_offset"])) is not None:
                message["filter_bit_map"] = bit_map.hex()
    source.write_text("".join(json.dumps(row) + "\n" for row in objects))
    rmqctl("append", store, source, way, "--disk-watermark", "100%", *dirs).expect(0)
    assert_same(store, folder / "store")
    rmqctl("verify", store, *dirs).expect(0)
    rmqctl("diff", folder / "store", store, *dirs).expect(0)


@pytest.mark.parametrize("golden_store", OTHERS, ids=lambda golden_store: golden_store.id)
def test_any_healthy_log_comes_back(golden_store, golden, tmp_path, rmqctl):
    """Also the logs which the engine's own services wrote to: deliveries, timers, compaction."""
    folder, store = golden(golden_store.set.id), tmp_path / "store"
    rmqctl("init", store, *init_options(folder, golden_store.kind, golden_store.version)).expect(0)
    source = tmp_path / "log.jsonl"
    source.write_text(rmqctl("read", folder / golden_store.state, "-o", "jsonl", "--body",
                             "base64").expect(0).out)
    rmqctl("append", store, source, "--as-recorded", "--disk-watermark", "100%").expect(0)
    for path in (folder / golden_store.state / "commitlog").iterdir():
        assert (store / "commitlog" / path.name).read_bytes() == path.read_bytes()
    rmqctl("verify", store).expect(0)
    if golden_store.kind not in ("compaction", "tiered"):  # whose rows are elsewhere, too
        rmqctl("diff", folder / golden_store.state, store).expect(0)
