"""Tables of findings or actions. If there are many, those of the same kind and topic share a row.
With --all, each finding or action has its own row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rmqctl.phrases import Catalog, Joined, Phrase, counted, translated

if TYPE_CHECKING:
    from rmqctl.actions import Action
    from rmqctl.checks.findings import Finding
    from rmqctl.output import Human

    T = TypeVar("T")

MAX_LISTED = 8
"""Maximum number of findings or actions that get one row each; more are grouped."""
_QUEUES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
# Punctuation of both languages.
_END = re.compile(r"\s*(?:[:;,(\uff1a\uff1b\uff0c\uff08]|\s\S*\d)")
_DANGLING = re.compile(r"(?:\s+(?:an?|at|by|for|from|in|of|on|the|to|with))+$")
_MIN_BEGINNING = 10
_AGAIN = "delivers_again"
"""Key in the evidence of actions that set a group's offset (see `rmqctl.repair.offsets`)."""
_MAX_SHARE = 0.75
"""Maximum number of groups, as a share of the ungrouped rows; above it, nothing is grouped."""
_SEVERITIES = ("error", "warning", "info")


class Beginning(Phrase):
    """The beginning of a text, up to the first number or punctuation mark. Similar texts, such as
    the reasons of similar actions, have the same beginning.
    """

    __slots__ = ()

    def __new__(cls, text: str, /) -> Self:
        phrase = super().__new__(cls, "{text}", text=_beginning(text))
        phrase.values = {"text": text}
        return phrase

    def translated(self, catalog: Catalog) -> str:
        return _beginning(translated(self.values["text"], catalog))

    def __getnewargs__(self) -> tuple[str]:
        return (self.values["text"],)


def _beginning(text: str) -> str:
    end = _END.search(text)
    if end is None or (end.start() < _MIN_BEGINNING and text.isascii()) or not end.start():
        return text
    return _DANGLING.sub("", text[:end.start()])


def show_findings(page: Human, findings: Sequence[Finding], row_of: Callable[[Finding], Mapping[
        str, Any]], columns: Sequence[str], styles: Mapping[str, Any], root: str) -> None:
    """Show a table of findings. ``row_of`` returns the row of a single finding. If there are many
    findings, they are grouped into rows by kind and topic.
    """
    # A short list is shown as it is.
    if page.every or len(findings) <= MAX_LISTED:
        page.table(map(row_of, findings), columns, styles=styles)
        return
    from rmqctl.checks.findings import CATEGORIES, INFO

    # Summarize by severity, category and topic, unless this hardly shortens the list.
    groups = _grouped(findings, lambda finding: (
        finding.severity, finding.category, finding.topic or _top(finding, root)))
    if len(groups) > len(findings) * _MAX_SHARE:
        page.table(map(row_of, findings), columns, styles=styles)
        return
    groups.sort(key=lambda alike: _SEVERITIES.index(alike[0].severity)
                if alike[0].severity in _SEVERITIES else len(_SEVERITIES))
    # A single finding keeps its place and its detail; a group shows where its findings are.
    rows = []
    for alike in groups:
        first = alike[0]
        category = first.category
        if len(alike) == 1:
            row = row_of(first)
            rows.append({"severity": first.severity, "category": first.category, "count": 1,
                         "where": row["where"] if first.structure == "commitlog" or not first.topic
                         else first.topic, "detail": first.detail})
            continue
        rows.append({
            "severity": first.severity, "category": first.category, "count": len(alike),
            "where": _queues(first.topic, {finding.queue_id for finding in alike})
            if first.topic else _files(_top(first, root), {finding.file for finding in alike}),
            "detail": Phrase(CATEGORIES[category].meaning)})
    page.table(rows, ("severity", "category", "count", "where", "detail"), styles=styles)
    infos = sum(finding.severity == INFO for finding in findings)  # no verdict counts these
    what = counted(len(findings) - infos, "finding")
    _more(page, what if not infos else Phrase(
        "{findings} and {some:,} with severity info", findings=what, some=infos), len(rows))


