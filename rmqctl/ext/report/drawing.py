"""The charts of a report: messages and bytes over time with damage marked, and the map of the log.

matplotlib draws the charts without a display, from numbers and times only. The charts contain no
text of the store.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rmqctl.ext.report.svg import PALETTE, embedded
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import count_text, size_text, time_text
from rmqctl.scan.frames import BLANK, DAMAGED, ZERO
from rmqctl.scan.profile import KINDS, MAX_CELLS, MESSAGES, STEPS, LogProfile, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Mark = tuple[int | None, int | None]
"""Store times (ms) of the last message before damage and the first message after it; None if that
message is missing.
"""
Say = Callable[..., str]
"""A function that returns a sentence in the language of the report, with its values filled in."""
_BARS = 150
_MAX_TITLES = 300
_CROWD = 0.995
"""Share of the messages that a chart must show; the rest are left out if they are far away in time.
"""
_FAR = 12
_TIMES = ["%Y", "%Y-%m", "%m-%d", "%H:%M", "%H:%M", "%S.%f"]
"""Formats of tick labels for years, months, days, hours, minutes and seconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rmqctl", "font.size": 8.5,
          "axes.edgecolor": PALETTE["line"], "axes.labelcolor": PALETTE["text"],
          "axes.linewidth": 0.8, "axes.spines.top": False, "axes.spines.right": False,
          "axes.spines.left": False, "axes.grid": True, "axes.grid.axis": "y",
          "axes.axisbelow": True, "grid.color": PALETTE["line"], "grid.linewidth": 0.5,
          "xtick.color": PALETTE["line"], "xtick.labelcolor": PALETTE["text"],
          "ytick.color": PALETTE["line"], "ytick.labelcolor": PALETTE["text"],
          "ytick.left": False, "text.color": PALETTE["text"], "text.parse_math": False,
          "timezone": "UTC"}


class ChartShape(NamedTuple):
    """Layout of a chart.

    * ``name``: its class in the page
    * ``width``, ``height``: its size in inches
    * ``font``: its font size in points
    * ``ticks``: the maximum number of ticks of a time axis
    * ``columns``: the number of cells in a row of the map
    """

    name: str
    width: float
    height: float
    font: float
    ticks: int
    columns: int


WIDE = ChartShape("wide", 9.6, 3.3, 8.5, 9, 128)
NARROW = ChartShape("narrow", 4.2, 3.6, 10.5, 4, 40)
"""The layouts of a chart on a desktop screen or paper, and on a phone."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Numbers of messages and of their bytes in each bar. A bar covers ``step`` ms; the first bar
    starts at ``start`` (ms). ``outside``: number of messages far before or after all bars.
    """

    start: int
    step: int
    messages: tuple[int, ...]
    size: tuple[int, ...]
    outside: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.messages) * self.step


