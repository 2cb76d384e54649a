"""Fixtures of the whole suite: golden stores, tiny stores, running rmqctl, seeds.

What a run takes and its seed: `tests.plugin_run`. ``RMQCTL_GOLDEN=DIR`` takes the golden sets from
elsewhere.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.engine_write.crashing import Crasher
from tests.support import cli, environment, moment, roomy, snapshot, unforced
from tests.support import golden as golden_sets
from tests.support import retried as retried_stores
from tests.support import tiny as tiny_stores
from tests.support.share import RUN, examples

pytest_plugins = ["tests.plugin_run", "tests.plugin_transcripts"]

GoldenFolder = Callable[[str], Path]
Runner = Callable[..., cli.Result]


def pytest_configure() -> None:
    unforced.install()
    roomy.install()
    moment.install()
    # Properties are about answers, not about time: a busy machine is no failure.
    settings.register_profile("suite", deadline=None, max_examples=examples(100),
                              suppress_health_check=[HealthCheck.too_slow],
                              # A database of failed examples would give one commit two verdicts.
                              database=None)
    settings.load_profile("suite")
    environment.reduce_to_login()
    os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "rmqctl-tests-no-config")
    # Processes that tests start share compiled modules, also where the checkout is read-only.
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(
        tempfile.gettempdir(), f"rmqctl-tests-compiled-{os.getuid()}")
    os.environ["RMQCTL_LANG"] = "en"  # whatever the locale of the machine
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that runs this in the background has it so, and all that tests start inherits it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def golden_base(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder the golden sets are unpacked to, one for all workers of a run.

    A run that a test starts inherits the variables of a worker, but is none.
    """
    mine = tmp_path_factory.getbasetemp()
    base = mine.parent if hasattr(request.config, "workerinput") else mine
    return base / "golden"


@pytest.fixture(scope="session")
def golden(golden_base: Path) -> Iterator[GoldenFolder]:
    """``golden("4.9.3/basic")``: a set's folder; ``golden("4.9.3/basic/store")``: a store in it.

    To read only. At the end of the run every set this worker used is compared with the manifest
    taken at unpacking: bytes, times and modes.
    """
    used: set[golden_sets.GoldenSet] = set()

    def folder(name: str) -> Path:
        root, rest = golden_sets.split(name)
        used.add(root)
        return golden_sets.unpack(root, golden_base) / rest

    yield folder
    changed = [f"{golden_set.id}: {line}" for golden_set in sorted(used)
               for line in golden_sets.verify(golden_set, golden_base)]
    assert not changed, "\n".join(["a test changed a golden store:", *changed])


@pytest.fixture
def golden_copy(golden: GoldenFolder, tmp_path: Path) -> GoldenFolder:
    """As `golden`, but a fresh copy that may be changed: modes, times and holes are kept."""

    def copy(name: str) -> Path:
        return snapshot.copy_tree(golden(name), tmp_path / f"copy-{len(list(tmp_path.iterdir()))}")

    return copy


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiny_stores.Tiny]:
    """The tiny store with everything in it (`tiny.build`), to read only; guarded like `golden`."""
    built = tiny_stores.build(tmp_path_factory.mktemp("tiny") / "store")
    with snapshot.assert_unchanged(built.root):
        yield built


@pytest.fixture(scope="session")
def retried_base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiny_stores.Tiny]:
    """A store of three groups, one of which sent messages back and gave some up; to read only."""
    built = retried_stores.build(tmp_path_factory.mktemp("retried") / "store")
    with snapshot.assert_unchanged(built.root):
        yield built


@pytest.fixture
def retried(retried_base: tiny_stores.Tiny, tmp_path: Path) -> tiny_stores.Tiny:
    """A fresh copy of it that may be changed."""
    return retried_base.moved(snapshot.copy_tree(retried_base.root, tmp_path / "retried"))


@pytest.fixture
def tiny(tiny_base: tiny_stores.Tiny, tmp_path: Path) -> tiny_stores.Tiny:
    """A fresh copy of the tiny store that may be changed."""
    return tiny_base.moved(snapshot.copy_tree(tiny_base.root, tmp_path / "tiny"))


@pytest.fixture
def rmqctl() -> Runner:
    """``rmqctl("verify", store).expect(0).json()``: runs in this process, refuses tracebacks."""
    return cli.run


@pytest.fixture
def rmqctl_process() -> Runner:
    """The same as a process of its own, with ``timeout`` and ``memory`` limits."""
    return cli.run_process


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    """Runs that are killed at a call, in processes of their own."""
    crasher = Crasher()
    yield crasher
    crasher.close()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own: the same each time in `make test`, of the run's seed otherwise.

    Printed with a failure; ``RMQCTL_SEED`` of the run gives it again.
    """
    number = RUN.number(request.node.name)
    print(f"seed {number}")
    return number
