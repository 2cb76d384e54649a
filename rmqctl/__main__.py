"""Entry point of the process: ``rmqctl`` and ``python -m rmqctl``."""

import gc
import sys
from _thread import RLock
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_SELDOM = frozenset({"bz2", "hashlib", "ipaddress", "lzma", "numpy._core._add_newdocs",
                     "numpy._core._add_newdocs_scalars", "pdb", "pickle", "platform", "random",
                     "shellingham", "subprocess", "textwrap", "tokenize", "wcwidth"})
"""Modules that typer, construct, numpy, tabulate and Python's own modules import, but that few runs
use: debuggers, docstrings, widths of characters, archives."""


class _Later:
    """An import hook: the modules in `_SELDOM` are executed when something first uses them.

    Unlike with `importlib.util.LazyLoader`, two threads may use a module first.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._lock, self._begun = loader, RLock(), False

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module in `_SELDOM`; None for other modules."""
        spec = PathFinder.find_spec(name, path, target) if name in _SELDOM else None
        if spec is not None:
            spec.loader = cls(spec.loader)  # type: ignore[assignment]
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module when an attribute is missing that it may define."""

        def attribute(name: str) -> Any:
            with self._lock:
                if not self._begun:
                    self._begun = True
                    self._loader.exec_module(module)
            if name not in vars(module):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return vars(module)[name]

        vars(module)["__getattr__"] = attribute


def run() -> int:
    """Run rmqctl with the process's arguments and return the exit code.

    Garbage collection would take a tenth of the time of a short run. So the collector is off while
    modules are loaded and at exit; `cli` enables it once the command is loaded.
    """
    gc.disable()
    if _Later not in sys.meta_path:
        sys.meta_path.insert(0, _Later)
    from rmqctl.cli import main

    code = main(own_process=True)
    if code <= 1:  # a failure may have left a `finally` in a cycle, which would run at exit
        gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(run())
