"""One store of the campaign: damaged, recovered, judged, looked at again, and undone."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rmqctl.checks.findings import ERROR, Finding
from rmqctl.checks.verify.verify import Verification
from rmqctl.errors import RmqctlError
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.plan import Plan
from rmqctl.repair.recover import RecoverOptions, plan_recover
from rmqctl.repair.scratch import Scratch
from rmqctl.repair.sources.opening import Readers
from rmqctl.repair.sources.read_back import records as parquet
from rmqctl.repair.sources.records import Unused
from rmqctl.store.store import Store
from tests.repair.accidents import bytes_of, differences, state, undo_all
from tests.repair.campaign import damages, stores
from tests.repair.campaign.judging import After, Verdict, judge, says_gap
from tests.repair.campaign.sources import FORMS
from tests.repair.campaign.stores import Base
from tests.support import cli

NONE, WHOLE = "none", "whole"
REPLICAS = (WHOLE, "lagging", "damaged")
"""Sources that have the same log, all of it, or not, or with damage of their own."""
SPLIT, SPLIT_OURS, SPLIT_THEIRS = "split", "split, prefer ours", "split, prefer source"
SPLITS = (SPLIT, SPLIT_OURS, SPLIT_THEIRS)
"""A source that went its own way from some message on, and what `--prefer` says then."""
SOURCES = (NONE, NONE, NONE, *REPLICAS, *SPLITS, *FORMS)
CORRECT = ("bit", "bit", "byte", "off")
_WITHOUT_ROWS = ("no rows", "nothing")
"""There nothing proves that whole records of an earlier life are not of the log."""
_GENERATED = 40
"""How many stores there are of each kind that is made."""

_REPEATED = "a queue offset that an earlier message of the queue already has"
"""Of such messages the plan says that verify reports them."""


@dataclass(frozen=True)
class Case:
    """What is done to which store; all of it follows from ``seed`` and the names."""

    seed: int
    kind: str
    source: str
    state: str
    correct: str
    keep: bool
    store: str
    number: int

    @property
    def name(self) -> str:
        return (f"seed {self.seed}: {self.kind}; source {self.source}; rows and index "
                f"{self.state}; --correct {self.correct}{' --keep-damaged' * self.keep}; "
                f"{self.store} {self.number}")


@dataclass
class Outcome:
    """What came of a case. ``verdict.wrong`` is empty, or there is something to mend.

    ``refused``: why nothing was recovered, where that is so. ``messages``: how many the store has.
    """

    case: Case
    messages: int
    done: list[str]
    verdict: Verdict = field(default_factory=Verdict)
    refused: str = ""

    def describe(self) -> str:
        return "\n  ".join([self.case.name, *self.done, *self.verdict.wrong[:10]])


def case(seed: int, kind: str | None = None, source: str | None = None) -> Case:
    """The case of a seed; ``kind`` and ``source`` are chosen by it unless given."""
    luck = random.Random(seed)
    kinds = [*damages.KINDS, damages.MIXED]
    by_luck = luck.choice(kinds), luck.choice(SOURCES)
    source = source or by_luck[1]
    result = source in SPLITS or luck.random() < 0.7
    return Case(seed, kind or by_luck[0], source, luck.choice(damages.STATES),
                luck.choice(CORRECT), luck.random() < 0.2,
                luck.choice(stores.GENERATED if result else stores.GOLDEN),
                luck.randrange(_GENERATED))


def base_of(case: Case, folder: Path, unpacked: Callable[[str], Path]) -> Base:
    """The store of a case; ``unpacked`` gives the folder of a golden set."""
    if case.store in stores.GENERATED:
        return stores.make(folder, case.store, case.number)
    return stores.engine_made(unpacked(case.store), case.store)


# -- recovering -----------------------------------------------------------------------------------


def tier(path: str, unused: Unused) -> Iterator[tuple[str, bytes]]:
    from rmqctl.ext.tiered.read.records import records

    return records(path, unused)


def options_of(base: Base, case: Case, source: Path | None) -> RecoverOptions:
    sizes = base.sizes
    given = {"commitlog_file_size": sizes.commitlog_file,
             "consumequeue_file_size": sizes.consumequeue_file,
             "index_slots": sizes.index_slots, "index_max": sizes.index_max,
             "lmq": True, "multi_dispatch": True}
    prefer = {SPLIT_OURS: "ours", SPLIT_THEIRS: str(source)}.get(case.source)
    return RecoverOptions(
        jobs=1, commitlog_dirs=base.dirs, sizes=sizes, given=given,
        correct=case.correct, keep_damaged=case.keep,  # type: ignore[arg-type]
        sources=(str(source),) if source else (), prefer=prefer, light_rows=True,
        readers=Readers(parquet, tier))


def words_of(root: Path, options: RecoverOptions) -> list[str]:
    """The same for the command line."""
    named: list[tuple[str, ...]] = [("--commitlog-dir", name) for name in options.commitlog_dirs]
    named += [(f"--{name.replace('_', '-')}", *[str(value)] * (value is not True))
              for name, value in options.given.items()]
    named += [("--from", name) for name in options.sources]
    named += [("--prefer", options.prefer)] if options.prefer else []
    return ["recover", str(root), *(word for pair in named for word in pair), "--jobs", "1",
            "--correct", options.correct, *["--keep-damaged"] * options.keep_damaged,
            "--apply", "--yes", "-o", "json"]


@contextmanager
def _watch(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


def plan_of(root: Path, options: RecoverOptions) -> Plan:
    with Scratch() as scratch:
        return plan_recover(str(root), scratch, options, _watch)


def recover(root: Path, options: RecoverOptions) -> Plan:
    """As `recover --apply` does it."""
    with (Repair(str(root), "recover") as repair,
          Scratch(repair.scratch_folder, "recover") as scratch):
        plan = plan_recover(str(root), scratch, options, _watch)
        repair.apply(plan)
    return plan


def touched(base: Base, root: Path) -> dict[int, bytes | None]:
    """What is left of the messages that are no longer as they were."""
    now = dict(base.log(root).files)
    content = {}
    for place, raw in base.messages.items():
        first = max(file for file in base.files if file <= place)
        data = now.get(first, b"")[place - first:place - first + len(raw)]
        if data != raw:
            content[place] = data or None
    return content


# -- a trial --------------------------------------------------------------------------------------


def try_one(case: Case, base: Base, folder: Path, *, by_command: bool = False) -> Outcome:
    """The whole of it. ``folder`` is for the damaged store and its source; it is emptied.

    ``by_command``: the command does it in a copy as well, and must leave the same bytes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root, source, done = damaged(case, base, folder)
    outcome = Outcome(case, len(base.messages), done)
    verdict, options = outcome.verdict, options_of(base, case, source)
    hit, was = touched(base, root), state(root)
    before = None if source is None else state(folder / "source")
    again = shutil.copytree(root, folder / "again", symlinks=True) if by_command else None
    try:
        plan = recover(root, options)
    except RmqctlError as error:
        outcome.refused = str(error)
        verdict.fates.update(damaged=len(hit), refused=len(hit))
        plan = None
    if plan is not None:
        theirs = (stores.walk(base.log(source)) if source is not None
                  and case.source == SPLIT_THEIRS else None)
        outcome.verdict = verdict = judge(base, hit, After(base, root), plan, theirs=theirs)
        _look_again(base, root, options, plan, verdict)
    if source is not None and state(folder / "source") != before:
        verdict.add("the source was changed")
    if again is not None:
        result = cli.run(*words_of(again, options))
        if (result.code in (0, 1)) != (plan is not None) or bytes_of(again) != bytes_of(root):
            verdict.add(f"the command does something else: {result.describe()}")
    undo_all(root)
    for text in differences(state(root), was):
        verdict.add(f"after undo: {text}")
    return outcome