def bars(times: Timeline, lost: Iterable[int] = ()) -> Bars | None:
    """Return a timeline as at most `_BARS` bars; None if there are neither messages nor lost
    messages.

    ``lost``: store times (ms) of lost messages. The bars also cover these times, except those that
    are far from the times of the messages.
    """
    steps = sorted(times.steps.items())
    also = sorted(time // times.step for time in lost)
    if not steps and not also:
        return None
    steps = steps or [(also[0], (0, 0))]
    first, last = steps[0][0], steps[-1][0]
    total = sum(count for _, (count, _) in steps)
    low, high = _crowd([(number, count) for number, (count, _) in steps], total) if total else (
        first, last)
    if (high - low + 1) * _FAR < last - first + 1:
        steps = [step for step in steps if low <= step[0] <= high]
        first, last = low, high
    most = (last - first + 1) * _FAR if total else 1 << 62
    first = min([first, *(number for number in also if first - number < most)])
    last = max([last, *(number for number in also if number - last < most)])
    length = (last - first + 1) * times.step
    step = next((step for step in STEPS if step >= times.step and length // step <= _BARS),
                STEPS[-1] * (1 + length // (STEPS[-1] * _BARS)))
    scale = step // times.step
    start = first // scale
    messages, size = ([0] * (last // scale - start + 1) for _ in range(2))
    for number, (count, many) in steps:
        messages[number // scale - start] += count
        size[number // scale - start] += many
    return Bars(start * step, step, tuple(messages), tuple(size), total - sum(messages))


def _crowd(steps: Sequence[tuple[int, int]], total: int) -> tuple[int, int]:
    """Return the indexes of the first and the last step that the chart must show.

    The share `_CROWD` of the messages is between these steps.
    """
    spare = int(total * (1 - _CROWD) / 2)

    def end(some: Iterable[tuple[int, int]]) -> int:
        passed = 0
        for number, count in some:
            passed += count
            if passed > spare:
                return number
        raise AssertionError

    return end(steps), end(reversed(steps))


def timeline(drawn: Bars, marks: Sequence[Mark], lost: Sequence[Mark], tz: tzinfo, say: Say,
             shape: ChartShape) -> str:
    """Return an SVG chart with two rows of bars over one time axis. Damage and periods of lost
    messages appear as bands over both rows, with a marker above each band.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def moment(millis: int) -> float:
        return float(date2num(_EPOCH + timedelta(milliseconds=millis)))

    titles: dict[str, str] = {}
    # Draw messages and bytes as two rows over the same axis of time.
    with _figure(shape, shape.height) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        step = drawn.step / 86_400_000
        lefts = [moment(drawn.start + number * drawn.step) for number in range(len(drawn.messages))]
        for axes, values, kind in ((upper, drawn.messages, "messages"), (lower, drawn.size,
                                                                        "bytes")):
            container = axes.bar(lefts, values, width=step * 0.86, align="edge",
                                 color=PALETTE[kind], linewidth=0)
            # Each bar gets a tooltip with its period and both values.
            for number, bar in enumerate(container):
                begin = drawn.start + number * drawn.step
                name = f"{kind}-{number}"
                bar.set_gid(name)
                titles[name] = say(
                    "{start} to {end}: {messages} messages, {size}", start=time_text(begin, tz),
                    end=time_text(begin + drawn.step, tz),
                    messages=count_text(drawn.messages[number]), size=size_text(drawn.size[number]))
            axes.tick_params(length=0, pad=4)
            axes.yaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 2.5, 5, 10]))
            axes.margins(x=0)
        # Use short labels: thousands for messages, binary units for bytes.
        upper.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short_count(value)))
        lower.yaxis.set_major_formatter(FuncFormatter(
            lambda value, _: size_text(int(value)).replace(".0 ", " ")))
        upper.set_ylim(0, max(max(drawn.messages) * 1.05, 1))
        _binary_ticks(lower, max(drawn.size))
        # Fix the range before the marks, so that damage at the border does not move the axis.
        first, last = moment(drawn.start), moment(drawn.end)
        room = (last - first) * 0.01
        lower.set_xlim(first - room, last + room)
        locator = AutoDateLocator(tz=tz, minticks=shape.ticks // 2, maxticks=shape.ticks)
        lower.xaxis.set_major_locator(locator)
        lower.xaxis.set_major_formatter(ConciseDateFormatter(
            locator, tz=tz, formats=_TIMES, zero_formats=["", *_TIMES[:5]], show_offset=False))
        both = upper, lower
        titles |= _draw_marks(both, drawn, lost, "lost", moment, lambda start, end: say(
            "messages stored between {start} and {end} are lost", start=start, end=end), tz)
        titles |= _draw_marks(both, drawn, marks, "damaged", moment, lambda start, end: say(
            "damage between {start} and {end}", start=start, end=end), tz)
        return embedded(_svg(figure), titles, f"timeline-{shape.name}", shape.name)


def _draw_marks(rows: tuple[Axes, Axes], drawn: Bars, marks: Sequence[Mark], colour: str,
                moment: Callable[[int], float], title: Callable[[str, str], str],
                tz: tzinfo) -> dict[str, str]:
    titles = {}
    least = (drawn.end - drawn.start) * 0.004
    for number, (before, after) in enumerate(marks):
        if before is None and after is None:
            continue
        begin = min(max(drawn.start if before is None else before, drawn.start), drawn.end)
        end = min(max(drawn.end if after is None else after, begin), drawn.end)
        middle = (begin + end) / 2
        if end - begin < least:
            begin, end = int(middle - least / 2), int(middle + least / 2)
        name = f"{colour}-{number}"
        titles[name] = title("…" if before is None else time_text(before, tz),
                             "…" if after is None else time_text(after, tz))
        for axes in rows:
            axes.axvspan(moment(begin), moment(end), color=PALETTE[colour], alpha=0.32,
                         linewidth=0, zorder=0.4 if colour == "lost" else 1.5)
        sign = rows[0].plot([moment(int(middle))], [1.06], marker="v", markersize=6,
                            color=PALETTE[colour], markeredgewidth=0, clip_on=False,
                            transform=rows[0].get_xaxis_transform())
        sign[0].set_gid(name)
    return titles


def _binary_ticks(axes: Axes, most: int) -> None:
    """Set two or three ticks of the size axis, at round binary sizes."""
    step = 1
    while step * 3 < most:
        step *= 2
    axes.set_yticks(range(0, most + step, step) if most > step * 2 else (0, step, 2 * step))
    axes.set_ylim(0, max(most * 1.08, 1))


def _short_count(value: float) -> str:
    for least, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if value >= least:
            scale = 1000 if unit == "k" else least
            return f"{value / scale:g}{unit}"
    return f"{value:,g}"


# -- the map ---------------------------------------------------------------------------------------


def cells(profile: LogProfile, reach: int = 0) -> list[str | None]:
    """Return a word of `KINDS` for each cell of the log; None if no file covers the cell.

    The word is damage if any byte of the cell is damaged; otherwise it is the kind of most of its
    bytes. ``reach``: the physical offset at which the last missing file ends.
    """
    sums = profile.cells
    kinds: list[str | None] = [KINDS[number] for number in sums.argmax(axis=0).tolist()]
    damage = sums[KINDS.index(DAMAGED)] > 0
    nothing = sums.sum(axis=0) == 0
    for number in damage.nonzero()[0].tolist():
        kinds[number] = DAMAGED
    for number in nothing.nonzero()[0].tolist():
        kinds[number] = None
    while kinds and kinds[-1] is None:  # cells after the end
        kinds.pop()
    more = -(-(reach - profile.start) // profile.cell) - len(kinds)
    return [*kinds, *[None] * min(max(more, 0), MAX_CELLS)]


def log_map(profile: LogProfile, reach: int, borders: Iterable[int], say: Say,
            shape: ChartShape) -> str:
    """Return the map of the log as SVG: rows of cells, which begin at the first byte of the log.
    ``borders``: physical offsets at which files begin.
    """
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    # Find the number of rows first: it decides the height of the figure.
    kinds = cells(profile, reach)
    columns = min(shape.columns, max(len(kinds), 1))
    rows = -(-len(kinds) // columns)
    titles: dict[str, str] = {}
    with _figure(shape, 0.1 + rows * shape.width / shape.columns, layout=None) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        # Draw all cells of one kind as a single path, to keep the file small.
        for kind in (MESSAGES, BLANK, ZERO, None):
            places = [number for number, kind_at in enumerate(kinds) if kind_at == kind]
            if places:
                axes.add_patch(PathPatch(
                    Path.make_compound_path(*(_square(Path, *divmod(number, columns))
                                              for number in places)),
                    facecolor=PALETTE[_colour(kind)], linewidth=0, snap=False))
        # Damaged cells are separate and slightly larger, so that a single one is visible.
        damaged = [number for number, kind_at in enumerate(kinds) if kind_at == DAMAGED]
        for number in damaged:
            row, column = divmod(number, columns)
            patch = Rectangle((column - 0.08, row - 0.08), 1.06, 1.06,
                              facecolor=PALETTE["damaged"], linewidth=0, snap=False)
            if len(titles) < _MAX_TITLES:
                name = f"cell-{number}"
                patch.set_gid(name)
                offset = profile.start + number * profile.cell
                titles[name] = say(
                    "{size} damaged from physical offset {start} to {end}", start=offset,
                    end=offset + profile.cell,
                    size=size_text(int(profile.cells[KINDS.index(DAMAGED), number])))
            axes.add_patch(patch)
        # Mark the borders of files, unless there are too many to be useful.
        starts = {(base - profile.start) // profile.cell for base in borders}
        for number in sorted(starts & set(range(1, len(kinds)))) if len(starts) < 200 else ():
            row, column = divmod(number, columns)
            axes.plot([column - 0.06] * 2, [row - 0.05, row + 0.95], color=PALETTE["text"],
                      linewidth=1.1, solid_capstyle="butt")
        axes.set_xlim(-0.1, shape.columns)
        axes.set_ylim(rows, -0.1)
        axes.axis("off")
        return embedded(_svg(figure), titles, f"map-{shape.name}", shape.name)


def _colour(kind: str | None) -> str:
    return "missing" if kind is None else kind


def _square(path: Any, row: int, column: int) -> Any:
    side = 0.88
    corners = [(column, row), (column + side, row), (column + side, row + side),
               (column, row + side), (column, row)]
    return path(corners, [path.MOVETO, *[path.LINETO] * 3, path.CLOSEPOLY])


# -- matplotlib ------------------------------------------------------------------------------------


@contextmanager
def _figure(shape: ChartShape, height: float,
            layout: Literal["constrained"] | None = "constrained") -> Iterator[Figure]:
    """Yield a matplotlib figure that is ``height`` inches high and needs no window."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # silence its notes on caches and fonts
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "font.size": shape.font}):
        yield Figure(figsize=(shape.width, height), layout=layout)


def _svg(figure: Figure) -> str:
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    return target.getvalue()
