"""The start after the next one: a clean one may begin earlier and meet older damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.checks.preflight.preflight import preflight
from rmqctl.formats.local import checkpoint as page
from rmqctl.formats.local.checkpoint import CHECKPOINT
from rmqctl.store import Store
from tests.support.cli import run

SIZES = ("--consumequeue-file-size", "300")


def crashed(store: Path, back: int) -> None:
    """An unclean end with everything flushed, and a damaged body ``back`` files before the last
    one with messages.
    """
    with Store.open(store) as opened:
        files = [file for file in opened.log.files
                 if opened.log.record_at(file.base) is not None]
        record = opened.log.record_at(files[-1 - back].base)
        newest = max(int(batch.column("store_timestamp").max())
                     for batch in opened.log.walk(0, opened.log.end) if len(batch))
    path = Path(files[-1 - back].path)
    data = bytearray(path.read_bytes())
    at = data.index(record.body, 0)
    data[at] ^= 1
    path.write_bytes(data)
    (store / "abort").write_bytes(b"")
    saved = bytearray((store / "checkpoint").read_bytes())
    old = page.parse(bytes(saved[:CHECKPOINT.size]))
    saved[:24] = page.build(old._replace(
        physic_msg_timestamp=newest + 10_000, logics_msg_timestamp=newest + 10_000,
        index_msg_timestamp=newest + 10_000))[:24]
    (store / "checkpoint").write_bytes(saved)


@pytest.mark.parametrize("version", ["4.9.3", "5.1.0"])
@pytest.mark.parametrize("back", [1, 2])
def test_the_second_start_is_the_one_that_the_first_leaves(golden_copy, version: str, back: int):
    store = golden_copy("4.9.3/basic/store")
    crashed(store, back)
    answer = run("preflight", store, "--broker-version", version, "-o", "json").expect(1).json()
    assert answer["recovery"] == "abnormal"
    assert answer["messages_lost"] == 0
    second = answer["second_start"]
    assert second["messages_lost"] > 0
    assert sum(second["lost_by_topic"].values()) == second["messages_lost"]
    assert {"what": "messages", "count": second["messages_lost"]}.items() <= {
        key: value for loss in answer["losses"] if "second" in loss["cause"]
        for key, value in loss.items()}.items()
    # Carry the first start out, and ask again.
    run("recover", store, "--strategy", "broker", "--broker-version", version, "--apply",
        "--yes").expect(0, 1)
    again = run("preflight", store, "--broker-version", version, "-o", "json").expect(1).json()
    assert again["recovery"] == "normal"
    assert again["truncate_to"] == second["truncate_to"]
    assert again["start_file"] == second["start_file"]
    assert again["messages_lost"] == second["messages_lost"]


def test_one_sentence_on_the_screen(golden_copy):
    store = golden_copy("4.9.3/basic/store")
    crashed(store, 1)
    shown = run("preflight", store, "--broker-version", "4.9.3").expect(1).out
    assert "The second, clean start truncates the log at" in " ".join(shown.split())
    assert "the second start would lose" in " ".join(run(
        "doctor", store, "--broker-version", "4.9.3").expect(1).out.split())


@pytest.mark.parametrize("back", [0, 3])
def test_starts_that_do_not_differ(golden_copy, back: int):
    """Damage that both meet, and damage before what both read."""
    store = golden_copy("4.9.3/basic/store")
    crashed(store, back)
    with Store.open(store) as opened:
        prediction = preflight(opened, "4.9.3")
    assert prediction.broker.second_start is None


def test_a_5_3_3_broker_begins_its_second_start_where_the_queues_end(golden_copy):
    store = golden_copy("5.3.3/basic/store")
    crashed(store, 1)
    with Store.open(store) as opened:
        assert preflight(opened, "5.3.3").broker.second_start is None
