"""One store of a world: damaged, read, recovered with and without undecided records, and judged.

Wrong is: a forged message that is shown or published without `--ambiguous keep`; an intact one
that is hidden, left out or lost without being counted; "nothing is lost" where something is; an
error that `verify` finds after `recover` and the plan did not announce.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rmqctl.errors import RmqctlError
from rmqctl.formats.local import append_crc
from rmqctl.formats.local.message import Record, build, decode
from rmqctl.repair.plan import Plan
from tests.repair.accidents import differences, state, undo_all
from tests.repair.campaign import trial
from tests.repair.campaign.judging import After, judge
from tests.repair.campaign.worlds import grounds, harms
from tests.repair.campaign.worlds.grounds import DLEDGER, FORMS, HEAD, Ground
from tests.support import cli

FATES = ("filled", "kept", "unseen", "near", "lost", "left out")
_NOTHING = ("messages_already_lost", "would_lose", "messages_undecided", "messages_replaced",
            "messages_damaged")
"""What `doctor` counts; "nothing is lost" is said where each is 0."""


@dataclass(frozen=True)
class World:
    """A seed, and all that follows from it; ``form``, ``forged`` and ``kind`` name the world."""

    seed: int
    form: str
    forged: bool
    kind: str
    state: str
    correct: str
    keep: bool
    source: str
    number: int
    wide: bool = False

    @property
    def name(self) -> str:
        return (f"{'wide ' * self.wide}seed {self.seed}: {self.form}, "
                f"{'forged' if self.forged else 'honest'}; "
                f"{self.kind}; entries and index {self.state}; --correct {self.correct}"
                f"{' --keep-damaged' * self.keep}; source {self.source}; store {self.number}")


@dataclass
class Outcome:
    """What came of a world; ``wrong`` has the kind of each error and its words."""

    world: World
    done: list[str]
    wrong: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> None:
        self.wrong.append((kind, text))

    def describe(self) -> str:
        return "\n  ".join([self.world.name, *self.done, *(
            f"{kind}: {text}" for kind, text in self.wrong[:10])])


FORGED, LOST, NOTHING, VERIFY, STALE, OTHER = KINDS_OF_WRONG = (
    "forged", "not counted", "nothing is lost", "verify", "stale shown", "other")


def world(seed: int, form: str | None = None, kind: str | None = None,
          forged: bool | None = None, *, wide: bool = False) -> World:
    """The world of a seed; what is given is not chosen by it. ``wide``: bodies hold records of any
    queues, and there are more kinds of damage.
    """
    luck = random.Random(seed)
    kinds = [*(harms.WIDE if wide else harms.KINDS)]
    chosen = luck.choice(FORMS), luck.random() < 0.5, luck.choice(kinds)
    form = form or chosen[0]
    return World(seed, form, chosen[1] if forged is None else forged, kind or chosen[2],
                 luck.choice(harms.STATES), luck.choice(trial.CORRECT), luck.random() < 0.2,
                 luck.choice((trial.NONE, trial.WHOLE)) if form == DLEDGER else trial.NONE,
                 luck.randrange(40), wide)


def try_one(world: World, folder: Path) -> Outcome:
    """The whole of it. Undamaged stores are made below ``folder`` and stay there."""
    ground = grounds.make(folder / "made", world.form, world.forged, world.number, wide=world.wide)
    work = folder / "one"
    shutil.rmtree(work, ignore_errors=True)
    root = ground.copy(work / "store")
    outcome = Outcome(world, _damaged(world, ground, root))
    hit = _touched(ground, root)
    outcome.counts.update(damaged=len(hit), messages=len(ground.messages))
    intact = ground.messages.keys() - hit.keys()

    # Before anything is repaired: what is shown, and what is said of the rest.
    expected_text = _shown(ground, root, intact, outcome)

    # Recovered without undecided records, then with them.
    source = work / "source" if world.source == trial.WHOLE else None
    if source is not None:
        ground.copy(source)
    options = trial.options_of(ground, world, source)  # type: ignore[arg-type]
    second = shutil.copytree(root, work / "second", symlinks=True)
    was = state(root) if world.form != DLEDGER else None
    plan = _recovered(root, options, outcome)
    if plan is None:
        return outcome
    _judge(world, ground, root, hit, plan, expected_text, outcome, options)
    if was is not None:
        undo_all(root)
        for text in differences(state(root), was):
            outcome.add(OTHER, f"after undo: {text}")
    if plan.ambiguous:
        kept = _recovered(second, replace(options, ambiguous="keep"), outcome)
        now = After(ground, second).messages if kept is not None else ground.messages
        for place in sorted(intact):
            if not _is_kept(now.get(place), ground.messages[place]):
                outcome.add(LOST, f"with --ambiguous keep: intact message @{place}")
    return outcome


def _touched(ground: Ground, root: Path) -> dict[int, bytes | None]:
    """What is left of the messages that are damaged, or whose entry in DLedger's data is."""
    result = trial.touched(ground, root)
    if ground.name != DLEDGER:
        return result
    now, was = dict(ground.log(root).files), ground.files
    for place, raw in ground.messages.items():
        base = max(file for file in was if file <= place)
        head = slice(place - HEAD - base, place - base)
        if now.get(base, b"")[head] != was[base][head]:
            result.setdefault(place, raw)
    return result


