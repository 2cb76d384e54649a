"""``rmqctl export``: a file of each format holds what ``read`` shows, and leads to the bytes."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pytest
from fastavro import reader
from pyarrow import parquet

from rmqctl.export import arrow_files, columns, files, one_file, xlsx
from rmqctl.scan import tolerant
from tests.adversary.writer import Layout, Writer
from tests.conftest import GoldenFolder, Runner
from tests.support import damage

SETS = ("5.3.3/basic/store", "4.9.3/transaction/store", "5.3.3/ipv6/store")
BINARY = ("body", "properties", "keys", "body_encoding")


def messages(rmqctl: Runner, store: Path, *options: str) -> list[dict[str, Any]]:
    out = rmqctl("read", store, "--view", "disk", "-o", "jsonl", *options).out
    return [json.loads(line) for line in out.splitlines()]


def in_arrow(path: Path) -> pa.Table:
    if path.suffix == ".arrow":
        return pa.ipc.open_file(path).read_all()
    return parquet.read_table(path)


def same_as_read(rows: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Rows of typed columns, which have bytes for the body."""
    assert len(rows) == len(wanted)
    for row, message in zip(rows, wanted, strict=True):
        body = message["body"].encode() if message["body_encoding"] == "utf-8" else (
            base64.b64decode(message["body"]))
        assert row["body"] == body
        assert dict(row["properties"] or {}) == message["properties"]
        assert list(row["keys"] or []) == message["keys"]
        for name in message.keys() - set(BINARY):
            value = row[name]
            if isinstance(value, datetime):
                value = round(value.timestamp() * 1000)
            assert value == message[name], name


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ending", ["parquet", "arrow", "avro", "jsonl", "jsonl.gz", "csv", "xlsx"])
def test_each_format_holds_what_read_shows(name: str, ending: str, golden: GoldenFolder,
                                           rmqctl: Runner, tmp_path: Path) -> None:
    store, path = golden(name), tmp_path / f"messages.{ending}"
    rmqctl("export", store, "--out", path).expect(0)
    wanted = messages(rmqctl, store)
    if ending in ("parquet", "arrow"):
        table = in_arrow(path)
        assert table.schema.field("store_timestamp").type == pa.timestamp("ms", tz="UTC")
        same_as_read(table.to_pylist(), wanted)
    elif ending == "avro":
        with path.open("rb") as source:
            same_as_read(list(reader(source)), wanted)
    elif ending.startswith("jsonl"):
        data = path.read_bytes()
        text = gzip.decompress(data) if ending.endswith("gz") else data
        assert [json.loads(line) for line in text.splitlines()] == wanted
    elif ending == "csv":
        assert path.read_bytes().decode() == rmqctl(
            "read", store, "--view", "disk", "-o", "csv").out
    else:
        sheet = openpyxl.load_workbook(path).active
        head, *rows = sheet.iter_rows(values_only=True)
        assert [row[head.index("physical_offset")] for row in rows] == [
            message["physical_offset"] for message in wanted]
        first = rows[0][head.index("store_timestamp")].replace(tzinfo=UTC)
        assert round(first.timestamp() * 1000) == wanted[0]["store_timestamp"]


