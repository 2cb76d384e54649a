"""A tier's life: local store and tier go through anything in any order, and nothing is ever lost.

Random steps (messages come, dispatch with random options, killed or not, commit, compact, expire
on both sides, recover, undo, metadata lost, the tier moved, what a broker does with index files),
and after every one the whole tier is held against what was put into the local store.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.tiered.tier import Tier
from rmqctl.ext.tiered.verify.verify import Options, TierVerification, verdict
from rmqctl.formats.local import message
from rmqctl.formats.tiered import index as tiered_index
from rmqctl.formats.tiered import metadata as meta
from rmqctl.formats.tiered.names import INDEX, KINDS
from rmqctl.store.store import Store
from tests.engine_write.crashing import Crasher
from tests.engine_write.durable import new_store
from tests.support import cli, snapshot
from tests.support.deaths import MODES
from tests.support.share import sample
from tests.tiered.dispatching import (
    BROKER,
    METADATA,
    SMALL,
    WHEN,
    assert_metadata,
    dispatched,
    index_items,
    keys_of,
    local_store,
    put,
    record,
    segments,
    wanted_items,
)

LONG = "a-topic-with-a-name-of-more-than-127-bytes-" + "x" * 90
TOPICS = ("T0", "T1", "%RETRY%g", LONG)
SLOTS, MOST = 16, 40
STEPS, SEEDS = 12, 3
_PLACE = slice(28, 36)
"""The physical offset in a record, the only bytes of it that may change."""
Queue = tuple[str, int]


def without_place(raw: bytes) -> bytes:
    return raw[:_PLACE.start] + raw[_PLACE.stop:]


@dataclass
class Life:
    """One store and its tier. ``home`` is the broker's local root."""

    folder: Path
    chance: random.Random
    crasher: Crasher
    store: Path = field(init=False)
    root: Path = field(init=False)
    home: Path = field(init=False)
    sizes: tuple[str, ...] = field(init=False)
    count: int = 0
    written: dict[Queue, dict[int, bytes]] = field(default_factory=dict)
    bounds: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    repaired: int = 0
    index_whole: bool = True
    """Whether every message that has a unit has all of its items."""
    index_expired: bool = False
    """Whether index files may have expired: what was in them is not made anew."""
    index_once: bool = True
    """Whether index files are as rmqctl left them: each item once, in the one newest file."""

    def __post_init__(self) -> None:
        self.store = new_store(cli.run, self.folder / "store")
        if self.chance.random() < 0.5:
            self.home, self.root = self.store, self.store / "tieredstore"
        else:
            self.home, self.root = self.folder / "home", self.folder / "tier"
        log = self.chance.choice((4200, 9000, 1 << 30))
        rows = self.chance.choice((20, 130, 100_000))
        self.sizes = ("--commitlog-max-size", str(log), "--consumequeue-max-size", str(rows),
                      "--index-slots", str(SLOTS), "--index-max", str(MOST))
        self.append()
        self.dispatch()

    # -- running ----------------------------------------------------------------------------------

    @property
    def metadata(self) -> Path:
        return self.home / METADATA

    def run(self, *args: str | Path, codes: tuple[int, ...] = (0,)) -> cli.Result:
        self.history.append(" ".join(str(arg).replace(str(self.folder), "") for arg in args))
        return cli.run(*args).expect(*codes)

    @property
    def where(self) -> tuple[str | Path, ...]:
        return "--metadata", self.metadata

    @property
    def outside(self) -> tuple[str | Path, ...]:
        """The metadata are in no folder of the tier: `undo` writes there only if told."""
        return "--write-outside", self.metadata.parent

    @property
    def index(self) -> tuple[str, ...]:
        return "--index-slots", str(SLOTS), "--index-max", str(MOST)

    def now(self) -> int:
        return WHEN + self.count * 1000

    # -- steps ------------------------------------------------------------------------------------

    def append(self) -> None:
        """Messages come: of IPv6 hosts, with long topics, large, without keys, in any queue."""
        chance, lines = self.chance, []
        for number in range(self.count, self.count + chance.randint(1, 40)):
            more: dict[str, Any] = {}
            if chance.random() < 0.3:
                more |= {"born_host": "[2001:db8::7]:52011", "sys_flag": 0x10}
            if chance.random() < 0.2:
                more |= {"store_host": "[2001:db8::1]:10911",
                         "sys_flag": more.get("sys_flag", 0) | 0x20}
            if chance.random() < 0.1:
                more["properties_raw"] = ""
            if chance.random() < 0.1:
                more["body"] = f"message {number} " + "y" * chance.randint(1000, 3000)
            lines.append(record(number, topics=TOPICS, queues=chance.choice((1, 2)), **more))
        source = self.folder / "lines"
        source.write_bytes(b"".join(lines))
        self.count += len(lines)
        self.run("append", self.store, source, "--as-recorded")
        with Store.open(self.store) as local:
            for key, queue in local.queues.by_key.items():
                path = self.written.setdefault(key, {})
                for at in range(max(path, default=-1) + 1, queue.disk_end):
                    unit = queue.unit(at)
                    if unit is None or not unit.size:
                        break
                    raw = local.log.raw_at(unit.physical_offset, unit.size)
                    assert raw is not None
                    path[at] = without_place(raw)

    def dispatch(self) -> None:
        args = self.dispatching()
        done = self.run(*args, codes=(0, 1)).json()
        for queue in done["queues"]:
            assert queue["status"] in ("uploaded", "up to date", "waiting", "skipped") or (
                queue["status"] == "refused" and self.is_behind(queue)), queue
        if "--verify-after" in args:
            assert not done["checked"]["problems"]
        if "--no-index" in args:
            self.index_whole = False

    def is_behind(self, flat_queue: dict[str, Any]) -> bool:
        """Whether the local store lost what would have to go next."""
        with Store.open(self.store) as local:
            queue = local.queues.find(flat_queue["topic"], flat_queue["queue_id"])
            assert queue is not None
            unit = queue.unit(self.bounds[flat_queue["topic"], flat_queue["queue_id"]][1])
            return unit is None or unit.physical_offset < local.log.min_offset

    def dispatching(self) -> tuple[str | Path, ...]:
        chance, more = self.chance, []
        for option, likely in (("--verify-after", 0.3), ("--seal-index", 0.2),
                               ("--no-index", 0.1)):
            if chance.random() < likely:
                more.append(option)
        if "--no-index" in more and "--seal-index" in more:
            more.remove("--seal-index")
        if chance.random() < 0.2:
            more += ["--only-due", "--now", str(self.now() + chance.randint(-20_000, 40_000))]
        if chance.random() < 0.2:
            more += ["--topic", chance.choice(sorted({topic for topic, _ in self.written}))]
        if chance.random() < 0.2:
            more += ["--start", str(WHEN + chance.randint(0, self.count) * 1000)]
        if chance.random() < 0.3:
            more += ["--group-commit-count", str(chance.randint(1, 20))]
        if chance.random() < 0.2:
            more += ["--rolling-interval", "1s", "--rolling-min-size", "500"]
        return ("tiered", "dispatch", self.store, self.root, *BROKER, *self.where, *self.sizes,
                "-o", "json", *more)

    def killed(self) -> None:
        """A dispatch dies; then some further run, dead or not, and at last one that is not."""
        self.append()
        args = self.dispatching()
        self.history.append("killed:")
        self.history.append(" ".join(str(arg).replace(str(self.folder), "") for arg in args))
        if "--no-index" in args:
            self.index_whole = False
        self.crashed(args)
        if self.chance.random() < 0.4:
            self.commit()
        if self.chance.random() < 0.2:
            self.compact()
        if self.chance.random() < 0.4:
            self.crashed(self.dispatching())
            self.index_whole = False  # perhaps one without index
        self.run("tiered", "dispatch", self.store, self.root, *BROKER, *self.where, *self.sizes,
                 "-o", "json", codes=(0, 1))

    def crashed(self, args: tuple[str | Path, ...]) -> bool:
        kept = self.folder / "args"
        kept.mkdir(exist_ok=True)
        try:
            killed, *_ = self.crasher.run(*args, at=self.chance.randint(2, 120), folder=kept,
                                          mode=self.chance.choice(MODES))
        except AssertionError as error:  # ended by itself: a queue is behind, nothing to do
            assert "Traceback" not in str(error)
            return False
        return killed

    def commit(self) -> None:
        self.run("tiered", "commit", self.root, *self.where)

    def idle_commit(self) -> None:
        """Nothing is half done, so nothing is changed."""
        before = self.files(), self.metadata.read_bytes()
        self.commit()
        assert before == (self.files(), self.metadata.read_bytes())

    def compact(self) -> None:
        more = ["--full"] if self.chance.random() < 0.5 else []
        self.run("tiered", "compact", self.root, *self.where, *self.index, *BROKER, "--cluster",
                 "DefaultCluster", *more)

    def expire(self) -> None:
        """Takes some of the oldest segments; nothing that is young."""
        limit = self.chance.randint(0, self.count) * 1000
        done = self.run("tiered", "expire", self.root, *self.where, "--older-than",
                        f"{self.count - limit // 1000}s", "--now", str(self.now()), "--apply",
                        "-o", "json").json()
        self.repaired += bool(done["applied"])
        if done["applied"]:
            self.index_whole, self.index_expired = False, True  # it goes by its own time
        with Tier.open(str(self.root), str(self.metadata)) as tier:
            for queue in tier.queues():
                key = queue.name.topic, queue.name.queue_id
                start, end = self.bounds[key]
                for at in range(start, queue.min_offset):
                    assert int.from_bytes(self.written[key][at][48:56]) < WHEN + limit
                self.bounds[key] = queue.min_offset, end

    def expire_and_undo(self) -> None:
        before, bounds, repairs_made = self.everything(), dict(self.bounds), self.repaired
        index = self.index_whole, self.index_expired
        self.expire()
        if self.repaired > repairs_made:
            self.undo()
            assert self.everything() == before
            self.bounds, (self.index_whole, self.index_expired) = bounds, index

    def expire_and_too_late(self) -> None:
        """What was fed since stays when an expiry is taken back: undo refuses, changes nothing."""
        repairs_made = self.repaired
        self.expire()
        before = self.metadata.read_bytes()
        self.append()
        self.dispatch()
        if self.repaired > repairs_made and self.metadata.read_bytes() != before:
            there = self.everything()
            self.run("undo", self.root, *self.outside, "--yes", "-o", "json", codes=(6,))
            assert self.everything() == there

    def killed_repair(self) -> None:
        """An expiry, recovery or undo dies: undo brings back what was, and it can be done again."""
        before, bounds = self.everything(), dict(self.bounds)
        if self.chance.random() < 0.5:
            args: tuple[str | Path, ...] = ("expire", self.root, *self.where, "--older-than", "5s",
                                            "--now", str(self.now()))
        else:
            last = {os.path.dirname(name): name for name in sorted(
                segments(self.root), key=lambda path: path[-20:]) if "/CONSUME_QUEUE/" in name}
            broken = self.chance.choice(sorted(last.values()))
            (self.root / broken).write_bytes(b"")
            args = "recover", self.root, *self.where, *self.index
        broke, repairs = self.everything(), set(self.repairs())
        self.history.append(f"killed: {args[0]}")
        killed = self.crashed(("tiered", *args, "--apply", "-o", "json"))
        new = sorted(set(self.repairs()) - repairs)
        if killed and new and self.chance.random() < 0.5:
            self.crashed(("undo", self.root, *new, *self.outside, "--yes", "-o", "json"))
        if new:
            self.run("undo", self.root, *new, *self.outside, "--yes", "-o", "json", codes=(0, 2, 6))
        assert self.everything() in (before, broke)
        if args[0] == "recover":
            whole = self.index_whole and self.index_once
            self.recover()
            there = self.everything()
            assert not whole or all(there[name] == data for name, data in before.items()
                                    if name != "metadata")
        self.bounds = bounds

    def repairs(self) -> list[str]:
        folder = self.root / ".rmqctl" / "repairs"
        return os.listdir(folder) if folder.is_dir() else []

    def killed_compact(self) -> None:
        """Index files are uploaded by the next run where one dies."""
        args = ("tiered", "compact", self.root, *self.where, *self.index, *BROKER, "--cluster",
                "DefaultCluster", "--all")
        self.history.append("killed: compact")
        self.crashed(args)
        self.run(*args)

    def undo(self) -> None:
        self.run("undo", self.root, *self.outside, "--yes", "-o", "json")

    def expire_local(self) -> None:
        self.run("expire", self.store, "--keep-bytes", f"{self.chance.randint(1, 60)}KiB",
                 "--apply", "--yes", "-o", "json")

    def recover_nothing(self) -> None:
        """A sound tier is left as it is, but for keys that have no item."""
        before, sound = self.everything(), self.index_whole and self.index_once
        done = self.recover()
        if sound:
            assert not done["applied"], done
            assert self.everything() == before

    def recover(self) -> Any:
        done = self.run("tiered", "recover", self.root, *self.where, *self.index, "--apply",
                        "-o", "json").json()
        assert not self.run("tiered", "recover", self.root, *self.where, *self.index, "-o",
                            "json").json()["actions"]
        if any("there are no index files" in text for text in done["notes"]):
            self.run("tiered", "recover", self.root, *self.where, *self.index, "--apply", "--only",
                     "index")
        if not any("was interrupted" in text for text in done["notes"]):
            self.index_whole = not self.index_expired
            self.index_once = True
        return done

    def lose_metadata(self) -> None:
        """It comes back with the same names, sizes and topic ids."""
        before, whole = meta.parse(self.metadata.read_bytes()), self.index_whole
        self.metadata.unlink()
        Path(f"{self.metadata}.bak").unlink(missing_ok=True)
        self.refuses_without_metadata()
        self.recover()
        after = meta.parse(self.metadata.read_bytes())
        for kind in KINDS:
            if kind != INDEX or whole:
                assert sizes(after, kind) == sizes(before, kind)
        for key in self.bounds:
            assert key[0] in after.topics

    def refuses_without_metadata(self) -> None:
        """No writer begins new metadata over a tier that has messages: topic ids would change."""
        before = self.files()
        self.run("tiered", "dispatch", self.store, self.root, *BROKER, *self.where, *self.sizes,
                 codes=(6,))
        self.run("tiered", "commit", self.root, *self.where, codes=(2, 3, 6))
        assert self.files() == before
        assert not self.metadata.exists()

    def move(self) -> None:
        """The tier is copied elsewhere; only that copy goes on."""
        if self.root.parent == self.store:
            return
        other = self.folder / f"tier-{len(self.history)}"
        shutil.copytree(self.root, other)
        shutil.rmtree(self.root)
        self.root = other

    def broker_clears(self) -> None:
        """A broker deletes index files that are uploaded, and what is left of rearranging."""
        shutil.rmtree(self.home / "tiered_index_file" / "compacting", ignore_errors=True)
        if self.chance.random() < 0.5:
            self.run("tiered", "compact", self.root, *self.where, *self.index, *BROKER,
                     "--cluster", "DefaultCluster", "--all", codes=(0, 1))
            shutil.rmtree(self.home / "tiered_index_file", ignore_errors=True)
            self.history.append("cleared tiered_index_file")

    def broker_starts(self) -> None:
        """It makes the folder for rearranging, and a new index file where there is none."""
        folder = self.home / "tiered_index_file" / "compacting"
        folder.mkdir(parents=True, exist_ok=True)
        self.history.append("made compacting/")

    # -- what must be true ------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        return segments(self.root) | {
            str(path.relative_to(self.home)): path.read_bytes()
            for path in (self.home / "tiered_index_file").rglob("*") if path.is_file()} | {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.glob("*/*/rmq_sys_INDEX/0/INDEX/*")}

    def everything(self) -> dict[str, bytes]:
        return self.files() | {"metadata": self.metadata.read_bytes()}

    def check(self) -> None:
        with Tier.open(str(self.root), str(self.metadata)) as tier:
            assert not tier.metadata_error
            assert meta.build(tier.metadata) == self.metadata.read_bytes()
            queues = {(queue.name.topic, queue.name.queue_id): queue for queue in tier.queues()}
            for key, (_, end) in self.bounds.items():
                assert queues[key].commit_offset >= end, key
            for key, queue in queues.items():
                start, end = self.bounds.get(key, (queue.cq_start, 0))
                assert start in (queue.min_offset, end) or not end, (key, queue.min_offset, start)
                places = set()
                for at in range(queue.min_offset, queue.commit_offset):
                    unit = queue.unit(at)
                    assert unit is not None
                    raw = queue.raw(unit)
                    assert without_place(raw) == self.written[key][at], (key, at)
                    assert message.decode(raw).physical_offset == unit.commit_log_offset
                    places.add(unit.commit_log_offset)
                assert len(places) == queue.commit_offset - queue.min_offset
                self.bounds[key] = queue.min_offset, queue.commit_offset
            run = TierVerification(tier, Options(index_slots=SLOTS, index_max=MOST))
            done = verdict(run, 20)
            assert done.ok, done.findings
        assert_metadata(self.metadata.parents[1], self.root)
        self.check_items()

    def check_items(self) -> None:
        have = index_items(self.home, self.root, SLOTS, MOST)
        if self.index_once:
            assert not have or max(have.values()) == 1, have.most_common(3)
        if self.index_whole:
            missing = self.live_items() - have
            assert not missing, sorted(missing)[:5]

    def live_items(self) -> Counter[tuple[Any, ...]]:
        """The items of all messages that can be read."""
        counts: Counter[tuple[Any, ...]] = Counter()
        with Tier.open(str(self.root), str(self.metadata)) as tier:
            for queue in tier.queues():
                for at in range(queue.min_offset, queue.commit_offset):
                    unit, record = queue.unit(at), queue.record(at)
                    assert unit is not None
                    for key in keys_of(record) if record.properties else ():
                        counts[tiered_index.key_hash(queue.name.topic, key), queue.name.topic,
                               queue.name.queue_id, unit.commit_log_offset, unit.size] += 1
        return counts


