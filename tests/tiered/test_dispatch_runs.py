"""Runs of dispatch beside others: interrupted ones, brokers in between, object stores, rounds."""

from __future__ import annotations

import os
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqctl.ext.tiered.dispatch import dispatch
from rmqctl.ext.tiered.dispatch.blocks import Sweep
from rmqctl.ext.tiered.dispatch.dispatch import Dispatch
from rmqctl.ext.tiered.dispatch.plan import CommitGroups
from rmqctl.ext.tiered.files.settings import TierSettings
from rmqctl.ext.tiered.index.index_file import uploaded
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import metadata as meta
from tests.support import cli
from tests.tiered.dispatching import (
    METADATA,
    SMALL,
    TOPICS,
    WHEN,
    assert_consistent,
    dispatched,
    index_items,
    local_store,
    opened,
    put,
    record,
    segments,
    statuses,
    wanted_items,
)


@pytest.fixture
def store(tmp_path) -> Path:
    return local_store(cli.run, tmp_path / "store", 120)


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "tier"


def small_windows(monkeypatch, window: int) -> None:
    monkeypatch.setattr(dispatch, "Sweep", partial(Sweep, window=window))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_between_two_windows(monkeypatch, store, root, tmp_path, number):
    dispatched(cli.run, store, tmp_path / "other", *SMALL, "--metadata",
               tmp_path / "home" / METADATA)
    small_windows(monkeypatch, 3000)
    real = Dispatch.prepare

    def prepare(self) -> None:
        real(self)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "prepare", prepare)
        done = cli.run("tiered", "dispatch", store, root, "--broker", "broker-a", *SMALL)
    assert done.code in (130, 143)
    assert "the next run continues" in done.err
    bounds = assert_consistent(store, root)
    assert 0 < sum(end for _, end in bounds.values()) < 60
    assert index_items(store, root, 16, 40) == wanted_items(store, root)
    dispatched(cli.run, store, root)
    assert segments(root) == segments(tmp_path / "other")
    assert index_items(store, root, 16, 40) == wanted_items(store, root)


@pytest.mark.long
def test_a_broker_in_between_keeps_its_index(store, root, tmp_path):
    """It went on behind us, and its items are in the same file: nothing is taken back."""
    home = tmp_path / "home"
    where = ("--metadata", home / METADATA)
    dispatched(cli.run, store, root, *where)
    put(cli.run, store, 120, 60)
    note = home / ".rmqctl" / "tiered-index.json"
    before = note.read_bytes()
    dispatched(cli.run, store, root, *where)  # as a broker: it leaves no note
    note.write_bytes(before)
    put(cli.run, store, 180, 60)
    done = cli.run("tiered", "dispatch", store, root, *where).expect(0)
    assert "stay unindexed" in done.err
    shutil.copytree(home / "config", store / "config", dirs_exist_ok=True)
    shutil.copytree(home / "tiered_index_file", store / "tiered_index_file")
    assert index_items(store, root) == wanted_items(store, root)


NOTE = b'{"format":1,"tier":"%s","position":[1,%s],"queues":{}}'
NOTES = [b"", b"{}", b"[1]", b"\xff\xfe", NOTE % (b"x/y", b"0"),
         NOTE % (b"DefaultCluster/broker-a", b'"a"')]


@pytest.mark.parametrize("note", NOTES)
def test_a_note_that_cannot_be_used(store, root, note):
    dispatched(cli.run, store, root, *SMALL)
    put(cli.run, store, 120, 30)
    path = store / ".rmqctl" / "tiered-index.json"
    path.write_bytes(note)
    done = cli.run("tiered", "dispatch", store, root).expect(0)
    assert str(path) in done.err
    assert index_items(store, root, 16, 40) == wanted_items(store, root)


def test_times_are_the_messages_own(tmp_path, root):
    """A broker reads byte 56 of a message from an IPv6 host: no time at all (§3)."""
    first = cli.run("init", tmp_path / "store", "--broker-version", "5.3.3").expect(0)
    assert first.code == 0
    source = tmp_path / "lines"
    source.write_bytes(b"".join(record(n, topics=("T0",), queues=1, born_host="[2001:db8::7]:9",
                                       sys_flag=16) for n in range(5)))
    store = tmp_path / "store"
    cli.run("append", store, source, "--as-recorded").expect(0)
    dispatched(cli.run, store, root, "--verify-after")
    assert_consistent(store, root)
    metadata = meta.parse((store / METADATA).read_bytes())
    entry = metadata.segments["COMMIT_LOG"]["broker-a/T0/0"][0]
    assert (entry.begin_timestamp, entry.end_timestamp) == (WHEN, WHEN + 4000)


