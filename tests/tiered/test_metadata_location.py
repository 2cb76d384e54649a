"""A tier that lies apart from its broker: where its metadata is, is noted in it."""

from __future__ import annotations

import os
import shutil

import pytest

from rmqctl.ext.tiered.files.metadata_file import NOTE, expected_path, find_metadata, noted_path
from rmqctl.ext.tiered.tier import Tier

NAME = "tieredStoreMetadata.json"


@pytest.fixture
def apart(golden_copy, tmp_path, rmqctl):
    """A store, and its tier in another place."""
    store, tier = golden_copy("5.3.3/basic/store"), tmp_path / "far" / "tier"
    rmqctl("tiered", "dispatch", store, tier, "--broker", "b").expect(0)
    return store, tier


def test_the_metadata_is_found(apart, rmqctl):
    store, tier = apart
    assert find_metadata(str(tier)) == str(store / "config" / NAME)
    rmqctl("tiered", "verify", tier, "--local", store).expect(0)
    answer = rmqctl("tiered", "verify", tier, "-o", "json").expect(0).json()
    assert answer["coverage"]["items_proven"] > 0  # they are in the broker's local root


def test_a_renamed_tier_is_still_the_same(apart):
    store, tier = apart
    renamed = tier.rename(tier.parent / "other")
    assert noted_path(str(renamed)) == str(store / "config" / NAME)


def test_a_copy_does_not_lead_to_the_metadata_of_the_original(apart, tmp_path, rmqctl):
    _, tier = apart
    copy = tmp_path / "copy" / "tier"
    shutil.copytree(tier, copy)
    assert noted_path(str(copy)) is None
    answer = rmqctl("tiered", "verify", copy, "-o", "json").expect(0).json()
    missing = [finding for finding in answer["findings"]
               if finding["category"] == "tiered-metadata-missing"]
    assert [file["severity"] for file in missing] == ["info"]
    rmqctl("tiered", "recover", copy).expect(2)
    rmqctl("tiered", "expire", copy, "--older-than", "1h").expect(2)


def test_lost_metadata_is_missed_where_it_was(apart, rmqctl):
    store, tier = apart
    for name in (NAME, f"{NAME}.bak"):
        (store / "config" / name).unlink(missing_ok=True)
    with Tier.open(str(tier)) as opened:
        assert expected_path(opened.name) == str(store / "config" / NAME)
    rmqctl("tiered", "verify", tier).expect(1)
    # A note in the tier says where it was; to write there takes the user's word.
    refused = rmqctl("tiered", "recover", tier, "--apply", "--yes").expect(6)
    assert refused.err.rstrip().endswith(f"--write-outside {store}")
    rmqctl("tiered", "recover", tier, "--apply", "--yes", "--write-outside", store).expect(0)
    rmqctl("tiered", "verify", tier, "--local", store).expect(0)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"metadata": 1}', b'{"metadata": "a/b"}',
                                  b'{"metadata": "/a\\u0000b", "folder": [1, 2]}', b"\xff" * 9])
def test_a_note_that_is_none(tmp_path, text):
    place = tmp_path / NOTE
    place.parent.mkdir(parents=True)
    place.write_bytes(text)
    assert noted_path(os.fspath(tmp_path)) is None
