"""The tree on the left: the log with its files, topics with their queues, retry topics, dead
letters, consumer groups, all files by folder.

A branch is read when it is opened, and the figures of a place when it is on the screen.
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
from rmqctl.ext.browse.figures import PREFIXES, Figures, figures, topics_of
from rmqctl.ext.browse.listing import sentence
from rmqctl.ext.browse.opened import Opened, Place, Reader
from rmqctl.output.cells import display_width
from rmqctl.output.escape import visible

_MOST = 500
"""Entries of one branch; of more each so many get a branch of their own."""
_WIDE, _LEAST_NAME = 38, 10
"""Columns from which on ranges of time are shown, and columns that a name keeps."""
_MOST_KEPT = 20_000
"""Places of which the figures are kept."""
_MOST_WANTED = 200
BRANCHES = (("log", "log"), ("topics", "topics"), ("retry topics", "retry"),
            ("dead letters", "dead"), ("consumer groups", "groups"), ("files", "folder"))
_LISTED = {"log", "file", "topic", "queue"}

Child = tuple[str, Place | None, bool]
"""(label, what is chosen with it, whether it can be opened)."""
Data = Place | list[Child]
"""Data of a node: a place, or some of the children of the node above."""


class StoreTree(Tree[Data]):
    """Tree of the contents of a store."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False), Binding("k", "cursor_up", show=False),
        Binding("g", "scroll_home", show=False), Binding("G", "scroll_end", show=False)]

    class Chosen(Message):
        """Something that has a list was chosen."""

        def __init__(self, place: Place) -> None:
            super().__init__()
            self.place = place

    class Looked(Message):
        """The cursor is on a place, or its figures have come."""

        def __init__(self, place: Place, figures: Figures | None) -> None:
            super().__init__()
            self.place, self.figures = place, figures

    def __init__(self, opened: Opened) -> None:
        super().__init__(_label("store"), id="tree")
        self.opened = opened
        self.show_root = False
        self.guide_depth = 2
        self._figures: dict[Place, Figures] = {}
        self._wanted: dict[Place, set[TreeNode[Data]]] = {}
        self._counting = False

    def on_mount(self) -> None:
        self.fill()

    def fill(self) -> None:
        """The branches, closed; the topics are opened."""
        self._figures, self._wanted, self._counting = {}, {}, False
        self.root.remove_children()
        for label, kind in BRANCHES:
            path = self.opened.root if kind == "folder" else ""
            node = self.root.add(_label(label), Place(kind, path=path))
            if kind == "topics":
                node.expand()
        self.root.expand()

    @property
    def place(self) -> Place | None:
        """Return the place under the cursor."""
        node = self.cursor_node
        return node.data if node is not None and isinstance(node.data, Place) else None

    def figures_of(self, place: Place) -> Figures | None:
        """Return the figures of a place; None while unknown."""
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
        if isinstance(place, Place) and place.kind in _LISTED:
            self.post_message(self.Chosen(place))

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Data]) -> None:
        event.stop()
        if isinstance(event.node.data, Place):
            self.post_message(self.Looked(event.node.data, self.figures_of(event.node.data)))

    def _load(self, node: TreeNode[Data], place: Place) -> None:
        """In a thread: asks for the children of a node."""
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
        if len(children) > _MOST:
            for start in range(0, len(children), _MOST):
                part = children[start:start + _MOST]
                node.add(_label(f"{part[0][0]} …"), part)
        else:
            for label, place, opens in children:
                node.add(_label(label), place, allow_expand=opens)
        if not children:
            node.add_leaf(_label("(none)"))

    def _children(self, reader: Reader, place: Place) -> Iterable[Child]:
        opened = self.opened
        if place.kind == "log":
            for file in opened.log_files():
                yield file.name.lstrip("0") or "0", Place("file", path=file.path), False
        elif place.kind in ("topics", *PREFIXES):
            reason = opened.unread().get("consumequeue")
            if reason:
                yield f"! {reason}", None, False
            prefix = PREFIXES.get(place.kind, "")
            for topic in topics_of(reader, place.kind):
                yield topic.removeprefix(prefix), Place("topic", topic), True
        elif place.kind == "topic":
            for queue_id in opened.queues(place.topic):
                yield str(queue_id), Place("queue", place.topic, queue_id), False
        elif place.kind == "groups":
            for group in reader.lag.groups:
                yield group, Place("group", group=group), True
        elif place.kind == "group":
            for row in reader.lag.of_group(place.group):
                yield f"{row['topic']}/{row['queue_id']}", Place(
                    "queue", row["topic"], row["queue_id"], group=place.group,
                    at=row["consumer_offset"]), False
        elif place.kind == "folder":
            for entry in opened.folder(place.path):
                kind = "folder" if entry.is_folder else "file"
                yield entry.name, Place(kind, path=entry.path), entry.is_folder

    # -- figures ------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        """One line; the figures of what is on it are asked for."""
        node = self.get_node_at_line(y + self.scroll_offset.y)
        if node is not None and isinstance(node.data, Place) and node.data not in self._figures:
            if len(self._wanted) > _MOST_WANTED:
                self._wanted.clear()  # what is on the screen asks again
            self._wanted.setdefault(node.data, set()).add(node)
            self._count()
        return super().render_line(y)

    def _count(self) -> None:
        """Compute the wanted figures in a thread, one place at a time."""
        if self._counting:
            return
        self._counting = True
        reader, kept, wanted = self.opened.reader, self._figures, self._wanted

        def work() -> None:
            worker = get_current_worker()
            # What came on the screen last is computed first.
            while (places := list(wanted)) and not worker.is_cancelled:
                place = places[-1]
                with reader.guard:
                    computed = figures(reader, place)
                if not worker.is_cancelled:
                    self.app.call_from_thread(self._put, kept, place, computed)
            if not worker.is_cancelled:
                self.app.call_from_thread(self._counted, kept)

        self.run_worker(work, thread=True, group="figures")

    def _put(self, kept: dict[Place, Figures], place: Place, computed: Figures) -> None:
        if kept is not self._figures:  # the store was opened again meanwhile
            return
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[place] = computed
        for node in self._wanted.pop(place, ()):
            node.refresh()
        if place == self.place:
            self.post_message(self.Looked(place, computed))

    def _counted(self, kept: dict[Place, Figures]) -> None:
        if kept is self._figures:
            self._counting = False
            if self._wanted:
                self._count()

    # -- drawing ------------------------------------------------------------------------------

    def get_label_width(self, _node: TreeNode[Data]) -> int:
        """No label makes the tree wider than it is."""
        return 1

    def render_label(self, node: TreeNode[Data], base_style: Style, style: Style) -> Text:
        """Return the name on the left, figures on the right."""
        label = super().render_label(node, base_style, style)
        room = self.scrollable_content_region.width - self.guide_depth * _depth(node)
        found = self._figures.get(node.data) if isinstance(node.data, Place) else None
        shown = "" if found is None else found.brief
        if found is not None and found.wide and room >= _WIDE + self.guide_depth and (
                room - display_width(f"{found.brief}  {found.wide}") > _LEAST_NAME):
            shown = f"{found.brief}  {found.wide}"
        left = max(room - display_width(shown) - 1, min(_LEAST_NAME, room))
        if label.cell_len > left:
            label.truncate(max(left, 1), overflow="ellipsis")
        if shown and room - label.cell_len > display_width(shown):
            label.append(" " * (room - label.cell_len - display_width(shown)))
            label.append(shown, Style(dim=True))
        return label


def _depth(node: TreeNode[Data]) -> int:
    """Return how many guides are left of a node."""
    depth, above = 0, node.parent
    while above is not None and above.parent is not None:
        depth, above = depth + 1, above.parent
    return depth


def _label(words: str) -> Text:
    """Return a label that is neither markup nor steers the terminal."""
    return Text(visible(words))