def _damaged(world: World, ground: Ground, root: Path) -> list[str]:
    luck = random.Random(f"{world.seed} damage")
    older = grounds.older(world.form, world.forged, world.number, luck.randrange(50),
                          wide=world.wide) if (
                              world.state in ("whole", "no index", "damaged")
                              and world.form != DLEDGER) else None
    target = harms.WorldTarget(ground, root, luck, older)
    done = harms.do(target, world.kind, harms.WIDE if world.wide else harms.KINDS)
    done.append("entries and index: " + harms.derived(target, world.state))
    return done


def _shown(ground: Ground, root: Path, intact: set[int], outcome: Outcome) -> dict[str, Any]:
    """What `doctor` says; `read` shows no forged message, and all intact ones but as many as are
    undecided.
    """
    sizes = ("--commitlog-file-size", str(ground.sizes.commitlog_file))
    answer: dict[str, Any] = cli.run("doctor", root, *sizes, "-o", "json").json()
    read = cli.run("read", root, *sizes, "-o", "jsonl", "--body", "none")
    shown = {row["physical_offset"] for row in read.jsonl()}
    stale = any("of an older log" in text for text in outcome.done)
    for place in sorted(shown - ground.messages.keys()):
        outcome.add(STALE if stale else FORGED,
                    f"read shows a message @{place} that never was there")
    hidden = intact - shown
    if len(hidden) > answer["messages_undecided"]:
        outcome.add(LOST, f"read hides {len(hidden)} intact messages, of which "
                    f"{answer['messages_undecided']} are counted: {sorted(hidden)[:5]}")
    return answer


def _is_kept(now: bytes | None, raw: bytes) -> bool:
    """Whether a message is there; it may have got empty properties, in the place of damage that no
    record fits into.
    """
    if now is None or now == raw:
        return now is not None
    first, other = decode(now), decode(raw)
    return _content(first) == _content(other) and other == replace(
        first, total_size=other.total_size, properties=other.properties)


def _content(record: Record) -> bytes:
    """The properties without empty ones and without an appended CRC, which is set again."""
    raw = build(record)
    text = record.properties[:-append_crc.SIZE] if append_crc.verify(raw) else record.properties
    return text.rstrip(b"\2")


def _recovered(root: Path, options: Any, outcome: Outcome) -> Plan | None:
    """The plan, carried out; None where it is refused."""
    try:
        return trial.recover(root, options)
    except RmqctlError as error:
        outcome.counts["refused"] += 1
        outcome.done.append(f"refused: {error}")
        return None


def _judge(world: World, ground: Ground, root: Path, hit: dict[int, bytes | None], plan: Plan,
           diagnosis: dict[str, Any], outcome: Outcome, options: Any) -> None:
    """Compares a recovered store with what it was, and with what was said of it."""
    if world.form == DLEDGER and trial.touched(ground, root):
        # Without a member that has it, the log stays as the damage left it.
        for place in sorted(trial.touched(ground, root).keys() - hit.keys()):
            outcome.add(LOST, f"intact message @{place} of a member is changed")
        return
    verdict = judge(ground, hit, After(ground, root), plan)
    fates = verdict.fates
    trial._look_again(ground, root, options, plan, verdict)
    disputed = any(note.startswith("index entries do not match") for note in plan.notes)
    for text in verdict.wrong:
        if disputed and text.startswith("index entry leads to another"):
            continue  # neither the key nor the entry is proven: the plan says so, and changes none
        outcome.add(_kind(text), text)
    if fates["left out"] > plan.ambiguous:
        outcome.add(LOST, f"{fates['left out']} intact messages are left out, {plan.ambiguous} "
                    "are counted")
    if fates["filled"]:
        if not any(diagnosis[name] for name in _NOTHING) and diagnosis["sound"]:
            outcome.add(NOTHING, f"doctor: {diagnosis['verdict']}; {fates['filled']} are filled")
        if not plan.lost and not plan.ambiguous:
            outcome.add(NOTHING, f"the plan loses nothing; {fates['filled']} are filled")
    outcome.counts.update({name: fates[name] for name in FATES})
    outcome.counts["back"] += fates["corrected"] + fates["copied"] + fates["mended"]
    outcome.counts["undecided"] += plan.ambiguous
    outcome.counts["pages"] += len(outcome.done) - 1


def _kind(text: str) -> str:
    return (FORGED if "never was there" in text or "leads to another" in text else
            LOST if "intact message" in text else VERIFY if text.startswith("verify") else OTHER)


