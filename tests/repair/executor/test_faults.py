"""System calls that fail while a plan is applied, and while it is taken back."""

from __future__ import annotations

import errno

import pytest

from rmqctl.errors import StoreIOError
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.executor.journal import pending
from tests.engine_write.files_support import failing, short_writes
from tests.repair.accidents import Trial, bytes_of, differences, faults_of, state, undo_all
from tests.repair.executor import samples


def no_links(root):
    with failing(1, errno.EPERM, ("link",), for_ever=True):
        return samples.repair(root)


def applied(folder):
    samples.make(folder)
    samples.repair(folder)


@pytest.mark.long
def test_apply(folder):
    assert faults_of(samples.repair, samples.make, folder, step=14) > 18


@pytest.mark.long
def test_apply_without_hard_links(folder):
    assert faults_of(no_links, samples.make, folder, step=22) > 11


@pytest.mark.long
def test_undo(folder):
    assert faults_of(undo_all, applied, folder, step=14, undo=False, exact=True) > 11


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", [samples.repair, no_links])
def test_apply_at_every_call(folder, command):
    assert faults_of(command, samples.make, folder, every_error=True) > 1000


@pytest.mark.exhaustive
def test_undo_at_every_call(folder):
    assert faults_of(undo_all, applied, folder, every_error=True, undo=False, exact=True) > 800


def test_the_trial_sees_a_command_that_destroys(folder):
    def careless(root):
        (root / "checkpoint").write_bytes(b"half")
        with Repair(str(root), "recover") as held:
            (root / "checkpoint").write_bytes(b"new")
            del held

    with pytest.raises(AssertionError):
        faults_of(careless, samples.make, folder)


def test_an_error_after_the_commit_says_how_to_go_on(folder):
    root = samples.make(folder / "store")
    old = state(root)
    with failing(1, errno.ENOSPC, ("link",)), pytest.raises(StoreIOError) as caught:
        samples.repair(root)
    id = pending(str(root))  # noqa: A001
    assert id
    assert str(caught.value).endswith(
        f"no space left on the device (ENOSPC); repair {id} is not finished, but nothing is lost: "
        f"run the command again to complete it, or `rmqctl undo {root} {id}` to revert it")
    with Repair(str(root), "truncate") as held:
        assert held.finished is not None
        assert (held.finished.id, held.finished.steps) == (id, 13)
    assert pending(str(root)) is None
    undo_all(root)
    assert not differences(state(root), old)


def test_an_error_before_the_commit_leaves_nothing(folder):
    root = samples.make(folder / "store")
    old = state(root)
    with failing(3, errno.EIO, ("ftruncate",)), pytest.raises(StoreIOError) as caught:
        samples.repair(root)
    assert "not finished" not in str(caught.value)
    assert state(root) == old
    assert pending(str(root)) is None
    assert not list(root.glob(".rmqctl/repairs/*"))


def test_a_system_that_writes_little_at_once(folder):
    wanted = Trial(samples.repair, samples.make, folder).new_bytes
    root = samples.make(folder / "again")
    with short_writes(11) as seen:
        samples.repair(root)
    assert len(seen) > 100
    assert bytes_of(root) == wanted
