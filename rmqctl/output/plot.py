"""Plots as text: bars and columns. Pure functions that convert numbers to lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rmqctl.output.cells import cut, display_width
from rmqctl.output.escape import visible

_EIGHTHS_RIGHT = " ▏▎▍▌▋▊▉█"  # a cell filled from the left by 0 to 8 eighths
_EIGHTHS_UP = " ▁▂▃▄▅▆▇█"  # a cell filled from below
_MAX_LABEL = 40


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def bars(items: Iterable[tuple[str, float]], *, width: int = 80, unicode: bool = True,
         show: Callable[[float], str] = _number) -> str:
    """Return horizontal bars, one line per ``(label, value)``, with the value at the end.

    Values must not be negative. The line of the greatest value is ``width`` columns wide. If
    ``unicode`` is false, bars consist of ``#``. The bar of a value above 0 is never empty. If there
    are no items, the result is ``""``.
    """
    pairs = [
        (cut(visible(label), _MAX_LABEL, "…" if unicode else "..."), value)
        for label, value in items
    ]
    if not pairs:
        return ""
    texts = [show(value) for _label, value in pairs]
    labels = max(display_width(label) for label, _value in pairs)
    numbers = max(map(len, texts))
    room = max(width - labels - numbers - 4, 10)
    most = max(value for _label, value in pairs)
    lines = []
    for (label, value), text in zip(pairs, texts, strict=True):
        pad = " " * (labels - display_width(label))
        bar = _bar(value / most if most > 0 else 0.0, room, unicode)
        lines.append(f"{label}{pad}  {text:>{numbers}}  {bar}".rstrip())
    return "\n".join(lines)


def _bar(share: float, room: int, unicode: bool) -> str:
    if not unicode:
        return "#" * max(round(share * room), 1 if share > 0 else 0)
    eighths = max(round(share * room * 8), 1 if share > 0 else 0)
    full, part = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS_RIGHT[part] if part else "")


def columns(values: Sequence[float], *, first: str, last: str, width: int = 80, height: int = 8,
            unicode: bool = True, show: Callable[[float], str] = _number) -> str:
    """Return a series over time as columns, ``height`` lines high, with an axis.

    ``first`` and ``last``: labels at the ends of the axis. Each value has a column; if there are
    more values than columns, each column shows the sum of a group of adjacent values. Without
    values the result is ``""``.
    """
    if not values:
        return ""
    # The sum has the widest label of any grouping.
    room = max(width - len(show(sum(values))) - 3, 10)
    group = -(-len(values) // room)
    series = [sum(values[i : i + group]) for i in range(0, len(values), group)]
    most = max(series)
    steps = 8 if unicode else 1
    heights = [
        max(round(v / most * height * steps), 1 if v > 0 else 0) if most > 0 else 0 for v in series
    ]
    top, zero = show(most), show(0)
    margin = max(len(top), len(zero))
    upright, corner, rule = ("│", "└", "─") if unicode else ("|", "+", "-")
    lines = []
    for level in range(height - 1, -1, -1):
        label = top if level == height - 1 else zero if level == 0 else ""
        cells = "".join(_column_cell(h - level * steps, unicode) for h in heights)
        lines.append(f"{label:>{margin}} {upright}{cells}".rstrip())
    lines.append(f"{'':>{margin}} {corner}{rule * len(series)}")
    space = max(len(series) - len(first) - len(last), 1)
    lines.append(f"{'':>{margin}}  {first}{' ' * space}{last}".rstrip())
    return "\n".join(lines)


def _column_cell(left: int, unicode: bool) -> str:
    """Return the character of a column in a line. ``left``: number of steps by which the column is
    higher than the bottom of the line.
    """
    if left <= 0:
        return " "
    return _EIGHTHS_UP[min(left, 8)] if unicode else "#"
