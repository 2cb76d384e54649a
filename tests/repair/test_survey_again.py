"""A survey after a mending reads only what has changed, and says what a whole one says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqctl.damage.survey import stretches, surveyor
from rmqctl.damage.survey.survey import Survey
from rmqctl.damage.survey.surveyor import Surveyor
from rmqctl.errors import RefusedError
from rmqctl.repair.salvage import salvage as salvage_module
from rmqctl.repair.salvage.salvage import salvage
from rmqctl.scan import overlay
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import FileSource
from rmqctl.scan.walk import Walk
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.repair.campaign import damages
from tests.repair.campaign.trial import base_of, case, damaged, options_of, plan_of
from tests.support import damage, tiny
from tests.support.share import RUN

SHARE = 5


def comparable(survey: Survey) -> dict[str, Any]:
    """All that a survey says, comparable. ``borders`` also depend on how the log was read."""
    slots_by_name = {name: getattr(survey, name) for name in Survey.__slots__ if name != "borders"}
    runs, headers = slots_by_name.pop("runs"), slots_by_name.pop("headers")
    return {**slots_by_name, "runs": {key: runs.of(key) for key in sorted(runs.keys)},
            "headers": (headers.faults, headers.unlisted, headers.early, headers.first_early)}


class Both(Surveyor):
    """Asks a surveyor that knows nothing yet as well, and compares."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._words, self._named = words, named

    def run(self, parts: Sequence[LogPart], rejected: Collection[int] = (),
            confirmed: Mapping[int, int] | None = None) -> Survey:
        survey = super().run(parts, rejected, confirmed)
        whole = Surveyor(*self._words, **self._named).run(parts, rejected, confirmed)
        assert comparable(survey) == comparable(whole)
        return survey


@pytest.fixture(params=(64, 1 << 12))
def short(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of one message, or of some, in small files."""
    monkeypatch.setattr(stretches, "MIN_LENGTH", request.param)
    monkeypatch.setattr(stretches, "STRETCHES", 1 << 30)
    monkeypatch.setattr(surveyor, "Walk", partial(Walk, chunk=request.param))


@pytest.mark.usefixtures("short")
def test_surveys_of_damaged_stores(golden: GoldenFolder, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage_module, "Surveyor", Both)
    kinds = [*damages.KINDS, damages.MIXED]
    for number in range(SHARE):
        scenario = case(RUN.seed * SHARE + number, kinds[number % len(kinds)])
        base = base_of(scenario, tmp_path / "made", golden)
        root, source, _ = damaged(scenario, base, tmp_path / f"{number}")
        with suppress(RefusedError):
            plan_of(root, options_of(base, scenario, source))


@pytest.mark.usefixtures("short")
def test_only_what_changed_is_read_again(tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    built = tiny.build(tmp_path / "store", [
        tiny.Spec("orders", number % 3, b"tea and milk " * 20) for number in range(200)],
        commitlog_file_size=64 << 10, consumequeue_file_size=2000)
    place = built.messages[100].record.physical_offset
    damage.flip_bit(built.root, f"commitlog/{0:020d}", place + 150, 0)
    read: list[int] = []

    class Reading(FileSource):
        def read_into(self, buffer: memoryview, position: int) -> int:
            read.append(len(buffer))
            return super().read_into(buffer, position)

    class Counting(Surveyor):
        def run(self, *words: Any) -> Survey:
            before = sum(read)
            survey = super().run(*words)
            surveys.append(sum(read) - before)
            return survey

    surveys: list[int] = []
    monkeypatch.setattr(overlay, "FileSource", Reading)
    monkeypatch.setattr(salvage_module, "Surveyor", Counting)
    with Store.open(built.root) as store:
        assert [action.action for action in salvage(store).actions] == ["correct"]
    assert len(surveys) == 2
    assert 0 < 8 * surveys[1] < surveys[0]
