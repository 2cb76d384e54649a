"""`verify` of one offsets.json of a broadcasting consumer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import snapshot
from tests.support.cli import run

KEYS = [b'{"brokerName":"a","queueId":0,"topic":"orders"}',
        b'{"brokerName":"b","queueId":1,"topic":"orders"}']
GOOD = b'{"offsetTable":{%s:7,%s:9}}' % (*KEYS,)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "10.0.0.1@DEFAULT/g1/offsets.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD)
    return path


def verdict(path: Path, code: int) -> Any:
    with snapshot.assert_unchanged(path.parent):
        return run("verify", path, "-o", "json").expect(code).json()


def test_a_good_file(path: Path) -> None:
    report = verdict(path, 0)
    assert (report["ok"], report["findings"]) == (True, [])
    assert report["coverage"] == {"queues": 2, "brokers": 2, "topics": 1,
                                  "messages_already_lost": None}
    page = run("verify", path).expect(0).out
    assert "no damage found" in page
    assert "g1" in page


@pytest.mark.parametrize(("main", "backup", "category", "offset", "words"), [
    (GOOD[:40], GOOD, "config-backup", 16, "reads"),
    (GOOD[:40], None, "config-unreadable", 16, "starts without offsets"),
    (GOOD[:40], b"", "config-unreadable", 16, "starts without offsets"),
    (GOOD[:40], bytes(99), "config-unreadable", 16, "does not start"),
    (b"", GOOD, "config-backup", 0, "reads"),
    (bytes(64), GOOD, "config-backup", 0, "reads"),
    (GOOD + b"}", GOOD, "config-backup", len(GOOD), "reads"),
    (b"\xff\xfe" + GOOD, None, "config-unreadable", 0, "starts without offsets"),
])
def test_a_damaged_file(path: Path, main: bytes, backup: bytes | None, category: str,
                        offset: int, words: str) -> None:
    path.write_bytes(main)
    if backup is not None:
        path.with_name("offsets.json.bak").write_bytes(backup)
    report = verdict(path, 1)
    (finding,) = report["findings"]
    assert (finding["category"], finding["file"]) == (category, str(path))
    assert finding["offset"] >= offset
    assert words in finding["detail"]
    assert report["next"] == [f"rmqctl dump {path}"]
    run("explain", category).expect(0)


def test_entries_of_the_wrong_shape(path: Path) -> None:
    path.write_bytes(b'{"offsetTable":{%s:"x",%s:9}}' % (*KEYS,))
    report = verdict(path, 1)
    assert [(finding["category"], finding["severity"]) for finding in report["findings"]] == [
        ("config-oddity", "warning")]
    assert report["coverage"]["queues"] == 1


def test_options_of_a_store_and_other_files(path: Path, tmp_path: Path) -> None:
    assert "--only" in run("verify", path, "--only", "config").expect(2).err
    other = tmp_path / "topics.json"
    other.write_text(json.dumps({"topicConfigTable": {}}))
    run("verify", other).expect(3, 5, 6)


@pytest.mark.parametrize("end", range(len(GOOD) + 1))
def test_what_can_be_read_is_printed(end: int, path: Path) -> None:
    """Of a torn file all entries that are whole, in a form that is a good file."""
    path.write_bytes(GOOD[:end])
    whole = [entry for entry in (b"%s:7," % KEYS[0], b"%s:9}" % KEYS[1]) if entry in GOOD[:end]]
    done = run("offsets", "export", path)
    if not whole:
        assert "no readable offset" in done.expect(6).err
        return
    done.expect(0 if end == len(GOOD) else 1)
    path.write_text(done.out)
    assert verdict(path, 0)["coverage"]["queues"] == len(whole)
    answer = run("offsets", "export", path, "-o", "json").expect(0).json()
    assert [row["queue_offset"] for row in answer["offsets"]] == [7, 9][:len(whole)]
    assert answer["damaged"] is None
