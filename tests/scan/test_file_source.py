"""A file's descriptor is given back once, whatever happens."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rmqctl.scan.source import FileSource


def test_a_close_that_fails_is_not_tried_again(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has taken the descriptor back all the same, and may have given it to others."""
    path = tmp_path / "file"
    path.write_bytes(b"a")
    source, closed, close = FileSource(str(path)), [], os.close

    def failing(fd: int) -> None:
        closed.append(fd)
        close(fd)
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", failing)
        with pytest.raises(OSError, match="no"):
            source.close()
        source.close()
        del source
    assert len(closed) == 1
