"""``rmqctl info``: show the main facts about a store on one screen."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any

from rmqctl.commands.shared.options import Out, StoreOptions, View, Zone
from rmqctl.commands.shared.store_warnings import tell_left_over, warn_of_cut
from rmqctl.output.units import (
    count_text,
    counted,
    duration_text,
    size_text,
    time_or_zero,
    time_text,
)
from rmqctl.phrases import Joined, Phrase

if TYPE_CHECKING:
    from rmqctl.output import Human

_MAX_TOPICS = 20
_MAX_QUEUES = 8
_MAX_TROUBLES = 10


def command(
    *,
    view: View = "auto",
    tz: Zone = UTC,
    store: StoreOptions,
    out: Out,
) -> None:
    """Show a store's version, files, offsets, times, topics, checkpoint and lock on one screen.

    Reads only the ends of files, not the whole log; use `rmqctl verify` to check the rest. Whatever
    could not be read is listed under "troubles".
    """
    from rmqctl.broker.view import view_of
    from rmqctl.checks.repaired import all_in_words
    from rmqctl.reports import store_facts

    with store.sampled(out) as opened:
        queue_view = view_of(opened, view)
        facts = store_facts(opened, queue_view)
        warn_of_cut(out, queue_view)
        tell_left_over(out, opened)
        repaired = (all_in_words(opened.repair_losses) if opened.layout.reads("commitlog")
                    else None)
    unknown = Phrase("not checked: run rmqctl verify")
    lost = unknown if repaired is None else Joined("; ", [repaired, unknown])
    out.document(facts, lambda page: _InfoScreen(page, facts, lost, tz, out.verbose > 0).show())


class _InfoScreen:
    """The human-readable page. ``full``: whether to show all topics, queues and problems."""

    def __init__(self, page: Human, facts: dict[str, Any], lost: str, tz: tzinfo,
                 full: bool) -> None:
        self._page, self._facts, self._tz, self._full = page, facts, tz, full
        self._lost = lost
        self._dash = "\N{EN DASH}" if page.unicode else "-"

    def show(self) -> None:
        # Facts about the whole store fit on one line each; empty ones are dropped.
        facts, page = self._facts, self._page
        lock, pid = facts["lock"], facts["abort_pid"]
        pairs = {
            "store": facts["store"],
            "layout": self._layout(),
            "version": f"{facts['version']} ({self._evidence()})",
            "last run": self._ending(pid),
            "lock": self._lock(),
            "log": self._log(),
            "stored": self._span(),
            "messages": self._messages(),
            "lost": self._lost,
            "checkpoint": self._checkpoint(),
            "offsets kept": self._checkpoint_offsets(),
            "controller": self._controller(),
            "file sizes": self._sizes(),
        }
        # Highlight a running broker, and an unclean shutdown if no broker runs.
        styles = {"lock": "warn"} if lock["held"] else {}
        if facts["abort"] and not lock["held"]:
            styles["last run"] = "warn"
        page.pairs({name: text for name, text in pairs.items() if text}, styles=styles)
        # Name what is not judged before the tables, because it explains gaps in them.
        reasons = [structure["reason"] for structure in facts["not_judged"]]
        for text in dict.fromkeys([*reasons, *facts["layout_notes"]]):
            page.text(text, "warn")
        self._structures()
        self._topics()
        self._troubles()

    def _layout(self) -> str:
        """Return the forms of those structures that differ from the usual layout (a plain log,
        consume queue files, JSON configuration).
        """
        usual = {"commitlog": "plain", "consumequeue": "file", "config": "json"}
        return ", ".join(f"{name} {form}" for name, form in self._facts["layout"].items()
                         if form != usual[name])

    def _evidence(self) -> str:
        evidence = [hint["evidence"] for hint in self._facts["version_hints"]]
        # The newest evidence is the strongest; only a little fits on the screen.
        shown = evidence if self._full else evidence[-2:]
        return "; ".join(shown) or "no sign of a later version"

    def _ending(self, pid: int | None) -> str:
        if not self._facts["abort"]:
            return "shut down cleanly (no abort file)"
        by = "" if pid is None else f", by process {pid}"
        if self._facts["lock"]["held"]:
            return f"still running (abort file{by})"
        return f"did not shut down cleanly (abort file{by})"

    def _lock(self) -> str:
        lock = self._facts["lock"]
        if lock["held"]:
            holder = "another process" if lock["pid"] is None else f"process {lock['pid']}"
            return f"held by {holder} ({lock['kind']})"
        return f"not held ({lock['note']})" if lock["note"] else "not held"

    def _log(self) -> str:
        least, most = self._facts["min_phy_offset"], self._facts["max_phy_offset"]
        if most is None:
            return "unknown"
        files = [file for file in self._facts["files"] if file["kind"] == "commitlog"]
        if not files:
            return "no files"
        text = f"{count_text(least)} {self._dash} {count_text(most)} ({size_text(most - least)})"
        view = ", as a broker sees it" if self._facts["cut"] else ""
        return f"{text} in {counted(len(files), 'file')}{view}"

    def _span(self) -> str:
        first = self._facts["first_store_timestamp"]
        last = self._facts["last_store_timestamp"]
        if first is None or last is None:
            return ""
        ends = f"{time_text(first, self._tz)} {self._dash} {time_text(last, self._tz)}"
        return f"{ends} ({duration_text(last - first)})"

    def _messages(self) -> str:
        topics = self._facts["topics"]
        if self._facts["messages"] is None:
            return "unknown (rmqctl stats counts the messages in the log)" if (
                self._facts["max_phy_offset"] is not None) else "unknown"
        queues = sum(len(topic["queues"]) for topic in topics)
        fillers = self._facts["fillers"]
        of_these = f"; {counted(fillers, 'filler')} for lost messages" if fillers else ""
        return (
            f"{count_text(self._facts['messages'])} in {counted(queues, 'queue')} "
            f"of {counted(len(topics), 'topic')}{of_these}"
        )

    def _checkpoint(self) -> str:
        checkpoint = self._facts["checkpoint"]
        if checkpoint is None:
            return "none"
        return ", ".join(
            f"{name.split('_')[0]} {time_or_zero(value, self._tz)}"
            for name, value in checkpoint.items()
            if name.endswith("_timestamp")
        )

    def _checkpoint_offsets(self) -> str:
        """Return the two offsets that 5.x brokers keep in the checkpoint, unless they are 0."""
        checkpoint = self._facts["checkpoint"] or {}
        return ", ".join(
            f"{name.replace('_', ' ')} {count_text(value)}"
            for name, value in checkpoint.items()
            if value and not name.endswith("_timestamp")
        )

    def _controller(self) -> str:
        """Return the broker's identity in controller mode, and its last epoch."""
        controller = self._facts["controller"]
        if controller is None:
            return ""
        identity, epochs = controller["identity"], controller["epochs"]
        parts = [] if identity is None else [
            f"{identity['broker_name']}#{identity['broker_id']} of {identity['cluster']}"]
        if not epochs:
            return "; ".join([*parts, "no epoch"])
        last = epochs[-1]
        since, count = count_text(last["start_offset"]), counted(len(epochs), "epoch")
        return "; ".join([*parts, f"epoch {last['epoch']} from {since} on, {count} in all"])

    def _sizes(self) -> str:
        sizes = self._facts["sizes"]
        by_structure = {
            "commitlog": sizes["commitlog_file_size"],
            "consumequeue": sizes["consumequeue_file_size"],
        }
        parts = [f"{name} {count_text(size)}" for name, size in by_structure.items() if size]
        if sizes["index_slots"]:
            slots, most = count_text(sizes["index_slots"]), count_text(sizes["index_max"])
            parts.append(f"index {slots} slots and {most} entries")
        return ", ".join(parts)

    def _structures(self) -> None:
        if not self._facts["structures"]:
            return
        self._page.blank()
        rows = [
            {"structure": "abort.bak" if structure["kind"] == "abort" and not self._facts["abort"]
             else structure["kind"], "files": structure["files"], "size": structure["size"],
             "on disk": structure["allocated"]}
            for structure in self._facts["structures"]
        ]
        self._page.table(rows, render={"size": size_text, "on disk": size_text})

    def _topics(self) -> None:
        topics = sorted(self._facts["topics"],
                        key=lambda topic: (-topic["messages"], topic["topic"]))
        if not topics:
            return
        self._page.blank()
        shown = topics if self._full else topics[:_MAX_TOPICS]
        rows = (
            {"topic": topic["topic"], "messages": topic["messages"], "queues": len(topic["queues"]),
             "offsets by queue": self._queues(topic["queues"])}
            for topic in shown
        )
        self._page.table(rows, render={"messages": count_text})
        if len(topics) > len(shown):
            hidden = sum(topic["messages"] for topic in topics[len(shown) :])
            self._page.text(
                f"{self._page.mark} and {len(topics) - len(shown)} more topics with "
                f"{count_text(hidden)} messages (-v shows all)",
                "dim",
            )

    def _queues(self, queues: list[dict[str, Any]]) -> str:
        shown = queues if self._full else queues[:_MAX_QUEUES]
        parts = [
            f"{queue['queue_id']}: unreadable" if queue["max_offset"] is None
            else f"{queue['queue_id']}: {queue['min_offset']}{self._dash}{queue['max_offset']}"
            for queue in shown
        ]
        if len(queues) > len(shown):
            parts.append(f"{self._page.mark} {len(queues) - len(shown)} more")
        return "  ".join(parts)

    def _troubles(self) -> None:
        troubles = self._facts["troubles"]
        if not troubles:
            return
        self._page.heading("troubles")
        shown = troubles if self._full else troubles[:_MAX_TROUBLES]
        for trouble in shown:
            self._page.text(f"{trouble['path']}: {trouble['reason']}", "warn")
        if len(troubles) > len(shown):
            self._page.text(f"and {len(troubles) - len(shown)} more (-v shows all)", "dim")
