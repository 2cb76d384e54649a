"""Refuse to answer from stores that are known to have lost messages, as Spark's Kafka source does.

Runs in the driver, before anything is read: `failOnDataLoss` is true unless the reader says that
what is left is enough.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from rmqctl.checks.preflight.missing import missing
from rmqctl.errors import StoreIOError
from rmqctl.pipeline.source.options import Options
from rmqctl.pipeline.source.schema import FRAMES, MESSAGES
from rmqctl.store.store import Store

SWITCH = "failOnDataLoss"


def refuse_losses(options: Options) -> None:
    """Raise StoreIOError when a store that is read as messages or frames has lost some.

    Nothing is looked at with ``failOnDataLoss=false``, nor for other tables.
    """
    if not options.fail_on_loss or options.table not in (MESSAGES, FRAMES):
        return
    lost = list(losses(options))
    if lost:
        raise StoreIOError(f"{'; '.join(lost)}. The answer would lack them: bring back the missing "
                           f"files, or set {SWITCH}=false to read what is left")


def losses(options: Options) -> Iterator[str]:
    """Yield a sentence for each store of which messages are known to be missing."""
    for path in options.stores():
        with Store.open(os.path.abspath(path), options.log_folders) as store:
            lost = missing(store, damaged=False).total
            if lost:
                yield f"{path}: {lost:,} messages of the log are lost"
            elif any(store.log.gaps()):
                yield f"{path}: log files are missing between others"