def test_provenance_leads_to_the_bytes(golden: GoldenFolder, rmqctl: Runner,
                                       tmp_path: Path) -> None:
    store, path = golden(SETS[0]), tmp_path / "evidence.jsonl"
    rmqctl("export", store, "--out", path, "--provenance", "--manifest").expect(0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 600
    for row in rows:
        data = (store / row["file"]).read_bytes()
        record = data[row["position"]:row["position"] + row["total_size"]]
        assert hashlib.sha256(record).hexdigest() == row["sha256"]
    document = json.loads((tmp_path / "evidence.jsonl.manifest.json").read_text())
    assert document["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (document["rows"], document["complete"], document["bytes"]) == (600, True,
                                                                           path.stat().st_size)
    columns = tmp_path / "evidence.parquet"
    rmqctl("export", store, "--out", columns, "--fields", "file,position,sha256").expect(0)
    assert in_arrow(columns).to_pylist() == [
        {name: row[name] for name in ("file", "position", "sha256")} for row in rows]


def test_filters_are_those_of_read(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path) -> None:
    store = golden(SETS[0])
    for number, options in enumerate((
            ("--topic", "TP_fraud_Topic", "--queue", "0", "--offset", "24", "--count", "3"),
            ("--where", "total_size>500", "--count", "7"), ("--tag", "标签"),
            ("--from-phy", "105086", "--to-phy", "200000"))):
        path = tmp_path / f"{number}.jsonl"
        rmqctl("export", store, "--out", path, *options).expect(0)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows == messages(rmqctl, store, *options)
        assert rows


def test_standard_output(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path) -> None:
    store = golden(SETS[0])
    streamed = rmqctl("export", store, "--out", "-").expect(0)
    assert streamed.out == rmqctl("read", store, "--view", "disk", "-o", "jsonl").out
    assert streamed.err.endswith("600 messages exported\n")
    two = rmqctl("export", store, "--out", "-", "--format", "csv", "--count", "2").expect(0).out
    assert len(list(csv.reader(io.StringIO(two)))) == 3


def test_a_folder(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path) -> None:
    rmqctl("export", golden(SETS[0]), "--out", tmp_path / "all", "--partition-by", "topic",
           "--format", "jsonl").expect(0)
    assert sum(len(path.read_text().splitlines())
               for path in (tmp_path / "all").rglob("*.json") if path.name[0] != "_") == 600


def test_what_is_damaged_is_said_and_the_rest_is_there(golden_copy: GoldenFolder, rmqctl: Runner,
                                                      tmp_path: Path) -> None:
    store = golden_copy(SETS[0])
    damage.flip_bit(store, "commitlog/00000000000000000000", 300, 3)
    path = tmp_path / "damaged.parquet"
    result = rmqctl("export", store, "--out", path, "--manifest").expect(1)
    assert "body CRC mismatch" in result.err
    table = in_arrow(path)
    assert (len(table), table["crc_ok"].to_pylist().count(False)) == (600, 1)
    assert json.loads((tmp_path / "damaged.parquet.manifest.json").read_text())["complete"] is False


@pytest.mark.parametrize(("options", "code", "words"), [
    (("--out", "{there}"), 6, "already exists"),
    (("--out", "{store}/all.csv"), 2, "choose a place outside"),
    (("--out", "{new}.csv", "--format", "parquet"), 2, "contradict"),
    (("--out", "{new}.parquet.gz"), 2, "compressed internally"),
    (("--out", "{new}.gz"), 2, "no format before .gz"),
    (("--out", "{new}", "--format", "xlsx"), 2, "requires a single file"),
    (("--out", "{new}", "--limit", "3"), 2, "--limit"),
    (("--out", "{new}.csv", "--partition-by", "topic"), 2, "creates folders"),
    (("--out", "-", "--manifest"), 2, "requires a file"),
    (("--out", "{new}.csv", "--fields", "nothing"), 2, "no field"),
    (("--out", "{new}/deeper/all.csv"), 5, "no such directory"),
])
def test_what_cannot_be(options: tuple[str, ...], code: int, words: str, golden_copy: GoldenFolder,
                        rmqctl: Runner, tmp_path: Path) -> None:
    store, there = golden_copy(SETS[0]), tmp_path / "there.csv"
    there.write_text("mine")
    names = {"store": store, "there": there, "new": tmp_path / "new"}
    done = rmqctl("export", store, *(word.format(**names) for word in options)).expect(code)
    assert words in done.err
    assert there.read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_a_failed_write_leaves_nothing(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    for kind, ending in ((arrow_files.ParquetFile, "parquet"), (arrow_files.ArrowFile, "arrow"),
                         (files.TextFile, "csv"), (xlsx.XlsxFile, "xlsx")):
        monkeypatch.setattr(kind, "write", full)
        done = rmqctl("export", golden(SETS[0]), "--out", tmp_path / f"all.{ending}").expect(5)
        assert "No space left" in done.err or "no space left" in done.err
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["write", "add"])
def test_a_thread_that_writes_ends_with_the_export(
        where: str, error: BaseException, golden: GoldenFolder, rmqctl: Runner, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever side fails: the thread that encodes, or the caller that reads."""
    monkeypatch.setattr(one_file, "FLUSH", 1)
    monkeypatch.setattr(tolerant, "CHUNK", 8_000)
    threads, calls = set[str](), list[object]()
    owner: Any = arrow_files.ParquetFile if where == "write" else columns.ColumnBuffer
    real = getattr(owner, where)

    def failing(*arguments: Any) -> None:
        threads.add(threading.current_thread().name)
        calls.append(arguments)
        if len(calls) == 3:
            raise error
        real(*arguments)

    monkeypatch.setattr(owner, where, failing)
    before = threading.active_count()
    failed = rmqctl("export", golden(SETS[0]), "--out", tmp_path / "a.parquet")
    assert failed.code == (130 if isinstance(error, KeyboardInterrupt) else 5)
    assert (threading.current_thread().name in threads) == (where == "add")
    assert threading.active_count() == before
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_encoded_as_differences(golden: GoldenFolder, rmqctl: Runner,
                                            tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rmqctl("export", golden(SETS[0]), "--out", path).expect(0)
    group = parquet.ParquetFile(path).metadata.row_group(0)
    encodings = {group.column(number).path_in_schema: group.column(number).encodings
                 for number in range(group.num_columns)}
    for name in ("physical_offset", "queue_id", "store_timestamp"):
        assert "DELTA_BINARY_PACKED" in encodings[name], name
    for name in ("topic", "body", "crc_ok"):
        assert "DELTA_BINARY_PACKED" not in encodings[name], name


def test_nothing_that_a_sender_wrote_is_a_formula(rmqctl: Runner, tmp_path: Path) -> None:
    writer = Writer(Layout(log_file_size=1 << 18), seed=1)
    for number, body in enumerate((b"=1+1", "＝cmd".encode(), b"https://x", b"long" * 20_000)):
        writer.put("orders", body, queue_id=0, keys=f"=k{number}")
    writer.write(tmp_path / "store")
    for ending in ("csv", "xlsx"):
        rmqctl("export", tmp_path / "store", "--out", tmp_path / f"all.{ending}", "--fields",
               "body,keys").expect(0)
    lines = list(csv.reader((tmp_path / "all.csv").open()))
    assert [line[0][:5] for line in lines[1:]] == ["'=1+1", "'＝cmd", "https", "longl"]
    sheet = openpyxl.load_workbook(tmp_path / "all.xlsx").active
    cells = [row[0] for row in sheet.iter_rows(min_row=2)]
    assert [cell.data_type for cell in cells] == ["s"] * 4
    assert all(cell.hyperlink is None for cell in cells)
    assert len(cells[3].value) == xlsx.MAX_CELL


def test_more_than_a_sheet_holds(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "MAX_ROWS", 599)
    done = rmqctl("export", golden(SETS[0]), "--out", tmp_path / "all.xlsx").expect(6)
    assert "at most 599 messages" in done.err
    assert list(tmp_path.iterdir()) == []
