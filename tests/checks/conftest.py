"""Stores which several tests of the checks change; module-wide ones are put back by `Changed`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqctl.store import Store
from tests.checks import timers
from tests.checks.small_checks import Changed, log_of
from tests.conftest import GoldenFolder
from tests.support import snapshot
from tests.support import tiny as tiny_stores


@pytest.fixture
def root(tiny: tiny_stores.Tiny) -> Path:
    """A fresh tiny store."""
    return tiny.root


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """A tiny store of six log files: enough to lose one in the middle."""
    store = tiny_stores.build(tmp_path / "long", tiny_stores.DEFAULT * 4, index_max=128)
    assert len(store.files("commitlog")) == 6
    return store.root


@pytest.fixture(scope="module")
def timer(golden: GoldenFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy of the golden timer store for all tests of a module."""
    return snapshot.copy_tree(golden(timers.SET), tmp_path_factory.mktemp("timer") / "store")


@pytest.fixture
def changed(timer: Path) -> Changed:
    """Changes the module's timer store for one check."""
    with Store.open(timer) as store:
        return Changed("timer", timer, log_of(store))
