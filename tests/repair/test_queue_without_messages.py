"""A queue without any message in the log: entries that lead to messages of other queues go."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rmqctl.formats.local.consume_queue import dtype
from rmqctl.repair.scratch import Scratch
from tests.repair.rebuilding import carry_out, parts_of, planned, settings_of
from tests.support import cli

UNIT = dtype()


def queues_of(store: Path, topic: str) -> list[Path]:
    return sorted((store / "consumequeue" / topic).iterdir())


def entries_of(queue: Path) -> np.ndarray:
    rows = np.frombuffer(b"".join(file.read_bytes() for file in sorted(queue.iterdir())), UNIT)
    return rows[rows["size"] > 0].copy()


def folder_copied(store: Path, topic: str, name: str) -> None:
    """What an operator does who wants to rename a topic."""
    shutil.copytree(store / "consumequeue" / topic, store / "consumequeue" / name)


def rest_of(store: Path, name: str) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes()
            for part in ("commitlog", "consumequeue", "index")
            for path in sorted((store / part).rglob("*"))
            if path.is_file() and name not in path.parts}


def recovered(store: Path, name: str) -> None:
    """Recovers, and finds a sound store whose other queues are as they were."""
    rest = rest_of(store, name)
    cli.run("verify", str(store)).expect(1)
    plan = cli.run("recover", str(store), "--apply", "--yes", "-o", "json").recovered()
    assert {action["target"].split("/")[1] for action in plan["actions"]} == {name}
    assert rest_of(store, name) == rest
    cli.run("verify", str(store)).expect(0)
    again = cli.run("recover", str(store), "-o", "json").recovered()
    assert not again["actions"]


@pytest.mark.parametrize("name", ["5.3.3/basic", "4.9.3/basic"])
def test_a_copied_topic_folder(golden_copy, name: str) -> None:
    store = golden_copy(f"{name}/store")
    topic = min(path.name for path in (store / "consumequeue").iterdir())
    folder_copied(store, topic, "renamed")
    before = [entries_of(queue) for queue in queues_of(store, "renamed")]
    assert sum(map(len, before)) > 20
    recovered(store, "renamed")
    assert not any(path.is_file() for path in (store / "consumequeue/renamed").rglob("*"))
    run_id = max(path.name for path in (store / ".rmqctl/repairs").iterdir())
    cli.run("undo", str(store), run_id, "--yes").expect(0)
    for queue, rows in zip(queues_of(store, "renamed"), before, strict=True):
        assert (entries_of(queue) == rows).all()


def test_a_queue_of_another_broker(golden, golden_copy) -> None:
    """Its entries lead into the middle of messages."""
    store = golden_copy("5.3.3/basic/store")
    other = golden("5.3.3/delay") / "store/consumequeue"
    topic = next(path.name for path in sorted(other.iterdir())
                 if not path.name.startswith(("SCHEDULE", "%", "rmq_"))
                 and not (store / "consumequeue" / path.name).exists())
    shutil.copytree(other / topic, store / "consumequeue" / topic)
    recovered(store, topic)


def test_entries_of_expired_messages_stay(golden_copy) -> None:
    """They keep the queue offset at which the queue goes on."""
    store = golden_copy("5.3.3/basic/store")
    (store / "commitlog/00000000000000000000").unlink()
    cli.run("recover", str(store), "--apply", "--yes").expect(0, 1)
    topic = min(path.name for path in (store / "consumequeue").iterdir())
    folder_copied(store, topic, "renamed")
    before = [entries_of(queue)["physical_offset"] for queue in queues_of(store, "renamed")]
    log_min = int(min((store / "commitlog").iterdir()).name)
    assert any((places < log_min).any() and (places >= log_min).any() for places in before)
    recovered(store, "renamed")
    for queue, places in zip(queues_of(store, "renamed"), before, strict=True):
        assert entries_of(queue)["physical_offset"].tolist() == places[places < log_min].tolist()


def test_a_light_queue(golden_copy) -> None:
    store = golden_copy("5.3.3/lmq/store")
    light = next(path.name for path in sorted((store / "consumequeue").iterdir())
                 if path.name.startswith("%LMQ%"))
    folder_copied(store, light, "%LMQ%renamed")
    recovered(store, "%LMQ%renamed")


def test_a_light_queue_stays_where_such_entries_are_switched_off(golden, golden_copy) -> None:
    """The log has their messages, but the rebuild makes no entries for them."""
    store = golden_copy("5.3.3/lmq/store")
    settings = settings_of(golden("5.3.3/lmq"), "5.3.3", multi_dispatch=False)
    with Scratch() as scratch:
        _, actions = planned(store, settings, scratch)
    assert not [action for action in actions if "%LMQ%" in action.target]


def test_an_entry_that_leads_into_damage_stays(golden, golden_copy) -> None:
    """It is evidence of a message, and so are the entries before it."""
    store = golden_copy("5.3.3/basic/store")
    settings = settings_of(golden("5.3.3/basic"), "5.3.3")
    topic = min(path.name for path in (store / "consumequeue").iterdir())
    folder_copied(store, topic, "renamed")
    queue = queues_of(store, "renamed")[0]
    rows = entries_of(queue)
    middle = len(rows) // 2
    damaged = int(rows[middle]["physical_offset"])
    part = next(part for part in parts_of(store) if part.base <= damaged < part.end)
    assert part.path is not None
    with open(part.path, "r+b") as file:
        file.seek(damaged - part.base + 4)
        file.write(bytes(4))
    with Scratch() as scratch:
        steps, actions = planned(store, settings, scratch)
        carry_out([step for step in steps if step.target.startswith("consumequeue/renamed/0")],
                  store)
    action = next(action for action in actions if action.target == "consumequeue/renamed/0")
    assert (action.before, action.after) == (len(rows), middle + 1)
    assert (entries_of(queue) == rows[:middle + 1]).all()


@pytest.mark.parametrize("name", ["5.3.3/basic", "4.9.3/basic"])
@pytest.mark.parametrize("copy", ["AAA", "zzz"])
@pytest.mark.parametrize("missing", [False, True])
def test_lost_messages_are_of_the_queue_that_has_others(golden_copy, name: str, copy: str,
                                                        missing: bool) -> None:
    """Both topics have entries for the damaged part; ``missing``: a whole file."""
    store, again = golden_copy(f"{name}/store"), golden_copy(f"{name}/store")
    topic = min(path.name for path in (store / "consumequeue").iterdir())
    for root in (store, again):
        path = sorted((root / "commitlog").iterdir())[1]
        if missing:
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.seek(9000)
                file.write(bytes(20000))
    folder_copied(store, topic, copy)
    for root in (store, again):
        cli.run("recover", str(root), "--apply", "--yes").expect(1)
    assert rest_of(store, copy) == rest_of(again, copy)
    cli.run("verify", str(store)).expect(0)
