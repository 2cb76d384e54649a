"""The tree on the left: log files, topics and queues, retry topics, dead letters, consumer groups,
and all files by folder.

A branch is read when it is opened; the statistics of a node are computed when it becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Tree
from textual.widgets.tree import TreeNode
from textual.worker import get_current_worker

from rmqctl.errors import RmqctlError
from rmqctl.ext.browse.figures import PREFIXES, PlaceFigures, figures, topics_of
from rmqctl.ext.browse.listing import sentence
from rmqctl.ext.browse.opened import BrowsedPlace, BrowsedStore, StoreView
from rmqctl.output.cells import display_width
from rmqctl.output.escape import visible

_MAX_CHILDREN = 500
"""Maximum number of children of a node; more children are divided into branches of this size."""
_WIDE, _MIN_NAME = 38, 10
"""Minimum width (columns) of a tree that shows time ranges, and of a node's name."""
_MAX_KEPT = 20_000
"""Maximum number of nodes whose statistics are kept in memory."""
_MAX_WANTED = 200
BRANCHES = (("log", "log"), ("topics", "topics"), ("retry topics", "retry"),
            ("dead letters", "dead"), ("consumer groups", "groups"), ("files", "folder"))
_LISTED = {"log", "file", "topic", "queue"}

Child = tuple[str, BrowsedPlace | None, bool]
"""A child of a node: its label, its place, and whether it can have children."""
Data = BrowsedPlace | list[Child]
"""Data of a node: its place. If a node has too many children, they are divided into branches; the
data of such a branch is the list of its children.
"""


