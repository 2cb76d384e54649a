"""The tree on the left: the log with its files, topics with their queues, all files by folder.

A branch is read when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.message import Message
from textual.widgets import Tree
from textual.widgets.tree import TreeNode

from rmqctl.errors import RmqctlError
from rmqctl.ext.browse.listing import sentence
from rmqctl.ext.browse.opened import Opened, Place
from rmqctl.output.escape import visible
from rmqctl.output.units import size_text

_MOST = 500
"""Entries of one branch; of more each so many get a branch of their own."""

Child = tuple[str, Place | None, bool]
"""(label, what is chosen with it, whether it can be opened)."""
Data = Place | list[Child]
"""What a node stands for: a place, or some of the children of the node above."""


class StoreTree(Tree[Data]):
    """What lies in a store."""

    class Chosen(Message):
        """Something that has a list was chosen."""

        def __init__(self, place: Place) -> None:
            super().__init__()
            self.place = place

    def __init__(self, opened: Opened) -> None:
        super().__init__(_label("store"), id="tree")
        self.opened = opened
        self.show_root = False
        self.guide_depth = 2

    def on_mount(self) -> None:
        self.fill()

    def fill(self) -> None:
        """The three branches, closed; the topics are opened."""
        self.root.remove_children()
        self.root.add(_label("log"), Place("log"))
        topics = self.root.add(_label("topics"), Place("topics"))
        self.root.add(_label("files"), Place("folder", path=self.opened.root))
        self.root.expand()
        topics.expand()

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
        if isinstance(place, Place) and place.kind not in ("topics", "folder"):
            self.post_message(self.Chosen(place))

    def _load(self, node: TreeNode[Data], place: Place) -> None:
        """In a thread: asks for the children of a node."""
        try:
            with self.opened.reader.guard:
                children = list(self._children(place))
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

    def _children(self, place: Place) -> Iterable[Child]:
        opened = self.opened
        if place.kind == "log":
            for file in opened.log_files():
                yield (f"{file.name.lstrip('0') or '0'} {size_text(file.size)}",
                       Place("file", path=file.path), False)
        elif place.kind == "topics":
            reason = opened.unread().get("consumequeue")
            if reason:
                yield f"! {reason}", None, False
            for topic in opened.topics():
                yield topic, Place("topic", topic), True
        elif place.kind == "topic":
            for queue_id in opened.queues(place.topic):
                yield str(queue_id), Place("queue", place.topic, queue_id), False
        elif place.kind == "folder":
            for entry in opened.folder(place.path):
                kind = "folder" if entry.is_folder else "file"
                yield entry.name, Place(kind, path=entry.path), entry.is_folder


def _label(words: str) -> Text:
    """A label that is neither markup nor steers the terminal."""
    return Text(visible(words))
