"""The screen as it looks: compared with tests/browse/screens line by line (--update writes them).

Few sessions with many looks: starting one takes longer than a look.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.browse.driving import NARROW, WIDE, Screen, browse
from tests.support import damage

SCREENS = Path(__file__).parent / "screens"
SECOND = "commitlog/00000000000000065536"
PLACE = 74_500
"""A physical offset within what is damaged."""
Look = tuple[str, Sequence[str]]
"""A name, and the keys that lead to it from the look before."""
QUEUE = ("down", "down", "down", "down", "enter")
SOUND: list[Look] = [
    ("first", ()), ("queue", QUEUE), ("hex", ("down", "2")), ("zoomed", ("z",)),
    ("goto", ("z", "1", "shift+tab", "colon", ":20")), ("verify-row", ("v",)),
    ("filter", ("escape", "slash", ":tags=TagA && body~h")), ("help", ("question_mark",)),
]
WIDER: list[Look] = [("first-wide", ()), ("json-wide", (*QUEUE, "3")),
                     ("filter-wide", ("slash", ":audit"))]
DAMAGED: list[Look] = [("damaged", ("tab", "colon", f":{PLACE}")), ("damaged-hex", ("2",)),
                       ("verify-damage", ("v",))]
DAMAGED_WIDE: list[Look] = [("damaged-wide", ("tab", "colon", f":{PLACE}"))]


@pytest.fixture(scope="module")
def broken(golden, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("browse") / "store"
    shutil.copytree(golden("5.3.3/basic/store"), root)
    damage.garbage_tail(root, SECOND, 9000, 7, 3000)
    return root


def compare(root: Path, looks: Sequence[Look], size: tuple[int, int],
            request: pytest.FixtureRequest) -> None:
    seen: dict[str, str] = {}

    async def act(screen: Screen) -> None:
        for name, keys in looks:
            await screen.press(*keys)
            # The first line begins with the path, which is another one in each run.
            seen[name] = re.sub(r"\A.*?(?=(not )?in use)", "", screen.text)

    browse(root, act, size)
    for name, text in seen.items():
        path = SCREENS / f"{name}.txt"
        if request.config.getoption("--update"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path} (--update writes it)"


@pytest.mark.long
def test_a_sound_store(golden, request):
    compare(golden("5.3.3/basic/store"), SOUND, NARROW, request)


@pytest.mark.long
def test_a_sound_store_on_a_large_screen(golden, request):
    compare(golden("5.3.3/basic/store"), WIDER, WIDE, request)


def test_a_damaged_store(broken, request, monkeypatch):
    # The path in the command to run next is broken into lines, whose number sets the scrollbar.
    monkeypatch.chdir(broken.parent)
    compare(Path(broken.name), DAMAGED, NARROW, request)


@pytest.mark.long
def test_a_damaged_store_on_a_large_screen(broken, request):
    compare(broken, DAMAGED_WIDE, WIDE, request)