class StoreTree(Tree[Data]):
    """A tree of the contents of a store."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False), Binding("k", "cursor_up", show=False),
        Binding("g", "scroll_home", show=False), Binding("G", "scroll_end", show=False)]

    class Chosen(Message):
        """The user chose a place that the list can show."""

        def __init__(self, place: BrowsedPlace) -> None:
            super().__init__()
            self.place = place

    class Looked(Message):
        """The cursor moved to a place, or the statistics of the place under the cursor are
        available.
        """

        def __init__(self, place: BrowsedPlace, figures: PlaceFigures | None) -> None:
            super().__init__()
            self.place, self.figures = place, figures

    def __init__(self, opened: BrowsedStore) -> None:
        super().__init__(_label("store"), id="tree")
        self.opened = opened
        self.show_root = False
        self.guide_depth = 2
        self._figures: dict[BrowsedPlace, PlaceFigures] = {}
        self._wanted: dict[BrowsedPlace, set[TreeNode[Data]]] = {}
        self._counting = False

    def on_mount(self) -> None:
        self.fill()

    def fill(self) -> None:
        """Fill the tree with its branches. Only the branch of topics is open."""
        self._figures, self._wanted, self._counting = {}, {}, False
        self.root.remove_children()
        for label, kind in BRANCHES:
            path = self.opened.root if kind == "folder" else ""
            node = self.root.add(_label(label), BrowsedPlace(kind, path=path))
            if kind == "topics":
                node.expand()
        self.root.expand()

    @property
    def place(self) -> BrowsedPlace | None:
        """Return the place under the cursor, if any."""
        node = self.cursor_node
        return node.data if node is not None and isinstance(node.data, BrowsedPlace) else None

    def figures_of(self, place: BrowsedPlace) -> PlaceFigures | None:
        """Return the statistics of a place; None if they are not computed yet."""
        return self._figures.get(place)

    # -- branches -----------------------------------------------------------------------------

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Data]) -> None:
        event.stop()
        node = event.node
        if node is self.root or node.children or node.data is None:
            return
        place = node.data
        if isinstance(place, list):
            self._add(node, place)
        else:
            self.run_worker(lambda: self._load(node, place), thread=True, group="tree")

    def on_tree_node_selected(self, event: Tree.NodeSelected[Data]) -> None:
        event.stop()
        place = event.node.data
        if isinstance(place, BrowsedPlace) and place.kind in _LISTED:
            self.post_message(self.Chosen(place))

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Data]) -> None:
        event.stop()
        if isinstance(event.node.data, BrowsedPlace):
            self.post_message(self.Looked(event.node.data, self.figures_of(event.node.data)))

    def _load(self, node: TreeNode[Data], place: BrowsedPlace) -> None:
        """Read the children of a node, in a thread."""
        reader = self.opened.reader
        try:
            with reader.guard:
                children = list(self._children(reader, place))
        except (RmqctlError, OSError) as error:
            children = [(f"! {sentence(error)}", None, False)]
        self.app.call_from_thread(self._add, node, children)

    def _add(self, node: TreeNode[Data], children: list[Child]) -> None:
        if node.children:
            return
        if len(children) > _MAX_CHILDREN:
            for start in range(0, len(children), _MAX_CHILDREN):
                part = children[start:start + _MAX_CHILDREN]
                node.add(_label(f"{part[0][0]} …"), part)
        else:
            for label, place, opens in children:
                node.add(_label(label), place, allow_expand=opens)
        if not children:
            node.add_leaf(_label("(none)"))

    def _children(self, reader: StoreView, place: BrowsedPlace) -> Iterable[Child]:
        opened = self.opened
        if place.kind == "log":
            for file in opened.log_files():
                yield file.name.lstrip("0") or "0", BrowsedPlace("file", path=file.path), False
        elif place.kind in ("topics", *PREFIXES):
            reason = opened.unread().get("consumequeue")
            if reason:
                yield f"! {reason}", None, False
            prefix = PREFIXES.get(place.kind, "")
            for topic in topics_of(reader, place.kind):
                yield topic.removeprefix(prefix), BrowsedPlace("topic", topic), True
        elif place.kind == "topic":
            for queue_id in opened.queues(place.topic):
                yield str(queue_id), BrowsedPlace("queue", place.topic, queue_id), False
        elif place.kind == "groups":
            for group in reader.lag.groups:
                yield group, BrowsedPlace("group", group=group), True
        elif place.kind == "group":
            for row in reader.lag.of_group(place.group):
                yield f"{row['topic']}/{row['queue_id']}", BrowsedPlace(
                    "queue", row["topic"], row["queue_id"], group=place.group,
                    at=row["consumer_offset"]), False
        elif place.kind == "folder":
            for entry in opened.folder(place.path):
                kind = "folder" if entry.is_folder else "file"
                yield entry.name, BrowsedPlace(kind, path=entry.path), entry.is_folder

    # -- figures ------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """Draw one line, and request the statistics of its place."""
        node = self.get_node_at_line(y + self.scroll_offset.y)
        if node is not None and isinstance(node.data, BrowsedPlace) and (
                node.data not in self._figures):
            if len(self._wanted) > _MAX_WANTED:
                self._wanted.clear()  # visible lines request their figures again
            self._wanted.setdefault(node.data, set()).add(node)
            self._count()
        return super().render_line(y)

    def _count(self) -> None:
        """Compute the requested statistics in a thread, one place at a time."""
        if self._counting:
            return
        self._counting = True
        reader, kept, wanted = self.opened.reader, self._figures, self._wanted

        def work() -> None:
            worker = get_current_worker()
            # The places that appeared last are computed first.
            while (places := list(wanted)) and not worker.is_cancelled:
                place = places[-1]
                with reader.guard:
                    computed = figures(reader, place)
                if not worker.is_cancelled:
                    self.app.call_from_thread(self._put, kept, place, computed)
            if not worker.is_cancelled:
                self.app.call_from_thread(self._counted, kept)

        self.run_worker(work, thread=True, group="figures")

    def _put(self, kept: dict[BrowsedPlace, PlaceFigures], place: BrowsedPlace,
             computed: PlaceFigures) -> None:
        if kept is not self._figures:  # the store was opened again meanwhile
            return
        if len(kept) >= _MAX_KEPT:
            kept.clear()
        kept[place] = computed
        for node in self._wanted.pop(place, ()):
            node.refresh()
        if place == self.place:
            self.post_message(self.Looked(place, computed))

    def _counted(self, kept: dict[BrowsedPlace, PlaceFigures]) -> None:
        if kept is self._figures:
            self._counting = False
            if self._wanted:
                self._count()

    # -- drawing ------------------------------------------------------------------------------

    def get_label_width(self, _node: TreeNode[Data]) -> int:
        """Return a fixed width, so that long labels do not make the tree wider."""
        return 1

    def render_label(self, node: TreeNode[Data], base_style: Style, style: Style) -> Text:
        """Return a node's label: the name on the left, the statistics on the right."""
        label = super().render_label(node, base_style, style)
        room = self.scrollable_content_region.width - self.guide_depth * _depth(node)
        place = node.data if isinstance(node.data, BrowsedPlace) else None
        numbers = None if place is None else self._figures.get(place)
        shown = "" if numbers is None else numbers.brief
        if numbers is not None and numbers.wide and room >= _WIDE + self.guide_depth and (
                room - display_width(f"{numbers.brief}  {numbers.wide}") > _MIN_NAME):
            shown = f"{numbers.brief}  {numbers.wide}"
        left = max(room - display_width(shown) - 1, min(_MIN_NAME, room))
        if label.cell_len > left:
            label.truncate(max(left, 1), overflow="ellipsis")
        if shown and room - label.cell_len > display_width(shown):
            label.append(" " * (room - label.cell_len - display_width(shown)))
            label.append(shown, Style(dim=True))
        return label


def _depth(node: TreeNode[Data]) -> int:
    """Return the depth of a node below the top branches."""
    depth, above = 0, node.parent
    while above is not None and above.parent is not None:
        depth, above = depth + 1, above.parent
    return depth


def _label(words: str) -> Text:
    """Return a label without markup or terminal control characters."""
    return Text(visible(words))
