"""``--decode``, ``--where body.FIELD`` and ``--fields body.FIELD`` as a user sees them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqctl.commands.shared.message_options import _by_hand
from rmqctl.errors import UsageError
from tests.conftest import GoldenFolder, Runner
from tests.support import tiny

BODIES = (b'{"id": 1, "amount": 3000, "name": "=1+1"}', b'{"id": 2, "amount": 5}', b"hello",
          gzip.compress(b'{"id": 4, "amount": 9000, "f": 0.0}'), b"", b'{"id": "\\u001b[31m"}')


@pytest.fixture
def store(tmp_path: Path) -> Path:
    specs = [tiny.Spec("orders", 0, body, {"UNIQ_KEY": f"{number:032X}"})
             for number, body in enumerate(BODIES)]
    return tiny.build(tmp_path / "store", specs).root


def test_rows_keep_all_they_had(store: Path, rmqctl: Runner) -> None:
    plain = rmqctl("read", store, "-o", "jsonl").expect(0).jsonl()
    done = rmqctl("read", store, "-o", "jsonl", "--decode", "auto").expect(0)
    rows = done.jsonl()
    assert [{name: row[name] for name in plain[0]} for row in rows] == plain
    assert [row["decoded_as"] for row in rows] == ["json", "json", None, "gzip+json", None, "json"]
    assert "1 body left as text or bytes" in done.err
    assert rmqctl("read", store, "--decode", "auto", "-q").expect(0).err == ""


@pytest.mark.parametrize(("where", "ids"), [
    ("body.amount>2000", [1, 4]), ("body.amount!=5", [1, 4]), ("body.f=0", [4]),
    ("body.nothing!=1", [])])
def test_conditions(where: str, ids: list[int], store: Path, rmqctl: Runner) -> None:
    for command in (["read", store], ["read", store, "--topic", "orders"], ["tail", store],
                    ["carve", store / "commitlog"], ["export", store, "--out", "-"]):
        rows = rmqctl(*command, "--where", where, "--fields", "body.id", *(
            [] if command[0] == "export" else ["-o", "jsonl"])).expect(0, 1).jsonl()
        assert [row["body.id"] for row in rows] == ids, command


def test_tables_for_people_show_what_was_decoded(store: Path, rmqctl: Runner) -> None:
    shown = rmqctl("read", store, "--decode", "auto").out.splitlines()
    assert shown[4].endswith('{"id":4,"amount":9000,"f":0.0}')
    assert shown[3].endswith("hello")
    assert "\x1b" not in "".join(shown)
    output = rmqctl("query", "offset", store, "--phy", "0", "--decode", "json").expect(0).out
    assert 'decoded                      {"id":1,"amount":3000,"name":"=1+1"}' in output


def test_exports(store: Path, rmqctl: Runner, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    fields = "physical_offset,decoded,decoded_as,body.name"
    for name in ("a.parquet", "a.csv"):
        done = rmqctl("export", store, "--out", tmp_path / name, "--decode", "json",
                      "--fields", fields, "-o", "json").expect(0)
        assert "2 bodies not decoded with --decode json" in done.err
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["decoded"] and json.loads(row["decoded"])["id"] for row in rows] == [
        1, 2, None, None, None, "\x1b[31m"]
    assert rows[0]["body.name"] == "=1+1"
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == fields
    assert lines[1].endswith(",json,'=1+1")
    assert lines[3].endswith(",,,")
    rmqctl("export", store, "--out", tmp_path / "all", "--decode", "auto").expect(0)
    [part] = (tmp_path / "all").rglob("*.parquet")
    assert parquet.read_schema(part).names[-3:] == ["decoded", "decoded_as", "internal"]


def test_transactions_say_what_they_stand_for(golden: GoldenFolder, rmqctl: Runner) -> None:
    rows = rmqctl("read", golden("5.3.3/transaction/store"), "--decode", "auto", "-o", "jsonl"
                  ).expect(0).jsonl()
    halves = {row["queue_offset"]: row["internal"] for row in rows
              if row["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"}
    settled = [offset for row in rows if row["decoded_as"] == "op" for offset in row["decoded"]]
    assert settled
    assert set(settled) <= set(halves)
    assert {half["kind"] for half in halves.values()} == {"half"}
    assert all(half["topic"].startswith("TP_") for half in halves.values())


def test_code_is_taken_from_the_command_line_only() -> None:
    def given(source: str) -> Any:
        return cast(Any, SimpleNamespace(
            get_parameter_source=lambda _name: SimpleNamespace(name=source)))

    param = cast(Any, SimpleNamespace(name="decode"))
    for source in ("ENVIRONMENT", "DEFAULT_MAP"):
        for value in ("python:a.b", "gzip+python:a.b"):
            with pytest.raises(UsageError, match="only be given on the command line"):
                _by_hand(given(source), param, value)
        assert _by_hand(given(source), param, "json") == "json"
    assert _by_hand(given("COMMANDLINE"), param, "python:a.b") == "python:a.b"


def test_other_commands_do_not_decode(store: Path, rmqctl: Runner, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    done = rmqctl("pipeline", "export", store, "--out", tmp_path / "out", "--engine", "local",
                  "--where", "body.id=1").expect(2)
    assert "this command does not decode bodies" in done.err
