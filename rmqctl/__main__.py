"""``python -m rmqctl`` is the same program as the console script ``rmqctl``."""

import sys

from rmqctl.cli import main

if __name__ == "__main__":
    sys.exit(main())
