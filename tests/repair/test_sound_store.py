"""A sound store is verified in one pass, in place of a survey and a rebuild: the plan is equal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rmqctl.checks.verify.context import NotPlainError
from rmqctl.checks.verify.verify import LOG_STRUCTURES, Verification, VerifyOptions
from rmqctl.kernel import active
from rmqctl.repair import recover
from rmqctl.repair.broker_config import configured
from rmqctl.repair.plan import Plan
from rmqctl.repair.recover import RecoverOptions, plan_recover
from rmqctl.repair.scratch import Scratch
from rmqctl.store.store import Store

pytestmark = pytest.mark.skipif(active() is None, reason="only the compiled kernel has this pass")

SOUND = ["4.9.3/basic/store", "4.9.3/crash-base/store", "4.9.3/delay/store", "4.9.3/ipv6/store",
         "4.9.3/transaction/store", "5.3.3/appendcrc/store", "5.3.3/basic/store",
         "5.3.3/crash-nocheckpoint/before", "5.3.3/timer/store", "5.3.3/v2topic/store"]
OTHERS = ["4.9.3/crash-nocq/before", "4.9.3/crash-trunc-garbage/before", "4.9.3/lmq/store",
          "5.3.3/batchcq/store", "5.3.3/clean-noindex/before", "5.3.3/crash-crc/before"]
PLACES = 8


@contextmanager
def watch(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


def plan_of(root: Path, options: RecoverOptions | None = None) -> Plan:
    with Scratch() as scratch:
        return plan_recover(str(root), scratch, options or RecoverOptions(), watch)


def changes_of(plan: Plan) -> dict[str, Any]:
    """All of a plan; of its steps what they change."""
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return values | {"steps": [(type(step), step.target) for step in plan.steps]}


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("a sound store is not surveyed or rebuilt")


def without(*_: object) -> None:
    """In place of the fast pass."""


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_store_is_read_once(golden, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "salvage", refuse)
    monkeypatch.setattr(recover, "derived_steps", refuse)
    fast = changes_of(plan_of(golden(name)))
    monkeypatch.undo()
    monkeypatch.setattr(recover, "sound_store", without)
    assert fast == changes_of(plan_of(golden(name)))


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_store_is_not_taken_for_sound(golden, name: str) -> None:
    with Store.open(str(golden(name))) as store, Scratch() as scratch:
        assert recover.sound_store(store, configured(store, {}), scratch, 1, lambda _: None) is None


@pytest.mark.parametrize("name", ["4.9.3/basic/store", "5.3.3/basic/store"])
def test_a_changed_byte_is_repaired_as_before(golden_copy, name: str, seed: int,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """In the used part of any file of log, consume queues and index."""
    root = golden_copy(name)
    chance = random.Random(f"{seed} {name}")
    files = [path for folder in ("commitlog", "consumequeue", "index")
             for path in sorted((root / folder).rglob("*")) if path.is_file()]
    for _ in range(PLACES):
        path = chance.choice(files)
        data = path.read_bytes()
        at = chance.randrange(len(data.rstrip(b"\0")))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1:])
        fast = changes_of(plan_of(root))
        with monkeypatch.context() as patched:
            patched.setattr(recover, "sound_store", without)
            assert fast == changes_of(plan_of(root)), (path, at)
        path.write_bytes(data)


def link_inside(root: Path) -> None:
    path = max((root / "consumequeue" / "TP_fraud_Topic" / "0").iterdir())
    path.rename(root / "spare")
    path.symlink_to(root / "spare")


def further_file(root: Path) -> None:
    path = max((root / "consumequeue" / "TP_fraud_Topic" / "0").iterdir())
    size = path.stat().st_size
    path.with_name(f"{int(path.name) + size:020}").write_bytes(bytes(size))


def byte_behind_the_end(root: Path) -> None:
    path = max((root / "consumequeue" / "TP_fraud_Topic" / "0").iterdir())
    data = path.read_bytes()
    used = len(data.rstrip(b"\0")) // 20 * 20 + 20
    assert used + 20 <= len(data)
    path.write_bytes(data[:used + 19] + b"\1" + data[used + 20:])


def swapped_index_files(root: Path) -> None:
    first, second, *_ = sorted((root / "index").iterdir())
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


@pytest.mark.parametrize("change", [
    link_inside, further_file, byte_behind_the_end, swapped_index_files])
def test_what_verify_allows_and_a_rebuild_changes(
        golden_copy, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    root = golden_copy("5.3.3/basic/store")
    change(root)
    fast = changes_of(plan_of(root))
    monkeypatch.setattr(recover, "sound_store", without)
    assert fast == changes_of(plan_of(root))


def test_damage_ends_the_pass(golden_copy) -> None:
    root = golden_copy("5.3.3/basic/store")
    path = min((root / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[100] ^= 1  # in the body of the first message
    path.write_bytes(data)
    done = []
    with Store.open(str(root)) as store, pytest.raises(NotPlainError):
        list(Verification(store, VerifyOptions(LOG_STRUCTURES, plain=True), done.append).findings())
    assert sum(done) < len(data)
