"""``rmqctl dlq requeue``: send dead letters again: to their topic, another store, or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rmqctl.commands.app import typed
from rmqctl.commands.app.completing import complete_groups
from rmqctl.commands.app.option_groups import pick
from rmqctl.commands.shared.applying import ApplyOptions, ask, check_options
from rmqctl.commands.shared.dead_letters import OF_DEAD_LETTERS, refuse_unknown
from rmqctl.commands.shared.deferred_signals import DeferredSignals
from rmqctl.commands.shared.engine_options import settings_from
from rmqctl.commands.shared.message_options import SelectOptions
from rmqctl.commands.shared.messages import ReadFaults
from rmqctl.commands.shared.options import ListedOut, StoreIndex, View, Zone
from rmqctl.errors import StoreIOError, UsageError
from rmqctl.output import FLUSH

if TYPE_CHECKING:
    from rmqctl.engine.input.requeue import ConvertedLetter
    from rmqctl.output import Output
    from rmqctl.store import Store as OpenedStore

_SENT, _WRITTEN = "sent", "WRITTEN"
_BRIEF = ("dead_letter", "topic", "queue_id", "status", "physical_offset", "reason")


def command(
    *,
    group: Annotated[str, typer.Option(
        "--group", "-g", metavar="GROUP", autocompletion=complete_groups, show_default=False,
        help="Consumer group of the dead letters.")],
    select: Annotated[SelectOptions, pick(OF_DEAD_LETTERS)],
    into: Annotated[Literal["original", "retry"], typer.Option(
        "--into", help="original: the original topic, for all its groups. retry: the group's retry "
                       "topic, for this group only.")] = "original",
    again: Annotated[bool, typer.Option(
        "--again", help="Also requeue dead letters that were requeued before.")] = False,
    to: Annotated[str | None, typer.Option(
        "--to", metavar="STORE2", show_default=False,
        help="Put the messages into this store instead.",
    )] = None,
    file: Annotated[str | None, typer.Option(
        "--out", metavar="FILE", show_default=False,
        help="Write the messages to this new file instead, as JSON lines for `append`.",
    )] = None,
    view: View = "disk",
    tz: Zone = UTC,
    apply: ApplyOptions,
    store: StoreIndex,
    out: ListedOut,
) -> None:
    """Send a group's dead letters again.

    Shows the plan; --apply carries it out while no broker runs. Each dead letter becomes a new
    message with the same body, tag, keys, unique key and properties, and reconsume times 0, in the
    original queue if it still exists. The dead letters stay; RMQCTL_REQUEUED in a new message names
    its dead letter, so none is requeued twice. `undo` cannot remove the new messages; `truncate`
    can, until other messages follow. Exit code 1 if any dead letter was skipped.

        rmqctl dlq requeue STORE --group billing --since -1d
        rmqctl dlq requeue STORE --group billing --into retry --apply --yes
    """
    # Refuse options that contradict each other before anything is opened.
    if to is not None and file is not None:
        raise UsageError("--to and --out are mutually exclusive")
    if file is not None and apply.apply:
        raise UsageError("--out cannot be combined with --apply: --out writes its file at once")
    check_options(out, apply)
    from rmqctl.broker.view import view_of
    from rmqctl.engine.input.append_stream import open_session
    from rmqctl.engine.input.requeue import COLUMNS, converted, requeue
    from rmqctl.files.named import refuse_link_of_others
    from rmqctl.store.groups.dead_letters import Requeued, Resending, dead_letters

    # Check source, group and target by reading only.
    if file is not None:
        refuse_link_of_others(file, itself=False)
    wanted = select.selection(tz)
    faults = ReadFaults(out)
    with store.open() as opened:
        opened.layout.require(store.root, "consumequeue")
        refuse_unknown(out, opened, group)
        _warn_of_others(out, opened, group, into)
    root = to or store.root
    folders = () if to else store.folders
    # Ask before the target is locked.
    if apply.apply:
        ask(out, f"Send the dead letters of {group} again?", yes=apply.yes or out.is_data)
    # Lock the target for the complete run; with a file as the target, nothing is locked.
    with ExitStack() as stack:
        signals = stack.enter_context(DeferredSignals())
        session = None
        if file is None:
            settings = settings_from(root, commitlog_dirs=folders, flush="sync")
            session = stack.enter_context(open_session(root, settings, folders,
                                                       dry_run=not apply.apply,
                                                       outside=apply.write_outside or ()))
            for note in session.notes:
                out.note(note)
        # Only now: opening for writing may have completed what the last run left.
        source = stack.enter_context(store.open())
        target = source if to is None else stack.enter_context(_opened(to))
        # Dead letters are read while the new messages are written.
        letters = converted(
            dead_letters(view_of(source, view), group, wanted, faults.report),
            Resending(source, None if file else target, into),
            Requeued(view_of(target, "disk"), faults.report), again=again)
        tally: Counter[str] = Counter()
        places: list[int] = []
        if session is None:
            assert file is not None
            rows: Iterable[Any] = _written(file, letters)
        else:
            rows = requeue(letters, session)
        out.rows(_counted(rows, tally, places, signals), COLUMNS, brief=_BRIEF,
                 empty="no dead letters match")
    _end(out, faults, tally, places, root, file, applied=apply.apply)


def _opened(root: str) -> OpenedStore:
    from rmqctl.store import Store as OpenedStore

    return OpenedStore.open(root)


def _warn_of_others(out: Output, store: OpenedStore, group: str, into: str) -> None:
    """Warn about other groups that read the same topics, because they receive the
    messages again.
    """
    from rmqctl.formats.local.properties import RETRY_PREFIX
    from rmqctl.store.config.progress import ConsumerProgress, named

    if into == "retry":
        return
    positions = ConsumerProgress.of(store).by_group()
    own = {topic for topic in positions.get(group, {}) if not topic.startswith(RETRY_PREFIX)}
    others = sorted(name for name, topics in positions.items()
                    if name != group and own & topics.keys())
    if others:
        out.warn(f"{named(others)} read{'s' if len(others) == 1 else ''} the same topics and "
                 f"receive{'s' if len(others) == 1 else ''} these messages again; --into retry "
                 f"sends them to {group} alone")


def _written(path: str, letters: Iterable[ConvertedLetter]) -> Iterator[dict[str, Any]]:
    """Write message objects to a new file; yield a result row for each dead letter.
    Raises: StoreIOError.
    """
    from rmqctl.engine.input.requeue import line

    try:
        with open(path, "xb") as target:
            for letter in letters:
                if letter.message is not None:
                    target.write(line(letter.message) + b"\n")
                yield letter.row(**({} if letter.message is None else {"status": _WRITTEN}))
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "write to") from None


def _counted(rows: Iterable[dict[str, Any]], tally: Counter[str], places: list[int],
             signals: DeferredSignals) -> Iterator[Any]:
    """Yield the result rows, and count them by status in ``tally``. Add the physical offset of the
    first written message to ``places``. A signal ends the run between two messages.
    """
    for row in rows:
        place, status = row["physical_offset"], row["status"]
        tally[_SENT if place is not None or status == _WRITTEN else status] += 1
        if place is not None and not places:
            places.append(place)
        yield row
        yield FLUSH
        signals.check()


def _end(out: Output, faults: ReadFaults, tally: Counter[str], places: list[int], root: str,
         file: str | None, *, applied: bool) -> None:
    from rmqctl.engine.input.requeue import ALREADY

    already = tally.pop(ALREADY, 0)
    stored = tally.pop(_SENT, 0)
    if already:
        out.note(f"{already} were requeued before and are skipped (--again sends them again)")
    if file is not None:
        out.note(f"{stored} written to {file}; `rmqctl append STORE {file}` appends them")
    elif applied and stored:
        out.note(f"{stored} requeued; until other messages follow, "
                 f"`{typed.other('truncate', root, '--to-phy', str(places[0]))}` removes them")
    elif stored:
        out.note(f"nothing was changed; --apply puts {stored}")
    if tally:
        out.warn(f"{sum(tally.values())} skipped; see status and reason")
    faults.has_findings |= bool(tally) or not (stored or already)
    faults.end()


