"""A broker's own configuration file says of its tier what options say."""

from __future__ import annotations

import shutil

import pytest

METADATA = "config/tieredStoreMetadata.json"


@pytest.fixture
def apart(golden_copy, tmp_path, rmqctl):
    """A store, its tier in another place with small index files, and the broker's configuration."""
    store, tier = golden_copy("5.3.3/basic/store"), tmp_path / "far" / "tier"
    rmqctl("tiered", "dispatch", store, tier, "--broker", "b", "--index-slots", "50",
           "--index-max", "40", "--metadata", store / METADATA).expect(0)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={store}\ntieredStoreFilePath={tier}\nbrokerName=b\n"
                    "tieredStoreIndexFileMaxHashSlotNum=50\ntieredStoreIndexFileMaxIndexNum=40\n")
    return store, tier, conf


def without_note(tier):
    for note in tier.glob(".rmqctl*"):
        shutil.rmtree(note) if note.is_dir() else note.unlink()


def test_it_leads_to_the_metadata(apart, rmqctl):
    store, tier, conf = apart
    without_note(tier)
    for command in (("verify",), ("ls",), ("commit", "--dry-run"), ("recover",), ("stats",),
                    ("expire", "--older-than", "9999999h"),
                    ("query", "key", "--topic", "T", "--key", "k"), ("read", "--count", "1")):
        words = ("tiered", *command, tier)
        with_conf = rmqctl(*words, "--broker-conf", conf, "-o", "json")
        named = rmqctl(*words, "--metadata", store / METADATA, "--broker", "b", "--index-slots",
                       "50", "--index-max", "40", "-o", "json") if command[0] in (
            "verify", "ls", "recover", "query") else rmqctl(
            *words, "--metadata", store / METADATA, "-o", "json")
        assert with_conf.code == named.code, (command, with_conf.err)
        if command[0] not in ("recover", "expire"):  # how it was called, the time of the run
            assert with_conf.out == named.out, command


def test_an_option_wins(apart, rmqctl):
    _, tier, conf = apart
    rmqctl("tiered", "verify", tier, "--broker-conf", conf, "--broker", "nobody").expect(2)
    conf.write_text("brokerName=nobody\n")
    rmqctl("tiered", "verify", tier, "--broker-conf", conf).expect(2)
    rmqctl("tiered", "verify", tier, "--broker-conf", conf, "--broker", "b").expect(0)


def test_the_metadata_of_the_original_is_not_that_of_a_copy(apart, tmp_path, rmqctl):
    store, tier, conf = apart
    copy = tmp_path / "copy" / "tier"
    shutil.copytree(tier, copy)
    before = (store / METADATA).read_bytes()
    result = rmqctl("tiered", "commit", copy, "--broker-conf", conf)
    assert f"belongs to the tier in {tier}, not to {copy}" in result.err
    assert (store / METADATA).read_bytes() == before


def test_sizes_of_files_alone(apart, rmqctl, tmp_path):
    store, tier, conf = apart
    index = next((store / "tiered_index_file").iterdir())
    plain = rmqctl("tiered", "dump", index, "--index-slots", "50", "-o", "json").out
    assert rmqctl("tiered", "dump", index, "--broker-conf", conf, "-o", "json").out == plain
    rmqctl("tiered", "compact", "--file", index, "--out", tmp_path / "compacted",
           "--broker-conf", conf).expect(0)
    rmqctl("tiered", "compact", tier, "--dry-run", "--broker-conf", conf).expect(0)


def test_an_upload_is_that_of_the_broker(apart, golden_copy, tmp_path, rmqctl):
    _, tier, conf = apart
    store, other = golden_copy("5.3.3/basic/store"), tmp_path / "other"
    conf.write_text("brokerName=b\ntieredStoreIndexFileMaxHashSlotNum=50\n"
                    "tieredStoreIndexFileMaxIndexNum=40\n")
    rmqctl("tiered", "dispatch", store, other, "--broker-conf", conf).expect(0)
    assert (sorted(path.relative_to(other) for path in other.rglob("INDEX/*"))
            == sorted(path.relative_to(tier) for path in tier.rglob("INDEX/*")))
