"""Refuse to read stores that have lost messages, as Spark's Kafka source does.

The driver calls `refuse_losses` before anything is read; a task calls `refuse_damage` if it reads
damaged bytes. `failOnDataLoss` is true by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rmqctl import vfs
from rmqctl.checks.preflight.missing import missing
from rmqctl.errors import StoreIOError
from rmqctl.scan.frames import ZERO, Span
from rmqctl.sql.options import ReadOptions
from rmqctl.sql.schema import FRAMES, MESSAGES
from rmqctl.store.store import Store

SWITCH = "failOnDataLoss"


def refuse_losses(options: ReadOptions) -> None:
    """Raise StoreIOError if messages or frames are to be read from a store that has lost messages.

    Do nothing if ``failOnDataLoss`` is false, or for any other table.
    """
    if not options.fail_on_loss or options.table not in (MESSAGES, FRAMES):
        return
    lost = list(losses(options.stores(), options.log_folders))
    if lost:
        raise StoreIOError(f"{'; '.join(lost)}. The result would not contain them: restore the "
                           f"missing files, or set {SWITCH}=false to read the remaining messages")


def losses(paths: Iterable[str], log_folders: Sequence[str] = ()) -> Iterator[str]:
    """Yield a sentence for each store that is known to have lost messages."""
    for path in paths:
        with Store.open(vfs.abspath(path), log_folders) as store:
            lost = missing(store, damaged=False).total
            if lost:
                yield f"{path}: {lost:,} messages of the log are lost"
            elif any(store.log.gaps()):
                yield f"{path}: the log has a gap: commitlog files are missing"


def damage_text(path: str, span: Span) -> str:
    """Return a sentence about a damaged span of a log file."""
    reason = f" ({span.reason})" if span.reason else ""
    cause = ("zeros before other messages" if span.kind == ZERO else f"a damaged record{reason}")
    return f"{path}: {cause} at physical offset {span.offset}: {span.length:,} bytes are not read"


def refuse_damage(path: str, span: Span) -> None:
    """Raise StoreIOError for a damaged span of a log file."""
    raise StoreIOError(f"{damage_text(path, span)}. Run `rmqctl doctor` to see what can be "
                       f"repaired, or set {SWITCH}=false to read the remaining messages")
