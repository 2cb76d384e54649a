"""Sums of the last minute, hour and day."""

from __future__ import annotations

import time
from types import SimpleNamespace

from rmqctl.ext.serve import sums
from rmqctl.ext.serve.serving import ServeSettings
from rmqctl.ext.serve.sums import BrokerCounts
from tests.serve.running import empty_store, serving


def test_sums_are_of_their_times(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(sums, "time", SimpleNamespace(  # not the clock of other threads
        monotonic=lambda: now, time=time.time, localtime=time.localtime))
    kept, put, got = BrokerCounts(), {"t": 0}, {("g", "t"): 0}
    for _ in range(8640 + 360):  # a day and an hour: 2 messages in 10 s are put, 1 is given out
        now += 10
        put["t"] += 2
        got["g", "t"] += 1
        kept.note(put, got)
    result = kept.of(put["t"], lambda before: before.put.get("t", 0))
    assert {name: amount["sum"] for name, amount in result.items()} == {
        "statsMinute": 10, "statsHour": 600, "statsDay": 2 * 360 * 23}
    assert {amount["tps"] for amount in result.values()} == {0.2}
    assert kept.rate(got["g", "t"], lambda before: before.got.get(("g", "t"), 0)) == 0.1
    assert [len(notes) for notes in kept.notes.values()] == [6, 6, 24]


def test_what_came_before_midnight_is_of_yesterday(monkeypatch):
    kept = BrokerCounts()
    kept.note({"t": 5}, {})
    tomorrow = time.localtime(time.time() + 86_400)
    monkeypatch.setattr(sums, "time", SimpleNamespace(
        monotonic=time.monotonic, time=time.time, localtime=lambda *_: tomorrow))
    kept.note({"t": 7}, {("g", "t"): 3})
    kept.note({"t": 9}, {("g", "t"): 4})
    assert kept.mornings == ((0, 0), (7, 3))


def test_a_served_store_tells_what_was_sent_and_pulled(tmp_path):
    from tests.serve.test_writable import sent

    with serving(empty_store(tmp_path / "store"),
                 settings=ServeSettings(writable=True)) as served, (
            served.client()) as client:
        for number in range(3):
            assert sent(client, "orders", b"%d" % number).code == 0
        client.pull("orders", 0, 1)

        def stats(name: str, key: str) -> int:
            answer = client.ask("VIEW_BROKER_STATS_DATA", statsName=name, statsKey=key)
            return int(answer.json()["statsDay"]["sum"]) if answer.code == 0 else -answer.code

        assert stats("TOPIC_PUT_NUMS", "orders") == 3
        assert stats("GROUP_GET_NUMS", "orders@rmqctl") == 2
        assert stats("GROUP_GET_NUMS", "orders@none") == stats("TOPIC_PUT_NUMS", "none") == -1
        table = client.ask("GET_BROKER_RUNTIME_INFO").json()["table"]
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("3", "2")
        puts, gets = (float(table[name].split()[0]) for name in ("putTps", "getTotalTps"))
        assert 3 >= puts > gets > 0
