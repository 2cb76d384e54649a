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

SETS = [golden_set for golden_set in all_sets() if golden_set.kind.startswith("tiered")]
OPTIONS = {"--commitlog-max-size": "tieredStoreCommitLogMaxSize",
           "--consumequeue-max-size": "tieredStoreConsumeQueueMaxSize",
           "--index-slots": "tieredStoreIndexFileMaxHashSlotNum",
           "--index-max": "tieredStoreIndexFileMaxIndexNum",
           "--cluster": "brokerClusterName", "--broker": "brokerName"}


def options_of(config: dict[str, str]) -> list[str]:
    return [word for name, key in OPTIONS.items() if key in config
            for word in (name, config[key])]


@pytest.fixture(params=SETS, ids=lambda golden_store: golden_store.id)
def stripped(request, golden, golden_copy) -> tuple[Path, Path, list[str]]:
    """(a golden store without its tier, what the engine made of it, the options for it)."""
    param = request.param
    config = each_config(golden(param.id))
    store = golden_copy(f"{param.id}/store")
    engine = golden(f"{param.id}/store")
    shutil.rmtree(store / "tieredstore")
    shutil.rmtree(store / "tiered_index_file", ignore_errors=True)
    for name in (METADATA, f"{METADATA}.bak"):
        (store / name).unlink(missing_ok=True)
    return store, engine, options_of(config)


def each_config(folder: Path) -> dict[str, str]:
    config: dict[str, str] = json.loads((folder / "expect.json").read_text())["config"]
    return config


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

    def timeless(metadata: meta.Metadata, kind: str) -> dict[str, Any]:
        return {path: {base: replace(segment, create_timestamp=0)
                       for base, segment in table.items()}
                for path, table in metadata.segments[kind].items()}

    for kind in (COMMIT_LOG, CONSUME_QUEUE):
        assert timeless(ours, kind) == timeless(theirs, kind)
    ours_queues, theirs_queues = (
        [{topic: {number: replace(segment, update_timestamp=0) for number, segment in table.items()}
          for topic, table in metadata.queues.items()}] for metadata in (ours, theirs))
    assert ours_queues == theirs_queues
    assert set(ours.topics) == set(theirs.topics)
    assert ours.serial == theirs.serial
    shape = re.compile(rb"[0-9]+")
    text, engines = ((root / METADATA).read_bytes().split(b'"indexFileSegmentTable"')[0]
                     for root in (store, engine))
    assert Counter(shape.sub(b"", text).split()) == Counter(shape.sub(b"", engines).split())


def items(root: Path, metadata: Path) -> Counter[tuple[Any, ...]]:
    """All items of the uploaded index files, with the topics' names for their ids."""
    counts: Counter[tuple[Any, ...]] = Counter()
    with Tier.open(str(root), str(metadata)) as tier:
        with LocalIndex(tier.local_index_folder, 64) as local:
            assert sum(file.items for file in local.files) == 0
        for _, flat in tier.indexes():
            for file in uploaded(flat):
                assert isinstance(file, TierIndexFile)
                for _, rows in file.blocks():
                    for row in rows:
                        counts[int(row["key_hash"]), tier.metadata.topic_of(int(row["topic_id"])),
                               int(row["queue_id"]), int(row["commit_log_offset"]),
                               int(row["size"])] += 1
    return counts


def test_the_index_has_the_items_of_the_engine(stripped, rmqctl, tmp_path):
    """In another order, and in files of another time: the engine's queues took turns."""
    store, engine, options = stripped
    root = tmp_path / "tier"
    rmqctl("tiered", "dispatch", store, root, *options, "--seal-index").expect(0)
    theirs = items(engine / "tieredstore", engine / METADATA)
    assert items(root, store / METADATA) == theirs
    assert theirs
    with Tier.open(str(root), str(store / METADATA)) as tier:
        segments = next(iter(tier.metadata.segments[INDEX].values()))
        flat = next(flat for _, flat in tier.indexes())
        assert [(segment.base_offset, segment.size) for segment in sorted(
            segments.values(), key=lambda segment: segment.base_offset)] == [
                (segment.base, segment.size) for segment in flat.segments]


def test_a_tier_of_the_engine_is_continued(golden_copy, golden, rmqctl, tmp_path):
    """Nothing is left to do; the metadata is what the engine's was."""
    for golden_set in SETS:
        store = golden_copy(f"{golden_set.id}/store")
        options = options_of(each_config(golden(golden_set.id)))
        before = (store / METADATA).read_bytes()
        done = rmqctl("tiered", "dispatch", store, store / "tieredstore", *options[:8], "-o",
                      "json").expect(0).json()
        assert {queue["status"] for queue in done["queues"]} == {"up to date"}
        assert (store / METADATA).read_bytes() == before
        assert segments(store / "tieredstore") == segments(
            golden(f"{golden_set.id}/store") / "tieredstore")
