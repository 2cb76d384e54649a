"""A local store and its tier as one: the engine's answers, and every strategy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqctl.broker.versions import version_for
from rmqctl.broker.view import view_of
from rmqctl.errors import UsageError
from rmqctl.ext.tiered.as_broker.routed import routed_key
from rmqctl.ext.tiered.as_broker.router import LocalSide, Router, Strategy
from rmqctl.ext.tiered.read.by_key import IndexFiles
from rmqctl.ext.tiered.tier import Tier
from rmqctl.store import Store
from tests.conftest import GoldenFolder, Runner
from tests.support import golden as golden_sets
from tests.tiered.tiers import TOPIC, Queue, small_tier

SET = "5.3.3/tiered"
STATES = [golden_store.id for golden_store in golden_sets.golden_stores()
          if golden_store.kind == "tiered"]


def expect(golden: GoldenFolder) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((golden(SET) / "expect.json").read_text())
    return document


@contextmanager
def routed(root: Path, strategy: Strategy = Strategy.NOT_IN_DISK,
           in_memory: int | None = None) -> Iterator[Router]:
    with Tier.open(str(root)) as tier, Store.open(root) as store:
        yield Router(LocalSide(view_of(store, "auto", version_for(5)), in_memory), tier,
                     strategy)


@pytest.mark.parametrize("state", STATES)
def test_pulls_as_the_engine(state: str, golden: GoldenFolder) -> None:
    with routed(golden(state)) as router:
        for queue in expect(golden)["queues"]:
            for offset, status, next_begin, least, most, places in queue["getMessage5"]:
                pulled = router.get(queue["topic"], queue["queueId"], offset, 5)
                assert (pulled.status, pulled.next_offset, pulled.min, pulled.max) == (
                    status, next_begin, least, most)
                assert [record.physical_offset for record in pulled.records] == places


@pytest.mark.parametrize("state", STATES)
def test_times_as_the_engine(state: str, golden: GoldenFolder) -> None:
    with routed(golden(state)) as router:
        for queue in expect(golden)["queues"]:
            for when, lower, both in queue["offsetByTime"]:
                for upper in (False, True):
                    at_time = router.at_time(queue["topic"], queue["queueId"], when, upper=upper,
                                             as_broker=True)
                    assert at_time is not None
                    assert at_time.queue_offset == (both[upper] if both else lower)


@pytest.mark.parametrize("state", STATES)
def test_keys_as_the_engine(state: str, golden: GoldenFolder) -> None:
    with routed(golden(state)) as router, IndexFiles.open(router.tier) as files:
        for query in expect(golden)["queries"]:
            key_matches = routed_key(router, files, query["topic"], query["key"],
                                     begin=query["begin"],
                                     end=query["end"], most=query["max"], as_broker=True)
            assert [record.physical_offset
                    for record in key_matches.records] == query["queryMessage"]


# -- a log that lost its head -------------------------------------------------------------------


@pytest.fixture
def expired(golden_copy: GoldenFolder) -> Path:
    """The golden store whose local log has only its last files: the tier has the rest."""
    root = golden_copy(f"{SET}/store")
    files = sorted((root / "commitlog").iterdir())
    for file in files[:len(files) // 2]:
        file.unlink()
    return root


def queues(golden: GoldenFolder) -> list[tuple[str, int, int]]:
    return [(queue["topic"], queue["queueId"], queue["max"]) for queue in expect(golden)["queues"]]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_all_messages_whoever_has_them(strategy: Strategy, golden: GoldenFolder,
                                       expired: Path) -> None:
    with routed(expired, strategy) as router:
        for topic, queue_id, end in queues(golden):
            pulls = list(router.pulls(topic, queue_id))
            seen = [record.queue_offset for _, pull in pulls for record in pull.records]
            sides = {pull.side for _, pull in pulls if pull.records}
            if strategy is Strategy.DISABLE:
                assert seen == list(range(seen[0], end))
                assert seen[0] > 0
                assert sides == {"local"}
            else:
                assert seen == list(range(end))
                assert sides == ({"local", "tier"} if strategy is Strategy.NOT_IN_DISK
                                 else {"tier"})


def test_what_counts_as_in_memory(golden: GoldenFolder) -> None:
    root = golden(f"{SET}/store")
    with Store.open(root) as store:
        middle = store.log.files[len(store.log.files) // 2].base
        topic, queue_id, end = queues(golden)[0]
        queue = store.queues.find(topic, queue_id)
        assert queue is not None
        places = [unit.physical_offset for unit in map(queue.unit, range(end)) if unit]
    with routed(root, Strategy.NOT_IN_MEM, middle) as router:
        assert [router.side(topic, queue_id, at) for at in range(end)] == [
            "local" if place >= middle else "tier" for place in places]
        # A range that ends in another file of the log is not in memory for a broker.
        border = next(at for at in range(end) if places[at] >= middle
                      and at + 4 < end and places[at] // 16384 != places[at + 4] // 16384)
        assert router.side(topic, queue_id, border, 4) == "tier"
    with routed(root, Strategy.NOT_IN_MEM) as router:
        assert {router.side(topic, queue_id, at) for at in range(end)} == {"tier"}
        assert router.side(topic, queue_id, end) == "local"


def test_strategies_by_name() -> None:
    assert [Strategy.of(name)
            for name in ("disable", "NOT_IN_DISK", "not-in-mem", "Force")] == list(
                Strategy)
    with pytest.raises(UsageError, match="valid: disable, not-in-disk"):
        Strategy.of("sometimes")


def test_the_smaller_min_and_the_tiers_max(golden: GoldenFolder, expired: Path) -> None:
    topic, queue_id, end = queues(golden)[0]
    with routed(expired, Strategy.FORCE) as router:
        pulled = router.get(topic, queue_id, 0, 3)
        assert (pulled.side, pulled.min, pulled.max) == ("tier", 0, end)
        assert router.min_offset(topic, queue_id) == 0


def test_an_empty_local_log_leaves_it_to_the_tier(golden: GoldenFolder,
                                                  golden_copy: GoldenFolder) -> None:
    root = golden_copy(f"{SET}/store")
    for path in (root / "commitlog").iterdir():
        path.unlink()
    topic, queue_id, end = queues(golden)[0]
    with routed(root) as router:
        seen = [record.queue_offset for _, pull in router.pulls(topic, queue_id)
                for record in pull.records]
        assert seen == list(range(end))


def test_local_stands_in_for_a_tier_that_fails(golden: GoldenFolder,
                                               golden_copy: GoldenFolder) -> None:
    root = golden_copy(f"{SET}/store")
    topic, queue_id, _ = queues(golden)[0]
    for path in (root / "tieredstore").rglob("COMMIT_LOG/*"):
        if path.parents[2].name == topic:
            path.write_bytes(path.read_bytes()[:40])
    with routed(root, Strategy.FORCE) as router:
        pulled = router.get(topic, queue_id, 5, 3)
        assert (pulled.side, [record.queue_offset for record in pulled.records]) == ("local",
                                                                                     [5, 6, 7])
        assert pulled.trouble


def test_times_before_the_local_log(golden: GoldenFolder, expired: Path) -> None:
    for flat in expect(golden)["extra"]["flatFiles"]:
        with routed(expired) as router:
            earliest = router.local.earliest_time()
            for when, lower, upper in flat["offsetByTime"]:
                for as_broker in (False, True):
                    at_time = router.at_time(flat["topic"], flat["queueId"], when,
                                             as_broker=as_broker)
                    assert at_time is not None
                    assert at_time.side == ("tier" if when < earliest else "local")
                    assert at_time.queue_offset == lower
                    above = router.at_time(flat["topic"], flat["queueId"], when, upper=True,
                                           as_broker=as_broker)
                    if above is not None and above.side == "tier":
                        assert above.queue_offset == upper


def test_keys_over_both(golden: GoldenFolder, expired: Path, rmqctl: Runner) -> None:
    """Every message with a key, once, whoever still has it."""
    everything = rmqctl("tiered", "read", expired, "-o", "jsonl").jsonl()
    with routed(expired) as router, IndexFiles.open(router.tier) as files:
        halves = set()
        for query in expect(golden)["queries"]:
            key, topic = query["key"], query["topic"]
            wanted = sorted((row["queue_id"], row["queue_offset"]) for row in everything
                            if row["topic"] == topic and key in (*row["keys"], row["unique_key"]))
            key_matches = routed_key(router, files, topic, key, most=64)
            assert sorted((record.queue_id, record.queue_offset)
                          for record in key_matches.records) == wanted
            halves.add((bool(key_matches.local), bool(key_matches.tier)))
            few = routed_key(router, files, topic, key, most=1)
            assert len(few.records) == min(1, len(wanted))
        assert (True, False) in halves
        assert (False, True) in halves


# -- the commands ---------------------------------------------------------------------------------


def test_reading_both(golden: GoldenFolder, expired: Path, rmqctl: Runner) -> None:
    topic, queue_id, end = queues(golden)[0]
    words = ["tiered", "read", expired, "--topic", topic, "--local", expired, "-o", "jsonl"]
    result = rmqctl(*words, "--queue", str(queue_id)).expect(0)
    assert [row["queue_offset"] for row in result.jsonl()] == list(range(end))
    assert f"{topic}/{queue_id}: queue offsets 0 to " in result.err
    assert "from the tier" in result.err
    assert "from the local store" in result.err
    some = rmqctl(*words, "--queue", str(queue_id), "--offset", "7", "--count", "4").expect(0)
    assert [row["queue_offset"] for row in some.jsonl()] == [7, 8, 9, 10]
    whole = rmqctl(*words).expect(0).jsonl()
    assert len(whole) == sum(queue[2] for queue in queues(golden) if queue[0] == topic)
    times = sorted(row["store_timestamp"] for row in whole)
    part = rmqctl(*words, "--since", str(times[9]), "--until", str(times[-9])).expect(0).jsonl()
    assert part == [row for row in whole if times[9] <= row["store_timestamp"] <= times[-9]]


def test_offsets_that_nobody_has(golden: GoldenFolder, expired: Path, rmqctl: Runner) -> None:
    """The tier ends before the local store begins: said, and what there is is shown."""
    topic, queue_id, end = queues(golden)[0]
    folder = next((expired / "tieredstore").rglob(f"{topic}/{queue_id}/CONSUME_QUEUE"))
    for path in sorted(folder.iterdir(), key=lambda path: path.name[8:])[1:]:
        path.unlink()
    result = rmqctl("tiered", "read", expired, "--topic", topic, "--queue", str(queue_id),
                    "--local", expired, "-o", "jsonl").expect(1)
    seen = [row["queue_offset"] for row in result.jsonl()]
    first = next(at for at in seen if at >= 25)
    assert seen == [*range(25), *range(first, end)]
    assert first > 25
    assert f"queue offsets 25 to {first - 1} are in neither" in result.err


def test_query_commands_with_a_local_store(golden: GoldenFolder, expired: Path,
                                           rmqctl: Runner) -> None:
    topic, queue_id, end = queues(golden)[0]
    place = ["--topic", topic, "--queue", str(queue_id)]
    both = ["--local", expired, "-o", "json"]
    first = rmqctl("tiered", "query", "offset", expired, *place, "--offset", "0", *both)
    last = rmqctl("tiered", "query", "offset", expired, *place, "--offset", str(end - 1), *both)
    row, late = first.expect(0).json()[0], last.expect(0).json()[0]
    assert (row["queue_offset"], late["queue_offset"]) == (0, end - 1)
    pull = rmqctl("tiered", "query", "offset", expired, *place, "--offset", "0", "--as-broker",
                  *both).expect(0).json()
    assert (pull["status"], pull["from"], pull["min_offset"]) == ("FOUND", "tier", 0)
    for message, side in ((row, "tier"), (late, "local")):
        result = rmqctl("tiered", "query", "time", expired, *place, "--time",
                        str(message["store_timestamp"]), *both).expect(0).json()
        assert (result["from"], result["queue_offset"]) == (side, message["queue_offset"])
        result = rmqctl("tiered", "query", "key", expired, "--topic", topic, "--key",
                        message["unique_key"], *both).expect(0)
        assert [stored_message["queue_offset"]
                for stored_message in result.json()] == [message["queue_offset"]]
    messages = rmqctl("tiered", "query", "time", expired, *place, "--time",
                      str(row["store_timestamp"]), "--messages", "--count", "2", *both).expect(0)
    assert [message["queue_offset"] for message in messages.json()] == [0, 1]
    missing = rmqctl("tiered", "query", "offset", expired, *place, "--offset", str(end), *both)
    assert "OFFSET_OVERFLOW_ONE" in missing.expect(1).err
    rmqctl("tiered", "query", "key", expired, "--topic", topic, "--key", "x",
           "--in-memory-from", "5").expect(2)
    shutil.rmtree(expired / "consumequeue")
    assert rmqctl("tiered", "read", expired, "--topic", "nobody", "--local", expired).expect(
        0).err.startswith("rmqctl: neither the tier nor the store contains topic nobody")


@pytest.mark.parametrize("strategy", ["force", "not-in-disk"])
def test_damage_in_the_tier_is_named(strategy: str, golden: GoldenFolder, expired: Path,
                                     rmqctl: Runner) -> None:
    topic, queue_id, end = queues(golden)[0]
    flat = next(flat_file for flat_file in expect(golden)["extra"]["flatFiles"]
                if (flat_file["topic"], flat_file["queueId"]) == (topic, queue_id))
    path = next((expired / "tieredstore").rglob(
        f"{topic}/{queue_id}/COMMIT_LOG/{flat['commitLogSegments'][0]['fileName']}"))
    data = bytearray(path.read_bytes())
    data[flat["messages"][3][1] + 4] ^= 1
    path.write_bytes(data)
    words = ["tiered", "read", expired, "--topic", topic, "--queue", str(queue_id), "--local",
             expired, "--strategy", strategy, "-o", "jsonl"]
    result = rmqctl(*words).expect(1)
    assert [row["queue_offset"] for row in result.jsonl()] == [
        at for at in range(end) if at != 3]
    assert "point to no message in the tier" in result.err


def test_a_damaged_first_message_in_the_tier(golden: GoldenFolder, expired: Path,
                                             rmqctl: Runner) -> None:
    """A broker loses the whole queue by it; that is said, and without --local all is shown."""
    topic, queue_id, end = queues(golden)[0]
    path = next((expired / "tieredstore").rglob(
        f"{topic}/{queue_id}/COMMIT_LOG/*{0:020d}"))
    data = bytearray(path.read_bytes())
    data[20] = 0x55
    path.write_bytes(data)
    words = ["tiered", "read", expired, "--topic", topic, "--queue", str(queue_id), "-o", "jsonl"]
    result = rmqctl(*words, "--local", expired, "--strategy", "force").expect(1)
    assert "from the first bytes of the tiered commit log" in result.err
    assert result.out == ""
    assert len(rmqctl(*words).expect(1).jsonl()) == end - 1


@pytest.mark.parametrize("kind", ["compaction", "batchcq"])
def test_local_queues_of_other_kinds(kind: str, golden: GoldenFolder, tmp_path: Path) -> None:
    """What a broker gives of a compacted topic, or of a batch queue, comes through as it is."""
    small_tier(tmp_path, tmp_path)
    store = next(golden_store for golden_store in golden_sets.judged_stores()
                 if golden_store.id == f"5.3.3/{kind}/store")
    with Tier.open(str(tmp_path)) as tier, Store.open(golden(store.id)) as opened:
        router = Router(LocalSide(view_of(opened, "auto", version_for(5))), tier)
        for queue in store.load_expect(golden(store.set.id)).queues:
            pulls = [pull for _, pull in router.pulls(queue.topic, queue.queue_id)]
            assert {pull.side for pull in pulls} == {"local"}
            assert not [pull for pull in pulls if pull.passed_over]
            assert [record.physical_offset for pull in pulls for record in pull.records] == [
                message.physical_offset for message in queue.messages]


@pytest.mark.parametrize("hole", ["COMMIT_LOG", "CONSUME_QUEUE"])
def test_a_hole_in_the_tier_is_passed(hole: str, tmp_path: Path, rmqctl: Runner) -> None:
    """A broker's consumer hangs at the first offset nobody can answer for."""
    queue = Queue()
    for number in range(300):
        if number in (100, 200):
            queue.roll_log()
            queue.roll_units()
        queue.put()
    queue.write(tmp_path / "tier")
    (queue.log_path if hole == "COMMIT_LOG" else queue.units_path)(tmp_path / "tier", 1).unlink()
    (tmp_path / "local/commitlog").mkdir(parents=True)
    (tmp_path / "local/commitlog" / f"{1 << 20:020d}").write_bytes(bytes(4096))
    result = rmqctl("tiered", "read", tmp_path / "tier", "--topic", TOPIC, "--local",
                    tmp_path / "local", "--strategy", "force", "-o", "jsonl").expect(1)
    seen = [row["queue_offset"] for row in result.jsonl()]
    assert seen[:5] == [0, 1, 2, 3, 4]
    assert seen[-100:] == list(range(200, 300))
    assert not set(seen) & set(range(100, 200))
    assert "point to no message" in result.err or "cannot answer from queue offset" in result.err


def test_a_message_of_another_place_is_named(golden: GoldenFolder, expired: Path,
                                             rmqctl: Runner) -> None:
    """A broker gives what a unit leads to, whatever queue offset it says."""
    topic, queue_id, end = queues(golden)[0]
    flat = next(flat_file for flat_file in expect(golden)["extra"]["flatFiles"]
                if (flat_file["topic"], flat_file["queueId"]) == (topic, queue_id))
    path = next((expired / "tieredstore").rglob(
        f"{topic}/{queue_id}/COMMIT_LOG/{flat['commitLogSegments'][0]['fileName']}"))
    data = bytearray(path.read_bytes())
    data[flat["messages"][3][1] + 21] = 1
    path.write_bytes(data)
    result = rmqctl("tiered", "read", expired, "--topic", topic, "--queue", str(queue_id),
                    "--local", expired, "-o", "jsonl").expect(1)
    assert [row["queue_offset"] for row in result.jsonl()] == [
        at for at in range(end) if at != 3]
    assert f"the tier returns a message with queue offset {3 + (1 << 48)} for" in result.err
