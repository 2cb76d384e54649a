"""Damage at the end of the log, after which nothing intact follows: truncating comes first."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import damage
from tests.support import tiny as tiny_stores
from tests.support.cli import run
from tests.support.tiny import Placed, Tiny

JSON = ("-o", "json")
COUNTS = ("already_lost", "messages_undecided", "messages_replaced")
Hurt = Callable[[Path, Tiny, list[Placed]], None]
"""Of the last messages, which are given."""


def place_of(store: Tiny, record: Placed) -> tuple[str, int]:
    return store.place(record.record.physical_offset)


def torn(root: Path, store: Tiny, last: list[Placed]) -> None:
    file, at = place_of(store, last[0])
    damage.zero(root, file, at + 60, (root / file).stat().st_size - at - 60)


def zeroed(root: Path, store: Tiny, last: list[Placed]) -> None:
    file, at = place_of(store, last[0])
    damage.zero(root, file, at, (root / file).stat().st_size - at)


def short(root: Path, store: Tiny, last: list[Placed]) -> None:
    file, at = place_of(store, last[0])
    damage.truncate(root, file, at + 60)


def overwritten(root: Path, store: Tiny, last: list[Placed]) -> None:
    for record in last:
        file, at = place_of(store, record)
        damage.write(root, file, at + 30, b"\xaa" * (record.record.total_size - 40))


HURT: tuple[Hurt, ...] = (torn, zeroed, short, overwritten)


def damage_tail(root: Path, hurt: Hurt, *, read_all: bool = False, count: int = 2) -> int:
    """A store with a damaged end; how many messages that loses. ``read_all``: a group has read all
    of them.
    """
    store = tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128)
    if read_all:
        offsets: dict[str, dict[str, int]] = {}
        for (topic, queue), units in store.queues().items():
            offsets.setdefault(f"{topic}@billing", {})[str(queue)] = len(units)
        (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    (root / "abort").touch()
    hurt(root, store, store.messages[-count:])
    return count


def doctor(root: Path) -> dict[str, Any]:
    answer: dict[str, Any] = run("doctor", root, *JSON).expect(0, 1).json()
    return answer


def commands(document: dict[str, Any], root: Path) -> list[str]:
    return [step["command"].replace(shlex.quote(str(root)), "S") for step in document["steps"]]


@pytest.mark.parametrize("hurt", HURT)
def test_truncating_is_offered_before_fillers(tmp_path: Path, hurt: Hurt) -> None:
    root = tmp_path / "store"
    lost = damage_tail(root, hurt)
    diagnosis = doctor(root)
    assert diagnosis["already_lost"] == lost
    names = [command.partition(" --to-phy ")[0] for command in commands(diagnosis, root)]
    assert names[:3] == ["rmqctl recover S --from COPY", "rmqctl truncate S", "rmqctl recover S"]
    assert [step["loses"] for step in diagnosis["steps"][1:3]] == [{"messages": lost}] * 2
    # The plan of recover names both, too.
    plan = run("recover", root, *JSON).expect(1).json()
    assert plan["steps"][0] == diagnosis["steps"][1]
    assert [step["loses"] for step in plan["steps"]] == [{"messages": lost}] * 2
    assert plan["steps"][1]["command"].endswith("--apply")
    page = run("recover", root).expect(1).out
    assert plan["next"][0] in page


@pytest.mark.long
@pytest.mark.parametrize("read_all", [False, True])
@pytest.mark.parametrize("hurt", HURT)
def test_following_the_advice_keeps_the_numbers(tmp_path: Path, hurt: Hurt, *,
                                                read_all: bool) -> None:
    root = tmp_path / "store"
    lost = damage_tail(root, hurt, read_all=read_all)
    diagnosis = doctor(root)
    done: list[str] = []
    while not diagnosis["sound"]:
        command = next(step["command"] for step in diagnosis["steps"]
                       if step["effect"] != "read-only" and "--from COPY" not in step["command"])
        assert command not in done
        done.append(command)
        run(*shlex.split(command)[1:], "--apply", "--yes").expect(0, 1)
        diagnosis = doctor(root)
        assert [diagnosis[name] for name in COUNTS] == [lost, 0, 0]
    assert done[0].startswith("rmqctl truncate ")
    assert any("--beyond-end" in command for command in done) == read_all


@pytest.mark.parametrize("hurt", [torn, overwritten])
def test_where_intact_messages_follow_it_is_not_offered(tmp_path: Path, hurt: Hurt) -> None:
    root = tmp_path / "store"
    store = tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128)
    overwritten(root, store, store.messages[5:7])
    assert not any(" truncate " in command for command in doctor(root)["next"])
    # With damage at the end as well it is offered for that alone.
    hurt(root, store, store.messages[-2:])
    diagnosis = doctor(root)
    assert diagnosis["already_lost"] == 4
    step = next(step for step in diagnosis["steps"] if " truncate " in step["command"])
    assert step["loses"] == {"messages": 2}
    assert step["command"].endswith(f" {store.messages[-2].record.physical_offset}")


def test_garbage_at_the_end_loses_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = tiny_stores.build(root, tiny_stores.DEFAULT * 4, index_max=128)
    file, at = store.place(store.log_end)
    damage.write(root, file, at, b"\x5a" * 40)
    before = doctor(root)
    assert (before["already_lost"], before["sound"]) == (0, False)
    run("truncate", root, "--to-phy", str(store.log_end), "--apply", "--yes").expect(0)
    after = doctor(root)
    assert [after[name] for name in COUNTS] == [0, 0, 0]
    assert after["sound"]
