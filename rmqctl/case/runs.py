"""The rmqctl commands of an examination, run as an examiner would type them; each run is logged."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from subprocess import DEVNULL, Popen
from typing import IO, Any

from rmqctl import __version__
from rmqctl.case.folder import Folder, json_line
from rmqctl.errors import StoreIOError
from rmqctl.store.redaction import Redaction

LOG = "log.jsonl"
MEANINGS = {0: "done", 1: "findings", 2: "usage", 3: "not available", 4: "held by another process",
            5: "I/O error", 6: "refused", 70: "internal error of rmqctl"}
_DONE = (0, 1)
_PROGRAM = (sys.executable, "-P", "-m", "rmqctl")
"""Command that starts rmqctl. With -P, Python does not load modules from the working directory,
which may be untrusted.
"""
_MOUNTS = "/proc/self/mountinfo"


def now() -> str:
    """Return the current time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def host(path: str, *, redacted: bool) -> dict[str, Any]:
    """Return facts about the machine and its clock for the examiner. ``redacted``: omit
    all names.
    """
    facts: dict[str, Any] = {
        "rmqctl": __version__, "python": platform.python_version(), "system": platform.system(),
        "release": platform.release(), "machine": platform.machine(), "time_zone": time.tzname[0],
        "clock": now(), **_mounted(path, redacted=redacted)}
    if not redacted:
        facts["host"] = platform.node()
        with suppress(KeyError, OSError):
            facts["user"] = getpass.getuser()
    return facts


def _mounted(path: str, *, redacted: bool) -> dict[str, Any]:
    """Return the mount options of the file system that contains the originals; empty if unknown."""
    best: tuple[str, dict[str, Any]] = "", {}
    with suppress(OSError, ValueError, IndexError), open(_MOUNTS, encoding="utf-8",
                                                         errors="surrogateescape") as file:
        real = os.path.realpath(path)
        for line in file:
            left, _, right = line.partition(" - ")
            point, options = left.split()[4:6]
            point = point.replace("\\040", " ")
            if os.path.commonpath((real, point)) == point and len(point) >= len(best[0]):
                kind, device = right.split()[:2]
                best = point, {"file_system": kind, "mount_options": options,
                               "mounted_read_only": "ro" in options.split(",")} | (
                    {} if redacted else {"mount_point": point, "device": device})
    return best[1]


class CommandRuns:
    """Runner of commands, one after the other. ``redaction``: applied to the commands' output.
    ``passed``: file descriptors that the commands inherit.
    """

    def __init__(self, folder: Folder, redaction: Redaction | None,
                 passed: Sequence[int] = ()) -> None:
        self._folder, self._redaction, self._passed = folder, redaction, passed
        self._log = folder.new(LOG)
        self.rows: list[dict[str, Any]] = []

    def note(self, row: dict[str, Any]) -> None:
        """Append an entry to the log of the runs and flush the log."""
        self._log.write(json_line(row))
        self._log.flush()

    def close(self) -> None:
        self._log.close()

    def document(self, words: Sequence[str], name: str) -> Any:
        """Run a command that prints one JSON document, and write the document to the file ``name``.
        Return the document, or None if the output is not JSON.
        """
        with tempfile.TemporaryFile() as out:
            self.finished(words, name, out)
            out.seek(0)
            try:
                document = json.loads(out.read())
            except ValueError:
                return None
        if self._redaction is not None:
            document = self._redaction.document(document)
        self._folder.write(name, json.dumps(document, indent=2, ensure_ascii=True).encode() + b"\n")
        return document

    def finished(self, words: Sequence[str], output: str,
                 out: IO[bytes] | int = DEVNULL) -> None:
        """Run a command and wait until it ends. Raises: StoreIOError."""
        with self.run(words, output, out):
            pass

    @contextmanager
    def run(self, words: Sequence[str], output: str, out: IO[bytes] | int) -> Iterator[
            Popen[bytes]]:
        """Start a command. Its output is written to ``out`` or read by the caller. At the end of
        the ``with`` block, wait until the command ends, and log the run.
        Raises: StoreIOError.
        """
        number = len(self.rows) + 1
        stderr_path = f"stderr/{number:02d}-{words[0]}.txt"
        row: dict[str, Any] = {"step": number, "command": shlex.join(["rmqctl", *words]),
                               "started": now()}
        begin = time.monotonic()
        with tempfile.TemporaryFile() as errors:
            try:
                process = Popen(  # noqa: S603 - our own program
                    [*_PROGRAM, *words], stdin=DEVNULL, stdout=out, stderr=errors,
                    pass_fds=self._passed)
            except OSError as error:
                raise StoreIOError.from_oserror(error, sys.executable, "run") from None
            try:
                yield process
                process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
                code = process.returncode
                row |= {"ended": now(), "seconds": round(time.monotonic() - begin, 3),
                        "exit_code": code, "meaning": MEANINGS.get(code, "ended by a signal"
                                                                   if code < 0 else "failed"),
                        "done": code in _DONE, "output": output}
                errors.seek(0)
                text = errors.read().decode("utf-8", "replace")
                if text:
                    row["stderr"] = stderr_path
                    if self._redaction is not None:
                        text = self._redaction.text(text)
                    self._folder.write(stderr_path, text.encode())
                self.rows.append(row)
                self.note(row)
