"""What is kept of the groups' progress, for the warnings of a repair."""

from __future__ import annotations

from pathlib import Path

from rmqctl.store import Store
from rmqctl.store.config.progress import Commit, ConsumerProgress
from tests.adversary.writer import Writer


def test_a_group_that_has_consumed_nothing_has_a_position_too(tmp_path: Path) -> None:
    writer = Writer()
    writer.put("orders", b"x")
    writer.offsets["orders", "readers"] = {0: 0, 1: 1, 2: -1}
    with Store.open(writer.write(tmp_path)) as store:
        assert ConsumerProgress.of(store).commits == (
            Commit("readers", "orders", 0, 0), Commit("readers", "orders", 1, 1))
