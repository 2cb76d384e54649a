"""The folders in which a broker with a given ``broker.conf`` looks for its files. The store may be
a copy.

The ``broker.conf`` contains paths on the broker's machine. If its storePathRootDir does not exist
on this machine, the given store replaces that folder. Paths below that folder are then looked up
below the store.
"""

from __future__ import annotations

import os
import re

from rmqctl import vfs
from rmqctl.broker.conf.effective import DERIVES_SINCE, MULTI_PATH_SINCE, Effective
from rmqctl.broker.conf.java import trim
from rmqctl.broker.versions import is_from
from rmqctl.lazy_dataclass import dataclass
from rmqctl.store.files import DATA, NODE, listing
from rmqctl.store.log_folders import find, is_store

ROOT, LOG, READ_ONLY = "storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths"
DLEDGER_DATA, SELF_ID = "storePathDLedgerCommitLog", "dLegerSelfId"
_SPLITTER = ","
_COMMITLOG = "commitlog"
_DEFAULT_ROOT = re.compile(r"/(root|(home|Users|var/lib)/[^/]+)/store")
"""Pattern for ``${user.home}/store``, the default root, on other machines."""
_HEAD = 64
"""Number of bytes at the start of a record that contain its queue, offsets and times."""
_EDGES = " \t\r\n\f\"'"


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that the broker opens, relative to the store or absolute.

    ``elsewhere``: the broker's root is another folder, so the broker does not read this store's
    queues and configuration.
    ``moved``: the broker's root is assumed to be the folder from which the store was copied.
    ``log``: the folders of the log.
    ``setting``: name of the setting that determines the folders of the log.
    """

    root: str | None
    elsewhere: bool
    moved: bool
    log: tuple[str, ...]
    setting: str


def places(effective: Effective, store: str) -> Places:
    """Return the folders that a broker opens if it is started on the store at ``store``."""
    root, log = effective.given(ROOT), effective.given(LOG)
    multi = is_from(effective.release, MULTI_PATH_SINCE) and _SPLITTER in (log or "")
    paths = trim(log).split(_SPLITTER) if multi and log else [log] if log is not None else []
    if multi:  # a single path is read without separators
        paths += [path for path in trim(effective.given(READ_ONLY) or "").split(_SPLITTER) if path]
    elsewhere = _is_elsewhere(root, store) if root is not None else _without_root(paths, store)
    base = root if root is not None else _base_of(paths)
    if paths:
        folders = [_seen(path, None if elsewhere else base) for path in paths]
    elif root is None or is_from(effective.release, DERIVES_SINCE):
        folders = [_COMMITLOG] if not elsewhere else [f"{root or ''}{os.sep}{_COMMITLOG}"]
    else:  # the default is below the home of the broker's user
        home = os.path.expanduser("~/store")
        folders = ([_COMMITLOG] if not elsewhere and is_default(root) else
                   [os.path.join(home, _COMMITLOG)])
    setting = LOG
    if effective.get("enableDLegerCommitLog"):
        data, setting = _dledger(effective, base)
        plain = [folder for folder in folders
                 if listing(os.path.join(store, folder)).files] if any(
            listing(os.path.join(store, folder)).files for folder in data) else folders
        folders = [*plain, *data]
    moved = not elsewhere and (root is None or not _same(root, store))
    return Places(root, elsewhere, moved, tuple(dict.fromkeys(folders)), setting)


def is_default(path: str) -> bool:
    """Return whether a folder is ``~/store`` of this user, or looks like another user's
    ``~/store``.
    """
    path = vfs.normpath(path)
    return path == vfs.normpath(os.path.expanduser("~/store")) or bool(
        _DEFAULT_ROOT.fullmatch(path))


def _is_elsewhere(root: str, store: str) -> bool:
    """Return whether a configured root is neither the store nor the folder from which the store was
    copied.
    """
    if _same(root, store):
        return False
    if not root.strip(_EDGES) or root.startswith("~") or "${" in root:
        return True  # Java replaces neither
    same_place = _same(os.path.dirname(vfs.abspath(root)),
                       os.path.dirname(vfs.abspath(store)))
    if vfs.isdir(root):
        return not is_store(root) or _is_another(root, store)
    meant = root.strip(_EDGES)
    return same_place or (meant != root and _same(meant, store)) or (
        vfs.normpath(meant).casefold() == vfs.abspath(store).casefold())


def _is_another(root: str, store: str) -> bool:
    """Return whether the first messages of two stores' logs differ. If they do, neither store is a
    copy of the other.
    """
    logs = [{file.name: file.path for folder in find(path)
             for file in listing(os.path.join(path, folder)).files} for path in (root, store)]
    common = sorted(logs[0].keys() & logs[1].keys())
    heads = [_head(log[common[0]]) for log in logs] if common else []
    return len(heads) > 1 and all(any(head) for head in heads) and heads[0] != heads[1]


def _head(path: str) -> bytes:
    """Return the header of the first record of a log file; b"" if it cannot be read."""
    try:
        with vfs.open_bytes(path) as file:
            return file.read(_HEAD)
    except OSError:
        return b""


def _without_root(paths: list[str], store: str) -> bool:
    """Return whether a broker without a configured root uses a folder other than this store as its
    root. True if a log folder is in the store, but the store is not the default root.
    """
    if is_default(vfs.abspath(store)):
        return False
    return any(_same(os.path.dirname(vfs.abspath(path)), store) for path in paths)


def _base_of(paths: list[str]) -> str | None:
    """Return the default root on the broker's machine, inferred from its log folders; None if
    unknown.
    """
    above = [os.path.dirname(vfs.normpath(path)) for path in paths]
    return next((folder for folder in above if os.path.basename(folder) == "store"
                 and not vfs.isdir(folder)), None)


def _seen(path: str, base: str | None) -> str:
    """Return a configured folder relative to the store if it is below ``base``, else its absolute
    path.
    """
    if base is None or not path:
        return path or os.path.join(os.sep, "")
    below = os.path.relpath(vfs.normpath(path), vfs.normpath(base))
    if below != os.pardir and not below.startswith(os.pardir + os.sep):
        return below
    return path if os.path.isabs(path) else vfs.abspath(path)


def _dledger(effective: Effective, base: str | None) -> tuple[list[str], str]:
    """Return the folders of DLedger's data, and the name of the setting that determines them."""
    path = effective.given(DLEDGER_DATA)
    if path:
        return [_seen(part, base) for part in path.split(_SPLITTER)], DLEDGER_DATA
    return [os.path.join(f"{NODE}{effective.given(SELF_ID) or ''}", DATA)], SELF_ID


def _same(path: str, other: str) -> bool:
    return vfs.realpath(path) == vfs.realpath(other)
