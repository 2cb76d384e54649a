"""A startup with consumequeue_ext: file sizes, as a broker checks them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import GoldenFolder, Runner


@pytest.mark.parametrize("size", [1024, 4096])
@pytest.mark.parametrize("enabled", ["true", "false", None])
def test_extension_files_of_another_size_end_the_startup(
        golden_copy: GoldenFolder, rmqctl: Runner, tmp_path: Path, size: int,
        enabled: str | None) -> None:
    store = golden_copy("5.3.3/cqext/store")
    file = next(path for path in sorted((store / "consumequeue_ext").rglob("0*"))
                if path.is_file())
    os.truncate(file, size)
    options: tuple[str, ...] = ()
    if enabled is not None:
        conf = tmp_path / "broker.conf"
        conf.write_text(f"enableConsumeQueueExt={enabled}\nmappedFileSizeConsumeQueueExt=2048\n"
                        "mappedFileSizeCommitLog=32768\nmappedFileSizeConsumeQueue=340\n"
                        "maxHashSlotNum=100\nmaxIndexNum=400\n")
        options = ("--broker-conf", str(conf))
    answer = rmqctl("preflight", store, *options, "-o", "json").json()
    assert answer["starts"] is (enabled == "false")
    assert any("consumequeue_ext" in why for why in answer["refusals"]) is (enabled != "false")
