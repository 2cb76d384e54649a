"""A link inside a tier that leads out of it: what changes the tier without a plan does not write
through it, until its user names the folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqctl.ext.tiered.files.metadata_file import NOTE
from tests.adversary.tier_writer import TierWriter
from tests.support import snapshot
from tests.support.cli import run
from tests.support.holder import KINDS, held

Link = Callable[[Path, Path], None]


def tier_of(folder: Path) -> Path:
    """A tier whose last message has no unit yet: ``commit`` has something to do."""
    writer = TierWriter()
    for number in range(6):
        writer.put(b"message %d" % number)
    writer.units.pop(max(writer.units))
    return writer.write(folder / "store")


def a_segment(tier: Path, outside: Path) -> None:
    segment = next(path for path in sorted(tier.rglob("CONSUME_QUEUE/*")) if path.is_file())
    shutil.move(segment, outside / segment.name)
    os.symlink(outside / segment.name, segment)


def a_queue(tier: Path, outside: Path) -> None:
    queue = next(path for path in sorted(tier.rglob("CONSUME_QUEUE")))
    shutil.move(queue, outside / "queue")
    os.symlink(outside / "queue", queue)


def the_index(tier: Path, outside: Path) -> None:
    folder = tier.parent / "tiered_index_file"
    shutil.rmtree(folder, ignore_errors=True)
    os.symlink(outside, folder)


@pytest.mark.parametrize("link", [a_segment, a_queue])
def test_commit_does_not_write_through_a_link(link: Link, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "authorized_keys").write_text("mine")
    tier = tier_of(tmp_path)
    link(tier, outside)
    with snapshot.assert_unchanged(outside):
        refused = run("tiered", "commit", tier).expect(6)
        assert "is outside the store" in refused.err
        assert f"--write-outside {outside}" in refused.err
    rows = run("tiered", "commit", tier, "--write-outside", outside, "-o", "json").expect(0).json()
    assert rows[0]["units_added"] == 1


def test_compact_takes_no_index_files_from_elsewhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1700000000000").write_bytes(bytes(100))
    tier = tier_of(tmp_path)
    the_index(tier, outside)
    with snapshot.assert_unchanged(outside), snapshot.assert_unchanged(tier):
        run("tiered", "compact", tier).expect(6)


def noted_elsewhere(tier: Path, home: Path) -> Path:
    """A note in the tier names a metadata file in a folder of its user."""
    metadata = home / "tieredStoreMetadata.json"
    shutil.copy(tier.parent / "config/tieredStoreMetadata.json", metadata)
    shutil.rmtree(tier.parent / "config")
    about = tier.stat()
    (tier / ".rmqctl/tiered").mkdir(parents=True)
    (tier / NOTE).write_text(json.dumps({"metadata": str(metadata),
                                         "folder": [about.st_dev, about.st_ino]}))
    return metadata


@pytest.mark.parametrize("words", [("commit",), ("compact", "--all"), ("recover", "--apply")],
                         ids=" ".join)
def test_metadata_that_only_a_note_names(words: tuple[str, ...], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tier = tier_of(tmp_path)
    metadata = noted_elsewhere(tier, home)
    with snapshot.assert_unchanged(home):
        refused = run("tiered", words[0], tier, *words[1:]).expect(6)
        assert f"--write-outside {home}" in refused.err
    run("tiered", words[0], tier, *words[1:], "--metadata", metadata).expect(0, 1)
    assert (home / "lock").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_lock_of_the_store_that_contains_the_folder(kind: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "consumequeue").mkdir(parents=True)
    tier = tier_of(tmp_path)
    a_queue(tier, other)
    words = ("tiered", "commit", tier, "--write-outside", other / "queue")
    with held(other, kind):
        before = snapshot.take(other / "queue")
        run(*words).expect(4)
        assert before.differences(snapshot.take(other / "queue")) == []
    run(*words).expect(0)
