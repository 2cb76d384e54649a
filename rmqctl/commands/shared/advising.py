"""Computation and output of the next steps that `doctor` and other checks recommend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmqctl import vfs
from rmqctl.commands.app import typed
from rmqctl.commands.app.targets import is_tier
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.checks.advice import RepairOutlook
    from rmqctl.checks.doctor import Diagnosis
    from rmqctl.commands.shared.options import StoreOptions
    from rmqctl.output import Human, Output
    from rmqctl.store.store import Store

_LOOK = Phrase("Step 2 of 4 (copy, check, repair, start): check.")
_LOOK_AFTER_COPY = Phrase("Step 2 of 4 (copy, check, repair, start): check.\n"
                          "First copy the store: rmqctl backup STORE DEST")
REPAIR = Phrase("Step 3 of 4 (copy, check, repair, start): repair.")
START = Phrase("Step 4 of 4 (copy, check, repair, start): start the broker once `doctor` reports a "
               "sound store.")
"""Sentence that tells the user which of the four steps to a running broker comes next."""


def look(root: str) -> Phrase:
    """Return the sentence to show above the commands that check a store. It advises `backup` only
    for local stores, because `restore` copies remote ones, and other tools copy tiers.
    """
    return _LOOK if vfs.is_elsewhere(root) or is_tier(root) else _LOOK_AFTER_COPY


def complete(document: dict[str, Any]) -> None:
    """Add the typed layout options to the recommended commands in a document or finding."""
    following = document["next"]
    document["next"] = (
        [typed.completed(command) for command in following] if isinstance(following, list)
        else typed.completed(following))
    for step in document.get("steps", ()):
        step["command"] = typed.completed(step["command"])


def planned(opened: Store, diagnosis: Diagnosis, store: StoreOptions,
            out: Output) -> RepairOutlook | None:
    """Return what `recover` would do to the store, with the same layout options; None for a remote
    store.
    """
    if vfs.is_remote(opened.root):
        return None
    from rmqctl.repair.outlook import advised
    from rmqctl.repair.recover import RecoverOptions

    return advised(opened, diagnosis, RecoverOptions(
        commitlog_dirs=store.folders, sizes=store.sizes, given=store.over_conf({})), out.watch)


def show_steps(page: Human, diagnosis: Diagnosis) -> None:
    """Show the damage that no command can repair, and the commands to run next."""
    left = diagnosis.remains
    if left:
        page.heading("Not repairable by any command")
        for damage in left:
            page.text(Phrase("{category} ({count:,}): {why}", category=damage.category,
                             count=damage.count, why=damage.why))
    steps = diagnosis.next
    if steps:
        page.heading("Next steps, in this order")
        page.text(look(diagnosis.findings.root))
        for step in steps:
            page.text(typed.completed(step.command) or "")
            page.text(Phrase("   {why}", why=step.why), "dim")
