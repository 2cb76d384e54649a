"""rmqctl: read, query and verify Apache RocketMQ store directories, offline."""

import os

# The one place the version is written; the build back end reads it from here. A constant costs
# nothing at start, whereas importlib.metadata alone takes a third of the time of `rmqctl --help`.
__version__ = "0.1.0"

# Spark's workers have the package in an archive that they name relative to a folder which they
# leave: what is imported later is still to be found.
__path__ = [os.path.abspath(folder) for folder in __path__]
