"""Folders of an export: Hive's names for any topic and any day."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from rmqctl.export.layout import NOTHING, days, escape, folder, is_cut
from tests.pipeline.exporting import DAY, EPOCH, data_files, manifest, run, table, write_log

ODD = [b"%RETRY%group", b"a/b", b"x=y", "größe 🙂".encode(), b"not \xff utf-8", b"", b"123",
       b"day=2020-01-01", b"..", b" ", b"with 'quotes' \"\\ and {[^]}", b"\x00\x01\x7f",
       b"A" * 300, "ü".encode() * 150, b"%" * 120, b"__HIVE", b"~"]


@pytest.mark.parametrize(("value", "name"), [
    ("%RETRY%group", "topic=%25RETRY%25group"), ("a/b", "topic=a%2Fb"), ("x=y", "topic=x%3Dy"),
    ("", f"topic={NOTHING}"), (None, f"topic={NOTHING}"), ("größe", "topic=größe"),
    ("a-b_c.d|e", "topic=a-b_c.d|e")])
def test_names_are_hives(value, name):
    assert folder("topic", value) == name


def test_a_name_too_long_is_cut_and_stays_apart():
    names = {folder("topic", "%" * 200 + end) for end in "abc"}
    assert len(names) == 3
    assert all(len(name.encode()) <= 255 for name in names)
    wide = folder("topic", "ü" * 400)
    assert len(wide.encode()) <= 255
    assert not is_cut("topic", "x" * 249)
    assert is_cut("topic", "x" * 250)


def test_days_of_zones():
    times = np.array([0, -1, DAY - 1, DAY, EPOCH, 1 << 62, -(1 << 62)])
    there = days(times, UTC).tolist()
    assert there[:5] == [0, -1, 0, 1, EPOCH // DAY]
    assert there[5] == there[6]  # a day of no calendar
    assert days(times, timezone(timedelta(0))).tolist() == there
    east = days(np.array([16 * 3_600_000 - 1, 16 * 3_600_000]), ZoneInfo("Asia/Shanghai"))
    assert east.tolist() == [0, 1]


def test_odd_topics_are_found_again(tmp_path):
    root, out = write_log(tmp_path / "store", ODD), tmp_path / "out"
    run([root], out, count=4)
    texts = [data.decode("utf-8", "replace") or None for data in ODD]
    rows = table(out)
    cut = manifest(out)["cut_names"]
    back = {part.partition("=")[2]: value for part, value in cut.items()}
    assert [back.get(escape(row["topic"] or ""), row["topic"]) for row in rows] == texts
    assert len(cut) == sum(is_cut("topic", text or "") for text in texts) > 0
    assert {row["day"] for row in rows} == {"2023-11-14"}


def test_what_readers_find_out_by_themselves(tmp_path):
    root, out = write_log(tmp_path / "store", [b"a/b", b"%RETRY%g"]), tmp_path / "out"
    run([root], out)
    table = ds.dataset(out, partitioning="hive").to_table(filter=ds.field("topic") == "%RETRY%g")
    assert table.num_rows == 1
    assert {file.relative_to(out).parts[0] for file in data_files(out)} == {
        "topic=a%2Fb", "topic=%25RETRY%25g"}


def test_a_topic_with_the_name_for_none_is_no_null(tmp_path):
    """Readers take the folder of this name for a null, percent-encoded too."""
    root, out = write_log(tmp_path / "store", [NOTHING.encode(), b"", b"x"]), tmp_path / "out"
    run([root], out)
    topics = ds.dataset(out, partitioning="hive").to_table()["topic"].to_pylist()
    [(name, value)] = manifest(out)["cut_names"].items()
    assert value == NOTHING
    assert sorted(map(str, topics)) == sorted(["None", "x", name.partition("=")[2]])


def test_days_that_are_none_have_a_folder_too(tmp_path):
    times = [EPOCH, EPOCH + DAY, 1 << 62, -5, 0]
    root = write_log(tmp_path / "store", [b"t"] * 5, times)
    out = tmp_path / "out"
    run([root], out, partition_by=["day"])
    rows = table(out, parts={"day": pa.string()})
    assert [row["day"] for row in rows] == ["2023-11-14", "2023-11-15", None, "1969-12-31",
                                            "1970-01-01"]
    run([root], tmp_path / "east", partition_by=["day", "topic"], zone=ZoneInfo("Asia/Shanghai"))
    rows = table(tmp_path / "east")
    assert [row["day"] for row in rows][:2] == ["2023-11-15", "2023-11-16"]


@pytest.mark.long
def test_nearly_as_many_topics_as_messages(tmp_path):
    topics = [b"topic-%d" % (number % 400) for number in range(900)]
    root, out = write_log(tmp_path / "store", topics, size=1 << 20), tmp_path / "out"
    result = run([root], out, partition_by=["topic"], fields=["physical_offset", "topic"])
    assert result.total("files") == result.partitions == 400
    rows = table(out, parts={"topic": pa.string()})
    assert [row["topic"].encode() for row in rows] == topics
    for file in data_files(out):
        offsets = pq.ParquetFile(file).read().column("physical_offset").to_pylist()
        assert offsets == sorted(offsets)
