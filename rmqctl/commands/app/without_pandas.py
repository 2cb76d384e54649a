"""An import hook that hides pandas from pyarrow and DuckDB."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from rmqctl.commands.app import exit_codes

_PANDAS = "pandas"


class _NotFound:
    """An importer that reports pandas as not installed."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
                  ) -> None:
        if name == _PANDAS:
            raise ModuleNotFoundError("rmqctl does not use pandas", name=name)


def leave_pandas_out() -> None:
    """Hide pandas from pyarrow and DuckDB if rmqctl is the main program of this process.

    pyarrow and DuckDB import pandas when they convert the first value, which takes longer than most
    queries. An interrupt during the import is lost and leaves pandas partly loaded.
    """
    is_out = any(isinstance(finder, _NotFound) for finder in sys.meta_path)
    if exit_codes.own_process and not is_out:
        sys.meta_path.insert(0, _NotFound())
