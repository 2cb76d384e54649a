"""A screen that is redrawn at intervals, for commands that run until they are stopped."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rmqctl.output.human import Human, RichHuman
from rmqctl.output.richtable import Canvas
from rmqctl.output.streams import Sink, wants_colour

if TYPE_CHECKING:
    from rmqctl.output.language import Language


class Screen:
    """The complete terminal, as a context manager that restores the previous content.

    While the terminal does not accept output, no page is drawn: the command does not wait.
    """

    def __init__(self, stream: IO[str], environ: Mapping[str, str], language: Language | None
                 ) -> None:
        self._colour = wants_colour(stream, environ)
        self._console = Console(file=stream, force_terminal=True, no_color=not self._colour,
                                highlight=False, markup=False, emoji=False)
        self._language = language
        self._live = Live(Text(""), console=self._console, screen=True, auto_refresh=False,
                          redirect_stdout=False, redirect_stderr=False)
        self._drawer = ThreadPoolExecutor(1)
        self._drawn: Future[None] | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._drawer.shutdown()
        self._live.stop()

    @property
    def height(self) -> int:
        """Return the number of visible lines."""
        return self._console.size.height

    def show(self, page: Callable[[Human], None]) -> None:
        """Replace the last page with a new page; do nothing while the last page is still being
        drawn.
        """
        if self._drawn is not None and not self._drawn.done():
            return
        size = self._console.size
        text = drawn(page, Canvas(size.width, self._colour, self._console.encoding),
                     self._language)
        lines = text.rstrip("\n").split("\n")[:size.height]
        self._drawn = self._drawer.submit(self._put, "\n".join(lines))

    def _put(self, text: str) -> None:
        self._live.update(Text.from_ansi(text), refresh=True)


def drawn(page: Callable[[Human], None], canvas: Canvas, language: Any = None) -> str:
    """Return a page as text with escape sequences."""
    paper = io.StringIO()
    page(RichHuman(Sink(paper, "utf-8"), canvas, language))
    return paper.getvalue()
