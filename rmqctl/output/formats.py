"""The output formats by name: their properties, and the modules that write them.

A new format needs a module with a function ``writer``, and an entry in `FORMATS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from rmqctl.output.cells import Row, RowLayout
    from rmqctl.output.human import Human
    from rmqctl.output.streams import WriterTarget


class FormatWriter(Protocol):
    """A writer of one format to one stream."""

    def rows(self, rows: Iterable[Row], layout: RowLayout) -> int:
        """Write rows as they are produced; return their number. Only a bounded number of rows is
        kept in memory.
        """

    def document(self, document: Mapping[str, Any],
                 human: Callable[[Human], None] | None) -> None:
        """Write an object; ``human`` formats it for people."""


class PageWriter(FormatWriter, Protocol):
    """A writer that has pages for people."""

    def page(self) -> Human:
        """Return a page to which a command writes."""


class Format(NamedTuple):
    """Properties of a format for commands.

    ``module``: the module with the function ``writer(name, target)``.
    ``is_data``: whether the format is for programs: complete, and in UTF-8.
    ``is_flat``: whether a row has only cells, without nested values.
    ``streams``: whether every row is usable as soon as it is written.
    ``is_json``: whether a row is a JSON object.
    """

    module: str
    is_data: bool = False
    is_flat: bool = False
    streams: bool = False
    is_json: bool = False

    def writer(self, name: str, target: WriterTarget) -> FormatWriter:
        writer: FormatWriter = importlib.import_module(self.module).writer(name, target)
        return writer


FORMATS: dict[str, Format] = {
    "table": Format("rmqctl.output.human"),
    "json": Format("rmqctl.output.jsonlines", is_data=True, is_json=True),
    "jsonl": Format("rmqctl.output.jsonlines", is_data=True, streams=True, is_json=True),
    "csv": Format("rmqctl.output.separated", is_data=True, is_flat=True, streams=True),
    "tsv": Format("rmqctl.output.separated", is_data=True, is_flat=True, streams=True),
    "markdown": Format("rmqctl.output.human"),
    "plain": Format("rmqctl.output.human"),
}
