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
