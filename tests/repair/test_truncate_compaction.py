"""Compaction topics in a log that is cut: a broker serves nothing from beyond the cut.

A broker serves such topics from their compaction log alone, and takes no message into it whose
queue offset its index has already: a copy left there would be served, and hide a new message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rmqctl.backup.backup import BackupSource, back_up
from rmqctl.backup.restore import restore
from rmqctl.store.queue.compaction import CompactionQueue, served_queues
from rmqctl.store.store import Store
from tests.conftest import GoldenFolder
from tests.repair.cutting import applied_and_undone, offsets, troubles
from tests.repair.test_truncate import cut
from tests.support.cli import run

SET, TOPIC = "5.3.3/compaction/store", "TP_user_Topic"
END, AS_SERVED = 51685, {0: [16, 26, 29, 33, 42, 45], 1: [10, 11, 22, 41]}
"""Where the log ends, and the queue offsets of each queue that the store classes of 5.3.3 serve."""


def served(root: Path) -> dict[int, list[int]]:
    msg_base_offsets = {}
    with Store.open(root) as store:
        for topic, number in served_queues(store):
            if queue := CompactionQueue.open(store, topic, number):
                with queue:
                    units = [unit for units in queue.files for unit in units]
                    assert all(queue.record(unit) for unit in units)
                    msg_base_offsets[number] = [unit.msg_base_offset for unit in units]
    return msg_base_offsets


def positions(root: Path) -> dict[str, int]:
    document: dict[str, Any] = json.loads((root / "compaction/position-checkpoint").read_bytes())
    return document["queueOffsetMap"]


def test_nothing_beyond_the_cut_is_left(golden_copy: GoldenFolder) -> None:
    root = golden_copy(SET)
    before, compacted = served(root), positions(root)
    for to in offsets(root, "compaction")[::60]:
        frames = cut(root, to)
        with applied_and_undone(frames.plan):
            assert troubles(root) == []
            for number, kept in before.items():
                end = frames.plan.topic_queue_table.get(f"{TOPIC}-{number}", 0)
                assert served(root).get(number, []) == [file for file in kept if file < end]
                name = f"{TOPIC}_{number}"
                assert positions(root)[name] == min(compacted[name], end - 1)


def test_as_an_engine_serves_it(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    root = golden_copy(SET)
    back_up(BackupSource(str(root), ()), str(tmp_path / "backup"), lambda: 1_750_000_000_000,
            "1.0.0")
    restored = restore(str(tmp_path / "backup"), str(tmp_path / "new"), offset=END)
    assert served(tmp_path / "new") == AS_SERVED
    assert any("a compaction dropped older messages" in note for note in restored.notes)
    assert run("verify", tmp_path / "new", "-o", "json").expect(0).json()["ok"]


def test_copies_that_are_ahead_of_the_backup(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    """A running broker puts messages while a backup copies its compaction logs."""
    root, backup = golden_copy(SET), tmp_path / "backup"
    later = {name: (root / name).read_bytes() for name in map(
        str, (path.relative_to(root) for path in (root / "compaction").rglob("*")
              if path.is_file()))}
    run("truncate", root, "--to-phy", str(END), "--apply", "--yes").expect(0)
    back_up(BackupSource(str(root), ()), str(backup), lambda: 1_750_000_000_000, "1.0.0")
    for name, data in later.items():
        (backup / name).parent.mkdir(parents=True, exist_ok=True)
        (backup / name).write_bytes(data)
    restore(str(backup), str(tmp_path / "new"))
    assert served(tmp_path / "new") == AS_SERVED


def test_files_that_a_compaction_replaced(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    root, backup = golden_copy(SET), tmp_path / "backup"
    back_up(BackupSource(str(root), ()), str(backup), lambda: 1_750_000_000_000, "1.0.0")
    for part in ("compactionCq", "compactionLog"):
        (root / "compaction" / part / TOPIC / "0" / f"{0:020}").unlink()
    back_up(BackupSource(str(root), ()), str(backup), lambda: 1_750_000_060_000, "1.0.0")
    restore(str(backup), str(tmp_path / "new"))
    assert served(tmp_path / "new") == served(root)


def test_a_queue_without_a_message_left(golden_copy: GoldenFolder, tmp_path: Path) -> None:
    root, backup = golden_copy(SET), tmp_path / "backup"
    back_up(BackupSource(str(root), ()), str(backup), lambda: 1_750_000_000_000, "1.0.0")
    restore(str(backup), str(tmp_path / "new"), offset=2263)
    assert served(tmp_path / "new") == {}
    assert positions(tmp_path / "new") == {f"{TOPIC}_0": 3, f"{TOPIC}_1": -1}
    with Store.open(tmp_path / "new") as store:
        assert (TOPIC, 1) not in store.queues.by_key
