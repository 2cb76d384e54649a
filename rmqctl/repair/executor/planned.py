"""A plan that is made and applied under one lock of its store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rmqctl.errors import RefusedError, RmqctlError, StoreIOError, noting_refusals
from rmqctl.repair.executor.executor import Repair
from rmqctl.repair.scratch import Scratch

Proposal = TypeVar("Proposal")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def planned(repair: Repair, propose: Callable[[Scratch], Proposal], *,
            resume: bool = False) -> Iterator[Proposal]:
    """Yield the plan that ``propose`` makes, with a scratch folder on the store's file system.

    With ``resume``, the scratch folder may contain the files of an interrupted run. The folder is
    then kept if this run is interrupted, but not if the plan is refused. Raises: StoreIOError if a
    file could not be read while planning; whatever ``propose`` raises.
    """
    scratch = Scratch(repair.scratch_folder, repair.command, keep=resume)
    if not resume:
        scratch.clear()
    try:
        with scratch:
            with noting_refusals() as refused:
                plan = propose(scratch)
            if refused:
                raise StoreIOError(f"{refused[0]}; a plan made without it cannot be applied; "
                                   "nothing was changed")
            try:
                yield plan
            except Exception as error:
                if isinstance(error, RefusedError) or not isinstance(error, RmqctlError):
                    scratch.remove()
                raise
        scratch.remove()
    except StoreIOError as error:
        if error.errno in _DISK_FULL:  # the scratch files may fill the disk
            scratch.remove()
        raise
    finally:
        for folder in (repair.scratch_folder, os.path.dirname(repair.scratch_folder)):
            with suppress(OSError):  # not empty
                os.rmdir(folder)
