"""Restore the epoch file of a broker in controller mode from its backup."""

from __future__ import annotations

import os

from rmqctl.errors import FormatError
from rmqctl.repair.plan import Action, Create, Planned, Replace
from rmqctl.store.controller import MAX_FILE_SIZE, disorder, read_epochs
from rmqctl.store.store import Store


def mend_epochs(store: Store) -> Planned:
    """Return the steps that replace a damaged or missing epoch file with an intact backup.

    The backup is intact if its epochs are in order and start within the log. A broker reads the
    backup if the epoch file has a wrong count or CRC. The broker exits if the file is empty or
    truncated.
    """
    file = read_epochs(store)
    main, backup = file.main, file.backup
    end = max((log_file.end for log_file in store.log.files), default=0)
    if (not store.layout.controller or main.epochs or not backup.epochs
            or disorder(backup.epochs) is not None
            or any(epoch.start_offset > end for epoch in backup.epochs)):
        return [], []
    if main.fault is not None and not isinstance(main.fault, FormatError):
        return [], []  # an unreadable file may be intact
    content = store.read_small(backup.name, most=MAX_FILE_SIZE)
    step = (Replace if os.path.lexists(store.path(main.name)) else Create)(main.name, content)
    why = f"{main.reason or 'missing'}; {backup.name} is intact"
    return [step], [Action("restore", main.name, None, len(backup.epochs), why, "entry")]
