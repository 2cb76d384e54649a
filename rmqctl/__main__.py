"""The process: ``rmqctl`` and ``python -m rmqctl``."""

import gc
import sys


def run() -> int:
    """Run rmqctl with the process's arguments and return the exit code.

    Looking for cycles among modules would take a tenth of a short run: Python does so while they
    are loaded, and three times at the end. `cli` enables it again once its command is loaded.
    """
    gc.disable()
    from rmqctl.cli import main

    code = main(own_process=True)
    if code <= 1:  # what failed may have left a `finally` in a cycle, which the end would run
        gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(run())
