"""Entry point of the process: ``rmqctl`` and ``python -m rmqctl``."""

import gc
import sys


def run() -> int:
    """Run rmqctl with the process's arguments and return the exit code.

    Garbage collection would take a tenth of the time of a short run. So the collector is off while
    modules are loaded and at exit; `cli` enables it once the command is loaded.
    """
    gc.disable()
    from rmqctl.cli import main

    code = main(own_process=True)
    if code <= 1:  # a failure may have left a `finally` in a cycle, which would run at exit
        gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(run())
