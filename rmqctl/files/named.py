"""Files that the user named, and the rules for following links at their paths.

`durable.replace_file` and `durable.new_whole_file` put complete files in place and never write
through a link. Other writers follow a link only if no other user can have created it.
"""

from __future__ import annotations

import os
import stat

from rmqctl.errors import RefusedError, StoreIOError
from rmqctl.files.durable import open_file

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def refuse_link_of_others(path: str, *, itself: bool = True) -> None:
    """Raise RefusedError if ``path`` leads through a link that another user may have created.

    ``itself``: whether ``path`` itself may be refused. It is refused if it is a link in a folder to
    which other users may write. A link among its parent folders is refused if everybody may write
    to the folder that contains the link.

    Raises: StoreIOError.
    """
    name, others = os.path.abspath(path), _OTHERS
    if not itself:
        name, others = os.path.dirname(name), stat.S_IWOTH
    try:
        while (above := os.path.dirname(name)) != name:
            if os.path.islink(name) and os.stat(above).st_mode & others:
                raise RefusedError(f"{name}: is a symbolic link in a folder that other users can "
                                   f"write to; rmqctl does not write through it")
            name, others = above, stat.S_IWOTH
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "examine") from None


def open_to_append(path: str) -> int:
    """Return a descriptor for appending to the file, which is created if it does not exist. A link
    is followed unless `refuse_link_of_others` refuses it.

    Raises: RefusedError, StoreIOError.
    """
    refuse_link_of_others(path, itself=False)
    try:
        return open_file(path, _APPEND | os.O_NOFOLLOW, "write to")
    except RefusedError:
        refuse_link_of_others(path)
    return open_file(path, _APPEND, "write to")