def sizes(metadata: meta.Metadata, kind: str) -> dict[str, dict[int, int]]:
    """The sizes of all segments of a kind that have bytes."""
    return {path: {base: segment.size for base, segment in table.items() if segment.size}
            for path, table in metadata.segments[kind].items()}


STEP: dict[str, int] = {
    "append": 3, "dispatch": 5, "killed": 4, "idle_commit": 1, "compact": 2, "expire": 1,
    "expire_and_undo": 1, "expire_and_too_late": 1, "killed_repair": 2, "killed_compact": 1,
    "expire_local": 1, "recover_nothing": 2, "lose_metadata": 1, "move": 1, "broker_clears": 1,
    "broker_starts": 1}
"""What happens, and how often."""


def live(life: Life, steps: int) -> None:
    life.check()
    for _ in range(steps):
        name = life.chance.choices(list(STEP), list(STEP.values()))[0]
        life.history.append(f"# {name}")
        step: Callable[[], object] = getattr(life, name)
        before = outside(life)
        step()
        if name not in ("append", "killed", "expire_local", "expire_and_too_late"):
            assert outside(life) == before
        life.check()


def outside(life: Life) -> dict[str, bytes]:
    """What of the local store is none of the tier's business."""
    mine = ("lock", ".rmqctl/", "tieredstore/", "tiered_index_file/",
            METADATA) if life.home == life.store else ("lock", ".rmqctl/")
    return {name: path.read_bytes() for path in life.store.rglob("*") if path.is_file()
            and not (name := str(path.relative_to(life.store))).startswith(mine)}