def damaged(case: Case, base: Base, folder: Path) -> tuple[Path, Path | None, list[str]]:
    """The damaged store, its source if it has one, and what was done to both."""
    luck = random.Random(case.seed)
    root = base.copy(folder / "store")
    older = _older(base, folder / "older", luck) if (
        case.state not in _WITHOUT_ROWS) else None
    target = damages.Target(base, root, luck, older)
    done = damages.do(target, case.kind)
    done.append("rows and index: " + damages.do_derived(target, case.state))
    if case.source == NONE:
        return root, None, done
    source = folder / "source"
    if case.source not in FORMS:
        done.append(_other_store(case.source, base, source, luck))
        return root, source, done
    kinds = [WHOLE, WHOLE, "damaged", *[SPLIT] * (base.seed is not None)]
    done.append(_other_store(luck.choice(kinds), base, folder / "read", luck))
    source.mkdir()
    return root, FORMS[case.source](base, folder / "read", source, luck), done


def _other_store(kind: str, base: Base, target: Path, luck: random.Random) -> str:
    """Makes another store of the same log; what was done to it."""
    if kind in SPLITS:
        split = stores.gone_another_way(base, target, luck)
        return f"source: another log from message {split} on"
    if kind == "lagging":
        stores.lagging(base, target, luck)
        return f"source: {len(stores.walk(base.log(target)))} messages"
    base.copy(target)
    if kind == "damaged":
        return (f"source: "
                f"{damages.do(damages.Target(base, target, luck), luck.choice([*damages.KINDS]))}")
    return "source: whole"


def _older(base: Base, folder: Path, luck: random.Random) -> dict[int, bytes] | None:
    """What an earlier life of the log left: other messages at physical offsets of its own."""
    if base.seed is None:
        return None
    stores.gone_another_way(base, folder, luck)
    return dict(base.log(folder).files)


def _is_said(finding: Finding, plan: Plan, verdict: Verdict) -> bool:
    """Whether it is about damage that nothing covers, or about a file of which the plan warns."""
    return any(start <= (finding.offset or 0) < end for start, end in verdict.unseen
               if finding.structure == "commitlog") or (
        finding.category == "file-size" and any(
            "would not start on this store" in note for note in plan.notes)) or (
        finding.category in ("cq-wrong-tag", "index-entry")
        and finding.structure in plan.left_damaged) or (
        finding.category == "message-fields" and any(_REPEATED in note for note in plan.notes))


def _look_again(base: Base, root: Path, options: RecoverOptions, plan: Plan,
                verdict: Verdict) -> None:
    """What `verify` finds, and whether another `recover` has anything left to do.

    A gap of which the plan has warned is found, too, with the rows behind it. Of a source more may
    be proven once ours is whole again.
    """
    if says_gap(plan) and (verdict.fates["misplaced"] or verdict.fates["unseen"]):
        return
    with Store.open(str(root), base.dirs, base.sizes) as store:
        for finding in Verification(store).findings():
            if finding.severity == ERROR and not _is_said(finding, plan, verdict):
                verdict.add(f"verify: {finding.category} {finding.file} @{finding.offset} "
                            f"{finding.topic} {finding.queue_offset} {finding.detail}")
    again = plan_of(root, options)
    done = {action.action for action in again.actions} if not again.empty else set()
    if "copy" in done and done <= {"copy", "conflict", "rebuild", "move aside", "fill"}:
        verdict.fates["copied later"] += 1
        return
    for action in again.actions if not again.empty else ():
        verdict.add(f"a second plan: {action.in_words()}")
