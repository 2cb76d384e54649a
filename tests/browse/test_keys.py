"""What the keys do, on stores of every state; nothing of a store is changed by any of them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from rmqctl.commands.inspect import browse as command
from rmqctl.ext.browse.app import Browser
from rmqctl.ext.browse.listing import ListedRows, LogListing, QueueListing
from rmqctl.ext.browse.opened import BrowsedPlace
from tests.browse.driving import WIDE, Screen, browse
from tests.support import damage, holder, snapshot

pytestmark = pytest.mark.long
BASIC = "5.3.3/basic/store"
HOSTILE = "[bold red]T[]\x1b]0;x\x07\u202eevil%s"  # no slash: it is a folder's name


def test_going_places(golden):
    async def act(screen: Screen) -> None:
        rows = screen.rows
        await screen.press("tab", "end")
        last = rows.row
        assert rows.at_end
        assert last is rows.rows[-1]
        await screen.press("home")
        assert rows.row.position == 0
        await screen.press("colon", ":@84296")
        assert rows.row.physical == 84296
        await screen.press("o")  # its queue
        assert isinstance(rows.listing, QueueListing)
        assert rows.row.physical == 84296
        await screen.press("o")  # and back
        assert isinstance(rows.listing, LogListing)
        assert rows.row.physical == 84296
        await screen.press("t", ":2024-06-21T19:51:12Z")
        assert rows.row.cells["time"] >= "2024-06-21T19:51:12"
        await screen.press("K", ":order-320")
        assert "key order-320" in screen.text
        assert all("order-320" in row.cells["keys"] for row in rows.rows)
        for keys, expected_text in ((("colon", ":@99999999"), "beyond the end of the log"),
                                    (("colon", ":x"), "invalid offset"),
                                    (("t", ":-2h"), "only messages have a time"),
                                    (("K", ":nosuchkey"), "no message with the key")):
            await screen.press(*keys)
            assert expected_text in screen.text

    with snapshot.assert_unchanged(golden(BASIC)):
        browse(golden(BASIC), act)


def test_a_filter_while_it_is_typed_and_taken_away(golden):
    async def act(screen: Screen) -> None:
        rows, line = screen.rows, screen.app.query_one("#filter")
        await screen.press("slash", ":nosuchfield=3")
        assert "no field 'nosuchfield'" in screen.text
        all_rows = len(rows.rows)
        await screen.press("slash")
        line.value = "tags=TagA"
        await screen.pilot.pause(0.5)  # without Enter
        await screen.settle()
        assert {row.cells["tags"] for row in rows.rows} == {"TagA"}
        assert "messages found" in screen.text
        await screen.press("escape", "escape")
        assert len(rows.rows) == all_rows

    browse(golden(BASIC), act)


def test_export_of_what_is_filtered(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def act(screen: Screen) -> None:
        await screen.press("slash", ":tags=TagA", "e", ":out.jsonl")
        assert "messages exported to out.jsonl" in screen.text
        await screen.press("e", ":out.jsonl")
        assert "out.jsonl" in screen.text
        assert "already" in screen.text
        await screen.press("e", ":out.txt")
        assert "unknown extension" in screen.text

    with snapshot.assert_unchanged(golden(BASIC)):
        browse(golden(BASIC), act)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {line["tags"] for line in lines} == {"TagA"}
    assert len(lines) > 50


def test_verify_of_a_file_leads_to_the_damage(golden_copy):
    root = golden_copy(BASIC)
    damage.garbage_tail(root, "commitlog/00000000000000065536", 9000, 7, 3000)

    async def act(screen: Screen) -> None:
        await screen.press("down", "space", "down", "down", "v")
        # The garbage begins in the properties of a message.
        assert "log file 00000000000000065536: 2 findings" in screen.text
        assert "property-damaged" in screen.text
        assert "record-damaged" in screen.text
        await screen.press("down", "enter")
        assert screen.rows.row.physical == 74565
        assert screen.rows.row.kind == "damage"
        assert "1 damaged place" in screen.text

    with snapshot.assert_unchanged(root):
        browse(root, act)


def test_an_empty_store(tmp_path):
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)

    async def act(screen: Screen) -> None:
        assert "the log has no files" in screen.text
        await screen.press("tab", "end", "colon", ":0", "v")
        assert "no damage found" in screen.text
        await screen.press("escape", "r", "2", "o")

    browse(tmp_path / "empty", act)


def test_what_strangers_wrote_steers_nothing(tiny):
    """Topic names, keys and bodies hold escapes, marks that turn text, and rich's markup."""
    os.rename(tiny.root / "consumequeue" / "orders", tiny.root / "consumequeue" / HOSTILE)

    async def act(screen: Screen) -> None:
        text = screen.text
        assert "[bold red]T[]\\x1b" in text
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
        await screen.press("down", "down", "down", "enter")
        assert "[bold red]T[]" in screen.text
        await screen.press("v")
        await screen.press("escape", "K", ":[bold]x[/]")
        assert "[bold]x[/]" in screen.text

    browse(tiny.root, act, WIDE)


