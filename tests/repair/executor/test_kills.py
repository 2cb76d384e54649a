"""SIGKILL and power failures while a plan is applied, and while it is taken back."""

from __future__ import annotations

import pytest

from tests.repair.accidents import kills_of, undo_all
from tests.repair.executor import samples
from tests.repair.executor.test_faults import applied, no_links


@pytest.mark.long
def test_apply(folder):
    assert kills_of(samples.repair, samples.make, folder, most=18) == 18


@pytest.mark.long
def test_apply_without_hard_links(folder):
    assert kills_of(no_links, samples.make, folder, most=8) == 8


@pytest.mark.long
def test_undo(folder):
    assert kills_of(undo_all, applied, folder, most=12, undo=False, exact=True) == 12


@pytest.mark.long
def test_apply_and_the_power_fails(folder):
    assert kills_of(samples.repair, samples.make, folder, most=12, power=True) == 12


@pytest.mark.long
def test_undo_and_the_power_fails(folder):
    assert kills_of(undo_all, applied, folder, most=12, undo=False, power=True) == 12


@pytest.mark.exhaustive
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("command", [samples.repair, no_links])
def test_apply_at_every_call(folder, command, power):
    assert kills_of(command, samples.make, folder, power=power) > 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("power", [False, True])
def test_undo_at_every_call(folder, power):
    assert kills_of(undo_all, applied, folder, undo=False, power=power, exact=True) > 80
