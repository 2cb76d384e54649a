"""What a command says to a person about one object: headings, pairs, tables, text.

A command writes against :class:`Human` and does not know whether it speaks to a terminal, a
file or a Markdown page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmqctl.output.cells import Render, Row, Styles, Table, cell_text, cut
from rmqctl.output.escape import markdown_text, visible, visible_lines
from rmqctl.output.plain import write_tabulated
from rmqctl.output.streams import Target, can_encode, wants_colour

if TYPE_CHECKING:
    from rmqctl.output.richtable import Canvas
    from rmqctl.output.streams import Sink

_VALUE_LIMIT = 2000
_UNICODE_SAMPLE = "…─│█▁"


class Human(ABC):
    """The page a command writes on.

    ``width`` is in columns; ``unicode`` says whether block and box characters can be shown,
    ``colour`` whether styles have an effect.
    """

    def __init__(self, sink: Sink, *, width: int, unicode: bool) -> None:
        self._sink = sink
        self._started = False
        self.width = width
        self.unicode = unicode
        self.colour = False
        self.mark = "…" if unicode else "..."

    def heading(self, text: str) -> None:
        """Start a section."""
        self._gap()
        self._heading(visible(text))

    def pairs(self, mapping: Mapping[str, Any], *, styles: Mapping[str, str] | None = None) -> None:
        """Names and values, one pair per line; ``styles`` names a style for some of the values."""
        self._started = True
        texts = {
            visible(str(key)): cut(cell_text(value), _VALUE_LIMIT, self.mark)
            for key, value in mapping.items()
        }
        if texts:
            self._pairs(texts, styles or {})

    @abstractmethod
    def table(
        self,
        rows: Iterable[Row],
        columns: Sequence[str] | None = None,
        title: str | None = None,
        *,
        render: Render | None = None,
        styles: Styles | None = None,
    ) -> int:
        """Rows as a table, streamed; returns how many.

        ``render`` words the values of a column; ``styles`` colours them by value.
        """

    def text(self, text: str, style: str | None = None) -> None:
        """Lines as they are (a sentence, a plot); ``style``: good, warn, bad, dim, bold."""
        self._started = True
        self._text(visible_lines(text), style)

    def blank(self) -> None:
        """One empty line."""
        self._sink.write("\n")

    def _gap(self) -> None:
        if self._started:
            self._sink.write("\n")
        self._started = True

    @abstractmethod
    def _heading(self, text: str) -> None: ...

    @abstractmethod
    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None: ...

    @abstractmethod
    def _text(self, text: str, style: str | None) -> None: ...


class PlainHuman(Human):
    """For files and pipes: aligned text without colours."""

    style = "plain"

    def table(
        self,
        rows: Iterable[Row],
        columns: Sequence[str] | None = None,
        title: str | None = None,
        *,
        render: Render | None = None,
        styles: Styles | None = None,
    ) -> int:
        if title:
            self._gap()
            self._title(visible(title))
        self._started = True
        return write_tabulated(self._sink, self.style, rows, columns, render=render, mark=self.mark)

    def _title(self, text: str) -> None:
        self._sink.write(f"{text}\n")

    def _heading(self, text: str) -> None:
        self._sink.write(f"{text}\n{'-' * len(text)}\n")

    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None:
        width = max(map(len, texts))
        for key, value in texts.items():
            self._sink.write(f"{key:<{width}}  {value}".rstrip() + "\n")

    def _text(self, text: str, style: str | None) -> None:
        self._sink.write(f"{text}\n")


class MarkdownHuman(PlainHuman):
    """For a report or a ticket: GitHub-flavoured Markdown."""

    style = "markdown"

    def _title(self, text: str) -> None:
        self._sink.write(f"**{markdown_text(text)}**\n\n")

    def _heading(self, text: str) -> None:
        self._sink.write(f"## {markdown_text(text)}\n\n")

    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None:
        for key, value in texts.items():
            self._sink.write(f"- **{markdown_text(key)}**: {markdown_text(value)}".rstrip() + "\n")

    def _text(self, text: str, style: str | None) -> None:
        if "\n" in text:  # a plot or a dump: only a fence keeps its columns
            self._sink.write(f"```\n{text}\n```\n")
        else:
            self._sink.write(f"{markdown_text(text)}\n")


class RichHuman(Human):
    """For a terminal: colours and rich tables."""

    def __init__(self, sink: Sink, canvas: Canvas) -> None:
        super().__init__(sink, width=canvas.width, unicode=canvas.unicode)
        self._canvas = canvas
        self.colour = canvas.colour

    def table(
        self,
        rows: Iterable[Row],
        columns: Sequence[str] | None = None,
        title: str | None = None,
        *,
        render: Render | None = None,
        styles: Styles | None = None,
    ) -> int:
        from rmqctl.output.richtable import write_rich_table

        if title:
            self._gap()
        self._started = True
        return write_rich_table(
            self._sink, self._canvas, rows, columns, title=title, render=render, styles=styles
        )

    def _heading(self, text: str) -> None:
        self._styled(text, "title")

    def _pairs(self, texts: Mapping[str, str], styles: Mapping[str, str]) -> None:
        from rich.text import Text

        from rmqctl.output.richtable import STYLES

        width = max(map(len, texts))
        lines = [
            Text.assemble(
                (f"{key:<{width}}", STYLES["key"]),
                "  ",
                (value, STYLES.get(styles.get(key, ""), "")),
            )
            for key, value in texts.items()
        ]
        self._sink.write(self._canvas.draw(*lines))

    def _text(self, text: str, style: str | None) -> None:
        self._styled(text, style)

    def _styled(self, text: str, style: str | None) -> None:
        from rich.text import Text

        from rmqctl.output.richtable import STYLES

        self._sink.write(self._canvas.draw(Text(text, style=STYLES.get(style or "", ""))))


def describe(human: Human, document: Mapping[str, Any]) -> None:
    """Show an object nobody wrote a page for: scalars as pairs, lists of objects as tables."""
    plain: dict[str, Any] = {}
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for key, value in document.items():
        if (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(item, Mapping) for item in value)
        ):
            tables[key] = list(value)
        else:
            plain[key] = value
    human.pairs(plain)
    for key, rows in tables.items():
        human.table(rows, None, key)


class Pages:
    """Writes a format for people: a table for rows, a page for a document."""

    def __init__(self, name: str, target: Target) -> None:
        self._name, self._target = name, target

    def page(self) -> Human:
        target = self._target
        if self._name == "table":
            from rmqctl.output.richtable import Canvas

            return RichHuman(target.sink, Canvas(
                target.width, wants_colour(target.stream, target.environ), target.sink.encoding))
        kind = MarkdownHuman if self._name == "markdown" else PlainHuman
        return kind(target.sink, width=target.width,
                    unicode=can_encode(target.stream, _UNICODE_SAMPLE))

    def rows(self, rows: Iterable[Row], table: Table) -> int:
        columns = table.columns if table.brief is None else table.brief
        return self.page().table(rows, columns, table.title, render=table.render,
                                 styles=table.styles)

    def document(self, document: Mapping[str, Any],
                 human: Callable[[Human], None] | None) -> None:
        if human is None:
            describe(self.page(), document)
        else:
            human(self.page())


def writer(name: str, target: Target) -> Pages:
    """The writer of ``table``, ``plain`` or ``markdown``."""
    return Pages(name, target)
