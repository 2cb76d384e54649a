"""What the engine uploaded from a golden store, uploaded again by rmqctl."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.index.index_file import LocalIndex, TierIndexFile, uploaded
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.names import COMMIT_LOG, CONSUME_QUEUE, INDEX
from tests.support.golden import all_sets
from tests.tiered.dispatching import METADATA, assert_consistent, segments

SETS = [each for each in all_sets() if each.kind.startswith("tiered")]
OPTIONS = {"--commitlog-max-size": "tieredStoreCommitLogMaxSize",
           "--consumequeue-max-size": "tieredStoreConsumeQueueMaxSize",
           "--index-slots": "tieredStoreIndexFileMaxHashSlotNum",
           "--index-max": "tieredStoreIndexFileMaxIndexNum",
           "--cluster": "brokerClusterName", "--broker": "brokerName"}


def options_of(config: dict[str, str]) -> list[str]:
    return [word for name, key in OPTIONS.items() if key in config
            for word in (name, config[key])]


@pytest.fixture(params=SETS, ids=lambda each: each.id)
def stripped(request, golden, golden_copy) -> tuple[Path, Path, list[str]]:
    """(a golden store without its tier, what the engine made of it, the options for it)."""
    each = request.param
    config = each_config(golden(each.id))
    store = golden_copy(f"{each.id}/store")
    engine = golden(f"{each.id}/store")
    shutil.rmtree(store / "tieredstore")
    shutil.rmtree(store / "tiered_index_file", ignore_errors=True)
    for name in (METADATA, f"{METADATA}.bak"):
        (store / name).unlink(missing_ok=True)
    return store, engine, options_of(config)


def each_config(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "expect.json").read_text())["config"]
    return found


def test_segments_are_those_of_the_engine(stripped, rmqctl, tmp_path):
    store, engine, options = stripped
    root = tmp_path / "tier"
    done = rmqctl("tiered", "dispatch", store, root, *options, "--verify-after", "--seal-index",
                  "-o", "json").expect(0).json()
    assert segments(root) == segments(engine / "tieredstore")
    assert done["messages"] == done["checked"]["messages"] > 0
    assert_consistent(store, root)


def test_metadata_is_that_of_the_engine_but_for_clocks(stripped, rmqctl, tmp_path):
    store, engine, options = stripped
    rmqctl("tiered", "dispatch", store, tmp_path / "tier", *options, "--no-index").expect(0)
    ours, theirs = (meta.parse((root / METADATA).read_bytes()) for root in (store, engine))

    def timeless(found: meta.Metadata, kind: str) -> dict[str, Any]:
        return {path: {base: replace(one, create_timestamp=0) for base, one in table.items()}
                for path, table in found.segments[kind].items()}

    for kind in (COMMIT_LOG, CONSUME_QUEUE):
        assert timeless(ours, kind) == timeless(theirs, kind)
    ours_queues, theirs_queues = (
        [{topic: {number: replace(one, update_timestamp=0) for number, one in table.items()}
          for topic, table in found.queues.items()}] for found in (ours, theirs))
    assert ours_queues == theirs_queues
    assert set(ours.topics) == set(theirs.topics)
    assert ours.serial == theirs.serial
    shape = re.compile(rb"[0-9]+")
    text, engines = ((root / METADATA).read_bytes().split(b'"indexFileSegmentTable"')[0]
                     for root in (store, engine))
    assert Counter(shape.sub(b"", text).split()) == Counter(shape.sub(b"", engines).split())


def items(root: Path, metadata: Path) -> Counter[tuple[Any, ...]]:
    """All items of the uploaded index files, with the topics' names for their ids."""
    found: Counter[tuple[Any, ...]] = Counter()
    with Tier.open(str(root), str(metadata)) as tier:
        with LocalIndex(tier.local_index_folder, 64) as local:
            assert sum(one.items for one in local.files) == 0
        for _, flat in tier.indexes():
            for one in uploaded(flat):
                assert isinstance(one, TierIndexFile)
                for _, rows in one.blocks():
                    for row in rows:
                        found[int(row["key_hash"]), tier.metadata.topic_of(int(row["topic_id"])),
                              int(row["queue_id"]), int(row["commit_log_offset"]),
                              int(row["size"])] += 1
    return found


def test_the_index_has_the_items_of_the_engine(stripped, rmqctl, tmp_path):
    """In another order, and in files of another time: the engine's queues took turns."""
    store, engine, options = stripped
    root = tmp_path / "tier"
    rmqctl("tiered", "dispatch", store, root, *options, "--seal-index").expect(0)
    theirs = items(engine / "tieredstore", engine / METADATA)
    assert items(root, store / METADATA) == theirs
    assert theirs
    with Tier.open(str(root), str(store / METADATA)) as tier:
        known = next(iter(tier.metadata.segments[INDEX].values()))
        flat = next(flat for _, flat in tier.indexes())
        assert [(one.base_offset, one.size) for one in sorted(
            known.values(), key=lambda one: one.base_offset)] == [
                (one.base, one.size) for one in flat.segments]


def test_a_tier_of_the_engine_is_continued(golden_copy, golden, rmqctl, tmp_path):
    """Nothing is left to do; the metadata is what the engine's was."""
    for each in SETS:
        store = golden_copy(f"{each.id}/store")
        options = options_of(each_config(golden(each.id)))
        before = (store / METADATA).read_bytes()
        done = rmqctl("tiered", "dispatch", store, store / "tieredstore", *options[:8], "-o",
                      "json").expect(0).json()
        assert {one["status"] for one in done["queues"]} == {"up to date"}
        assert (store / METADATA).read_bytes() == before
        assert segments(store / "tieredstore") == segments(
            golden(f"{each.id}/store") / "tieredstore")
