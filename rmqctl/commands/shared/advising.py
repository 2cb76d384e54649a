"""The steps that a verdict advises: planned for `doctor` and `report`, and shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmqctl import vfs
from rmqctl.commands.app import typed
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.advice import Outlook
    from rmqctl.checks.doctor import Diagnosis
    from rmqctl.commands.shared.options import StoreOptions
    from rmqctl.output import Human, Output
    from rmqctl.store.store import Store

LOOK = Phrase("Step 2 of 4 (copy, look, repair, start): look. Take a copy first.")
REPAIR = Phrase("Step 3 of 4 (copy, look, repair, start): repair.")
START = Phrase("Step 4 of 4 (copy, look, repair, start): start the broker, once `doctor` finds the "
               "store sound.")
"""Where a screen is in the chain from a damaged store to a broker that runs."""


def complete(document: dict[str, Any]) -> None:
    """Add to the commands of a document, or to that of a finding, the options that say how this
    store is read.
    """
    following = document["next"]
    document["next"] = (
        [typed.completed(command) for command in following] if isinstance(following, list)
        else typed.completed(following))
    for step in document.get("steps", ()):
        step["command"] = typed.completed(step["command"])


def planned(opened: Store, found: Diagnosis, store: StoreOptions, out: Output) -> Outlook | None:
    """What `recover` with the same options would do (`rmqctl.repair.outlook.advised`)."""
    if vfs.is_remote(opened.root):
        return None
    from rmqctl.repair.outlook import advised
    from rmqctl.repair.recover import RecoverOptions

    return advised(opened, found, RecoverOptions(
        commitlog_dirs=store.folders, sizes=store.sizes, given=store.over_conf({})), out.watch)


def show_steps(page: Human, found: Diagnosis) -> None:
    """What remains to be done by hand, and the commands to go on with."""
    left = found.remains
    if left:
        page.heading("What no command repairs")
        for one in left:
            page.text(Phrase("{category} ({count:,}): {why}", category=one.category,
                             count=one.count, why=one.why))
    steps = found.next
    if steps:
        page.heading("What next, in this order")
        page.text(LOOK)
        for step in steps:
            page.text(typed.completed(step.command) or "")
            page.text(Phrase("   {why}", why=step.why), "dim")
