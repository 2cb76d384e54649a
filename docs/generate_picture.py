"""Draws docs/rmqctl.svg, the session at the top of the README: damage, a repair, a sound store.

The session is real: a bit is flipped in a copy of examples/store, and each command is run as on
a terminal of 100 columns. ``make docs`` draws it; a test runs the session again and compares the
text.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "rmqctl.svg"
SESSION = ("rmqctl verify store", "rmqctl recover store --apply", "rmqctl verify store")
COLUMNS = 100
_DAMAGED = ("commitlog/00000000000000065536", 40301)
#: What differs each time or from disk to disk, and what the picture shows.
_MASKS = ((r"\d{8}T\d{6}Z", "20260101T030000Z"), (r"\([0-9.]+ [KM]iB,(?=\s)", "(16.0 KiB,"))


def session(folder: Path) -> str:
    """What a terminal shows of the session, with its colours, run in an empty ``folder``."""
    store = folder / "store"
    shutil.copytree(ROOT / "examples" / "store", store)
    name, at = _DAMAGED
    with open(store / name, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1", "RMQCTL_LANG": "en",
                   "COLUMNS": str(COLUMNS), "RMQCTL_OUTPUT": "table", "NO_COLOR": "",
                   "XDG_CONFIG_HOME": str(folder)}
    shown = []
    for line in SESSION:
        done = subprocess.run([sys.executable, "-m", *line.split(), "--no-progress"], cwd=folder,
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True, check=False)
        shown.append(f"\x1b[1m$ {line}\x1b[0m\n{done.stdout.rstrip()}\n")
    text = "\n".join(shown).replace(" --no-progress", "")
    for pattern, fixed in _MASKS:
        text = re.sub(pattern, fixed, text)
    return text


def picture(text: str) -> str:
    """A terminal with ``text`` in it, as SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True,
                      color_system="truecolor", legacy_windows=False)
    console.print(Text.from_ansi(text), soft_wrap=True)
    drawn = console.export_svg(title="rmqctl", theme=MONOKAI, unique_id="rmqctl")
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def text_of(drawn: str) -> str:
    """The words in a picture, whatever their colours and places: rich may draw them otherwise."""
    pieces = re.findall(r"<text[^>]*>(.*?)</text>", drawn, re.DOTALL)
    return " ".join(html.unescape(" ".join(pieces)).split())


def main() -> int:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        TARGET.write_text(picture(session(Path(folder))), encoding="utf-8")
    print(f"wrote docs/{TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
