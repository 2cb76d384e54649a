"""What looks odd but is legal is no finding: a false alarm is a defect of the first order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import GoldenFolder
from tests.support import damage, subject
from tests.support import golden as golden_sets
from tests.support import tiny as tiny_stores


@pytest.mark.parametrize("name", tiny_stores.VARIANTS)
def test_no_finding_in_a_tiny_store(name: str, tmp_path: Path) -> None:
    store = tiny_stores.variant(tmp_path / "store", name)
    report = subject.verify(store.root, options=store.cli_options)
    problems = report.problems if store.options.abort else report.findings
    assert problems == (), report.text()
    assert report.ok
    assert subject.every_byte_is_accounted_for(report)
    expired = store.options.expired_files * store.options.commitlog_file_size
    kept = [message for message in store.messages if message.start >= expired]
    assert report.coverage["messages"] == len(kept)
    assert report.coverage["bytes_in_messages"] == sum(len(message.raw) for message in kept)


@pytest.mark.parametrize("store", [pytest.param(golden_store, id=golden_store.id)
                                   for golden_store in golden_sets.clean_stores()])
def test_no_finding_in_a_store_the_engine_closed(store: golden_sets.GoldenStore,
                                                 golden: GoldenFolder) -> None:
    report = subject.verify(golden(store.id), options=store.options)
    assert report.findings == (), report.text()
    assert report.ok
    assert subject.every_byte_is_accounted_for(report)


@pytest.mark.parametrize("state", ["before", "after"])
@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_nothing_is_wrong_with_a_copy_of_a_running_store(version: str, state: str,
                                                         golden: GoldenFolder) -> None:
    """``crash-live`` was only copied; what the engine made of it has one entry indexed twice."""
    report = subject.verify(golden(f"{version}/crash-live/{state}"))
    assert report.problems == (), report.text()
    assert report.ok


def test_a_checkpoint_far_behind_is_legal(tiny: tiny_stores.Tiny) -> None:
    damage.checkpoint_behind(tiny.root, tiny_stores.EPOCH)
    assert subject.verify(tiny.root).problems == ()


def test_a_checkpoint_of_zeros_is_no_error(tiny: tiny_stores.Tiny) -> None:
    """A broker's first minute: worth a word, nothing else is wrong for it."""
    damage.checkpoint_zero(tiny.root)
    report = subject.verify(tiny.root)
    assert {(problem.structure, problem.severity) for problem in report.problems} <= {
        ("checkpoint", "warning")}, report.text()


def test_links_to_files_are_followed(tiny: tiny_stores.Tiny, tmp_path: Path) -> None:
    """A commitlog file moved to another disk and linked to is the same store."""
    damage.symlink_to_copy(tiny.root, tiny.files("commitlog")[0], tmp_path / "elsewhere")
    report = subject.verify(tiny.root)
    assert report.problems == (), report.text()
    assert report.coverage["messages"] == len(tiny.messages)
