"""`rmqctl recover table`: the contract's JSON, the rows beside it, warnings and exit codes."""

from __future__ import annotations

import csv
import io

import pytest

from tests.conftest import GoldenFolder, Runner
from tests.support import damage, engine
from tests.support.tiny import Tiny


def test_json_is_the_brokers_table(tiny: Tiny, rmqctl: Runner) -> None:
    result = rmqctl("recover", "table", tiny.root, "-o", "json").expect(0)
    assert result.json() == {"bills-0": 2, "orders-0": 4, "orders-1": 2}
    assert not result.err


@pytest.mark.parametrize("name", ["4.9.3/basic", "4.9.3/lmq", "5.3.3/batchcq", "5.3.3/transaction",
                                  "5.3.3/multipath"])
@pytest.mark.parametrize("source", ["log", "consumequeue", "both"])
def test_json_is_the_engines_table(name: str, source: str, golden: GoldenFolder,
                                   rmqctl: Runner) -> None:
    expect = engine.load(golden(name) / "expect.json")
    more = ["--commitlog-dir", "cl1", "--commitlog-dir", "cl2"] * name.endswith("multipath")
    answer = rmqctl("recover", "table", golden(f"{name}/store"), "-o", "json", "--source", source,
                    *more).expect(0).json()
    assert answer == {f"{queue.topic}-{queue.queue_id}": queue.max for queue in expect.queues
                      if queue.max}


def test_rows_show_both_sides(tiny: Tiny, rmqctl: Runner) -> None:
    rows = rmqctl("recover", "table", tiny.root, "-o", "jsonl").expect(0).jsonl()
    assert rows[0] == {"topic": "bills", "queue_id": 0, "from_log": 2, "from_consumequeue": 2,
                       "agrees": True}
    output = rmqctl("recover", "table", tiny.root, "-o", "csv").expect(0).out
    assert [row["agrees"] for row in csv.DictReader(io.StringIO(output))] == ["true"] * 3
    assert "from_consumequeue" in rmqctl("recover", "table", tiny.root).expect(0).out


def test_disagreement_is_a_warning(tiny: Tiny, rmqctl: Runner) -> None:
    damage.remove_folder(tiny.root, "consumequeue/orders/0")
    result = rmqctl("recover", "table", tiny.root, "-o", "json").expect(0)
    assert result.json()["orders-0"] == 4
    assert "1 queue differs" in result.err
    assert "orders-0 (log 4, consumequeue none)" in result.err
    again = rmqctl("recover", "table", tiny.root, "-o", "json", "--source", "consumequeue")
    assert "orders-0" not in again.expect(0).json()
    assert not again.err


def test_damage_is_named_and_ends_with_1(tiny: Tiny, rmqctl: Runner) -> None:
    lost = tiny.messages[2]
    file, position = tiny.place(lost.start)
    damage.zero(tiny.root, file, position + 4, 4)
    result = rmqctl("recover", "table", tiny.root, "-o", "json").expect(1)
    assert result.json() == {"bills-0": 2, "orders-0": 4, "orders-1": 2}
    assert f"at physical offset {lost.start}" in result.err


def test_the_broker_view_stops_where_a_broker_does(golden: GoldenFolder, rmqctl: Runner) -> None:
    root, expect = golden("4.9.3/crash-crc/before"), golden("4.9.3/crash-crc/expect.json")
    expected = {f"{queue.topic}-{queue.queue_id}": queue.max for queue in engine.load(expect).queues
                if queue.max}
    result = rmqctl("recover", "table", root, "--view", "broker", "-o", "json").expect(0)
    assert result.json() == expected
    assert "a broker truncates the log at physical offset" in result.err


def test_an_empty_store(tiny: Tiny, rmqctl: Runner) -> None:
    for name in ("commitlog", "consumequeue"):
        damage.remove_folder(tiny.root, name)
    assert rmqctl("recover", "table", tiny.root, "-o", "json").expect(0).json() == {}
    assert "no messages" in rmqctl("recover", "table", tiny.root).expect(0).err


def test_no_store(tmp_path, rmqctl: Runner) -> None:
    rmqctl("recover", "table", tmp_path).expect(3)
    rmqctl("recover", "table", tmp_path, "--source", "index").expect(2)
