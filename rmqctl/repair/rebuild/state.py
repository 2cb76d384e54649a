"""How far a rebuild came, in a small file of its scratch folder, so that it can go on later.

What lies in the scratch folder is fsynced only when a run ends: after the machine went down
nothing in it is relied on, after a kill everything is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rmqctl.engine.config.settings import Settings
from rmqctl.errors import StoreIOError
from rmqctl.files.durable import failed, publish
from rmqctl.repair.rebuild.work import MOST_SPANS, Damage, Found
from rmqctl.repair.scratch import DERIVED, Scratch
from rmqctl.scan.frames import Span
from rmqctl.scan.overlay import LogPart
from rmqctl.scan.source import FileSource
from rmqctl.store.files import StoreFile

NAME = "rebuild.json"
_VERSION = 1
_MOST = 1 << 20
_BOOT = "/proc/sys/kernel/random/boot_id"


@dataclass(slots=True)
class Progress:
    """``done``: everything before this physical offset is dispatched; -1 before the beginning.

    The other figures are sums over what was dispatched; see
    `rmqctl.repair.rebuild.rebuild.Rebuilt`.
    """

    done: int = -1
    messages: int = 0
    last: int = -1
    end: int = -1
    newest: int = 0
    logics: int = 0
    gaps: int = 0
    refused: int = 0
    unplaceable: int = 0
    damage: Damage = field(default_factory=Damage)
    finished: str = ""
    """Stands for the files that were there at the end; empty before."""

    def add(self, found: Found, done: int) -> None:
        """Takes in what a stretch gave."""
        self.done = done
        self.messages += found.messages
        if found.messages:
            self.last, self.end = found.last, found.end
            self.newest = max(self.newest, found.newest)
        self.damage.merge(found.damage)


class StateFile:
    """The state in ``scratch``, of the log and the wishes that ``identity`` stands for."""

    def __init__(self, scratch: Scratch, identity: str) -> None:
        self._scratch, self._identity = scratch, identity
        self._path = scratch.path(NAME)

    def load(self) -> Progress | None:
        """How far an earlier run came; None where there is none to go on from."""
        try:
            with FileSource(self._path) as source:
                found: Any = json.loads(source.read(0, _MOST))
            same = found["version"] == _VERSION and found["identity"] == self._identity
            if not same or not (found["durable"] or found["boot"] == _boot()):
                return None
            raw = dict(found["progress"])
            raw["damage"] = Damage(raw["damage"]["count"], raw["damage"]["length"],
                                   [Span(**one) for one in raw["damage"]["spans"][:MOST_SPANS]])
            progress = Progress(**raw)
            # Who carries the plan out may have moved the files into the store.
            return progress if progress.finished in ("", self._files()) else None
        except (StoreIOError, ValueError, KeyError, TypeError):
            return None

    def finish(self, progress: Progress) -> None:
        """Notes that nothing is left to do. StoreIOError."""
        progress.finished = self._files()
        self.save(progress)

    def _files(self) -> str:
        digest = hashlib.sha256()
        for name in DERIVED:
            for folder, below, files in os.walk(self._scratch.path(name)):
                below.sort()
                for file in sorted(files):
                    digest.update(repr(_about(os.path.join(folder, file))).encode(
                        "utf-8", "surrogateescape"))
        return digest.hexdigest()

    def save(self, progress: Progress, *, durable: bool = False) -> None:
        """Notes the state. ``durable``: what it tells of was fsynced. StoreIOError."""
        text = json.dumps({"version": _VERSION, "identity": self._identity, "boot": _boot(),
                           "durable": durable, "progress": asdict(progress)}).encode()
        if durable:
            publish(self._path, text, store=self._scratch.root, staging=self._scratch.root)
            return
        try:
            with open(self._path + ".new", "wb") as file:
                file.write(text)
            os.replace(self._path + ".new", self._path)
        except OSError as error:
            raise failed(error, self._path, "write") from None


def identity(parts: Sequence[LogPart], settings: Settings, wishes: object,
             seeds: Iterable[StoreFile]) -> str:
    """Stands for a log as it is now, what is to be made of it, and what it is made upon."""
    digest = hashlib.sha256(repr((settings, wishes)).encode("utf-8", "surrogateescape"))
    for part in parts:
        digest.update(repr((part.base, part.size, _about(part.path))).encode(
            "utf-8", "surrogateescape"))
        for piece in part.pieces:
            digest.update(repr((piece.at, piece.size)).encode())
            for at, data in piece.parts:
                digest.update(repr((at, len(data))).encode())
                digest.update(data)
    for one in seeds:
        digest.update(repr(_about(one.path)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _about(path: str | None) -> tuple[str, int, int, int] | None:
    if path is None:
        return None
    try:
        about = os.stat(path)
    except OSError as error:
        raise StoreIOError.from_oserror(error, path, "look at") from None
    return os.path.abspath(path), about.st_ino, about.st_size, about.st_mtime_ns


def _boot() -> str:
    with contextlib.suppress(OSError), open(_BOOT, encoding="ascii") as told:
        return told.read().strip()
    return ""
