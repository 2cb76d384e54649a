"""Stores in S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqctl import vfs
from rmqctl.formats.tiered.names import parse_cluster
from rmqctl.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.remote.test_places import answers, fresh, same
from tests.support.s3 import simulated

__all__ = ["fresh"]


def upload(client: Any, store: Path, prefix: str) -> str:
    for path in store.rglob("*"):
        if path.is_file():
            client.put_object(Bucket="bucket", Key=f"{prefix}/{path.relative_to(store)}",
                              Body=path.read_bytes())
    return f"s3://bucket/{prefix}"


@pytest.mark.long
def test_the_same_answers(golden: GoldenFolder, rmqctl: Runner,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as client:
        for name in ("4.9.3/basic/store", "5.3.3/crash-crc/before", "5.3.3/rocksdb/store"):
            root = golden(name)
            url = upload(client, root, f"stores/{name}")
            same(answers(rmqctl, str(root), root), answers(rmqctl, url, root))
        rmqctl("verify", "s3://none/x").expect(3, 5)
        rmqctl("verify", "s3://bucket/none").expect(3)


@pytest.mark.long
def test_an_object_that_was_written_again(golden: GoldenFolder, rmqctl: Runner,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as client:
        root = golden("4.9.3/basic/store")
        url = upload(client, root, "x")
        [path, *_] = sorted((root / "commitlog").iterdir())
        with Store.open(url):  # lists the place
            client.put_object(Bucket="bucket", Key=f"x/commitlog/{path.name}",
                              Body=bytes(path.stat().st_size))
            done = rmqctl("read", url, "-o", "jsonl").expect(5)
        assert f"commitlog/{path.name}: was changed" in done.err.replace("\n", " ")
        vfs.unmount_all()
        client.delete_object(Bucket="bucket", Key=f"x/commitlog/{path.name}")
        rmqctl("read", url, "-o", "jsonl").expect(0, 1)


@pytest.mark.long
def test_a_tier_is_still_a_tier(golden: GoldenFolder, rmqctl: Runner,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as client:
        cluster = min(path.parent for path in golden("5.3.3/tiered").rglob("*")
                      if path.is_dir() and parse_cluster(path.name))
        url = upload(client, cluster, "tier")
        assert rmqctl("stats", url).expect(0).out == rmqctl("stats", cluster).expect(0).out


@pytest.mark.long
def test_many_stores(golden: GoldenFolder, rmqctl: Runner,
                     monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as client:
        for name in ("4.9.3/basic/store", "5.3.3/basic/store", "4.9.3/crash-crc/before"):
            upload(client, golden(name), f"all/{name.replace('/', '-')}")
        done = rmqctl("pipeline", "verify", "s3://bucket/all/*", "-o", "json", "--engine", "local")
        rows = done.expect(1).json()["stores"]
        assert [row["store"] for row in rows] == [
            f"s3://bucket/all/{name}" for name in (
                "4.9.3-basic-store", "4.9.3-crash-crc-before", "5.3.3-basic-store")]
        query = "select count(distinct store) from messages"
        assert "3" in rmqctl("sql", "s3://bucket/all/*", query, "-o", "csv").expect(0).out
        rmqctl("sql", "s3://bucket/none/*", query).expect(3)


@pytest.mark.long
def test_what_is_written_there(golden: GoldenFolder, rmqctl: Runner, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden("4.9.3/basic/store")
    with simulated(monkeypatch) as client:
        def keys() -> list[str]:
            return [content["Key"]
                    for content in client.list_objects_v2(Bucket="bucket")["Contents"]]

        done = rmqctl("export", root, "--out", "s3://bucket/x/one.jsonl", "--manifest").expect(0)
        assert "s3://bucket/x/one.jsonl" in done.out
        rmqctl("export", root, "--out", tmp_path / "one.jsonl").expect(0)
        there = client.get_object(Bucket="bucket", Key="x/one.jsonl")["Body"].read()
        assert there == (tmp_path / "one.jsonl").read_bytes()
        rmqctl("export", root, "--out", "s3://bucket/x/many").expect(0)
        rmqctl("export", root, "--out", tmp_path / "many").expect(0)
        assert len([key for key in keys() if key.startswith("x/many/")]) == len(
            [path for path in (tmp_path / "many").rglob("*") if path.is_file()])
        assert "x/one.jsonl.manifest.json" in keys()
        rmqctl("report", root, "--out", "s3://bucket/x/r.html").expect(0, 1)
        assert b"<html" in client.get_object(Bucket="bucket", Key="x/r.html")["Body"].read()
        for taken in ("s3://bucket/x/one.jsonl", "s3://bucket/x/many"):
            assert "nothing is overwritten" in rmqctl("export", root, "--out", taken).expect(6).err
        rmqctl("export", root, "--out", "s3://none/x.jsonl").expect(5)
