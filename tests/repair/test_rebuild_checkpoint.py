"""The checkpoint a store should have; right ones are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.formats.local import checkpoint as layout
from rmqctl.formats.local.checkpoint import CheckpointRecord
from rmqctl.repair.checkpoint import CheckpointFacts, checkpoint_steps, facts_after, facts_of
from rmqctl.repair.plan import Create, MoveAside, Replace
from rmqctl.repair.scratch import Scratch
from rmqctl.store.store import Store
from tests.repair.rebuilding import IDS, SETS, run, settings_of
from tests.support import golden as golden_sets

FACTS = CheckpointFacts(newest=2000, logics=1900, index=1500, last=700, end=900)


def after(root: Path, facts: CheckpointFacts = FACTS, generation: int = 4) -> tuple[
        CheckpointRecord | None, str]:
    """(the new checkpoint, the reason); None and "" where nothing is planned."""
    steps, actions = checkpoint_steps(str(root), facts, generation)
    if not steps:
        assert not actions
        return None, ""
    (step,), (action,) = steps, actions
    assert isinstance(step, Replace if (root / "checkpoint").exists() else Create)
    assert isinstance(step.content, bytes)
    assert len(step.content) == layout.PAGE_SIZE
    assert (action.action, action.target) == ("rebuild", "checkpoint")
    (root / "checkpoint").write_bytes(step.content)
    assert checkpoint_steps(str(root), facts, generation) == ([], [])
    return layout.parse(step.content), action.reason


@pytest.mark.parametrize("golden_set", SETS, ids=IDS)
def test_the_engines_own_are_right(golden_set, golden, tmp_path):
    folder = golden(golden_set.id)
    dirs = golden_sets.MULTI_PATH if golden_set.kind == "multipath" else ()
    with Store.open(folder / "store", dirs) as store:
        facts = facts_of(store)
        generation = store.generation
    assert checkpoint_steps(str(folder / "store"), facts, generation) == ([], [])
    with Scratch(str(tmp_path)) as scratch:
        rebuilt = run(folder / "store", settings_of(folder, golden_set.version), scratch,
                      golden_set.kind)
        assert facts_after(rebuilt) == facts
        result = after(tmp_path, facts, generation)[0]
    assert result is not None
    assert result.physic_msg_timestamp == facts.newest
    engines = layout.parse((folder / "store" / "checkpoint").read_bytes())
    assert result.logics_msg_timestamp == engines.logics_msg_timestamp
    assert result.index_msg_timestamp == engines.index_msg_timestamp


@pytest.mark.parametrize(("fields", "wanted", "reason"), [
    (None, (2000, 1900, 1500, 0, 0), "missing"),
    (b"", (2000, 1900, 1500, 0, 0), "too short"),
    (bytes(20), (2000, 1900, 1500, 0, 0), "too short"),
    ((0, 0, 0, 0, 0), (2000, 1900, 1500, 0, 0), "zero"),
    ((0, 0, 1200, 0, 0), (2000, 1900, 1500, 0, 0), "zero"),
    ((2001, 1, 1, 0, 0), (2000, 1, 1, 0, 0), "ahead"),
    ((1, 1 << 50, 1, 0, 0), (1, 1900, 1, 0, 0), "ahead"),
    ((1, 1, 2001, 0, 0), (1, 1, 1500, 0, 0), "ahead"),
    ((-1, 1, 1, 0, 0), (2000, 1, 1, 0, 0), "invalid store time"),
    ((1, 1, 1, 0, 901), (1, 1, 1, 0, 700), "ahead"),
    ((1, 1, 1, -7, 0), (1, 1, 1, 0, 0), "invalid physical offset"),
    ((1, 0, 0, 5000, 900), None, ""),
    ((0, 1, 0, -1, -1), None, ""),
    ((2000, 2000, 2000, 0, 0), None, ""),
])
def test_wrong_ones_are_made_anew(fields, wanted, reason, tmp_path):
    if fields is not None:
        (tmp_path / "checkpoint").write_bytes(
            fields if isinstance(fields, bytes) else layout.build(CheckpointRecord(*fields)))
    parsed, why = after(tmp_path)
    assert (parsed and tuple(parsed), reason in why) == (wanted, True)
    assert bool(why) == bool(reason)


def test_a_newer_broker_gets_the_confirmed_offset(tmp_path):
    parsed, _ = after(tmp_path, generation=5)
    assert parsed is not None
    assert parsed.confirm_phy_offset == 700


def test_a_page_of_another_length_keeps_its_values(tmp_path):
    right = CheckpointRecord(5, 6, 4, 0, 0)
    for data in (layout.build(right)[:40], layout.build(right)[:-1], layout.build(right) + b"x",
                 layout.build(right)[:-1] + b"x"):
        (tmp_path / "checkpoint").write_bytes(data)
        assert after(tmp_path) == (
            right, "checkpoint is not a 4096-byte page with zeros after its fields")


def test_an_empty_log_needs_none_and_a_folder_goes_aside(tmp_path):
    empty = CheckpointFacts(0, 0, 0, -1, 0)
    assert after(tmp_path, empty) == (None, "")
    (tmp_path / "checkpoint").mkdir()
    for facts in (FACTS, empty):
        steps, (action,) = checkpoint_steps(str(tmp_path), facts, 4)
        assert [type(step) for step in steps] == [MoveAside, Create]
        assert (action.before, action.reason) == (None, "checkpoint is not a regular file")


def test_of_an_empty_log_only_what_cannot_be_is_mended(tmp_path):
    empty = CheckpointFacts(0, 0, 0, -1, 0)
    (tmp_path / "checkpoint").write_bytes(layout.build(CheckpointRecord(5, 6, 4, 0, 70)))
    assert after(tmp_path, empty) == (None, "")
    (tmp_path / "checkpoint").write_bytes(layout.build(CheckpointRecord(5, -6, 4, 0, 70)))
    assert after(tmp_path, empty)[0] == CheckpointRecord(5, 0, 4, 0, 70)
