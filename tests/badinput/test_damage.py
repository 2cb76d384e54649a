"""One damage of each kind: found, at its place, under a category of its own.

`KINDS` names every damage of the consumequeue and the index with the exact number of findings it
makes; no two kinds of one structure may share all their categories.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.badinput.test_bit_flips import CONFIG, INDEX, LOG, QUEUES
from tests.conftest import GoldenFolder
from tests.support import damage, subject
from tests.support import tiny as tiny_stores

Harm = Callable[[tiny_stores.Tiny], damage.Damage]
QUEUE = QUEUES[0]  # three entries; the fourth is in QUEUES[1], which has two free ones
SLOTS = tiny_stores.Options().index_slots

CONSUMEQUEUE: dict[str, Harm] = {
    "wrong offset": lambda tiny: damage.cq_wrong_offset(tiny.root, QUEUE, 1),
    "wrong size": lambda tiny: damage.cq_wrong_size(tiny.root, QUEUE, 1),
    "wrong tag": lambda tiny: damage.cq_wrong_tag(tiny.root, QUEUE, 1),
    "missing": lambda tiny: damage.cq_missing(tiny.root, QUEUES[1], 0),
    "duplicate": lambda tiny: damage.cq_duplicate(tiny.root, QUEUES[1], 0),
    "out of order": lambda tiny: damage.cq_out_of_order(tiny.root, QUEUE, 0),
    "ahead": lambda tiny: damage.cq_ahead(tiny.root, QUEUES[1], 1, tiny.log_end),
}
"""One finding each, but for ``missing``/``duplicate``/``out of order``: see `at_most`."""


def _chain(tiny: tiny_stores.Tiny) -> tuple[tiny_stores.Entry, tiny_stores.Entry]:
    newer = next(entry for entry in reversed(tiny.entries) if entry.previous)
    return tiny.entries[newer.previous - 1], newer


def _slot(tiny: tiny_stores.Tiny) -> tuple[int, int]:
    """A used slot and an entry of another one."""
    mine = tiny.entries[0]
    other = next(entry for entry in tiny.entries if entry.slot != mine.slot)
    return mine.slot, other.number


INDEXES: dict[str, Harm] = {
    "slot": lambda tiny: damage.index_slot(tiny.root, INDEX, *_slot(tiny)),
    "cycle": lambda tiny: damage.index_cycle(tiny.root, INDEX, SLOTS,
                                             *(entry.number for entry in _chain(tiny))),
    "past the end": lambda tiny: damage.index_past_end(tiny.root, INDEX, SLOTS, 2, tiny.log_end),
    "header": lambda tiny: damage.index_header(tiny.root, INDEX, count=len(tiny.entries) - 2),
    "hash": lambda tiny: damage.index_wrong_hash(tiny.root, INDEX, SLOTS, 2),
    "offset": lambda tiny: damage.index_wrong_offset(tiny.root, INDEX, SLOTS, 1,
                                                     tiny.messages[3].start),
}


@pytest.mark.parametrize("kind", CONSUMEQUEUE)
def test_consumequeue(kind: str, tiny: tiny_stores.Tiny) -> None:
    done = CONSUMEQUEUE[kind](tiny)
    report = subject.verify(tiny.root)
    findings = report.of("consumequeue")
    assert findings, report.text()
    assert not report.ok
    assert not report.of("commitlog"), "the log is intact"
    assert any(finding.touches(done.file, (done.offset, done.end))
               for finding in findings), report.text()
    at_most = {"missing": 1, "duplicate": 2, "out of order": 2}.get(kind, 1)
    assert len(findings) <= at_most, report.text()


@pytest.mark.parametrize("kind", INDEXES)
def test_index(kind: str, tiny: tiny_stores.Tiny) -> None:
    done = INDEXES[kind](tiny)
    report = subject.verify(tiny.root)
    assert report.of("index"), report.text()
    assert not report.of("commitlog", "consumequeue"), "they are intact"
    assert any(finding.file == done.file for finding in report.of("index")), report.text()


@pytest.mark.parametrize("kinds", [CONSUMEQUEUE, INDEXES], ids=["consumequeue", "index"])
def test_each_kind_has_a_category_of_its_own(kinds: dict[str, Harm], tmp_path: Path) -> None:
    seen: dict[frozenset[str], str] = {}
    for number, (kind, harm) in enumerate(kinds.items()):
        store = tiny_stores.build(tmp_path / str(number))
        harm(store)
        names = frozenset(finding.category for finding in subject.verify(store.root).findings)
        assert names not in seen, f"{kind} and {seen[names]} are both {sorted(names)}"
        seen[names] = kind


@pytest.mark.parametrize("count", [1, 2, 3])
def test_entries_that_were_never_written(count: int, tiny: tiny_stores.Tiny) -> None:
    """The consumequeue is behind: every message without its entry is counted."""
    damage.cq_behind(tiny.root, QUEUES[1], 0)
    if count > 1:
        damage.cq_behind(tiny.root, QUEUE, 4 - count, count - 1)
    findings = subject.verify(tiny.root).of("consumequeue")
    lost = {unit.queue_offset for unit in tiny.queues()["orders", 0][-count:]}
    named = {finding.queue_offset for finding in findings if finding.queue_offset is not None}
    assert findings
    assert min(named, default=min(lost)) == min(lost), [str(finding) for finding in findings]


@pytest.mark.parametrize("change", [damage.checkpoint_huge,
                                    lambda root: damage.checkpoint_ahead(root, 1 << 41),
                                    lambda root: damage.checkpoint(root, physic=-1)],
                         ids=["huge", "ahead", "negative"])
def test_checkpoint(change: Callable[[Path], damage.Damage], tiny: tiny_stores.Tiny) -> None:
    change(tiny.root)
    assert subject.verify(tiny.root).of("checkpoint")


@pytest.mark.parametrize("name", [Path(file).name for file in CONFIG])
@pytest.mark.parametrize("change", [damage.config_empty, damage.config_trailing,
                                    damage.config_both_bad, damage.config_not_utf8],
                         ids=lambda change: change.__name__)
def test_config(change: Callable[[Path, str], damage.Damage], name: str,
                tiny: tiny_stores.Tiny) -> None:
    change(tiny.root, name)
    report = subject.verify(tiny.root)
    findings = [finding for finding in report.of("config")
                if finding.file.startswith(f"config/{name}")]
    assert findings, report.text()
    if change is not damage.config_both_bad:
        assert any(".bak" in finding.detail for finding in findings), "it names the usable copy"
    assert not report.of("commitlog", "consumequeue", "index")


# -- files ---------------------------------------------------------------------------------------


def test_a_missing_file_in_the_middle(golden_copy: GoldenFolder) -> None:
    root = golden_copy("5.3.3/basic/store")
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    damage.remove(root, f"commitlog/{names[2]}")
    report = subject.verify(root)
    assert report.of("commitlog"), report.text()
    assert any(names[2] in finding.file + finding.detail for finding in report.of("commitlog"))
    assert subject.every_byte_is_accounted_for(report)


def test_two_names_swapped(tiny: tiny_stores.Tiny) -> None:
    damage.swap_names(tiny.root, *LOG)
    report = subject.verify(tiny.root)
    assert {finding.file for finding in report.of("commitlog")} >= set(LOG), report.text()
    assert subject.every_byte_is_accounted_for(report)


@pytest.mark.parametrize("delta", [-1, -500, 1, 4096])
@pytest.mark.parametrize("file", [*LOG, QUEUES[0]])
def test_a_file_of_the_wrong_length(file: str, delta: int, tiny: tiny_stores.Tiny) -> None:
    size = (tiny.root / file).stat().st_size
    damage.change_length(tiny.root, file, max(delta, -size + 1))
    report = subject.verify(tiny.root)
    assert any(finding.file == file for finding in report.findings), report.text()
    assert subject.every_byte_is_accounted_for(report)


# -- the log: pages, tails -----------------------------------------------------------------------

PAGED = "5.3.3/crash-base/store"
PAGES = 8  # of a file of 32 KiB


@pytest.mark.parametrize("number", [*range(0, 6 * PAGES, 5), *(
    pytest.param(page, marks=pytest.mark.exhaustive) for page in range(6 * PAGES) if page % 5)])
def test_a_zeroed_page_costs_what_was_on_it(number: int, golden_copy: GoldenFolder) -> None:
    root = golden_copy(PAGED)
    from tests.support.model import Model

    model = Model(root, "5.3.3")
    file = sorted((root / "commitlog").iterdir())[number // PAGES]
    name = f"commitlog/{file.name}"
    before = file.read_bytes()
    done = damage.zero_page(root, name, number % PAGES)
    start, end = done.physical_offset, done.physical_offset + done.length
    changed = before != file.read_bytes()
    hit = [place for place, record in model.records.items()
           if place < end and place + record.size > start]
    report = subject.verify(root)
    assert subject.every_byte_is_accounted_for(report)
    lost = len(model.records) - report.coverage["messages"]
    assert lost <= len(hit), f"{lost} messages lost, {len(hit)} were on the page"
    if changed and any(place + model.records[place].size > start for place in hit):
        assert report.of("commitlog"), report.text()


@pytest.mark.parametrize("number", [*range(6), *(
    pytest.param(number, marks=pytest.mark.exhaustive) for number in range(6, 100))])
@pytest.mark.parametrize("how", ["torn", "duplicated", "swapped"])
def test_pages_in_the_wrong_place(how: str, number: int, golden_copy: GoldenFolder,
                                  seed: int) -> None:
    """Records whose CRC is right but whose place is not are no messages."""
    import random

    from tests.support.model import Model

    chance = random.Random(seed)
    root = golden_copy(PAGED)
    records = Model(root, "5.3.3").records
    places = set(records)
    name = f"commitlog/{chance.choice(sorted((root / 'commitlog').iterdir())[:5]).name}"
    data = (root / name).read_bytes()
    pages = [data[at:at + damage.PAGE] for at in range(0, len(data), damage.PAGE)]
    # Two unused pages are alike: putting one in the other's place is no damage.
    first, other = chance.sample([at for at, page in enumerate(pages) if any(page)], 2)
    if how == "torn":
        old = (root / name).read_bytes()[other * damage.PAGE:][:damage.PAGE // 2]
        damage.tear_page(root, name, first, old)
    elif how == "duplicated":
        damage.duplicate_page(root, name, first, other)
    else:
        damage.swap_pages(root, name, first, other)
    report = subject.verify(root)
    after, base = (root / name).read_bytes(), int(Path(name).name)
    spans = [(place - base, place - base + record.size) for place, record in records.items()
             if base <= place < base + len(data)]
    if all(data[start:end] == after[start:end] for start, end in spans):
        # Only bytes behind the blank were hit: no broker looks at them, they may be anything.
        assert report.coverage["messages"] == len(places)
        return
    assert report.of("commitlog"), report.text()
    assert subject.every_byte_is_accounted_for(report)
    assert report.coverage["messages"] < len(places)
    messages = subject.cli.run("read", root, "-o", "jsonl", "--body", "none").expect(0, 1).jsonl()
    assert {message["physical_offset"] for message in messages} <= places


def test_stale_bytes_behind_the_end_are_no_messages(tiny: tiny_stores.Tiny) -> None:
    file, position = tiny.place(tiny.log_end)
    first = tiny.messages[-2]
    size = len(first.raw)
    damage.stale_tail(tiny.root, file, position, tiny.place(first.start)[1], size)
    report = subject.verify(tiny.root)
    assert report.coverage["messages"] == len(tiny.messages)
    assert subject.every_byte_is_accounted_for(report)


@pytest.mark.parametrize("number", range(5))
def test_garbage_behind_the_end(number: int, tiny: tiny_stores.Tiny, seed: int) -> None:
    file, position = tiny.place(tiny.log_end)
    damage.garbage_tail(tiny.root, file, position, seed + number)
    report = subject.verify(tiny.root)
    assert report.coverage["messages"] == len(tiny.messages)
    assert tiny.log_end in {finding.physical_offset for finding in report.of("commitlog")}
    assert subject.every_byte_is_accounted_for(report)
