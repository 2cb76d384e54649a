"""Shared parts of the ``rmqctl delete`` commands: options, plan, certificate, purge."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqctl.commands.app.option_groups import OptionGroup
from rmqctl.commands.shared.applying import ApplyOptions, at_a_terminal
from rmqctl.errors import RefusedError, UsageError
from rmqctl.lazy_dataclass import dataclass
from rmqctl.output.units import count_text, size_text
from rmqctl.parse_values import now_ms
from rmqctl.phrases import Phrase

if TYPE_CHECKING:
    from rmqctl.commands.shared.options import StoreOptions
    from rmqctl.commands.shared.plan_page import Proposal
    from rmqctl.output import Output
    from rmqctl.repair.erase.erase import EraseSelection, Erasure
    from rmqctl.repair.scratch import Scratch

_COLUMNS = ("what", "topic", "queue_id", "queue_offset", "physical_offset", "size")


@dataclass(frozen=True, kw_only=True)
class EraseOptions(OptionGroup):
    """Options that extend a deletion, purge kept files and write a certificate."""

    same_body: Annotated[bool, typer.Option(
        "--same-body", help="Also erase messages with another id whose body equals an erased "
        "body.")] = False
    whole_batches: Annotated[bool, typer.Option(
        "--whole-batches", help="Also erase the other messages of a compressed batch that contains "
        "an erased message.")] = False
    purge: Annotated[bool, typer.Option(
        "--purge", help="With --apply: also delete the files kept for undo, of all repairs. "
                        "Requires --yes without a terminal.")] = False
    certificate: Annotated[str | None, typer.Option(
        "--certificate", metavar="FILE", show_default=False,
        help="Write a JSON file with the digests of everything erased; must be new.")] = None


def run(out: Output, store: StoreOptions, name: str, wanted: EraseSelection, apply: ApplyOptions,
        options: EraseOptions) -> None:
    """Show or apply the plan of a deletion. After it is applied, write the certificate and purge.

    ``wanted`` selects the messages; ``options`` can extend the selection.
    """
    from rmqctl.commands.shared import applying, plan_page
    from rmqctl.export.staging import checked_target
    from rmqctl.repair.erase.erase import plan_erase

    wanted = replace(wanted, same_body=options.same_body, whole_batches=options.whole_batches,
                     purge=options.purge)
    # Check the certificate's place before anything is erased.
    certificate = None if options.certificate is None else checked_target(options.certificate)
    if options.purge and apply.apply and not apply.yes and not at_a_terminal():
        raise UsageError("--purge deletes permanently; without a terminal, --apply requires --yes")
    # The certificate includes an interrupted deletion, because this run completes it.
    earlier = _interrupted(store.root) if apply.apply and certificate else []
    erasures: list[Erasure] = []

    def propose(scratch: Scratch) -> Proposal:
        with store.open() as opened:
            erasure = plan_erase(opened, name, wanted, now_ms, scratch)
        erasures[:] = [erasure]
        copies = sum(line["what"] != "message" for line in erasure.erased)
        return plan_page.Proposal(
            erasure.plan, {"erased": erasure.erased, "bytes_left": erasure.left,
                           "same_body": erasure.doubtful, "not_found": erasure.not_found,
                           "batches_left": erasure.batches, "purge": options.purge},
            {"messages": count_text(len(erasure.erased) - copies), "copies": count_text(copies),
             "bytes": size_text(sum(line["size"] for line in erasure.erased))},
            listed=((Phrase("Messages"), erasure.erased, _COLUMNS),), purges=options.purge)

    applying.run(out, store.root, name, propose, apply, folders=store.folders, writes=())
    if not apply.apply:
        return
    if certificate is not None and erasures:
        _certify(certificate, name, store.root, [*earlier, *erasures[0].erased])
    if options.purge:
        _purge(out, store.root)


def _interrupted(root: str) -> list[dict[str, Any]]:
    """Return the messages that an interrupted deletion was erasing. Raises: StoreIOError."""
    from rmqctl.repair.executor.journal import load, pending, state_of

    repair_id = pending(root)
    if repair_id is None or state_of(root, repair_id)[0] != "interrupted":
        return []
    journal = load(root, repair_id)
    return [dict(action["proof"]) for action in journal.actions
            if journal.command.startswith("delete-") and action["action"] == "erase"]


def _certify(path: str, name: str, root: str, lines: list[dict[str, Any]]) -> None:
    """Write the certificate. Raises: StoreIOError, RefusedError if the file exists."""
    from rmqctl.files.durable import new_whole_file

    document = {"command": name, "store": root, "time": now_ms(), "erased": lines}
    new_whole_file(path, json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n")


def _purge(out: Output, root: str) -> None:
    """Delete the kept files of all repairs.
    Raises: RefusedError if the journal of a repair is damaged.
    """
    from rmqctl.repair.executor.executor import Repair
    from rmqctl.repair.executor.journal import history
    from rmqctl.repair.executor.prune import left_elsewhere, prunable

    with Repair(root, "delete", finish=False) as repair:
        prunable_repairs = prunable(root, 1 << 62)
        for kept in prunable_repairs:
            for folder in left_elsewhere(root, kept.entry.id):
                out.warn(Phrase("repair {id} also keeps files in {folder}, which are not deleted",
                                id=kept.entry.id, folder=folder))
        repair.prune([kept.entry.id for kept in prunable_repairs])
    stays = [entry.id for entry in history(root)]
    if stays:
        raise RefusedError(f"{root}: the journal of repair {stays[0]} is damaged, so the files of "
                           "this and later repairs are not deleted; `rmqctl undo "
                           f"{shlex.quote(root)} --list` shows them")
    out.note(Phrase("deleted the kept files of {count} repair; it can no longer be undone",
                    "deleted the kept files of {count} repairs; they can no longer be undone",
                    count=len(prunable_repairs)))