def one_life(folder: Path, number: int, crasher: Crasher, steps: int) -> None:
    life = Life(folder, random.Random(number), crasher)
    try:
        live(life, steps)
    except BaseException:
        print(f"seed {number}")
        print("\n".join(life.history))
        raise


@pytest.mark.long
@pytest.mark.parametrize("number", sample(range(SEEDS), 2, "lives"))
def test_a_life(tmp_path, crasher, number):
    one_life(tmp_path, number, crasher, STEPS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(100, 110))
def test_a_long_life(tmp_path, crasher, number):
    one_life(tmp_path, number, crasher, 3 * STEPS)


# -- found by lives -------------------------------------------------------------------------------

@pytest.fixture
def fed(tmp_path) -> Path:
    """A store whose tier has 60 messages and an open index file."""
    store = local_store(cli.run, tmp_path / "store", 60)
    dispatched(cli.run, store, store / "tieredstore", *SMALL)
    return store


@pytest.mark.parametrize("is_known", [True, False], ids=["metadata knows it", "metadata does not"])
def test_an_index_file_that_was_sealed_and_not_taken_away_is_not_fed_on(fed, is_known):
    """Killed between segment, metadata and moving aside: its items would go up twice."""
    root, folder = fed / "tieredstore", fed / "tiered_index_file"
    before, (file,) = (fed / METADATA).read_bytes(), list(folder.iterdir())
    data = file.read_bytes()
    dispatched(cli.run, fed, root, "--seal-index")
    assert file.exists() is False
    file.write_bytes(data)
    if not is_known:
        (fed / METADATA).write_bytes(before)
    put(cli.run, fed, 60, 20)
    dispatched(cli.run, fed, root, "--seal-index")
    assert index_items(fed, root, SLOTS, MOST) == wanted_items(fed, root)
    cli.run("tiered", "verify", fed).expect(0)