@pytest.mark.parametrize("kind", holder.KINDS[:1])
def test_beside_a_running_broker(golden_copy, kind):
    root = golden_copy(BASIC)

    async def act(screen: Screen) -> None:
        assert "in use by process" in screen.text
        before = len(screen.rows.rows)
        assert before
        await screen.press("r")
        assert "read again" in screen.text
        assert len(screen.rows.rows) == before

    with holder.held(root, kind):
        browse(root, act)


def test_files_that_vanish_or_cannot_be_read(golden_copy):
    root = golden_copy(BASIC)

    async def act(screen: Screen) -> None:
        for path in (root / "commitlog").iterdir():
            path.unlink()
        await screen.press("tab", "end", "2", "v")
        await screen.press("escape", "r")
        assert "the log has no files" in screen.text

    browse(root, act)


def test_what_takes_long_can_be_stopped(golden, monkeypatch):
    def for_ever(_listing, _start, _count, watch):
        while True:
            watch(1)
            time.sleep(0.01)
            yield ListedRows([], 100)

    async def act(screen: Screen) -> None:
        monkeypatch.setattr(LogListing, "forward", for_ever)
        screen.app.main.query_one("#filter").value = "tags=TagA"
        screen.app._apply_filter()
        await screen.until(
            lambda: "filter: 0%, 0 messages found, Esc stops" in screen.text)
        # What comes up over it meanwhile does not mind.
        screen.app.simulate_key("question_mark")
        await screen.until(lambda: "Everywhere" in screen.text)
        screen.app._look_at_lock()
        screen.app.simulate_key("escape")
        await screen.until(lambda: "Everywhere" not in screen.text)
        await screen.press("escape")
        assert "stopped" in screen.text
        assert not screen.rows.is_reading

    browse(golden(BASIC), act)


def test_what_comes_in_after_the_end_is_no_defect(golden):
    ended: list[Browser] = []

    async def act(screen: Screen) -> None:
        ended.append(screen.app)
        screen.app.query_one("#header").remove()
        await screen.settle()
        screen.app._look_at_lock()  # the clock may still come, when the widgets are gone

    browse(golden(BASIC), act)
    (app,) = ended
    with pytest.raises(IndexError) as late:
        app._apply_filter()  # no screen is there any more
    app._handle_exception(late.value)
    assert app.failure is None


def test_many_topics_are_parted(tiny):
    for number in range(1201):
        (tiny.root / "consumequeue" / f"t{number:04}").mkdir()

    async def act(screen: Screen) -> None:
        assert "t0498 …" in screen.text
        assert "t0000" not in screen.text
        await screen.press("down", "down", "down", "space")
        assert "t0000" in screen.text

    browse(tiny.root, act)


def test_places_have_safe_names():
    assert BrowsedPlace("topic", "a\x1bb").name == "a\\x1bb"


def test_without_a_terminal(rmqctl, tiny):
    done = rmqctl("browse", tiny.root).expect(2)
    assert "browse requires a terminal" in done.err


def test_without_its_extra(rmqctl, tiny, monkeypatch):
    monkeypatch.setattr(command, "has_screen", lambda _environ: True)
    monkeypatch.setitem(sys.modules, "textual", None)
    done = rmqctl("browse", tiny.root).expect(3)
    assert "pip install 'rmqctl[tui]'" in done.err
    assert len(done.err.splitlines()) == 1
