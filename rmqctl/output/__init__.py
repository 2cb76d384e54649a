"""Output of rows, documents, messages and progress. No other package prints.

Commands need four names: :class:`Output`, :class:`Human` (for annotations), :data:`FLUSH` and
:class:`Encoded`. The module of a format is imported only when used: a run with JSON output does not
load rich.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqctl.output.cells import FLUSH, Encoded
from rmqctl.output.core import Output
from rmqctl.output.formats import FORMATS
from rmqctl.output.progress import Progress

if TYPE_CHECKING:
    from rmqctl.output.human import Human

__all__ = ["FLUSH", "FORMATS", "Encoded", "Human", "Output", "Progress"]


def __getattr__(name: str) -> object:
    if name == "Human":
        from rmqctl.output.human import Human

        return Human
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
