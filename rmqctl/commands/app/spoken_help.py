"""Help in a language other than English, with text widths measured in terminal columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from rmqctl.output.cells import display_width, folded, padded
from rmqctl.output.language import Language

_STEP = "  "
_WIDEST_NAME = 30
_SHORTEST_LINE = 10
_REMARKS = "  ["


class SpokenHelp:
    """A formatter that translates help. It has only those methods of typer's formatter that help
    uses.
    """

    def __init__(self, language: Language, width: int) -> None:
        self.width = width
        self._language = language
        self._indent = ""
        self._written: list[str] = []

    def write(self, string: str) -> None:
        text = string.rstrip("\n")
        self._written.append(self._language.text(text) + string[len(text):])

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        start = self._heading("Usage") + prog + " "
        width = display_width(start)
        for line in folded(args, max(self.width - width, _SHORTEST_LINE)):
            self._written.append(f"{start}{line}\n")
            start = " " * width

    def _heading(self, text: str) -> str:
        return self._language.caption(text) + self._language.caption(": ")

    def write_heading(self, heading: str) -> None:
        self._written.append(f"{self._indent}{self._heading(heading)}\n")

    def write_paragraph(self) -> None:
        if self._written:
            self._written.append("\n")

    def write_text(self, text: str) -> None:
        for line in folded(self._language.text(text), self.width - len(self._indent)):
            self._written.append(f"{self._indent}{line}\n")

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write names and their explanations in two columns."""
        width = min(max(display_width(name) for name, _ in rows), _WIDEST_NAME) + len(_STEP)
        for name, text in rows:
            lines = folded(self._explained(text), max(
                self.width - width - len(_STEP), _SHORTEST_LINE))
            if display_width(name) > width - len(_STEP) and lines:
                self._written.append(f"{self._indent}{name}\n")
                start = ""
            else:
                start = name
            for line in lines or [""]:
                self._written.append(f"{self._indent}{padded(start, width)}{line}".rstrip() + "\n")
                start = ""

    def _explained(self, text: str) -> str:
        """Return the translated help of a parameter, including the remarks in brackets after it."""
        whole = self._language.catalog.get(" ".join(text.split()))
        help_text, joint, remarks = text.partition(_REMARKS)
        translated = self._language.text(help_text)
        if whole is not None or not joint:
            return whole or translated
        parts = remarks.removesuffix("]").split("; ")
        between = self._language.caption("; ")
        return f"{translated}{_REMARKS}{between.join(map(self._language.caption, parts))}]".lstrip()

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write_paragraph()
        self.write_heading(name)
        with self.indentation():
            yield

    @contextlib.contextmanager
    def indentation(self) -> Iterator[None]:
        before, self._indent = self._indent, self._indent + _STEP
        yield
        self._indent = before

    def getvalue(self) -> str:
        return "".join(self._written)
