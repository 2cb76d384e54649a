"""An SFTP server of this machine, which shows a folder and changes nothing."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def serving_sftp(root: Path) -> Iterator[str]:
    """The URL of a folder, with a user and password, until the block ends."""
    paramiko: Any = pytest.importorskip("paramiko")

    class Shown(paramiko.SFTPServerInterface):  # type: ignore[misc]
        def _here(self, path: str) -> str:
            return f"{root}/{self.canonicalize(path)}"

        def list_folder(self, path: str) -> Any:
            return self._answer(lambda: [self._about(os.lstat(f"{self._here(path)}/{name}"), name)
                                         for name in os.listdir(self._here(path))])

        def stat(self, path: str) -> Any:
            return self._answer(lambda: self._about(os.stat(self._here(path))))

        def lstat(self, path: str) -> Any:
            return self._answer(lambda: self._about(os.lstat(self._here(path))))

        def open(self, path: str, flags: int, attr: Any) -> Any:
            def opened() -> Any:
                handle = paramiko.SFTPHandle(flags)
                handle.readfile = open(self._here(path), "rb")  # noqa: SIM115
                handle.stat = lambda: self._about(os.stat(self._here(path)))
                return handle
            return self._answer(opened)

        @staticmethod
        def _about(status: os.stat_result, name: str | None = None) -> Any:
            return paramiko.SFTPAttributes.from_stat(status, name)

        @staticmethod
        def _answer(work: Any) -> Any:
            try:
                return work()
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)

    class Anybody(paramiko.ServerInterface):  # type: ignore[misc]
        def check_auth_password(self, username: str, password: str) -> int:
            return int(paramiko.AUTH_SUCCESSFUL)

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

    key = paramiko.ECDSAKey.generate()
    listening = socket.create_server(("127.0.0.1", 0))
    transports: list[Any] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Shown)
            transports.append(transport)
            transport.start_server(server=Anybody())

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"sftp://user:secret@127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
        for transport in transports:
            transport.close()