def show_actions(page: Human, actions: Sequence[Action], columns: Sequence[str], most: int
                 ) -> bool:
    """Show a table of actions with at most ``most`` rows. If there are more than `MAX_LISTED`
    actions, similar ones share a row. Return whether each action has its own row.
    """
    listed = [action.in_words() for action in actions[:None if page.every else most]]
    if page.every or len(actions) <= MAX_LISTED:
        rows: list[dict[str, Any]] = list(listed)
    else:
        rows = [_action(alike) for alike in _grouped(actions, _alike)]
        if len(rows) > len(actions) * _MAX_SHARE:
            rows = list(listed)
    used = [name for name in columns if any(row[name] != "" for row in rows)]
    if "count" in rows[0]:
        used.insert(2, "count")
    page.table(rows[:None if page.every else most], used)
    if len(rows) > most and not page.every:
        page.text(Phrase("and {some:,} more (--all lists them)", some=len(rows) - most))
    if "count" in used:
        _more(page, counted(len(actions), "action"), len(rows))
    return "count" not in used


def _alike(action: Action) -> Hashable:
    """Return a key that is the same for similar actions. Actions that set consumer offsets are
    similar if group and topic are the same.
    """
    proof = action.proof or {}
    return (action.action, _folder(action.target),
            (proof["group"], proof["topic"]) if _AGAIN in proof else _beginning(action.reason))


def _offsets(alike: Sequence[Action]) -> dict[str, Any]:
    """Return one row for similar actions, which set a group's offsets in the queues of a topic."""
    first, proofs = alike[0], [action.proof or {} for action in alike]
    skips, again = (sum(proof[name] for proof in proofs) for name in ("skips", _AGAIN))
    what = [Phrase("skips {messages}", messages=counted(skips, "unread message"))
            ] if skips or not again else []
    if again:
        what.append(Phrase("delivers {count:,} again", count=again))
    if without := sum(
            bool(proof["to"]) and not proof["max_offset"] for proof in proofs):
        what.append(Phrase("{count:,} without an entry", count=without))
    return {"action": first.action, "count": len(alike), "target": first.target, "from": "",
            "to": "", "reason": Phrase(
                "{group} at {topic}, {queues}: {what}", group=proofs[0]["group"],
                topic=proofs[0]["topic"], queues=counted(len(alike), "queue"),
                what=Joined(", ", what))}


def _action(alike: Sequence[Action]) -> dict[str, Any]:
    first = alike[0]
    if len(alike) == 1:
        return {**first.in_words(), "count": 1}
    if _AGAIN in (first.proof or {}):
        return _offsets(alike)
    folder = _folder(first.target)
    reasons = {action.reason for action in alike}
    return {"action": first.action, "count": len(alike),
            "target": _queues(folder.partition("/")[2], {
                action.target.split("/")[2] for action in alike})
            if _first(folder) in _QUEUES and folder.count("/") else _files(
                folder, {action.target for action in alike}),
            "from": _sum([action.before for action in alike], first, folder),
            "to": _sum([action.after for action in alike], first, folder),
            "reason": first.reason if len(reasons) == 1 else Beginning(first.reason)}


def _sum(values: Sequence[Any], first: Action, folder: str) -> Any:
    """Return the sum of ``values`` if they are counts; "" for names, bytes or physical offsets."""
    counts = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(counts) != len(values) or not (first.unit or _first(folder) in _QUEUES):
        return ""
    unit = first.unit and counted(sum(counts), first.unit,
                                  "entries" if first.unit == "entry" else "")
    return unit or sum(counts)


def _first(folder: str) -> str:
    return folder.partition("/")[0]


def _folder(target: str) -> str:
    """Return the label by which an action's ``target`` is grouped:

    * for a queue, the topic's folder
    * for the log, index or timer log, the structure
    * for any other file, its folder
    """
    parts = target.split("/")
    if parts[0] in _QUEUES and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0] if parts[0] in ("commitlog", "index", "timerlog") else (
        os.path.dirname(target) or target)


def _top(finding: Finding, root: str) -> str:
    """Return the label by which a finding without a topic is grouped: its structure or file."""
    if finding.file is None or finding.structure in ("commitlog", "index", "consumequeue"):
        return finding.structure
    return os.path.relpath(finding.file, root)


def _queues(topic: str | None, queues: Iterable[Any]) -> Phrase:
    return Phrase("{topic}, {queues}", topic=topic, queues=counted(len(set(queues)), "queue"))


def _files(folder: str, files: Iterable[Any]) -> str:
    count = len(set(files))
    return folder if count < 2 else Phrase(
        "{folder}, {files}", folder=folder, files=counted(count, "file"))


def _grouped(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _more(page: Human, what: str, lines: int) -> None:
    page.text(Phrase("{what} in {lines:,} lines (--all lists each)", what=what, lines=lines), "dim")
