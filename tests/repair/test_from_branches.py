"""`recover --from` a source that went its own way: no message of its branch comes into ours."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.writer import Writer
from tests.repair import damage
from tests.repair.test_from_source import JSON, SIZES, SMALL, actions, recover

LOST = ((), ("consumequeue",), ("index",), ("consumequeue", "index"))
"""What of the structures that know our log is gone as well."""


def branch(luck: random.Random, common: list[tuple[str, int, int, str]], mark: str, count: int,
           keyed: bool) -> Writer:
    """A log that begins with ``common`` messages and goes on with others, of equal sizes or not.

    Messages are (topic, queue, bytes of the body, tag).
    """
    writer = Writer(SMALL, seed=1)
    own = [(topic, queue, size + luck.choice((0, 0, 0, 9)), tag)
           for topic, queue, size, tag in messages(luck, count)]
    for number, (topic, queue, size, tag) in enumerate([*common, *own]):
        who = "c" if number < len(common) else mark
        name = f"{who}{number:05d}"
        if number >= len(common):
            writer.clock += luck.randrange(1, 500)
        writer.put(topic, name.encode().ljust(size, who.encode()), queue_id=queue, tags=tag,
                   keys=name if keyed else "", unique_key=f"{name}U" if keyed else "")
    return writer


def messages(luck: random.Random, count: int) -> list[tuple[str, int, int, str]]:
    """Of one size or several, so that the branches' records lie at the same places, or do not."""
    sizes = luck.choice(((40,), (40, 40, 40, 41), (20, 90, 300)))
    return [(luck.choice(("orders", "pays!!")), luck.randrange(4), luck.choice(sizes),
             luck.choice(("", "A", "B"))) for _ in range(count)]


def pair(folder: Path, luck: random.Random) -> tuple[Path, Path, Writer, Writer, int]:
    """(our store, the other's, their writers, the number of messages they have in common)"""
    keyed = luck.random() < 0.7
    alike = luck.getrandbits(32) if luck.random() < 0.5 else None
    common = messages(luck, luck.randrange(1, 100))
    counts = luck.randrange(5, 90), luck.randrange(5, 90)
    writers = []
    for mark, count in zip("ab", counts, strict=True):
        own = random.Random(luck.getrandbits(32) if alike is None else alike)
        writers.append(branch(own, common, mark, count, keyed))
    ours, other = writers
    return (ours.write(folder / "ours"), other.write(folder / "other"), ours, other, len(common))


def copied_of(plan: dict[str, Any], writer: Writer, split: int) -> list[int]:
    """The places of a branch's own messages that a plan copies."""
    spans = [(copy["offset"], copy["offset"] + copy["length"])
             for copy in actions(plan, "copy") if copy["offset"] is not None]
    return [put.physical for put in writer.puts[split:]
            if any(low <= put.physical < high for low, high in spans)]


def campaign(folder: Path, seed: int, count: int) -> dict[str, int]:
    value = {"copied": 0, "conflicts": 0, "refused": 0}
    for number in range(count):
        luck = random.Random(f"{seed} {number}")
        root = folder / str(number)
        store, source, _, other, split = pair(root, luck)
        done = damage.do(store, luck.getrandbits(32), count=luck.randint(1, 8))
        lost = luck.choice(LOST)
        for name in lost:
            shutil.rmtree(store / name, ignore_errors=True)
        result = recover(store, source, options=(*SIZES, *JSON)).expect(0, 1, 6)
        if result.code == 6:
            value["refused"] += 1
        else:
            plan = result.json()
            value["copied"] += bool(actions(plan, "copy"))
            value["conflicts"] += bool(actions(plan, "conflict"))
            assert copied_of(plan, other, split) == [], (seed, number, split, lost, done)
        shutil.rmtree(root)
    return value


def test_no_message_comes_from_another_branch(tmp_path: Path, seed: int) -> None:
    campaign(tmp_path, seed, 20)


def torn(folder: Path, luck: random.Random, *, keyed: bool) -> tuple[Path, Path, Writer]:
    """(our store, which has lost its end from message 50 on; a source that has all of it)"""
    writer = branch(luck, messages(luck, 80), "a", 0, keyed)
    store, source = writer.write(folder / "ours"), writer.write(folder / "source")
    start = writer.puts[50].physical
    for path in sorted((store / "commitlog").iterdir()):
        low = max(start - int(path.name), 0)
        data = path.read_bytes()
        path.write_bytes(data[:low] + bytes(max(len(data) - low, 0)))
    return store, source, writer


@pytest.mark.parametrize("evidence", ["keys", "rows and the checkpoint's time", "rows", "nothing",
                                      "nothing is lost"])
def test_an_end_that_is_lost(evidence: str, tmp_path: Path, seed: int) -> None:
    """Rows fit every message of the same size: they alone do not tell whose the end is."""
    store, source, writer = torn(tmp_path, random.Random(seed), keyed=evidence == "keys")
    if evidence == "rows":
        (store / "checkpoint").unlink()
    elif evidence == "nothing":
        shutil.rmtree(store / "consumequeue")
        shutil.rmtree(store / "index")
    elif evidence == "nothing is lost":
        shutil.rmtree(store)
        store = branch(random.Random(seed), messages(random.Random(seed), 80)[:50], "a", 0,
                       keyed=False).write(tmp_path / "short")
    proven = not evidence.endswith(("rows", "nothing"))
    result = recover(store, source, options=(*SIZES, *JSON)).expect(0, 1)
    assert bool(copied_of(result.json(), writer, 50)) == proven
    assert ("may diverge there" in result.err) == (not proven)
    preferred = recover(store, source, options=(*SIZES, "--prefer", str(source), *JSON)).expect(0)
    assert len(copied_of(preferred.json(), writer, 50)) == 30


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_a_long_campaign_of_branches(tmp_path: Path, seed: int, part: int) -> None:
    result = campaign(tmp_path, seed + 1000 * part, 100)
    assert min(result.values()) > 0, result
