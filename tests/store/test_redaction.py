"""`--redact`: what people wrote is in no output; equal values stay comparable."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmqctl.scan.tables import MESSAGE_COLUMNS
from rmqctl.store.objects import FIELDS
from rmqctl.store.redaction import KEPT, Redaction
from tests.conftest import GoldenFolder, Runner
from tests.repair.carving import record

STORE = "5.3.3/basic/store"
PAGE = 4096
DIGEST = re.compile(r"redacted:[0-9a-f]{24}:(\d+)")
REDACTED = {"body_crc", "born_host", "store_host", "properties", "properties_raw", "keys",
            "unique_key", "msg_id", "body", "body_encoding", "record"}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"0123456789abcdef")
    return path


def secrets_of(rows: list[dict[str, Any]]) -> set[str]:
    """What must be nowhere."""
    texts: set[str] = set()
    for row in rows:
        texts |= {row["msg_id"], row["unique_key"], row["born_host"].rpartition(":")[0],
                  row["store_host"].rpartition(":")[0], row["body"], *row["keys"]}
        texts |= {value for name, value in row["properties"].items()
                  if name not in ("TAGS", "WAIT", "CLUSTER", "DELAY", "PGROUP")}
    return {text for text in texts if text and len(text) > 5}


def test_every_field_is_decided() -> None:
    assert {*FIELDS, *MESSAGE_COLUMNS} == (KEPT & {*FIELDS, *MESSAGE_COLUMNS}) | REDACTED
    assert not KEPT & REDACTED


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.parquet", "folder"])
def test_nothing_that_people_wrote_is_exported(name: str, rmqctl: Runner, golden: GoldenFolder,
                                               tmp_path: Path) -> None:
    rows = rmqctl("read", golden(STORE), "-o", "jsonl", "--limit", "200").expect(0).jsonl()
    wanted = rows[7]["keys"] or [rows[7]["unique_key"]]
    target = tmp_path / name
    rmqctl("export", golden(STORE), "--out", target, "--redact", "--provenance", "--decode",
           "auto", *(() if name == "folder" else ("--manifest",)),
           "--where", f"keys!={wanted[0]}").expect(0)
    files = [path for path in (*tmp_path.rglob("*"),) if path.is_file()]
    shown = b"".join(path.read_bytes() for path in files)
    for path in tmp_path.rglob("*.parquet"):
        shown += json.dumps(pq.read_table(path).to_pylist(), default=str).encode()
    assert b"redacted:" in shown
    assert not [text for text in secrets_of(rows) if text.encode() in shown]


@pytest.mark.parametrize("options", [(), ("-o", "table"), ("--topic", "TP_fraud_Topic"),
                                     ("--body", "base64", "-o", "jsonl"), ("-o", "json"),
                                     ("--fields", "body,keys,property.UNIQ_KEY", "-o", "csv")])
def test_nothing_that_people_wrote_is_shown(options: tuple[str, ...], rmqctl: Runner,
                                            golden: GoldenFolder) -> None:
    rows = rmqctl("read", golden(STORE), "-o", "jsonl").expect(0).jsonl()
    shown = rmqctl("read", golden(STORE), "--redact", *options).expect(0)
    assert "redacted:" in shown.out
    assert not [text for text in secrets_of(rows) if text in shown.out + shown.err]


def test_sizes_structure_and_equality_stay(key: Path, rmqctl: Runner, golden: GoldenFolder) -> None:
    words = ("read", golden(STORE), "-o", "jsonl")
    plain = rmqctl(*words).expect(0).jsonl()
    hidden = rmqctl(*words, "--redact", "--redact-key", key).expect(0).jsonl()
    digests: dict[str, str] = {}
    for before, after in zip(plain, hidden, strict=True):
        assert list(before) == list(after)
        assert {name: before[name] for name in KEPT & set(before)} == {
            name: after[name] for name in KEPT & set(after)}
        assert list(before["properties"]) == list(after["properties"])
        assert len(before["keys"]) == len(after["keys"])
        for text, digest in zip([before["unique_key"], *before["keys"]],
                                [after["unique_key"], *after["keys"]], strict=True):
            assert digests.setdefault(text, digest) == digest
            if text is not None:
                assert DIGEST.fullmatch(digest).group(1) == str(len(text.encode()))  # type: ignore[union-attr]
    assert len(set(digests.values())) == len(digests) > 100


def test_runs_compare_only_with_a_key(key: Path, rmqctl: Runner, golden: GoldenFolder,
                                      tmp_path: Path) -> None:
    words = ("read", golden(STORE), "--limit", "3", "-o", "jsonl", "--redact")
    first, second = (rmqctl(*words).expect(0).jsonl()[0]["body"] for _ in range(2))
    assert first != second
    with_key = rmqctl(*words, "--redact-key", key).expect(0).jsonl()
    rmqctl("export", golden(STORE), "--out", tmp_path / "x.parquet", "--redact", "--redact-key",
           key, "--limit", "3").expect(0)
    table = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row["body"].decode() for row in table] == [row["body"] for row in with_key]
    assert [row["msg_id"] for row in table] == [row["msg_id"] for row in with_key]


def test_keys_that_cannot_be_used(rmqctl: Runner, golden: GoldenFolder, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "short").write_bytes(b"short")
    words = ("read", golden(STORE), "--limit", "1")
    assert "--redact-key requires --redact" in rmqctl(
        *words, "--redact-key", tmp_path / "short").expect(2).err
    for name, code in (("fifo", 2), ("short", 2), ("missing", 5)):
        rmqctl(*words, "--redact", "--redact-key", tmp_path / name).expect(code)


def test_a_property_that_nobody_decided_on_is_redacted() -> None:
    row = Redaction().row({"properties": {"TAGS": "a", "phone": "+49 1", "KEYS": "a b"},
                           "something_new": ["x"], "body_crc": 5, "tags": None})
    assert row["properties"]["TAGS"] == "a"
    assert DIGEST.fullmatch(row["properties"]["phone"])
    assert len(row["properties"]["KEYS"].split(" ")) == 2
    assert DIGEST.fullmatch(row["something_new"])
    assert row["body_crc"] is row["tags"] is None


def test_a_damaged_separator_reveals_nothing() -> None:
    """No checksum covers properties, so one changed byte may join two of them."""
    row = Redaction().row({"properties": {"TAGS": "a?KEYS\x01alice", "CLUSTER": "c"},
                           "properties_raw": "TAGS\x01a?KEYS\x01alice\x02WAIT\x01true\x02",
                           "tags": "a?KEYS\x01alice", "property.CLUSTER": "c?phone\x01alice"})
    assert "alice" not in json.dumps(row)
    assert row["tags"] == row["properties"]["TAGS"]
    assert row["properties"]["CLUSTER"] == "c"
    assert row["properties_raw"].endswith("WAIT\x01true\x02")


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl"])
def test_a_damaged_separator_reveals_nothing_in_files(name: str, rmqctl: Runner,
                                                      tmp_path: Path) -> None:
    (tmp_path / "store/commitlog").mkdir(parents=True)
    log = record(0, rb'{"a": "\ud800"}', properties=b"TAGS\x01a?KEYS\x01alice-7\xff\x02")
    (tmp_path / "store/commitlog/00000000000000000000").write_bytes(log.ljust(PAGE, b"\0"))
    words = ("export", tmp_path / "store", "--decode", "auto", "--out")
    rmqctl(*words, tmp_path / f"plain-{name}").expect(0)
    target = tmp_path / name
    rmqctl(*words, target, "--redact").expect(0)
    (row,) = pq.read_table(target).to_pylist() if name == "x.parquet" else [
        json.loads(line) for line in target.read_text().splitlines()]
    assert DIGEST.fullmatch(row["tags"])
    assert "alice" not in json.dumps(row, default=str)


def test_a_decoder_quotes_nothing(rmqctl: Runner, golden: GoldenFolder, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of a body that it cannot read may contain the body."""
    (tmp_path / "quoting_decoder.py").write_text(
        "def decode(body, message):\n    raise ValueError('alice-7 ' + body[:20].hex())\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--decode", "python:quoting_decoder.decode", "--redact")
    shown = rmqctl("read", golden(STORE), "--limit", "3", "-o", "jsonl", *words).expect(0)
    written = rmqctl("export", golden(STORE), "--limit", "3", "--out", tmp_path / "x.jsonl",
                     *words).expect(0)
    for text in (shown.out + shown.err, written.out + written.err,
                 (tmp_path / "x.jsonl").read_text()):
        assert "alice-7" not in text
    assert "3 bodies not decoded" in shown.err
    assert "3 bodies not decoded" in written.err


def test_a_decoded_body_has_one_digest(key: Path, rmqctl: Runner, golden: GoldenFolder,
                                       tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same messages in any format, so that two files can be compared."""
    (tmp_path / "nested_decoder.py").write_text(
        "def decode(body, message):\n"
        "    return {'z': [1, 2.5, None, 'h\\u00e9'], 'a': {'size': len(body)}}\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--decode", "python:nested_decoder.decode", "--redact", "--redact-key", key,
             "--fields", "decoded,body.a,body.z")
    for name in ("x.jsonl", "x.parquet"):
        rmqctl("export", golden(STORE), "--limit", "3", "--out", tmp_path / name, *words).expect(0)
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert lines == pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert len({row["decoded"] for row in lines}) > 1
