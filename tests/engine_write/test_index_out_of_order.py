"""Index files whose names are not in the order of their age: a broker's clock was set back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Runner
from tests.engine_write.durable import append, assert_whole, new_store, old_lines


@pytest.mark.parametrize("version", ["4.9.3", "5.3.3"])
def test_an_older_file_stays_after_an_unclean_end(rmqctl: Runner, tmp_path: Path,
                                                  version: str) -> None:
    """The full one, oldest and last by name, is not made anew from what a recovery walks over."""
    store = new_store(rmqctl, tmp_path / "store", version=version)
    acks = append(rmqctl, store, old_lines(0, 300), "--as-recorded")
    oldest, newer = sorted((store / "index").iterdir())
    oldest = oldest.rename(oldest.with_name(f"{int(newer.name) + 10**10}"))
    before = oldest.read_bytes()
    (store / "abort").touch()
    acks += append(rmqctl, store, old_lines(300, 5), "--as-recorded", first=300)
    assert oldest.read_bytes() == before
    assert not newer.exists()
    assert_whole(rmqctl, store, acks)
