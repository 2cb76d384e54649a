"""Exports made and read back for the tests, and stores with topics no broker would take."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from rmqctl.export.export import export
from rmqctl.export.plan import plan
from rmqctl.export.result import ExportResult
from rmqctl.export.spec import Export
from rmqctl.formats.local import message
from rmqctl.scan.tables import MESSAGE_COLUMNS
from rmqctl.store import Store
from rmqctl.store.log.bounds import View
from rmqctl.store.log.ranges import Pool, Threads
from rmqctl.store.objects import message_object
from rmqctl.store.query.select import Selection, Selector
from tests.support.arrow_rows import rows_of

MANIFEST = "_rmqctl_export.json"
DAY = 86_400_000
EPOCH = 1_700_000_000_000
HOST = (b"\x0a\x00\x00\x01", 10911)


def run(stores: Sequence[Path], out: Path, form: str = "parquet", pool: Pool | None = None,
        count: int | None = None, folders: Sequence[str] = (), **spec: Any) -> ExportResult:
    """An export without the command."""
    result = Export.of(form, stores=len(stores), **spec)
    plans = plan([str(store) for store in stores], Selection(), 1, count=count, folders=folders)
    return export(plans, result, str(out), pool or Threads(1))


def manifest(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / MANIFEST).read_text("utf-8"))
    return document


def data_files(out: Path) -> list[Path]:
    return sorted(path for path in out.rglob("part-*") if path.is_file())


def lines(out: Path) -> list[bytes]:
    """All lines of an export as JSON, sorted."""
    return sorted(line for file in data_files(out) for line in file.read_bytes().splitlines(True))


def table(out: Path, *, parts: dict[str, pa.DataType] | None = None) -> list[
        dict[str, Any]]:
    """The rows of an export as Arrow's data sets give them, by physical offset and store."""
    fields = [pa.field(name, kind) for name, kind in (
        {"topic": pa.string(), "day": pa.string()} if parts is None else parts).items()]
    how = ds.partitioning(pa.schema(fields), flavor="hive")
    table = ds.dataset(out, format="parquet", partitioning=how).to_table()
    rows = rows_of(table, maps_as_pydicts="strict")
    return sorted(rows, key=lambda row: (row["physical_offset"], row.get("store") or ""))


def expected(root: Path, folders: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The messages of a log as columns have them, from the exact reader's records."""
    rows = []
    with Store.open(root, folders) as store:
        for record in Selector(store, Selection(), View(store)).records():
            message = message_object(record)
            row = {name: message[name] for name in MESSAGE_COLUMNS
                   if name not in ("body", "record")}
            row["topic"] = record.topic.decode("utf-8", "replace")
            row["properties_raw"] = record.properties.decode("utf-8", "replace")
            rows.append({**row, "body": bytes(record.body)})
    return sorted(rows, key=lambda row: row["physical_offset"])


def without(rows: Sequence[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def write_log(root: Path, topics: Sequence[bytes], times: Sequence[int] | None = None,
              size: int = 1 << 16) -> Path:
    """A store that is only a commitlog file, with a message for each topic."""
    log = bytearray()
    for number, topic in enumerate(topics):
        body = b"body %d" % number
        properties = b"KEYS\x01k%d\x02" % number
        magic = message.MAGIC_V2 if len(topic) > 127 else message.MAGIC_V1
        log += message.build(message.Record(
            total_size=message.size_of(0, magic, len(body), len(topic), len(properties)),
            magic=magic, body_crc=zlib.crc32(body) & message.CRC_MASK, queue_id=number % 4, flag=0,
            queue_offset=number, physical_offset=len(log), sys_flag=0, born_timestamp=EPOCH,
            born_host=HOST, store_timestamp=EPOCH + number if times is None else times[number],
            store_host=HOST, reconsume_times=0, prepared_transaction_offset=0, body=body,
            topic=topic, properties=properties))
    assert len(log) <= size
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(log.ljust(size, b"\0"))
    return root


def beside(out: Path) -> list[str]:
    """What lies in the folder of an export besides it."""
    return sorted(path.name for path in out.parent.iterdir() if path != out)
