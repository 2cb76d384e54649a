"""What the screen shows at a glance: header, strips, figures of the tree."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqctl.ext.browse.figures import figures, topics_of
from rmqctl.ext.browse.header import StoreHeader
from rmqctl.ext.browse.opened import BrowsedPlace, BrowsedStore
from rmqctl.ext.browse.panes import aligned, indented
from rmqctl.ext.browse.survey import (
    BARS,
    DAMAGED,
    INTACT,
    LOST,
    MISSING,
    UNREAD,
    LogOverview,
    judged,
    log_strip,
    time_range,
    time_strip,
)
from rmqctl.ext.browse.tree import StoreTree
from rmqctl.output.cells import display_width
from rmqctl.store import Store
from tests.browse.driving import WIDE, Screen, browse
from tests.support import damage, snapshot
from tests.support import tiny as tiny_stores

BASIC = "5.3.3/basic/store"
LAST, MIDDLE = "commitlog/00000000000000262144", "commitlog/00000000000000131072"
ORDERS = "订单"


def survey_of(root: Path) -> LogOverview:
    with Store.open(root) as store:
        return list(judged(store, lambda _done: None))[-1]


def cells(pieces: list[tuple[str, str]]) -> str:
    return "".join(text for text, _ in pieces)


def grouped(tmp_path: Path) -> Path:
    """Topics of every branch, with consumer offsets."""
    topics = ("orders", ORDERS, f"%DLQ%{ORDERS}", f"%RETRY%{ORDERS}")
    specs = [tiny_stores.Spec(topic, number % 2, json.dumps({"编号": number}).encode(), {})
             for number in range(6) for topic in topics]
    store = tiny_stores.build(tmp_path / "grouped", specs)
    (store.root / "config" / "consumerOffset.json").write_text(json.dumps(
        {"offsetTable": {f"orders@{ORDERS}": {"0": 1, "1": 3}, "orders@g\x1b[31m": {"0": 99}}}))
    return store.root


# -- strips ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "shown"), [
    (MIDDLE, UNREAD * 8 + MISSING * 4 + UNREAD * 8), (LAST, UNREAD * 16 + MISSING * 4)])
def test_a_missing_file_has_its_place_in_the_log_and_in_time(golden_copy, file, shown):
    """Also the last one, which nothing but entries and index prove."""
    root = golden_copy(BASIC)
    damage.remove(root, file)
    survey = survey_of(root)
    assert cells(log_strip(survey, 20, [], lambda _start, _end: 0, None)) == shown
    ((begin, end),) = survey.lost
    first, last = time_range(survey)
    assert first <= begin < end <= last
    times = cells(time_strip(survey, 60))
    assert LOST in times
    assert set(times) <= {*BARS, LOST}


def test_two_missing_files_are_two_pieces_of_lost_time(golden_copy):
    root = golden_copy(BASIC)
    damage.remove(root, MIDDLE)
    damage.remove(root, LAST)
    survey = survey_of(root)
    opened = BrowsedStore(lambda: Store.open(root))
    assert len(survey.lost) == 2
    assert survey.lost[0][1] < survey.lost[1][0]
    list(opened.reader.listing(BrowsedPlace()).forward(None, 9999, lambda _done: None))
    assert opened.seen == (1, 0)
    # The gap that the list has met is still one, and no damage of a file.
    assert cells(log_strip(survey, 20, opened.damaged, opened.read_of, None)) == (
        INTACT * 8 + MISSING * 4 + INTACT * 4 + MISSING * 4)
    opened.close()


def test_what_was_not_read_is_not_called_intact(golden):
    survey = survey_of(golden(BASIC))
    assert set(cells(log_strip(survey, 40, [], lambda _start, _end: 0, None))) == {UNREAD}
    half = cells(log_strip(survey, 40, [(0, 100)], lambda _start, end: min(end, 163_840) - _start,
                           None))
    assert half.rstrip(UNREAD) == DAMAGED + INTACT * 19


@pytest.mark.parametrize("width", [1, 8, 61, 300])
def test_strips_are_as_wide_as_they_should_be(golden, width):
    survey = survey_of(golden(BASIC))
    for pieces in (log_strip(survey, width, survey.gaps, lambda _start, _end: 0, 70_000),
                   time_strip(survey, width)):
        assert display_width(cells(pieces)) == width
    marked = [text for text, style in log_strip(
        survey, width, [], lambda _start, _end: 0, 70_000) if "cursor" in style]
    assert len(marked) == len(marked[0]) == 1


def test_far_times_do_not_hide_the_others():
    samples = [(10 * number, 1_700_000_000_000 + 1000 * number) for number in range(400)]
    log_overview = LogOverview(first=0, end=4000, used=4000,
                               samples=[*samples, (4000, 4_000_000_000_000)])
    assert time_range(log_overview)[1] < 1_700_000_500_000
    assert time_range(LogOverview(first=0, end=4000)) is None


# -- header ----------------------------------------------------------------------------------------


def abort(root: Path) -> None:
    (root / "abort").write_bytes(b"")


def without_last(root: Path) -> None:
    damage.remove(root, LAST)


def torn(root: Path) -> None:
    damage.garbage_tail(root, LAST, 9000, 7, 3000)


@pytest.mark.long
@pytest.mark.parametrize(("harm", "expected_text"), [
    (abort, "abort file: the broker did not stop cleanly"),
    (without_last, "135 messages are already lost"),
    (torn, "truncate 64 intact messages")])
def test_the_header_never_says_that_nothing_is_damaged(
        golden_copy, harm: Callable[[Path], None], expected_text: str):
    root = golden_copy(BASIC)
    harm(root)

    async def act(screen: Screen) -> None:
        header = screen.app.query_one(StoreHeader)
        assert expected_text in str(header.survey.verdict)
        assert "no damage" not in screen.text
        await screen.press("tab", "tab", "tab", "v")  # all of the store
        await screen.press("escape")
        assert header.survey.diagnosis is not None
        assert "no damage" not in str(header.survey.verdict)
        assert "no damage" not in screen.text
        assert " verified" in screen.text or "damaged place" in screen.text

    with snapshot.assert_unchanged(root):
        browse(root, act, WIDE)


@pytest.mark.long
def test_a_sound_store_is_called_so_only_once_it_was_verified(golden):
    async def act(screen: Screen) -> None:
        assert "no damage" not in screen.text
        assert "not verified" in screen.text
        await screen.press("v", "escape")
        assert "sound: no damage, and nothing is lost" in screen.text
        assert "not verified" not in screen.text

    browse(golden(BASIC), act, WIDE)


# -- tree ------------------------------------------------------------------------------------------


def test_figures_of_every_branch(tmp_path):
    opened = BrowsedStore(lambda: Store.open(grouped(tmp_path)))
    reader = opened.reader
    assert topics_of(reader, "topics") == ["orders", ORDERS]
    assert topics_of(reader, "retry") == [f"%RETRY%{ORDERS}"]
    assert topics_of(reader, "dead") == [f"%DLQ%{ORDERS}"]
    topic = figures(reader, BrowsedPlace("topic", "orders"))
    assert topic.brief == "6"
    assert topic.facts["messages"] == "6"
    assert topic.facts[f"group {ORDERS}"] == "lag 2"
    assert topic.facts["first stored"] < topic.facts["last stored"]
    queue = figures(reader, BrowsedPlace("queue", "orders", 1))
    assert (queue.brief, queue.facts["offsets"]) == ("0-2", "0 to 2")
    assert figures(reader, BrowsedPlace("group", group=ORDERS)).brief == "lag 2"
    commit = figures(reader, BrowsedPlace("queue", "orders", 0, group="g\x1b[31m", at=99)).facts
    assert (commit["group"], commit["consumer offset"]) == ("g\\x1b[31m", "99")
    assert "beyond the end of the queue" in commit["note"]
    opened.close()


def test_figures_say_what_lies_beyond_the_log_and_what_cannot_be_read(golden_copy, monkeypatch):
    root = golden_copy(BASIC)
    without_last(root)
    opened = BrowsedStore(lambda: Store.open(root))
    listed_figures = figures(opened.reader, BrowsedPlace("topic", "TP_fraud_Topic"))
    assert listed_figures.brief.endswith(" +44!")
    assert listed_figures.facts["beyond the log"] == "44 entries"
    monkeypatch.setattr("rmqctl.ext.browse.figures.topics_on_disk", lambda _store: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a defect is none of the store
        figures(opened.reader, BrowsedPlace("topics"))

    def fails(_store: Store) -> list[str]:
        raise PermissionError(13, "Permission denied", "x\x1b")

    monkeypatch.setattr("rmqctl.ext.browse.figures.topics_on_disk", fails)
    assert "\\x1b" in figures(opened.reader, BrowsedPlace("topics")).facts["problem"]
    opened.close()


@pytest.mark.long
def test_groups_lead_to_their_offset(tmp_path):
    async def act(screen: Screen) -> None:
        assert "consumer groups" in screen.text
        tree = screen.app.query_one(StoreTree)
        await screen.press(*"jjjjjjj")
        assert tree.place == BrowsedPlace("groups")
        await screen.press("space", "j", "j")
        assert tree.place == BrowsedPlace("group", group=ORDERS)
        assert "lag 2" in screen.text
        await screen.press("space", "j")
        assert "consumer offset" in screen.text  # the pane, for the tree
        await screen.press("enter")
        assert screen.rows.row.place == ("orders", 0, 1)
        await screen.press("tab", "tab", "k", "k", "space", "j", "enter")
        assert screen.rows.row.place == ("orders", 0, 2)  # 99 is beyond the end

    browse(grouped(tmp_path), act, WIDE)


@pytest.mark.long
def test_only_what_is_on_the_screen_is_counted(tiny):
    for number in range(400):
        for queue in range(3):
            (tiny.root / "consumequeue" / f"t{number:04}" / str(queue)).mkdir(parents=True)

    async def act(screen: Screen) -> None:
        tree = screen.app.query_one(StoreTree)
        seen = len(tree._figures)
        assert 10 < seen < 30
        screen.app.animation_level = "none"  # else all that is passed is on the screen, too
        await screen.press("G")
        await screen.until(lambda: len(tree._figures) > seen)
        assert len(tree._figures) < 60
        await screen.press("g")
        assert tree.cursor_line == 0

    browse(tiny.root, act)


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_n_goes_from_damage_to_damage_and_from_hit_to_hit(golden_copy):
    root = golden_copy(BASIC)
    damage.zero(root, "commitlog/00000000000000065536", 9000, 3000)
    damage.flip_bit(root, LAST, 9100, 3)
    damage.remove(root, MIDDLE)

    async def act(screen: Screen) -> None:
        rows, met = screen.rows, []
        await screen.press("tab")
        for _ in range(9):
            await screen.press("n")
            if "no more damage" in screen.text:
                break
            assert rows.row.wrong or rows.row.kind == "damage"
            met.append(rows.row.physical)
        assert met == sorted(set(met))
        assert 131_072 in met  # the missing file
        assert any(65_536 < place < 131_072 for place in met)
        assert met[-1] > 262_144
        await screen.press("g", "slash", ":tags=TagA")
        first = rows.row
        await screen.press("n")
        assert rows.row is rows.rows[1]
        await screen.press("k")
        assert rows.row is first
        await screen.press("G", "n")
        assert "no further hit" in screen.text

    with snapshot.assert_unchanged(root):
        browse(root, act)


@pytest.mark.long
def test_n_in_a_queue_finds_entries_that_lead_nowhere(golden_copy):
    root = golden_copy(BASIC)
    damage.zero(root, "commitlog/00000000000000065536", 0, 30_000)

    async def act(screen: Screen) -> None:
        await screen.press("j", "j", "j", "enter", "n")
        assert isinstance(screen.rows.row.position, tuple)
        assert screen.rows.row.kind == "damage"
        assert 65_536 <= screen.rows.row.physical < 95_536

    browse(root, act)


# -- pane ------------------------------------------------------------------------------------------


def some_json(rng: random.Random, depth: int = 0) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice([None, True, False]), lambda: rng.uniform(-1e9, 1e9),
        lambda: "".join(rng.choices('ab"\\{}[]:, \n订\x1b', k=rng.randrange(6)))]
    if depth < 4:
        kinds += [lambda: [some_json(rng, depth + 1) for _ in range(rng.randrange(4))],
                  lambda: {f'k{n}"': some_json(rng, depth + 1)
                           for n in range(rng.randrange(4))}]
    return rng.choice(kinds)()


def test_an_indented_body_is_the_same_json():
    rng = random.Random(7)
    for _ in range(300):
        value = {"a": some_json(rng), "b": [some_json(rng)]}
        words = json.dumps(value, ensure_ascii=rng.random() < 0.5,
                           separators=rng.choice([(",", ":"), (", ", " : ")]))
        shown = indented(words)
        assert json.loads(shown) == value
        assert shown.count("\n") >= 3


@pytest.mark.parametrize("words", ["", "x", '"x"', "12", '{"a"', "[1,]", "[" * 9000 + "]" * 9000])
def test_what_is_no_json_object_stays_as_it_is(words):
    assert indented(words) is None


def test_numbers_of_a_body_are_not_rewritten():
    assert '"a": 1.10,' in indented('{"a":1.10,"b":1e400,"a":2}')


@pytest.mark.parametrize("width", [20, 52, 120])
def test_values_stand_below_each_other(width):
    lines = aligned([("topic", "orders", ""), ("keys", "键" * 90, ""), ("n" * 40, "v", "bad"),
                     ("evil\x1b[31m", "x", "")], width)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert all(display_width(text) <= max(width, 50) for text in texts)
    assert "\x1b" not in "".join(texts)
    column = texts[0].index("orders")
    assert all(text[:column].strip() in ("", "keys") for text in texts[1:-2])
