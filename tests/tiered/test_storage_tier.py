"""A tier of the engine behind a URL reads as it does from its folder."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from rmqctl.errors import NotAStoreError, RefusedError, UsageError
from rmqctl.ext.tiered.files import metadata_file, remote_writer
from rmqctl.ext.tiered.files.metadata_file import find_metadata
from rmqctl.ext.tiered.files.opening import open_reader, open_writer
from rmqctl.ext.tiered.tier import Tier
from rmqctl.formats.tiered.names import METADATA_NAME

_numbers = itertools.count()
STORE = "5.3.3/tiered/store"


@pytest.fixture(params=["memory", "file"])
def behind_url(request, golden, tmp_path):
    """The golden store with its tier, copied to behind a URL."""
    store = golden(STORE)
    if request.param == "memory":
        url = f"memory://golden-{os.getpid()}-{next(_numbers)}"
    else:
        url = f"file://{tmp_path / 'there'}"
        (tmp_path / "there").mkdir()
    with closing(open_writer(url)) as writer:
        for folder in ("tieredstore", "config"):
            for path in sorted((store / folder).rglob("*")):
                if path.is_file():
                    place = path.relative_to(store).as_posix()
                    writer.create(place)
                    if path.stat().st_size:
                        writer.append(place, [path.read_bytes()], 0)
                        writer.commit(place)
    return url


def _content(tier: Tier) -> dict:
    """All messages the consume queues lead to, all bounds, all walked frames."""
    content: dict = {"problems": tier.problems, "metadata": tier.metadata}
    for queue in tier.queues():
        bounds = (queue.cq_start, queue.min_offset, queue.commit_offset)
        messages = [queue.record(at) for at in range(queue.min_offset, queue.commit_offset)]
        frames = []
        for segment in queue.commit_log.segments:
            if segment.usable:
                with queue.commit_log.walk(segment) as walk:
                    frames += [(node.offset.tolist(), node.spans) for node in walk]
        content[queue.name] = bounds, messages, frames
    for broker, flat in tier.indexes():
        content[broker] = [(segment.name, segment.size, flat.read(segment.base, segment.usable))
                           for segment in flat.segments]
    return content


def test_it_reads_equal(behind_url, golden):
    store = golden(STORE)
    with Tier.open(str(store / "tieredstore")) as tier:
        wanted = _content(tier)
        assert sum(len(content[1]) for content in wanted.values()
                   if isinstance(content, tuple)) >= 100
    metadata = str(store / "config" / METADATA_NAME)
    for root in (f"{behind_url}/tieredstore", f"{behind_url}/tieredstore/", behind_url):
        with Tier.open(root, metadata) as tier:
            assert tier.broker_root == str(store)
            assert _content(tier) == wanted
        with Tier.open(root) as tier:
            assert tier.metadata_path == f"{behind_url}/config/{METADATA_NAME}"
            assert tier.broker_root is None
            assert tier.local_index_folder is None
            assert tier.metadata == wanted["metadata"]


def test_metadata_behind_a_url_is_read_only(behind_url):
    with Tier.open(f"{behind_url}/tieredstore") as tier:
        with pytest.raises(RefusedError, match="--metadata"):
            metadata_file.save(tier.metadata_path, tier.metadata, "")
        with pytest.raises(UsageError, match="no such file"):
            Tier.open(behind_url, f"{behind_url}/nothing.json")


def test_bad_metadata_behind_a_url_is_said(behind_url):
    with closing(open_writer(behind_url)) as writer:
        writer.replace(f"config/{METADATA_NAME}", b"{")
    with Tier.open(behind_url) as tier:
        assert tier.metadata_error.startswith(f"{behind_url}/config/{METADATA_NAME}")


def test_metadata_is_looked_for_in_three_places(behind_url):
    tier, above = f"{behind_url}/tieredstore", f"{behind_url}/config/{METADATA_NAME}"
    with closing(open_writer(behind_url)) as writer:
        assert find_metadata(tier) == above
        writer.replace(f"tieredstore/config/{METADATA_NAME}.bak", b"{}")
        assert find_metadata(tier) == f"{tier}/config/{METADATA_NAME}.bak"
        for place in (f"tieredstore/config/{METADATA_NAME}.bak", f"config/{METADATA_NAME}"):
            writer.put_aside(place)
        assert find_metadata(tier) in (None, f"{above}.bak")
        writer.replace(f"tieredstore/{METADATA_NAME}", b"{}")
        assert find_metadata(tier) in (f"{tier}/{METADATA_NAME}", f"{above}.bak")


@pytest.mark.parametrize("appending", [True, False])
def test_it_is_fed_equal(appending, golden, golden_copy, tmp_path, rmqctl, monkeypatch):
    """A dispatch to a URL gives the bytes that one to a folder gives."""
    options = ("--broker", "b-1", "--cluster", "C", "--index-slots", "50", "--index-max", "300",
               "--commitlog-max-size", "20KiB", "--seal-index", "--now", "2030-01-01T00:00:00Z")
    rmqctl("tiered", "dispatch", golden_copy("5.3.3/basic/store"), tmp_path / "tier", *options
           ).expect(0)
    if not appending:
        monkeypatch.setattr(remote_writer, "APPENDING", frozenset())
    url = f"memory://fed-{os.getpid()}-{next(_numbers)}/tier"
    store = golden_copy("5.3.3/basic/store")
    rmqctl("tiered", "dispatch", store, url, *options, "--verify-after").expect(0)
    wanted = {path.relative_to(tmp_path / "tier").as_posix(): path.read_bytes()
              for path in (tmp_path / "tier").rglob("*_C/**/*") if path.is_file()}
    assert len(wanted) > 20
    with closing(open_reader(url)) as reader:
        assert {path: reader.read(path, 0, (reader.size(path) or 0) + 1) for path in wanted
                } == wanted
    rmqctl("tiered", "verify", url, "--metadata", store / "config" / METADATA_NAME).expect(0)


def test_no_tier_behind_a_url(tmp_path):
    for url in (f"memory://nothing-{next(_numbers)}", f"file://{tmp_path}/nothing",
                f"file://{tmp_path}"):
        with pytest.raises(NotAStoreError, match="not a tier"):
            Tier.open(url)
    shutil.copy(Path(__file__), tmp_path / "file")
    with pytest.raises(NotAStoreError, match="not a tier"):
        Tier.open(f"file://{tmp_path}")
