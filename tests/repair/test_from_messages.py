"""`recover --from` messages and files: what was read out of a log once brings its bytes back."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.local.message import build, decode
from rmqctl.scan.columns import message_columns
from rmqctl.scan.tables import MESSAGE_COLUMNS
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.repair.test_from_source import (
    APPLY,
    JSON,
    KINDS,
    SIZES,
    SMALL,
    actions,
    filled,
    flipped,
    hurt,
    last_files_gone,
    log_files,
    log_of,
    middle_file_gone,
    recover,
    torn_tail,
    zeroed_pages,
)
from tests.support import snapshot
from tests.support.cli import run
from tests.support.share import sample

STORES = ["4.9.3/basic/store", "5.3.3/basic/store", "5.3.3/appendcrc/store",
          "5.3.3/multipath/store", "5.3.3/batchcq/store", "4.9.3/transaction/store",
          "5.3.3/ipv6/store", "5.3.3/v2topic/store", "5.3.3/lmq/store", "4.9.3/delay/store"]


def as_lines(root: Path, target: Path, *options: str) -> Path:
    """As `read -o jsonl` writes it; without bodies that are text, too."""
    target.write_bytes(run("read", root, "-o", "jsonl", *options).expect(0, 1).out.encode())
    return target


def as_export(root: Path, folder: Path, names: tuple[str, ...] = (), by_topic: bool = True) -> Path:
    """As `pipeline export` writes it, or Spark, whose times are in µs: in folders by topic."""
    import pyarrow as pa
    from pyarrow import parquet

    wanted = list(names or (name for name in MESSAGE_COLUMNS if name != "record"))
    with Store.open(root) as store:
        table = pa.Table.from_batches([
            message_columns(batch, wanted) for batch in store.log.walk() if len(batch)])
    folder.mkdir()
    if not by_topic:
        parquet.write_table(table, folder / "all.parquet")
        return folder
    table = table.cast(pa.schema([field.with_type(pa.timestamp("us", "UTC"))
                                  if pa.types.is_timestamp(field.type) else field
                                  for field in table.schema]))
    for topic in set(table.column("topic").to_pylist()):
        below = folder / f"topic={topic.replace('%', '%25')}" / "day=2023-11-14"
        below.mkdir(parents=True)
        mask = pa.array([row == topic for row in table.column("topic").to_pylist()])
        parquet.write_table(table.filter(mask).drop_columns(["topic"]), below / "part-0.parquet")
    return folder


def of_lines(root: Path, folder: Path) -> Path:
    return as_lines(root, folder / "messages.jsonl")


def of_base64(root: Path, folder: Path) -> Path:
    return as_lines(root, folder / "messages.jsonl", "--body", "base64")


def of_carving(root: Path, folder: Path) -> Path:
    target = folder / "carved.jsonl"
    target.write_bytes(run("carve", root, "-o", "jsonl").expect(0, 1).out.encode())
    return target


def of_parquet(root: Path, folder: Path) -> Path:
    return as_export(root, folder / "export")


def of_one_file(root: Path, folder: Path) -> Path:
    """Times are times there."""
    run("export", root, "--out", folder / "all.parquet").expect(0, 1)
    return folder / "all.parquet"


def of_records(root: Path, folder: Path) -> Path:
    return as_export(root, folder / "export", ("record",), by_topic=False)


def of_log_files(root: Path, folder: Path) -> Path:
    target = folder / "files"
    target.mkdir()
    for path in log_files(root):
        shutil.copy(path, target)
    return target


FINDS_LESS = {("5.3.3/v2topic/store", last_files_gone)}
"""It has no such files."""
FORMS = [of_lines, of_base64, of_carving, of_parquet, of_one_file, of_records,
         of_log_files]


@pytest.mark.parametrize(("name", "form", "kind"), sample(
    [(name, form, kind) for name in STORES for form in FORMS for kind in KINDS
     if (name, kind) not in FINDS_LESS], 5,
    "recover from messages",
    always=lambda case: case[0] == "5.3.3/basic/store" and case[2] is zeroed_pages))
def test_the_log_is_the_engines_again(name: str, form: Callable[[Path, Path], Path],
                                      kind: Callable[[Path], None], golden: GoldenFolder,
                                      golden_copy: GoldenFolder, tmp_path: Path) -> None:
    store, whole = golden_copy(name), log_of(golden(name))
    source = form(golden(name), tmp_path)
    kind(store)
    damaged = log_of(store)
    with snapshot.assert_unchanged(source, store):
        plan = recover(store, source).expect(0).json()
    assert actions(plan, "copy")
    assert plan["messages_lost"] == []
    recover(store, source, options=APPLY).expect(0)
    assert log_of(store) == whole
    assert run("verify", store, *JSON).expect(0).json()["ok"]
    assert recover(store, source).expect(0).json()["actions"] == []
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == damaged


def others(log: dict[str, bytes], whole: dict[str, bytes]) -> set[int]:
    """Places of messages that are not as in the whole log."""
    numbers = set()
    for name, data in whole.items():
        at = 0
        while data[at + 4:at + 8] == b"\xda\xa3\x20\xa7":
            size = int.from_bytes(data[at:at + 4])
            if log[name][at:at + size] != data[at:at + size]:
                numbers.add(int(Path(name).name) + at)
            at += size
    return numbers


def test_a_tier(golden: GoldenFolder, golden_copy: GoldenFolder, tmp_path: Path) -> None:
    """Its records are those of the log but for their physical offsets, which rows say."""
    name = "5.3.3/tiered/store"
    store, whole = golden_copy(name), log_of(golden(name))
    source = Path(shutil.copytree(golden(name) / "tieredstore", tmp_path / "tier"))
    flipped(store)
    path = log_files(store)[2]
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    damaged = log_of(store)
    with snapshot.assert_unchanged(source, store):
        plan = recover(store, source).expect(0, 1)
    lost = {message["physical_offset"] for message in plan.json()["messages_lost"]}
    recover(store, source, options=APPLY).expect(0, 1)
    assert others(log_of(store), whole) <= lost  # messages that were not yet in the tier
    assert len(lost) < 4
    assert len(actions(plan.json(), "copy")) > 4
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == damaged
    # Without rows the index says where those with keys lay; without both nothing does.
    shutil.rmtree(store / "consumequeue")
    plan = recover(store, source).expect(0, 1)
    recover(store, source, options=APPLY).expect(0, 1)
    assert others(log_of(store), whole) <= {
        message["physical_offset"] for message in plan.json()["messages_lost"]}
    assert len(others(log_of(store), whole)) < 6
    run("undo", store, "--yes").expect(0)
    assert log_of(store) == damaged
    shutil.rmtree(store / "index")
    assert "do not point to a single place" in recover(store, source).expect(6).err
    # Another broker's.
    other = golden_copy("5.3.3/basic/store")
    assert "none of its" in recover(other, source).expect(6).err


def test_a_store_that_carving_made(tmp_path: Path) -> None:
    """Something is missing before them, so its messages have other queue offsets than they had:
    every message is as it was.
    """
    writer = filled()
    store, half = writer.write(tmp_path / "ours"), writer.write(tmp_path / "half")
    hurt(half, writer.puts[40].physical, 90)
    carved = tmp_path / "carved"
    run("carve", half / "commitlog", "--out", carved, "--commitlog-file-size", "8192", *SIZES,
        *JSON).expect(0, 1)
    for number in (20, 50, 60, 100):
        hurt(store, writer.puts[number].physical, 90)
    options = (*SIZES, "--correct", "off", "--prefer", "ours", *APPLY)
    done = recover(store, carved, options=options).expect(0).json()
    log_bytes = b"".join(log_of(store).values())
    assert not done["messages_lost"]
    assert not [put.physical for put in writer.puts if put.raw not in log_bytes]


@pytest.mark.parametrize("named", [True, False])
def test_one_file_of_the_log(named: bool, tmp_path: Path) -> None:
    """It has nothing of what is left of ours: rows and keys prove it, from key to key."""
    store = filled().write(tmp_path / "ours")
    whole = log_of(store)
    _, second, *_ = log_files(store)
    source = tmp_path / (second.name if named else "found.bin")
    shutil.move(second, source)
    done = recover(store, source, options=(*SIZES, *APPLY)).expect(0).json()
    assert log_of(store) == whole
    (copy,) = actions(done, "copy")
    assert copy["proof"]["neighbours"] == {"before": None, "after": None}
    assert copy["proof"]["keys_agreeing"] > 20
    run("undo", store, "--yes").expect(0)
    other = filled(split=0).write(tmp_path / "other")
    result = recover(store, log_files(other)[1], options=(*SIZES, *JSON)).expect(6)
    assert "another broker or another log" in result.err
    shutil.rmtree(store / "index")
    recover(store, source, options=(*SIZES, *JSON)).expect(6)


def test_of_some_topics_only(tmp_path: Path) -> None:
    """What a filtered source lacks stays lost; what it has comes back in its place."""
    writer = filled()
    store = writer.write(tmp_path / "ours")
    source = as_lines(store, tmp_path / "pays.jsonl", "--where", "topic=pays!!")
    hurt(store, writer.puts[30].physical, writer.puts[42].physical - writer.puts[30].physical)
    plan = recover(store, source, options=(*SIZES, *JSON)).expect(1).json()
    back = {place for copy in actions(plan, "copy") for place in range(
        copy["offset"], copy["offset"] + copy["length"])}
    for number in range(30, 42):
        place = writer.puts[number].physical
        assert (place in back) == (number % 3 == 0), number
    assert {lost["physical_offset"] for lost in plan["messages_lost"]} == {
        writer.puts[number].physical for number in range(30, 42) if number % 3}


def test_a_torn_tail_goes_on(tmp_path: Path) -> None:
    store = filled(110).write(tmp_path / "ours")
    source = as_lines(filled(120).write(tmp_path / "later"), tmp_path / "later.jsonl")
    torn_tail(store)
    recover(store, source, options=(*SIZES, *APPLY)).expect(0)
    messages = run("read", store, "-o", "jsonl").expect(0).out
    assert messages == source.read_text()


@pytest.mark.parametrize("at", [0, 50])
def test_a_property_called_as_a_table_of_an_export(at: int, tmp_path: Path) -> None:
    """A sender names his properties; these lines are messages all the same."""
    writer = filled(at)
    writer.put("orders", b"mine", properties={"topicConfigTable": "x", "brokerConfigs": "y"})
    for number in range(20):
        writer.put("orders", b"more %d" % number, keys=f"m{number}")
    store = writer.write(tmp_path / "ours")
    whole, source = log_of(store), as_lines(store, tmp_path / "all.jsonl")
    assert b'"topicConfigTable"' in source.read_bytes()
    hurt(store, writer.puts[at + 5].physical, 60)
    recover(store, source, options=(*SIZES, *APPLY)).expect(0)
    assert log_of(store) == whole


def test_split_brain(tmp_path: Path) -> None:
    """Messages of another branch are conflicts, and never mixed."""
    ours, other = filled(), filled(140, split=70)
    store = ours.write(tmp_path / "ours")
    source = as_lines(other.write(tmp_path / "other"), tmp_path / "other.jsonl")
    whole, theirs = log_of(store), log_of(tmp_path / "other")
    hurt(store, ours.puts[20].physical, 60)
    plan = recover(store, source, options=(*SIZES, *JSON)).expect(1).json()
    (conflict,) = actions(plan, "conflict")
    assert conflict["offset"] == ours.puts[70].physical
    recover(store, source, options=(*SIZES, "--prefer", "ours", *APPLY)).expect(0)
    assert log_of(store) == whole
    run("undo", store, "--yes").expect(0)
    recover(store, source, options=(*SIZES, "--prefer", str(source), *APPLY)).expect(0)
    assert log_of(store) == theirs


def test_changed_fields_are_none_of_the_log(tmp_path: Path) -> None:
    """Whoever edits a line gets a conflict where ours is intact; where it is not, the rows and the
    index speak.
    """
    writer = filled()
    store = writer.write(tmp_path / "ours")
    lines = as_lines(store, tmp_path / "all.jsonl").read_text().splitlines()
    message = json.loads(lines[40])
    message["flag"] += 1
    lines[40] = json.dumps(message)
    source = tmp_path / "changed.jsonl"
    source.write_text("\n".join(lines))
    plan = recover(store, source, options=(*SIZES, *JSON)).expect(1).json()
    (conflict,) = actions(plan, "conflict")
    assert (conflict["offset"], conflict["proof"]["fields"]) == (
        writer.puts[40].physical, ["flag"])
    # Other keys, other sizes: our index and rows contradict.
    message = json.loads(lines[41])
    for name in ("properties_raw", "body"):
        message[name] = message[name].replace("a0041", "b0041")
    lines[41] = json.dumps(message)
    source.write_text("\n".join(lines))
    hurt(store, writer.puts[41].physical, 80)
    plan = recover(store, source, options=(*SIZES, "--prefer", "ours", *JSON)).expect(1).json()
    assert actions(plan, "copy") == []


def test_several_of_a_place(tmp_path: Path) -> None:
    """A source with both branches has none; one that has a message twice has it."""
    ours, other = filled(), filled(split=70)
    store = ours.write(tmp_path / "ours")
    whole = log_of(store)
    text = as_lines(store, tmp_path / "one.jsonl").read_text()
    two = as_lines(other.write(tmp_path / "other"), tmp_path / "two.jsonl").read_text()
    source = tmp_path / "both.jsonl"
    source.write_text(two + text)
    hurt(store, ours.puts[20].physical, 60)
    hurt(store, ours.puts[90].physical, 60)
    result = recover(store, source, options=(*SIZES, *JSON)).expect(1)
    assert ("100 messages cannot be used: other messages of the source are at the same physical "
            "offset") in result.err
    assert [copy["offset"] for copy in actions(result.json(), "copy")] == [ours.puts[20].physical]
    source.write_text(text + text)
    recover(store, source, options=(*SIZES, *APPLY)).expect(0)
    assert log_of(store) == whole


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    writer = filled()
    store = writer.write(tmp_path / "ours")
    lines = as_lines(store, tmp_path / "all.jsonl").read_text().splitlines()
    hurt(store, writer.puts[50].physical, 80)

    def changed(**fields: Any) -> str:
        message = json.loads(lines[50])
        message.update(fields)
        return json.dumps({name: value for name, value in message.items() if value is not None})

    for line, error in ((changed(body=None), "field body: missing"),
                        (changed(properties_raw=None), "field properties_raw: missing"),
                        (changed(queue_offset=None, flag=None), "fields queue_offset, flag: miss"),
                        (changed(body="short"), "field body_crc contradicts the other fields"),
                        (changed(total_size=4), "field total_size contradicts the other fields"),
                        (changed(crc_ok=False), "the body is damaged"),
                        (changed(placement="doubtful"), "may be part of another message's body"),
                        (changed(physical_offset=1 << 61), "is far from this log"),
                        (changed(physical_offset=-1), "is far from this log"),
                        (changed(physical_offset=SMALL.log_file_size - 8),
                         "extends beyond the end"),
                        (changed(sys_flag=16, total_size=json.loads(lines[50])["total_size"] + 12),
                         "IPv6"),
                        (changed(born_host="10.0.0.1"), "field born_host"),
                        (lines[50][:200], "not JSON"),
                        ("7", "not a JSON object")):
        source = tmp_path / "some.jsonl"
        source.write_text("\n".join([*lines[:50], line, *lines[51:]]))
        result = recover(store, source, options=(*SIZES, "--correct", "off", *JSON)).expect(1)
        assert "1 message cannot be used" in result.err, result.err
        assert error in result.err, result.err
        assert "line 51" in result.err, result.err
        assert actions(result.json(), "copy") == []
        assert len(result.json()["messages_lost"]) == 1


def test_texts_that_are_none(tmp_path: Path) -> None:
    """JSON lines keep bytes that are no UTF-8, Parquet keeps them in the column ``record`` only."""
    writer = filled()
    store = writer.write(tmp_path / "ours")
    for path in log_files(store):
        data = bytearray(path.read_bytes())
        for number, put in enumerate(writer.puts):
            place = put.physical - int(path.name)
            if number % 10 == 5 and 0 <= place < len(data):
                record = decode(bytes(data[place:place + len(put.raw)]))
                record.properties = record.properties.replace(b"KEYS\1a", b"KEYS\1\xe4")
                data[place:place + len(put.raw)] = build(record)
        path.write_bytes(data)
    shutil.rmtree(store / "index")
    whole = log_of(store)
    lines = as_lines(store, tmp_path / "all.jsonl")
    export = as_export(store, tmp_path / "export")
    records = as_export(store, tmp_path / "records", ("record",), by_topic=False)
    hurt(store, writer.puts[24].physical, writer.puts[27].physical - writer.puts[24].physical)
    result = recover(store, export, options=(*SIZES, *JSON)).expect(1)
    assert "U+FFFD" in result.err
    assert [lost["physical_offset"] for lost in result.json()["messages_lost"]] == [
        writer.puts[25].physical]
    for source in (lines, records):
        # Such properties count as damaged, and there is no room for a mark.
        done = recover(store, source, options=(*SIZES, "--only", "commitlog", *APPLY, *JSON))
        assert done.expect(1).json()["left_damaged"] == ["commitlog"]
        assert log_of(store) == whole
        run("undo", store, "--yes").expect(0)


def test_no_file_of_ours_is_left(tmp_path: Path) -> None:
    store = filled().write(tmp_path / "ours")
    whole = log_of(store)
    source = as_lines(store, tmp_path / "all.jsonl")
    shutil.rmtree(store / "commitlog")
    result = recover(store, source, options=(*SIZES, *JSON)).expect(6)
    assert "--commitlog-file-size" in result.err
    size = ("--commitlog-file-size", str(SMALL.log_file_size))
    recover(store, source, options=(*SIZES, *size, *APPLY)).expect(0)
    assert log_of(store) == whole


def test_files_that_are_no_source(tmp_path: Path) -> None:
    store = filled().write(tmp_path / "ours")
    lines = as_lines(store, tmp_path / "all.jsonl")
    result: dict[str, tuple[int, bytes, str]] = {
        "empty": (3, b"", "is empty"),
        "none.jsonl": (6, b"{}\n{}\n", "none of its 2 messages can be used"),
        "torn.jsonl": (6, lines.read_bytes()[:300], "none of its 1 message can be used"),
        "all.json": (3, b"[%s]" % lines.read_bytes().replace(b"\n", b","), "a single JSON list"),
        "all.csv": (3, run("read", store, "-o", "csv").out.encode(), "is CSV"),
        "all.jsonl.gz": (3, gzip.compress(lines.read_bytes()), "compressed with gzip"),
        "noise": (3, base64.b85encode(bytes(range(256))), "an unknown format"),
        "text.txt": (3, b"hello\n", "an unknown format"),
        "torn.parquet": (5, b"PAR1" + bytes(100), "cannot be read as Parquet"),
        "00000000000000000000": (6, bytes(100), "no message in it equals"),
        "middle.bin": (3, log_files(store)[0].read_bytes()[:60], "rename it to its original name")}
    for name, (code, content, key) in result.items():
        path = tmp_path / name
        path.write_bytes(content)
        with snapshot.assert_unchanged(store):
            assert key in recover(store, path, options=(*SIZES, *JSON)).expect(code).err, name
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "settings.json").write_text("{}")
    assert "not a store" in recover(store, folder, options=(*SIZES, *JSON)).expect(3).err


def test_parquet_of_others(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    store = filled().write(tmp_path / "ours")
    export = parquet.read_table(
        as_export(store, tmp_path / "export", by_topic=False) / "all.parquet")
    at = export.column_names.index("flag")
    for number, (table, expected_text) in enumerate((
            (pa.table({"id": [1, 2], "name": ["a", "b"]}),
             "not written by `rmqctl pipeline export`"),
            (export.drop_columns(["body"]), "has no column body"),
            (export.set_column(at, "flag", pa.array(["x"] * 120)), "column flag is string"))):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(table, path)
        assert expected_text in recover(store, path, options=(*SIZES, *JSON)).expect(3).err


def test_the_same_bytes_from_a_damaged_source(golden: GoldenFolder, golden_copy: GoldenFolder,
                                              tmp_path: Path) -> None:
    """What the store it was read from had lost is not in it; several make a whole."""
    name = "5.3.3/basic/store"
    store, half = golden_copy(name), snapshot.copy_tree(golden(name), tmp_path / "half")
    middle_file_gone(store)
    flipped(half)
    first = as_lines(half, tmp_path / "first.jsonl")
    plan = recover(store, first, options=("--correct", "off", *JSON)).expect(1)
    assert "cannot be used" in plan.err
    assert len(plan.json()["messages_lost"]) == 1
    second = as_export(golden(name), tmp_path / "export")
    recover(store, first, second, options=APPLY).expect(0)
    assert log_of(store) == log_of(golden(name))