@pytest.mark.parametrize("left", ["nothing", "old"])
def test_lost_metadata_is_not_begun_anew(fed, left):
    """Topics would get other ids, and index items be of topics they are not of."""
    root = fed / "tieredstore"
    put(cli.run, fed, 60, 10)
    if left == "old":
        metadata = meta.parse((fed / METADATA).read_bytes())
        del metadata.topics["T1"]
        (fed / METADATA).write_bytes(meta.build(metadata))
    else:
        for name in (METADATA, f"{METADATA}.bak"):
            (fed / name).unlink(missing_ok=True)
    with snapshot.assert_unchanged(root / "212d6b50_DefaultCluster"):
        stderr = cli.run("tiered", "dispatch", fed, root, *BROKER).expect(6).err
        assert "recover" in stderr
        cli.run("tiered", "commit", fed).expect(6 if left == "old" else 2)
    cli.run("tiered", "recover", fed, "--apply").expect(0)
    dispatched(cli.run, fed, root)
    assert index_items(fed, root, SLOTS, MOST) == wanted_items(fed, root)


def test_with_the_backup_alone(fed):
    """What is written goes to the file itself; nothing expires whose reserve time is not known."""
    (fed / METADATA).rename(fed / f"{METADATA}.bak")
    assert "recover" in cli.run("tiered", "expire", fed, "--older-than", "1s", "--apply").expect(
        6).err
    cli.run("tiered", "compact", fed, "--all").expect(0)
    assert sorted(path.name for path in (fed / "config").glob("tiered*")) == [
        "tieredStoreMetadata.json", "tieredStoreMetadata.json.bak"]
    cli.run("tiered", "verify", fed).expect(0)
    cli.run("tiered", "compact", fed, "--all").expect(0)
