"""The formats in which data is shown, by name: what each is like, and which module writes it.

A new format is a module with a ``writer`` and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from rmqctl.output.cells import Layout, Row
    from rmqctl.output.human import Human
    from rmqctl.output.streams import Target


class Writer(Protocol):
    """Writes one format onto one stream."""

    def rows(self, rows: Iterable[Row], layout: Layout) -> int:
        """Rows as they come, a bounded number of them in memory; returns how many there were."""

    def document(self, document: Mapping[str, Any],
                 human: Callable[[Human], None] | None) -> None:
        """One object; ``human`` words it for people."""


class PageWriter(Writer, Protocol):
    """One for people."""

    def page(self) -> Human:
        """What a command writes on."""


class Format(NamedTuple):
    """What a command may know of a format.

    ``is_data``: for programs rather than people, whole and in UTF-8. ``is_flat``: a row has only
    cells, so that of a document with a list the list alone is shown. ``streams``: every row stands
    for itself as soon as it is written. ``is_json``: a row is a JSON object. ``module`` has a
    function ``writer(name, target)``.
    """

    module: str
    is_data: bool = False
    is_flat: bool = False
    streams: bool = False
    is_json: bool = False

    def writer(self, name: str, target: Target) -> Writer:
        writer: Writer = importlib.import_module(self.module).writer(name, target)
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
