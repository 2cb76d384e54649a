"""Tiers of other versions and of odd histories, made byte by byte: sound ones are left alone, and
what is lost comes back.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.units import NEVER
from tests.support import cli
from tests.tiered import recovering
from tests.tiered.tiers import BROKER, T0, TOPIC, Index, Queue, small_tier, upload, write_metadata

PATH = f"{BROKER}/{TOPIC}/0"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "tieredstore").mkdir(parents=True)
    return home


def saved(home: Path, queues: list[Queue], **more: Any) -> None:
    for queue in queues:
        queue.write(home / "tieredstore")
    write_metadata(home, {queue.topic: at for at, queue in enumerate(queues)}, queues, **more)


def lose_units(home: Path) -> dict[str, bytes]:
    """Without any consume queue; what they were."""
    before = recovering.content(home)
    for path in (home / "tieredstore").glob("*/*/*/*/CONSUME_QUEUE"):
        shutil.rmtree(path)
    return before


def units_of(content: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in content.items() if "CONSUME_QUEUE" in name}


def coded() -> Queue:
    """As 5.1 writes: a coda at the end of segments."""
    queue = Queue(first=7)
    for number in range(12):
        queue.put(bytes(number), TAGS="A", KEYS=f"k{number}")
        if number in (3, 8):
            queue.roll_log(coda=True)
        if number in (4, 9):
            queue.roll_units()
    return queue


def test_codas(home):
    saved(home, [coded()])
    assert recovering.recover(home)["actions"] == []
    before = lose_units(home)
    recovering.recovered(home)
    assert units_of(recovering.content(home)) == units_of(before)


def test_codas_and_no_metadata(home):
    queue = coded()
    saved(home, [queue])
    before = recovering.content(home)
    shutil.rmtree(home / "config")
    (home / "config").mkdir()
    recovering.recovered(home)
    now = recovering.content(home)
    assert recovering.changed(before, now) == {recovering.METADATA}
    metadata, was = (meta.parse(data[recovering.METADATA]) for data in (now, before))
    for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
        assert {base: (segment.size, segment.begin_timestamp, segment.end_timestamp)
                for base, segment in metadata.segments[kind][PATH].items()} == {
            base: (segment.size, segment.begin_timestamp, segment.end_timestamp)
            for base, segment in was.segments[kind][PATH].items()}
    entry = metadata.queues[TOPIC][0]
    assert (entry.min_offset, entry.max_offset) == (7, 19)


def test_a_coda_at_the_end_is_no_orphan(home):
    queue = coded()
    queue.coda()
    saved(home, [queue])
    assert recovering.recover(home, "--drop-orphans")["actions"] == []


def test_units_that_lead_to_a_coda(home):
    """A broker passes over it."""
    queue = Queue()
    queue.put()
    queue.put(coda_first=True)
    queue.put()
    saved(home, [queue])
    assert recovering.recover(home)["actions"] == []


@pytest.mark.parametrize("drop", [False, True])
def test_orphans_in_the_middle(home, drop):
    queue = Queue()
    for number in range(9):
        queue.put()
        if number in (2, 5):
            queue.orphan()
    saved(home, [queue])
    options = ["--drop-orphans"] if drop else []
    plan = recovering.recover(home, *options)
    assert plan["actions"] == []
    before = lose_units(home)
    recovering.recovered(home, *options)
    assert units_of(recovering.content(home)) == units_of(before)


def test_garbage_at_the_end(home):
    queue = Queue()
    queue.put()
    queue.put()
    queue.orphan()
    saved(home, [queue])
    assert recovering.recover(home, apply=False)["actions"] == []
    plan = recovering.recovered(home, "--drop-orphans")
    last = queue.records[1]
    assert plan["actions"][0]["to"] == last.physical_offset + last.total_size


def test_store_times_of_ipv6_hosts(home):
    """A broker notes other bytes for them: no damage, but nothing to be made either."""
    queue = Queue()
    for number in range(6):
        queue.put(v6=number > 1)
        if number == 3:
            queue.roll_log()
            queue.roll_units()
    saved(home, [queue])
    assert recovering.recover(home)["actions"] == []
    (home / recovering.METADATA).unlink()
    recovering.recovered(home)
    metadata = meta.parse((home / recovering.METADATA).read_bytes())
    logs = list(metadata.segments["COMMIT_LOG"][PATH].values())
    assert {(log.begin_timestamp, log.end_timestamp) for log in logs} == {
        (T0, T0 + 3000), (T0 + 4000, T0 + 5000)}


def test_queue_without_messages(home):
    """A broker makes an empty first segment as soon as it sees a topic."""
    saved(home, [Queue()])
    assert recovering.recover(home)["actions"] == []
    (home / recovering.METADATA).unlink()
    recovering.recovered(home)
    metadata = meta.parse((home / recovering.METADATA).read_bytes())
    entry = metadata.segments["COMMIT_LOG"][PATH][0]
    assert (entry.size, entry.begin_timestamp, entry.end_timestamp) == (0, NEVER, NEVER)


def test_small_tier_with_a_local_index(home):
    small_tier(home / "tieredstore", home)
    # The index's time in metadata is as a broker leaves it that opened the file again.
    assert recovering.recover(home, "--index-slots", "7")["actions"] == []


def test_index_times_of_a_file_opened_again(home):
    """Its header lost the end (§5.1); made anew it is that of the newest item."""
    queue, index = Queue(), Index(T0 + 500)
    for number in range(5):
        index.add(queue.put(KEYS=f"k{number}"), f"k{number}")
    upload(home / "tieredstore", index.compacted())
    saved(home, [queue], index={0: index})
    (home / recovering.METADATA).unlink()
    recovering.recover(home)
    metadata = meta.parse((home / recovering.METADATA).read_bytes())
    entry = metadata.segments["INDEX"][f"{BROKER}/rmq_sys_INDEX/0"][0]
    assert entry.begin_timestamp == T0 + 500
    assert T0 + 4000 <= entry.end_timestamp < T0 + 5000


def test_topics_of_the_votes_and_others(home):
    """Ids of items go to their topics, the others get higher ones."""
    queues = [Queue(topic=name) for name in ("a", "b", "c")]
    index = Index(T0)
    for queue, number in zip(queues, (5, 2, None), strict=True):
        message = queue.put(KEYS="k")
        if number is not None:
            index.add(message, "k", topic_id=number)
    upload(home / "tieredstore", index.compacted())
    saved(home, queues)
    (home / recovering.METADATA).unlink()
    recovering.recover(home, "--only", "metadata")
    metadata = meta.parse((home / recovering.METADATA).read_bytes())
    assert {name: topic.topic_id
            for name, topic in metadata.topics.items()} == {"a": 5, "b": 2, "c": 6}
    assert metadata.serial == 6


def test_messages_of_another_queue(home):
    """They are no messages of this one, whatever they say of their place."""
    queue = Queue()
    queue.put()
    other = Queue(topic="other", log_start=queue.log_end)
    other.put()
    queue.logs[0][1].extend(other.logs[0][1])
    saved(home, [queue])
    before = lose_units(home)
    plan = recovering.recovered(home)
    assert any("of other queues" in note for note in plan["notes"])
    assert units_of(recovering.content(home)) == units_of(before)


def test_many_queues(home):
    queues = [Queue(topic=f"t{at // 8}", queue_id=at % 8, first=at) for at in range(64)]
    for queue in queues:
        for _ in range(3):
            queue.put(TAGS="A")
    saved(home, queues)
    before = lose_units(home)
    shutil.rmtree(home / "config")
    (home / "config").mkdir()
    recovering.recover(home)
    assert units_of(recovering.content(home)) == units_of(before)
    metadata = meta.parse((home / recovering.METADATA).read_bytes())
    assert sum(map(len, metadata.queues.values())) == 64


def test_root_that_is_the_brokers_own(home):
    """Everything in one folder, as in tests of brokers."""
    queue = Queue()
    queue.put()
    for folder in ("commitlog", "consumequeue"):
        (home / folder).mkdir()
    (home / "tieredstore").rmdir()
    queue.write(home)
    write_metadata(home, {TOPIC: 0}, [queue])
    before = (home / recovering.METADATA).read_bytes()
    queue.units_path(home).unlink()
    answer = cli.run("tiered", "recover", home, "--apply", "-o", "json").expect(0).json()
    assert answer["notes"] == [note for note in answer["notes"] if "index" in note]
    assert queue.units_path(home).read_bytes() == bytes(queue.units[0][1])
    assert (home / recovering.METADATA).read_bytes() == before
    cli.run("undo", home, "--yes").expect(0)
    assert not queue.units_path(home).exists()


def test_metadata_through_a_link_is_refused(home, tmp_path):
    saved(home, [coded()])
    path = home / recovering.METADATA
    path.rename(tmp_path / "real")
    os.symlink(tmp_path / "real", path)
    (tmp_path / "real").write_bytes(b"{}")
    cli.run("tiered", "recover", home / "tieredstore", "--apply").expect(6)
    assert (tmp_path / "real").read_bytes() == b"{}"