def test_an_object_store_gets_the_same(store, root, tmp_path, request):
    """Without code for it: in memory, through fsspec."""
    url = f"memory://dispatch-{request.node.name}"
    dispatched(cli.run, store, url, *SMALL, "--verify-after")
    put(cli.run, store, 120, 60)
    done = dispatched(cli.run, store, url, "--verify-after")
    assert done["checked"] == {"messages": 60, "problems": [], "findings": []}
    dispatched(cli.run, store, root, *SMALL, "--metadata", tmp_path / "home" / METADATA)
    with Tier.open(url, str(store / METADATA)) as remote, Tier.open(
            str(root), str(tmp_path / "home" / METADATA)) as local:
        for queue in local.queues():
            other = remote.queue(queue.name.topic, queue.name.queue_id)
            for mine, theirs in ((queue.commit_log, other.commit_log),
                                 (queue.consume_queue, other.consume_queue)):
                assert mine.read(0, mine.end) == theirs.read(0, theirs.end)


def test_an_engine_tier_is_fed_on(golden_copy):
    """A running broker was killed: its tier, its index and its metadata go on."""
    live = golden_copy("5.3.3/tiered/store-live")
    root = live / "tieredstore"
    (live / "abort").unlink()
    before = segments(root)
    with Tier.open(str(root)) as tier:
        serial = tier.metadata.serial
    source = live.parent / "lines"
    topics = ("TP_pay_Event5", "TP_new")
    source.write_bytes(b"".join(record(n, topics=topics, queues=2) for n in range(24)))
    cli.run("append", live, source, "--as-recorded").expect(0)
    options = ("--commitlog-max-size", "24576", "--consumequeue-max-size", "500", "--index-slots",
               "64", "--index-max", "180")
    done = dispatched(cli.run, live, root, *options, "--verify-after")
    assert statuses(done)["TP_new", 0] == statuses(done)["TP_pay_Event5", 1] == "uploaded"
    assert statuses(done)["TP_user_Topic", 0] == "up to date"
    after = segments(root)
    assert all(after[name].startswith(data) for name, data in before.items())
    assert_consistent(live, root)
    with opened(live, root) as tier:
        assert tier.metadata.topics["TP_new"].topic_id == serial + 1
    counts, wanted = index_items(live, root, 64, 180), wanted_items(live, root)
    assert not wanted - counts
    assert not counts - wanted


@given(st.lists(st.lists(st.integers(91, 700), max_size=12), max_size=6), st.integers(1, 5),
       st.integers(1, 1500))
def test_rounds_are_those_of_a_plain_loop(pieces, most, limit):
    """However the messages come in pieces."""
    rounds = CommitGroups(TierSettings(group_commit_count=most, group_commit_size=limit))
    counts, before = [], 0
    for piece in pieces:
        counts += [before + at for at in rounds.starts(np.array(piece, np.int64))]
        before += len(piece)
    wanted, count, size = [], 0, 0
    for number, item in enumerate(value for piece in pieces for value in piece):
        if not number or count == most or size + item >= limit:
            wanted.append(number)
            count = size = 0
        count, size = count + 1, size + item
    assert counts == wanted


def test_a_broker_finds_every_key_of_what_its_store_has_no_more(rmqctl, tmp_path):
    """It asks the tier up to its own first message, and only index files named before that."""
    store = local_store(rmqctl, tmp_path / "store", 60)
    root = tmp_path / "tier"
    dispatched(rmqctl, store, root, *SMALL)
    first, *_, last = sorted((store / "commitlog").iterdir())
    assert first != last
    first.unlink()
    for number in range(60):
        result = rmqctl("tiered", "query", "key", root, "--metadata", store / METADATA, "--local",
                        store, "--topic", TOPICS[number % 3], "--key", f"k{number}",
                        "--as-broker", "--index-slots", "16", "--index-max", "40",
                        "-o", "json").expect(0)
        assert {f"k{number}" in message["keys"] for message in result.json()} == {True}
    with opened(store, root) as tier:
        for _, flat in tier.indexes():
            for file in uploaded(flat):
                assert file.timestamp < WHEN + 60_000
                assert file.header.end_timestamp >= file.timestamp
